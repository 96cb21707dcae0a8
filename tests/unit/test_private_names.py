"""Tests use public names alone: what they need to see or replace is part of a module's face."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OF_OTHERS = (
    *("os._exit", "sys._current_frames", "cl._cl", "size._obj", "super()._run", "torch._dynamo"),
)
"""Names of Python, pyopencl, ctypes and onnx.reference that have no public counterpart."""
OF_FAULTS = {
    "device/conformance/broken_usage.py": ["t._array"],
    "device/conformance/unseen/distant_numerics_more.py": ["node._run", "LaterResize._run"],
    "device/conformance/unseen/foreign_numerics.py": [
        *("node._run", "node._run_body", "node._run", "node._run_body", "OriginalResize._run")
    ],
}
"""What broken plugins read although it is not theirs: that is their fault."""
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields"}
"""Public names, which begin so that no field is called alike."""
BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "setitem", "delitem", "patch", "object"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def is_code(text: str) -> bool:
    """Whether a text may be code for another process, and not the name of a thing."""
    return "._" in text and any(sign in text for sign in "(\n=")


def private_names(source: str) -> Iterator[str]:
    """Private names of others that a source reads, imports or replaces; its own are its own."""
    tree = ast.parse(source)
    names_others = any(name in source for name in OF_OTHERS)  # seldom; to unparse takes long
    within = {
        id(inner)
        for node in (ast.walk(tree) if names_others else ())
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(OF_OTHERS)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in within:
            owner = node.value
            own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
            if is_private(node.attr) and node.attr not in OF_NAMED_TUPLES and not own:
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            for name in node.names:
                yield from filter(is_private, name.name.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_code(node.value):
            yield from private_names_of_code(node.value)
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name not in BY_NAME or not node.args:
                continue
            others = ast.unparse(node.args[0]).startswith(OF_OTHERS)
            for given in () if others else node.args[:2]:
                if isinstance(given, ast.Constant) and isinstance(given.value, str):
                    yield from filter(is_private, given.value.split(".")[-1:])


def private_names_of_code(text: str) -> Iterator[str]:
    """Those in a text that other processes run; none if it is no code."""
    try:
        yield from private_names(textwrap.dedent(text))
    except SyntaxError:
        return


@pytest.mark.parametrize(
    "source",
    [
        "request.runner._bound",
        "from partita.core import _registry",
        "import partita._core",
        "monkeypatch.setattr(module, '_limit', 1)",
        "monkeypatch.setattr('partita.core._limit', 1)",
        "getattr(runner, '_queue')",
        "run('print(module._limit)')",
    ],
)
def test_an_access_is_seen(source):
    assert list(private_names(source))


@pytest.mark.parametrize(
    "source", ["self._made", "model.__class__", "os._exit(0)", "cl._cl._Program", "x, _ = f()"]
)
def test_what_is_ones_own_or_of_others_is_left_alone(source):
    assert not list(private_names(source))


def test_no_test_uses_a_private_name():
    found = {
        str(path.relative_to(TESTS)): names
        for path in TESTS.rglob("*.py")
        if path != Path(__file__)
        and (names := list(private_names(path.read_text(encoding="utf-8"))))
    }
    assert found == OF_FAULTS
