"""Draws of quantization at its edges: quotients that are ties, zero points at either end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from partita_conformance.draws.casts import EIGHTS
from partita_conformance.draws.draw import Array, Draw
from partita_conformance.draws.vary import TYPES

_SCALE = 0.25
"""By which quotients of what is drawn are exact, in half precision too."""
_WHOLE = (-64, 64)
_BEYOND = (-128.0, -129.0, 127.0, 255.0, 256.0, -300.0, 1000.0, -4e4, 6e4)
"""Numbers at the ends of the narrow types, and beyond them."""
_OF_EIGHT_BITS, _NARROW = 17, 21
"""The opset that has quantization to bytes, and that to all other integers."""


def quantized(op_type: str, element: str) -> list[tuple[str, Draw]]:
    """Draws of QuantizeLinear and DequantizeLinear of an element type; none of other operators."""
    if op_type == "QuantizeLinear" and element in ("float", "float16", "bfloat16"):
        return _ties(element)
    if op_type == "DequantizeLinear" and element in ("int8", "uint8", "int16", "uint16"):
        return _codes(element)
    return []


def _ties(element: str) -> list[tuple[str, Draw]]:
    """Draws of each type of results: half of the quotients are ties, beside an odd zero point."""
    dtype = TYPES[element]
    quotients = np.concatenate([np.arange(*_WHOLE, 0.5), _BEYOND])
    x = np.asarray(quotients * _SCALE, dtype)
    scale = np.array(_SCALE, dtype)
    rows = np.array([_SCALE, 2 * _SCALE, _SCALE / 2], dtype)
    drawn = []
    for kind in (np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4):
        opset = _OF_EIGHT_BITS if kind in (np.uint8, np.int8) and element == "float" else _NARROW
        name = np.dtype(kind).name
        zeros = np.array([3, 0, 1], kind)
        drawn.append((f"ties of {name}", Draw([x, scale, zeros[0]], {}, [1, 2], opset=opset)))
        many = Draw([np.tile(x, (3, 1)), rows, zeros], {"axis": 0}, [1, 2], opset=opset)
        drawn.append((f"ties of rows of {name}", many))
    drawn.append(("ties beside no zero point", Draw([x, scale], {}, [1], opset=_NARROW)))
    return drawn


def _codes(element: str) -> list[tuple[str, Draw]]:
    """Draws of the numbers of a type, all if they are few, beside zero points at either end.

    Those of the type of the same sign of four bits, and floats of eight, are among those of bytes.
    """
    opset = _OF_EIGHT_BITS if element in ("int8", "uint8") else _NARROW
    drawn = [(element, x, zero, opset) for x, zero in _beside_ends(np.dtype(TYPES[element]))]
    if opset == _OF_EIGHT_BITS:
        half = np.dtype(ml_dtypes.int4 if element == "int8" else ml_dtypes.uint4)
        drawn += [(half.name, x, zero, _NARROW) for x, zero in _beside_ends(half)]
    scale = np.array(_SCALE, np.float32)
    made = [
        (f"{name} beside {zero}", Draw([x, scale, zero], {}, [1, 2], opset=number))
        for name, x, zero, number in drawn
    ]
    if element == "uint8":
        codes = np.arange(256, dtype=np.uint8)
        for kind in EIGHTS:
            one = Draw([codes.view(kind), scale], {}, [1], opset=_NARROW)
            made.append((np.dtype(kind).name, one))
    return made


def _beside_ends(dtype: np.dtype[np.generic]) -> list[tuple[Array, Array]]:
    """Numbers of a type, with each of the zero points at its ends and one between."""
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes
    step = max(1, (int(info.max) - int(info.min)) // 255)
    x = np.append(np.arange(int(info.min), int(info.max), step), int(info.max)).astype(dtype)
    return [(x, np.array(zero).astype(dtype)) for zero in (int(info.min), 5, int(info.max))]
