"""``partita report``: placement, counters and the run itself, as text, JSON and a page."""

from __future__ import annotations

import json
import re

import onnx
import pytest

from partita.cli.main import main

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN, model_of, node
from ..paced import PacedDevice
from ..virtual_time import install


@pytest.fixture
def report(monkeypatch, tmp_path, capsys):
    model = tmp_path / "model.onnx"
    onnx.save(CHAIN, model)
    core = core_with(FakeDevice("A", refuses=["Exp"], memory="vram"), FakeDevice("B"))
    monkeypatch.setattr("partita_hetero.cli.report.Core", lambda: core)

    def run(*argv, source=model, fails=False):
        code = main(["report", str(source), "-niter", "3", *map(str, argv)])
        captured = capsys.readouterr()
        assert (code != 0) == fails, captured.err
        return captured.err if fails else captured.out

    return run


def shown(path):
    """The records that a page holds."""
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search('id="placements">(.*?)</script>', text)[1])


def test_everything_as_json(report):
    data = json.loads(report("-d", "HETERO:A,B", "--json"))
    assert [op["device"] for op in data["explanation"]["ops"]] == ["A", "B", "A", "A"]
    assert data["explanation"]["ops"][1]["change"] == "A taking it (UNSUPPORTED_OP)"
    assert any("permute" in counter["node_name"] for counter in data["counters"])
    (measured,) = data["timelines"]
    assert measured["name"] == "measured"
    assert {span["name"] for span in measured["spans"]} >= {"subgraph1", "subgraph2", "subgraph3"}
    assert data["median_ms"] == data["run_us"] / 1e3 > 0
    assert data["run"] == "the median of 3 runs"
    assert sum(measured["load_us"].values()) <= data["run_us"]  # of that run
    executed = [step["name"] for step in data["execution"]["steps"]]
    assert [name for name in executed if name.startswith("subgraph")] == [
        *("subgraph1", "subgraph2", "subgraph3")
    ]


def test_a_trace_of_all_runs(report, tmp_path):
    path = tmp_path / "run.json"
    report("-d", "HETERO:A,B", "--trace", path)
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(threads.values()) == {"HETERO", "A", "B"}
    spans = [event for event in events if event["ph"] == "X"]
    whole = sorted(e["ts"] for e in spans if threads[e["tid"]] == "HETERO")
    assert len(whole) == 3 and whole[0] == 0  # one for each run, on one axis
    parts = [event for event in spans if event["name"] == "subgraph2"]
    assert [threads[event["tid"]] for event in parts] == ["B", "B", "B"]
    for event, start in zip(sorted(parts, key=lambda e: e["ts"]), whole, strict=True):
        assert event["ts"] >= start


def test_a_saved_report_has_no_trace(report, tmp_path):
    saved = tmp_path / "before.json"
    saved.write_text(report("-d", "HETERO:A,B", "--json"))
    page, trace = tmp_path / "page.html", tmp_path / "run.json"
    told = report("--output", page, "--trace", trace, source=saved, fails=True)
    assert "--trace is of runs" in told


def test_kernels_of_a_device_that_tells_them(report, tmp_path):
    path = tmp_path / "report.html"
    text = report("-d", "HETERO:A,CPU", "--output", path)
    _, _, steps = text.partition("executed by")
    rows = [line.split() for line in steps.splitlines()]
    assert ["subgraph2", "bound", "call"] in rows or ["subgraph2", "run"] in rows
    (step,) = [row[2] for row in rows if row[:2] == ["2", "b"]]
    assert "exp" in step
    (record,) = shown(path)
    assert [2, "b", step] in record["steps"]
    (b,) = [op for op in record["operations"] if op["name"] == "b"]
    assert b["us"] > 0
    assert (b["kernel"], b["nbytes"]) == ("numba", 2 * 24)  # two tensors of 2x3 floats
    assert record["parts"][1]["us"] >= b["us"]


def test_as_text_and_as_a_page(report, tmp_path):
    path = tmp_path / "report.html"
    text = report("-d", "HETERO:A,B", "--pin", "a=B", "--output", path)
    assert "PINNED: pin 'a=B'" in text
    assert "subgraph1: 1. " in text
    assert "measured: " in text
    assert "median " in text
    (record,) = shown(path)
    assert record["operations"][0]["why"] == "PINNED: pin 'a=B'"
    assert [part["device"] for part in record["parts"]] == ["B", "A"]
    assert record["timelines"][0]["spans"][0]["name"] == "subgraph1"


