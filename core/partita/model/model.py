"""The model: named views of an ``onnx_ir.Model``, which holds the graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.errors import ModelError
from partita.model.op import Op as Op
from partita.model.openvino_names import ModelSurface
from partita.model.port import Bounds, note_bounds
from partita.model.port import Dim as Dim
from partita.model.port import Port as Port
from partita.model.port import find_port as find_port
from partita.model.port import is_static as is_static
from partita.model.port import numpy_dtype as numpy_dtype
from partita.model.port import value_shape as value_shape
from partita.model.value_uses import captures, values_read
from partita.model.variables import Variable, from_metadata
from partita.shapes.partial_shape import PartialShape

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

PROTOBUF_BYTES = 2**31 - 2**24
"""Most bytes of weights that are saved in one protobuf, whose limit is 2 GiB altogether."""


class Model(ModelSurface):
    """An ONNX model with unique operation names and inferred shapes.

    :meth:`partita.Core.read_model` creates one; :func:`~partita.frontends.reader.read_model` says
    what it checks. ``Model(results, parameters, name)`` creates one of nodes that were written with
    an operation set (:mod:`partita.opsets`).

    Args:
        graph: The graph, an ``onnx_ir.Model``; or the results of a graph that is written with an
            operation set, one or several :class:`~partita.model.openvino_names.GraphEnd`.
        parameters: The parameters of such a graph.
        name: The name of such a graph.

    Attributes:
        ir: The ``onnx_ir.Model``. Editing its graph by hand is allowed; keep node names unique.
    """

    def __init__(
        self,
        graph: Any,
        parameters: Sequence[Any] = (),
        name: str = "",
    ) -> None:
        results: Sequence[Any] = graph if isinstance(graph, (list, tuple)) else [graph]
        if hasattr(graph, "graph"):
            self.ir = graph
        elif results and hasattr(results[0], "model_to"):
            self.ir = results[0].model_to(results, parameters, name)
        else:
            raise ModelError(
                "A model is made of results and parameters that were written with an operation "
                f"set, as partita.opset13; found {graph!r}. Core.read_model reads files."
            )

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
        return tuple(Port.of(i, value, True) for i, value in enumerate(self.ir.graph.inputs))

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs in order."""
        return tuple(Port.of(i, value, False) for i, value in enumerate(self.ir.graph.outputs))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The state that a request keeps from run to run; its inputs and outputs come last.

        Raises:
            ModelFormatError: The model's metadata names inputs or outputs that do not exist.
        """
        graph = self.ir.graph
        names = ([value.name or "" for value in values] for values in (graph.inputs, graph.outputs))
        return from_metadata(self.ir.metadata_props, *names)

    def input(self, key: Any = None) -> Port:
        """The input for an index, name or port; the key may be omitted if there is one.

        Raises:
            ModelError: There is none, or several and no key; the message lists them.
        """
        try:
            return find_port(self.inputs, key, f"Model '{self.name}'")
        except ModelError as error:
            hint = self.constant_hint(key)
            if not hint:
                raise
            raise ModelError(f"{error}{hint}") from None

    def constant_hint(self, key: Any) -> str:
        """A sentence for errors that name a constant as an input; empty if the key names none."""
        if not isinstance(key, str) or key not in self.ir.graph.initializers:
            return ""
        return (
            f" '{key}' is a constant of the model, whose elements are in the file: leave it "
            "out, or take its initializer out of the file to make it an input."
        )

    def output(self, key: Any = None) -> Port:
        """The output for an index, name or port; the key may be omitted if there is one.

        Raises:
            ModelError: There is none, or several and no key; the message lists them.
        """
        return find_port(self.outputs, key, f"Model '{self.name}'")

    @property
    def is_static(self) -> bool:
        """Whether every dimension of every input is a number."""
        return not self.is_dynamic()

    @property
    def metadata(self) -> Mapping[str, str]:
        """The model's own metadata (labels, character tables, ...)."""
        return dict(self.ir.metadata_props)

    @property
    def weight_bytes(self) -> int:
        """Size of all weights in bytes."""
        weights = (v.const_value for graph in self.ir.graphs() for v in graph.initializers.values())
        return sum(weight.nbytes for weight in weights if weight is not None)

    @property
    def fits_protobuf(self) -> bool:
        """Whether :meth:`to_onnx` can be serialized; protobuf's limit is 2 GiB."""
        return self.weight_bytes <= PROTOBUF_BYTES

    def to_onnx(self) -> onnx.ModelProto:
        """The model as a protobuf, for plugins that pass it to another engine.

        Copies the weights, also from external files, so that the result needs no file.
        """
        import onnx_ir as ir

        return ir.to_proto(self._without_files())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model, affinities included, as an ``.onnx`` file.

        Weights are in the file, or next to it in ``<file>.data`` where they exceed the limit of
        protobuf (2 GiB). The files that the model was read from may be overwritten, except for
        large ones on Windows, which does not replace files that are mapped.

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
        """An independent copy; weights are shared, because they are never changed in place."""
        return Model(self.ir.clone())

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self.clone()

    def __copy__(self) -> Model:
        return self.clone()

    def reshape(self, shapes: Any, variables: Mapping[str, Any] | None = None, /) -> Model:
        """Sets input shapes and infers all other shapes; returns the model itself.

        Args:
            shapes: By input name, index or port a shape, or one shape for a model with one input. A
                shape is anything that :class:`partita.PartialShape` accepts; where a dimension has
                bounds, as ``(1, 8)`` or ``"1..8"``, requests refuse other sizes.
            variables: Shapes of variables, by name.

        Raises:
            ModelError: An input does not exist, a rank is wrong, or a dimension is invalid; nothing
                is changed.
        """
        import onnx_ir as ir

        from partita.model.inference.shape_inference import adapt_claims, infer_shapes

        if not isinstance(shapes, Mapping):
            own = {name for variable in self.variables for name in (variable.read, variable.begun)}
            count = sum(value.name not in own for value in self.ir.graph.inputs)
            if count != 1:
                raise ModelError(
                    f"Model '{self.name}' has {count} inputs; give a dict of input name to shape."
                )
            shapes = {0: shapes}
        wanted = dict(shapes)
        for name, shape in (variables or {}).items():
            wanted[self.get_variable_by_id(name).read] = shape
        fresh = [_checked_shape(self.input(key), dims) for key, dims in wanted.items()]
        sizes: dict[str, Any] = {}
        for index, dims, bounds in fresh:
            value = self.ir.graph.inputs[index]
            shape = ir.Shape(dims)
            for before, now in zip(value.shape or (), shape, strict=False):
                if isinstance(before, ir.SymbolicDim) and before.value is not None:
                    agrees = sizes.setdefault(before.value, now) == now
                    sizes[before.value] = now if agrees else None
            value.shape = shape
            note_bounds(value, bounds)
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
            outputs: Values that become outputs; at least one, each computed inside.
            name: Name of the new graph.
            nodes: The operations to extract, if they are known, which saves time. Values that their
                bodies read from outside become inputs too, after the named ones.

        Raises:
            ModelError: A value does not exist, or an output depends on values outside.
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
    """Values that bodies of operations read from outside, except weights."""
    own = {*known, *(value for node in nodes for value in node.outputs)}
    read = dict.fromkeys(value for node in nodes for value in captures(node))
    return [value for value in read if value not in own and value.const_value is None]


def _checked_shape(port: Port, shape: Any) -> tuple[int, list[Dim], list[Bounds | None]]:
    """The index of an input, its new dimensions, and their bounds."""
    try:
        dims = PartialShape(shape)
    except ModelError as error:
        raise ModelError(f"Input '{port.name}' cannot have shape {shape!r}: {error}") from error
    if shape is None or dims.rank.is_dynamic:
        raise ModelError(
            f"The shape of input '{port.name}' is a sequence of dimensions; found {shape!r}."
        )
    if port.shape is not None and len(port.shape) != len(dims):
        raise ModelError(
            f"Input '{port.name}' has rank {len(port.shape)} ({port.describe()}); "
            f"shape {dims} has {len(dims)} dimensions."
        )
    return port.index, [dim.size for dim in dims], [dim.bounds for dim in dims]
