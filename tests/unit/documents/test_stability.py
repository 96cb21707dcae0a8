"""What the page on stability promises is there, and no place that the changes name is left out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pluggy
import pytest

from partita.contract import hookspecs

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
MODULE = r"`(partita(?:_\w+)?(?:\.\w+)*)`"


def level(name):
    """What stands behind a level in the page's first table."""
    (row,) = re.findall(rf"^\| {name} \|(.*)\|$", PAGE, re.MULTILINE)
    return row


PUBLIC = re.findall(MODULE, level("public"))
PROVISIONAL = re.findall(MODULE, level("provisional"))


@pytest.mark.parametrize("name", sorted({*PUBLIC, *PROVISIONAL}))
def test_modules_are_there(name):
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)


def test_public_names_are_listed():
    for name in ("partita", "partita.plugin", "partita.properties"):
        assert name in PUBLIC
        assert importlib.import_module(name).__all__


def test_all_hooks_are_public():
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    hooks = {name for name in vars(manager.hook) if not name.startswith("_")}
    assert hooks
    assert hooks <= set(re.findall(r"`(\w+)`", level("public")))


def test_places_to_import_from_have_a_level():
    table = CHANGES.partition("| import | instead of |")[2].partition("\n\n")[0]
    places = {name for line in table.splitlines() for name in re.findall(MODULE, line[:60])}
    assert {"partita.plugin", "partita.tensors.sequence_values"} <= places
    former = {"partita.deferred", "partita.layout", "partita.sequences", "partita.probing"}
    assert places - former <= {*PUBLIC, *PROVISIONAL}
