"""One browser for all tests of pages, and what every page must be able to do."""

from __future__ import annotations

from importlib import resources

import pytest
from chromium import Chromium

CONTRAST = """(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = numbers(colour).map(c => c / 255)
      .map(c => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = one => {
    for (; one; one = one.parentElement) {
      const found = getComputedStyle(one).backgroundColor;
      if (numbers(found)[3] !== 0) return found;
    }
    return "rgb(255, 255, 255)";
  };
  const weak = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const one = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !one.getClientRects().length) continue;
    const svg = one.closest("svg");
    if (["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(one.tagName)) continue;
    const style = getComputedStyle(one);
    const bar = svg && one.previousElementSibling;
    const back = bar?.tagName === "rect" ? getComputedStyle(bar).fill : behind(one);
    const pair = [light(svg ? style.fill : style.color), light(back)].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) weak.push(`${one.textContent}: ${ratio.toFixed(2)}`);
  }
  return weak;
})()"""
"""Texts with less contrast to what they stand on than WCAG asks of small ones."""

AXE = (resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
"""The checks of axe-core, which says what assistive technology stumbles over."""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def opened(chromium):
    """Opens files as pages; closes them after the test, which none of them may have spoiled."""
    pages = []

    def open_page(path, link="", **window):
        pages.append(chromium.open(path.as_uri() + link, **window))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


@pytest.fixture
def readable(opened):
    """Checks a page at 400 pixels, in the dark and in the light."""

    def check(path):
        for dark in (False, True):
            page = opened(path, width=400, dark=dark)
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            assert page.evaluate(CONTRAST) == []
            page.call("Runtime.evaluate", expression=AXE)
            assert page.evaluate("axe.run().then(found => found.violations)") == []
            lightness = page.evaluate(
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"
            )
            assert (int(lightness) < 100) == dark

    return check
