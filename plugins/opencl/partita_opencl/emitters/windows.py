"""Windows of convolutions and pools: strides, pads and dilations over three dimensions x, y, z."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Node
from partita.lowering.geometry.windows import resolve
from partita_opencl.launches.emitter_kit import ints

MOST_DIMS = 3


def spatial_dims(most: int = MOST_DIMS) -> Callable[[Node], Reason | None]:
    """A check that the first input has one to ``most`` spatial dimensions."""

    def check(node: Node) -> Reason | None:
        x = node.input(0)
        if x is not None and x.shape is not None and not 3 <= len(x.shape) <= most + 2:
            return Reason(
                ReasonCode.UNSUPPORTED_SHAPE,
                f"{len(x.shape) - 2} spatial dimensions; takes 1 to {most}",
            )
        return None

    return check


@dataclass(frozen=True)
class Window:
    """A window that moves over an image; all tuples are in the order x, y, z.

    Attributes:
        image: Sizes of the input.
        size: Sizes of the window.
        stride: Steps between windows.
        begin: Leading pads.
        end: Trailing pads.
        dilation: Steps within the window.
        out: Sizes of the output.
    """

    image: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def is_pointwise(self) -> bool:
        """Whether each output position reads just the same input position."""
        pads = (*self.begin, *self.end)
        return set(self.size) == {1} and self.image == self.out and not any(pads)


def window_of(node: Node, image: Sequence[int], size: Sequence[int]) -> Window:
    """The window that a node's attributes describe.

    Args:
        node: A Conv or pool.
        image: Spatial sizes of the input in ONNX's order.
        size: Sizes of the window in the same order.
    """
    found = resolve(node, image, size, ceil_mode=bool(node.attrs.get("ceil_mode", 0)))
    return Window(
        image=found.size[::-1],
        size=found.kernel[::-1],
        stride=found.stride[::-1],
        begin=found.begin[::-1],
        end=found.end[::-1],
        dilation=found.dilation[::-1],
        out=found.out[::-1],
    )


def int4(values: Sequence[int], last: int = 0) -> Any:
    """Three values and a fourth one as an ``int4``."""
    return ints(*values, last)
