"""A TFLite or circle file: subgraphs, tensors and operators, read from memory that is not trusted.

The format: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.tflite.circle_schema import CIRCLE_OPERATORS, circle_options
from partita.frontends.tflite.sparse import Level, Sparsity
from partita.frontends.tflite.subgraph import Operator, Quantization, Signature, Subgraph, Tensor

T = TypeVar("T")

VERSION = 3
"""The version of the schema that TFLite files have; those of circle files have 0."""

_CUSTOM = 32
_DAMAGED = (struct.error, IndexError, ValueError, TypeError, OverflowError, UnicodeDecodeError)
"""What the accessors of flatbuffers raise where offsets lead out of the file."""


class Document:
    """What a file holds; nothing is copied but names, places and options.

    Args:
        data: The bytes, which have to stay as they are.
        origin: What messages call the file.

    Raises:
        ModelFormatError: It is cut short or damaged, or of another version; the properties say so.
    """

    def __init__(self, data: memoryview, origin: str) -> None:
        self.data, self.origin = data, origin
        self._budget = max(4 * len(data), 1 << 16)

    @cached_property
    def _model(self) -> Any:
        import tflite

        model = tflite.Model.GetRootAs(self.data, 0)
        version = self._read(model.Version)
        if version != (0 if self.is_circle else VERSION):
            raise self.error(f"its schema has version {version}, which is not known")
        return model

    @property
    def is_circle(self) -> bool:
        """Whether it is a circle file."""
        return bytes(self.data[4:8]) == b"CIR0"

    def error(self, fault: str) -> ModelFormatError:
        """The refusal of the file."""
        kind = "circle" if self.is_circle else "TFLite"
        return ModelFormatError(
            f"{self.origin} is not a {kind} file that can be read: {fault}; export it again."
        )

    def _read(self, accessor: Callable[..., T], *arguments: Any) -> T:
        """What an accessor finds; one that leads out of the file is an error."""
        try:
            return accessor(*arguments)
        except _DAMAGED as error:
            raise self.error(f"it is damaged or cut short ({error})") from error

    def _each(self, owner: Any, name: str) -> Iterator[Any]:
        """The entries of a vector of tables."""
        count = self._counted(self._read(getattr(owner, f"{name}Length")), name)
        entry = getattr(owner, name)
        for index in range(count):
            found = self._read(entry, index)
            if found is None:
                raise self.error(f"entry {index} of its {name} is missing")
            yield found

    def _counted(self, count: int, what: str) -> int:
        """A number of entries, which must not be more than the file can hold in all."""
        self._budget -= count
        if count < 0 or self._budget < 0:
            raise self.error(f"it claims more entries than it has room for ('{what}': {count})")
        return count

    def _numbers(self, owner: Any, name: str) -> tuple[int, ...]:
        self._counted(self._read(getattr(owner, f"{name}Length")), name)
        found = self._read(getattr(owner, f"{name}AsNumpy"))
        return () if isinstance(found, int) else tuple(int(number) for number in found)

    def _text(self, accessor: Callable[[], bytes | None]) -> str:
        raw = self._read(accessor) or b""
        self._counted(len(raw), "names")
        return raw.decode("utf-8", "replace")

    @cached_property
    def buffers(self) -> tuple[memoryview | None, ...]:
        """The bytes of each buffer; ``None`` where it has none."""
        return tuple(self._buffer(buffer) for buffer in self._each(self._model, "Buffers"))

    def _buffer(self, buffer: Any) -> memoryview | None:
        start, size = self._read(buffer.Offset), self._read(buffer.Size)
        if start > 1:  # behind the tables: files of more than two gigabytes
            if start + size > len(self.data):
                raise self.error(f"a buffer ends at byte {start + size} of {len(self.data)}")
            return self.data[start : start + size]
        found = self._read(buffer.DataAsNumpy)
        return None if isinstance(found, int) or not len(found) else memoryview(found)

    @cached_property
    def _codes(self) -> tuple[tuple[str, bool], ...]:
        """Name of each operator code, and whether it is a custom one."""
        import tflite

        names = _names_by_number(tflite.BuiltinOperator)
        names |= CIRCLE_OPERATORS if self.is_circle else {}
        found = []
        for code in self._each(self._model, "OperatorCodes"):
            number = self._read(code.BuiltinCode)  # the older field, where that has room
            if number == _CUSTOM:
                found.append((self._text(code.CustomCode), True))
            else:
                found.append((names.get(number, f"operator code {number}"), False))
        return tuple(found)

    @cached_property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """All of them; the first is the model."""
        found = tuple(
            self._subgraph(index, graph)
            for index, graph in enumerate(self._each(self._model, "Subgraphs"))
        )
        if not found:
            raise self.error("it has no subgraph")
        return found

    def _subgraph(self, index: int, graph: Any) -> Subgraph:
        name = self._text(graph.Name) or f"subgraph {index}"
        tensors = tuple(
            self._tensor(place, tensor) for place, tensor in enumerate(self._each(graph, "Tensors"))
        )
        operators = tuple(
            self._operator(place, operator, tensors)
            for place, operator in enumerate(self._each(graph, "Operators"))
        )
        ends = [self._numbers(graph, end) for end in ("Inputs", "Outputs")]
        for place in (place for end in ends for place in end):
            if not 0 <= place < len(tensors):
                raise self.error(f"'{name}' names tensor {place}, and has {len(tensors)}")
        return Subgraph(name, tensors, ends[0], ends[1], operators)

    def _tensor(self, index: int, tensor: Any) -> Tensor:
        name = self._text(tensor.Name)
        shape = self._numbers(tensor, "Shape")
        signature = self._numbers(tensor, "ShapeSignature")
        dims = signature if len(signature) == len(shape) else shape
        if any(dim < -1 for dim in dims) or len(dims) > 16:
            raise self.error(f"tensor {index} '{name}' has shape {list(dims)}")
        buffer = self._read(tensor.Buffer)
        if buffer >= len(self.buffers):
            raise self.error(f"tensor {index} '{name}' names buffer {buffer}, which is not there")
        data = self.buffers[buffer] if buffer else None
        if data is None and 0 in shape and buffer:
            data = memoryview(b"")
        return Tensor(
            index,
            name,
            shape if data is not None else dims,
            self._read(tensor.Type),
            data,
            self._quantization(tensor, index, shape),
            bool(self._read(tensor.IsVariable)),
            self._sparsity(tensor),
        )

    def _quantization(self, tensor: Any, index: int, shape: tuple[int, ...]) -> Quantization | None:
        found = self._read(tensor.Quantization)
        if found is None or not self._counted(self._read(found.ScaleLength), "Scale"):
            return None
        scale = np.array(self._read(found.ScaleAsNumpy), np.float32)
        zeros = np.array(self._numbers(found, "ZeroPoint") or (0,), np.int64)
        if zeros.size == 1:
            zeros = np.repeat(zeros, scale.size)
        axis = self._read(found.QuantizedDimension)
        if zeros.size != scale.size or not np.isfinite(scale).all() or (scale < 0).any():
            raise self.error(
                f"tensor {index} has {scale.size} scales and {zeros.size} zero points, or scales "
                "that are not positive numbers"
            )
        if scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size):
            raise self.error(f"tensor {index} of shape {list(shape)} has {scale.size} scales")
        return Quantization(scale, zeros, axis)

    def _sparsity(self, tensor: Any) -> Sparsity | None:
        found = self._read(tensor.Sparsity)
        if found is None:
            return None
        levels = tuple(self._level(level) for level in self._each(found, "DimMetadata"))
        order, blocks = (self._numbers(found, name) for name in ("TraversalOrder", "BlockMap"))
        return Sparsity(order, blocks, levels)

    def _level(self, level: Any) -> Level:
        import tflite

        if self._read(level.Format) == tflite.DimensionType.DENSE:
            return Level(self._read(level.DenseSize), None, np.zeros(0, np.int64))
        vectors = {
            tflite.SparseIndexVector.Int32Vector: tflite.Int32Vector,
            tflite.SparseIndexVector.Uint16Vector: tflite.Uint16Vector,
            tflite.SparseIndexVector.Uint8Vector: tflite.Uint8Vector,
        }
        lists = []
        for name in ("ArraySegments", "ArrayIndices"):
            kind = vectors.get(self._read(getattr(level, f"{name}Type")))
            table = self._read(getattr(level, name))
            if kind is None or table is None:
                raise self.error(f"a sparse axis has no '{name}'")
            vector = kind()
            self._read(vector.Init, table.Bytes, table.Pos)
            lists.append(np.array(self._numbers(vector, "Values"), np.int64))
        return Level(0, *lists)

    def _operator(self, index: int, operator: Any, tensors: tuple[Tensor, ...]) -> Operator:
        place = self._read(operator.OpcodeIndex)
        if not 0 <= place < len(self._codes):
            raise self.error(f"operator {index} names operator code {place}, which is not there")
        code, is_custom = self._codes[place]
        inputs, outputs = (self._numbers(operator, end) for end in ("Inputs", "Outputs"))
        first = tensors[outputs[0]].name if outputs and 0 <= outputs[0] < len(tensors) else ""
        label = f"operator {index} {code} '{first}'" if first else f"operator {index} {code}"
        for number in (*inputs, *outputs):
            if not -1 <= number < len(tensors):
                raise self.error(f"{label} names tensor {number}, and there are {len(tensors)}")
        raw = b""
        if is_custom:
            self._counted(self._read(operator.CustomOptionsLength), "CustomOptions")
            found = self._read(operator.CustomOptionsAsNumpy)
            raw = b"" if isinstance(found, int) else bytes(found)
        options = None if is_custom else self._options(operator)
        return Operator(index, code, is_custom, inputs, outputs, options, raw, label)

    def _options(self, operator: Any) -> Any:
        """The reader of the options, by the name of their type; ``None`` where there are none."""
        import tflite

        unions = {
            "BuiltinOptions": tflite.BuiltinOptions,
            "BuiltinOptions2": tflite.BuiltinOptions2,
        }
        for union, names in unions.items():
            number = self._read(getattr(operator, f"{union}Type"))
            table = self._read(getattr(operator, union)) if number else None
            if table is None:
                continue
            if self.is_circle and (special := circle_options(number, table)) is not None:
                return special
            name = _names_by_number(names).get(number)
            if name is not None:
                options = getattr(tflite, name)()
                self._read(options.Init, table.Bytes, table.Pos)
                return options
        return None

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """Name to signature, in the file's order."""
        found = {}
        for entry in self._each(self._model, "SignatureDefs"):
            key = self._text(entry.SignatureKey)
            place = self._read(entry.SubgraphIndex)
            if not 0 <= place < len(self.subgraphs):
                raise self.error(f"signature '{key}' names subgraph {place}, which is not there")
            graph = self.subgraphs[place]
            ends = []
            for end, known in (("Inputs", graph.inputs), ("Outputs", graph.outputs)):
                places = frozenset(known)
                named = {
                    self._text(each.Name): self._read(each.TensorIndex)
                    for each in self._each(entry, end)
                }
                if any(number not in places for number in named.values()):
                    raise self.error(
                        f"signature '{key}' names tensors that '{graph.name}' does not have as "
                        f"{end.lower()}"
                    )
                ends.append(named)
            found[key] = Signature(place, *ends)
        return found

    @cached_property
    def assigned_variables(self) -> frozenset[str]:
        """Names of variables that are assigned, apart from what they begin with."""
        first = {
            self._read(operator.options.InitSubgraphIndex)
            for graph in self.subgraphs
            for operator in graph.operators
            if operator.code == "CALL_ONCE" and hasattr(operator.options, "InitSubgraphIndex")
        }
        found = set()
        for index, graph in enumerate(self.subgraphs):
            if index in first:
                continue
            names = {
                operator.outputs[0]: self.variable(operator)
                for operator in graph.operators
                if operator.code == "VAR_HANDLE" and operator.outputs
            }
            found |= {
                names.get(operator.inputs[0], "")
                for operator in graph.operators
                if operator.code == "ASSIGN_VARIABLE" and operator.inputs
            }
        return frozenset(found)

    def variable(self, operator: Operator) -> str:
        """The name of the variable that a VAR_HANDLE stands for.

        Raises:
            ModelFormatError: It has no name.
        """
        if not hasattr(operator.options, "SharedName"):
            raise self.error(f"{operator} names no variable")
        container, name = (
            self._text(operator.options.Container),
            self._text(operator.options.SharedName),
        )
        return f"{container}/{name}" if container else name


def _names_by_number(enumeration: Any) -> dict[int, str]:
    """The names of an enumeration; its class has attributes besides, its line among them."""
    return {number: name for name, number in vars(enumeration).items() if name[0] != "_"}
