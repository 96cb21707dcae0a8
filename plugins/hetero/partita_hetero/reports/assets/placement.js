// The page of a placement: what ran where, when and why; or of two placements side by side.

import { element, save, section, stored } from "partita/element.js";
import { counted, share, time } from "partita/format.js";
import { DataTable } from "partita/table.js";
import { Graph } from "./graph.js";
import { comparedOperations, operationTable } from "./operations.js";
import { devicesOf, latency, Timeline } from "./timeline.js";

const records = stored("placements");
const letters = records.length > 1 ? ["A", "B"] : [""];
const devices = [...new Set(records.flatMap(record =>
  [...record.parts.map(part => part.device), ...record.timelines.flatMap(devicesOf)]))];
const colours = new Map(devices.map((device, index) => [device, `device device-${index % 8}`]));

/** A title, with the letter of its placement where there are two. */
function titled(index, text) {
  return letters[index] ? `${letters[index]}: ${text}` : text;
}

/** A section that is closed at first; what it holds is made when it is opened. */
function folded(title, make) {
  const made = element("details", {}, element("summary", {}, title));
  made.addEventListener("toggle", () => made.append(make()), { once: true });
  return made;
}

function table(options) {
  const host = element("div");
  new DataTable(host, options);
  return host;
}

function card(record, index) {
  const facts = Object.entries({
    placement: record.device,
    submodels: String(record.parts.length),
    ...record.facts,
  });
  return element("article", { class: "card", "aria-label": titled(index, record.device) },
    ...letters[index] ? [element("h2", {}, titled(index, `${record.model} on ${record.device}`))] : [],
    element("p", {}, element("strong", { class: "big" }, time(record.run_us)), ` ${record.run}`),
    ...record.timelines.slice(-1).map(busy),
    element("dl", { class: "facts" }, ...facts.flatMap(([name, value]) =>
      [element("dt", {}, name), element("dd", {}, value)])),
    element("ul", { class: "soft" }, ...record.notes.map(note => element("li", {}, note))));
}

/** How much of the run each device was busy. */
function busy(run) {
  const whole = latency(run) || 1;
  return element("table", { class: "busy" },
    element("caption", {}, `devices in use, ${run.name || "run"}`),
    element("tbody", {}, ...devicesOf(run).map(device => {
      const used = run.spans.filter(span => span.device === device)
        .reduce((sum, span) => sum + span.end_us - span.start_us, 0);
      const bar = element("div", { class: `bar ${colours.get(device)}` });
      bar.style.width = `${Math.min(100, 100 * used / whole)}%`;
      return element("tr", {}, element("th", { scope: "row" }, device),
        element("td", {}, time(used)), element("td", {}, share(used / whole)),
        element("td", { class: "wide" }, bar));
    })));
}

function overview() {
  const [first, second] = records;
  const main = document.querySelector("main");
  if (second) {
    const ratio = first.run_us / second.run_us;
    const told = ratio >= 1 ? `B takes ${share(1 / ratio)} of the time of A`
      : `A takes ${share(ratio)} of the time of B`;
    document.querySelector("h1").textContent = "Two placements";
    main.append(element("p", { class: "verdict" }, `${told}.`));
  }
  main.append(element("div", { class: "cards" }, ...records.map(card)));
}

function timelines() {
  const runs = records.flatMap((record, index) =>
    record.timelines.map(run => ({
      ...run,
      name: titled(index, run.name || "run"),
      spans: run.spans.map(span => ({ ...span, letter: letters[index] })),
    })));
  if (!runs.length) return;
  const keep = element("button", { type: "button", onclick: () => save("trace.json", stored("trace")) },
    "Save for Perfetto");
  const host = element("div", { class: "chart" });
  section("When it ran",
    element("p", { class: "soft" }, "Transfers are paler. Drag to move; Ctrl and the wheel zoom."),
    host, keep,
    folded("Steps as a table", () => table({
      name: "steps",
      noun: "step",
      rows: runs.flatMap(run => run.spans.map(span =>
        ({ ...span, run: run.name, us: span.end_us - span.start_us, nbytes: span.nbytes || null }))),
      columns: [
        { key: "run", label: "run", width: 7, pick: true },
        { key: "name", label: "step", width: 14 },
        { key: "device", label: "device", width: 7, pick: true, group: true },
        { key: "kind", label: "kind", width: 6, pick: true, group: true, minor: true },
        { key: "start_us", label: "begins", kind: "time", width: 6, minor: true },
        { key: "us", label: "takes", kind: "time", width: 6, sum: true },
        { key: "nbytes", label: "bytes", kind: "bytes", width: 6, sum: true, minor: true },
      ],
    })));
  new Timeline(host, { runs, colours, chosen: showOperations });
}

/** The operations of a step: those of its submodel, the one that it is named after, or its device's. */
function showOperations({ name, device, letter }) {
  const part = /^subgraph(\d+)$/.exec(name)?.[1];
  if (part) operations.show({ [`part${letter}`]: part });
  else if (records.some(record => record.operations.some(op => op.name === name)))
    operations.show({}, name);
  else operations.show({ [`device${letter}`]: device });
}

function graphs() {
  const cut = [...records.entries()].filter(([, record]) => record.crossings.length);
  if (!cut.length) return;
  const hosts = cut.map(([index]) =>
    element("div", { class: "chart" }, ...letters[index] ? [element("h3", {}, letters[index])] : []));
  section("Submodels",
    element("p", { class: "soft" }, "Solid lines are copies, dotted ones shared memory."),
    element("div", { class: "cards" }, ...hosts),
    ...cut.map(([index, record]) =>
      folded(titled(index, "Tensors that cross"), () => crossingTable(record, letters[index]))));
  for (const [place, [index, { parts, crossings }]] of cut.entries())
    new Graph(hosts[place], { label: titled(index, "graph"), parts, crossings, colours,
      chosen: part => operations.show({ [`part${letters[index]}`]: part.number }) });
}

function crossingTable({ crossings }, letter) {
  return table({
    name: `crossings${letter}`,
    noun: "tensor",
    rows: crossings.map(one =>
      ({ ...one, source: one.source ?? "inputs", target: one.target ?? "outputs" })),
    columns: [
      { key: "value", label: "tensor", width: 14 },
      { key: "source", label: "from", width: 5, pick: true },
      { key: "target", label: "to", width: 5, pick: true },
      { key: "how", label: "how", width: 8, pick: true, group: true },
      { key: "nbytes", label: "bytes", kind: "bytes", width: 6, sum: true, minor: true },
    ],
  });
}

function executed() {
  const told = records.filter(record => record.steps.length);
  if (!told.length) return;
  section("What executed it", ...told.map(record => folded(
    titled(records.indexOf(record), counted(record.steps.length, "step")), () => table({
      name: `executed${letters[records.indexOf(record)]}`,
      noun: "step",
      rows: record.steps.map(([part, step, how]) => ({ part, step, how })),
      columns: [
        { key: "part", label: "submodel", width: 6, pick: true, group: true },
        { key: "step", label: "step", width: 14 },
        { key: "how", label: "executed by", width: 14, group: true },
      ],
    }))));
}

overview();
timelines();
graphs();
const operations = records.length > 1
  ? comparedOperations(section("Operations"), records) : operationTable(section("Operations"), records[0]);
executed();
