// Elements of a page, made of properties and children; text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; `on...` properties are listeners, `undefined` ones are left out. */
export function element(tag, properties = {}, ...children) {
  return furnished(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function drawn(tag, properties = {}, ...children) {
  return furnished(document.createElementNS(SVG, tag), properties, children);
}

function furnished(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter(child => child !== undefined));
  return made;
}

/** What the page was built with under a name. */
export function stored(name) {
  return JSON.parse(document.getElementById(name).textContent);
}

/** A section with its heading, at the end of the page. */
export function section(title, ...children) {
  const made = element("section", { "aria-label": title }, element("h2", {}, title), ...children);
  document.querySelector("main").append(made);
  return made;
}

/** Saves a text as a file, as a click on a link to it does. */
export function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