def test_what_operations_take_elsewhere(monkeypatch, tmp_path, report):
    install(monkeypatch)
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    paced = [
        PacedDevice("A", {"Sinh": 0.01, "Tan": 0.002}, counts=True),
        PacedDevice("B", {"Sinh": 0.003, "Tan": 0.004}, counts=True),
    ]
    core = core_with(*paced)
    monkeypatch.setattr("partita_hetero.cli.report.Core", lambda: core)
    onnx.save(model_of([node("Sinh", ["x"], "a"), node("Tan", ["a"], "b")], ["b"]), tmp_path / "m")
    path = tmp_path / "report.html"
    text = report("-d", "HETERO:A,B", "--elsewhere", "--output", path, source=tmp_path / "m")
    assert "us on A  us on B" in text
    (record,) = shown(path)
    assert record["run_us"] == pytest.approx(12_000, rel=0.1)
    assert [op["us"] for op in record["operations"]] == pytest.approx([10_000, 2_000], rel=0.1)
    costs = [[op["elsewhere"][device]["us"] for device in "AB"] for op in record["operations"]]
    assert costs == [
        pytest.approx([10_000, 3_000], rel=0.1),
        pytest.approx([2_000, 4_000], rel=0.1),
    ]


def test_two_placements_on_a_page(report, tmp_path):
    path = tmp_path / "both.html"
    report("-d", "HETERO:A,B", "--pin", "a=B", "--compare", "B", "--output", path)
    first, second = shown(path)
    assert [first["device"], second["device"]] == ["HETERO:A,B", "B"]
    assert [op["device"] for op in second["operations"]] == ["B"] * 4


def test_reports_that_were_saved(report, tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(report("-d", "HETERO:A,B", "--json"), encoding="utf-8")
    report("-d", "HETERO:B,A", "--output", after)
    path = tmp_path / "both.html"
    report("--compare", after, "--output", path, source=before)
    first, second = shown(path)
    saved = json.loads(before.read_text(encoding="utf-8"))
    assert first["operations"] == saved["operations"]
    assert first["timelines"][0]["spans"] == saved["timelines"][0]["spans"]
    assert second["device"] == "HETERO:B,A"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--compare", "B"], "--compare is for a page: name its file with --output REPORT.html."),
        (["--compare", "B", "--output", "x.json"], "--compare is for a page"),
        (["--elsewhere", "-d", "B"], "'B' is one device; --elsewhere is for 'HETERO:B,...'."),
        (["--compare", "LOST", "--output", "x.html"], "There is no device 'LOST'"),
        (["--compare", "lost.json", "--output", "x.html", "-d", "B"], "'lost.json' cannot be read"),
    ],
)
def test_what_cannot_be_reported(report, argv, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert told in report(*argv, fails=True)


@pytest.mark.parametrize(
    ("text", "argv", "told"),
    [
        (
            "{}",
            ["--output", "x.html"],
            "'old.json' is not a report (at model: Field required). Write",
        ),
        ("[", ["--output", "x.html"], "'old.json' is not a report (Invalid JSON: "),
        ("{}", [], "'old.json' is a saved report, of which only a page can be made"),
        ("{}", ["--output", "x.json"], "of which only a page can be made"),
        ("{}", ["--output", "x.html", "--elsewhere"], "and neither --json nor --elsewhere."),
    ],
)
def test_files_that_are_no_reports(report, text, argv, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.json").write_text(text)
    assert told in report(*argv, source="old.json", fails=True)


def test_a_saved_report_is_compared_with_another(report, tmp_path):
    path = tmp_path / "old.json"
    path.write_text(report("-d", "B", "--json"), encoding="utf-8")
    told = report("--compare", "B", "--output", tmp_path / "x.html", source=path, fails=True)
    assert "'B' is not a saved report: " in told


def test_a_single_device_has_no_timeline(report):
    data = json.loads(report("-d", "B", "--json"))
    assert data["timelines"] == []
    assert {op["device"] for op in data["explanation"]["ops"]} == {"B"}
