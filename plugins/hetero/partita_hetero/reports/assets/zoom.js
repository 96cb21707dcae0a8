// Drawings that are zoomed and moved: by wheel, by dragging, by two fingers, by keys, by buttons.

import { element } from "partita/element.js";

const STEP = 1.6;

/**
 * Makes a drawing zoomable; returns the buttons for it.
 *
 * @param surface the SVG element
 * @param chart has zoom(factor, x, y) and pan(dx, dy) in pixels, fit(), step(key) for arrows, and
 *   choose() for what was stepped to
 */
export function zoomable(surface, chart) {
  const place = event => {
    const box = surface.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const middle = () => [surface.clientWidth / 2, surface.clientHeight / 2];
  surface.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return; // without, the page scrolls
    event.preventDefault();
    chart.zoom(Math.exp(-event.deltaY / 300), ...place(event));
  }, { passive: false });
  surface.addEventListener("dblclick", event => chart.zoom(STEP, ...place(event)));
  drags(surface, chart, place);
  const keys = {
    "+": () => chart.zoom(STEP, ...middle()),
    "=": () => chart.zoom(STEP, ...middle()),
    "-": () => chart.zoom(1 / STEP, ...middle()),
    0: () => chart.fit(),
    Enter: () => chart.choose(),
  };
  surface.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) chart.step(event.key);
    else if (event.key in keys) keys[event.key]();
    else return;
    event.preventDefault();
  });
  const button = (text, label, act) => element("button",
    { type: "button", "aria-label": label, title: label, onclick: act }, text);
  return element("div", { class: "zoom" },
    button("+", "Zoom in", keys["+"]), button("−", "Zoom out", keys["-"]),
    button("◀", "Move left", () => chart.pan(surface.clientWidth / 3, 0)),
    button("▶", "Move right", () => chart.pan(-surface.clientWidth / 3, 0)),
    button("Whole", "Show the whole", keys[0]));
}

/** One pointer moves the drawing, two zoom it. */
function drags(surface, chart, place) {
  const held = new Map();
  surface.addEventListener("pointerdown", event => held.set(event.pointerId, place(event)));
  surface.addEventListener("pointermove", event => {
    const before = held.get(event.pointerId);
    if (!before) return;
    const now = place(event);
    const other = [...held].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const apart = ([x, y]) => Math.hypot(x - other[0], y - other[1]);
      chart.zoom(apart(now) / (apart(before) || 1), ...other);
    } else {
      if (Math.hypot(now[0] - before[0], now[1] - before[1]) < 3) return; // a click that trembles
      surface.setPointerCapture(event.pointerId);
      chart.pan(now[0] - before[0], now[1] - before[1]);
    }
    held.set(event.pointerId, now);
  });
  for (const name of ["pointerup", "pointercancel"])
    surface.addEventListener(name, event => held.delete(event.pointerId));
}

/** Where texts about a drawing appear: what the pointer is on, or what keys have stepped to. */
export function reader() {
  return element("output", { class: "reader", role: "status" });
}
