"""A value on its way between a tensor and a model: what steps have made of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.reader import read_model
from partita.frontends.value_names import TakenNames
from partita.model.port import value_shape
from partita.preprocess.axes import Axes, permutation
from partita.preprocess.formats import ColorFormat

if TYPE_CHECKING:
    import onnx_ir as ir


class Flow:
    """Writes the operations of steps; all of them stand in the ONNX opset 18, and most in 13.

    Args:
        value: Where it begins.
        planes: Further values that belong to it, of an image in several tensors.
        dtype: The element type.
        axes: Names of the axes, if they are known.
        color: What channels stand for.
        rank: The number of axes.
        name: What operations are called after.
        taken: Names that are taken; those made here are added.
        opset: The model's.

    Attributes:
        value: What the steps so far have made.
        nodes: The operations written.
        constants: The constants that they read.
    """

    def __init__(
        self,
        value: ir.Value,
        planes: Sequence[ir.Value],
        dtype: np.dtype[Any],
        axes: Axes | None,
        color: ColorFormat,
        rank: int,
        name: str,
        taken: TakenNames,
        opset: int,
    ) -> None:
        self.value = value
        self._start = [value, *planes]
        self.planes = list(planes)
        self.dtype = dtype
        self.axes = axes
        self.color = color
        self.rank = rank
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._name = name
        self._taken = taken

    def emit(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Writes an operation of one output."""
        return self.emit_many(op_type, 1, *inputs, **attributes)[0]

    def emit_many(
        self, op_type: str, outputs: int, *inputs: ir.Value | None, **attributes: Any
    ) -> list[ir.Value]:
        """Writes an operation of several outputs.

        Args:
            op_type: An ONNX operator.
            outputs: How many values it makes.
            inputs: What it reads; ``None`` where an optional input is left out.
            attributes: Its attributes, as Python values.
        """
        import onnx_ir as ir

        name = self._fresh(op_type)
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=name)
        for place, value in enumerate(node.outputs):
            value.name = name if not place else f"{name}/{place}"
        self.nodes.append(node)
        return list(node.outputs)

    def constant(self, array: Any, dtype: Any) -> ir.Value:
        """Writes a constant."""
        import onnx_ir as ir

        held = np.asarray(array, dtype)
        name = self._fresh("constant")
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(held.dtype)),
            shape=ir.Shape(held.shape),
            const_value=ir.Tensor(held, name=name),
        )
        self.constants.append(value)
        return value

    def dims(self) -> list[int | None]:
        """The dimensions of the value, as far as they follow from where it begins."""
        import onnx
        import onnx_ir as ir

        if not self.nodes:
            shape = value_shape(self._start[0])
        else:
            proto = onnx.GraphProto(name="steps", node=map(ir.serde.serialize_node, self.nodes))
            proto.input.extend(map(ir.serde.serialize_value, self._start))
            held = (value.const_value for value in self.constants)
            proto.initializer.extend(
                ir.serde.serialize_tensor(one) for one in held if one is not None
            )
            proto.output.add(name=self.value.name)
            imports = [onnx.helper.make_opsetid("", self.opset)]
            model = onnx.helper.make_model(proto, opset_imports=imports)
            shape = value_shape(read_model(model).ir.graph.outputs[0])
        if shape is None:
            return [None] * self.rank
        return [dim if isinstance(dim, int) else None for dim in shape]

    def take_over(self, graph: ir.Graph) -> None:
        """Goes on with what a graph of one input and one output computes.

        Args:
            graph: Whose operations and constants become those of the flow.
        """
        (given,), (made,) = graph.inputs, graph.outputs
        given.replace_all_uses_with(self.value)
        nodes = list(graph)
        graph.outputs.clear()
        graph.remove(nodes)
        for node in nodes:
            node.name = self._fresh(node.op_type)
            for place, value in enumerate(node.outputs):
                value.name = node.name if not place else f"{node.name}/{place}"
        for name in list(graph.initializers):
            value = graph.initializers.pop(name)
            value.name = self._fresh("constant")
            self.constants.append(value)
        self.nodes += nodes
        self.value = self.value if made is given else made

    def ints(self, *numbers: int) -> ir.Value:
        """A constant row of int64."""
        return self.constant(numbers, np.int64)

    def _fresh(self, kind: str) -> str:
        return self._taken.fresh(f"{self._name}/{kind}", "_")

    def cast(self, dtype: Any) -> None:
        """Converts the element type."""
        import onnx_ir as ir

        target = np.dtype(dtype)
        if target != self.dtype:
            kind = int(ir.DataType.from_numpy(target))
            self.value = self.emit("Cast", self.value, to=kind)
            self.planes = [self.emit("Cast", plane, to=kind) for plane in self.planes]
            self.dtype = target

    def transpose(self, places: Sequence[int]) -> None:
        """Puts axes into another order."""
        if list(places) != list(range(self.rank)):
            self.value = self.emit("Transpose", self.value, perm=list(places))
        if self.axes is not None:
            self.axes = tuple(self.axes[place] for place in places)

    def arrange(self, target: Axes) -> None:
        """Puts axes into the order of a layout; those that only it has are put in with size 1."""
        if self.axes is None:
            self.axes = target
            return
        missing = [name for name in target if name not in self.axes and name != "?"]
        if missing and len(self.axes) + len(missing) == len(target):
            self.value = self.emit("Unsqueeze", self.value, self.ints(*range(len(missing))))
            self.axes = (*missing, *self.axes)
            self.rank = len(self.axes)
        self.transpose(permutation(self.axes, target))

    def in_floats(self) -> np.dtype[Any]:
        """Goes on with floats where elements are whole numbers; the type that they had."""
        before = self.dtype
        if before.kind in "iub":
            self.cast(np.float32)
        return before

    def back_from_floats(self, dtype: np.dtype[Any]) -> None:
        """Rounds to whole numbers, within the bounds of their type, if they were some before."""
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            bounds = (self.constant(limit, self.dtype) for limit in (limits.min, limits.max))
            self.value = self.emit("Clip", self.emit("Round", self.value), *bounds)
        self.cast(dtype)
