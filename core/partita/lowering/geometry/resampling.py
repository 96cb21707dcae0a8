"""How Resize resamples an axis: where in the input each coordinate lies, and what is nearest.

Coordinates are computed in float32, as onnxruntime does: at the border of two elements, another
precision would find another neighbour.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partita.errors import OperandError
from partita.lowering.program import Array
from partita.lowering.shapes.symbolic_size import evaluated, holds_sizes, settled

F32 = np.float32

CROPPING = "tf_crop_and_resize"
"""The transform by which coordinates outside of the input take another value than the border's."""

TRANSFORMS = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
    CROPPING,
)
_FAR = F32(1 << 30)
"""Beyond any tensor, and still far from what overflows an integer."""

NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

_NEAR_HALF = 1e-6
"""Places so near to a half are halves, as in onnxruntime: 1 / (2 / 7) is 3.4999998 in float32."""

BLOCK = 1 << 16
"""So many elements are computed at once: what tables are computed by stays in caches."""


@dataclass(frozen=True)
class Axis:
    """One axis of a Resize.

    Attributes:
        size: Of the input.
        out: Of the output.
        scale: Output coordinates per input coordinate.
        transform: The coordinate transformation.
        start: Where the region of interest starts, as a share of the input.
        end: Where it ends.
    """

    size: int
    out: int
    scale: float
    transform: str = "asymmetric"
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what would lead beyond the input.

        Raises:
            OperandError: A number is not finite or too small, there is nothing to read, or places
                would be so far apart that they could not be told from one another.
        """
        if self.out > _FAR:
            raise OperandError(
                f"Resize cannot make {self.out} elements along an axis; {int(_FAR)} are the most. "
                "Check its scales and sizes."
            )
        bounds = all(map(math.isfinite, (self.start, self.end)))
        scales = 0 < self.scale < math.inf or self.out == 0
        if not (bounds and scales and self.out >= 0 and (self.size > 0 or self.out == 0)):
            raise OperandError(
                f"Resize cannot make {self.out} elements of {self.size} by a scale of {self.scale} "
                f"from {self.start} to {self.end}; check its scales, sizes and region."
            )

    @property
    def crops(self) -> bool:
        """Whether coordinates outside the input take another value than the border's."""
        return self.transform == CROPPING

    @property
    def is_identity(self) -> bool:
        """Whether every output coordinate is its own input coordinate."""
        cropped = self.crops and (self.start, self.end) != (0, 1)
        return self.size == self.out and self.scale == 1.0 and not cropped

    @property
    def length(self) -> float:
        """Of the output before it was rounded to whole elements, by which ONNX aligns corners."""
        exact = self.scale * self.size
        return self.out if math.isclose(exact, self.out, rel_tol=1e-6) else exact

    def coordinates(self, part: slice, kind: Any = F32) -> Array:
        """For each of some output coordinates its place in the input; a finite number.

        Args:
            part: Which output coordinates.
            kind: The type to compute in. Where places decide which element is taken, float32: other
                engines come to the same halves.
        """
        with np.errstate(all="ignore"):
            x = np.arange(part.start, part.stop).astype(kind)
            places = np.nan_to_num(self._places(x, kind), nan=-float(_FAR))
        return np.asarray(np.clip(places, -_FAR, _FAR))

    def _places(self, x: Array, kind: Any) -> Any:
        scale, half = kind(self.scale), kind(0.5)
        if self.is_identity:
            return x
        match self.transform:
            case "half_pixel":
                return (x + half) / scale - half
            case "half_pixel_symmetric":
                # The output stays centred although its size was rounded.
                adjustment = kind(self.out) / (scale * kind(self.size))
                offset = kind(self.size) / kind(2) * (kind(1) - adjustment)
                return offset + (x + half) / scale - half
            case "pytorch_half_pixel":
                return (x + half) / scale - half if self.out > 1 else np.zeros_like(x)
            case "align_corners":
                last = kind(self.size - 1)
                return x * last / kind(self.length - 1) if self.out > 1 else np.zeros_like(x)
            case "tf_half_pixel_for_nn":
                return (x + half) / scale
            case _ if self.crops:
                return self._cropped(x, kind)
        return x / scale

    def _cropped(self, x: Array, kind: Any) -> Any:
        start, end, last = kind(self.start), kind(self.end), kind(self.size - 1)
        if self.out == 1:
            return np.full_like(x, kind(0.5) * (start + end) * last)
        return start * last + x * (end - start) * last / kind(self.out - 1)

    def outside(self) -> Array:
        """For each output coordinate whether its place is not in the input."""
        marks = np.empty(self.out, np.bool_)
        for part in blocks(slice(0, self.out)):
            x = self.coordinates(part)
            marks[part] = (x < 0) | (x > self.size - 1)
        return marks


