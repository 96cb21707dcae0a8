"""The chart: spans lie where their times say, and names are escaped."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from partita_hetero.planner.simulation.timeline import Span, Timeline
from partita_hetero.reports.gantt import to_svg

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg):
    """Left edge, width, top and tooltip of each span."""
    root = ElementTree.fromstring(svg)  # noqa: S314  # made by ourselves
    found = []
    for rect in root.iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            found.append((*(float(rect.get(key)) for key in ("x", "width", "y")), title.text))
    return found


def test_spans_lie_where_their_times_say():
    timeline = Timeline(
        (
            Span("A", "first", 0, 250),
            Span("A", "moved", 250, 500, "transfer", 4096),
            Span("B", "second", 500, 1000),
        ),
        "predicted",
    )
    first, moved, second = bars(to_svg([timeline], width=1140))
    assert first[:2] == (120, 250)
    assert moved[:2] == (370, 250)
    assert second[:2] == (620, 500)
    assert first[2] == moved[2] < second[2]
    assert moved[3] == "moved (transfer): 0.25 ms from 0.25 ms, 4,096 bytes"


def test_runs_share_one_axis():
    short = Timeline((Span("A", "op", 0, 100),), "predicted")
    long = Timeline((Span("A", "op", 0, 200),), "measured")
    first, second = bars(to_svg([short, long], width=1140))
    assert first[1] == pytest.approx(500)
    assert second[1] == pytest.approx(1000)
    assert first[2] < second[2]


def test_spans_that_overlap_get_lanes_of_their_own():
    spans = (Span("A", "x", 0, 10), Span("A", "y", 5, 15), Span("A", "z", 10, 20))
    x, y, z = sorted(bars(to_svg([Timeline(spans)])), key=lambda bar: bar[3])
    assert x[2] == z[2]
    assert y[2] > x[2]


def test_each_device_has_a_colour():
    spans = (Span("A", "x", 0, 5), Span("B", "y", 5, 9), Span("A", "moved", 9, 10, "transfer", 8))
    root = ElementTree.fromstring(to_svg([Timeline(spans)]))  # noqa: S314  # made by ourselves
    rects = [one for one in root.iter(f"{SVG}rect") if one.find(f"{SVG}title") is not None]
    x, moved, y = (rect.get("fill") for rect in rects)
    assert x == moved != y


def test_names_are_escaped_and_nothing_is_a_chart_too():
    svg = to_svg([Timeline((Span("A", "<b>&", 0, 10),), "a<b")])
    assert "&lt;b&gt;&amp; (compute)" in svg
    assert "<b>&" not in svg
    assert bars(to_svg([])) == []
    assert bars(to_svg([Timeline((), devices=("A",))])) == []
