"""Puts draws of operators together to a model, whose every value is known by shape and type."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance.draws.draw import Array, Draw, Rng, floats, ints
from partita_conformance.draws.graphs.onto import Link
from partita_conformance.draws.vary import aged, formal_input, schema_of


class Value(NamedTuple):
    """A value of a model.

    Attributes:
        name: In the model.
        shape: Its sizes.
        dtype: Of its elements.
        path: The operators that made it, the first one first.
        read: The values that any of these read, itself left out.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    path: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


class GraphDraw:
    """A model in the making, with inputs to feed.

    Args:
        opset: That it is written in.
        rng: Draws the elements of inputs.
        open_share: Which share of the sizes of inputs the model is to leave open.
    """

    def __init__(self, opset: int, rng: Rng, open_share: float = 0.0) -> None:
        self.opset = opset
        self.rng = rng
        self.open_share = open_share
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.arrays: list[tuple[Array, str]] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: dict[str, Array] = {}
        self.values: dict[str, Value] = {}
        self.outputs: list[Value] = []

    def input(self, array: Array) -> Value:
        """A new input of the model that is fed an array."""
        name = f"x{len(self.feeds)}"
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        sizes = [
            f"{name}_{axis}" if self.rng.random() < self.open_share else n
            for axis, n in enumerate(array.shape)
        ]
        self.inputs.append(helper.make_tensor_value_info(name, element, sizes))
        self.feeds[name] = array
        return self._known(Value(name, array.shape, array.dtype))

    def constant(self, array: Array) -> str:
        """The name of a weight, which is a new one unless the same array is one already."""
        for known, name in self.arrays:
            if known is array:
                return name
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        self.arrays.append((array, name))
        return name

    def apply(self, link: Link, *sources: Value) -> list[Value] | None:
        """Adds an operator; its results, or ``None`` if the opset has none like it.

        Args:
            link: The operator.
            sources: The values that it reads, at the link's place and in those behind it.
        """
        drawn = at_opset(link.op, link.draw, self.opset)
        made = None if drawn is None else _results(link.op, drawn)
        if drawn is None or made is None:
            return None
        taken = {link.place + i: source for i, source in enumerate(sources)}
        names, read = [], []
        for i, array in enumerate(drawn.inputs):
            if i in taken:
                names.append(taken[i].name)
                read += [taken[i].name, *taken[i].read]
            elif array is None:
                names.append("")
            elif i in drawn.constant:
                names.append(self.constant(array))
            else:
                names.append(self.input(array).name)
        number = len(self.nodes)
        outputs = [f"v{number}_{i}" for i in range(drawn.outputs)]
        node = helper.make_node(link.op, names, outputs, name=f"n{number}", **drawn.attributes)
        self.nodes.append(node)
        path = (*(sources[0].path if sources else ()), link.op)
        return [
            self._known(Value(name, shape, dtype, path, tuple(dict.fromkeys(read))))
            for name, (shape, dtype) in zip(outputs, made, strict=True)
        ]

    def _known(self, value: Value) -> Value:
        self.values[value.name] = value
        return value

    def give(self, value: Value) -> None:
        """Makes a value an output of the model, unless it is one."""
        if value not in self.outputs:
            self.outputs.append(value)

    def model(self, outputs: Sequence[Value] = ()) -> onnx.ModelProto:
        """The model of what some values are computed from, and nothing else.

        Args:
            outputs: The values that it gives; by default those that were given.
        """
        chosen = outputs or self.outputs
        needed = {value.name for value in chosen}
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.insert(0, node)
                needed |= set(node.input)
        given = [
            helper.make_tensor_value_info(
                value.name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), None
            )
            for value in chosen
        ]
        inputs = [one for one in self.inputs if one.name in needed]
        weights = [one for one in self.weights if one.name in needed]
        graph = helper.make_graph(nodes, "drawn", inputs, given, weights)
        imports = [helper.make_opsetid("", self.opset)]
        version = max(8, helper.find_min_ir_version_for(imports))
        return helper.make_model(graph, opset_imports=imports, ir_version=version)

    def feeds_of(self, model: onnx.ModelProto) -> dict[str, Array]:
        """The inputs of a model of this graph."""
        return {value.name: self.feeds[value.name] for value in model.graph.input}


def elements(rng: Rng, shape: Sequence[int], dtype: Any, op: str) -> Array:
    """Elements of an input: of both signs, unless an operator has no answer to some."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.asarray(rng.random(tuple(shape)) < 0.5)
    if kind.kind in "iu":
        return np.asarray(ints(rng, 0, 40, tuple(shape)), kind)
    numbers = floats(rng, shape)
    return np.asarray(np.abs(numbers) + 0.1 if op in _POSITIVE else numbers, kind)


_POSITIVE = ("Log", "Sqrt", "Pow", "Reciprocal")


def at_opset(op: str, drawn: Draw, opset: int) -> Draw | None:
    """The draw as an opset writes it, older or newer; ``None`` if that cannot say it."""
    if opset < drawn.opset:
        return aged(op, drawn, opset)
    schema = schema_of(op, opset)
    if schema is None:
        return None
    inputs, given = list(drawn.inputs), dict(drawn.attributes)
    if "axes" in given and "axes" not in schema.attributes:  # an input since then
        if len(inputs) > 1:
            return None
        inputs.append(np.array(given.pop("axes"), np.int64))
    if not set(given) <= set(schema.attributes):
        return None
    for i, array in enumerate(inputs):
        if array is not None and not _takes(formal_input(schema, i), array.dtype):
            return None
    constant = [*drawn.constant, len(inputs) - 1] if len(inputs) > len(drawn.inputs) else None
    return dataclasses.replace(
        drawn,
        inputs=inputs,
        attributes=given,
        opset=opset,
        constant=drawn.constant if constant is None else constant,
    )


def _takes(formal: Any, dtype: Any) -> bool:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return f"tensor({onnx.TensorProto.DataType.Name(element).lower()})" in formal.types


def _results(op: str, drawn: Draw) -> list[tuple[tuple[int, ...], Any]] | None:
    """Shapes and types of what an operator gives, by ONNX's inference; ``None`` if it fails."""
    names = ["" if array is None else f"i{i}" for i, array in enumerate(drawn.inputs)]
    outputs = [f"o{i}" for i in range(drawn.outputs)]
    node = helper.make_node(op, names, outputs, **drawn.attributes)
    types, data = {}, {}
    for i, (name, array) in enumerate(zip(names, drawn.inputs, strict=True)):
        if array is not None:
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
            types[name] = helper.make_tensor_type_proto(element, array.shape)
            if i in drawn.constant:
                data[name] = numpy_helper.from_array(array)
    schema = schema_of(op, drawn.opset)
    assert schema is not None  # noqa: S101  # see at_opset
    try:
        found: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=[helper.make_opsetid("", drawn.opset)]
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return None
    results = []
    for name in outputs:
        tensor = found[name].tensor_type if name in found else None
        if tensor is None or not tensor.HasField("shape"):
            return None
        if any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
            return None
        sizes = tuple(dim.dim_value for dim in tensor.shape.dim)
        results.append((sizes, helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    return results
