"""Steps between an application's tensor and a model, in the order in which they were added.

A method only notes its step; :meth:`partita.preprocess.PrePostProcessor.build` makes operators of
all of them, and raises ``ModelError`` for those that do not fit what comes before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from partita.errors import ModelError
from partita.frontends.openvino_ir.graph import OPSET
from partita.opsets.node import Node
from partita.opsets.ports import Output
from partita.preprocess.axes import Axes, parse_axes, permuted, place_of
from partita.preprocess.colors import convert_color, reverse_channels
from partita.preprocess.custom import put_custom
from partita.preprocess.flow import Flow
from partita.preprocess.formats import ColorFormat, PaddingMode, ResizeAlgorithm
from partita.tensors.element_type import Type

Step = Callable[[Flow, "Port"], None]


class Port:
    """Where steps lead to: the model's input, or the tensor that the application gets.

    Attributes:
        dtype: Its element type.
        axes: Names of its axes, if they are known.
        dims: Its dimensions; no ``int`` for one that varies.
    """

    def __init__(self, dtype: np.dtype[Any], axes: Axes | None, dims: Sequence[Any]) -> None:
        self.dtype = dtype
        self.axes = axes
        self.dims = dims


class _Steps:
    """Steps before an input or behind an output.

    Attributes:
        steps: In order; each changes a flow that is given to it.
        orders: The orders of axes that `convert_layout` was given as numbers.
        opset: The ONNX opset that the model must have at least.
    """

    def __init__(self) -> None:
        self.opset = 0
        self.steps: list[Step] = []
        self.orders: list[list[int]] = []

    def convert_element_type(self, type: Any = None) -> Self:
        """Converts elements, as ONNX's Cast does.

        Args:
            type: What :class:`partita.Type` takes; by default that of the model's input, or before
                a tensor that the application gets, of that.

        Raises:
            ValueError: It is no element type.
        """
        dtype = None if type is None else Type(type).dtype
        return self._add(lambda flow, port: flow.cast(port.dtype if dtype is None else dtype))

    def convert_layout(self, layout: Any = None) -> Self:
        """Transposes.

        Args:
            layout: The layout that the tensor has afterwards, such as ``"NCHW"``, or by axis the
                one that it was before: ``[0, 3, 1, 2]``. By default the layout of the model's
                input, or of the tensor that the application gets.

        Raises:
            ModelError: The numbers do not name each axis once. While the model is built: one of
                the two layouts is not known.
        """
        if isinstance(layout, Sequence) and not isinstance(layout, str):
            places = [int(place) for place in layout]
            if sorted(places) != list(range(len(places))):
                raise ModelError(f"convert_layout({places}): each place is named once, from 0.")
            self.orders.append(places)
            return self._add(lambda flow, _: flow.transpose(permuted(range(flow.rank), places)))
        return self._add(lambda flow, port: _laid_out(flow, port, layout))

    def custom(self, operation: Callable[[Output[Node]], Any]) -> Self:
        """Puts operations of :mod:`partita.opsets` into the model.

        Args:
            operation: Called once, while the model is built, with an output that stands for the
                tensor as the steps before have made it; what it returns is a node or an output that
                follows from it. It is not called while the model runs.

        Example:
            >>> from partita import opset13 as ops
            >>> from partita.preprocess import PreProcessSteps
            >>> steps = PreProcessSteps().custom(lambda x: ops.sqrt(ops.abs(x)))
        """
        if not callable(operation):
            raise ModelError(
                f"custom() takes a function of an output to another one; found {operation!r}."
            )
        self.opset = OPSET
        return self._add(lambda flow, _: put_custom(flow, operation))

    def _add(self, step: Step) -> Self:
        self.steps.append(step)
        return self


class PostProcessSteps(_Steps):
    """Steps from a model's output to a tensor; each method returns the steps themselves."""


