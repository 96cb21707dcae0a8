// When devices did what: a row for each device, time to the right; spans too short to see are joined.

import { drawn, element } from "partita/element.js";
import { bytes, counted, time } from "partita/format.js";
import { reader, zoomable } from "./zoom.js";

const LANE = 22, HEAD = 24, LABEL = 18, AXIS = 20, LETTER = 6.6;

export class Timeline {
  #runs; #colours; #chosen; #surface; #reader; #end; #spans = [];
  #from = 0;
  #to;
  #current = -1;

  /**
   * @param host where it is put
   * @param runs with their name, devices and spans
   * @param colours device to class
   * @param chosen called with the span that is clicked on
   */
  constructor(host, { runs, colours, chosen }) {
    this.#colours = colours;
    this.#chosen = chosen;
    this.#end = Math.max(1e-3, ...runs.map(run => latency(run)));
    this.#to = this.#end;
    this.#runs = runs.map(run => ({ ...run, rows: rowsOf(run) }));
    for (const run of this.#runs)
      for (const lane of run.rows.flatMap(row => row.lanes))
        for (const span of lane) {
          span.lane = lane;
          span.index = this.#spans.push(span) - 1;
        }
    this.#surface = drawn("svg", {
      role: "application", tabindex: 0, class: "timeline",
      "aria-label": `timeline of ${counted(this.#spans.length, "step")}: arrows go from step to `
        + "step, plus and minus zoom, 0 shows all, Enter shows the operations",
      onpointermove: event => this.#point(event), onclick: event => this.#click(event),
    });
    this.#reader = reader();
    host.append(zoomable(this.#surface, this), this.#surface, this.#reader);
    new ResizeObserver(() => this.#draw()).observe(this.#surface);
    this.#draw();
  }

  zoom(factor, x) {
    const at = this.#from + x / this.#scale;
    const span = Math.min(this.#end, Math.max(this.#end * 1e-7, (this.#to - this.#from) / factor));
    this.#show(at - x / this.#surface.clientWidth * span, span);
  }

  pan(dx) {
    this.#show(this.#from - dx / this.#scale, this.#to - this.#from);
  }

  fit() {
    this.#show(0, this.#end);
  }

  /** Left and right go along a lane, up and down to the lane beside it. */
  step(key) {
    const span = this.#spans[this.#current];
    if (!span) return this.#go(this.#spans[0]);
    const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (along) return this.#go(span.lane[span.lane.indexOf(span) + along]);
    const lanes = this.#runs.flatMap(run => run.rows).flatMap(row => row.lanes);
    const lane = lanes[lanes.indexOf(span.lane) + (key === "ArrowDown" ? 1 : -1)];
    this.#go(lane?.[Math.min(firstEndingAfter(lane, span.start_us), lane.length - 1)]);
  }

  choose() {
    const span = this.#spans[this.#current];
    if (span) this.#chosen(span);
  }

  get #scale() {
    return this.#surface.clientWidth / (this.#to - this.#from);
  }

  #show(from, span) {
    this.#from = Math.max(0, Math.min(from, this.#end - span));
    this.#to = this.#from + span;
    this.#draw();
  }

  #go(span) {
    if (!span) return;
    this.#current = span.index;
    const width = this.#to - this.#from;
    const inSight = span.start_us >= this.#from && span.end_us <= this.#to;
    if (inSight) this.#draw();
    else this.#show(span.start_us - width / 3, width);
    this.#tell(span);
  }

