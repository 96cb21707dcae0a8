"""Where a sliding window lies: sizes, strides, pads and output shape, resolved from attributes.

Everything is brought to three spatial dimensions, with leading ones for images and sequences, so
that one kernel serves all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from partita.errors import OperandError
from partita.lowering.graph import Node
from partita.lowering.program import Array
from partita.lowering.shapes.symbolic_size import (
    Number,
    Size,
    evaluated,
    has_varied,
    integers,
    settled,
)

Triple = tuple[int, int, int]

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})

_MOST = 1 << 31
"""No size, step or pad is as large: sums and products of two of them fit in 64 bits."""


@dataclass(frozen=True)
class Window:
    """A sliding window over up to three spatial dimensions; each field is (depth, height, width).

    Attributes:
        size: Of the input.
        kernel: Of the window, in elements.
        stride: Between neighbouring windows.
        dilation: Between neighbouring elements of a window.
        begin: Padding in front; may be negative.
        end: Padding behind; may be negative.
        out: Number of windows.
        rank: Spatial dimensions that the operator has, 1 to 3.
    """

    size: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    begin: Triple
    end: Triple
    out: Triple
    rank: int

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The output's spatial dimensions, as many as the operator has."""
        return self.out[3 - self.rank :]

    @property
    def taps(self) -> int:
        """Elements of one window."""
        return self.kernel[0] * self.kernel[1] * self.kernel[2]

    @property
    def pixels(self) -> int:
        """Windows in all."""
        return self.out[0] * self.out[1] * self.out[2]

    @property
    def in_pixels(self) -> int:
        """Elements of one input channel."""
        return self.size[0] * self.size[1] * self.size[2]

    @property
    def is_pointwise(self) -> bool:
        """Whether each window is exactly one input element, in order."""
        return self.taps == 1 and self.out == self.size and not any(self.begin + self.end)

    @property
    def is_flat(self) -> bool:
        """Whether it does not extend or move in depth."""
        return self.size[0] == self.kernel[0] == self.out[0] == 1 and not self.begin[0]

    @functools.cached_property
    def trimmed(self) -> Window:
        """The same windows without the taps that lie beside the input wherever the window is.

        What pools take of the input stays the same, but not how much padding is under a window.
        A window of 2**31 elements on a small image has few that count; kernels walk through all.
        """
        return self.within(self.reached)

    def within(self, taps: Sequence[tuple[int, int]]) -> Window:
        """The same windows with some of their taps.

        Args:
            taps: Of each dimension the first one, and behind the last.
        """
        first = [low for low, _ in taps]
        behind = [count - high for count, (_, high) in zip(self.kernel, taps, strict=True)]
        return replace(
            self,
            kernel=_triple([high - low for low, high in taps], 1),
            begin=self._less(self.begin, first),
            end=self._less(self.end, behind),
        )

    @functools.cached_property
    def reached(self) -> tuple[tuple[int, int], ...]:
        """Of each dimension the first tap that some window has on the input, and behind the last.

        At least one tap, though it may lie beside the input. Sizes for which they are others are
        decided otherwise.
        """
        return tuple(
            settled(evaluated(_reached_taps, *along)) for along in map(self.along, range(3))
        )

    @functools.cached_property
    def halved(self) -> tuple[tuple[int, int], ...]:
        """As :attr:`reached`, but the taps are halved as often as those that are reached are left.

        From the middle of the window, if they lie there. So they are the same for many sizes.
        """
        return tuple(map(self.halved_along, range(3)))

    def halved_along(self, axis: int) -> tuple[int, int]:
        """Of one dimension what :attr:`halved` tells; all once sizes have decided otherwise."""
        if has_varied(self.along(axis)):
            return 0, self.kernel[axis]
        return settled(evaluated(_halved_taps, *self.along(axis)))  # type: ignore[no-any-return]

    def one_tap(self, axis: int) -> Number:
        """Whether only the middle one of a dimension's three taps reaches the input: 1, or 0.

        A number that tells no sizes apart, of windows that are dilated so far that few sizes do
        not reach them and by which all that is padded lies under the outer taps; -1 of others.
        """
        along: Sequence[Any] = self.along(axis)
        size, taps, _, gap, begin, end, _ = along
        if type(size) is not Size or taps != 3 or type(gap) is Size or gap < 2:
            return -1
        if type(begin) is Size or type(end) is Size or min(begin, end) < gap:
            return -1
        return evaluated(_is_one_tap, *along)

    def _less(self, pads: Triple, taps: Sequence[int]) -> Triple:
        """Padding without that of so many taps."""
        numbers = zip(pads, taps, self.dilation, strict=True)
        return _triple([pad - n * gap for pad, n, gap in numbers], 0)

    def along(self, axis: int) -> tuple[int, ...]:
        """All fields of one dimension, in their order."""
        fields = (self.size, self.kernel, self.stride, self.dilation, self.begin, self.end)
        return tuple(field[axis] for field in (*fields, self.out))

    @property
    def table(self) -> Array:
        """What kernels read: size, kernel, stride, dilation, begin and out, one after another."""
        rows = (self.size, self.kernel, self.stride, self.dilation, self.begin, self.out)
        return integers([n for row in rows for n in row])


