"""Resize as ONNX's text has it: an image's axes are resampled one after another.

``onnx.reference`` follows the text in most, and this is why it is not used: it cuts off 2.9999999,
which rounding makes of 3, where the type is an integer; reads the scales of opset 10 as a region;
takes axes in rising order alone; goes by lengths that were not rounded where a region is cropped;
takes the neighbour of a place that is by an ulp beside an element; looks half an element in front
of the first for an axis of ``pytorch_half_pixel`` that becomes one element; and makes NaN or the
largest number of infinities. Of lengths that were not rounded ONNX's own cases say that corners are
aligned by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from onnx.reference.ops.op_resize import Resize as OriginalResize

Array = np.ndarray[Any, Any]

MOST_ELEMENTS = 1 << 24
"""Elements of a result that Python makes."""

_ULP = 1e-6
"""Places as near to an element, or to the middle between two, are upon it: scales are float32."""


class Axis(NamedTuple):
    """An axis that is resampled.

    Attributes:
        number: Which one.
        size: Its elements.
        out: Those of the result.
        scale: By how much it grows; the result is rounded to whole elements.
        start: Where the region begins of which the result is made, from 0 to 1.
        end: Where it ends.
    """

    number: int
    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def places(self, transform: str) -> Array:
        """Where each element of the result lies among the axis' elements."""
        y, last = np.arange(float(self.out)), self.size - 1
        centred = (y + 0.5) / self.scale - 0.5
        length = self.scale * self.size
        match transform:
            case "half_pixel":
                return centred
            case "half_pixel_symmetric":
                return self.size / 2 * (1 - self.out / length) + centred
            case "pytorch_half_pixel":
                return centred if self.out > 1 else np.zeros(self.out)
            case "tf_half_pixel_for_nn":
                return (y + 0.5) / self.scale
            case "asymmetric":
                return y / self.scale
            case "align_corners":
                exact = self.out if math.isclose(length, self.out, rel_tol=_ULP) else length
                return y * last / (exact - 1) if self.out > 1 else np.zeros(self.out)
            case "tf_crop_and_resize" if self.out > 1:
                return self.start * last + y * (self.end - self.start) * last / (self.out - 1)
            case "tf_crop_and_resize":
                return np.full(self.out, 0.5 * (self.start + self.end) * last)
        raise ValueError(f"Resize knows no coordinate_transformation_mode {transform!r}")


class Resize(OriginalResize):
    """Whole images, in any mode; ``roi``, ``scales`` and ``sizes`` may be empty or left out."""

    def _run(  # type: ignore[override]  # onnx names each of them
        self, x: Array, *others: Any, **given: Any
    ) -> tuple[Array]:
        if self.run_params["opsets"].get("", 11) < 11:
            others = (None, *others)
            given |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        transform = given.get("coordinate_transformation_mode") or "half_pixel"
        roi, scales, sizes = (*others, None, None, None)[:3]
        axes = _axes(x, roi, scales, sizes, given)
        outside = float(given.get("extrapolation_value") or 0.0)
        if given.get("mode", "nearest") == "nearest":
            resampled, wide = _nearest(given.get("nearest_mode") or "round_prefer_floor"), x
        else:
            resampled, wide = _weighed(given), x.astype(np.float64)
        beyond = np.zeros((), np.bool_)
        for axis in axes:
            if (axis.out, axis.scale, axis.start, axis.end) == (axis.size, 1, 0, 1):
                continue
            places = axis.places(transform)
            if transform == "tf_crop_and_resize":
                off = (places < 0) | (places > axis.size - 1)
                beyond = beyond | off.reshape([-1] + [1] * (x.ndim - 1 - axis.number))
            wide = resampled(wide, axis, places)
        if beyond.any():
            wide = np.where(beyond, np.asarray(outside).astype(wide.dtype), wide)
        if wide.dtype != x.dtype and x.dtype.kind in "iu":
            wide = np.trunc(wide + np.copysign(2.0**-20, wide))
        with np.errstate(over="ignore"):  # what the type does not hold is infinite
            return (wide.astype(x.dtype),)


