"""The support table of the documentation: which device computes which operators, out of reports.

For example::

    partita conformance -d CPU --report cpu/      # likewise for the others
    python docs/tooling/support.py docs/support.md */conformance.json

Where a few operators came to a device, reports of all their checks make their rows anew::

    partita conformance -d CPU --check '*/TreeEnsemble/*' --check '*tree_ensemble*' --report few/
    python docs/tooling/support.py --rows docs/support.md few/conformance.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita_conformance.reports.report import SCHEMA
from partita_conformance.runs.running import BAD, PASSED, XFAILED

NONE = "–"
"""Stands where a device takes none of an operator's checks."""

_MADE = (PASSED, XFAILED, *BAD)
_USUAL = ("float", "float16", "bfloat16", "double", "int64", "int32", "int16", "int8")
HEAD = """\
# Which device computes which operators

Made by `python docs/tooling/support.py` out of reports of the conformance kit
(`partita conformance -d DEVICE --report FOLDER`); do not edit. A cell says how many of the
operator's checks passed of those that the device takes (ONNX's node cases, random shapes, cuts by
HETERO), and for which types of the first input all of them passed. {none} means that the device
takes none. What a device does not take, `HETERO` computes on the next one in its list.

"""


def support_table(reports: Sequence[Mapping[str, Any]]) -> str:
    """The page in Markdown, one column per report.

    Args:
        reports: Reports as :func:`partita_conformance.reports.report.as_data` makes them.

    Raises:
        ValueError: A report is of another schema.
    """
    for report in reports:
        _check_schema(report)
    columns = [_cells(report["checks"]) for report in reports]
    operators = sorted({op for column in columns for op in column})
    lines = [_row(["", *(report["device"] for report in reports)])]
    lines.append(_row(["---"] * (len(reports) + 1)))
    lines += [_row(["all", *(_total(report["checks"]) for report in reports)])]
    lines += [_row([op, *(column.get(op, NONE) for column in columns)]) for op in operators]
    runs = "\n".join(_run(report) for report in reports)
    return "\n".join([HEAD.format(none=NONE) + runs, "", *lines, ""])


def with_rows(page: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """The page with the cells that reports of some operators tell of.

    Args:
        page: As :func:`support_table` makes it.
        reports: Reports on devices of the page, of all checks of some operators.

    Raises:
        ValueError: A report is of another schema, of a device or operator that has no cell, or of
            a part of an operator's checks.
    """
    lines = page.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("| "))
    head, _, total, *rows = (line[2:-2].split(" | ") for line in lines[first:])
    devices, by_operator = head[1:], {row[0]: row for row in rows}
    for report in reports:
        _check_schema(report)
        device, cells = report["device"], _cells(report["checks"])
        if device not in devices or not cells.keys() <= by_operator.keys():
            raise ValueError(f"The page has no cells for {sorted(cells)} of '{device}'.")
        place = 1 + devices.index(device)
        for operator, cell in cells.items():
            row = by_operator[operator]
            given = sum(check["op"] == operator for check in report["checks"])
            if row[place] != NONE and given < _made(row[place])[1]:
                raise ValueError(f"{given} checks of {operator} are not all; a row tells of all.")
            row[place] = cell
        counts = [_made(row[place]) for row in rows if row[place] != NONE]
        passed, made = map(sum, zip(*counts, strict=True))
        total[place] = f"{passed}/{made}, of {total[place].rpartition(' of ')[2]}"
        named = ", ".join(sorted(cells))
        for n, line in enumerate(lines[:first]):
            if line.startswith(f"- {device}: "):
                lines[n] = f"{line}; rows of {named}: {_day(report)}"
    table = [_row(head), lines[first + 1], _row(total), *map(_row, rows)]
    return "\n".join([*lines[:first], *table, ""])


def _made(cell: str) -> tuple[int, int]:
    """Of a cell how many checks passed, and of how many."""
    passed, made = cell.split()[0].split("/")
    return int(passed), int(made)


def _check_schema(report: Mapping[str, Any]) -> None:
    if report.get("schema") != SCHEMA:
        raise ValueError(
            f"The report on '{report.get('device')}' has schema {report.get('schema')}; "
            f"schema {SCHEMA} is needed. Make it anew with this version of the kit."
        )


def _day(report: Mapping[str, Any]) -> str:
    return str(report["finished"][:10])


def _run(report: Mapping[str, Any]) -> str:
    about, versions = report["about"], report["versions"]
    packages = [f"{name} {versions[name]}" for name in ("partita", "onnx") if name in versions]
    facts = [about["name"], about["driver"], *(p for p in packages if p not in about["driver"])]
    return f"- {report['device']}: {', '.join(fact for fact in facts if fact)}; {_day(report)}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _total(checks: Sequence[Mapping[str, Any]]) -> str:
    of = [check for check in checks if check["op"]]
    made = [check for check in of if check["status"] in _MADE]
    return f"{_passed(made)}/{len(made)}, of {len(of)}"


def _passed(checks: Iterable[Mapping[str, Any]]) -> int:
    return sum(check["status"] == PASSED for check in checks)


def _cells(checks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Operator to the text of its cell."""
    by_type: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for check in checks:
        if check["op"]:
            made = by_type[check["op"]][check["dtype"]]
            if check["status"] in _MADE:
                made.append(check)
    return {op: _cell(types) for op, types in by_type.items()}


def _cell(types: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    made = [check for checks in types.values() for check in checks]
    if not made:
        return NONE
    right = [dtype for dtype, checks in types.items() if checks and _passed(checks) == len(checks)]
    right.sort(key=lambda dtype: (_USUAL.index(dtype) if dtype in _USUAL else len(_USUAL), dtype))
    return f"{_passed(made)}/{len(made)} {', '.join(right)}".rstrip()


def main(arguments: Sequence[str]) -> int:
    """Writes the page named first, or some of its rows, out of the reports named after it."""
    some = list(arguments[:1]) == ["--rows"]
    if len(arguments) < 2 + some:
        sys.stderr.write("usage: python docs/tooling/support.py [--rows] PAGE.md REPORT.json...\n")
        return 2
    page, *files = map(Path, arguments[some:])
    reports = [json.loads(file.read_text()) for file in files]
    text = with_rows(page.read_text("utf-8"), reports) if some else support_table(reports)
    page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
