"""Constant weights of a few bits in blocks that share a scale, as kernels take them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from partita.lowering import Array, Node, Operand
from partita_opencl.emitters.gemm.tiled_weights import TILE, WORD_BYTES, in_tiles
from partita_opencl.launches.emitter_kit import Argument, Kit, i32

UNIT_BYTES = 16
"""Weights that an item reads at a time."""


@dataclass(frozen=True)
class BlockForm:
    """How the weights of a product are written.

    Attributes:
        columns: Columns of the product.
        depth: Length of its sums.
        bits: Of an element: 4 or 8, or 16 or 32, which are halves or floats without scales.
        block: Elements that share a scale.
    """

    columns: int
    depth: int
    bits: int
    block: int

    @classmethod
    def of(cls, node: Node) -> BlockForm:
        """From the attributes of MatMulNBits."""
        columns, depth = int(node.attrs["N"]), int(node.attrs["K"])
        return cls(columns, depth, int(node.attrs.get("bits", 4)), int(node.attrs["block_size"]))

    @classmethod
    def of_floats(cls, columns: int, depth: int, itemsize: int) -> BlockForm:
        """Of floats of so many bytes, 2 or 4; a block is a unit."""
        return cls(columns, depth, 8 * itemsize, UNIT_BYTES // itemsize)

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return math.ceil(self.depth / self.block)

    @property
    def column_bytes(self) -> int:
        """Bytes of a column in the model."""
        return self.blocks * self.block * self.bits // 8

    @property
    def elements(self) -> int:
        """Elements of a unit."""
        return 8 * UNIT_BYTES // self.bits

    @property
    def units(self) -> int:
        """Units of a column."""
        return math.ceil(self.column_bytes / UNIT_BYTES)

    @property
    def parts(self) -> int:
        """Scales of a unit."""
        return max(1, self.elements // self.block)

    @property
    def zero(self) -> int:
        """What zero is written as where the model does not say."""
        return 0 if self.bits >= 16 else 1 << (self.bits - 1)


@dataclass(frozen=True)
class BlockWeights:
    """Weights on the device.

    Attributes:
        form: How they are written.
        words: (columns, units, 16) bytes.
        scales: A scale per column and block: float32, or bits of float16 where these are the same;
            of halves, any buffer.
        offsets: What is taken off beside the scaled number, alike; ``None`` if ``form.zero`` is
            zero everywhere.
        tiled: Whether all these lie in tiles instead, in one buffer; see ``tiled_weights.py``.
    """

    form: BlockForm
    words: Operand
    scales: Operand
    offsets: Operand | None
    tiled: bool = False

    @classmethod
    def pack(
        cls, k: Kit, form: BlockForm, data: Operand, scales: Operand, zeros: Operand | None
    ) -> BlockWeights:
        """Constants of MatMulNBits, unchanged where that is possible.

        Args:
            k: The kit.
            form: How they are written; sizes must fit it.
            data: The numbers.
            scales: A scale for each block.
            zeros: Numbers in as many bits as elements have, each column from a byte of its own, or
                floats.
        """
        if form.column_bytes % UNIT_BYTES:
            data = k.builder.prepack(data, ("units", form.units), _filled(form))
        halves = not k.tuning.bfloat
        packed = k.builder.prepack(scales, ("scales", halves), lambda a: _compact(a, halves))
        offsets = None
        if zeros is not None:
            offsets = k.builder.prepack(
                zeros, ("offsets", halves), lambda a: _offsets(form, a, k.value(scales), halves)
            )
        return cls(form, data, packed, offsets)

    @classmethod
    def in_tiles(
        cls,
        k: Kit,
        form: BlockForm,
        key: str,
        first: Operand,
        arrays: Callable[[Array], tuple[Array, Array, Array | None]],
        *,
        has_zeros: bool,
    ) -> BlockWeights:
        """Constants of MatMulNBits in tiles.

        Args:
            k: The kit.
            form: How they are written.
            key: Tells them from others that begin with the same constant.
            first: The constant, or the first of several, that holds numbers.
            arrays: Makes of its elements the numbers, scales and zeros of all columns.
            has_zeros: Whether there are zeros.
        """

        def pack(elements: Array) -> Array:
            data, factors, zeros = arrays(elements)
            scales = _compact(factors, halves=True)
            offsets = None
            if zeros is not None:
                offsets = _offsets(form, zeros, factors, halves=True)
                if offsets.dtype != scales.dtype:
                    scales = factors.reshape(-1).astype(np.float32)
                    offsets = _offsets(form, zeros, factors, halves=False)
                offsets = offsets.reshape(form.columns, form.blocks)
            blocks = data.reshape(form.columns, form.blocks, -1)
            return in_tiles(form.depth, blocks, scales.reshape(form.columns, -1), offsets)

        words = k.builder.prepack(first, ("tiles", key), pack)
        return cls(form, words, words, words if has_zeros else None, tiled=True)

    def buffers(self) -> tuple[Argument, ...]:
        """The kernels' ``w, scales, offsets``."""
        return self.words, self.scales, self.offsets or self.scales

    def sizes(self) -> tuple[Argument, ...]:
        """The kernels' ``columns, depth, units, blocks``."""
        form = self.form
        return i32(form.columns), i32(form.depth), i32(form.units), i32(form.blocks)

    def options(self) -> dict[str, str | int | None]:
        """The kernels' macros."""
        found: dict[str, str | int | None] = {"BITS": self.form.bits, "BLOCK": self.form.block}
        if self.tiled:
            count = 8 if self.offsets is not None else 4
            nbytes = (self.words.shape[-1] - WORD_BYTES) // (TILE // 2)
            kind = "half" if nbytes == 2 * count else "float"
            other = {"ZERO": self.form.zero} if self.offsets is None else {"OFFSETS": kind}
            return {**found, "SCALES": kind, "TILED": None, **other}
        found["SCALES"] = _ctype(self.scales)
        if self.offsets is None:
            return {**found, "ZERO": self.form.zero}
        return {**found, "OFFSETS": _ctype(self.offsets)}