class AxisSizes(NamedTuple):
    """What :class:`Axis` takes; its numbers may stand for others."""

    size: int
    out: int
    scale: float
    transform: str = "asymmetric"
    start: float = 0.0
    end: float = 1.0

    @property
    def is_identity(self) -> bool:
        """As of an axis; decided where numbers stand for others."""
        return bool(settled(evaluated(_is_identity, *self)))


def _is_identity(*axis: Any) -> bool:
    return Axis(*axis).is_identity


def blocks(part: slice, width: int = 1) -> Iterator[slice]:
    """Some of what is in order, a piece at a time.

    Args:
        part: From where to where.
        width: Elements that are computed for each of them.
    """
    step = max(BLOCK // width, 1)
    for start in range(part.start, part.stop, step):
        yield slice(start, min(start + step, part.stop))


def scaled(size: int, scale: float) -> int:
    """The size of an axis of the output, as ONNX infers it; the input's may stand for others.

    Raises:
        OperandError: The scale is no positive number.
    """
    if not 0 < scale < math.inf:
        raise OperandError(f"Resize has a scale of {scale}; scales are positive numbers.")
    return evaluated(_scaled, size, scale)  # type: ignore[no-any-return]


def _scaled(size: int, scale: float) -> int:
    return math.floor(size * float(F32(scale)))


def fitted(
    shape: Sequence[int], sizes: Sequence[int], policy: str
) -> tuple[list[int], list[float]]:
    """Output sizes and scales, with one scale for all axes unless stretching is allowed.

    Numbers may stand for others.

    Raises:
        OperandError: A size is negative.
    """
    if holds_sizes([*shape, *sizes]):
        found = evaluated(_flat_fitted, policy, *shape, *sizes)
        numbers = [evaluated(operator.getitem, found, n) for n in range(2 * len(shape))]
        return numbers[: len(shape)], numbers[len(shape) :]
    if any(size < 0 for size in sizes):
        raise OperandError(f"Resize has sizes {list(sizes)}; none may be negative.")
    if policy == "stretch":
        return list(sizes), [s / max(n, 1) for n, s in zip(shape, sizes, strict=True)]
    ratios = [F32(s) / F32(max(n, 1)) for n, s in zip(shape, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(scale * n + 0.5) for n in shape], [float(scale)] * len(shape)


def _flat_fitted(policy: str, *sizes: int) -> tuple[float, ...]:
    half = len(sizes) // 2
    outs, factors = fitted(sizes[:half], sizes[half:], policy)
    return *outs, *factors


def nearest(axis: Axis, mode: str) -> Array:
    """The input element nearest to each output coordinate.

    ``mode`` says how halves are rounded; "" is the rule of opset 10: down, but up when shrinking.
    """
    if axis.is_identity:
        return np.arange(axis.size)  # float32 has no odd numbers from 2**24 on
    found = np.empty(axis.out, np.int64)
    for part in blocks(slice(0, axis.out)):
        found[part] = _rounded(axis, axis.coordinates(part), mode)
        np.clip(found[part], 0, axis.size - 1, out=found[part])
    return found


def _rounded(axis: Axis, x: Array, mode: str) -> Array:
    match mode:
        case "round_prefer_floor":
            return np.ceil(x.astype(np.float64) - (0.5 + _NEAR_HALF))
        case "round_prefer_ceil":
            return np.floor(x.astype(np.float64) + (0.5 + _NEAR_HALF))
        case "ceil":
            return np.ceil(x)
        case "":
            return np.ceil(x) if axis.scale < 1 else np.trunc(x)
    return np.floor(x)
