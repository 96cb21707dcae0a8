"""Suite ``walks``: what requests of a model go through, in orders that are drawn."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from partita.errors import PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.inputs.models import Array, parse
from partita_conformance.judging.requirements import NotApplicableError
from partita_conformance.suites.resources.collecting import of_new_objects
from partita_conformance.suites.usage.walking import Walk

_STEPS = {
    **dict.fromkeys(("float", "double", "float16", "bfloat16", "int8", "int32", "int64"), "Neg"),
    **dict.fromkeys(("uint8", "string"), "Identity"),
    "bool": "Not",
}
"""By element type an operation on one tensor of it."""
_MODELS = {
    "three inputs and outputs": (
        "({0}[N] a, {0}[M] b, {0}[N] c) => ({0}[K] y, {0}[N] z, {0}[M] u)",
        "y = Concat <axis = 0> (a, b) z = {1}(c) u = {1}(b)",
    ),
    "ranks": (
        "({0} s, {0}[2,1,N,1,2] b) => ({0} t, {0}[2,1,N,1,2] y, {0}[2,P] z)",
        "t = {1}(s) y = {1}(b) z = Flatten <axis = 1> (b)",
    ),
    "a matrix": (
        "({0}[N,M] x) => ({0}[M,N] y, {0}[N,M] z, int64[2] s)",
        "y = Transpose <perm = [1,0]> (x) z = {1}(x) s = Shape(x)",
    ),
    "known sizes": (
        "({0}[3,5] a, {0}[3,5] b) => ({0}[6,5] y, {0}[3,5] z)",
        "y = Concat <axis = 0> (a, b) z = {1}(a)",
    ),
    "a sum": (
        "({0}[N] a, {0}[M] b) => ({0}[K] y, {0}[N] z)",
        "y = Add(a, b) z = {1}(a)",
    ),
    "one": ("({0}[N,3] x) => ({0}[N,3] y)", "y = {1}(x)"),
    "a choice": (
        "(bool[N] w, {0}[N] a, {0}[N] b) => ({0}[N] y, bool[N] v)",
        "y = Where(w, a, b) v = Not(w)",
    ),
}
_IMPOSSIBLE = {"a sum": {"N": 3, "M": 4}}
_LENGTH = 40
_OF_FLOATS = 3
"""Walks of each model of float32; of other types there is one."""
_TEXTS = ("", "a", "two words", "\u00e4\u2713", "x" * 40)


def _numbers(dtype: Any, shape: tuple[int, ...], number: int) -> Array:
    """Small numbers of a type, others for each number; texts of other lengths."""
    rng = np.random.default_rng(number)
    if np.dtype(dtype).hasobject:
        count = int(np.prod(shape, dtype=int))
        chosen = [_TEXTS[i] for i in rng.integers(0, len(_TEXTS), count)]
        return np.array(chosen or [], object).reshape(shape)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    low = 0 if np.dtype(dtype).kind == "u" else -60
    array = np.asarray(rng.integers(low, 60, shape)).astype(dtype)
    if np.dtype(dtype).kind == "f" or np.dtype(dtype) == ml_dtypes.bfloat16:
        array = array / np.asarray(8, dtype)
    return np.asarray(array)


def _models(element: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    for name, (ports, steps) in _MODELS.items():
        if "Add" in steps and element in ("bool", "string"):
            continue
        text = f"g {ports} {{{{ {steps} }}}}"
        yield f"{name} of {element}", parse(text.format(element, _STEPS[element]))


def walk_checks() -> list[Check]:
    """The checks, one per element type."""
    summary = "Runs, bound calls, failures, threads and what comes and goes, in drawn orders: {0}"
    return [
        Check(
            f"walks/{element}",
            functools.partial(_walk, element),
            True,
            summary.format(element),
        )
        for element in _STEPS
    ]


def _walk(element: str, bench: Bench) -> None:
    tried = 0
    with of_new_objects():
        for name, proto in _models(element):
            try:
                if bench.refusals(proto):
                    continue
            except PartitaError:  # no model of Partita's has such a type
                continue
            tried += 1
            impossible = _IMPOSSIBLE.get(name.partition(" of ")[0])
            for seed in range(_OF_FLOATS if element == "float" else 1):
                Walk(bench, name, proto, _numbers, 1000 * seed, impossible).go(_LENGTH)
    if not tried:
        raise NotApplicableError(f"the device takes none of the models of {element}")
