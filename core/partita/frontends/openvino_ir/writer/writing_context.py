"""What a writer sees of one ONNX operation, and the table in which writers stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelError
from partita.frontends.openvino_ir.weights import Array, type_name
from partita.frontends.openvino_ir.writer.document import Dims, Document, Output, refuse
from partita.function_table import entered_in

if TYPE_CHECKING:
    import onnx_ir as ir

Writer = Callable[["Site"], "Output | Sequence[Output]"]

WRITERS: dict[str, Writer] = {}
"""ONNX operator to what makes layers of it."""


def writes(*op_types: str) -> Callable[[Writer], Writer]:
    """Enters a writer into the table; it returns the port of each output."""
    return entered_in(WRITERS, *op_types)


class Site:
    """One operation with the ports it reads, and the means to write layers in its place.

    Args:
        node: The operation.
        inputs: The ports, ``None`` for optional inputs that are left out.
        document: What is being written.

    Attributes:
        node: The operation.
        inputs: The ports.
    """

    def __init__(self, node: ir.Node, inputs: Sequence[Output | None], document: Document) -> None:
        self.node = node
        self.inputs = list(inputs)
        self._document = document
        self._count = 0

    # ------------------------------------------------------------------ attributes

    def integer(self, name: str, default: int = 0) -> int:
        """A whole number."""
        return self.node.attributes.get_int(name, default)

    def real(self, name: str, default: float = 0.0) -> float:
        """A number."""
        return self.node.attributes.get_float(name, default)

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        return self.node.attributes.get_string(name, default)

    def ints(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """Whole numbers."""
        return list(self.node.attributes.get_ints(name, default))

    def error(self, what: str) -> ModelError:
        """The error of an operation that cannot be written."""
        return refuse(self.node.name or "", self.node.op_type, what)

    # ------------------------------------------------------------------ ports

    def has(self, index: int) -> bool:
        """Whether there is such an input."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def read(self, index: int) -> Output:
        """An input that must be there."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise self.error(f"input {index} is missing")
        return found

    def known(self, index: int) -> Array:
        """The elements of an input that must be a constant."""
        array = self.read(index).constant
        if array is None:
            raise self.error(f"input {index} must be a constant")
        return array

    def rank(self, index: int = 0) -> int:
        """The number of dimensions of an input."""
        rank = self.read(index).rank
        if rank is None:
            raise self.error(f"the rank of input {index} is not known")
        return rank

    def axes(self, index: int, name: str = "axes") -> Output | None:
        """Axes: an input in newer opsets, an attribute in older ones; ``None`` for none."""
        if self.has(index):
            return self.read(index)
        found = self.ints(name)
        return self.const(found, np.int64) if found else None

    def result(self, place: int = 0) -> tuple[ir.DataType, Dims]:
        """Element type and dimensions of one of the operation's outputs.

        Raises:
            ModelError: The type is not known.
        """
        import onnx_ir as ir

        value = self.node.outputs[place]
        if value.dtype is None or not isinstance(value.type, ir.TensorType):
            raise self.error(f"the element type of '{value.name}' is not known")
        return value.dtype, dims_of(value)

    def is_used(self, place: int) -> bool:
        """Whether anybody reads one of the operation's outputs."""
        if place >= len(self.node.outputs):
            return False
        value = self.node.outputs[place]
        return bool(value.uses()) or value.is_graph_output()

    # ------------------------------------------------------------------ writing

    def emit(
        self,
        kind: str,
        *inputs: Output,
        version: str = "opset1",
        made: tuple[ir.DataType, Dims] | None = None,
        **data: Any,
    ) -> Output:
        """Writes a layer of one output.

        Args:
            kind: Its type.
            inputs: What it reads.
            version: The operation set.
            made: Element type and dimensions of what it makes; by default those of the
                operation's own output.
            data: Attributes; underscores at the end of a name are left out, ``None`` is no
                attribute.
        """
        return self.emit_many(kind, [self.result() if made is None else made], *inputs,
                              version=version, **data)[0]  # fmt: skip

    def emit_many(
        self,
        kind: str,
        made: Sequence[tuple[ir.DataType, Dims]],
        *inputs: Output,
        version: str = "opset1",
        **data: Any,
    ) -> list[Output]:
        """Writes a layer of several outputs.

        Args:
            kind: Its type.
            made: Element type and dimensions of each output.
            inputs: What it reads.
            version: The operation set.
            data: Attributes; underscores at the end of a name are left out, ``None`` is no
                attribute.
        """
        name = self.node.name or self.node.op_type
        if self._count:
            name = f"{name}/{kind}_{self._count}"
        self._count += 1
        texts = {
            key.rstrip("_"): _written(value) for key, value in data.items() if value is not None
        }
        return self._document.layer(kind, version, name, inputs, made, texts)

    def const(self, array: Any, dtype: Any = None) -> Output:
        """Writes a constant."""
        import onnx_ir as ir

        self._count += 1
        tensor = ir.Tensor(np.asarray(array, dtype))
        return self._document.constant(tensor, f"{self.node.name}/constant_{self._count}")

    def like(self, number: float, source: Output) -> Output:
        """A scalar constant of a port's element type."""
        return self.const(number, source.dtype.numpy())

    def convert(self, source: Output, dtype: ir.DataType) -> Output:
        """A port in another element type."""
        if source.dtype == dtype:
            return source
        name = type_name(dtype, f"'{self.node.name}'")
        return self.emit("Convert", source, made=(dtype, source.dims), destination_type=name)

    def type_name(self, dtype: ir.DataType) -> str:
        """The name that attributes have for an element type."""
        return type_name(dtype, f"'{self.node.name}'")

    def reshape(self, source: Output, shape: Sequence[int]) -> Output:
        """A port with other dimensions, all but one of them given."""
        target = self.const(list(shape), np.int64)
        made = (source.dtype, tuple(shape))
        return self.emit("Reshape", source, target, made=made, special_zero=False)

    def channels(self, source: Output, rank: int) -> Output:
        """A row, one number for each channel, in the dimensions of what has channels second."""
        if source.constant is not None:
            return self.const(source.constant.reshape(-1, *[1] * (rank - 2)))
        return self.reshape(source, [-1, *[1] * (rank - 2)])

    def binary(self, kind: str, a: Output, b: Output) -> Output:
        """Arithmetic of two ports, as numpy broadcasts them."""
        return self.emit(
            kind, a, b, made=(a.dtype, broadcast(a.dims, b.dims)), auto_broadcast="numpy"
        )


def dims_of(value: ir.Value) -> Dims:
    """Dimensions of a graph's value."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else -1 for dim in value.shape)


def broadcast(a: Dims, b: Dims) -> Dims:
    """Dimensions of what two values become together; -1 where they do not tell."""
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    pairs = zip([1] * (rank - len(a)) + [*a], [1] * (rank - len(b)) + [*b], strict=True)
    return tuple(max(x, y) if x >= 0 and y >= 0 else max(x, y) if max(x, y) > 1 else -1
                 for x, y in pairs)  # fmt: skip


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_written, value))
    return str(value)
