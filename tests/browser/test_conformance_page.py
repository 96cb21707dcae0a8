"""The conformance page in a real browser: Chromium, headless, as `.ci/run` installs it."""

from __future__ import annotations

import pytest

from partita_conformance.bench.bench import Target
from partita_conformance.bench.checks import Check
from partita_conformance.reports import report
from partita_conformance.runs.running import Outcome

NASTY = 'due is <b>1</b> & "2" </script><script>document.title = "broken"</script>'
CHECKS = [
    ("plugin/names_itself", "", "", "passed", ""),
    ("operators/relu", "Relu", "float", "passed", ""),
    ("operators/relu_half", "Relu", "float16", "failed", NASTY),
    ("operators/add", "Add", "float", "passed", ""),
    ("operators/adam", "Adam", "float", "declined", "UNSUPPORTED_OP: no kernel for Adam"),
    ("random/Add/0", "Add", "int32", "xfailed", "overflow wraps [2 elements are wrong]"),
]
FIRST = "operators/relu_half"
"""What fails stands first."""
NAMES = [FIRST, *(name for name, *_ in CHECKS if name != FIRST)]


def outcome_of(name, op, dtype, status, detail):
    check = Check(name, lambda bench: None, True, f"summary of {name}", op, dtype)
    return Outcome(check, status, detail, 0.25)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    outcomes = [outcome_of(*row) for row in CHECKS]
    report.write(folder, report.as_data(Target("REFERENCE"), outcomes, 1.5))
    return folder / "conformance.html"


@pytest.fixture
def page(opened, path):
    return opened(path)


def names(page):
    return page.texts("td.name")


def test_at_a_glance(page):
    assert page.texts("h1") == ["REFERENCE: 1 check fails"]
    assert page.evaluate("document.title") == "REFERENCE: 1 check fails"
    assert page.texts("output") == ["6 checks"]
    assert names(page) == NAMES
    assert {*page.texts(".tile")} == {"3 passed", "1 failed", "1 declined", "1 xfailed"}
    assert len(page.named("image", "2 passed, 1 failed, 1 declined")) == 1
    assert "numpy" in page.text("p")


def test_text_of_a_device_is_text(page):
    assert page.texts("td.told")[0] == NASTY
    page.click("gridcell", FIRST)
    assert NASTY in page.text(".details")


def test_operators_by_type(page):
    assert page.texts(".matrix thead th") == ["operator", "float", "float16", "int32"]
    rows = [page.texts(f".matrix tbody tr:nth-child({n}) > *") for n in (1, 2, 3)]
    assert rows == [
        ["Adam", "·", "", ""],
        ["Add", "1/1", "", "0/1"],
        ["Relu", "1/1", "0/1", ""],
    ]
    assert page.evaluate("document.querySelector('.matrix td button').title") == CHECKS[4][-1]


@pytest.mark.parametrize(
    ("use", "left"),
    [
        (lambda page: page.choose("declined", "status"), ["operators/adam"]),
        (lambda page: page.choose("plugin", "suite"), ["plugin/names_itself"]),
        (lambda page: page.choose("float16", "element type"), [FIRST]),
        (lambda page: page.choose("Add", "operator"), ["operators/add", "random/Add/0"]),
        (lambda page: page.type("WRAPS", "searchbox", "Search"), ["random/Add/0"]),
        (lambda page: page.type("relu passed", "searchbox"), ["operators/relu"]),
        (lambda page: page.type("nothing at all", "searchbox"), []),
        (lambda page: page.click("button", "3 passed"), [r[0] for r in CHECKS if r[3] == "passed"]),
        (lambda page: page.click("button", "random"), ["random/Add/0"]),
        (lambda page: page.click("button", "Relu"), [FIRST, "operators/relu"]),
        (lambda page: page.click("button", "0/1"), ["random/Add/0"]),
    ],
)
def test_filters(page, use, left):
    use(page)
    assert names(page) == left
    assert page.texts("output") == [f"{len(left)} of 6 checks"]
    page.click("button", "Show all")
    assert names(page) == NAMES


def test_the_matrix_by_keyboard(page):
    page.focus("button", "Adam")
    page.press("ArrowDown")
    page.press("ArrowRight")
    page.press("ArrowRight")  # over the element type without checks
    page.press("Enter")
    assert names(page) == ["random/Add/0"]


def test_a_link_keeps_the_filters(page, opened, path):
    page.choose("Relu", "operator")
    page.choose("failed", "status")
    link = page.evaluate("location.hash")
    assert names(opened(path, link)) == [FIRST]
    other = opened(path, "#checks.op=Add&nonsense=1&checks.suite=gone")
    assert names(other) == ["operators/add", "random/Add/0"]


def test_reading_on_a_phone(readable, path):
    readable(path)
