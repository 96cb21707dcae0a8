"""The page of placements in a real browser: what a person clicks, types, zooms and reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from partita_hetero.planner.simulation.timeline import Span, Timeline
from partita_hetero.reports.placement_page import placement_page
from partita_hetero.reports.record import (
    Crossing,
    DeviceCost,
    Operation,
    PlacementRecord,
    SubmodelRecord,
)

NASTY = '<img src=x onerror="document.title=1">&"\'</script><script>document.title=1</script>'
TYPES = ("Conv", "Relu", "MatMul")


def operation(index, device, part, us):
    name = NASTY if index == 3 else f"op{index}"
    return Operation(
        *(name, TYPES[index % 3], device, part, us, 1000 * (index + 1), "kernel", ""),
        *("PRIORITY", f"PRIORITY: first of the list, {name}", "", "a pin"),
        elsewhere={"GPU": DeviceCost(us / 2, True), "CPU": DeviceCost(us * 2, index != 0)},
    )


def record(device="HETERO:GPU,CPU", factor=1.0, second="CPU", model="net"):
    """Twelve operations: four on GPU, four on the second device, four on GPU again."""
    places = [("GPU", 1), (second, 2), ("GPU", 3)]
    operations = [
        operation(index, *places[index // 4], 10.0 * (index + 1) * factor) for index in range(12)
    ]
    ends = [0.0]
    for part in range(3):
        ends.append(ends[-1] + sum(op.us for op in operations[4 * part : 4 * part + 4]))
    spans = [
        Span(place, f"subgraph{number}", ends[number - 1], ends[number]) for place, number in places
    ]
    spans.insert(1, Span("GPU", "permute x (GPU to host)", ends[1], ends[1] + 5, "transfer", 4096))
    return PlacementRecord(
        *(model, device, "the median of 5 runs", ends[-1], {"compiled in": "3 ms"}, ["a note"]),
        operations,
        [SubmodelRecord(number, place, 4, 4.0 * number) for place, number in places],
        [
            Crossing("in", None, 1, "upload", 64),
            Crossing("x", 1, 2, "download", 4096),
            Crossing("y", 2, 3, "shared", None),
            Crossing("out", 3, None, "download", 64),
        ],
        [Timeline(tuple(spans), "measured")],
        ((None, "subgraph1", "run"), (1, "op0", "kernel")),
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("placement") / "report.html"
    path.write_text(placement_page([record(model=f"net {NASTY}")]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    path = tmp_path_factory.mktemp("placement") / "both.html"
    both = [record(), record("HETERO:GPU,NPU", 0.5, "NPU")]
    path.write_text(placement_page(both), encoding="utf-8")
    return path


@pytest.fixture
def page(opened, path):
    return opened(path)


def names(page):
    return page.texts("tr[id^='operations-'] td.name")


def numbers(page, count=12):
    return [f"op{index}" if index != 3 else NASTY for index in range(count)]


def test_the_story_of_one_run(page):
    assert page.texts("h1") == [f"net {NASTY} on HETERO:GPU,CPU"]
    assert page.texts(".card p") == ["780 µs the median of 5 runs"]
    assert page.texts(".busy th") == ["GPU", "CPU"]
    assert page.texts(".busy td:nth-child(3)") == ["67.3 %", "33.3 %"]
    assert page.texts("article li") == ["a note"]
    assert page.texts("section > p")[-1] == "Times of operations add up to 100.0 % of the run."
    assert page.evaluate("document.title") != "1"


def test_sorting_by_the_headings(page):
    assert names(page) == numbers(page)[::-1]  # what takes most stands first
    assert page.evaluate("document.querySelector('th[aria-sort=descending]').textContent") == "time"
    page.click("button", "time")
    assert names(page) == numbers(page)
    page.click("button", "share")
    assert names(page) == numbers(page)[::-1]
    page.click("button", "operation")
    assert [name for name in names(page) if name != NASTY] == [
        f"op{index}" for index in range(12) if index != 3
    ]


def test_what_operations_cost_elsewhere(page):
    page.click("gridcell", "op0")
    details = page.texts(".details dt")
    assert {"on GPU", "on CPU", "why", "what would change it"} <= {*details}
    facts = dict(zip(details, page.texts(".details dd"), strict=True))
    assert (facts["time"], facts["share"], facts["bytes"]) == ("10 µs", "1.3 %", "1 kB")
    assert (facts["on GPU"], facts["on CPU"]) == ("5 µs", "20 µs")
    assert facts["estimated, not measured, on"] == "CPU"


def test_searching_and_filtering(page):
    page.type("RELU op1", "searchbox", "Search")
    assert names(page) == ["op10", "op1"]
    page.click("button", "Show all")
    page.choose("CPU", "device")
    assert sorted(names(page)) == ["op4", "op5", "op6", "op7"]
    assert page.texts("output")[-1] == "4 of 12 operations"


def test_grouping_and_folding_by_keyboard(page):
    page.choose("device", "Group by")
    groups = page.texts("tr.group td:first-child")
    assert groups == ["▾ GPU: 8 operations", "▾ CPU: 4 operations"]
    assert page.texts("tr.group td:nth-child(5)") == ["520 µs", "260 µs"]
    page.focus("grid", "operations")
    page.press("ArrowLeft")
    assert page.texts("tr.group td:first-child")[0] == "▸ GPU: 8 operations"
    assert len(names(page)) == 2 + 4
    page.press("ArrowDown", 2)
    page.press("Enter")
    assert "op7" in page.text(".details")
    page.press("Escape")
    assert page.evaluate("document.querySelector('.details').hidden")


def test_zooming_the_timeline(page):
    def widths():
        return page.evaluate(
            "[...document.querySelectorAll('.timeline rect')].map(one => one.width.baseVal.value)"
        )

    def ticks():
        return page.texts(".timeline .time")

    before, at_first = widths(), ticks()
    page.click("button", "Zoom in")
    assert max(widths()) > 1.5 * min(max(before), 400)
    assert ticks() != at_first
    page.focus("application", page.evaluate("document.querySelector('.timeline').ariaLabel"))
    page.press("0")
    assert widths() == before
    page.press("+", 6)
    page.press("ArrowRight")
    assert "subgraph1 on GPU (compute): 100 µs from 0 µs" in page.texts(".reader")
    page.press("ArrowRight")
    assert "permute x (GPU to host) on GPU (transfer): 5 µs from 100 µs, 4.10 kB" in page.texts(
        ".reader"
    )
    page.press("ArrowDown")
    page.press("Enter")
    assert sorted(names(page)) == ["op4", "op5", "op6", "op7"]


def test_the_pointer_reads_and_drags_the_timeline(page):
    node = page.find("application", page.evaluate("document.querySelector('.timeline').ariaLabel"))
    page.call("DOM.scrollIntoViewIfNeeded", backendNodeId=node)
    box = page.evaluate(
        "(box => [box.x, box.y, box.width])(document.querySelector('.timeline rect.device-1')"
        ".getBoundingClientRect())"
    )
    page.mouse("mouseMoved", box[0] + 5, box[1] + 5)
    assert "subgraph2 on CPU (compute): 260 µs from 100 µs" in page.texts(".reader")
    ctrl = 2
    page.mouse("mouseWheel", box[0], box[1] + 5, deltaX=0, deltaY=-300, modifiers=ctrl)
    page.wait("document.querySelector('.timeline rect.device-1').width.baseVal.value > 600")
    left = "document.querySelector('.timeline rect.device-1').x.baseVal.value"
    before = page.evaluate(left)
    page.mouse("mousePressed", box[0], box[1] + 5, button="left", buttons=1, clickCount=1)
    page.mouse("mouseMoved", box[0] + 50, box[1] + 5, button="left", buttons=1)
    page.mouse("mouseReleased", box[0] + 50, box[1] + 5, button="left", clickCount=1)
    assert page.evaluate(left) == pytest.approx(before + 50, abs=1)


def test_a_step_of_a_plan_shows_its_operation(opened, tmp_path):
    spans = (Span("GPU", "op5", 0, 10), Span("GPU", "op6", 10, 20))
    plan = replace(record(), timelines=[Timeline(spans, "predicted")])
    (tmp_path / "plan.html").write_text(placement_page([plan]), encoding="utf-8")
    page = opened(tmp_path / "plan.html")
    page.focus("application", page.evaluate("document.querySelector('.timeline').ariaLabel"))
    page.press("ArrowRight", 2)
    page.press("Enter")
    assert names(page) == ["op6"]


def test_two_fingers_zoom_and_one_moves(page):
    box = page.evaluate(
        "(one => (one.scrollIntoView({block: 'center'}), one = one.getBoundingClientRect(),"
        "[one.x, one.y + one.height / 2]))(document.querySelector('.graph'))"
    )
    transform = "document.querySelector('.graph g').transform.baseVal.consolidate().matrix"
    scale, place = f"{transform}.a", f"{transform}.e"

    def touch(kind, *places):
        points = [{"x": box[0] + x, "y": box[1], "id": i} for i, x in enumerate(places)]
        page.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    before = page.evaluate(scale)
    touch("touchStart", 200, 300)
    touch("touchMove", 150, 350)
    touch("touchEnd")
    assert page.evaluate(scale) == pytest.approx(2 * before, rel=0.05)
    left = page.evaluate(place)
    touch("touchStart", 200)
    touch("touchMove", 260)
    touch("touchEnd")
    assert page.evaluate(place) == pytest.approx(left + 60, abs=1)


def test_the_graph_of_submodels(page):
    label = page.evaluate("document.querySelector('.graph').ariaLabel")
    assert label.startswith("graph of 3 submodels")
    scale = "document.querySelector('.graph g').getAttribute('transform')"
    before = page.evaluate(scale)
    page.focus("application", label)
    page.press("-")
    assert page.evaluate(scale) != before
    page.press("ArrowRight", 3)
    told = page.texts(".reader")[1]
    assert told.startswith("submodel 2 on CPU: 4 ops, 8 µs; reads from 1 (x, download, 4.10 kB)")
    assert told.endswith("read by 3 (y, shared)")
    page.press("Enter")
    assert sorted(names(page)) == ["op4", "op5", "op6", "op7"]


def test_tables_in_place_of_pictures(page):
    for folded in page.texts("summary"):
        page.click("DisclosureTriangle", folded)
    page.wait("document.querySelectorAll('details table').length === 3")
    assert page.texts("details td.value") == ["in", "x", "y", "out"]
    assert page.texts("details td.how") == [
        *("upload", "download", "shared", "download"),
        *("run", "kernel"),
    ]
    assert page.texts("details tr[id^='steps-'] td.name") == [
        *("subgraph1", "permute x (GPU to host)", "subgraph2", "subgraph3")
    ]


def test_saving_for_perfetto(page, chromium):
    page.click("button", "Save for Perfetto")
    file = chromium.folder / "trace.json"
    chromium.wait_for(file)
    events = json.loads(file.read_text())["traceEvents"]
    assert events[0]["args"]["name"] == "HETERO:GPU,CPU, measured"
    assert {event["name"] for event in events if event["ph"] == "X"} == {
        *("subgraph1", "subgraph2", "subgraph3", "permute x (GPU to host)")
    }


def test_two_placements_side_by_side(opened, pair):
    page = opened(pair)
    assert page.texts(".verdict") == ["B takes 50.0 % of the time of A."]
    assert page.texts(".card h2") == ["A: net on HETERO:GPU,CPU", "B: net on HETERO:GPU,NPU"]
    lefts = page.evaluate(
        "[...document.querySelectorAll('.card')].map(one => one.getBoundingClientRect().top)"
    )
    assert lefts[0] == lefts[1]
    assert page.texts(".timeline .run") == ["A: measured: 780 µs", "B: measured: 390 µs"]
    page.focus("application", page.evaluate("document.querySelector('.timeline').ariaLabel"))
    page.press("ArrowRight")
    page.press("Enter")
    assert sorted(names(page)) == [NASTY, "op0", "op1", "op2"]
    page.click("button", "Show all")
    page.choose("yes", "moved")
    assert sorted(names(page)) == ["op4", "op5", "op6", "op7"]
    page.click("gridcell", "op7")
    facts = dict(zip(page.texts(".details dt"), page.texts(".details dd"), strict=True))
    assert (facts["device A"], facts["device B"]) == ("CPU", "NPU")
    assert (facts["time A"], facts["time B"], facts["B less A"]) == ("80 µs", "40 µs", "-40 µs")


def test_reading_on_a_phone(readable, path, pair, tmp_path):
    readable(path)
    readable(pair)
    names = [f"DEVICE.{number}" for number in range(8)]  # one for each colour
    spans = tuple(Span(name, "step", 0, 10) for name in names)
    parts = [SubmodelRecord(number, name, 1, 1.0) for number, name in enumerate(names, 1)]
    crossings = [Crossing("x", None, part.number, "shared", None) for part in parts]
    crowd = replace(record(), parts=parts, crossings=crossings, timelines=[Timeline(spans)])
    (tmp_path / "crowd.html").write_text(placement_page([crowd]), encoding="utf-8")
    readable(tmp_path / "crowd.html")
