"""Rotary embedding by itself: ONNX's and onnxruntime's."""

from __future__ import annotations

import functools
from typing import NamedTuple, NoReturn

import numpy as np

from partita.contract.query import Reason
from partita.errors import InputError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.kernel_table import refused_attribute
from partita.lowering.shapes.symbolic_size import integers
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.kernels.attention.new_heads import rotate_row
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import F32, HALVES, INT64, kernel
from partita_cpu.scalar.math import copy_row

_BY_TOKEN, _FROM_FIRST, _TABLE_PER_TOKEN = range(3)
"""Whether each token has a position, or the first one alone, or none: the tables are by token."""

(BATCHES, TOKENS, HEADS, SIZE, HEADS_FIRST, ROTATED, INTERLEAVED, PLACED, PLACES) = range(9)
"""What the table of `rotate_tokens` holds. SIZE: of a head; HEADS_FIRST: whether they come before
the tokens; ROTATED: elements of a head that are rotated; PLACED: how positions are given; PLACES:
of the tables of angles.
"""


class Angles(NamedTuple):
    """Tables of cosines and sines, and positions of the tokens, flat."""

    cosines: KernelArray
    sines: KernelArray
    positions: KernelArray


@loop
def rotate_tokens(
    x: Array, y: Array, angles: Angles, wrong: Array, table: Array, tid: int, nt: int
) -> None:
    """Rotates pairs of elements of each head by the angles of the token's position.

    Args:
        x: (B, S, heads, size), or (B, heads, S, size), flat.
        y: The same, rotated.
        angles: How far.
        wrong: Receives a position that there are no angles for.
        table: As above.
        tid: This thread.
        nt: All threads; they share the tokens.
    """
    count, heads, size = table[TOKENS], table[HEADS], table[SIZE]
    tokens = table[BATCHES] * count
    for token in range(tokens * tid // nt, tokens * (tid + 1) // nt):
        at = token
        if table[PLACED] == _BY_TOKEN:
            at = angles.positions[token]
        elif table[PLACED] == _FROM_FIRST:
            first = angles.positions[0]
            at = first + token % count if 0 <= first < table[PLACES] else first
        if at < 0 or at >= table[PLACES]:
            wrong[0] = at
            raise ValueError("a position is beyond the tables")
        for head in range(heads):
            place = token * heads + head
            if table[HEADS_FIRST]:
                place = (token // count * heads + head) * count + token % count
            row = y[place * size : (place + 1) * size]
            copy_row(x[place * size : (place + 1) * size], row)
            rotate_row(row, angles.cosines, angles.sines, at, table[ROTATED], table[INTERLEAVED])


def _refuse(name: str, *arguments: Array) -> NoReturn:
    *_, wrong, table = arguments
    raise InputError(
        f"Operation '{name}': position {int(wrong[0])} is beyond the tables of cosines and sines, "
        f"which have positions 0 to {int(table[PLACES]) - 1}."
    )


def _rotate(
    b: Builder,
    node: Node,
    x: Operand,
    tables: tuple[Operand, Operand],
    positions: Operand | None,
) -> Operand:
    y = b.empty(x.shape, x.dtype)
    if not x.size:
        return y
    cosines, sines = tables
    part = 2 * cosines.shape[-1]
    heads_first = x.ndim == 4
    heads = x.shape[1] if heads_first else node.attrs.get("num_heads", 0)
    if not heads_first and (node.domain or not heads):
        heads = heads if node.attrs.get("rotary_embedding_dim", 0) else x.shape[2] // part
    size = x.shape[3] if heads_first else x.shape[2] // heads
    placed, places = _TABLE_PER_TOKEN, x.shape[0] * x.shape[2 if heads_first else 1]
    if positions is not None:
        placed = _BY_TOKEN if positions.ndim == 2 else _FROM_FIRST
        places = cosines.shape[0]
    counts = x.shape[0], x.shape[2 if heads_first else 1], heads, size
    flags = int(heads_first), part, int(node.attrs.get("interleaved", 0)), placed, places
    at = b.constant(np.zeros(1, np.int64)) if positions is None else b.flat(positions)
    b.call(
        Checked(rotate_tokens, functools.partial(_refuse, b.node.name)),
        b.flat(x),
        b.flat(y),
        Angles(b.flat(cosines), b.flat(sines), at),
        b.empty((1,), np.int64),
        b.constant(integers([*counts, *flags])),
    )
    return y


@kernel("RotaryEmbedding", dtypes={**dict.fromkeys((0, 1, 2), F32 | HALVES), 3: INT64}, since=23)
@through_float32
def rotary_embedding(
    b: Builder,
    node: Node,
    x: Operand,
    cosines: Operand,
    sines: Operand,
    positions: Operand | None = None,
) -> Operand:
    """ONNX's: without positions the tables have a row for each token."""
    return _rotate(b, node, x, (cosines, sines), positions)


def _check(node: Node) -> Reason | None:
    return refused_attribute(node, {"is_packed_batching": 0, "scale": 1.0})


@kernel(
    "RotaryEmbedding",
    domain="com.microsoft",
    dtypes={**dict.fromkeys((0, 2, 3), F32 | HALVES), 1: INT64},
    check=_check,
)
@through_float32
def rotary_embedding_of_onnxruntime(
    b: Builder, node: Node, x: Operand, positions: Operand, cosines: Operand, sines: Operand
) -> Operand:
    """onnxruntime's: one position stands for the first token's."""
    return _rotate(b, node, x, (cosines, sines), positions)
