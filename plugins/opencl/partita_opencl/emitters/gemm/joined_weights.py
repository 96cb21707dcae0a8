"""Weights of one product or of several side by side, in the order in which a device reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Form, Node, Operand
from partita.system.memory_map import give_back
from partita_opencl.emitters.gemm.block_tiles import are_tiled
from partita_opencl.emitters.gemm.block_weights import BlockForm, BlockWeights
from partita_opencl.emitters.gemm.stream import (
    Stream,
    form_of_filters,
    packed_filters,
)
from partita_opencl.launches.emitter_kit import Kit


def require_sizes(
    node: Node,
    form: BlockForm,
    a: Operand,
    data: Operand,
    scales: Operand,
    zeros: Operand | None,
    bias: Operand | None,
) -> None:
    """Checks that tensors of a product by weights in blocks are as large as its attributes say.

    Args:
        node: The operation, for messages.
        form: The sizes by its attributes.
        a: The left side (..., K).
        data: Packed weights.
        scales: One per block.
        zeros: Zero points, packed or one per block, if there are any.
        bias: One per column, if there is one.

    Raises:
        OperandError: One is not.
    """
    count = form.columns * form.blocks
    bytes_of_zeros = form.columns * math.ceil(form.blocks * form.bits / 8)
    wrong = ""
    if not a.shape or a.shape[-1] != form.depth:
        wrong = f"input of shape {list(a.shape)} for K {form.depth}"
    elif data.nbytes != form.columns * form.column_bytes:
        wrong = f"weights of shape {list(data.shape)} and type {data.dtype}"
    elif scales.size != count:
        wrong = f"{scales.size} scales for {count} blocks"
    elif zeros is not None and zeros.size != (bytes_of_zeros if zeros.dtype.kind == "u" else count):
        wrong = f"{zeros.size} zero points of type {zeros.dtype} for {count} blocks"
    elif bias is not None and bias.size != form.columns:
        wrong = f"a bias of {bias.size} elements for N {form.columns}"
    if wrong:
        raise OperandError(f"Operation '{node.name}' ({node.model_kind}) has {wrong}.")


def joined_blocks(
    k: Kit, node: Node, x: Operand, by_input: Sequence[Sequence[Operand | None]], *, gated: bool
) -> BlockWeights:
    """The weights of products in blocks as those of one."""
    columns = node.attrs["N"]
    for count, data, scales, zeros, bias in zip(columns, *by_input, strict=True):
        if data is None or scales is None:
            raise TypeError("products of blocks have weights and scales")
        part = BlockForm.of(node.like(attrs={"N": count}))
        require_sizes(node, part, x, data, scales, zeros, bias)
    form = BlockForm.of(node.like(attrs={"N": sum(columns)}))
    return weights_of(k, node, x, form, by_input, gated=gated)


def weights_of(
    k: Kit,
    node: Node,
    x: Operand,
    form: BlockForm,
    by_input: Sequence[Sequence[Operand | None]],
    *,
    gated: bool = False,
) -> BlockWeights:
    """The weights of one product, or of several as those of one, as this device reads them.

    Args:
        k: The kit.
        node: Whose weights they are.
        x: The rows that they are multiplied by.
        form: How all of them are written.
        by_input: Numbers, scales and zeros, of each product.
        gated: Whether columns of two products take turns.
    """
    if not are_tiled(k.tuning, form, x.dtype):
        data, scales, zeros = (
            joined(k, node, name, parts, gated=gated)
            for name, parts in zip(("data", "scales", "zeros"), by_input, strict=False)
        )
        if data is None or scales is None:
            raise TypeError("products of blocks have weights and scales")
        return BlockWeights.pack(k, form, data, scales, zeros)
    data, *others = by_input[0]
    if data is None:
        raise TypeError("products of blocks have weights")
    has_zeros = by_input[2][0] is not None

    def arrays(first: Array) -> tuple[Array, Array, Array | None]:
        given = [[k.value(part) for part in parts if part is not None] for parts in by_input[1:3]]
        numbers = [first, *(k.value(other) for other in others if other is not None)]
        data, scales, *zeros = [
            _joined(node, parts, gated=gated) for parts in (numbers, *given) if parts
        ]
        return data, scales, zeros[0] if has_zeros else None

    return BlockWeights.in_tiles(k, form, node.name, data, arrays, has_zeros=has_zeros)


def joined_halves(
    k: Kit, node: Node, x: Operand, by_input: Sequence[Sequence[Operand | None]], *, gated: bool
) -> BlockWeights:
    """Weights (depth, columns) of products as those of one, as matrix units take them."""
    form = BlockForm.of_floats(sum(node.attrs["N"]), int(node.attrs["K"]), 2)
    matrices = [matrix for matrix in by_input[0] if matrix is not None]
    if x.shape[-1:] != (form.depth,):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has an input of shape {list(x.shape)} "
            f"for weights of {form.depth} rows."
        )
    stream = stream_of(form, 1)

    def pack(array: Array) -> Array:
        arrays = array, *(k.value(other) for other in matrices[1:])
        return packed_filters(k, stream, *(each.T for each in arrays), gated=gated)

    key, packed = ("halves", node.name), form_of_filters(stream)
    words = k.builder.prepack(matrices[0], key, pack, anywhere=True, form=packed)
    return BlockWeights(form, words, words, None)


def stream_of(form: BlockForm, rows: int) -> Stream:
    """A product as matrix units take it."""
    return Stream(
        images=1,
        image=(rows, 1),
        pitch=form.depth,
        channels=form.depth,
        filters=form.columns,
        out=(rows, 1),
    )


def joined(
    k: Kit, node: Node, name: str, parts: Sequence[Operand | None], *, gated: bool
) -> Operand | None:
    """Constants of products one behind another; those of two that are gated take turns.

    They are joined when someone asks for the elements, and not kept: scales and zeros never get to
    the device as they are here.
    """
    given = [part for part in parts if part is not None]
    if len(given) < 2:
        return given[0] if given else None
    others = [k.builder.value(part, anywhere=True) for part in given[1:]]
    form = Form(np.result_type(*(part.dtype for part in given)), (sum(p.size for p in given),))

    def join(array: Array) -> Array:
        return _joined(node, [array, *others], gated=gated)

    return k.builder.prepack(given[0], ("joined", name, node.name), join, anywhere=True, form=form)


def _joined(node: Node, arrays: Sequence[Array], *, gated: bool) -> Array:
    """What products have of each column, one product's behind another's, or in turns."""
    if len(arrays) == 1:
        return arrays[0]
    rows = [a.reshape(count, -1) for a, count in zip(arrays, node.attrs["N"], strict=True)]
    together: Array = np.stack(rows, 1) if gated else np.concatenate(rows)
    for array in arrays:
        give_back(array)
    return together.reshape(-1)