def _reached_taps(
    size: int, taps: int, stride: int, gap: int, begin: int, end: int, out: int
) -> tuple[int, int]:
    """The first tap on or behind the first element in the last window, and behind the last one.

    That is the first one behind the last element in the first window.

    Args:
        size: Elements of the input.
        taps: Of the kernel.
        stride: From window to window.
        gap: From tap to tap.
        begin: What is added before the first element.
        end: What is added behind the last one; not asked for, but one of `Window.along`.
        out: Windows.
    """
    low = min(max(-(((max(out, 1) - 1) * stride - begin) // gap), 0), taps - 1)
    return low, min(max((size - 1 + begin) // gap + 1, low + 1), taps)


def _halved_taps(*along: int) -> tuple[int, int]:
    low, high = _reached_taps(*along)
    taps = count = along[1]
    while count > 1 and -(-count // 2) >= high - low:
        count = -(-count // 2)
    middle = (taps - count) // 2
    first = middle if middle <= low and high <= middle + count else min(low, taps - count)
    return first, first + count


def _is_one_tap(*along: int) -> int:
    return int(_halved_taps(*along) == (1, 2))


def count_places(
    include_pad: bool, size: int, taps: int, stride: int, gap: int, begin: int, end: int, out: int
) -> Array:
    """How many places of one dimension each window averages over.

    What the last window of ceil_mode has beyond the padding never counts.

    Args:
        include_pad: Whether padding counts.
        size: Elements of the input.
        taps: Elements of the window.
        stride: Elements from one window to the next.
        gap: Elements from one tap to the next (dilation).
        begin: Elements of padding in front.
        end: Elements of padding behind.
        out: How many windows there are.

    Returns:
        int64 [out].
    """
    starts = np.arange(out) * stride - begin
    stop = size + end if include_pad else size
    upto = np.clip(-((starts - stop) // gap), 0, taps)  # taps that lie before the stop
    before = 0 if include_pad else np.clip(-(starts // gap), 0, taps)
    return np.asarray(upto - np.minimum(before, upto), np.int64)


def resolve(
    node: Node, size: Sequence[int], kernel: Sequence[int], *, ceil_mode: bool = False
) -> Window:
    """The window that the attributes of a convolution or pooling node describe.

    A pool's window that is larger than the padded input, by less than a stride, is there once and
    sees what there is of it: ONNX's inference and onnxruntime round the quotient towards zero,
    though the formula in ONNX's text rounds it down.

    Args:
        node: Its strides, dilations, pads and auto_pad are read.
        size: Spatial dimensions of the input.
        kernel: Spatial dimensions of the window.
        ceil_mode: Whether a last window may reach beyond the padding behind. It must still start
            within the input or the padding in front.

    Raises:
        OperandError: The attributes do not fit the number of dimensions, or the window does not
            fit the input.
    """
    rank = len(size)
    _check_rank(node, rank, kernel)
    attrs = node.attrs
    sliding = _Sliding(
        tuple(_sized(attrs.get("strides"), rank, 1)),
        tuple(_sized(attrs.get("dilations"), rank, 1)),
        tuple(_sized(attrs.get("pads"), 2 * rank, 0)),
        attrs.get("auto_pad", "NOTSET"),
        ceil_mode,
        node.op_type in _POOLS,
    )
    numbers = (*kernel, *sliding.strides, *sliding.dilations, *sliding.pads)
    symbolic = Size in map(type, (*size, *numbers))
    if symbolic or max(numbers) >= _MOST or min(numbers) <= -_MOST:
        _check_numbers(node, kernel)
    window = (_slid if symbolic else _kept)(sliding, tuple(size), tuple(kernel))
    if window is None:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has a window of {list(kernel)} that "
            f"does not fit its padded input of {list(size)}."
        )
    return window


class _Sliding(NamedTuple):
    """What attributes say about a window.

    Attributes:
        strides: Between neighbouring windows.
        dilations: Between neighbouring elements of a window.
        pads: In front along all dimensions, then behind.
        mode: ``auto_pad``.
        up: Whether a last window may reach beyond the padding.
        pool: Whether it is a pool's.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    mode: str
    up: bool
    pool: bool


def _slid(sliding: _Sliding, size: tuple[int, ...], kernel: tuple[int, ...]) -> Window | None:
    """The window over an input; ``None`` if it does not fit."""
    rank, pads, mode = len(size), sliding.pads, sliding.mode
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, sliding.dilations, strict=True)]
    begin, end, out = [], [], []
    for i, (n, span, stride) in enumerate(zip(size, reach, sliding.strides, strict=True)):
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            count = -(-n // stride)
            total = max((count - 1) * stride + span - n, 0)
            low = total // 2 if mode == "SAME_UPPER" else total - total // 2
            high = total - low
        else:
            low, high = (0, 0) if mode == "VALID" else (pads[i], pads[i + rank])
            room = n + low + high - span
            up = sliding.up or (room < 0 and sliding.pool)
            count = (-(-room // stride) if up else room // stride) + 1
            if sliding.up and (count - 1) * stride >= n + low:
                count -= 1
        if count < 0:
            return None
        begin.append(low)
        end.append(high)
        out.append(count)
    return Window(
        _triple(size, 1),
        _triple(kernel, 1),
        _triple(sliding.strides, 1),
        _triple(sliding.dilations, 1),
        _triple(begin, 0),
        _triple(end, 0),
        _triple(out, 1),
        rank,
    )


_kept = functools.lru_cache(maxsize=1 << 12)(_slid)
"""Layers are alike, and shapes come again."""


def resolve_transposed(node: Node, size: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window that slides over the *output* of a ConvTranspose, once per element of the input.

    So `Window.size` is the output's, and `Window.out` the input's.

    Without an `output_shape` an output of auto_pad has no more elements than there are: where
    windows do not meet, it ends with the last one, as ONNX's inference and onnxruntime have it,
    and not at the input's size times the stride as in ONNX's text.

    Args:
        node: Its strides, dilations, pads, output_padding, output_shape and auto_pad are read.
        size: Spatial dimensions of the input.
        kernel: Spatial dimensions of the window.

    Raises:
        OperandError: Their number is not possible.
    """
    rank = len(size)
    _check_rank(node, rank, kernel)
    _check_numbers(node, kernel)
    attrs = node.attrs
    strides = _sized(attrs.get("strides"), rank, 1)
    dilations = _sized(attrs.get("dilations"), rank, 1)
    extra = _sized(attrs.get("output_padding"), rank, 0)
    pads = _sized(attrs.get("pads"), 2 * rank, 0)
    mode = attrs.get("auto_pad", "NOTSET")
    wanted = list(attrs.get("output_shape") or ())[-rank:]
    same = mode in ("SAME_UPPER", "SAME_LOWER")
    out, begin, end = [], [], []
    for i, n in enumerate(size):
        beyond = extra[i] + (kernel[i] - 1) * dilations[i] + 1 - strides[i]
        full = n * strides[i] + beyond
        if wanted or same:
            # Of auto_pad it is the same number for all sizes.
            total = max(0, full - wanted[i] if wanted else beyond)
            low = total // 2 if mode == "SAME_UPPER" else total - total // 2
            out.append(wanted[i] if wanted else full - total)
        else:
            low = 0 if mode == "VALID" else pads[i]
            total = 0 if mode == "VALID" else pads[i] + pads[i + rank]
            out.append(full - total)
        begin.append(low)
        end.append(total - low)
    return Window(
        _triple(out, 1),
        _triple(kernel, 1),
        _triple(strides, 1),
        _triple(dilations, 1),
        _triple(begin, 0),
        _triple(end, 0),
        _triple(size, 1),
        rank,
    )


def _check_rank(node: Node, rank: int, kernel: Sequence[int]) -> None:
    if not 1 <= rank <= 3 or len(kernel) != rank:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has {rank} spatial dimensions and a "
            f"window of {len(kernel)}; 1 to 3 of both are possible."
        )


def _check_numbers(node: Node, kernel: Sequence[int]) -> None:
    """Refuses attributes, and a window, of numbers that sums and products might not hold."""
    named = {name: node.attrs.get(name) or () for name in _NUMBERS}
    for name, values in {**named, "kernel_shape": kernel}.items():
        if any(abs(value) >= _MOST for value in values):
            raise OperandError(
                f"Operation '{node.name}' ({node.model_kind}) has {name} {list(values)}; numbers "
                f"up to {_MOST - 1} are possible."
            )


_NUMBERS = ("strides", "dilations", "pads", "output_padding", "output_shape")


def _sized(values: Any, count: int, default: int) -> list[int]:
    return list(values) if values else [default] * count


def _triple(values: Sequence[int], fill: int) -> Triple:
    """The values with `fill` in front, as three."""
    numbers = [v if isinstance(v, Size) else int(v) for v in values]
    padded = [fill] * (3 - len(values)) + numbers
    return padded[0], padded[1], padded[2]
