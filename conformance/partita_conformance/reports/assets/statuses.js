// What can become of a check, and how many checks of a list ended how.

/** Statuses that need somebody to look. */
export const BAD = ["failed", "crashed", "timeout", "xpassed"];

const MADE = ["passed", "xfailed", ...BAD];

/** Counts by status; `tone` is the status that stands for all of them. */
export function tally(checks) {
  const counts = {};
  for (const { status } of checks) counts[status] = (counts[status] ?? 0) + 1;
  const sum = statuses => statuses.reduce((total, status) => total + (counts[status] ?? 0), 0);
  const good = sum(["passed"]), bad = sum(BAD), made = sum(MADE);
  const tone = !made ? "declined" : good === made ? "passed" : bad ? "failed" : "xfailed";
  return { counts, good, bad, made, tone, total: checks.length };
}
