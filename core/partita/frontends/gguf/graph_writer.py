"""Writes operations and initializers of a decoder, each value with its type and shape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.gguf import weights
from partita.frontends.gguf.block_formats import QuantisedFormat
from partita.frontends.gguf.container import GgufFile, GgufTensor

if TYPE_CHECKING:
    import onnx_ir as ir

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

OPSET = 21
"""The ONNX opset in which the graph is written."""

Dims = Sequence[int | str]


class GraphWriter:
    """The operations of a graph in order, and the weights that they read.

    Args:
        file: Where weights come from.

    Attributes:
        nodes: What was written.
    """

    def __init__(self, file: GgufFile) -> None:
        self.nodes: list[ir.Node] = []
        self._file = file
        self._initializers: dict[str, ir.Value] = {}
        self._read: set[str] = set()

    @property
    def origin(self) -> str:
        """What messages call the file."""
        return self._file.origin

    @property
    def initializers(self) -> list[ir.Value]:
        """All weights that are read."""
        return list(self._initializers.values())

    def unread(self) -> list[str]:
        """Names of tensors of the file that nothing has asked for."""
        return [name for name in self._file.tensors if name not in self._read]

    def pass_over(self, prefix: str) -> None:
        """Lets tensors whose names start so be unread."""
        self._read.update(name for name in self._file.tensors if name.startswith(prefix))

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that the file has."""
        return self._file.tensors[name].shape

    def has(self, name: str) -> bool:
        """Whether the file has a tensor."""
        return name in self._file.tensors

    def tensor(self, name: str, shape: Sequence[int]) -> GgufTensor:
        """A tensor of the file.

        Raises:
            ModelFormatError: It is not there, or has another shape.
        """
        found = self._file.tensors.get(name)
        if found is None:
            raise ModelFormatError(
                f"{self._file.origin} has no tensor '{name}', which its metadata asks for."
            )
        if found.shape != tuple(shape):
            raise ModelFormatError(
                f"{self._file.origin}: tensor '{name}' has shape {list(found.shape)}; its metadata "
                f"asks for {list(shape)}."
            )
        self._read.add(name)
        return found

    def rows_of(self, name: str, columns: int) -> int:
        """The rows of a weight of so many columns, which no metadata tells.

        Raises:
            ModelFormatError: It is not there, or has other columns.
        """
        found = self._file.tensors.get(name)
        rows = found.shape[0] if found is not None and len(found.shape) == 2 else 1
        return self.tensor(name, [rows, columns]).shape[0]

    def rows_of_experts(self, name: str, count: int, columns: int) -> int:
        """The same for the weights of so many experts, one behind the other in one tensor."""
        found = self._file.tensors.get(name)
        rows = found.shape[1] if found is not None and len(found.shape) == 3 else 1
        return self.tensor(name, [count, rows, columns]).shape[1]

    def dims(self, value: ir.Value) -> tuple[int | str, ...]:
        """The sizes of a value that was written, symbols by name."""
        return tuple(dim if isinstance(dim, int) else str(dim.value) for dim in value.shape or ())

    def vector(self, name: str, size: int) -> ir.Value:
        """A short tensor of plain numbers as a float32 initializer."""
        return self.constant(name, self.numbers(name, size))

    def numbers(self, name: str, size: int) -> np.ndarray[Any, Any]:
        """A short tensor of plain numbers in float32."""
        return self.plain_numbers(name, [size])

    def plain_numbers(self, name: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        """The same of any shape."""
        tensor = self.tensor(name, shape)
        if isinstance(tensor.format, QuantisedFormat):
            raise ModelFormatError(
                f"{self._file.origin}: tensor '{name}' is of type {tensor.format.name}; "
                "expected one of F32, F16 and BF16."
            )
        return weights.vector(tensor)

    def constant(self, name: str, content: np.ndarray[Any, Any] | ir.TensorProtocol) -> ir.Value:
        """An initializer; the same one where the name was given before."""
        import onnx_ir as ir

        if name not in self._initializers:
            tensor = ir.Tensor(content) if isinstance(content, np.ndarray) else content
            tensor.name = name
            shape = tensor.shape  # the tensor's own one: a decoder has hundreds of them
            self._initializers[name] = ir.Value(
                name=name,
                type=ir.TensorType(tensor.dtype),
                shape=shape if isinstance(shape, ir.Shape) else ir.Shape(shape.numpy()),
                const_value=tensor,
            )
        return self._initializers[name]

    def value(self, name: str, shape: Dims, dtype: ir.DataType | None = None) -> ir.Value:
        """A value of the graph; float32 where no type is named."""
        import onnx_ir as ir

        kind = ir.TensorType(ir.DataType.FLOAT if dtype is None else dtype)
        return ir.Value(name=name, type=kind, shape=ir.Shape(shape))

    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value | None],
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """Writes an operation that is called after its first output; ``None`` leaves one out.

        Args:
            op_type: The operator.
            inputs: What it reads; ``None`` where an optional input is left out.
            outputs: What it makes, the first of a name; ``None`` where one is left out.
            domain: The operator's domain; empty for ONNX's own.
            attributes: Its attributes, as Python values.
        """
        import onnx_ir as ir

        kept = [ir.Value(name="") if value is None else value for value in outputs]
        node = ir.node(
            op_type, list(inputs), attributes, domain=domain, outputs=kept, name=kept[0].name
        )
        self.nodes.append(node)

    def apply(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        shape: Dims,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """Writes an operation of one float32 output; returns that.

        Args:
            op_type: The operator.
            inputs: What it reads; ``None`` where an optional input is left out.
            name: Of the result, and of the operation.
            shape: Of the result.
            domain: The operator's domain; empty for ONNX's own.
            attributes: Its attributes, as Python values.
        """
        result = self.value(name, shape)
        self.write(op_type, inputs, [result], domain, **attributes)
        return result

    def split(self, value: ir.Value, count: int) -> list[ir.Value]:
        """The parts of a value along its last dimension, of size 1 each."""
        shape = (*self.dims(value)[:-1], 1)
        parts = [self.value(f"{value.name}.{i}", shape, value.dtype) for i in range(count)]
        self.write("Split", [value], parts, axis=-1, num_outputs=count)
        return parts

    @contextlib.contextmanager
    def branch(self, name: str) -> Iterator[list[Any]]:
        """Writes what is computed only if a branch is taken.

        Yields:
            A list that the caller puts the branch's result into, and that then holds its graph.
        """
        import onnx_ir as ir

        outer, self.nodes = self.nodes, []
        result: list[Any] = []
        try:
            yield result
            result[:] = [ir.Graph([], result, nodes=self.nodes, name=name)]
        finally:
            self.nodes = outer

    def choose(
        self, condition: ir.Value, first: list[Any], second: list[Any], name: str, shape: Dims
    ) -> ir.Value:
        """The result of the first of two branches if a condition holds, else of the second.

        Args:
            condition: A bool of no dimensions.
            first: What :meth:`branch` has yielded for the case that it holds.
            second: The same for the other case.
            name: Of the result, and of the If.
            shape: Of the result, float32.
        """
        (then_branch,), (else_branch,) = first, second
        branches = {"then_branch": then_branch, "else_branch": else_branch}
        return self.apply("If", [condition], name, shape, **branches)
