"""Examples in docstrings show what the code does."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import partita
import partita_conformance
import partita_cpu
import partita_hetero
import partita_opencl
import partita_reference
import partita_serve

PACKAGES = (
    *(partita, partita_cpu, partita_opencl, partita_hetero),
    *(partita_reference, partita_serve, partita_conformance),
)


def modules_with_examples():
    for package in PACKAGES:
        yield package.__name__, package.__file__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield found.name, found.module_finder.find_spec(found.name).origin


def has_examples(file):
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return any(line.lstrip().startswith(">>> ") for line in lines)


@pytest.mark.parametrize(
    "name", [name for name, file in modules_with_examples() if has_examples(file)]
)
def test_examples_run(name):
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0
