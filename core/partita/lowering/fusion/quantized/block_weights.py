"""Products with constant weights that are dequantized in front of them become MatMulNBits.

Weights of 4 or 8 bits stay so: as floats they would take four to eight times the memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.lowering.fusion.quantized.levels import known_floats
from partita.lowering.fusion.rewriting import Rewriter, origins, other_input
from partita.lowering.geometry.axes import axis_of
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array

_TYPES = {"int4": (4, 8), "uint4": (4, 0), "int8": (8, 128), "uint8": (8, 0)}
"""Type of levels: bits, and what makes them unsigned."""

_SHORTEST, _LONGEST = 16, 128
"""Terms of a block where one scale is for a whole column."""

_Found = dict[tuple[Node, bool, np.dtype[np.generic]], "_Packed | None"]


class _Weights(NamedTuple):
    """Constants of which a graph makes a matrix ``(level - zero) * scale``.

    Attributes:
        levels: (rows, columns) as the graph has them, of a type of `_TYPES`.
        scales: Of the same two axes; along each as many as levels or blocks, or one.
        zeros: As many as scales, of the type of levels; ``None`` for 0.
        size: Of a block; 0 where there are none.
    """

    levels: Array
    scales: Array
    zeros: Array | None
    size: int

    def turned(self) -> _Weights:
        """The transposed matrix."""
        zeros = None if self.zeros is None else self.zeros.T
        return _Weights(self.levels.T, self.scales.T, zeros, self.size)


class _Packed(NamedTuple):
    """What a product takes besides rows.

    Attributes:
        inputs: Levels, scales and zero points of MatMulNBits.
        attrs: Its attributes.
    """

    inputs: list[Value | None]
    attrs: dict[str, int]


def fuse_block_weights(rewriter: Rewriter) -> None:
    """``MatMul(x, DequantizeLinear(w))`` of floats and constant levels becomes MatMulNBits.

    Scales are for blocks along the terms, for each column, or for all. What OpenVINO's tools
    compress weights to is the same by Convert, Subtract, Multiply, and Reshape where there are
    blocks. A Transpose of the weights and a row of constants that is added are taken in, and Gemm
    is treated alike. To be run where products of levels have been found, and before constants are
    folded.
    """
    found: _Found = {}
    for node in rewriter.nodes():
        if node.kind == "MatMul" or (node.kind == "Gemm" and _is_plain(node)):
            _fuse(rewriter, node, found)


def _is_plain(gemm: Node) -> bool:
    factors = gemm.number("alpha", 1.0), gemm.number("beta", 1.0)
    return factors == (1.0, 1.0) and not gemm.attrs.get("transA", 0)


def _fuse(rewriter: Rewriter, node: Node, found: _Found) -> None:
    x, source = node.inputs[0], node.inputs[1]
    columns_first = bool(node.attrs.get("transB", 0))
    if x is None or x.const is not None or x.shape is None or len(x.shape) < 2 or not x.dtype:
        return
    steps = []
    transpose = rewriter.maker(source, "Transpose")
    if transpose is not None and list(transpose.attrs.get("perm") or (1, 0)) == [1, 0]:
        steps.append(transpose)
        source, columns_first = transpose.inputs[0], not columns_first
    last = rewriter.maker(source)
    if last is None or last.result is None or last.result.dtype != x.dtype:
        return
    key = last, columns_first, x.dtype
    if key not in found:
        found[key] = _packed(rewriter, last, columns_first, x.dtype)
    packed = found[key]
    if packed is not None:
        _replace(rewriter, node, packed, [*steps, *_makers(rewriter, last)])


def _replace(rewriter: Rewriter, node: Node, packed: _Packed, steps: list[Node]) -> None:
    """Puts MatMulNBits in place of a product and what adds a row to its result.

    Args:
        rewriter: Of the graph.
        node: The product.
        packed: Its weights.
        steps: What makes floats of them, the last step first; they go if nobody else reads them.
    """
    x, bias, group = node.inputs[0], known_floats(rewriter, node.input(2)), [node]
    if node.kind == "MatMul":
        add = rewriter.only_user(node.result, "Add")
        bias = None if add is None else known_floats(rewriter, other_input(add, node.result))
        if add is not None and _is_row(bias, packed, x):
            group.append(add)
        else:
            bias = None
    elif bias is not None and not _is_row(bias, packed, x):
        return
    result = group[-1].result
    if result is None:
        return
    for step in steps:
        if rewriter.inner([*group, step], result):
            group.append(step)
    inputs = [x, *packed.inputs, *([] if bias is None else [None, bias])]
    fused = Node("MatMulNBits", inputs, [result], packed.attrs, domain="com.microsoft")
    fused.name, fused.origins = node.name, origins(group)
    rewriter.replace(group, fused)


def _is_row(value: Value | None, packed: _Packed, x: Value | None) -> bool:
    """Whether a value is a constant row of as many floats as a product has columns."""
    row = None if value is None else value.const
    of_type = row is not None and x is not None and row.dtype == x.dtype
    return of_type and row is not None and row.shape == (packed.attrs["N"],)


def _makers(rewriter: Rewriter, last: Node) -> list[Node]:
    """A node and those behind its inputs, each behind what reads it."""
    queue = [last]
    for node in queue:
        makers = [rewriter.maker(value) for value in node.inputs]
        queue += [maker for maker in makers if maker is not None and maker not in queue]
    return queue


def _packed(
    rewriter: Rewriter, last: Node, columns_first: bool, kind: np.dtype[np.generic]
) -> _Packed | None:
    """The weights that a node makes floats of, if they are a matrix with scales that fit.

    Args:
        rewriter: Of the graph.
        last: The node.
        columns_first: Whether its result is (columns, terms).
        kind: The type of scales that is wanted.
    """
    if last.op_type == "DequantizeLinear":
        weights = _dequantized(last)
    else:
        weights = _decompressed(rewriter, last)
    if weights is None:
        return None
    levels, scales, zeros, size = weights if columns_first else weights.turned()
    columns, terms = levels.shape
    blocks = -(-terms // size) if size else 1
    if scales.shape[0] not in (1, columns) or scales.shape[1] != blocks or not levels.size:
        return None
    if not size:
        size = min(_LONGEST, max(_SHORTEST, 1 << (terms - 1).bit_length()))
    blocks = -(-terms // size)
    bits, offset = _TYPES[levels.dtype.name]
    every = np.ascontiguousarray(np.broadcast_to(scales, (columns, blocks)).astype(kind))
    inputs: list[Value | None] = [
        Value.constant(_in_bytes(_unsigned(levels, offset), size, bits)),
        Value.constant(every),
    ]
    middle = 1 << (bits - 1)
    points = np.zeros((1, 1), levels.dtype) if zeros is None else zeros
    unsigned = _unsigned(points, offset)
    if np.any(unsigned != middle):
        whole = np.broadcast_to(unsigned, (columns, blocks))
        inputs.append(Value.constant(_in_bytes(whole, 8 // bits, bits).reshape(columns, -1)))
    else:
        inputs.append(None)
    return _Packed(inputs, {"K": terms, "N": columns, "block_size": size, "bits": bits})


def _unsigned(levels: Array, offset: int) -> Array:
    """Levels as uint8, moved by an offset."""
    if levels.dtype.name in ("int8", "uint8"):
        return np.asarray(levels.view(np.uint8) ^ np.uint8(offset))
    return np.asarray(levels.astype(np.int8).view(np.uint8) + np.uint8(offset))


def _in_bytes(numbers: Array, size: int, bits: int) -> Array:
    """Numbers (rows, n) in blocks (rows, blocks, bytes), the first in the lowest bits."""
    rows, count = numbers.shape
    blocks = -(-count // size)
    if count < blocks * size:
        numbers = np.pad(numbers, ((0, 0), (0, blocks * size - count)))
    whole = numbers.reshape(rows, blocks, size)
    if bits == 8:
        return np.ascontiguousarray(whole)
    return np.asarray(whole[..., 0::2] | (whole[..., 1::2] << np.uint8(4)))


def _dequantized(node: Node) -> _Weights | None:
    """The constants of a DequantizeLinear of a matrix."""
    levels, scale, zero = (None if v is None else v.const for v in (*node.inputs, None)[:3])
    if levels is None or scale is None or levels.ndim != 2 or levels.dtype.name not in _TYPES:
        return None
    left_out = node.input(2) is None
    if not left_out and (zero is None or zero.dtype != levels.dtype or zero.size != scale.size):
        return None
    size = int(node.attrs.get("block_size", 0))
    if not size:
        axis = axis_of(node, node.attrs.get("axis", 1), 2)
        if scale.size not in (1, levels.shape[axis]) or scale.ndim > 1:
            return None
        shape = (-1, 1) if axis == 0 else (1, -1)
        scale = scale.reshape(shape)
    elif scale.ndim != 2:
        return None
    return _Weights(levels, scale, None if zero is None else zero.reshape(scale.shape), size)


def _decompressed(rewriter: Rewriter, node: Node) -> _Weights | None:
    """The constants of ``Mul(Sub(Cast(levels), Cast(zeros)), scales)``, of three axes or two.

    Of three axes, blocks are along the second or the third, and a Reshape makes them two.
    """
    last: Node | None = node
    if last is not None and last.kind == "Cast":
        last = rewriter.maker(last.inputs[0], "Reshape", "Mul")
    shape = None if last is None or last.result is None else last.result.shape
    if last is not None and last.kind == "Reshape":
        last = rewriter.maker(last.inputs[0], "Mul")
    scale = None if last is None else last.input(1)
    if last is None or last.kind != "Mul" or scale is None or scale.const is None or not shape:
        return None
    less = rewriter.maker(last.inputs[0], "Sub")
    levels = _cast_constant(rewriter, last.inputs[0] if less is None else less.inputs[0])
    zeros = None if less is None else _cast_constant(rewriter, less.inputs[1])
    if levels is None or (less is not None and (zeros is None or zeros.dtype != levels.dtype)):
        return None
    return _in_two_axes(levels, scale.const, zeros, shape)


def _cast_constant(rewriter: Rewriter, value: Value | None) -> Array | None:
    """The constant of few bits that a Cast makes floats of."""
    node = rewriter.maker(value, "Cast")
    source = None if node is None else node.inputs[0]
    if source is None or source.const is None or source.const.dtype.name not in _TYPES:
        return None
    return source.const


def _in_two_axes(
    levels: Array, scales: Array, zeros: Array | None, shape: tuple[object, ...]
) -> _Weights | None:
    """Weights as a matrix, if the shape that a graph gives them is that of the blocks in order."""
    rank = levels.ndim
    if rank not in (2, 3) or scales.ndim not in ((0, 2) if rank == 2 else (3,)) or not scales.size:
        return None
    if zeros is not None and zeros.size == 1:
        zeros = np.broadcast_to(zeros.reshape(()), scales.shape)
    if zeros is not None and zeros.shape != scales.shape:
        return None
    if rank == 2:
        flat = (1, 1) if scales.ndim == 0 else scales.shape
        matrix, size = levels, 0
        if flat[0] not in (1, levels.shape[0]) or flat[1] not in (1, levels.shape[1]):
            return None
    else:
        axis = 2 if scales.shape[2] == 1 else 1
        first, second, third = levels.shape
        if scales.shape != ((first, second, 1) if axis == 2 else (first, 1, third)):
            return None
        size = levels.shape[axis]
        matrix = levels.reshape((first, -1) if axis == 2 else (-1, third))
        flat = (first, second) if axis == 2 else (first, third)
    if matrix.shape != shape or math.prod(flat) != scales.size:
        return None
    zeros = None if zeros is None else zeros.reshape(flat)
    return _Weights(matrix, scales.reshape(flat), zeros, size)
