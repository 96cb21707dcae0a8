"""The support table says what the reports say, and the page in docs/ is of today's form."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

import partita_cpu.kernels.operator_table as cpu_table
import partita_opencl.emitters.operator_table as opencl_table
from partita_conformance.draws.decoder import DECODER
from partita_conformance.draws.operators import GENERATORS
from partita_conformance.inputs.node_cases import node_cases

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "support.md"

spec = importlib.util.spec_from_file_location("support", DOCS / "tooling" / "support.py")
support = importlib.util.module_from_spec(spec)
spec.loader.exec_module(support)


def report_of(device, *rows):
    checks = [dict(zip(("op", "dtype", "status"), row, strict=True)) for row in rows]
    return {
        "schema": 1,
        "device": device,
        "about": {"name": f"The {device}", "driver": "", "kind": "cpu"},
        "versions": {"partita": "0.1.0"},
        "finished": "2026-11-21T07:00:00+00:00",
        "checks": checks,
    }


ONE = report_of(
    "ONE",
    ("Relu", "int8", "passed"),
    ("Relu", "float", "passed"),
    ("Relu", "float", "passed"),
    ("Relu", "float16", "failed"),
    ("Relu", "double", "declined"),
    ("Add", "float", "declined"),
    ("Mul", "bool", "crashed"),
    ("", "", "passed"),
)
TWO = report_of("TWO", ("Add", "float", "passed"), ("Add", "bool", "xfailed"))


def rows_of(text):
    rows = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [row.split(" | ") for row in rows]


def test_table_says_what_the_reports_say():
    head, _, *rows = rows_of(support.support_table([ONE, TWO]))
    assert head == ["", "ONE", "TWO"]
    assert rows == [
        ["all", "3/5, of 7", "1/2, of 2"],
        ["Add", "–", "1/2 float"],
        ["Mul", "0/1", "–"],
        ["Relu", "3/4 float, int8", "–"],
    ]


def test_page_is_written(tmp_path):
    for report in (ONE, TWO):
        (tmp_path / report["device"]).write_text(json.dumps(report))
    page = tmp_path / "page.md"
    assert support.main([str(page), str(tmp_path / "ONE"), str(tmp_path / "TWO")]) == 0
    assert page.read_text() == support.support_table([ONE, TWO])


def test_rows_of_some_operators_are_made_anew(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(support.support_table([ONE, TWO]))
    more = report_of("ONE", ("Add", "float", "passed"), ("Add", "float16", "failed"))
    for day, report in enumerate((more, report_of("ONE", ("Mul", "bool", "passed"))), 22):
        report["finished"] = f"2026-11-{day}T07:00:00+00:00"
        (tmp_path / "few").write_text(json.dumps(report))
        assert support.main(["--rows", str(page), str(tmp_path / "few")]) == 0
    assert rows_of(page.read_text())[2:] == [
        ["all", "5/7, of 7", "1/2, of 2"],
        ["Add", "1/2 float", "1/2 float"],
        ["Mul", "1/1 bool", "–"],
        ["Relu", "3/4 float, int8", "–"],
    ]
    told = "2026-11-21; rows of Add: 2026-11-22; rows of Mul: 2026-11-23"
    assert f"- ONE: The ONE, partita 0.1.0; {told}\n" in page.read_text()
    with pytest.raises(ValueError, match="no cells for"):
        support.with_rows(page.read_text(), [report_of("ONE", ("Sub", "float", "passed"))])
    with pytest.raises(ValueError, match="1 checks of Relu are not all"):
        support.with_rows(page.read_text(), [report_of("ONE", ("Relu", "int8", "passed"))])


def test_usage(capsys):
    assert support.main(["page.md"]) == 2
    assert "REPORT.json" in capsys.readouterr().err


def test_report_of_another_schema_is_refused():
    with pytest.raises(ValueError, match="'TWO' has schema 9; schema 1 is needed"):
        support.support_table([ONE, {**TWO, "schema": 9}])


def test_page_in_the_documentation_is_in_step():
    head, _, total, *rows = rows_of(PAGE.read_text())
    assert head == ["", "CPU", "OPENCL", "REFERENCE"]
    assert total[0] == "all"
    assert PAGE.read_text().startswith(support.HEAD.format(none=support.NONE))
    operators = {case.op for case in node_cases().values()} | set(GENERATORS)
    operators |= {operator for operator, _ in DECODER.values()}
    assert [row[0] for row in rows] == sorted(operators)
    cell = re.compile(r"–|\d+/\d+( [a-z0-9]+(, [a-z0-9]+)*)?")
    assert [c for row in rows for c in row[1:] if not cell.fullmatch(c)] == []


NOT_CHECKED = {"CPU": {"LabelEncoder"}, "OPENCL": {"SkipSimplifiedLayerNormalization"}}
"""Operators whose kernels take none of their checks, which are of texts, or use statistics."""


@pytest.mark.parametrize("device", NOT_CHECKED)
def test_page_knows_of_each_kernel(device):
    """A page without it is stale: ``support.py --rows`` makes such rows anew."""
    table = {"CPU": cpu_table, "OPENCL": opencl_table}[device].TABLE
    table.load()
    head, _, _, *rows = rows_of(PAGE.read_text("utf-8"))
    empty = {row[0] for row in rows if row[head.index(device)] == support.NONE}
    assert {op for domain, op in table.entries if domain != "partita"} & empty == NOT_CHECKED[
        device
    ]
