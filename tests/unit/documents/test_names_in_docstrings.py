"""Docstrings name what there is: dotted names in quotes lead to modules and to what they hold."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("core", "plugins", "serve", "conformance")
DOTTED = re.compile(r"(?<![`:])`((?:\w+\.)+\w+)`(?!`)")
OF_OTHERS = {"importlib.util.LazyLoader"}


@functools.cache
def words_of_modules():
    """The words of each module, by the parts of its name; a package has those of its modules."""
    found: dict[tuple[str, ...], set[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            words = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
            parts = path.relative_to(ROOT / package).with_suffix("").parts
            for count in range(1, len(parts) + 1):
                found.setdefault(parts[:count], set()).update(words)
    return found


def texts_and_names(source):
    """The docstrings of a module, and the names in its code."""
    texts, names = [], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.append(str(node.value.value))
        names |= {getattr(node, key, None) for key in ("id", "arg", "attr", "name")}
    return texts, names


def exists(name, near=frozenset()):
    """Whether a module of this name holds the rest of it, or code near has such a value.

    Classes, whose names begin with a large letter, may be anywhere.
    """
    parts, known = tuple(name.split(".")), words_of_modules()
    for count in range(len(parts), 0, -1):
        owners = [words for at, words in known.items() if at[-count:] == parts[:count]]
        if owners:
            return any(words.issuperset(parts[count:]) for words in owners)
    if parts[0].strip("_")[:1].isupper():
        return any(words.issuperset(parts) for words in known.values())
    return near.issuperset(parts)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_what_there_is(package):
    faults = []
    for path in sorted((ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if DOTTED.search(source):
            texts, near = texts_and_names(source)
            names = {name for text in texts for name in DOTTED.findall(text)} - OF_OTHERS
            faults += [f"{path.relative_to(ROOT)}: {n}" for n in names if not exists(n, near)]
    assert not faults


def test_names_that_lead_nowhere_are_found():
    assert exists("partita_cpu.gemm.packing")
    assert exists("packing.pack_bias")
    assert exists("Window.table")
    assert exists("own.kernels", {"own", "kernels"})
    assert not exists("own.kernels")
    assert not exists("packing.unpack_everything")
    assert not exists("no_such_module.PARAMETERS")
