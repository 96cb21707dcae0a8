"""Windows of convolutions and pools: strides, pads and dilations over three dimensions x, y, z."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partita.lowering import Array, Node
from partita.query import Reason, ReasonCode
from partita_opencl.kit import ints

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
        return set(self.size) == {1} and self.image == self.out and not any(self.begin)


def window_of(node: Node, image: Sequence[int], size: Sequence[int]) -> Window:
    """The window that a node's attributes describe.

    Args:
        node: A Conv or pool.
        image: Spatial sizes of the input in ONNX's order.
        size: Sizes of the window in the same order.
    """
    rank = len(image)
    attrs = node.attrs
    stride = attrs.get("strides") or [1] * rank
    dilation = attrs.get("dilations") or [1] * rank
    pads = attrs.get("pads") or [0] * (2 * rank)
    begin, end = list(pads[:rank]), list(pads[rank:])
    auto = attrs.get("auto_pad", "NOTSET")
    reach = [(s - 1) * d + 1 for s, d in zip(size, dilation, strict=True)]
    if auto == "VALID":
        begin, end = [0] * rank, [0] * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(rank):
            outputs = -(-image[i] // stride[i])
            total = max(0, (outputs - 1) * stride[i] + reach[i] - image[i])
            small, large = total // 2, total - total // 2
            begin[i], end[i] = (small, large) if auto == "SAME_UPPER" else (large, small)
    ceil = bool(attrs.get("ceil_mode", 0))
    out = [_positions(image[i], reach[i], stride[i], begin[i], end[i], ceil) for i in range(rank)]
    return Window(
        image=_xyz(image),
        size=_xyz(size),
        stride=_xyz(stride),
        begin=_xyz(begin, 0),
        end=_xyz(end, 0),
        dilation=_xyz(dilation),
        out=_xyz(out),
    )


def _positions(image: int, reach: int, stride: int, begin: int, end: int, ceil: bool) -> int:
    room = image + begin + end - reach
    if room < 0:
        return 0
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= image + begin:
        count -= 1  # the last window must start inside the image or its leading pad
    return count


def _xyz(values: Sequence[int], fill: int = 1) -> tuple[int, ...]:
    """Values in ONNX's order as x, y, z."""
    return (*(int(v) for v in reversed(values)), *(fill,) * (MOST_DIMS - len(values)))


def int4(values: Sequence[int], last: int = 0) -> Array:
    """Three values and a fourth one as an ``int4``."""
    return ints(*values, last)
