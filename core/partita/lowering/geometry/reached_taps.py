"""Removes the taps of a convolution that read nothing but padding.

A window dilated by 24 on an image of 14 x 14 has only one tap that ever reads the image, and a
window that is larger than its image has some that never do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partita.lowering.emission.builder import Builder
from partita.lowering.geometry.windows import Window
from partita.lowering.program import Array, Operand
from partita.lowering.shapes.symbolic_size import Number, Size, evaluated
from partita.lowering.transformed_weights import Form

_Taps = Sequence[tuple[int, int]]
"""Of each of three dimensions the first tap, and behind the last."""


class TapWay(NamedTuple):
    """A convolution by some of the taps of its window.

    Attributes:
        window: With these taps alone.
        weights: Of these taps.
        chosen: For :meth:`Builder.only_if`: whether these are the taps that reach the input.
    """

    window: Window
    weights: Operand
    chosen: Number


def without_padding(b: Builder, window: Window, w: Operand) -> tuple[Window, Operand]:
    """A convolution's window and weights without the taps that lie beside the input everywhere.

    Args:
        b: Keeps the smaller weights for other programs.
        window: Resolved for the input at hand.
        w: Weights (outputs, channels of a group, taps along each dimension).

    Returns:
        Both as given if there is no such tap, or if the weights are no constant.
    """
    return _within(b, window, w, window.halved)


def ways_without_padding(b: Builder, window: Window, w: Operand) -> list[TapWay]:
    """The same for all sizes that a recording is for, where they differ in the taps they reach.

    Three convolutions of a segmentation network, dilated by 12, 24 and 36, have taps of their own
    for each of four ranges of either side of an image; those would be recordings of sixteen
    networks. Once sizes have decided otherwise (:attr:`Recording.varied`), each way is recorded.

    Args:
        b: As for :func:`without_padding`.
        window: The same.
        w: The same.

    Returns:
        One way, or several to the same result.
    """
    told = [window.one_tap(axis) for axis in range(3)]
    varying = [axis for axis, one in enumerate(told) if type(one) is Size and one.recording.varied]
    if w.const is None or not varying:
        return [TapWay(*without_padding(b, window, w), 1)]
    ways = []
    for taken in itertools.product((0, 1), repeat=len(varying)):
        way = dict(zip(varying, taken, strict=True))
        taps = [
            ((0, 3), (1, 2))[way[axis]] if axis in way else window.halved_along(axis)
            for axis in range(3)
        ]
        chosen = evaluated(_are, taken, *(told[axis] for axis in varying))
        ways.append(TapWay(*_within(b, window, w, taps), chosen))
    return ways


def _are(numbers: tuple[int, ...], *others: int) -> int:
    return int(numbers == others)


def _within(b: Builder, window: Window, w: Operand, reached: _Taps) -> tuple[Window, Operand]:
    """Window and weights with some of their taps."""
    kept = reached[3 - window.rank :]
    taps = [high - low for low, high in kept]
    if w.const is None or taps == list(w.shape[2:]):
        return window, w

    def trim(array: Array) -> Array:
        places = (slice(None), slice(None), *(slice(low, high) for low, high in kept))
        return np.ascontiguousarray(array[places])

    form = Form(w.dtype, (*w.shape[:2], *taps))
    key = ("reached", *(place for ends in kept for place in ends))
    return window.within(reached), b.prepack(w, key, trim, form=form)
