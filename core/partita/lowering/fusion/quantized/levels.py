"""Quantized tensors as passes see them: the levels, with their constant scale and zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering.fusion.rewriting import Rewriter
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


class Levels:
    """Quantized numbers: the levels, and the constants that make floats of them.

    Attributes:
        node: The node that makes floats of them, or them of floats.
        levels: The whole numbers, int8 or uint8.
        scale: What a step between two levels is worth: one number, or one for each channel.
        zero: The levels that stand for 0, as many as scales.
    """

    def __init__(self, node: Node, levels: Value, scale: Array, zero: Array) -> None:
        self.node, self.levels, self.scale, self.zero = node, levels, scale, zero

    @classmethod
    def of(cls, rewriter: Rewriter, value: Value | None) -> Levels | None:
        """What a DequantizeLinear makes floats of, if it is bytes by constants."""
        node = rewriter.maker(value, "DequantizeLinear")
        if node is None or node.inputs[0] is None or node.inputs[0].dtype not in BYTES:
            return None
        return cls.named(node, node.inputs[0].dtype)

    @classmethod
    def named(cls, node: Node, dtype: np.dtype[np.generic] | None) -> Levels | None:
        """The constants of a node; a zero point that is left out is 0 of the type."""
        scale, zero = node.inputs[1], node.input(2)
        if scale is None or scale.const is None or node.inputs[0] is None:
            return None
        if scale.const.dtype != np.float32 or node.attrs.get("block_size"):
            return None
        kinds = (node.attrs.get("output_dtype"), node.attrs.get("precision"))
        if any(kinds) or (zero is not None and zero.const is None):
            return None
        zeros = np.zeros(scale.const.shape, dtype) if zero is None else zero.const
        if zeros is None or zeros.dtype not in BYTES or zeros.size != scale.const.size:
            return None
        return cls(node, node.inputs[0], scale.const, zeros)

    @classmethod
    def at(cls, node: Node, levels: int, scale: int) -> Levels | None:
        """What inputs of an operator on levels stand for, if their constants are for all levels.

        Args:
            node: The operator.
            levels: Place of the levels; -1 stands for the result.
            scale: Place of the scale; the zero point follows.
        """
        value = node.result if levels < 0 else node.input(levels)
        numbers = [node.input(scale), node.input(scale + 1)]
        step, zero = (None if number is None else number.const for number in numbers)
        if value is None or step is None or zero is None or step.size * zero.size != 1:
            return None
        known = step.dtype == np.float32 and zero.dtype in BYTES
        return cls(node, value, step, zero) if known else None

    def same_as(self, other: Levels) -> bool:
        """Whether equal levels are equal numbers."""
        if self.zero.dtype != other.zero.dtype or self.scale.size != other.scale.size:
            return False
        same = np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1))
        return same and np.array_equal(self.zero.reshape(-1), other.zero.reshape(-1))

    def moved_to(self, dtype: np.dtype[Any]) -> Levels | None:
        """The same numbers by levels of this type of byte; ``None`` if only a run can move them."""
        if self.zero.dtype == dtype:
            return self
        levels = self.levels.const
        if levels is None:
            return None
        by = int(np.iinfo(dtype).min) - int(np.iinfo(self.zero.dtype).min)
        moved, zero = (np.asarray(a.astype(np.int16) + by, dtype) for a in (levels, self.zero))
        return Levels(self.node, Value.constant(moved), self.scale, zero)

    def constants(self) -> list[Value]:
        """Scale and zero point, without dimensions or with one."""
        shape: tuple[int, ...] = () if self.scale.size == 1 else (-1,)
        return [Value.constant(array.reshape(shape)) for array in (self.scale, self.zero)]


def known_floats(rewriter: Rewriter, value: Value | None) -> Value | None:
    """A value; the floats themselves if it is dequantized from a row of constants."""
    node = rewriter.maker(value, "DequantizeLinear")
    row = None if node is None else node.inputs[0]
    if node is None or row is None or row.const is None or row.const.ndim != 1:
        return value
    if row.const.dtype != np.int32:
        levels = Levels.named(node, row.const.dtype)
        return value if levels is None else _numbers(row.const, levels.scale, levels.zero)
    scale, zero = node.inputs[1], node.input(2)
    if scale is None or scale.const is None or scale.const.dtype != np.float32:
        return value
    if node.attrs.get("block_size") or (zero is not None and zero.const is None):
        return value
    zeros = None if zero is None else zero.const
    return _numbers(row.const, scale.const, np.zeros(1, np.int32) if zeros is None else zeros)


def _numbers(levels: Array, scale: Array, zero: Array) -> Value:
    """The floats that levels of a row stand for, by one scale or one for each."""
    less = levels.astype(np.int32) - zero.astype(np.int32).reshape(-1)
    return Value.constant(less.astype(np.float32) * scale.reshape(-1))
