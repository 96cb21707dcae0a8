"""The model: named views on an ``onnx_ir.Model``, the one place that holds the graph."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from partita.errors import ModelError
from partita.model.value_uses import captures, values_read
from partita.model.variables import Variable, from_metadata
from partita.tensors.element_type import Type

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

Dim = int | str | None
"""One dimension: a size, the name of a symbol, or ``None`` where nothing is known."""

_RT_INFO_PREFIX = "partita."

PROTOBUF_BYTES = 2**31 - 2**24
"""Most bytes of weights that are saved in one protobuf, which ends at 2 GiB with all the rest."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model or compiled model.

    Attributes:
        index: Position among the inputs or outputs.
        name: The ONNX value name.
        dtype: Element type, or ``None`` where the model does not tell (or it is no tensor).
        shape: Dimensions, or ``None`` where the rank is unknown.
        is_input: Whether it is an input.
    """

    index: int
    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[Dim, ...] | None
    is_input: bool = True

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return is_static(self.shape)

    @property
    def names(self) -> set[str]:
        """The name, as the set that OpenVINO's ports have."""
        return {self.name}

    @property
    def any_name(self) -> str:
        """The name (OpenVINO's spelling)."""
        return self.name

    def get_any_name(self) -> str:
        """The name (OpenVINO's spelling)."""
        return self.name

    @property
    def partial_shape(self) -> tuple[Dim, ...] | None:
        """The dimensions (OpenVINO's spelling)."""
        return self.shape

    @property
    def element_type(self) -> Type:
        """The element type by OpenVINO's name; ``Type.dynamic`` where the model does not tell."""
        return Type(self.dtype)

    def get_shape(self) -> tuple[Dim, ...] | None:
        """The dimensions (OpenVINO's spelling)."""
        return self.shape

    def get_partial_shape(self) -> tuple[Dim, ...] | None:
        """The dimensions (OpenVINO's spelling)."""
        return self.shape

    def get_element_type(self) -> Type:
        """The element type (OpenVINO's spelling of :attr:`element_type`)."""
        return self.element_type

    def describe(self) -> str:
        """Type and shape as a person reads them: ``float32[1, 3, H, W]``."""
        dims = (
            "..."
            if self.shape is None
            else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        )
        return f"{self.dtype if self.dtype is not None else 'unknown type'}[{dims}]"


class RuntimeInfo(MutableMapping[str, str]):
    """Notes on an operation, kept in the node's metadata so that they survive ``model.save()``."""

    def __init__(self, metadata: MutableMapping[str, str]) -> None:
        self._metadata = metadata

    def __getitem__(self, key: str) -> str:
        return self._metadata[_RT_INFO_PREFIX + key]

    def __setitem__(self, key: str, value: object) -> None:
        self._metadata[_RT_INFO_PREFIX + key] = str(value)

    def __delitem__(self, key: str) -> None:
        del self._metadata[_RT_INFO_PREFIX + key]

    def __iter__(self) -> Iterator[str]:
        start = len(_RT_INFO_PREFIX)
        return (key[start:] for key in self._metadata if key.startswith(_RT_INFO_PREFIX))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Op:
    """One operation of a model: a view, valid as long as the model's graph is not edited.

    Attributes:
        node: The ``onnx_ir.Node`` itself.
    """

    __slots__ = ("node",)

    def __init__(self, node: ir.Node) -> None:
        self.node = node

    @property
    def name(self) -> str:
        """The friendly name, unique in the model."""
        return self.node.name or ""

    @property
    def op_type(self) -> str:
        """The operator, e.g. ``"Conv"``."""
        return self.node.op_type

    @property
    def domain(self) -> str:
        """The operator's domain; ``""`` is ONNX's own."""
        return self.node.domain

    @property
    def version(self) -> int:
        """The opset version that the model imports for the domain."""
        if self.node.version is not None:
            return self.node.version
        graph = self.node.graph
        return 1 if graph is None else graph.opset_imports.get(self.node.domain, 1)

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Names of the values read; ``None`` for an optional input that is left out."""
        return tuple(None if value is None else value.name for value in self.node.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values written; empty for an optional output that is left out."""
        return tuple(value.name or "" for value in self.node.outputs)

    @property
    def rt_info(self) -> RuntimeInfo:
        """Notes on the operation; ``rt_info["affinity"]`` pins it to a device."""
        return RuntimeInfo(self.node.metadata_props)

    @property
    def affinity(self) -> str | None:
        """The device that the operation is pinned to, or ``None``."""
        return self.node.metadata_props.get(_RT_INFO_PREFIX + "affinity")

    @affinity.setter
    def affinity(self, device: str | None) -> None:
        if device is None:
            self.rt_info.pop("affinity", None)
        else:
            self.rt_info["affinity"] = device

    @property
    def friendly_name(self) -> str:
        """The friendly name (OpenVINO's spelling of :attr:`name`)."""
        return self.name

    def get_friendly_name(self) -> str:
        """The friendly name (OpenVINO's spelling of :attr:`name`)."""
        return self.name

    def get_type_name(self) -> str:
        """The operator (OpenVINO's spelling of :attr:`op_type`)."""
        return self.op_type

    def get_rt_info(self) -> RuntimeInfo:
        """The notes (OpenVINO's spelling of :attr:`rt_info`)."""
        return self.rt_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and other.node is self.node

    def __hash__(self) -> int:
        return hash(self.node)

    def __repr__(self) -> str:
        return f"<Op {self.name!r} {self.domain + '::' if self.domain else ''}{self.op_type}>"


