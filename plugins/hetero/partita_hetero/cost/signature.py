"""Signatures: a text that is equal for equal work; it leaves out names and weights, not shapes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partita.model.model import numpy_dtype, value_shape
from partita_hetero.partition.op_graph import OpGraph

if TYPE_CHECKING:
    import onnx_ir as ir

_SMALL = 64
"""Integer constants of at most so many elements are kept: they are axes, shapes and sizes."""


class Signatures:
    """Signatures of sets of operations of one model.

    Args:
        op_graph: The model's operations.
        varies: Whether what was compiled is for other shapes too, which costs some devices time.
    """

    def __init__(self, op_graph: OpGraph, varies: bool = False) -> None:
        self._op_graph = op_graph
        self._varies = varies
        self._nodes: dict[int, str] = {}

    @functools.cached_property
    def of_model(self) -> str:
        """Signature of the whole model."""
        return _digest(self._lines(range(len(self._op_graph.nodes)), self._op_graph.outputs))

    def of(self, ops: Sequence[int], outputs: Sequence[str] = ()) -> str:
        """Signature of operations that are compiled as one submodel.

        Operators, versions, attributes, connections, types and shapes of all that comes in count;
        so do small integer constants and which values come out. Names and weights do not. Where a
        shape is not known, the work is only equal to itself: its place in its model counts then.

        Args:
            ops: Indices, ascending.
            outputs: What comes out; empty for what the last operation writes.
        """
        lines = self._lines(ops, outputs or self._op_graph.writes[ops[-1]])
        if any("?" in line for line in lines):
            lines += [self.of_model, ",".join(map(str, ops))]
        if self._varies:
            lines.append("for other shapes too")
        return _digest(lines)

    def _lines(self, ops: Sequence[int], outputs: Sequence[str]) -> list[str]:
        """The work, an operation a line, with values numbered as they appear."""
        closed = self._with_constants(ops)
        number: dict[str, str] = {}
        lines = []
        for op in closed:
            node = self._op_graph.nodes[op]
            reads = []
            for value in node.inputs:
                if value is None:
                    reads.append("-")
                    continue
                name = value.name or ""
                if name not in number:
                    number[name] = f"{len(number)}:{_describe(value)}"
                reads.append(number[name])
            for value in node.outputs:
                number[value.name or ""] = f"{len(number)}"
            lines.append(f"{self._node(op)}({','.join(reads)})")
        lines.append("->" + ",".join(number.get(name, "in").split(":")[0] for name in outputs))
        return lines

    def label(self, ops: Sequence[int]) -> str:
        """What it is, for people: ``Conv+Relu f32[1,64,56,56]``."""
        types = [self._op_graph.nodes[op].op_type for op in ops]
        text = "+".join(types[:4]) + (f"+{len(types) - 4} more" if len(types) > 4 else "")
        return f"{text} {_describe(self._op_graph.nodes[ops[-1]].outputs[0])}"

    def _with_constants(self, ops: Sequence[int]) -> list[int]:
        """With the constant operations that are computed along."""
        needed = set(ops)
        stack = list(ops)
        while stack:
            for source in self._op_graph.preds[stack.pop()]:
                if self._op_graph.constant[source] and source not in needed:
                    needed.add(source)
                    stack.append(source)
        return sorted(needed)

    def _node(self, op: int) -> str:
        if op not in self._nodes:
            node = self._op_graph.nodes[op]
            version = node.version
            if version is None and node.graph is not None:
                version = node.graph.opset_imports.get(node.domain)
            attributes = ";".join(
                f"{name}={_attribute(node.attributes[name])}" for name in sorted(node.attributes)
            )
            self._nodes[op] = f"{node.domain}.{node.op_type}.{version}[{attributes}]"
        return self._nodes[op]


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _describe(value: ir.Value) -> str:
    """Type and shape, and whether it is constant; the elements of small integer constants."""
    shape = value_shape(value)
    dims = (
        "?"
        if shape is None
        else ",".join(str(dim) if isinstance(dim, int) else "?" for dim in shape)
    )
    dtype = numpy_dtype(value.dtype)
    text = f"{dtype}[{dims}]"
    constant = value.const_value
    if constant is None:
        return text
    dims = ",".join(map(str, constant.shape.numpy()))
    text = f"const {constant.dtype}[{dims}]"
    if constant.size <= _SMALL and dtype is not None and dtype.kind in "iub":
        text += str(constant.numpy().ravel().tolist())
    return text


def _attribute(attribute: ir.Attr) -> str:
    import onnx_ir as ir

    match attribute.type:
        case ir.AttributeType.GRAPH | ir.AttributeType.GRAPHS:
            message = ir.to_proto(attribute).SerializeToString()
            return hashlib.sha256(message).hexdigest()
        case ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            return f"{tensor.dtype}{tensor.shape}{_elements(tensor)}"
        case _:
            return str(attribute.value)


def _elements(tensor: ir.TensorProtocol) -> str:
    return str(tensor.numpy().ravel().tolist()) if tensor.size <= _SMALL else ""
