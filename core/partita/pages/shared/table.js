// A table of many rows: searched, filtered, grouped and sorted. Only the rows in sight are drawn.

import { remember, remembered } from "./address.js";
import { element } from "./element.js";
import { counted, formatted, NUMERIC } from "./format.js";

const ROW = 28; // pixels, as in page.css
const SPARE = 8; // rows drawn beyond either edge
const ORDER = new Intl.Collator("en", { numeric: true });

/**
 * Columns are objects:
 *   key, label  of the value in a row, and for people
 *   kind        "text" or one of NUMERIC
 *   pick        whether rows can be filtered by the value
 *   group       whether rows can be grouped by it
 *   sum         whether groups add it up
 *   minor       whether narrow screens leave it to the details of a row
 *   hidden      whether all screens do
 *   width       in rem
 */
export class DataTable {
  #name; #noun; #facts; #columns; #rows; #tone; #texts;
  #picks = {}; #search; #grouping; #count; #headings; #table; #body; #scroller; #details;
  #sorted;
  #folded = new Set();
  #lines = [];
  #active = 0;
  #drawn = "";

  /**
   * @param host where it is put
   * @param name of its part of the address
   * @param noun of a row
   * @param sort key of the column by which it is sorted at first, the most or the last on top
   * @param tone class of a row, if rows differ
   */
  constructor(host, { name, noun, columns, rows, sort = "", tone = () => "" }) {
    this.#name = name;
    this.#noun = noun;
    this.#facts = columns.map(column => ({ kind: "text", width: 9, ...column }));
    this.#columns = this.#facts.filter(column => !column.hidden);
    this.#rows = rows;
    this.#tone = tone;
    host.append(this.#toolbar(), this.#frame(), this.#details);
    this.#sorted = { key: sort, down: true };
    this.#restore();
    this.#refresh();
    // The first letter of a search would wait for it otherwise.
    (globalThis.requestIdleCallback ?? setTimeout)(() => this.#gatherTexts());
    new ResizeObserver(() => this.#draw()).observe(this.#scroller);
  }

  /** Filters by these values and words alone, and brings the table into sight. */
  show(picks, words = "") {
    this.#search.value = words;
    for (const [key, select] of Object.entries(this.#picks)) select.value = picks[key] ?? "";
    this.#refresh();
    this.#scroller.scrollIntoView({ block: "center" });
  }

  #toolbar() {
    const changed = () => this.#refresh();
    this.#search = element("input", { type: "search", oninput: changed });
    const made = [element("label", { class: "search" }, "Search", this.#search)];
    for (const column of this.#columns.filter(one => one.pick)) {
      const values = [...new Set(this.#rows.map(row => row[column.key]))]
        .filter(value => value !== null && value !== "").sort(ORDER.compare);
      this.#picks[column.key] = element("select", { onchange: changed },
        new Option("all", ""), ...values.map(value => new Option(value, value)));
      made.push(element("label", {}, column.label, this.#picks[column.key]));
    }
    const grouped = this.#columns.filter(column => column.group);
    if (grouped.length) {
      this.#grouping = element("select", { onchange: changed }, new Option("nothing", ""),
        ...grouped.map(column => new Option(column.label, column.key)));
      made.push(element("label", {}, "Group by", this.#grouping));
    }
    made.push(element("button", { type: "button", onclick: () => this.show({}) }, "Show all"));
    this.#count = element("output", { role: "status" });
    return element("div", { class: "toolbar" }, ...made, this.#count);
  }

  #frame() {
    this.#headings = this.#columns.map(column => element("th",
      { scope: "col", class: classOf(column) },
      element("button", { type: "button", onclick: () => this.#sort(column) }, column.label)));
    this.#body = element("tbody");
    this.#table = element("table", {
      role: "grid", tabindex: 0, "aria-label": `${this.#noun}s`,
      onkeydown: event => this.#key(event), onclick: event => this.#click(event),
    }, element("colgroup", {}, ...this.#columns.map(column => {
      const made = element("col", { class: classOf(column) });
      made.style.width = `${column.width}rem`;
      return made;
    })), element("thead", {}, element("tr", { "aria-rowindex": 1 }, ...this.#headings)), this.#body);
    const width = columns => `${columns.reduce((sum, column) => sum + column.width, 0)}rem`;
    this.#table.style.setProperty("--wide", width(this.#columns));
    this.#table.style.setProperty("--narrow", width(this.#columns.filter(one => !one.minor)));
    this.#scroller = element("div", { class: "rows", onscroll: () => this.#draw() }, this.#table);
    this.#details = element("section",
      { class: "details", "aria-label": `details of the ${this.#noun}`, "aria-live": "polite" });
    this.#details.hidden = true;
    return this.#scroller;
  }

  #restore() {
    const told = remembered(this.#name);
    this.#search.value = told.search ?? "";
    for (const [key, select] of Object.entries(this.#picks)) select.value = told[key] ?? "";
    if (this.#grouping) this.#grouping.value = told.group ?? "";
    if (told.sort) this.#sorted = { key: told.sort, down: told.order === "down" };
  }

  // A number starts with the most, a text with the first; the third click gives the given order.
  #sort(column) {
    const starts = NUMERIC.includes(column.kind);
    const { key, down } = this.#sorted;
    if (key !== column.key) this.#sorted = { key: column.key, down: starts };
    else this.#sorted = down === starts ? { key, down: !down } : { key: "", down: false };
    this.#refresh();
  }

  /** Finds the lines to show: rows, and the groups that they are in. */
  #refresh() {
    const picks = Object.entries(this.#picks).filter(([, select]) => select.value)
      .map(([key, select]) => [key, select.value]);
    const words = this.#search.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) this.#gatherTexts();
    const found = this.#rows.filter((row, index) =>
      picks.every(([key, value]) => String(row[key] ?? "") === value)
      && words.every(word => this.#texts[index].includes(word)));
    const { key, down } = this.#sorted;
    const column = this.#columns.find(one => one.key === key);
    if (column) found.sort(comparing(column, down));
    const group = this.#columns.find(one => one.key === this.#grouping?.value);
    this.#lines = group ? this.#grouped(found, group) : found.map(row => ({ row }));
    this.#active = 0;
    this.#scroller.scrollTop = 0;
    for (const [index, one] of this.#columns.entries()) {
      const sorted = one === column ? (down ? "descending" : "ascending") : "none";
      this.#headings[index].setAttribute("aria-sort", sorted);
    }
    this.#count.textContent = found.length === this.#rows.length
      ? counted(found.length, this.#noun)
      : `${found.length} of ${counted(this.#rows.length, this.#noun)}`;
    const search = this.#search.value, order = down ? "down" : "";
    remember(this.#name,
      { search, ...Object.fromEntries(picks), group: group?.key, sort: column?.key, order });
    this.#redraw();
  }

  #gatherTexts() {
    this.#texts ??= this.#rows.map(row => this.#text(row));
  }

  #text(row) {
    return this.#facts.filter(column => column.kind === "text")
      .map(column => row[column.key] ?? "").join("\n").toLowerCase();
  }

  #grouped(rows, column) {
    const groups = new Map();
    for (const row of rows) {
      const value = String(row[column.key] ?? "");
      if (!groups.has(value)) groups.set(value, []);
      groups.get(value).push(row);
    }
    const summed = this.#columns.filter(one => one.sum);
    const lines = [...groups].map(([value, members]) => ({
      group: value,
      members,
      sums: Object.fromEntries(summed.map(({ key }) =>
        [key, members.reduce((sum, row) => sum + (row[key] ?? 0), 0)])),
    }));
    const by = summed.find(one => one.key === this.#sorted.key) ?? summed[0];
    const sign = by?.key === this.#sorted.key && !this.#sorted.down ? 1 : -1;
    if (by) lines.sort((a, b) => sign * (a.sums[by.key] - b.sums[by.key]));
    return lines.flatMap(line =>
      this.#folded.has(line.group) ? [line] : [line, ...line.members.map(row => ({ row }))]);
  }

  #redraw() {
    this.#drawn = "";
    this.#table.setAttribute("aria-rowcount", this.#lines.length + 1);
    this.#draw();
  }

  #draw() {
    const { scrollTop, clientHeight } = this.#scroller;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - SPARE);
    const last = Math.min(this.#lines.length, Math.ceil((scrollTop + clientHeight) / ROW) + SPARE);
    const drawn = `${first} ${last} ${this.#active}`;
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const made = this.#lines.slice(first, last)
      .map((line, index) => this.#line(line, first + index));
    this.#body.replaceChildren(gap(first), ...made, gap(this.#lines.length - last));
    const active = this.#active >= first && this.#active < last;
    if (active) this.#table.setAttribute("aria-activedescendant", this.#id(this.#active));
    else this.#table.removeAttribute("aria-activedescendant");
  }

  #id(index) {
    return `${this.#name}-${index}`;
  }

  #line({ row, group, members, sums }, index) {
    const cells = this.#columns.map((column, place) => {
      if (row) return cell(column, formatted(column.kind, row[column.key]));
      if (place) return cell(column, column.sum ? formatted(column.kind, sums[column.key]) : "");
      const mark = this.#folded.has(group) ? "▸" : "▾";
      return cell(column, `${mark} ${group || "none"}: ${counted(members.length, this.#noun)}`);
    });
    return element("tr", {
      id: this.#id(index),
      class: [row ? this.#tone(row) : "group", index === this.#active ? "active" : ""].join(" "),
      "aria-rowindex": index + 2,
      "aria-expanded": row ? undefined : String(!this.#folded.has(group)),
      "data-line": index,
    }, ...cells);
  }

  #click(event) {
    const line = event.target.closest("tr[data-line]");
    if (line) this.#choose(Number(line.dataset.line));
  }

  #key(event) {
    if (event.target !== this.#table) return;
    const page = Math.max(1, Math.floor(this.#scroller.clientHeight / ROW) - 2);
    const steps = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity,
    };
    const line = this.#lines[this.#active];
    if (event.key in steps) this.#activate(this.#active + steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.#choose(this.#active);
    else if (event.key === "Escape") this.#details.hidden = true;
    else if (line?.members && event.key === "ArrowLeft") this.#fold(line.group, true);
    else if (line?.members && event.key === "ArrowRight") this.#fold(line.group, false);
    else return;
    event.preventDefault();
  }

  #activate(index) {
    this.#active = Math.max(0, Math.min(this.#lines.length - 1, index));
    const top = this.#active * ROW, { scrollTop, clientHeight } = this.#scroller;
    if (top < scrollTop) this.#scroller.scrollTop = top;
    else if (top + 2 * ROW > scrollTop + clientHeight)
      this.#scroller.scrollTop = top + 2 * ROW - clientHeight; // one row is the heading's
    this.#draw();
  }

  #fold(group, folded) {
    if (folded) this.#folded.add(group);
    else this.#folded.delete(group);
    const active = this.#active, { scrollTop } = this.#scroller;
    this.#refresh();
    this.#scroller.scrollTop = scrollTop;
    this.#activate(active);
  }

  /** Folds or unfolds a group; of a row, shows all that is known. */
  #choose(index) {
    const line = this.#lines[index];
    if (!line) return;
    this.#activate(index);
    if (line.members) return void this.#fold(line.group, !this.#folded.has(line.group));
    const facts = this.#facts
      .map(column => [column.label, formatted(column.kind, line.row[column.key])])
      .filter(([, text]) => text);
    this.#details.replaceChildren(element("dl", {}, ...facts.map(([label, text]) =>
      element("div", {}, element("dt", {}, label), element("dd", {}, text)))));
    this.#details.hidden = false;
  }
}

function classOf(column) {
  return [NUMERIC.includes(column.kind) ? "number" : column.key, column.minor ? "minor" : ""]
    .join(" ");
}

function cell(column, text) {
  return element("td", { class: classOf(column), title: text || undefined }, text);
}

/** Room for rows that are not drawn. */
function gap(rows) {
  const made = element("tr", { "aria-hidden": "true", class: "gap" });
  made.style.height = `${rows * ROW}px`;
  return made;
}

/** Compares rows by a column; rows without a value stand last. */
function comparing({ key, kind }, down) {
  const sign = down ? -1 : 1;
  const known = value => value !== null && value !== undefined && value !== "";
  const compare = NUMERIC.includes(kind) ? (a, b) => a - b : ORDER.compare;
  return ({ [key]: a }, { [key]: b }) =>
    known(a) && known(b) ? sign * compare(a, b) : known(b) - known(a);
}
