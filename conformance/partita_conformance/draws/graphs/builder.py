"""Puts draws of operators together to a model, whose every value is known by shape and type."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance.draws.draw import Array, Draw, Rng, floats, ints
from partita_conformance.draws.graphs.onto import Link
from partita_conformance.draws.vary import aged, formal_input, schema_of

LINEAR = ("MatMul", "Gemm", "Conv", "ConvTranspose")
"""Operators that weigh their first input by the second one."""


class Value(NamedTuple):
    """A value of a model.

    Attributes:
        name: In the model.
        shape: Its sizes; ``None`` if elements decide them.
        dtype: Of its elements.
        path: The operators that made it, the first one first.
        read: The values that any of these read, itself left out.
    """

    name: str
    shape: tuple[int, ...] | None
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
        self.shared: set[str] = set()
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

    def constant(self, array: Array, shared: bool = False) -> str:
        """The name of a weight, which is a new one unless the same array is one already.

        Args:
            array: Its elements.
            shared: Whether another weight of the shape and type may be read in its stead.
        """
        for known, name in self.arrays:
            alike = shared and known.shape == array.shape and known.dtype == array.dtype
            if known is array or (alike and name in self.shared and self.rng.random() < 0.5):
                return name
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        self.arrays.append((array, name))
        if shared:
            self.shared.add(name)
        return name

    def apply(self, link: Link, *sources: Value) -> list[Value] | None:
        """Adds an operator; its results, or ``None`` if the opset has none like it.

        Args:
            link: The operator.
            sources: The values that it reads, at the link's place and in those behind it.
        """
        return self.add(link.op, link.draw, {link.place + i: x for i, x in enumerate(sources)})

    def add(self, op: str, draw: Draw, taken: Mapping[int, Value]) -> list[Value] | None:
        """Adds an operator; its results, or ``None`` if the opset has none like it.

        Args:
            op: The operator.
            draw: What its inputs hold that no value of the model is read for.
            taken: The values of the model that are read, by the inputs' places.
        """
        drawn = at_opset(op, draw, self.opset)
        unsaid = drawn is None or [] in drawn.attributes.values()  # e.g. no axes, as an attribute
        made = None if drawn is None or unsaid else _results(op, drawn)
        if drawn is None or made is None:
            return None
        names, read = [], []
        for i, array in enumerate(drawn.inputs):
            if i in taken:
                names.append(taken[i].name)
                read += [taken[i].name, *taken[i].read]
            elif array is None:
                names.append("")
            elif i in drawn.constant:
                names.append(self.constant(array, i == 1 and op in LINEAR))
            else:
                names.append(self.input(array).name)
        number = len(self.nodes)
        outputs = [f"v{number}_{i}" for i in range(drawn.outputs)]
        node = helper.make_node(op, names, outputs, name=f"n{number}", **drawn.attributes)
        self.nodes.append(node)
        path = (*max((value.path for value in taken.values()), key=len, default=()), op)
        return [
            self._known(Value(name, shape, dtype, path, tuple(dict.fromkeys(read))))
            for name, (shape, dtype) in zip(outputs, made, strict=True)
        ]

    def branch(self, value: Value) -> Value:
        """Adds a branch both of whose bodies read a value of the model."""
        number = len(self.nodes)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        bodies = {}
        for side, op in (("then", "Neg"), ("else", "Abs")):
            name = f"{side}{number}"
            given = helper.make_tensor_value_info(name, element, None)
            nodes = [helper.make_node(op, [value.name], [name], name=f"{name}n")]
            bodies[f"{side}_branch"] = helper.make_graph(nodes, name, [], [given])
        condition = self.input(np.asarray(self.rng.random() < 0.5)).name
        made = Value(f"v{number}_0", value.shape, value.dtype, (*value.path, "If"), value.read)
        node = helper.make_node("If", [condition], [made.name], name=f"n{number}", **bodies)
        self.nodes.append(node)
        return self._known(made)

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
                needed |= set(node.input) | _captured(node)
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

    def without(self, refused: Collection[str]) -> list[Value]:
        """The outputs that are computed without some operations, named as nodes are."""
        lost: set[str] = set()
        for node in self.nodes:
            if node.name in refused or lost & ({*node.input} | _captured(node)):
                lost |= set(node.output)
        return [value for value in self.outputs if value.name not in lost]

    def feeds_of(self, model: onnx.ModelProto) -> dict[str, Array]:
        """The inputs of a model of this graph."""
        return {value.name: self.feeds[value.name] for value in model.graph.input}


def _captured(node: onnx.NodeProto) -> set[str]:
    """The names that a node's bodies read."""
    bodies = [given.g for given in node.attribute if given.HasField("g")]
    return {name for body in bodies for inner in body.node for name in inner.input}


def elements(rng: Rng, shape: Sequence[int], dtype: Any, op: str) -> Array:
    """Elements of an input: of both signs, unless an operator has no answer to some."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.asarray(rng.random(tuple(shape)) < 0.5)
    if kind.kind in "iu":
        low, high = (-6, 6) if op == "OneHot" else (0 if kind.itemsize == 1 else -20, 40)
        return np.asarray(ints(rng, low, high, tuple(shape)), kind)
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


def _results(op: str, drawn: Draw) -> list[tuple[tuple[int, ...] | None, Any]] | None:
    """Shapes and types of what an operator gives, by ONNX's inference; ``None`` if it fails.

    A shape that elements decide is ``None``, and so is that of windows whose number is rounded up:
    ONNX's inference counts those that begin behind the end.
    """
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
        if tensor is None or not tensor.elem_type:
            return None
        dims = tensor.shape.dim
        known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
        known = known and not drawn.attributes.get("ceil_mode")
        sizes = tuple(dim.dim_value for dim in dims) if known else None
        results.append((sizes, helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    return results
