"""Folding preprocessing and postprocessing into a model, as standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelError
from partita.frontends.opset import with_opset
from partita.frontends.value_names import TakenNames
from partita.model.model import Model, find_port
from partita.model.model import Port as ModelPort
from partita.preprocess.axes import Axes, parse_axes, permutation, permuted
from partita.preprocess.flow import Flow
from partita.preprocess.formats import ColorFormat
from partita.preprocess.ports import InputInfo, InputTensorInfo, OutputInfo
from partita.preprocess.steps import Port

if TYPE_CHECKING:
    import onnx_ir as ir


_OPSET = 18
"""The first in which Resize takes axes and averages over what it shrinks."""


class PrePostProcessor:
    """Makes a model take and give the tensors that an application has.

    Args:
        model: The model; :meth:`build` changes it.

    Example::

        ppp = PrePostProcessor(model)
        ppp.input().tensor().set_element_type(Type.u8).set_layout("NHWC")
        ppp.input().preprocess().convert_element_type(Type.f32).scale(255.0)
        ppp.input().model().set_layout("NCHW")
        model = ppp.build()
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._inputs: dict[str, InputInfo] = {}
        self._outputs: dict[str, OutputInfo] = {}

    def input(self, key: int | str | None = None) -> InputInfo:
        """An input, by index or name; may be left out if there is one.

        Raises:
            ModelError: There is no such input, or none is named and there are several.
        """
        port = find_port(self._model.inputs, key, f"Model '{self._model.name}'")
        return self._inputs.setdefault(port.name, InputInfo())

    def output(self, key: int | str | None = None) -> OutputInfo:
        """An output, by index or name; may be left out if there is one.

        Raises:
            ModelError: There is no such output, or none is named and there are several.
        """
        port = find_port(self._model.outputs, key, f"Model '{self._model.name}'")
        return self._outputs.setdefault(port.name, OutputInfo())

    def build(self) -> Model:
        """Folds all steps into the model, and returns it.

        Conversions to the model's element type and layout that no step does are put at the end. A
        model of an ONNX opset before 18 is converted to that, and before 23 where there are custom
        steps.

        Raises:
            ModelError: A step does not fit the tensor, or what comes of all steps not the model;
                the model is as it was then.
        """
        from partita.model.inference.shape_inference import infer_shapes

        opsets = [way.preprocess().opset for way in self._inputs.values()]
        opsets += [back.postprocess().opset for back in self._outputs.values()]
        work = with_opset(self._model.clone(), max([_OPSET, *opsets]))
        graph = work.ir.graph
        taken = TakenNames(str(node.name) for node in graph.all_nodes())
        taken.take(str(value.name) for node in graph.all_nodes() for value in node.outputs)
        taken.take(str(value.name) for value in (*graph.inputs, *graph.initializers.values()))
        ends = []
        for name, way in self._inputs.items():
            port = work.input(name)
            ends.append((port, _fold_input(graph, port, way, taken)))
        for name, back in self._outputs.items():
            _fold_output(graph, work.output(name), back, taken)
        infer_shapes(work.ir)
        for port, value in ends:
            _check_fit(port, value)
        self._model.ir = work.ir
        return self._model


def _fold_input(graph: ir.Graph, port: ModelPort, way: InputInfo, taken: TakenNames) -> ir.Value:
    """Puts the steps before an input; the value that the model gets now."""
    if port.shape is None or port.dtype is None:
        raise ModelError(f"The rank or type of input '{port.name}' is not known.")
    info, steps = way.tensor(), way.preprocess()
    axes = _axes_of(port, way.model().layout)
    shape, own = _tensor_shape(port.name, info, port.shape, axes, steps.orders)
    dtype = port.dtype if info.dtype is None else info.dtype
    inside = graph.inputs[port.index]
    inside.name = taken.fresh(f"{port.name}/preprocessed")
    values = [_input_value(name, dtype, dims) for name, dims in _planes_of(port.name, info, shape)]
    flow = Flow(
        values[0],
        values[1:],
        dtype,
        own,
        info.color,
        len(shape),
        f"{port.name}/preprocess",
        taken,
        graph.opset_imports[""],
    )
    far = Port(port.dtype, axes, port.shape)
    for step in steps.steps:
        step(flow, far)
    flow.cast(port.dtype)
    if axes is not None and flow.axes is not None:
        flow.arrange(axes)
    inside.replace_all_uses_with(flow.value, replace_graph_outputs=True)
    graph.inputs[port.index : port.index + 1] = values
    _put(graph, flow, at_start=True)
    return flow.value


