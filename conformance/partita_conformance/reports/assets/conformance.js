// The page of a conformance run: what became of the checks, by suite, by operator, and one by one.

import { element, section, stored } from "partita/element.js";
import { counted } from "partita/format.js";
import { DataTable } from "partita/table.js";
import { operatorMatrix } from "./matrix.js";
import { BAD, tally } from "./statuses.js";

const report = stored("report");

function overview() {
  const bad = report.checks.filter(check => BAD.includes(check.status)).length;
  const verdict = bad ? `${counted(bad, "check")} fail${bad === 1 ? "s" : ""}` : "conforms";
  document.title = document.querySelector("h1").textContent = `${report.device}: ${verdict}`;
  const facts = [report.about.name, report.about.driver,
    ...Object.entries(report.versions).map(([name, version]) => `${name} ${version}`),
    report.machine.system, counted(report.machine.processors, "processor"), report.finished,
    `${report.seconds} s`].filter(Boolean);
  document.querySelector("main").append(
    element("p", { class: "soft" }, facts.join(" · ")),
    element("div", { class: "tiles" }, ...Object.entries(report.counts).map(([status, count]) =>
      element("button", { type: "button", class: `tile ${status}`, onclick: () => show({ status }) },
        element("b", {}, String(count)), ` ${status}`))));
}

function suites() {
  const names = [...new Set(report.checks.map(check => check.suite))];
  const rows = names.map(suite => {
    const { good, bad, counts, total } = tally(report.checks.filter(check => check.suite === suite));
    const told = Object.entries(counts).map(([status, count]) => `${count} ${status}`).join(", ");
    const bar = element("div", { class: "bar", role: "img", "aria-label": told, title: told },
      ...Object.entries(counts).map(([status, count]) => {
        const part = element("span", { class: status });
        part.style.width = `${100 * count / total}%`;
        return part;
      }));
    return element("tr", {},
      element("th", { scope: "row" },
        element("button", { type: "button", onclick: () => show({ suite }) }, suite)),
      element("td", {}, `${good} of ${total}`),
      element("td", { class: "failed" }, bad ? `${bad} fail` : ""),
      element("td", { class: "wide" }, bar));
  });
  const heads = ["suite", "passed", "failed", "shares"];
  section("Suites", element("table", { class: "suites" },
    element("thead", {}, element("tr", {}, ...heads.map(head =>
      element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows)));
}

function operators() {
  section("Operators by element type",
    element("p", { class: "soft" }, "Passed of those made; a dot where the device takes none. "
      + "Choose an operator or a cell to see its checks."),
    operatorMatrix(report.checks, show));
}

function claims() {
  const { tried, never_tried: never, share } = report.claims;
  const all = tried.length + never.length;
  section("Taken, never tried", element("p", { class: "soft" },
    `${never.length} of ${counted(all, "pair")} of operator and element type that the device takes `
    + `could not be judged${never.length ? `: ${never.join(", ")}` : ""}. `
    + `${Math.round(100 * share)} % of the operators' checks were made.`));
}

function checks() {
  const bad = check => BAD.includes(check.status);
  const rows = [...report.checks.filter(bad), ...report.checks.filter(check => !bad(check))]
    .map(check => ({ ...check, told: check.detail || check.summary }));
  return new DataTable(section("Checks"), {
    name: "checks",
    noun: "check",
    rows,
    tone: check => check.status,
    columns: [
      { key: "status", label: "status", width: 6, pick: true, group: true },
      { key: "name", label: "check", width: 16 },
      { key: "suite", label: "suite", width: 7, minor: true, pick: true, group: true },
      { key: "op", label: "operator", width: 7, minor: true, pick: true, group: true },
      { key: "dtype", label: "element type", width: 7, minor: true, pick: true, group: true },
      { key: "told", label: "detail", width: 20, minor: true },
      { key: "seconds", label: "seconds", width: 6, kind: "number", minor: true, sum: true },
      { key: "summary", label: "what it checks", hidden: true },
    ],
  });
}

const show = picks => table.show(picks);
overview();
suites();
operators();
claims();
const table = checks();
