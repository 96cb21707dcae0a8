"""A graph as it was read becomes a checked, tidy model.

Functions are inlined, constants become initializers, operations get unique names and topological
order, shapes are inferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from partita.errors import ModelFormatError, PartitaError
from partita.frontends.onnx.constant_nodes import lift_constants
from partita.frontends.onnx.function_inlining import inline_functions
from partita.frontends.onnx.malformed import described
from partita.frontends.output_values import separate_outputs
from partita.model.inference.shape_inference import forget_meaningless_dims, infer_shapes
from partita.model.model import Model
from partita.model.operator_checks import check_attributes, check_domains, check_inputs
from partita.model.value_uses import bodies, operations
from partita.printable import printable

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from partita.extensions import Extensions


def tidied(
    ir_model: ir.Model,
    origin: str,
    tidy: bool,
    isolate: bool,
    extensions: Extensions | None,
    proto: onnx.ModelProto | None = None,
) -> Model:
    """The checked model of a graph as it was read.

    Args:
        ir_model: The graph, which is changed.
        origin: What it was read from, for errors.
        tidy: As for :func:`partita.frontends.reader.read_model`.
        isolate: As for the same.
        extensions: Operators of the application's own.
        proto: The protobuf that it was made of, by which errors say what is wrong.

    Raises:
        ModelFormatError: The graph is not a valid ONNX model.
    """
    try:
        written = {} if proto is None else _written_as(ir_model, proto)
        check_attributes(ir_model)
        if all(value.name for value in ir_model.graph.outputs):  # others are refused below
            separate_outputs(ir_model.graph)
        if tidy:
            _simplify(ir_model)
        nodes, inner = operations(ir_model.graph)
        kept = [op for own in ir_model.functions.values() for op in operations(own)[0]]
        check_domains([*nodes, *kept])  # what lowering would inline, if nobody has
        check_inputs(nodes, ir_model.opset_imports)
        _check_wiring(ir_model.graph, nodes, inner, origin)
        if extensions is not None:
            extensions.attach(ir_model.graph)
        if not tidy:
            return Model(ir_model)
        if not _is_in_order(ir_model.graph, {None}):
            _sort(ir_model.graph, origin)
        if inner:
            for node in ir_model.graph:
                _drop_unread(node)
        nodes, _ = operations(ir_model.graph)
        forget_meaningless_dims(ir_model.graph, nodes)
        _name_nodes(nodes)
        infer_shapes(ir_model, isolate, written)
    except PartitaError:
        raise
    except Exception as error:  # onnx-ir's passes trust their input
        what = described(proto, error)
        raise ModelFormatError(f"{origin} is not a valid ONNX model: {what}") from error
    return Model(ir_model)


def _written_as(ir_model: ir.Model, proto: onnx.ModelProto) -> dict[ir.Node, onnx.NodeProto]:
    """The protobufs of operations that becoming tidy changes nothing of that inference reads."""
    if ir_model.functions:  # values may get other names where they are inlined
        return {}
    return {
        node: source
        for node, source in zip(ir_model.graph, proto.graph.node, strict=True)
        if source.domain == node.domain and not bodies(node)
    }


def _simplify(ir_model: ir.Model) -> None:
    """Leaves operations on values: no functions, no constants that are nodes or inputs."""
    from onnx_ir.passes.common import RemoveInitializersFromInputsPass

    functions = ir_model.functions.values()
    for imports in (ir_model.graph.opset_imports, *(f.opset_imports for f in functions)):
        if "ai.onnx" in imports:
            imports[""] = imports.pop("ai.onnx")
    if ir_model.functions:
        inline_functions(ir_model)
        check_attributes(ir_model)  # those that calls give to what functions are made of
    nodes, inner = operations(ir_model.graph)
    for domain in dict.fromkeys(node.domain for node in nodes):
        ir_model.graph.opset_imports.setdefault(domain, 1)  # files forget their own domains
    lift_constants(ir_model, nodes)
    if any(value.is_initializer() for g in (ir_model.graph, *inner) for value in g.inputs):
        RemoveInitializersFromInputsPass()(ir_model)
    _type_as_held([value for g in (ir_model.graph, *inner) for value in g.initializers.values()])


def _type_as_held(initializers: Iterable[ir.Value]) -> None:
    """Gives initializers types and shapes of their tensors; a file may say others beside them."""
    import onnx_ir as ir
    from onnx_ir import serde

    for value in initializers:
        tensor = value.const_value
        if tensor is None:
            continue
        kind: int
        if isinstance(tensor, serde.TensorProtoTensor):  # which makes objects for an answer
            kind, sizes = tensor.raw.data_type, tuple(tensor.raw.dims)
        else:
            kind, sizes = tensor.dtype, tuple(tensor.shape.numpy())
        if not isinstance(value.type, ir.TensorType) or value.dtype != kind:
            value.type = ir.TensorType(tensor.dtype)
        # To compare a Shape itself asks abc whether a tuple can be gone through, ten times as long.
        if value.shape is None or value.shape.dims != sizes:
            value.shape = ir.Shape(sizes)


def _is_in_order(graph: ir.Graph, seen: set[ir.Node | None]) -> bool:
    """Whether every operation comes behind those whose results it or its bodies read.

    Args:
        graph: The graph, or a body.
        seen: What comes before it; all of the graph's own is added. An operation is not before its
            own bodies.
    """
    for node in graph:
        if any(value is not None and value.producer() not in seen for value in node.inputs):
            return False
        if not all(_is_in_order(body, seen) for body in bodies(node)):
            return False
        seen.add(node)
    return all(value.producer() in seen for value in graph.outputs)


def _sort(graph: ir.Graph, origin: str) -> None:
    try:
        graph.sort()
    except ValueError as error:
        raise ModelFormatError(
            f"{origin} has a cycle: operations wait for one another's results; export it again."
        ) from error


def _check_wiring(
    graph: ir.Graph, nodes: Sequence[ir.Node], inner: Sequence[ir.Graph], origin: str
) -> None:
    """Every value that is read or returned must come from somewhere."""
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.producer() is None and not _is_source(value):
                raise ModelFormatError(
                    f"{origin}: operation '{node.name or node.op_type}' reads '{value.name}', "
                    "which nothing produces."
                )
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        names: set[str] = set()
        for index, value in enumerate(values):
            if not value.name:
                raise ModelFormatError(f"{origin}: {kind} {index} has no name.")
            if value.name in names:
                raise ModelFormatError(f"{origin} lists {kind} '{value.name}' twice.")
            names.add(value.name)
    for value in graph.outputs:
        if value.producer() is None and not _is_source(value):
            raise ModelFormatError(f"{origin}: nothing produces output '{value.name}'.")
    for body in inner:
        for value in body.outputs:
            if value.producer() is None and not _is_source(value):
                raise ModelFormatError(
                    f"{origin}: nothing in body '{body.name}' produces its output '{value.name}'; "
                    "a value from outside is returned through an Identity."
                )


def _is_source(value: ir.Value) -> bool:
    return bool(value.is_graph_input() or value.is_initializer())


def _drop_unread(node: ir.Node) -> None:
    """Drops operations in an operation's bodies whose results nobody reads.

    What they alone read would count as read, though no device computes them: one that leaves them
    out claims its operation, and cannot compute it where the model is cut behind it.
    """
    for body in bodies(node):
        for inner in reversed(tuple(body)):
            if inner.outputs and not any(map(_is_read, inner.outputs)):
                for held in [
                    inner,
                    *(each for own in bodies(inner) for each in operations(own)[0]),
                ]:
                    for place in range(len(held.inputs)):
                        held.replace_input_with(place, None)
                body.remove(inner, safe=True)
            else:
                _drop_unread(inner)


def _read_nothing(node: ir.Node) -> None:
    """Takes an operation's inputs away, and those of all operations in its bodies."""
    for place in range(len(node.inputs)):
        node.replace_input_with(place, None)
    for body in bodies(node):
        for inner in body:
            _read_nothing(inner)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses() or value.is_graph_output())


def _name_nodes(nodes: Sequence[ir.Node]) -> None:
    """Gives every operation, those in bodies included, a name of its own that can be printed."""
    given = [printable(node.name or "") for node in nodes]
    taken = {name for name in given if name}
    used: set[str] = set()
    counts: Counter[str] = Counter()
    for node, name in zip(nodes, given, strict=True):
        if not name or name in used:
            stem = name or node.op_type
            while not name or name in taken:
                name = f"{stem}_{counts[stem]}"
                counts[stem] += 1
            taken.add(name)
        node.name = name
        used.add(name)
