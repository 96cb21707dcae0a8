"""How fast the pages are in Chromium: opening, searching, filtering, sorting, grouping, zooming.

    python benchmarks/pages.py --operations 10000

Makes a page of a placement and one of a conformance run, opens each several times in a fresh tab,
and does what a person does. Opening is from the start of the navigation until the rows are painted,
the rest from the event until what it changes is painted: up to a frame of 16.7 ms is waiting.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import random
import statistics
import sys
import tempfile
from importlib import resources
from pathlib import Path

from partita.pages.page import build_page
from partita_hetero.planner.simulation.timeline import Span, Timeline
from partita_hetero.reports.placement_page import placement_page
from partita_hetero.reports.record import (
    Crossing,
    DeviceCost,
    Operation,
    PlacementRecord,
    SubmodelRecord,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))
from chromium import Chromium

TYPES = ("Conv", "Relu", "MatMul", "Add", "LayerNormalization", "Softmax", "Reshape", "Concat")
DEVICES = ("GPU", "CPU", "NPU")
PART = 20
"""Operations of a submodel."""

NOTE_PAINT = """addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
  window.painted = document.querySelector(".rows tbody tr[data-line]") ? performance.now() : NaN;
})))"""

TIMED = """(async () => {
  const start = performance.now();
  (() => { %s })();
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
})()"""

ACTS = {
    "search": "const one = document.querySelector('input[type=search]');"
    "one.value = '77'; one.dispatchEvent(new Event('input'))",
    "clear the search": "const one = document.querySelector('input[type=search]');"
    "one.value = ''; one.dispatchEvent(new Event('input'))",
    "filter": "const one = document.querySelector('.toolbar select'); one.selectedIndex = 2;"
    "one.dispatchEvent(new Event('change'))",
    "clear the filter": "const one = document.querySelector('.toolbar select');"
    "one.selectedIndex = 0; one.dispatchEvent(new Event('change'))",
    "sort by a text": "document.querySelector('.rows thead th button').click()",
    "group": "const one = [...document.querySelectorAll('.toolbar select')].at(-1);"
    "one.selectedIndex = 1; one.dispatchEvent(new Event('change'))",
    "scroll to the middle": "const one = document.querySelector('.rows');"
    "one.scrollTop = one.scrollHeight / 2; one.dispatchEvent(new Event('scroll'))",
    "zoom the timeline": "document.querySelector('button[aria-label=\"Zoom in\"]')?.click()",
}


def placement(count: int) -> str:
    """A page of operations in submodels of twenty, with a span for each of both."""
    draw = random.Random(0)
    operations, spans, now = [], [], 0.0
    for index in range(count):
        part = index // PART
        device = DEVICES[part % len(DEVICES)]
        us = draw.lognormvariate(2, 1)
        spans.append(Span(device, f"encoder.layer.{part}.op_{index}", now, now + us))
        now += us
        operations.append(
            Operation(
                f"encoder.layer.{part}.op_{index}",
                draw.choice(TYPES),
                device,
                part + 1,
                us,
                draw.randrange(1 << 20),
                "fused_kernel",
                "",
                "CHEAPER_BY",
                "CHEAPER_BY: 12.5 us less than on CPU; not NPU: UNSUPPORTED_OP: no such kernel",
                "CPU +12.5 us",
                "CPU being 12.5 us faster here",
                {name: DeviceCost(us * draw.uniform(0.5, 2), True) for name in DEVICES},
            )
        )
    parts = [
        SubmodelRecord(number + 1, DEVICES[number % len(DEVICES)], PART, 200.0)
        for number in range((count + PART - 1) // PART)
    ]
    ends = [None, *(part.number for part in parts), None]
    crossings = [
        Crossing(f"value_{number}", source, target, "upload", 4096)
        for number, (source, target) in enumerate(itertools.pairwise(ends))
    ]
    timelines = [Timeline(tuple(spans), "measured")]
    device = f"HETERO:{','.join(DEVICES)}"
    facts = {"compiled in": "900 ms"}
    record = PlacementRecord(
        "network",
        device,
        "the median of 10 runs",
        now,
        facts,
        [],
        operations,
        parts,
        crossings,
        timelines,
    )
    return placement_page([record])


def conformance(count: int) -> str:
    """A page of checks, one in fifty of which fails."""
    draw = random.Random(0)
    checks = [
        {
            "name": f"operators/{index}",
            "suite": draw.choice(["operators", "random", "networks"]),
            "status": draw.choices(["passed", "declined", "failed"], [70, 28, 2])[0],
            "detail": "",
            "seconds": draw.random(),
            "summary": "the outputs are those of the reference",
            "op": f"Operator{index % 180}",
            "dtype": draw.choice(["float", "float16", "int32", "int8", "double"]),
        }
        for index in range(count)
    ]
    statuses = ("passed", "declined", "failed")
    counts = {status: sum(one["status"] == status for one in checks) for status in statuses}
    report = {
        "device": "DEVICE",
        "about": {"name": "a device", "driver": "1.0"},
        "versions": {},
        "machine": {"system": "a system", "processors": 2},
        "finished": "today",
        "seconds": 1.0,
        "counts": counts,
        "claims": {"share": 1.0, "tried": [], "never_tried": []},
        "checks": checks,
    }
    folder = resources.files("partita_conformance.reports") / "assets"
    return build_page("conformance", folder, "conformance", {"report": report})


def measure(browser: Chromium, path: Path) -> dict[str, float]:
    """Milliseconds of each act, in a fresh tab."""
    page = browser.open(path.as_uri())
    page.call("Page.addScriptToEvaluateOnNewDocument", source=NOTE_PAINT)
    page.call("Page.reload")
    page.wait("window.painted !== undefined")
    found = {"open": page.evaluate("window.painted")}
    for name, script in ACTS.items():
        found[name] = page.evaluate(TIMED % script)
    page.close()
    return found


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory() as folder, Chromium(Path(folder) / "profile") as browser:
        print(browser.call("Browser.getVersion")["product"])
        for name, make in (("placement", placement), ("conformance", conformance)):
            path = Path(folder) / f"{name}.html"
            path.write_text(make(options.operations), encoding="utf-8")
            print(f"\n{name} page of {options.operations} rows, {path.stat().st_size / 1e6:.1f} MB")
            turns = [measure(browser, path) for _ in range(options.turns)]
            print(f"{'':24} {'median ms':>10} {'most ms':>10}")
            for act in turns[0]:
                times = [turn[act] for turn in turns]
                print(f"{act:24} {statistics.median(times):10.1f} {max(times):10.1f}")


if __name__ == "__main__":
    main()
