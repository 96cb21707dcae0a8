"""Which axis of a layout is the batch, the channels, the depth, the height or the width."""

from __future__ import annotations

from typing import Protocol

from partita.shapes.layout import BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH, Layout


class HasLayout(Protocol):
    """A port, or the end of a model, that notes the names of its dimensions."""

    @property
    def layout(self) -> Layout:
        """The names of the dimensions."""

    def set_layout(self, layout: Layout | str) -> None:
        """Notes them."""


def has_batch(layout: Layout) -> bool:
    """Whether it names the batch."""
    return layout.has_name(BATCH)


def batch_idx(layout: Layout) -> int:
    """The axis of the batch; raises ``ModelError`` if it is not named."""
    return layout.get_index_by_name(BATCH)


def has_channels(layout: Layout) -> bool:
    """Whether it names the channels."""
    return layout.has_name(CHANNELS)


def channels_idx(layout: Layout) -> int:
    """The axis of the channels; raises ``ModelError`` if it is not named."""
    return layout.get_index_by_name(CHANNELS)


def has_depth(layout: Layout) -> bool:
    """Whether it names the depth."""
    return layout.has_name(DEPTH)


def depth_idx(layout: Layout) -> int:
    """The axis of the depth; raises ``ModelError`` if it is not named."""
    return layout.get_index_by_name(DEPTH)


def has_height(layout: Layout) -> bool:
    """Whether it names the height."""
    return layout.has_name(HEIGHT)


def height_idx(layout: Layout) -> int:
    """The axis of the height; raises ``ModelError`` if it is not named."""
    return layout.get_index_by_name(HEIGHT)


def has_width(layout: Layout) -> bool:
    """Whether it names the width."""
    return layout.has_name(WIDTH)


def width_idx(layout: Layout) -> int:
    """The axis of the width; raises ``ModelError`` if it is not named."""
    return layout.get_index_by_name(WIDTH)


def get_layout(port: HasLayout) -> Layout:
    """The names of a port's dimensions; an empty layout if none are set."""
    return port.layout


def set_layout(port: HasLayout, layout: Layout | str) -> None:
    """Notes the names of a port's dimensions."""
    port.set_layout(layout)
