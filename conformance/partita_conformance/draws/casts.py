"""Draws of Cast: from each element type to each other, with the results that ONNX specifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from partita_conformance.draws.draw import Array, Draw, Rng
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
    drawn: list[tuple[str, Draw]] = []
    if (op_type, element) in (("Cast", "int8"), ("Cast", "uint8")):
        drawn = _nibbles() if element == "int8" else _all_eights()
    if element in ("float", "float16"):
        drawn = _to_eights(op_type, np.dtype(TYPES[element]))
    for name in _TARGETS:
        target = np.dtype(TYPES[name])
        x = _defined_numbers(np.dtype(TYPES[element]), target)
        if op_type == "Cast":
            to = int(helper.np_dtype_to_tensor_dtype(target))
            drawn.append((f"to {name}", Draw([x], {"to": to})))
        else:
            drawn.append((f"to {name}", Draw([x, np.zeros(1, target)])))
    return drawn + _rounded_once(op_type, np.dtype(TYPES[element]))


def _rounded_once(op_type: str, source: np.dtype[Any]) -> list[tuple[str, Draw]]:
    """Draws of what becomes another number if it is rounded to a type between on the way."""
    drawn = []
    for target in (*map(np.dtype, TYPES.values()), *map(np.dtype, EIGHTS)):
        x = beside_ties(source, target)
        if not x.size or target == source or (op_type == "CastLike" and target.itemsize != 2):
            continue  # for other types Cast suffices
        opset = 19 if target.itemsize == 1 and target.kind not in "iub" else 17
        if op_type == "Cast":
            made = Draw([x], {"to": int(helper.np_dtype_to_tensor_dtype(target))}, opset=opset)
        else:
            made = Draw([x, np.zeros(1, target)], opset=opset)
        drawn.append((f"beside ties of {target.name}", made))
    return drawn


def beside_ties(source: np.dtype[Any], target: np.dtype[Any]) -> Array:
    """Numbers of a type next to those in the middle between two of another, on either side.

    Of a type without fractions the middles are the numbers themselves, at which fractions are cut
    off.
    """
    numbers = {"i": _WHOLE, "u": _WHOLE, "b": ()}.get(target.kind, _FLOATING)
    if source.kind == "b" or source.hasobject or target.hasobject or not numbers:
        return np.zeros(0, source)
    with np.errstate(all="ignore"):
        if target.kind in "iu":
            ends = np.iinfo(target)
            middles = np.array([n for n in numbers if ends.min < n < ends.max], np.longdouble)
        else:
            low = np.array(numbers, np.longdouble).astype(np.float64).astype(target)
            code = low.view(f"u{target.itemsize}")
            high = (code + code.dtype.type(1)).view(target)
            middles = (low.astype(np.longdouble) + high.astype(np.longdouble)) / 2
            middles = middles[np.isfinite(middles)]
        middles = np.concatenate([middles, -middles])
        if source.kind in "iu":
            ends = np.iinfo(source)
            kept = [int(m) for m in middles if m == np.trunc(m) and ends.min < m < ends.max - 1]
            found = np.array([n + step for n in kept for step in (-1, 0, 1)], source)
        else:
            near = middles.astype(source)
            near = near[np.isfinite(near) & (near.astype(np.longdouble) == middles)]
            code = near.view(f"u{source.itemsize}")
            step = code.dtype.type(1)
            found = np.concatenate([(code - step), code, (code + step)]).view(source)
    fits = target.kind != "u" or found > -1
    return np.asarray(found[np.broadcast_to(fits, found.shape)])


_FLOATING: tuple[float, ...] = (
    1,
    1.5,
    1.25,
    1.125,
    3.25,
    7.0,
    0.0078125,
    2.0**-14,
    2.0**-16,
    6.2e-5,
    100,
    2.0**30,
)
_FLOATING += (1.25 * 2.0**40, 1.75 * 2.0**62, 2.0**62)
_WHOLE = (1, 2, 3, 100, 255, 256, 2**12, 2**15, 2**24, 2**31, 2**52)


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


EIGHTS = (
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
)
"""Floats of eight bits."""
BEYOND_EIGHTS = (0.3, -3.0, 17.0, 232.0, 260.0, -500.0, 60000.0, -65000.0, 0.001, -0.0)
"""Numbers that some of them hold, and some that none does."""


def _to_eights(op_type: str, source: np.dtype[Any]) -> list[tuple[str, Draw]]:
    """Draws of numbers within and beyond the range of floats of eight bits, saturated or not."""
    drawn = []
    for kind in EIGHTS:
        target = np.dtype(kind)
        for saturate in (1, 0):
            given: dict[str, Any] = {"saturate": saturate}
            inputs = [np.array(BEYOND_EIGHTS, source)]
            if op_type == "Cast":
                given["to"] = int(helper.np_dtype_to_tensor_dtype(target))
            else:
                inputs.append(np.zeros(1, target))
            drawn.append((f"{saturate} to {target.name}", Draw(inputs, given, opset=19)))
    return drawn


def one_to_eight_bits(rng: Rng, op_type: str) -> Draw:
    """Draws a cast of numbers to floats of eight bits, which hold some of them."""
    drawn = _to_eights(op_type, np.dtype(np.float32))
    return drawn[int(rng.integers(len(drawn)))][1]


def _all_eights() -> list[tuple[str, Draw]]:
    """Draws of all floats of eight bits, as numbers of 32."""
    codes = np.arange(256, dtype=np.uint8)
    kinds = [(np.dtype(kind).name, codes.view(kind)) for kind in EIGHTS]
    return [(f"from {name}", Draw([x], {"to": 1}, opset=19)) for name, x in kinds]


def nans(dtype: np.dtype[Any]) -> Array:
    """What is no number in a type: of either sign, with its digits at either end."""
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes
    quiet, infinity = 1 << (info.nmant - 1), ((1 << info.nexp) - 1) << info.nmant
    bits = [infinity | quiet, infinity | 1, infinity | (quiet - 1)]
    sign = 1 << (info.bits - 1)
    return np.array([*bits, *(sign | b for b in bits)], f"u{dtype.itemsize}").view(dtype)


_TEXTS = ("1", "-2.5", "1e3", "2.5E-2", "-3.25e+01", "0.1", "NaN", "INF", "-INF")
_WHOLE_TEXTS = ("1", "-12", "0", "2147483647")


def _read(op_type: str, name: str) -> tuple[str, Draw]:
    """A draw of texts that are numbers."""
    target = np.dtype(TYPES[name])
    x = np.array(_TEXTS if target.kind == "f" else _WHOLE_TEXTS, object)
    to = int(helper.np_dtype_to_tensor_dtype(target))
    made = Draw([x], {"to": to}) if op_type == "Cast" else Draw([x, np.zeros(1, target)])
    return f"texts to {name}", made


def _defined_numbers(source: np.dtype[Any], target: np.dtype[Any]) -> Array:
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
    if target.kind in "fV":
        return np.concatenate([numbers, nans(source)])
    if target.kind in "iu":
        ends = np.iinfo(target)
        wide = numbers.astype(np.longdouble)
        numbers = numbers[(wide > int(ends.min) - 1) & (wide < int(ends.max) + 1)]
    return np.asarray(numbers)