class Model:
    """An ONNX model with unique operation names and inferred shapes.

    Made by :meth:`partita.Core.read_model`; :func:`~partita.frontends.reader.read_model` says what
    it checks.

    Attributes:
        ir: The ``onnx_ir.Model``. Editing its graph by hand is allowed; keep node names unique.
    """

    def __init__(self, ir_model: ir.Model) -> None:
        self.ir = ir_model

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.ir.graph.name or "model"

    friendly_name = name

    def get_friendly_name(self) -> str:
        """The graph's name (OpenVINO's spelling)."""
        return self.name

    @property
    def ops(self) -> list[Op]:
        """All operations in topological order, without those in bodies of If, Loop and Scan."""
        return [Op(node) for node in self.ir.graph]

    def get_ops(self) -> list[Op]:
        """All operations (OpenVINO's spelling of :attr:`ops`)."""
        return self.ops

    get_ordered_ops = get_ops

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs in order."""
        return tuple(_port(i, value, True) for i, value in enumerate(self.ir.graph.inputs))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs in order."""
        return tuple(_port(i, value, False) for i, value in enumerate(self.ir.graph.outputs))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """What a request hands on from run to run; its inputs and outputs come last.

        Raises:
            ModelFormatError: The model's metadata names inputs or outputs that are not there.
        """
        graph = self.ir.graph
        names = ([value.name or "" for value in values] for values in (graph.inputs, graph.outputs))
        return from_metadata(self.ir.metadata_props, *names)

    def input(self, key: int | str | Port = 0) -> Port:
        """The input of an index, name or port."""
        return find_port(self.inputs, key, f"Model '{self.name}'")

    def output(self, key: int | str | Port = 0) -> Port:
        """The output of an index, name or port."""
        return find_port(self.outputs, key, f"Model '{self.name}'")

    @property
    def is_dynamic(self) -> bool:
        """Whether an input has a dimension that is not a number."""
        return not all(port.is_static for port in self.inputs)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The model's own metadata (labels, character tables, ...)."""
        return dict(self.ir.metadata_props)

    @property
    def weight_bytes(self) -> int:
        """Size of all weights."""
        weights = (v.const_value for graph in self.ir.graphs() for v in graph.initializers.values())
        return sum(weight.nbytes for weight in weights if weight is not None)

    @property
    def fits_protobuf(self) -> bool:
        """Whether :meth:`to_onnx` can be serialized, which ends at 2 GiB."""
        return self.weight_bytes <= PROTOBUF_BYTES

    def to_onnx(self) -> onnx.ModelProto:
        """The model as a protobuf, for plugins that hand it to another engine.

        Copies the weights, those in external files included, so that it needs no file.
        """
        import onnx_ir as ir

        return ir.to_proto(self._without_files())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model, affinities included, as an ``.onnx`` file.

        Weights go into the file, or beside it into ``<file>.data`` where they exceed what one
        protobuf holds (2 GiB). The files that the model was read from may be overwritten, but for
        large ones on Windows, which replaces no file that a model still reads from.

        Raises:
            ModelError: The folder does not exist or cannot be written.
        """
        import tempfile

        import onnx_ir as ir

        path = Path(path)
        beside = None if self.fits_protobuf else f"{path.name}.data"
        try:
            # Weights may lie, mapped, in the very files: those stay until all is written.
            folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            try:
                fresh = folder / path.name
                ir.save(self._without_files(), fresh, format="protobuf", external_data=beside)
                if beside is not None:
                    (folder / beside).replace(path.with_name(beside))
                fresh.replace(path)
            finally:
                for left in folder.iterdir():
                    left.unlink()
                folder.rmdir()
        except OSError as error:
            raise ModelError(f"Cannot save the model to '{path}': {error}") from error

    def _without_files(self) -> ir.Model:
        """The graph, or a copy in which weights in files are arrays that map those files."""
        import onnx_ir as ir

        weights = (v.const_value for graph in self.ir.graphs() for v in graph.initializers.values())
        if not any(isinstance(weight, ir.ExternalTensor) for weight in weights):
            return self.ir
        copy = self.ir.clone()
        for graph in copy.graphs():
            for value in graph.initializers.values():
                weight = value.const_value
                if isinstance(weight, ir.ExternalTensor):
                    value.const_value = ir.Tensor(weight.numpy(), weight.dtype, name=value.name)
        return copy

    def clone(self) -> Model:
        """An independent copy; the weights are shared, since they are never changed in place."""
        return Model(self.ir.clone())

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self.clone()

    def __copy__(self) -> Model:
        return self.clone()

    def reshape(self, shapes: Mapping[str | int | Port, Sequence[Dim]] | Sequence[Dim], /) -> Model:
        """Sets input shapes and infers all others anew; returns the model itself.

        Args:
            shapes: Input name, index or port to shape, or one shape for a model of one input. A
                dimension is a number, a symbol, or -1 or ``None`` for unknown.

        Raises:
            ModelError: No such input, a wrong rank, or no dimension; nothing is changed then.
        """
        import onnx_ir as ir

        from partita.model.shape_inference import adapt_claims, infer_shapes

        if not isinstance(shapes, Mapping):
            own = {name for variable in self.variables for name in (variable.read, variable.begun)}
            count = sum(value.name not in own for value in self.ir.graph.inputs)
            if count != 1:
                raise ModelError(
                    f"Model '{self.name}' has {count} inputs; give a dict of input name to shape."
                )
            shapes = {0: shapes}
        fresh = []
        for key, dims in shapes.items():
            port = self.input(key)
            fresh.append((port.index, ir.Shape(_checked_dims(port, dims))))
        sizes: dict[str, Any] = {}
        for index, shape in fresh:
            value = self.ir.graph.inputs[index]
            for before, now in zip(value.shape or (), shape, strict=False):
                if isinstance(before, ir.SymbolicDim) and before.value is not None:
                    agrees = sizes.setdefault(before.value, now) == now
                    sizes[before.value] = now if agrees else None
            value.shape = shape
        adapt_claims(self.ir.graph, sizes)
        infer_shapes(self.ir)
        return self

    def extract(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        name: str,
        nodes: Sequence[ir.Node] | None = None,
    ) -> Model:
        """Cuts out the operations between two sets of values as a model of its own.

        Args:
            inputs: Values that become inputs.
            outputs: Values that become outputs; at least one, each produced inside.
            name: Name of the new graph.
            nodes: Where known, the operations in question; looking only at them saves time. What
                their bodies read from outside becomes an input too, after those that are named.

        Raises:
            ModelError: A value does not exist, or an output depends on something outside.
        """
        import onnx_ir as ir

        graph = self.ir.graph
        view: ir.Graph | ir.GraphView = graph
        starts: list[Any] = list(inputs)
        ends: list[Any] = list(outputs)
        try:
            if nodes is not None:
                values = {v.name: v for n in nodes for v in (*values_read(n), *n.outputs)}
                values.update((value.name, value) for value in graph.inputs)
                starts, ends = [values[key] for key in inputs], [values[key] for key in outputs]
                starts += _captured(nodes, starts)
                imports = graph.opset_imports
                view = ir.GraphView(starts, ends, nodes=nodes, opset_imports=imports, name=name)
            cut = ir.convenience.extract(view, inputs=starts, outputs=ends)
        except (KeyError, ValueError, RuntimeError) as error:
            raise ModelError(f"Cannot cut '{name}' out of model '{self.name}': {error}") from error
        cut.name = name
        return Model(ir.Model(cut, ir_version=self.ir.ir_version))

    def __repr__(self) -> str:
        return (
            f"<Model {self.name!r}: {len(self.ir.graph)} ops, "
            f"{len(self.ir.graph.inputs)} inputs, {len(self.ir.graph.outputs)} outputs>"
        )


def _captured(nodes: Sequence[ir.Node], known: Sequence[ir.Value]) -> list[ir.Value]:
    """What bodies of operations read, and neither the operations compute nor weights hold."""
    own = {*known, *(value for node in nodes for value in node.outputs)}
    read = dict.fromkeys(value for node in nodes for value in captures(node))
    return [value for value in read if value not in own and value.const_value is None]


def _checked_dims(port: Port, dims: Sequence[Dim]) -> list[Dim]:
    """The dimensions for an input, unknown ones as ``None``."""
    if isinstance(dims, str) or not isinstance(dims, Iterable):
        raise ModelError(
            f"The shape of input '{port.name}' is a sequence of dimensions; found {dims!r}."
        )
    dims = tuple(dims)
    if port.shape is not None and len(port.shape) != len(dims):
        raise ModelError(
            f"Input '{port.name}' has rank {len(port.shape)} ({port.describe()}); "
            f"shape {dims} has {len(dims)} dimensions."
        )
    checked: list[Dim] = []
    for dim in dims:
        if dim is None or (isinstance(dim, str) and dim):
            checked.append(dim)
        elif isinstance(dim, (int, np.integer)) and dim >= -1:
            checked.append(None if dim == -1 else int(dim))
        else:
            raise ModelError(
                f"Dimension {dim!r} of input '{port.name}' is not allowed: use a size, a "
                "symbol, or -1 or None for unknown."
            )
    return checked


def find_port(ports: Sequence[Port], key: int | str | Port, owner: str) -> Port:
    """The port of an index or name; a port stands for its own name.

    Raises:
        ModelError: There is none; the message lists those there are.
    """
    kind = "input" if not ports or ports[0].is_input else "output"
    if isinstance(key, Port):
        key = key.name
    if isinstance(key, str):
        for port in ports:
            if port.name == key:
                return port
        known = ", ".join(f"'{port.name}'" for port in ports)
        raise ModelError(f"{owner} has no {kind} '{key}'; it has {known or 'none'}.")
    if not -len(ports) <= key < len(ports):
        raise ModelError(f"{owner} has {len(ports)} {kind}s; there is no {kind} {key}.")
    return ports[key]


@functools.cache
def numpy_dtype(dtype: ir.DataType | None) -> np.dtype[Any] | None:
    """The numpy type of an ONNX element type; ``None`` for unknown and for undefined."""
    if dtype is None or dtype.name == "UNDEFINED":
        return None
    if dtype.name == "STRING":
        return np.dtype(object)
    return np.dtype(dtype.numpy())


def value_shape(value: ir.Value) -> tuple[Dim, ...] | None:
    """The dimensions of a graph value; symbols by name, unknown ones as ``None``."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def is_static(shape: tuple[Dim, ...] | None) -> TypeGuard[tuple[int, ...]]:
    """Whether every dimension of a shape is a number."""
    return shape is not None and all(isinstance(dim, int) for dim in shape)


def _port(index: int, value: ir.Value, is_input: bool) -> Port:
    import onnx_ir as ir

    name = value.name or ""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return Port(index, name, None, None, is_input)  # a sequence or an optional value
    return Port(index, name, numpy_dtype(value.dtype), value_shape(value), is_input)