def _axes(x: Array, roi: Any, scales: Any, sizes: Any, given: dict[str, Any]) -> list[Axis]:
    """The axes that are named, all if none is, with what becomes of them."""
    numbers = _numbers(given.get("axes"), x.ndim)
    lengths = [x.shape[number] for number in numbers]
    by_sizes = sizes is not None and len(sizes) > 0
    wanted = [float(one) for one in (sizes if by_sizes else () if scales is None else scales)]
    if len(wanted) != len(numbers):
        raise ValueError(f"Resize has {len(wanted)} scales or sizes for {len(numbers)} axes")
    elements = math.prod(wanted) * (1 if by_sizes else x.size)
    if min(wanted, default=0.0) < 0 or not elements <= MOST_ELEMENTS:
        raise ValueError(
            f"Resize cannot make {elements:.3g} elements by {wanted}; it makes up to "
            f"{MOST_ELEMENTS}"
        )
    if by_sizes:
        outs = [int(size) for size in wanted]
        grown = [out / max(size, 1) for out, size in zip(outs, lengths, strict=True)]
        policy = given.get("keep_aspect_ratio_policy") or "stretch"
        if policy != "stretch":
            grown = [min(grown) if policy == "not_larger" else max(grown)] * len(grown)
            outs = [int(grown[0] * size + 0.5) for size in lengths]
    else:
        grown = wanted
        outs = [int(scale * size) for scale, size in zip(grown, lengths, strict=True)]
    ends = np.zeros(0) if roi is None else np.asarray(roi, np.float64)
    if given.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        ends = np.repeat([0.0, 1.0], len(numbers))
    if len(ends) != 2 * len(numbers):
        raise ValueError(f"Resize has a region of {len(ends)} ends for {len(numbers)} axes")
    regions = ends.reshape(2, -1).T.tolist()
    return [
        Axis(number, size, out, scale, *region)
        for number, size, out, scale, region in zip(
            numbers, lengths, outs, grown, regions, strict=True
        )
    ]


def _numbers(named: Any, ndim: int) -> list[int]:
    """The axes by their numbers from 0."""
    axes = list(range(ndim)) if named is None else [int(axis) for axis in named]
    if not all(-ndim <= axis < ndim for axis in axes):
        raise ValueError(f"Resize has axes {axes} of a tensor of {ndim} dimensions")
    numbers = [axis % ndim for axis in axes]
    if len({*numbers}) < len(numbers):
        raise ValueError(f"Resize names an axis more than once: {axes}")
    return numbers


def _nearest(rounding: str) -> Callable[[Array, Axis, Array], Array]:
    """What takes the nearest element along an axis."""
    roundings: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda at: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: np.floor(at + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if rounding not in roundings:
        raise ValueError(f"Resize knows no nearest_mode {rounding!r}")

    def taken(x: Array, axis: Axis, places: Array) -> Array:
        halves = np.round(2 * places) / 2
        near = np.abs(halves - places) < _ULP * np.maximum(1, places)
        return _picked(x, axis, roundings[rounding](np.where(near, halves, places)))

    return taken


def _weighed(given: dict[str, Any]) -> Callable[[Array, Axis, Array], Array]:
    """What weighs the elements beside each place along an axis; elements of no weight are none."""
    slope = given.get("cubic_coeff_a")
    cubic = given["mode"] == "cubic"
    reach = 2 if cubic else 1

    def weight(distance: Array) -> Array:
        d = np.abs(distance)
        if not cubic:
            return np.where(d < reach, 1 - d, 0.0)
        a = -0.75 if slope is None else slope
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < reach, far, 0.0))

    def mixed(x: Array, axis: Axis, places: Array) -> Array:
        shrunk = min(axis.scale, 1.0) if given.get("antialias") else 1.0
        first = math.floor(-reach / shrunk) + 1 if shrunk else 0
        taps = np.floor(places)[:, None] + np.arange(first, 2 - first)
        weights = weight((taps - places[:, None]) * shrunk)
        if given.get("antialias"):
            weights /= weights.sum(1, keepdims=True)
        if given.get("exclude_outside"):
            weights[(taps < 0) | (taps >= axis.size)] = 0
            weights /= weights.sum(1, keepdims=True)
        spread = (1,) * axis.number, (1,) * (x.ndim - 1 - axis.number)
        result: Array = np.zeros((*x.shape[: axis.number], axis.out, *x.shape[axis.number + 1 :]))
        for column, by in zip(taps.T, weights.T, strict=True):
            by = by.reshape(*spread[0], -1, *spread[1])
            with np.errstate(invalid="ignore", over="ignore"):
                result += np.where(by == 0, 0, by * _picked(x, axis, column))
        return result

    return mixed


def _picked(x: Array, axis: Axis, places: Array) -> Array:
    """Elements of an axis, the first and last ones beyond its ends."""
    if not axis.size and axis.out:
        raise ValueError(f"Resize cannot make {axis.out} elements of none")
    taken: Array = np.take(
        x, np.clip(places, 0, max(axis.size - 1, 0)).astype(np.intp), axis.number
    )
    return taken
