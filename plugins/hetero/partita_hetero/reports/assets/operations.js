// The tables of operations: of one placement, and of two with what differs.

import { share } from "partita/format.js";
import { DataTable } from "partita/table.js";

/** Operations with their times, shares, bytes and reasons, and what they cost on other devices. */
export function operationTable(host, { operations, run_us: whole }) {
  const elsewhere = [...new Set(operations.flatMap(op => Object.keys(op.elsewhere)))];
  const known = key => operations.some(op => op[key] !== null && op[key] !== "");
  const rows = operations.map(op => ({
    ...op,
    share: op.us === null ? null : op.us / whole,
    estimated: elsewhere.filter(device => op.elsewhere[device]?.is_measured === false).join(", "),
    ...Object.fromEntries(elsewhere.map(device => [`on ${device}`, op.elsewhere[device]?.us])),
  }));
  const timed = rows.reduce((sum, row) => sum + (row.us ?? 0), 0);
  const note = document.createElement("p");
  note.className = "soft";
  note.textContent = timed ? `Times of operations add up to ${share(timed / whole)} of the run.`
    : "No device counted the times of operations.";
  host.append(note);
  return new DataTable(host, {
    name: "operations",
    noun: "operation",
    rows,
    sort: "us",
    columns: [
      { key: "name", label: "operation", width: 13 },
      { key: "op_type", label: "type", width: 7, pick: true, group: true, minor: true },
      { key: "device", label: "device", width: 6, pick: true, group: true },
      { key: "part", label: "submodel", width: 5.5, pick: true, group: true, minor: true },
      { key: "us", label: "time", kind: "time", width: 5.5, sum: true },
      { key: "share", label: "share", kind: "share", width: 5, sum: true, minor: true },
      { key: "nbytes", label: "bytes", kind: "bytes", width: 5.5, sum: true, minor: true },
      ...elsewhere.map(device => ({
        key: `on ${device}`, label: `on ${device}`, kind: "time", width: 6, sum: true, minor: true,
      })),
      { key: "next_best", label: "next best", width: 8, minor: true, hidden: !known("next_best") },
      { key: "reason", label: "reason", width: 8, pick: true, group: true, minor: true },
      { key: "why", label: "why", hidden: true },
      { key: "change", label: "what would change it", hidden: true },
      { key: "kernel", label: "kernel", hidden: true },
      { key: "computed_with", label: "computed with", hidden: true },
      { key: "estimated", label: "estimated, not measured, on", hidden: true },
    ],
  });
}

/** Operations of two placements by name, with what each takes in both. */
export function comparedOperations(host, [first, second]) {
  const other = new Map(second.operations.map(op => [op.name, op]));
  const own = new Set(first.operations.map(op => op.name));
  const pairs = [
    ...first.operations.map(op => [op, other.get(op.name)]),
    ...second.operations.filter(op => !own.has(op.name)).map(op => [undefined, op]),
  ];
  const side = (op, letter) => ({
    [`device${letter}`]: op?.device, [`part${letter}`]: op?.part, [`us${letter}`]: op?.us,
    [`why${letter}`]: op?.why, [`kernel${letter}`]: op?.kernel,
    [`computed_with${letter}`]: op?.computed_with,
  });
  const timed = op => op?.us !== null && op?.us !== undefined;
  const rows = pairs.map(([a, b]) => ({
    name: (a ?? b).name,
    op_type: (a ?? b).op_type,
    nbytes: (a ?? b).nbytes,
    ...side(a, "A"),
    ...side(b, "B"),
    moved: !a ? "only in B" : !b ? "only in A" : isMoved(a, b) ? "yes" : "no",
    difference: timed(a) && timed(b) ? b.us - a.us : null,
  }));
  const both = column => ["A", "B"].map(letter =>
    ({ ...column, key: `${column.key}${letter}`, label: `${column.label} ${letter}` }));
  return new DataTable(host, {
    name: "operations",
    noun: "operation",
    rows,
    sort: "usA",
    columns: [
      { key: "name", label: "operation", width: 13 },
      { key: "op_type", label: "type", width: 7, pick: true, group: true, minor: true },
      ...both({ key: "device", label: "device", width: 6, pick: true, group: true, minor: true }),
      { key: "moved", label: "moved", width: 5.5, pick: true, group: true, minor: true },
      ...both({ key: "us", label: "time", kind: "time", width: 5.5, sum: true }),
      { key: "difference", label: "B less A", kind: "time", width: 5.5, sum: true, minor: true },
      { key: "nbytes", label: "bytes", kind: "bytes", width: 5.5, sum: true, minor: true },
      ...both({ key: "part", label: "submodel", width: 6, pick: true, minor: true }),
      ...both({ key: "why", label: "why", hidden: true }),
      ...both({ key: "kernel", label: "kernel", hidden: true }),
      ...both({ key: "computed_with", label: "computed with", hidden: true }),
    ],
  });
}

/** Whether both have a place, and not the same. */
function isMoved(a, b) {
  return a.part !== null && b.part !== null && a.device !== b.device;
}
