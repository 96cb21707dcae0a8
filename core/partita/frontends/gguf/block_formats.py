"""How GGUF stores elements of tensors, and what each block becomes in ONNX's quantised operators.

A quantised row is cut into blocks of 32 or 256 elements that hold their scales themselves. ONNX's
``MatMulNBits`` and ``GatherBlockQuantized`` want the same numbers apart: quants, packed low bits
first; scales; and zero points where these are not the middle of the range. A weight is
``scale * (quant - zero point)``; a block with an offset ``d * q + m`` so has zero point ``-m / d``.

Layouts and formulas: ``ggml-common.h`` and ``ggml-quants.c`` of https://github.com/ggml-org/ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
"""Blocks are arrays of records, of any shape; what they become has dimensions behind these."""

Parts = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One type of tensors.

    Attributes:
        name: As GGUF calls it, e.g. ``"Q4_K"``.
        record: The bytes of a block, as a structured type; of plain numbers the number's type.
        elements: Elements of a block.
    """

    name: str
    record: np.dtype[Any]
    elements: int


@dataclass(frozen=True, slots=True)
class QuantisedFormat(BlockFormat):
    """A type of tensors of quants with scales.

    Attributes:
        bits: Bits of a quant in ONNX's form, 4 or 8.
        scale_block: Elements that share a scale.
        quants: From blocks to quants [..., elements * bits / 8], bytes; of two of four bits the
            first lies in the low half.
        scales: From blocks to float32 scales [..., elements / scale_block].
        zero_points: The same for zero points; ``None`` where all are ``1 << (bits - 1)``.
    """

    bits: int
    scale_block: int
    quants: Parts
    scales: Parts
    zero_points: Parts | None = None


def _paired(qs: Array) -> Array:
    """Bytes of neighbours, from bytes that have the first elements in their low halves."""
    words = np.ascontiguousarray(qs).view("<u2")
    halves = [words & 0x0F0F, words >> 4 & 0x0F0F]
    return np.concatenate([(half | half >> 4).astype(np.uint8) for half in halves], axis=-1)


def _nibbles(qs: Array) -> Array:
    """The low halves of bytes, then the high ones."""
    return np.concatenate([np.bitwise_and(qs, 15), np.right_shift(qs, 4)], axis=-1)


def _joined(low: Array, high: Array) -> Array:
    """Numbers of which one array has the lowest four bits and one those above."""
    return np.asarray(low | high << 4)


def _floats(numbers: Array) -> Array:
    return np.asarray(numbers, np.float32)


# --- 32 elements: one scale, perhaps one offset -------------------------------------------------


def _scale(blocks: Array) -> Array:
    return _floats(blocks["d"])[..., None]


def _q8_0_quants(blocks: Array) -> Array:
    return np.asarray(blocks["qs"] ^ 0x80)  # from -128 to 127 as int8, to 0 to 255


def _q4_0_quants(blocks: Array) -> Array:
    return _paired(blocks["qs"])


def _fifth_bits(blocks: Array) -> Array:
    bits = np.unpackbits(blocks["qh"], axis=-1, bitorder="little")
    return _joined(_nibbles(blocks["qs"]), bits)


def _q5_0_quants(blocks: Array) -> Array:
    return np.add(_fifth_bits(blocks), 128 - 16)


def _offset(blocks: Array) -> tuple[Array, Array]:
    return _scale(blocks), _floats(blocks["m"])[..., None]


# --- 32 elements: four bits that number the entries of a table ----------------------------------

_MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int16)
"""Twice what OCP's E2M1 says without its sign; the fourth bit is that."""

_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16
)


def _from_table(entries: Array) -> Callable[[Array], Array]:
    """Quants of eight bits of blocks whose ``qs`` number entries of a table of whole numbers."""
    levels = (entries + 128).astype(np.uint8)

    def quants(blocks: Array) -> Array:
        return levels[_nibbles(blocks["qs"])]

    return quants


def _power_of_two(blocks: Array) -> Array:
    """The scale that eight bits of exponent say, for entries that are doubled."""
    return np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)[..., None]


def _iq4_xs_quants(blocks: Array) -> Array:
    quants = _iq4_quants(blocks["groups"])
    return quants.reshape(*blocks.shape, 256)


def _iq4_xs_scales(blocks: Array) -> Array:
    """Eight scales of six bits: the low four in bytes for two each, two more in a word for all."""
    low = np.stack([blocks["low"] & 15, blocks["low"] >> 4], axis=-1).reshape(*blocks.shape, 8)
    high = blocks["high"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    return _scale(blocks) * (_floats(low | high << 4) - np.float32(32))


_iq4_quants = _from_table(_IQ4)


# --- 256 elements: scales of scales -------------------------------------------------------------


def _six_bits(packed: Array) -> tuple[Array, Array]:
    """Eight scales and eight offsets of six bits each, from twelve bytes."""
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    offsets = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=-1)
    return scales, offsets


def _k_offset(blocks: Array) -> tuple[Array, Array]:
    scales, offsets = _six_bits(blocks["scales"])
    return _scale(blocks) * scales, -_floats(blocks["dmin"])[..., None] * offsets


def _q4_k_quants(blocks: Array) -> Array:
    return _paired(blocks["qs"].reshape(*blocks.shape, 4, 32)).reshape(*blocks.shape, 128)


def _q5_k_quants(blocks: Array) -> Array:
    bits = np.unpackbits(blocks["qh"][..., None, :], axis=-2, bitorder="little")
    low = _nibbles(blocks["qs"].reshape(*blocks.shape, 4, 32))
    return _joined(low, bits.reshape(low.shape)).reshape(*blocks.shape, 256)


