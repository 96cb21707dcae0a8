"""The channels of an image that a step reads and writes."""

from __future__ import annotations

from typing import NamedTuple


class ChannelSlice(NamedTuple):
    """Which channels of images are read and written.

    Attributes:
        number: How many.
        x_pitch: Elements from one input pixel to the next.
        x_first: The first channel that is read.
        y_pitch: Elements from one output pixel to the next.
        y_first: The channel that the first result is written to.
    """

    number: int
    x_pitch: int
    x_first: int
    y_pitch: int
    y_first: int
