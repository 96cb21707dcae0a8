// Numbers for people.

const COUNT = new Intl.NumberFormat("en");

/** A number with three digits that count, or all digits of a whole one. */
function digits(value) {
  if (Number.isInteger(value)) return COUNT.format(value);
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** Microseconds, in the unit that suits them. */
export function time(us) {
  const size = Math.abs(us);
  if (size >= 1e6) return `${digits(us / 1e6)} s`;
  return size >= 1e3 ? `${digits(us / 1e3)} ms` : `${digits(us)} µs`;
}

/** Bytes, in the unit that suits them. */
export function bytes(count) {
  if (count >= 1e9) return `${digits(count / 1e9)} GB`;
  if (count >= 1e6) return `${digits(count / 1e6)} MB`;
  return count >= 1e3 ? `${digits(count / 1e3)} kB` : `${COUNT.format(count)} B`;
}

/** A share of 1, in percent. */
export function share(part) {
  return `${(100 * part).toFixed(1)} %`;
}

/** A whole number with its noun. */
export function counted(count, noun) {
  return `${COUNT.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

const BY_KIND = { time, bytes, share, number: digits };

/** The kinds of values whose columns are aligned and sorted as numbers. */
export const NUMERIC = Object.keys(BY_KIND);

/** A value of a kind as text; nothing for one that is not known. */
export function formatted(kind, value) {
  if (value === null || value === undefined) return "";
  return kind in BY_KIND ? BY_KIND[kind](value) : String(value);
}