_QUARTERS = np.array([[0], [2], [4], [6]], np.uint8)


def _q6_k_quants(blocks: Array) -> Array:
    """Low halves of 64 bytes, then high ones, twice; two more bits from each quarter of 32."""
    low = _nibbles(blocks["ql"].reshape(*blocks.shape, 2, 64))
    top = blocks["qh"].reshape(*blocks.shape, 2, 1, 32) >> _QUARTERS & 3
    quants = _joined(low, top.reshape(low.shape)).reshape(*blocks.shape, 256)
    return np.add(quants, 128 - 32)


def _q6_k_scales(blocks: Array) -> Array:
    return _scale(blocks) * _floats(blocks["scales"])


# --- blocks with offsets ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _WithOffsets:
    """Parts of blocks ``d * q + m``.

    Where ``d`` is zero all elements are ``m``. Scale ``m``, quants 1 and zero point 0 say that; or,
    where the scale of a larger block is none, this scale and quants 0: scales then stay whole
    numbers times those of larger blocks.

    Attributes:
        parts: From blocks to ``d`` and ``m`` of each group of elements.
        raw: From blocks to ``q``, packed.
        bits: Of ``q``.
    """

    parts: Callable[[Array], tuple[Array, Array]]
    raw: Parts
    bits: int

    def quants(self, blocks: Array) -> Array:
        d, _ = self.parts(blocks)
        found = self.raw(blocks)
        flat = d == 0
        if flat.any():
            one = 0x11 if self.bits == 4 else 1
            levels = np.where(_scale(blocks) == 0, one, 0) + np.zeros(d.shape, np.uint8)
            found.reshape(*d.shape, -1)[flat] = levels[flat][:, None]
        return found

    def scales(self, blocks: Array) -> Array:
        d, m = self.parts(blocks)
        larger = _scale(blocks)
        return np.where(d == 0, np.where(larger == 0, m, larger), d)

    def zero_points(self, blocks: Array) -> Array:
        d, m = self.parts(blocks)
        steps = np.where(d == 0, _scale(blocks), d)
        return np.where(steps == 0, np.float32(0), -m / np.where(steps == 0, np.float32(1), steps))


def _offset_format(
    name: str, record: np.dtype[Any], parts: _WithOffsets, elements: int = 32
) -> BlockFormat:
    return QuantisedFormat(
        name, record, elements, parts.bits, 32, parts.quants, parts.scales, parts.zero_points
    )


def _record(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype([*fields])


def _plain(name: str, kind: str) -> BlockFormat:
    return BlockFormat(name, np.dtype(kind), 1)


_D = ("d", "<f2")
_M = ("m", "<f2")
_DMIN = ("dmin", "<f2")
_Q4_0 = _record(_D, ("qs", "u1", 16))
_Q4_1 = _record(_D, _M, ("qs", "u1", 16))
_Q5_0 = _record(_D, ("qh", "u1", 4), ("qs", "u1", 16))
_Q5_1 = _record(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16))
_Q8_0 = _record(_D, ("qs", "u1", 32))
_Q4_K = _record(_D, _DMIN, ("scales", "u1", 12), ("qs", "u1", 128))
_Q5_K = _record(_D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128))
_MX = _record(("e", "u1"), ("qs", "u1", 16))
_NL = _record(_D, ("qs", "u1", 16))
_GROUP = _record(("qs", "u1", 16))
_XS = np.dtype([_D, ("high", "<u2"), ("low", "u1", 4), ("groups", _GROUP, 8)])
_Q6_K = _record(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D)

BLOCK_FORMATS: dict[int, BlockFormat] = {
    0: _plain("F32", "<f4"),
    1: _plain("F16", "<f2"),
    2: QuantisedFormat("Q4_0", _Q4_0, 32, 4, 32, _q4_0_quants, _scale),
    3: _offset_format("Q4_1", _Q4_1, _WithOffsets(_offset, _q4_0_quants, 4)),
    6: QuantisedFormat("Q5_0", _Q5_0, 32, 8, 32, _q5_0_quants, _scale),
    7: _offset_format("Q5_1", _Q5_1, _WithOffsets(_offset, _fifth_bits, 8)),
    8: QuantisedFormat("Q8_0", _Q8_0, 32, 8, 32, _q8_0_quants, _scale),
    12: _offset_format("Q4_K", _Q4_K, _WithOffsets(_k_offset, _q4_k_quants, 4), 256),
    13: _offset_format("Q5_K", _Q5_K, _WithOffsets(_k_offset, _q5_k_quants, 8), 256),
    14: QuantisedFormat("Q6_K", _Q6_K, 256, 8, 16, _q6_k_quants, _q6_k_scales),
    20: QuantisedFormat("IQ4_NL", _NL, 32, 8, 32, _iq4_quants, _scale),
    23: QuantisedFormat("IQ4_XS", _XS, 256, 8, 32, _iq4_xs_quants, _iq4_xs_scales),
    30: _plain("BF16", "<u2"),
    39: QuantisedFormat(
        "MXFP4",
        _MX,
        32,
        8,
        32,
        _from_table(np.concatenate([_MXFP4, -_MXFP4])),
        _power_of_two,
    ),
}
"""The types that are read, by their numbers in the file."""

_OTHER_NAMES: dict[int, str] = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
"""Types that files of models have, but are not read."""


def type_name(number: int) -> str:
    """What GGUF calls a type of tensors that is not read."""
    return _OTHER_NAMES.get(number, f"number {number}")