  #tell(span) {
    const moved = span.nbytes ? `, ${bytes(span.nbytes)}` : "";
    this.#reader.textContent = `${span.name} on ${span.device} (${span.kind}): `
      + `${time(span.end_us - span.start_us)} from ${time(span.start_us)}${moved}`;
  }

  #point(event) {
    const bar = event.target.closest("[data-span]");
    if (!bar) return;
    const span = this.#spans[bar.dataset.span], joined = Number(bar.dataset.joined);
    if (joined === 1) this.#tell(span);
    else this.#reader.textContent = `${joined} steps on ${span.device}, from `
      + `${time(span.start_us)}: zoom in to see them`;
  }

  #click(event) {
    const bar = event.target.closest("[data-span]");
    if (!bar) return;
    const span = this.#spans[bar.dataset.span];
    this.#go(span);
    if (bar.dataset.joined === "1") this.#chosen(span);
  }

  #draw() {
    const width = this.#surface.clientWidth;
    if (!width) return;
    let y = AXIS;
    const made = [];
    for (const run of this.#runs) {
      made.push(drawn("text", { x: 2, y: y + 16, class: "run" },
        `${run.name || "run"}: ${time(latency(run))}`));
      y += HEAD;
      for (const { device, lanes } of run.rows) {
        made.push(drawn("text", { x: 2, y: y + 13 }, device));
        y += LABEL;
        for (const lane of lanes) {
          made.push(drawn("path", { class: "lane", d: `M0 ${y + LANE}H${width}` }),
            ...this.#bars(lane, y));
          y += LANE;
        }
      }
      y += 6;
    }
    this.#surface.style.height = `${y}px`;
    this.#surface.replaceChildren(...this.#ticks(y), ...made);
  }

  #bars(lane, y) {
    const scale = this.#scale;
    const bars = [];
    for (let at = firstEndingAfter(lane, this.#from); at < lane.length; at += 1) {
      const span = lane[at];
      if (span.start_us > this.#to) break;
      const x = (span.start_us - this.#from) * scale, width = (span.end_us - span.start_us) * scale;
      const last = bars.at(-1);
      if (last && width < 1 && last.width < 1 && x < last.x + 1) last.joined += 1;
      else bars.push({ span, x, width, joined: 1 });
      if (span.index === this.#current) bars.at(-1).current = true;
    }
    return bars.flatMap(bar => this.#bar(bar, y));
  }

  #bar({ span, x, width, joined, current }, y) {
    const left = Math.max(x, -2), right = Math.min(x + width, this.#surface.clientWidth + 2);
    const shown = Math.max(1, right - left);
    const letters = Math.floor((shown - 6) / LETTER);
    const rect = drawn("rect", {
      x: left.toFixed(2), y: y + 2, width: shown.toFixed(2), height: LANE - 4,
      class: [this.#colours.get(span.device), span.kind, current ? "current" : ""].join(" "),
      "data-span": span.index, "data-joined": joined,
    });
    if (span.kind !== "compute" || letters < 3) return [rect];
    const label = span.name.length > letters ? `${span.name.slice(0, letters - 1)}…` : span.name;
    return [rect, drawn("text", { x: left + 4, y: y + 15, class: "name" }, label)];
  }

  #ticks(bottom) {
    const most = Math.max(2, this.#surface.clientWidth / 90);
    const rough = (this.#to - this.#from) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
    const made = [];
    for (let at = Math.ceil(this.#from / step) * step; at <= this.#to; at += step) {
      const x = (at - this.#from) * this.#scale;
      made.push(drawn("path", { class: "tick", d: `M${x.toFixed(2)} ${AXIS - 4}V${bottom}` }),
        drawn("text", { x: x + 3, y: AXIS - 7, class: "time" }, time(Number(at.toPrecision(6)))));
    }
    return made;
  }
}

/** From the start of a run to the end of its last span. */
export function latency(run) {
  return run.spans.reduce((end, span) => Math.max(end, span.end_us), 0);
}

/** The devices of a run, in order. */
export function devicesOf(run) {
  return [...new Set([...run.devices, ...run.spans.map(span => span.device)])];
}

/** Devices in order, each with spans in as few lanes as hold them without overlap. */
function rowsOf(run) {
  const found = new Map(devicesOf(run).map(device => [device, []]));
  const ordered = run.spans.map(span => ({ ...span })).sort((a, b) => a.start_us - b.start_us);
  for (const span of ordered) {
    const lanes = found.get(span.device);
    const free = lanes.find(lane => lane.at(-1).end_us <= span.start_us + 1e-9);
    if (free) free.push(span);
    else lanes.push([span]);
  }
  return [...found].map(([device, lanes]) => ({ device, lanes }));
}

/** Index of the first span of a lane that ends after a time. */
function firstEndingAfter(lane, us) {
  let low = 0, high = lane.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane[middle].end_us > us) high = middle;
    else low = middle + 1;
  }
  return low;
}
