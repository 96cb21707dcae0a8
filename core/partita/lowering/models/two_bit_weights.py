"""Widens block-quantized weights of 2 bits to the 4 that kernels unpack.

Levels and zero points of weights that are constants are stored in 4 bits: twice the memory, and the
same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering.graph import Graph, Node, Value

Array = np.ndarray[Any, Any]

_KIND = "com.microsoft::MatMulNBits"

_BYTES = np.arange(256, dtype=np.uint16)

_FOUR_NUMBERS = sum((((_BYTES >> 2 * n) & 3) << 4 * n for n in range(4)), np.uint16(0)).astype(
    "<u2"
)
"""For each byte, its four numbers as two bytes, the first in the lowest bits."""

_MIDDLES = np.uint16(0x6666)
"""What moves four numbers from around 2, which is half of two bits' range, to around 8."""


def widen_two_bits(graph: Graph, for_query: bool = False) -> None:
    """Gives products whose weights are constants of two bits such of four; bodies included.

    A product whose weights only the run knows, or whose sizes do not fit, stays as it is.

    Args:
        graph: Changed in place.
        for_query: Zeros, of one element's memory, stand for what is made.
    """
    made: dict[tuple[Value, bool], Value] = {}
    for node in graph.all_nodes():
        if node.kind == _KIND and node.attrs.get("bits", 4) == 2 and _fits(node):
            _widen(node, made, for_query)


def _fits(node: Node) -> bool:
    """Whether weights and zero points are constants of the sizes that attributes say."""
    terms, columns, size = (node.attrs.get(name, 0) for name in ("K", "N", "block_size"))
    w, zeros = node.input(1), node.input(3)
    if min(terms, columns, size) < 1 or w is None or w.const is None or w.const.dtype != np.uint8:
        return False
    blocks = -(-terms // size)
    if w.const.size not in (0, columns * blocks * (size // 4)):
        return False
    if zeros is None or (zeros.dtype is not None and zeros.dtype != np.uint8):
        return True
    return zeros.const is not None and zeros.const.size == columns * -(-blocks // 4)


def _widen(node: Node, made: dict[tuple[Value, bool], Value], for_query: bool) -> None:
    w, zeros = node.inputs[1], node.input(3)
    node.attrs["bits"] = 4
    if w is None or w.const is None:
        return
    if w.const.size:
        key = w, zeros is None
        if key not in made:
            offset = _MIDDLES if zeros is None else np.uint16(0)
            shape = (*w.const.shape[:-1], 2 * w.const.shape[-1])
            made[key] = _constant(w, shape, None if for_query else _wide(w.const, offset))
        node.inputs[1] = made[key]
    if zeros is not None and zeros.const is not None and zeros.const.dtype == np.uint8:
        columns = node.attrs["N"]
        blocks = -(-node.attrs["K"] // node.attrs["block_size"])
        rows = _wide(zeros.const.reshape(columns, -1), np.uint16(0))[:, : -(-blocks // 2)]
        node.inputs[3] = _constant(zeros, (rows.size,), np.ascontiguousarray(rows))


def _wide(numbers: Array, offset: np.uint16) -> Array:
    """Numbers of two bits in bytes as numbers of four; the last axis is twice as long."""
    return np.ascontiguousarray((_FOUR_NUMBERS + offset).astype("<u2")[numbers]).view(np.uint8)


def _constant(old: Value, shape: tuple[int, ...], array: Array | None) -> Value:
    if array is None:
        array = np.broadcast_to(np.zeros((), np.uint8), shape)
    return Value.constant(array.reshape(shape), old.name)
