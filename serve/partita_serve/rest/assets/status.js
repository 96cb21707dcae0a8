// The status page of a server: its models, where their operations run, and when devices ran lately.

import { drawn, element, section, stored } from "partita/element.js";
import { counted, formatted, time } from "partita/format.js";
import { DataTable } from "partita/table.js";

const server = stored("server");
const COLUMNS = [
  ["model", "text"], ["version", "text"], ["state", "text"], ["where", "text"],
  ["answered", "number"], ["failed", "number"], ["p50_us", "time"], ["p95_us", "time"], ["p99_us", "time"],
];
const LABELS = { where: "where it runs", p50_us: "median", p95_us: "95 %", p99_us: "99 %" };

function overview() {
  const facts = [counted(server.models.length, "model"), `up for ${uptime(server.uptime_s)}`];
  document.querySelector("main").append(element("p", { class: "soft" }, facts.join(" · ")));
}

function uptime(seconds) {
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min ${seconds % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function models() {
  const heads = COLUMNS.map(([key]) => element("th", { scope: "col" }, LABELS[key] ?? key));
  const rows = server.models.map(model => element("tr", {}, ...COLUMNS.map(([key, kind]) =>
    element("td", { class: `${key} ${model.state}` }, formatted(kind, model[key])))));
  const scrolled = { class: "wide", role: "group", tabindex: 0, "aria-label": "models" };
  section("Models", element("div", scrolled, element("table", { class: "models" },
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows))));
}

function runs() {
  if (!server.spans.length) {
    section("The last runs", element("p", { class: "soft" }, "Nothing has run yet."));
    return;
  }
  const end = Math.max(...server.spans.map(span => span.end_us));
  const devices = [...new Set(server.spans.map(span => span.device))];
  const names = [...new Set(server.spans.map(span => span.model))];
  const rows = devices.map(device => element("div", { class: "lane" },
    element("span", { class: "device" }, device),
    drawn("svg", { role: "img", "aria-label": `when ${device} ran`, viewBox: `0 0 1000 20`, preserveAspectRatio: "none" },
      ...server.spans.filter(span => span.device === device).map(span =>
        drawn("rect", {
          x: 1000 * span.start_us / end, width: Math.max(1000 * (span.end_us - span.start_us) / end, 0.6),
          y: 2, height: 16, class: `model${names.indexOf(span.model) % 6}`,
        }, drawn("title", {}, `${span.model}: ${span.name}, ${time(span.end_us - span.start_us)}`))))));
  const keys = names.map((name, index) =>
    element("span", { class: "key" }, element("i", { class: `model${index % 6}` }), name));
  section("The last runs", element("p", { class: "soft" }, `${counted(server.runs, "run")} in ${time(end)}`),
    ...rows, element("p", { class: "keys" }, ...keys));
}

function operations() {
  const place = section("Operations");
  for (const note of server.notes) place.append(element("p", {}, note));
  new DataTable(place, {
    name: "operations",
    noun: "operation",
    rows: server.operations,
    columns: [
      { key: "model", label: "model", width: 8, pick: true, group: true },
      { key: "name", label: "operation", width: 12 },
      { key: "type", label: "type", width: 8, minor: true, pick: true, group: true },
      { key: "device", label: "device", width: 7, pick: true, group: true },
      { key: "part", label: "part", width: 4, kind: "number", minor: true },
      { key: "why", label: "why", width: 30, minor: true },
    ],
  });
}

overview();
models();
runs();
operations();
