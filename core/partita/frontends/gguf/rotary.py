"""Tables of cosines and sines by position, for rotary embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from partita.frontends.gguf.hyperparameters import RopeScaling

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]

_STEP = 1024
"""Positions that are computed at once: they stay in a cache."""


def frequencies(size: int, base: float, scaling: RopeScaling, factors: Array | None) -> Array:
    """Radians per position of each pair of elements, as float64.

    Args:
        size: Elements of a head that are turned.
        base: Of the geometric series.
        scaling: How a longer context stretches it; yarn is of https://arxiv.org/abs/2309.00071.
        factors: By what the file divides each frequency, if it does.
    """
    plain = base ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    if factors is not None:
        plain = plain / factors.astype(np.float64)
    if scaling.kind == "none":
        return plain
    stretched = plain / scaling.factor
    if scaling.kind in ("linear", "longrope"):
        return stretched

    def pair_of(turns: float) -> float:
        """The pair that turns so often within the original context."""
        length = scaling.original_context / (turns * 2 * math.pi)
        return size * math.log(length) / (2 * math.log(base))

    low, high = pair_of(scaling.fast), pair_of(scaling.slow)
    if scaling.truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
    turns: Array = plain * (1 - ramp) + stretched * ramp
    return turns


class RotaryTables:
    """Cosines and sines by position, computed when they are asked for.

    Whoever asks has a copy of its own; one of both is kept until it is asked for in its turn.

    Args:
        frequencies: Radians per position [size / 2].
        context: Positions.
        scaling: How a longer context stretched the frequencies.
    """

    def __init__(self, frequencies: Array, context: int, scaling: RopeScaling) -> None:
        self._frequencies = frequencies
        self._context = context
        self._magnitude = scaling.magnitude
        if scaling.kind == "yarn":
            self._magnitude *= scaling.yarn_magnitude
        self._left: dict[str, Array] = {}

    def tensor(self, part: Literal["cos", "sin"]) -> ir.LazyTensor:
        """One of both [context, size / 2], float32."""
        import onnx_ir as ir

        def make() -> ir.TensorProtocol:
            found = self._left.pop(part, None)
            if found is None:
                computed = self._parts()
                found = computed.pop(part)
                self._left = computed
            return ir.Tensor(found)

        shape = ir.Shape((self._context, len(self._frequencies)))
        return ir.LazyTensor(make, ir.DataType.FLOAT, shape)

    def _parts(self) -> dict[str, Array]:
        """Both: a position's turn is that of the multiple of 1024 before it, and what is left."""
        shape = (self._context, len(self._frequencies))
        cosines, sines = np.empty(shape, np.float32), np.empty(shape, np.float32)
        starts = np.arange(0, self._context, _STEP)
        within = self._turns(np.arange(min(_STEP, self._context))) * self._magnitude
        for start, turn in zip(starts.tolist(), self._turns(starts), strict=True):
            turned = within[: self._context - start] * turn
            cosines[start : start + _STEP], sines[start : start + _STEP] = turned.real, turned.imag
        return {"cos": cosines, "sin": sines}

    def _turns(self, positions: Array) -> Array:
        return np.exp(1j * positions[:, None] * self._frequencies)
