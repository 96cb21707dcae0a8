"""The weights of experts in one buffer, one expert behind another, as products read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Operand
from partita.lowering.shapes.mixture_inputs import Source, nibbles
from partita_opencl.emitters.gemm.block_weights import BlockForm, BlockWeights
from partita_opencl.launches.emitter_kit import Kit, is_half


class Matrices(NamedTuple):
    """The weights of one product, of all experts.

    Attributes:
        form: Of an expert's: columns, terms, and bits of a block; those of floats are as wide as
            the elements of what they are multiplied by.
        w: The numbers, of each column its bytes, or its floats.
        scales: Floats, (columns, blocks) of an expert, or one for a column; ``None`` for floats.
        zeros: Likewise: floats, or numbers of as many bits as weights in bytes; ``None`` for half
            of the range. With one scale for a column, an expert's are one row.
        bias: A number for each column, or ``None``.
    """

    form: BlockForm
    w: Source
    scales: Source | None = None
    zeros: Source | None = None
    bias: Source | None = None

    @property
    def like(self) -> tuple[object, ...]:
        """What two have alike whose columns can take turns."""
        return self.form, self.zeros is None, self.bias is None


class ExpertWeights(NamedTuple):
    """The weights of one product on the device, or of two whose columns take turns.

    Attributes:
        weights: Of all experts; the form is that of one.
        bias: (experts, columns), or ``None``.
        experts: How many there are.
    """

    weights: BlockWeights
    bias: Operand | None
    experts: int


def on_device(
    k: Kit, parts: Sequence[Matrices], experts: int, dtype: np.dtype[np.generic]
) -> ExpertWeights:
    """Brings weights to the order in which kernels read them, once.

    Args:
        k: The kit.
        parts: One product, or two that are alike, whose columns take turns.
        experts: How many there are.
        dtype: Type of what is multiplied, and of floats on the device.
    """
    form = replace(parts[0].form, columns=parts[0].form.columns * len(parts))
    pack = _Packing(k, parts, experts, form)
    bias = None
    if parts[0].bias is not None:
        sources = [part.bias for part in parts]
        bias = pack.made("bias", sources, lambda rows: rows[:, None], 1, dtype)
    if form.bits >= 16:
        length = form.column_bytes // dtype.itemsize
        words = pack.made("floats", [part.w for part in parts], lambda rows: rows, length, dtype)
        return ExpertWeights(BlockWeights(form, words, words, None), bias, experts)
    raw = np.dtype(np.uint8)
    data = pack.made("numbers", [part.w for part in parts], _flat, form.column_bytes, raw)
    single = np.dtype(np.float32)
    by_column = parts[0].scales is not None and _by_column(parts[0].scales)

    def spread(rows: Array) -> Array:
        return np.broadcast_to(_flat(rows), (len(rows), form.blocks))

    scales = pack.made("scales", [part.scales for part in parts], spread, form.blocks, single)
    zeros = None
    if parts[0].zeros is not None:
        sources = [part.zeros for part in parts]
        read = spread if by_column else _points(form)
        if by_column:
            sources = [_unpacked(k, source, form) for source in sources]
        zeros = pack.made("zeros", sources, read, form.blocks, single)
    together = replace(form, columns=form.columns * experts)
    packed = BlockWeights.pack(k, together, data, scales, zeros)
    return ExpertWeights(replace(packed, form=form), bias, experts)


class _Packing(NamedTuple):
    """What all that is packed of some products has in common."""

    k: Kit
    parts: Sequence[Matrices]
    experts: int
    form: BlockForm

    def made(
        self,
        name: str,
        sources: Sequence[Source | None],
        read: Callable[[Array], Array],
        length: int,
        dtype: np.dtype[np.generic],
    ) -> Operand:
        """Numbers of all columns, (columns of all experts, length), filled up by zeros."""
        given = [source for source in sources if source is not None]
        columns = self.form.columns // len(given)
        shape = self.experts, columns, len(given), length

        def pack(_: Array) -> Array:
            out = np.zeros(shape, self.k.tuning.stored_type if is_half(dtype) else dtype)
            for place, source in enumerate(given):
                for expert, rows in enumerate(source.arrays(columns, self.k.value)):
                    found = self.k.numbers(read(rows))
                    out[expert, :, place, : found.shape[1]] = found
            return out.view(dtype).reshape(self.experts * self.form.columns, length)

        rows = [value for source in given for value in (source.first, source.step)]
        key = ("experts", name, self.k.builder.node.name, *rows)
        return self.k.builder.prepack(given[0].operands[0], key, pack, anywhere=True)


def _by_column(scales: Source) -> bool:
    return scales.stacked and scales.operands[0].ndim == 2


def _flat(rows: Array) -> Array:
    """What there is of each column, one behind another."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _points(form: BlockForm) -> Callable[[Array], Array]:
    """What makes numbers of the zero points of columns with a scale for each block."""

    def read(rows: Array) -> Array:
        flat = _flat(rows)
        return nibbles(flat)[:, : form.blocks] if _is_packed(rows, form) else flat

    return read


def _unpacked(k: Kit, source: Source | None, form: BlockForm) -> Source | None:
    """Zero points of which an expert's are one row of numbers."""
    if source is None or not _is_packed(k.value(source.operands[0]), form):
        return source
    return source._replace(operands=(k.constant(nibbles(k.value(source.operands[0]))),))


def _is_packed(array: Array, form: BlockForm) -> bool:
    return array.dtype == np.uint8 and form.bits == 4