def _fold_output(graph: ir.Graph, port: ModelPort, back: OutputInfo, taken: TakenNames) -> None:
    """Puts the steps behind an output."""
    if port.shape is None or port.dtype is None:
        raise ModelError(f"The rank or type of output '{port.name}' is not known.")
    info = back.tensor()
    rank = len(port.shape)
    axes = _axes_of(port, back.model().layout)
    target = None if info.layout is None else parse_axes(info.layout, None)
    value = graph.outputs[port.index]
    undefined = ColorFormat.UNDEFINED
    name, opset = f"{port.name}/postprocess", graph.opset_imports[""]
    flow = Flow(value, (), port.dtype, axes, undefined, rank, name, taken, opset)
    far = Port(port.dtype if info.dtype is None else info.dtype, target, port.shape)
    for step in back.postprocess().steps:
        step(flow, far)
    if info.dtype is not None:
        flow.cast(info.dtype)
    if target is not None and flow.axes is not None:
        flow.arrange(target)
    if flow.value is value:
        return
    if not value.is_graph_input():
        value.name = taken.fresh(f"{port.name}/before_postprocess")
        flow.value.name = port.name
    graph.outputs[port.index] = flow.value
    _put(graph, flow, at_start=False)


def _axes_of(port: ModelPort, layout: Any) -> Axes | None:
    """The axes of a model's port by a layout, or by the one that the port itself has."""
    if layout is None and port.layout.empty:
        return None
    rank = None if port.shape is None else len(port.shape)
    return parse_axes(port.layout if layout is None else layout, rank)


def _put(graph: ir.Graph, flow: Flow, at_start: bool) -> None:
    """Writes what a flow has made into the graph."""
    for value in flow.constants:
        graph.register_initializer(value)
    if at_start and len(graph):
        graph.insert_before(graph[0], flow.nodes)
    else:
        graph.extend(flow.nodes)


def _tensor_shape(
    name: str,
    info: InputTensorInfo,
    dims: Sequence[Any],
    axes: Axes | None,
    orders: Sequence[Sequence[int]],
) -> tuple[list[Any], Axes | None]:
    """The dimensions and axes of an application's tensor: as given, or as the model has them."""
    layout = info.layout
    if layout is None and info.color is not ColorFormat.UNDEFINED:
        layout = "NHWC"
    rank = None if info.shape is None else len(info.shape)
    shape = list(dims)
    if layout is None or axes is None:
        own = axes
        for places in reversed(orders):  # what came of putting axes in order is the model's order
            back = [int(place) for place in np.argsort(places)]
            shape = permuted(shape, back)
            own = None if own is None else tuple(permuted(own, back))
    if layout is not None:
        text = str(layout)
        own = parse_axes(layout, rank if rank is not None or "..." not in text else len(dims))
        if axes is not None:
            kept = tuple(axis for axis in axes if axis in own or axis == "?")
            shape = [dim for dim, axis in zip(dims, axes, strict=True) if axis in kept]
            shape = permuted(shape, permutation(kept, own))
        elif len(own) != len(dims):
            raise ModelError(
                f"Input '{name}' has {len(dims)} dimensions and its tensor {len(own)}; say with "
                "model().set_layout() which those are."
            )
    if info.color.channels and own is not None and "C" in own:
        shape[own.index("C")] = info.color.channels
    if info.image_size is not None:
        for axis, size in zip("HW", info.image_size, strict=True):
            if own is None or axis not in own:
                raise ModelError(
                    f"Height and width of the tensor for input '{name}' take a layout with 'H' "
                    "and 'W'; give one with set_layout()."
                )
            shape[own.index(axis)] = size
    if info.shape is not None:
        shape = list(info.shape)
    return shape, own


def _planes_of(
    name: str, info: InputTensorInfo, shape: Sequence[Any]
) -> list[tuple[str, Sequence[Any]]]:
    """Names and dimensions of the tensors that an image comes in."""
    if not info.color.is_yuv:
        return [(name, shape)]
    if len(shape) != 4:
        raise ModelError(f"An image of '{info.color.name}' has 4 dimensions, not {len(shape)}.")
    batch, height, width, _ = shape
    for size in (height, width):
        if isinstance(size, int) and size % 2:
            raise ModelError(f"Sides of an image of '{info.color.name}' are even; found {size}.")
    if not info.color.planes:
        if info.shape is not None:
            return [(name, shape)]
        return [(name, (batch, height * 3 // 2 if isinstance(height, int) else None, width, 1))]
    half = [size // 2 if isinstance(size, int) else None for size in (height, width)]
    channels = [1, 2] if len(info.color.planes) == 2 else [1, 1, 1]
    return [
        (f"{name}/{plane}", (batch, *((height, width) if not place else half), count))
        for place, (plane, count) in enumerate(zip(info.plane_names, channels, strict=True))
    ]


def _input_value(name: str, dtype: np.dtype[Any], dims: Sequence[Any]) -> ir.Value:
    import onnx_ir as ir

    return ir.Value(
        name=name, type=ir.TensorType(ir.DataType.from_numpy(dtype)), shape=ir.Shape(list(dims))
    )


def _check_fit(port: ModelPort, value: ir.Value) -> None:
    """Refuses steps whose result the model does not take."""
    shape = value.shape
    if shape is None or port.shape is None:
        return
    fits = len(shape) == len(port.shape) and all(
        one == other
        for one, other in zip(shape, port.shape, strict=True)
        if isinstance(one, int) and isinstance(other, int)
    )
    if not fits:
        raise ModelError(
            f"Input '{port.name}' takes {port.describe()}, and the steps before it make "
            f"{list(shape)} of its tensor. Check the layouts, or add resize(), crop() or pad()."
        )
