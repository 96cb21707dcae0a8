"""Writes ONNX graphs and computes their values at the same time, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from partita_conformance.draws.makeup.contents import Unfit, dtype_of
from partita_conformance.draws.makeup.names import STYLES
from partita_conformance.draws.makeup.traits import Makeup
from partita_conformance.inputs.models import Array


@dataclass(frozen=True)
class Value:
    """A value of the model, and what it holds."""

    name: str
    array: Array = field(repr=False)


@dataclass
class Scope:
    """A graph that is being written: the model's, that of a body or a function."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    sparse: list[onnx.SparseTensorProto] = field(default_factory=list)
    is_function: bool = False


def element_of(array: Array) -> int:
    """ONNX's type of an array's elements."""
    return TensorProto.STRING if array.dtype.hasobject else helper.np_dtype_to_tensor_dtype(
        array.dtype
    )  # fmt: skip


class Writer:
    """Writes the graph of a makeup.

    Args:
        makeup: How names, constants and nodes are to be.
        known: Constants of an earlier time, in their order, so that models of other inputs have the
            same ones.
    """

    def __init__(self, makeup: Makeup, known: Sequence[Array] = ()) -> None:
        self.makeup = makeup
        self.main = Scope()
        self.scope = self.main
        self.listed: list[Value] = []
        self.values: list[Value] = []
        self.constants: list[Array] = []
        self._known = list(known)
        self._names = STYLES[makeup["names"]]
        self._count = self._nodes = 0

    def name(self) -> str:
        """A name that no value has yet."""
        self._count += 1
        return self._names(self._count - 1)

    @contextlib.contextmanager
    def inside(self, scope: Scope, restart: int | None = None) -> Iterator[int]:
        """Writes to another graph; gives the number at which names go on.

        Args:
            scope: The graph.
            restart: Where names begin, to have those of another branch again.
        """
        around, count = self.scope, self._count
        self.scope = scope
        begin = count if restart is None else restart
        self._count = begin
        try:
            yield begin
        finally:
            self.scope, self._count = around, max(count, self._count)

    def node(
        self, op: str, inputs: Sequence[Value | str], result: Any, domain: str = "", **given: Any
    ) -> Value:
        """Writes an operation of one output, whose value is known.

        Args:
            op: The operator.
            inputs: Values, or their names; an empty one is left out.
            result: What the output is.
            domain: The operator's domain; empty for ONNX's own.
            given: Its attributes.
        """
        value = Value(self.name(), np.asarray(result))
        names = [one if isinstance(one, str) else one.name for one in inputs]
        node = helper.make_node(op, names, [value.name], domain=domain or None, **given)
        self._nodes += 1
        node.name = {
            "of their own": f"n{self._nodes}",
            "none": "",
            "all the same": "node",
            "those of values": value.name,
            "long": f"{'module/' * 40}{self._nodes}",
        }[self.makeup["names of nodes"]]
        self.scope.nodes.append(node)
        if self.scope is self.main:
            self.values.append(value)
        return value

    def array(self, make: Callable[[], Array]) -> Array:
        """The next constant: that of an earlier time, if there was one."""
        array = self._known.pop(0) if self._known else make()
        self.constants.append(array)
        return array

    def constant(self, make: Callable[[], Array], how: str = "") -> Value:
        """Writes a constant in the way of the makeup; a body's stands where that says.

        Raises:
            Unfit: No such constant is written so.
        """
        array = self.array(make)
        stand = self.makeup["constants of bodies stand"]
        if self.scope is self.main:
            return _CARRIERS[how or self.makeup["constants are"]](self, array)
        if stand == "inside, as nodes" or self.scope.is_function:
            return self.as_node(array)
        return self.weight(array)

    def weight(self, array: Array, name: str | None = None) -> Value:
        """An initializer of the graph that is written."""
        value = Value(self.name() if name is None else name, array)
        self.scope.weights.append(numpy_helper.from_array(array, value.name))
        return value

    def as_node(self, array: Array) -> Value:
        """A node ``Constant``."""
        return self.node("Constant", [], array, value=numpy_helper.from_array(array))

    def as_numbers(self, array: Array) -> Value:
        """A node ``Constant`` of a number or several, if their type allows it."""
        kinds = {"float32": "float", "int64": "int", "object": "string"}
        kind = kinds.get(array.dtype.name)
        if kind is None or array.ndim > 1 or not array.size:
            raise Unfit("no attribute has such numbers")
        given = {f"value_{kind}s": array.tolist()} if array.ndim else {f"value_{kind}": array[()]}
        return self.node("Constant", [], array, **given)

    def in_fields(self, array: Array) -> Value:
        """An initializer whose elements are in the field of their type."""
        value = Value(self.name(), array)
        items = array.reshape(-1).tolist()
        if array.dtype.hasobject:
            items = [text.encode() for text in items]
        made = helper.make_tensor(value.name, element_of(array), array.shape, items)
        self.scope.weights.append(made)
        return value

    def in_inputs(self, array: Array) -> Value:
        """An initializer that is listed among the inputs too."""
        value = self.weight(array)
        self.listed.append(value)
        return value

    def sparse(self, array: Array) -> Value:
        """A sparse initializer."""
        if array.dtype.kind not in "fiu" or not array.ndim or not array.size:
            raise Unfit("no sparse one of that type")
        flat = array.reshape(-1)
        (places,) = np.nonzero((flat != 0) | np.signbit(flat) if flat.dtype.kind == "f" else flat)
        value = Value(self.name(), array)
        made = helper.make_sparse_tensor(
            numpy_helper.from_array(flat[places], value.name),
            numpy_helper.from_array(places.astype(np.int64), "places"),
            array.shape,
        )
        self.scope.sparse.append(made)
        return value

    def of_a_shape(self, array: Array) -> Value:
        """What ``ConstantOfShape`` makes."""
        flat = array.reshape(-1)
        plain = array.dtype.kind in "fiub" and array.dtype.itemsize > 0
        if not plain or not flat.size or len({bytes(one) for one in flat}) > 1:
            raise Unfit("of one value alone")
        shape = self.weight(np.array(array.shape, np.int64))
        value = numpy_helper.from_array(flat[:1])
        return self.node("ConstantOfShape", [shape], array, value=value)

    def reshaped(self, array: Array) -> Value:
        """A row, and a shape."""
        parts = self.weight(array.reshape(-1)), self.weight(np.array(array.shape, np.int64))
        return self.node("Reshape", parts, array)

    def turned(self, array: Array) -> Value:
        """What is turned once and again."""
        if array.ndim != 2:
            raise Unfit("of matrices alone")
        across = self.node("Transpose", [self.weight(array)], array.T, perm=[1, 0])
        return self.node("Transpose", [across], array)

    def cast(self, array: Array) -> Value:
        """What is cast from a wider type, or from another one that holds it."""
        wide = "float" if array.dtype.itemsize == 2 and array.dtype.kind not in "iu" else "double"
        if array.dtype.kind in "iu":
            wide = "int32" if array.dtype.itemsize == 8 else "int64"
        if array.dtype.kind == "b":
            wide = "uint8"
        with np.errstate(all="ignore"):
            before = array.astype(dtype_of(wide)) if not array.dtype.hasobject else array
            same = before.astype(array.dtype)
        if array.dtype.hasobject or same.tobytes() != array.tobytes():
            raise Unfit("no other type holds it")
        return self.node("Cast", [self.weight(before)], array, to=element_of(array))

    def joined(self, array: Array) -> Value:
        """What is joined with itself, and cut off again."""
        if not array.ndim:
            raise Unfit("it has no axis")
        whole = self.weight(array)
        both = self.node("Concat", [whole, whole], np.concatenate([array] * 2), axis=0)
        begin, end = self.weight(np.array([0])), self.weight(np.array([len(array)]))
        return self.node("Slice", [both, begin, end], array)

    def chosen(self, array: Array) -> Value:
        """What a branch gives whose condition is known."""
        condition, weight = self.weight(np.array(True)), self.weight(array)
        branches: list[onnx.GraphProto] = []
        for _ in range(2):
            with self.inside(Scope()):
                value = self.node("Identity", [weight], array)
                if branches:
                    value = (
                        self.node("Concat", [weight] * 2, array, axis=0) if array.ndim else value
                    )
                branches.append(body("branch", self.scope, [], [value]))
        then, other = branches
        return self.node("If", [condition], array, then_branch=then, else_branch=other)

    def gathered(self, array: Array) -> Value:
        """A row of a table."""
        table = self.weight(np.stack([array[..., ::-1] if array.ndim else array, array]))
        return self.node("Gather", [table, self.weight(np.array(1))], array)

    def handed_on(self, array: Array) -> Value:
        """What ``Identity`` makes of an initializer."""
        return self.node("Identity", [self.weight(array)], array)


_CARRIERS: dict[str, Callable[[Writer, Array], Value]] = {
    "initializers": Writer.weight,
    "nodes": Writer.as_node,
    "nodes of numbers": Writer.as_numbers,
    "handed on": Writer.handed_on,
    "reshaped": Writer.reshaped,
    "turned twice": Writer.turned,
    "cast": Writer.cast,
    "joined and cut": Writer.joined,
    "chosen by a known condition": Writer.chosen,
    "listed as inputs": Writer.in_inputs,
    "sparse": Writer.sparse,
    "of a shape": Writer.of_a_shape,
    "gathered": Writer.gathered,
    "in fields": Writer.in_fields,
}


def info(value: Value, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    """A port of a value's type, of a shape if one is known."""
    return helper.make_tensor_value_info(value.name, element_of(value.array), shape)


def body(
    name: str, scope: Scope, inputs: Sequence[Value], outputs: Sequence[Value]
) -> onnx.GraphProto:
    """The graph that a scope has become."""
    return helper.make_graph(
        scope.nodes,
        name,
        [info(value, None if value.array.ndim else ()) for value in inputs],
        [info(value, None if value.array.ndim else ()) for value in outputs],
        scope.weights,
        sparse_initializer=scope.sparse,
    )
