// What was chosen on the page, kept behind the # of its address, so that a link shows the same.

/** What a part of the page was told to show, by key. */
export function remembered(part) {
  const found = {};
  for (const [key, value] of new URLSearchParams(location.hash.slice(1)))
    if (key.startsWith(`${part}.`)) found[key.slice(part.length + 1)] = value;
  return found;
}

/** Replaces what a part of the page shows; empty values are left out. */
export function remember(part, chosen) {
  const others = [...new URLSearchParams(location.hash.slice(1))]
    .filter(([key]) => !key.startsWith(`${part}.`));
  const own = Object.entries(chosen).filter(([, value]) => value)
    .map(([key, value]) => [`${part}.${key}`, value]);
  history.replaceState(null, "", `#${new URLSearchParams([...others, ...own])}`);
}