class PreProcessSteps(_Steps):
    """Steps from a tensor to a model's input; each method returns the steps themselves."""

    def mean(self, value: float | Sequence[float]) -> Self:
        """Subtracts a number from all elements, or one from each channel.

        Args:
            value: One number, or as many as axis ``C`` of the layout has.

        While the model is built, ``ModelError`` is raised where elements are no floats by then; put
        ``convert_element_type`` before it.
        """
        return self._add(lambda flow, _: _with_numbers(flow, "Sub", value, "mean()"))

    def scale(self, value: float | Sequence[float]) -> Self:
        """Divides all elements by a number, or each channel by one of its own.

        Args:
            value: As for :meth:`mean`, and with the same error.
        """
        return self._add(lambda flow, _: _with_numbers(flow, "Div", value, "scale()"))

    def reverse_channels(self) -> Self:
        """Reverses the order of channels: RGB becomes BGR. The layout must have an axis ``C``."""
        return self._add(lambda flow, _: reverse_channels(flow))

    def convert_color(self, dst_format: ColorFormat) -> Self:
        """Converts images to another colour format.

        Args:
            dst_format: ``RGB``, ``BGR`` or ``GRAY``; ``tensor().set_color_format()`` says from
                which.
        """
        return self._add(lambda flow, _: convert_color(flow, dst_format))

    def resize(
        self, alg: ResizeAlgorithm, dst_height: int | None = None, dst_width: int | None = None
    ) -> Self:
        """Resizes images.

        Args:
            alg: How pixels are made.
            dst_height: In pixels; by default what the model's input has, which must be fixed then.
            dst_width: Likewise.

        Integers are rounded to the nearest, and saturated. Axes ``H`` and ``W`` of the layout must
        be known.
        """
        return self._add(lambda flow, port: _resize(flow, port, alg, (dst_height, dst_width)))

    def crop(self, begin: Sequence[int], end: Sequence[int]) -> Self:
        """Keeps a part of the tensor.

        Args:
            begin: By axis the first element that is kept; a negative number counts from the end.
            end: By axis the one behind the last, likewise.
        """
        return self._add(lambda flow, _: _crop(flow, begin, end))

    def pad(
        self,
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
        value: float | Sequence[float],
        mode: PaddingMode,
    ) -> Self:
        """Adds elements before and behind those of each axis.

        Args:
            pads_begin: By axis how many come before; a negative number takes some away.
            pads_end: By axis how many come behind, likewise.
            value: The one number that they are in mode ``CONSTANT``.
            mode: What they are.

        Mode ``SYMMETRIC`` takes no negative numbers.
        """
        return self._add(lambda flow, _: _pad(flow, pads_begin, pads_end, value, mode))


def _laid_out(flow: Flow, port: Port, layout: Any) -> None:
    target = port.axes if layout is None else parse_axes(layout, None)
    if target is None:
        raise ModelError("convert_layout() needs a layout, since the model's is not known.")
    if flow.axes is None:
        raise ModelError(
            "convert_layout() needs tensor().set_layout(): the tensor's layout is not known."
        )
    flow.arrange(target)


def _with_numbers(flow: Flow, op_type: str, value: float | Sequence[float], what: str) -> None:
    if not Type(flow.dtype).is_real():
        raise ModelError(
            f"{what} is for floats, and elements are {flow.dtype} here; put "
            "convert_element_type(Type.f32) before it."
        )
    numbers = np.asarray(value, np.float64)
    if numbers.ndim:
        axis = place_of(flow.axes, "C", what)
        numbers = numbers.reshape([-1 if place == axis else 1 for place in range(flow.rank)])
    flow.value = flow.emit(op_type, flow.value, flow.constant(numbers, flow.dtype))


