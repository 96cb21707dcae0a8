// Operators by element type: how many checks of each pair passed.

import { element } from "partita/element.js";
import { tally } from "./statuses.js";

const USUAL = ["float", "float16", "bfloat16", "double", "int64", "int32", "int16", "int8",
  "uint64", "uint32", "uint16", "uint8", "bool", "string"];

/** The matrix; `show` is called with the values of a cell that is chosen. */
export function operatorMatrix(checks, show) {
  const pairs = new Map();
  for (const check of checks.filter(one => one.op)) {
    const pair = `${check.op}\n${check.dtype}`;
    if (!pairs.has(pair)) pairs.set(pair, []);
    pairs.get(pair).push(check);
  }
  const place = dtype => (USUAL.includes(dtype) ? USUAL.indexOf(dtype) : USUAL.length);
  const unique = key => [...new Set(checks.map(check => check[key]).filter(Boolean))].sort();
  const dtypes = unique("dtype").sort((a, b) => place(a) - place(b));
  const button = (text, label, picks) => element("button",
    { type: "button", tabindex: -1, title: label, onclick: () => show(picks) }, text);
  const square = (op, dtype, found = []) => {
    if (!found.length) return element("td");
    const { good, made, tone } = tally(found);
    const details = [...new Set(found.map(check => check.detail).filter(Boolean))].slice(0, 5);
    return element("td", { class: tone },
      button(made ? `${good}/${made}` : "·", details.join("\n") || `${op} ${dtype}`, { op, dtype }));
  };
  const heading = text => element("th", { scope: "col" }, text);
  const table = element("table",
    { class: "matrix", role: "grid", "aria-label": "operators by element type", onkeydown: move },
    element("thead", {}, element("tr", {}, heading("operator"), ...dtypes.map(heading))),
    element("tbody", {}, ...unique("op").map(op => element("tr", {},
      element("th", { scope: "row" }, button(op, op, { op })),
      ...dtypes.map(dtype => square(op, dtype, pairs.get(`${op}\n${dtype}`)))))));
  table.querySelector("button")?.setAttribute("tabindex", 0);
  return element("div", { class: "scroll" }, table);
}

/** One stop of the tabulator for all cells: arrows go from one to the next that holds something. */
function move(event) {
  const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const [down, right] = steps[event.key];
  const rows = event.currentTarget.rows;
  const cell = event.target.closest("td, th");
  let row = cell.parentElement.rowIndex + down, column = cell.cellIndex + right;
  for (; rows[row]?.cells[column]; row += down, column += right) {
    const next = rows[row].cells[column].querySelector("button");
    if (!next) continue;
    event.target.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
    return;
  }
}
