"""Draws of casts: from an element type to each other, of what ONNX says becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from partita_conformance.draws.draw import Array, Draw
from partita_conformance.draws.vary import TYPES

_TARGETS = (
    "float",
    "float16",
    "bfloat16",
    "double",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "bool",
)
_NUMBERS: Mapping[str, tuple[float, ...]] = {
    "float": (0.0, -0.0, 0.49, -0.5, 1.5, -2.5, 2.9999998, 100.7, -7.9),
    "large": (16777217.0, -16777219.0, 2147483520.0, 4503599627370497.0, -9007199254740991.0),
    "between bfloats": (1.00390626, 1.01171876, -1.0078124, 3.3333333, 257.00001),
    "subnormal": (5.9e-8, -3.1e-5, 6.05e-5),
    "beyond": (3e38, -3e38, 70000.0, 1e-30, float("inf"), float("-inf")),
}


def casts(op_type: str, element: str) -> list[tuple[str, Draw]]:
    """A draw to each element type: fractions, both ends of the source's and target's range."""
    if element == "string":
        return [_read(op_type, name) for name in ("float", "double", "int32", "int64")]
    drawn = _nibbles() if (op_type, element) == ("Cast", "int8") else []
    for name in _TARGETS:
        target = np.dtype(TYPES[name])
        x = _told(np.dtype(TYPES[element]), target)
        if op_type == "Cast":
            to = int(helper.np_dtype_to_tensor_dtype(target))
            drawn.append((f"to {name}", Draw([x], {"to": to})))
        else:
            drawn.append((f"to {name}", Draw([x, np.zeros(1, target)])))
    return drawn


def _nibbles() -> list[tuple[str, Draw]]:
    """Draws of numbers of four bits, two of which share a byte: as many as fill bytes, and odd."""
    drawn = []
    for kind in (ml_dtypes.int4, ml_dtypes.uint4):
        least = -8 if kind is ml_dtypes.int4 else 0
        for count in (16, 7):
            x = np.arange(count) % 16 + least
            to = int(helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
            name = np.dtype(kind).name
            drawn.append((f"{count} of {name}", Draw([x.astype(kind)], {"to": 1}, opset=21)))
            back = Draw([x.astype(np.float32)], {"to": to}, opset=21)
            drawn.append((f"{count} to {name}", back))
    return drawn


_TEXTS = ("1", "-2.5", "1e3", "2.5E-2", "-3.25e+01", "0.1", "NaN", "INF", "-INF")
_WHOLE_TEXTS = ("1", "-12", "0", "2147483647")


def _read(op_type: str, name: str) -> tuple[str, Draw]:
    """A draw of texts that are numbers."""
    target = np.dtype(TYPES[name])
    x = np.array(_TEXTS if target.kind == "f" else _WHOLE_TEXTS, object)
    to = int(helper.np_dtype_to_tensor_dtype(target))
    made = Draw([x], {"to": to}) if op_type == "Cast" else Draw([x, np.zeros(1, target)])
    return f"texts to {name}", made


def _told(source: np.dtype[Any], target: np.dtype[Any]) -> Array:
    """Numbers of a type whose cast ONNX says: fractions are cut off, integers keep their low bits.

    Floats beyond the range of an integer have no answer.
    """
    if source.kind == "b":
        return np.array([True, False, True])
    if source.kind in "iu":
        ends = np.iinfo(source)
        whole = (ends.min, ends.max, ends.max - 1, 0, 1, 200, -1, -200, 2**24 + 1, 2**53 + 1)
        return np.array([n for n in whole if ends.min <= n <= ends.max], source)
    numbers = np.array([n for pool in _NUMBERS.values() for n in pool])
    with np.errstate(all="ignore"):
        numbers = numbers.astype(source)
    if target.kind in "iu":
        ends = np.iinfo(target)
        wide = numbers.astype(np.longdouble)
        numbers = numbers[(wide > int(ends.min) - 1) & (wide < int(ends.max) + 1)]
    return np.asarray(numbers)
