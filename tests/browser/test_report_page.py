"""The report's page in a real browser: Chromium, headless, as `.ci/run` installs it."""

from __future__ import annotations

import html
import re
import shutil
import subprocess

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


def outcome_of(name, op, dtype, status, detail):
    check = Check(name, lambda bench: None, True, f"summary of {name}", op, dtype)
    return Outcome(check, status, detail, 0.25)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    outcomes = [outcome_of(*row) for row in CHECKS]
    report.write(folder, report.as_data(Target("REFERENCE"), outcomes, 1.5))
    return folder / "conformance.html"


class Shown:
    """What the page shows after a script has used it."""

    def __init__(self, dom):
        self.dom = dom
        self.rows = [row[0] for row in self.table("rows", "name")]
        self.title = self.text("title")
        self.shown = self.text("shown")

    def text(self, name):
        found = re.search(rf'<(\w+)[^>]*id="{name}"[^>]*>(.*?)</\1>', self.dom, re.DOTALL)
        return html.unescape(found[2])

    def table(self, name, column):
        cells = rf'<td class="[^"]*\b{column}\b[^"]*"[^>]*>(.*?)</td>'
        rows = re.findall(r"<tr.*?</tr>", self.text_of_table(name), re.DOTALL)
        return [[html.unescape(t) for t in re.findall(cells, row)] for row in rows]

    def text_of_table(self, name):
        return re.search(rf'id="{name}">(.*?)</t(?:able|body)>', self.dom, re.DOTALL)[1]


def use(page, script="", link=""):
    """Opens the page, runs a script in it as a person would act, and returns what is shown."""
    copy = page.with_name("used.html")
    watch = "<script>onerror = text => { document.body.dataset.error = text; };</script>"
    act = f"""<script>
    const choose = (id, value) => {{
      document.getElementById(id).value = value;
      document.getElementById(id).dispatchEvent(new Event("input"));
    }};
    const click = (selector, text) => [...document.querySelectorAll(selector)]
      .find(found => found.textContent === text).click();
    {script}
    document.body.dataset.link = location.hash;
    </script>"""
    text = page.read_text()
    copy.write_text(text.replace("<head>", "<head>" + watch).replace("</body>", act + "</body>"))
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium, "these tests need Chromium: apt-get install chromium"
    found = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--dump-dom", copy.as_uri() + link],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "data-error" not in found.stdout
    return Shown(found.stdout)


def test_at_a_glance(page):
    shown = use(page)
    assert shown.title == "REFERENCE: 1 check fails"
    assert "<title>REFERENCE: 1 check fails</title>" in shown.dom
    assert shown.shown == "6 of 6 checks"
    assert shown.rows[0] == "operators/relu_half"  # what fails stands first
    assert sorted(shown.rows) == sorted(row[0] for row in CHECKS)
    tiles = re.findall(r'<button class="tile (\w+)"><b>(\d+)</b>', shown.dom)
    assert dict(tiles) == {"passed": "3", "failed": "1", "declined": "1", "xfailed": "1"}
    assert re.search(r"<td>operators</td><td[^>]*>2 of 4</td><td[^>]*>1 fail</td>", shown.dom)
    assert "numpy" in shown.text("sub")


def test_text_of_a_device_is_text(page):
    assert use(page).table("rows", "detail")[0] == [NASTY]


def test_operators_by_type(page):
    shown = use(page)
    assert shown.table("matrix", "cell")[1:] == [["·"], ["1/1", "0/1"], ["1/1", "0/1"]]
    head = re.findall(r"<th>(.*?)</th>", shown.text_of_table("matrix"))
    assert head == ["operator", "float", "float16", "int32"]
    assert 'title="UNSUPPORTED_OP: no kernel for Adam"' in shown.dom


@pytest.mark.parametrize(
    ("script", "rows"),
    [
        ('choose("status", "declined")', ["operators/adam"]),
        ('choose("suite", "plugin")', ["plugin/names_itself"]),
        ('choose("dtype", "float16")', ["operators/relu_half"]),
        ('choose("op", "Add")', ["operators/add", "random/Add/0"]),
        ('choose("text", "WRAPS")', ["random/Add/0"]),
        ('choose("text", "nothing at all")', []),
        (
            'choose("suite", "operators"); choose("text", "relu"); choose("status", "passed")',
            ["operators/relu"],
        ),
        ('click("#tiles button", "3passed")', [r[0] for r in CHECKS if r[3] == "passed"]),
        ('click("#suites td", "random")', ["random/Add/0"]),
        ('click("#matrix td", "Relu")', ["operators/relu_half", "operators/relu"]),
        ('click("#matrix td", "0/1")', ["random/Add/0"]),
        (
            'choose("text", "relu"); click("#matrix td", "·"); click("#clear", "all")',
            ["operators/relu_half", *(r[0] for r in CHECKS if r[0] != "operators/relu_half")],
        ),
    ],
)
def test_filters(page, script, rows):
    shown = use(page, script)
    assert shown.rows == rows
    assert shown.shown == f"{len(rows)} of 6 checks"


def test_a_link_keeps_the_filters(page):
    shown = use(page, 'choose("op", "Relu"); choose("status", "failed")')
    link = html.unescape(re.search(r'data-link="([^"]*)"', shown.dom)[1])
    assert use(page, link=link).rows == ["operators/relu_half"]
    assert use(page, link="#op=Add&nonsense=1").rows == ["operators/add", "random/Add/0"]