def unpacked(k: Kit, weights: BlockWeights, like: Operand, *, columns_first: bool) -> Operand:
    """Records the weights in the type of ``like``, (depth, columns) or its transpose.

    Columns may be first where their depth is a multiple of 4.
    """
    form = weights.form
    if columns_first:
        shape, flags = (form.columns, form.depth), {"COLUMNS_FIRST": None}
        sizes = k.tuning.grid(form.units * 4, form.columns)
    else:
        shape, flags = (form.depth, form.columns), {}
        sizes = k.tuning.flat(form.columns * form.units)
    y = k.empty(shape, like.dtype)
    k.launch(
        "block_unpack.cl",
        "block_unpack",
        sizes,
        *weights.buffers(),
        y,
        *weights.sizes(),
        **weights.options(),
        **flags,
    )
    return y


def _ctype(x: Operand) -> str:
    return "half" if x.dtype == np.uint16 else "float"


def _filled(form: BlockForm) -> Callable[[Array], Array]:
    """What fills the columns up to whole units."""

    def fill(array: Array) -> Array:
        columns = array.reshape(form.columns, form.column_bytes)
        return np.pad(columns, ((0, 0), (0, form.units * UNIT_BYTES - form.column_bytes)))

    return fill


def _compact(array: Array, halves: bool) -> Array:
    """Numbers as the bits of float16 where none changes, else as float32."""
    numbers = array.reshape(-1).astype(np.float32)
    return _as_halves(numbers, 0.0) if halves else numbers


def _as_halves(numbers: Array, tolerance: float) -> Array:
    """The bits of float16, or the numbers themselves where that would change them by more."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float16)
    near = np.abs(rounded.astype(np.float32) - numbers) <= tolerance * np.abs(numbers)
    return rounded.view(np.uint16) if np.isfinite(numbers).all() and near.all() else numbers


def _offsets(form: BlockForm, zeros: Array, scales: Array, halves: bool) -> Array:
    """Scale times zero of each block; rounded as the product of two float32 is."""
    if zeros.dtype == np.uint8:
        packed = zeros.reshape(form.columns, -1)
        if form.bits == 4:
            packed = np.stack([packed & 15, packed >> 4], -1).reshape(form.columns, -1)
        zeros = packed[:, : form.blocks]
    factors = scales.reshape(form.columns, form.blocks).astype(np.float64)
    numbers = zeros.reshape(factors.shape).astype(np.float64) * factors
    flat: Array = numbers.reshape(-1).astype(np.float32)
    return _as_halves(flat, float(np.finfo(np.float32).eps)) if halves else flat
