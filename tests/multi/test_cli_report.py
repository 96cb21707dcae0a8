"""``partita report``: placement, counters and the run itself, as text, JSON and a page."""

from __future__ import annotations

import json

import onnx
import pytest

from partita.cli.main import main

from .fakes import FakeDevice, core_with
from .graphs import CHAIN


@pytest.fixture
def report(monkeypatch, tmp_path, capsys):
    model = tmp_path / "model.onnx"
    onnx.save(CHAIN, model)
    core = core_with(FakeDevice("A", refuses=["Exp"], memory="vram"), FakeDevice("B"))
    monkeypatch.setattr("partita_hetero.cli.report.Core", lambda: core)

    def run(*argv):
        code = main(["report", str(model), "-niter", "2", *map(str, argv)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return run


def test_everything_as_json(report):
    data = json.loads(report("-d", "HETERO:A,B", "--json"))
    assert [op["device"] for op in data["explanation"]["ops"]] == ["A", "B", "A", "A"]
    assert data["explanation"]["ops"][1]["change"] == "A taking it (UNSUPPORTED_OP)"
    assert any("permute" in counter["node_name"] for counter in data["counters"])
    (measured,) = data["timelines"]
    assert measured["name"] == "measured"
    assert {span["name"] for span in measured["spans"]} >= {"subgraph1", "subgraph2", "subgraph3"}
    assert data["median_ms"] > 0
    executed = [step["name"] for step in data["execution"]["steps"]]
    assert [name for name in executed if name.startswith("subgraph")] == [
        *("subgraph1", "subgraph2", "subgraph3")
    ]


def test_kernels_of_a_device_that_tells_them(report, tmp_path):
    path = tmp_path / "report.html"
    text = report("-d", "HETERO:A,CPU", "--output", path)
    _, _, steps = text.partition("executed by")
    rows = [line.split() for line in steps.splitlines()]
    assert ["subgraph2", "bound", "call"] in rows or ["subgraph2", "run"] in rows
    (kernel,) = [row[2] for row in rows if row[:2] == ["2", "b"]]
    assert "exp" in kernel
    assert "<h2>Steps of the last inference</h2>" in path.read_text()
    assert f"<td>2</td><td>b</td><td>{kernel}</td>" in path.read_text()


def test_as_text_and_as_a_page(report, tmp_path):
    path = tmp_path / "report.html"
    text = report("-d", "HETERO:A,B", "--pin", "a=B", "--output", path)
    assert "PINNED: pin 'a=B'" in text
    assert "subgraph1: 1. " in text
    assert "measured: " in text
    assert "median " in text
    page = path.read_text()
    for part in ("<svg", "<h2>Operations</h2>", "PINNED: pin &#x27;a=B&#x27;", "Total time: "):
        assert part in page


def test_a_single_device_has_no_timeline(report):
    data = json.loads(report("-d", "B", "--json"))
    assert data["timelines"] == []
    assert {op["device"] for op in data["explanation"]["ops"]} == {"B"}
