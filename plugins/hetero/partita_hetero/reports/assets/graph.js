// The graph of submodels: which reads from which, and what crosses between them.

import { drawn } from "partita/element.js";
import { bytes, counted, time } from "partita/format.js";
import { reader, zoomable } from "./zoom.js";

const WIDE = 132, HIGH = 46, APART = 64, BETWEEN = 14, EDGE = 8;
const LEGIBLE = 0.85; // the smallest scale to begin with
const INPUTS = "inputs", OUTPUTS = "outputs";

export class Graph {
  #nodes; #edges; #colours; #chosen; #surface; #drawing; #reader; #width; #height;
  #x = 0;
  #y = 0;
  #scale = 1;
  #current = -1;

  /**
   * @param host where it is put
   * @param label of the drawing
   * @param parts the submodels, in an order in which they can run
   * @param crossings tensors between them
   * @param colours device to class
   * @param chosen called with the submodel that is clicked on
   */
  constructor(host, { label, parts, crossings, colours, chosen }) {
    this.#colours = colours;
    this.#chosen = chosen;
    this.#edges = edgesOf(crossings);
    this.#nodes = placed(parts, this.#edges);
    this.#width = Math.max(...this.#nodes.map(node => node.x)) + WIDE + EDGE;
    this.#height = Math.max(...this.#nodes.map(node => node.y)) + HIGH + EDGE;
    this.#drawing = drawn("g");
    this.#surface = drawn("svg", {
      role: "application", tabindex: 0, class: "graph",
      "aria-label": `${label} of ${counted(parts.length, "submodel")}: arrows go from one to the `
        + "next, plus and minus zoom, 0 shows all, Enter shows the operations",
      onpointermove: event => this.#point(event), onclick: event => this.#click(event),
    }, this.#drawing);
    this.#reader = reader();
    host.append(zoomable(this.#surface, this), this.#surface, this.#reader);
    this.#draw();
    const start = Math.min(1, Math.max(LEGIBLE, this.#fitting));
    this.#surface.style.height = `${Math.min(380, this.#height * start)}px`;
    this.#show(0, 0, start);
  }

  zoom(factor, x, y) {
    const scale = Math.min(4, Math.max(this.#fitting / 2, this.#scale * factor));
    const grown = scale / this.#scale;
    this.#show(x - (x - this.#x) * grown, y - (y - this.#y) * grown, scale);
  }

  pan(dx, dy) {
    this.#show(this.#x + dx, this.#y + dy, this.#scale);
  }

  fit() {
    this.#show(0, 0, this.#fitting);
  }

  step(key) {
    const by = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
    this.#go(Math.max(0, Math.min(this.#nodes.length - 1, this.#current + by)));
  }

  choose() {
    const part = this.#nodes[this.#current]?.part;
    if (part) this.#chosen(part);
  }

  get #fitting() {
    const { clientWidth, clientHeight } = this.#surface;
    return Math.min(1, clientWidth / this.#width, (clientHeight || 380) / this.#height);
  }

  #show(x, y, scale) {
    [this.#x, this.#y, this.#scale] = [x, y, scale];
    this.#drawing.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
  }

  #go(index) {
    this.#drawing.querySelector(".current")?.classList.remove("current");
    this.#current = index;
    const node = this.#nodes[index];
    this.#drawing.querySelector(`[data-node="${index}"]`).classList.add("current");
    const left = this.#x + node.x * this.#scale, top = this.#y + node.y * this.#scale;
    const { clientWidth, clientHeight } = this.#surface;
    const inSight = left >= 0 && left + WIDE * this.#scale <= clientWidth
      && top >= 0 && top + HIGH * this.#scale <= clientHeight;
    if (!inSight) this.pan(clientWidth / 3 - left, clientHeight / 3 - top);
    this.#reader.textContent = this.#told(node);
  }

  #told({ key, part }) {
    const names = edges => edges.map(([end, edge]) => `${end} (${crossing(edge)})`).join(", ");
    const reads = names(this.#edges.filter(edge => edge.target === key).map(e => [e.source, e]));
    const read = names(this.#edges.filter(edge => edge.source === key).map(e => [e.target, e]));
    const what = part ? `submodel ${key} on ${part.device}: ${summary(part)}` : `the model's ${key}`;
    return [what, reads && `reads from ${reads}`, read && `read by ${read}`]
      .filter(Boolean).join("; ");
  }

  #point(event) {
    const found = event.target.closest("[data-node], [data-edge]");
    if (!found) return;
    const { node, edge } = found.dataset;
    this.#reader.textContent = node ? this.#told(this.#nodes[node])
      : `${this.#edges[edge].source} to ${this.#edges[edge].target}: ${crossing(this.#edges[edge])}`;
  }

  #click(event) {
    const found = event.target.closest("[data-node]");
    if (!found) return;
    this.#go(Number(found.dataset.node));
    this.choose();
  }

  #draw() {
    const at = new Map(this.#nodes.map(node => [node.key, node]));
    const lines = this.#edges.map(({ source, target, copied }, index) => {
      const from = at.get(source), to = at.get(target);
      const [x, y, right, low] = [from.x + WIDE, from.y + HIGH / 2, to.x, to.y + HIGH / 2];
      const bend = Math.max(30, (right - x) / 2);
      return drawn("path", {
        class: copied ? "edge copied" : "edge", "data-edge": index,
        d: `M${x} ${y}C${x + bend} ${y} ${right - bend} ${low} ${right} ${low}`,
      });
    });
    const boxes = this.#nodes.map(({ key, part, x, y }, index) => drawn("g",
      { "data-node": index, class: "node", transform: `translate(${x} ${y})` },
      drawn("rect", { width: WIDE, height: HIGH, rx: 5, class: this.#colours.get(part?.device) }),
      drawn("text", { x: 8, y: 19, class: part ? "name" : "" },
        clipped(part ? `${key}: ${part.device}` : key)),
      drawn("rect", { width: 0, height: 0, class: this.#colours.get(part?.device) }),
      drawn("text", { x: 8, y: 36, class: part ? "name" : "" }, part ? clipped(summary(part)) : "")));
    this.#drawing.replaceChildren(...lines, ...boxes);
  }
}

function clipped(text) {
  return text.length > 19 ? `${text.slice(0, 18)}…` : text;
}

function summary(part) {
  return `${counted(part.ops, "op")}${part.us === null ? "" : `, ${time(part.us)}`}`;
}

function crossing({ values, nbytes, ways }) {
  const many = values.length > 3 ? counted(values.length, "tensor") : values.join(", ");
  return `${many}, ${[...ways].join(" and ")}${nbytes ? `, ${bytes(nbytes)}` : ""}`;
}

/** One edge for all tensors from one submodel to another. */
function edgesOf(crossings) {
  const found = new Map();
  for (const { value, source, target, how, nbytes } of crossings) {
    const ends = [source ?? INPUTS, target ?? OUTPUTS], key = ends.join(" ");
    if (!found.has(key))
      found.set(key, { source: ends[0], target: ends[1], values: [], nbytes: 0, ways: new Set() });
    const edge = found.get(key);
    edge.values.push(value);
    edge.nbytes += nbytes ?? 0;
    edge.ways.add(how);
    edge.copied ||= !how.startsWith("shared");
  }
  return [...found.values()];
}

/** Places: a column further right than all that is read from, near these in height. */
function placed(parts, edges) {
  const reads = new Map();
  for (const edge of edges) reads.set(edge.target, [...reads.get(edge.target) ?? [], edge.source]);
  const all = [{ key: INPUTS }, ...parts.map(part => ({ key: part.number, part })), { key: OUTPUTS }];
  const column = new Map(), columns = [];
  for (const node of all) {
    const sources = (reads.get(node.key) ?? []).filter(source => column.has(source));
    const place = node.key === OUTPUTS ? columns.length
      : Math.max(-1, ...sources.map(source => column.get(source))) + 1;
    column.set(node.key, place);
    (columns[place] ??= []).push(node);
  }
  const height = new Map();
  for (const [place, nodes] of columns.entries()) {
    const mean = node => {
      const known = (reads.get(node.key) ?? []).map(source => height.get(source))
        .filter(y => y !== undefined);
      return known.reduce((sum, y) => sum + y, 0) / (known.length || 1);
    };
    const ordered = nodes.map(node => [mean(node), node]).sort((a, b) => a[0] - b[0]);
    for (const [index, [, node]] of ordered.entries()) {
      node.x = EDGE + place * (WIDE + APART);
      node.y = EDGE + index * (HIGH + BETWEEN);
      height.set(node.key, node.y);
    }
  }
  return all;
}