_RESIZE: dict[ResizeAlgorithm, dict[str, Any]] = {
    ResizeAlgorithm.RESIZE_NEAREST: {"mode": "nearest"},
    ResizeAlgorithm.RESIZE_LINEAR: {"mode": "linear"},
    ResizeAlgorithm.RESIZE_CUBIC: {"mode": "cubic"},
    ResizeAlgorithm.RESIZE_BILINEAR_PILLOW: {
        "mode": "linear", "antialias": 1, "exclude_outside": 1
    },
    ResizeAlgorithm.RESIZE_BICUBIC_PILLOW: {
        "mode": "cubic", "antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5
    },
}  # fmt: skip
"""As attributes of ONNX's Resize, whose other defaults are OpenVINO's too."""


def _resize(
    flow: Flow, port: Port, algorithm: ResizeAlgorithm, given: tuple[int | None, int | None]
) -> None:
    places = [place_of(flow.axes, name, "resize()") for name in "HW"]
    sizes = []
    for name, size in zip("HW", given, strict=True):
        found = size
        if found is None:
            found = port.dims[place_of(port.axes, name, "resize() without a size")]
        if not isinstance(found, (int, np.integer)):
            raise ModelError(
                f"resize() needs a height and width: axis '{name}' of the model has no fixed size."
            )
        sizes.append(int(found))
    if algorithm is ResizeAlgorithm.RESIZE_NEAREST:
        _resized(flow, algorithm, places, sizes)
        return
    before = flow.in_floats()
    if algorithm.name.endswith("PILLOW") and before != flow.dtype:  # Pillow rounds between passes
        for place, size in reversed([*zip(places, sizes, strict=True)]):
            flow.cast(np.float32)
            _resized(flow, algorithm, [place], [size])
            flow.back_from_floats(before)
        return
    _resized(flow, algorithm, places, sizes)
    flow.back_from_floats(before)


def _resized(flow: Flow, algorithm: ResizeAlgorithm, places: list[int], sizes: list[int]) -> None:
    size = flow.ints(*sizes)
    flow.value = flow.emit(
        "Resize", flow.value, None, None, size, axes=places, **_RESIZE[algorithm]
    )


def _crop(flow: Flow, begin: Sequence[int], end: Sequence[int]) -> None:
    if len(begin) != flow.rank or len(end) != flow.rank:
        raise ModelError(f"crop() needs {flow.rank} numbers at each end, one for each axis.")
    ends = (flow.ints(*map(int, numbers)) for numbers in (begin, end))
    flow.value = flow.emit("Slice", flow.value, *ends)


def _pad(
    flow: Flow,
    before: Sequence[int],
    behind: Sequence[int],
    value: float | Sequence[float],
    mode: PaddingMode,
) -> None:
    if len(before) != flow.rank or len(behind) != flow.rank:
        raise ModelError(f"pad() needs {flow.rank} numbers at each end, one for each axis.")
    if mode is PaddingMode.SYMMETRIC:
        _mirrored(flow, before, behind)
        return
    pads = flow.ints(*map(int, (*before, *behind)))
    numbers = np.asarray(value, np.float64)
    if numbers.size != 1:
        raise ModelError(f"pad() takes one value, not {numbers.size}.")
    is_constant = mode is PaddingMode.CONSTANT
    filling = flow.constant(numbers.reshape(()), flow.dtype) if is_constant else None
    flow.value = flow.emit("Pad", flow.value, pads, filling, mode=mode.value)


def _mirrored(flow: Flow, before: Sequence[int], behind: Sequence[int]) -> None:
    """A mirror image with the border itself: slices put in front and behind."""
    lowest = np.iinfo(np.int64).min
    for axis, (front, back) in enumerate(zip(before, behind, strict=True)):
        if front < 0 or back < 0:
            raise ModelError("pad() in mode SYMMETRIC does not accept negative numbers.")
        parts = [flow.value]
        if front:
            ends = (flow.ints(number) for number in (front - 1, lowest, axis, -1))
            parts.insert(0, flow.emit("Slice", flow.value, *ends))
        if back:
            ends = (flow.ints(number) for number in (-1, -1 - back, axis, -1))
            parts.append(flow.emit("Slice", flow.value, *ends))
        if len(parts) > 1:
            flow.value = flow.emit("Concat", *parts, axis=axis)
