"""Conversions between element types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Array, Builder, Node, Operand
from partita.tensors.narrowing import LONG, rounded_to_odd
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.kernels.elementwise.broadcast_loops import emit_map, mapped
from partita_cpu.kernels.half import FLOAT32, narrow, widen
from partita_cpu.kernels.operator_table import ANY, HALVES, DTypes, kernel
from partita_cpu.scalar.instructions import bits

NARROW: DTypes = frozenset(
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float4_e2m1fn",
        "int4",
        "uint4",
        "int2",
        "uint2",
    )
)
"""Types for storage: converted by ml_dtypes, one element at a time."""


@register_jitable
def same(x: Any) -> Any:
    """Returns x; the assignment converts it."""
    return x


@register_jitable
def nonzero(x: Any) -> Any:
    """True for everything but zero."""
    return x != 0


@register_jitable
def to_odd(x: Any) -> Any:
    """A double as float32; what that does not hold as its neighbour whose last bit is 1.

    It rounds to half precision as the double does: see :func:`rounded_to_odd`, which does the same.
    """
    near = np.float32(x)
    pattern = bits(near)
    if np.float64(near) == x or x != x or pattern & 1:
        return near
    step = -1 if abs(np.float64(near)) > abs(x) else 1
    return bits(np.int32(pattern + step))


@register_jitable
def integer_to_odd(x: Any) -> Any:
    """The same of an integer, of whose 64 bits a double holds 53."""
    if -(2**53) < x < 2**53:
        return to_odd(np.float64(x))
    rest = np.int64((x & 2047) != 0)
    return to_odd(np.float64(((x >> 11) | rest) << 11))


@register_jitable
def unsigned_to_odd(x: Any) -> Any:
    """The same of one without a sign."""
    if x < np.uint64(2**53):
        return to_odd(np.float64(x))
    rest = np.uint64((x & np.uint64(2047)) != np.uint64(0))
    return to_odd(np.float64(((x >> np.uint64(11)) | rest) << np.uint64(11)))


_same, _nonzero = mapped(same), mapped(nonzero)
_to_odd, _integer_to_odd = mapped(to_odd), mapped(integer_to_odd)
_unsigned_to_odd = mapped(unsigned_to_odd)
_TO_ODD = {"f": _to_odd, "i": _integer_to_odd, "u": _unsigned_to_odd}
_through_int32, _through_int64 = mapped(np.int32), mapped(np.int64)
"""Towards zero; what fits in 32 or 64 bits wraps when it is narrowed."""


def emit_cast(b: Builder, x: Operand, dtype: Any, saturate: bool = True) -> Operand:
    """``x`` as ``dtype``; ``x`` itself where it is that already.

    Floats become integers towards zero; out of range the result is arbitrary, as in C.
    ``saturate`` clamps to the range of an 8-bit float instead of overflowing.

    Args:
        b: Records it.
        x: What is converted.
        dtype: Element type of the result.
        saturate: Whether what is too large for an 8-bit float becomes its largest number; it
            overflows otherwise.
    """
    kind = np.dtype(dtype)
    if x.dtype == kind:
        return x
    if kind in NARROW or x.dtype in NARROW:
        y = b.empty(x.shape, kind)
        b.call_numpy(convert, x, y, saturate)
        return y
    if x.dtype in HALVES:
        x = widen(b, x)
    if kind in HALVES and x.dtype in LONG:
        return narrow(b, emit_map(b, _TO_ODD[x.dtype.kind], x, FLOAT32), kind)
    if kind in HALVES:
        return narrow(b, emit_cast(b, x, np.float32), kind)
    if x.dtype == kind:
        return x
    return emit_map(b, _converter(x.dtype, kind), x, kind)


def _converter(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    if target.kind == "b":
        return _nonzero
    if source.kind == "f" and target.kind in "iu":
        # A conversion straight to a small type is undefined out of range; this one wraps.
        if target.itemsize < 4:
            return _through_int32
        if target == np.uint32:
            return _through_int64
    return _same


def convert(x: Array, y: Array, saturate: bool) -> None:
    """Converts from or to a storage type."""
    if y.dtype.kind == "b":
        np.not_equal(x.astype(np.float32), 0, out=y)
        return
    source = x
    if x.dtype in NARROW and y.dtype in NARROW:
        source = x.astype(np.float32)
    if x.dtype in LONG and "float" in y.dtype.name:
        source = rounded_to_odd(x)
    if saturate and y.dtype in NARROW and "float8" in y.dtype.name:
        limit = float(ml_dtypes.finfo(y.dtype).max)  # type: ignore[no-untyped-call]  # has no types
        source = np.clip(source.astype(np.float32), -limit, limit)
    with np.errstate(all="ignore"):
        y[...] = source.astype(y.dtype)


def _castable(node: Node) -> Reason | None:
    result = node.outputs[0]
    if result is not None and result.dtype is not None and result.dtype not in ANY | NARROW:
        return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"casts to {result.dtype}")
    return None


@kernel("Cast", dtypes=ANY | NARROW, check=_castable)
def cast(b: Builder, node: Node, x: Operand) -> Operand:
    """Conversion to the type ``to``."""
    return emit_cast(b, x, onnx_dtype(node.attrs["to"]), bool(node.attrs.get("saturate", 1)))


@kernel("CastLike", dtypes=ANY | NARROW, check=_castable)
def cast_like(b: Builder, node: Node, x: Operand, like: Operand) -> Operand:
    """Conversion to the type of the second input."""
    return emit_cast(b, x, like.dtype, bool(node.attrs.get("saturate", 1)))


def _same_width(node: Node) -> Reason | None:
    target, x = onnx_dtype(node.attrs["to"]), node.input(0)
    if x is None or x.dtype is None or x.dtype.itemsize != target.itemsize:
        have = "unknown" if x is None else x.dtype
        return Reason(
            ReasonCode.UNSUPPORTED_DTYPE, f"reads {have} as {target}; takes types of equal size"
        )
    if target not in ANY:
        return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"reads as {target}")
    return None


def copy_bits(x: Array, y: Array) -> None:
    """``y`` has the bits of ``x``; truths keep them too, as ONNX asks for."""
    bits = np.dtype(f"u{x.dtype.itemsize}")
    y.view(bits)[...] = x.view(bits)


@kernel("BitCast", dtypes=ANY, check=_same_width)
def bit_cast(b: Builder, node: Node, x: Operand) -> Operand:
    """The same bits as the type ``to``."""
    y = b.empty(x.shape, onnx_dtype(node.attrs["to"]))
    if y.size:
        b.call_numpy(copy_bits, x, y)
    return y


def onnx_dtype(number: int) -> np.dtype[Any]:
    """The element type that an ONNX attribute names by its number."""
    import onnx

    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number))
