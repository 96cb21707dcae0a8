"""Further checks of suites ``properties`` and ``query``: settings hold wherever they are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from partita.errors import PartitaError, PropertyError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Sample, beside
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
)
from partita_conformance.suites.contract.suite_properties import other_values, settable
from partita_conformance.suites.feeding import steps_taken

_NUMBERS = (0, 1, 2, 3, 4, 7, 9, 17, 100, 1000, 65_537, 2**31 - 1, 2**40)
"""Values of numbers: below, at and beyond what a driver may have room for."""
_COMPILED = 17
"""Numbers up to this one are compiled with too: more threads or requests cost more than time."""


def _numbers(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Properties that are whole numbers or fractions, each with numbers that it may have."""
    for name, field in settable(bench):
        if field.annotation in (int, float):
            for number in _NUMBERS:
                yield name, field.annotation(number)


@check("properties")
def numbers_are_kept_or_refused(bench: Bench) -> None:
    """A number that a property is set to is read back as it is, or is refused: never another."""
    sample = bench.sample("plain")
    tried = 0
    for name, number in _numbers(bench):
        core = bench.new_core()
        before = core.get_property(bench.device, name)
        try:
            core.set_property(bench.device, {name: number})
        except PropertyError:
            have = core.get_property(bench.device, name)
            require(have == before, f"{name}={number} is refused, and {before} became {have}.")
            continue
        tried += 1
        have = core.get_property(bench.device, name)
        require(have == number, f"{name} was set to {number}; it reads {have}. Refuse it instead.")
        if number <= _COMPILED:
            compiled = bench.compile(sample.proto, core=core)
            have = compiled.get_property(name)
            wish = any(name in note for note in compiled.explain().notes)
            require(
                have == number or (wish and name.endswith("_HINT")),
                f"{name} was set to {number}; the compiled model has {have}.",
            )
    if not tried:
        raise NotApplicableError("the device has no property that is a number")


_STEPS = (
    *(f"{op}(x)" for op in ("Abs", "Erf", "Exp", "LeakyRelu", "Sigmoid", "Softmax", "Tanh")),
    *("ReduceMean(x)", "Transpose(x)", "Add(x, w)", "Div(x, w)", "Clip(x, low, high)"),
    *("Gemm(x, v)", "MatMul(x, v)", "Gather <axis = 1> (x, places)", "Conv(image, kernel)"),
    *("MaxPool <kernel_shape = [2,2]> (image)", "LayerNormalization(x, row, row)"),
    *("BatchNormalization(image, c, c, c, c)", "GlobalAveragePool(image)"),
)
"""What most devices take, of each kind some: a driver may build each anew for every setting."""
_PORTS = ("float[2,3] x", "float[1,2,4,5] image")
_WEIGHTS = {
    "w": np.array([[0.5, 2, 1], [1.5, -1, 3]], np.float32),
    "v": np.array([[0.5, -1], [2, 1], [-0.5, 3]], np.float32),
    "row": np.array([0.5, 2, 1], np.float32),
    "low": np.array(-0.5, np.float32),
    "high": np.array(0.75, np.float32),
    "places": np.array([2, 0]),
    "kernel": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 2, 2, 2),
    "c": np.array([1.5, 0.5], np.float32),
}


@check("query", values=True)
def what_is_taken_compiles_under_every_setting(bench: Bench) -> None:
    """Whatever value a property has, what a query with it takes compiles with it and is right."""
    usual = steps_taken(bench, _STEPS, _PORTS, _WEIGHTS)
    if not usual:
        raise NotApplicableError("the device takes none of the operations")
    for name, field in settable(bench):
        for value in other_values(field.annotation, field.default):
            setting, what = {name: value}, f"with {name}={value!r}"
            taken = steps_taken(bench, usual, _PORTS, _WEIGHTS, setting)
            if not taken:
                continue
            proto = beside(taken, _PORTS, _WEIGHTS)
            try:
                compiled = bench.compile(proto, setting)
            except PartitaError as error:
                raise ConformanceError(
                    f"{what} {', '.join(taken)} are taken, and do not compile: {error}"
                ) from error
            if "PRECISION" not in name:
                feeds = Sample("", proto).feeds(61)
                compare(compiled(feeds).to_tuple(), bench.expected(proto, feeds), what)
