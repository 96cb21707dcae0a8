"""Shapes: what ONNX's inference finds out, and the model's own claims where it finds nothing."""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from partita.errors import ModelFormatError
from partita.model.inference.attention_shapes import settle_attention
from partita.model.inference.contrib_shapes import ModelWriter, tensor_type
from partita.model.inference.einsum_shapes import settle_einsum
from partita.model.inference.followed_values import infer_following
from partita.model.inference.inference_process import inferred_apart
from partita.model.inference.inferred_types import data_type, take_over, types_of
from partita.model.inference.known_ranks import tell_ranks
from partita.model.inference.known_shapes import scopes
from partita.model.inference.pool_shapes import settle_rounding
from partita.model.inference.transposed_conv_shapes import settle_output_shapes
from partita.model.op import EXTENSION
from partita.model.operator_checks import LENIENT, OF_SCALARS, is_of_onnx

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

_log = logging.getLogger(__name__)

_SMALL_BYTES = 1024
"""Weights up to this size take part in inference, since shapes are computed from them."""

_MOST_ROUNDS = 8
"""Rounds in which known ranks may lead to others."""

_FAULT = re.compile(
    r"\(op_type:(?P<type>\w+), node name: (?P<name>[^\n]+?)\): \[ShapeInferenceError\] (?P<why>.*)"
)
"""What onnx says of one operation, by its name; where types are missing it has no fault."""

_FREE_INITIALIZERS = 4
"""In models of older IR versions onnx's inference sees only initializers that are inputs too."""


def forget_meaningless_dims(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    """Drops dimensions such as -1, "" and "?": as symbols they would even claim equality.

    ``nodes`` are all operations of the graph, those in bodies included.
    """
    import onnx_ir as ir

    for value in [*graph.inputs, *(value for node in nodes for value in node.outputs)]:
        if value.shape is not None and any(map(_says_nothing, value.shape)):
            value.shape = ir.Shape([None if _says_nothing(dim) else dim for dim in value.shape])


def adapt_claims(graph: ir.Graph, sizes: Mapping[str, ir.SymbolicDim | int | str | None]) -> None:
    """Keeps of the shapes of everything computed what holds for inputs of other shapes.

    Inference finds most of them anew; behind operators that it does not know these are all there
    is. A symbol of an input stands for that input's new size; of a shape that holds numbers only,
    nobody knows which of them came from the inputs, so just its rank is kept.

    ``sizes`` tells what symbols of the inputs stand for now; ``None`` where that is not known.
    """
    import onnx_ir as ir

    for value in computed_values(graph):
        if value.shape is None:
            continue
        if all(isinstance(dim, int) for dim in value.shape):
            value.shape = ir.Shape([None] * len(value.shape))
            continue
        names = [None if isinstance(dim, int) else dim.value for dim in value.shape]
        value.shape = ir.Shape(
            [
                dim if name is None else sizes.get(name, dim)
                for dim, name in zip(value.shape, names, strict=True)
            ]
        )


def computed_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """The values that operations compute, those in bodies included."""
    import onnx_ir as ir

    for node in ir.traversal.RecursiveGraphIterator(graph):
        yield from node.outputs


def infer_shapes(
    ir_model: ir.Model,
    isolate: bool = False,
    written: Mapping[ir.Node, onnx.NodeProto] | None = None,
) -> None:
    """Infers types and shapes in place; what cannot be inferred stays unknown.

    Where operations are of an application's own operators, these tell what ONNX cannot know, and
    inference goes on behind them.

    What a model claims about computed values is often stale (it was exported for another batch
    size). So inference starts from the inputs and weights alone, and claims count only for values
    whose rank it does not find, such as those behind operators that onnx does not know. Of a claim
    that holds numbers only, though the inputs do not, just the rank counts. In bodies of If, Loop
    and Scan claims start inference as well, for nothing else tells what a loop hands on.

    Args:
        ir_model: The model, whose attributes :mod:`partita.model.operator_checks` has checked.
        isolate: Let onnx infer in a process of its own, which takes most of a second more.
        written: Protobufs that operations were read from, and still are like; to copy one takes a
            fifth of the time of writing it.

    Raises:
        ModelFormatError: That process does not survive.
    """
    declared: set[str] = set()
    _infer_between(ir_model, isolate, declared, written or {})
    for nodes in _own_by_depth(ir_model.graph):
        for node in nodes:
            declared |= _set_own_types(node)
        _infer_between(ir_model, isolate, declared, written or {})


class ImpossibleOperation(NamedTuple):
    """An operation that no input lets be computed.

    Attributes:
        name: Its name.
        op_type: Its type.
        reason: What onnx says of it.
    """

    name: str
    op_type: str
    reason: str


def impossible_operation(ir_model: ir.Model) -> ImpossibleOperation | None:
    """The first operation that by ONNX's definition does not fit what it reads; mostly none.

    Only operators of ONNX are looked at, and what follows from inputs and weights alone, as in
    :func:`infer_shapes`.
    """
    from onnx import shape_inference

    proto = _for_inference(ir_model, {})
    _infer(proto, isolate=False)  # which rewrites what onnx gets wrong
    try:
        shape_inference.infer_shapes(proto, strict_mode=True)
    except shape_inference.InferenceError as error:
        found = (
            ImpossibleOperation(*one.group("name", "type", "why"))
            for one in _FAULT.finditer(str(error))
        )
        excused = {node.name for node in ir_model.graph if _reduces_scalar(node)}
        found = (one for one in found if one.op_type not in LENIENT and one.name not in excused)
        return next(found, None)
    return None


def _reduces_scalar(node: ir.Node) -> bool:
    """Whether onnxruntime takes any axis for it, of which ONNX says that there is none."""
    read = node.inputs[0] if node.inputs else None
    return node.op_type in OF_SCALARS and read is not None and read.shape == ()


def _own_by_depth(graph: ir.Graph) -> list[list[ir.Node]]:
    """Operations of an application's own: those that depend on no other such one, and so on."""
    if not any(_is_own(node) for node in graph):
        return []
    depths: dict[ir.Value, int] = {}
    levels: list[list[ir.Node]] = []
    for node in graph:
        depth = max((depths.get(value, 0) for value in node.inputs if value is not None), default=0)
        if _is_own(node):
            if depth == len(levels):
                levels.append([])
            levels[depth].append(node)
            depth += 1
        if depth:
            depths.update(dict.fromkeys(node.outputs, depth))
    return levels


def _is_own(node: ir.Node) -> bool:
    return not is_of_onnx(node.op_type, node.domain) and EXTENSION in node.meta


def _set_own_types(node: ir.Node) -> set[str]:
    """Sets types and shapes that the application's operator declares; returns the names."""
    import onnx_ir as ir

    types = node.meta[EXTENSION].output_types(node)
    typed = list(zip(node.outputs, types, strict=False))
    for value, (kind, dims) in typed:
        value.type = ir.TensorType(ir.DataType.from_numpy(kind))
        value.shape = ir.Shape(dims)
    return {value.name for value, _ in typed if value.name}


def _infer_between(
    ir_model: ir.Model,
    isolate: bool,
    declared: Container[str],
    written: Mapping[ir.Node, onnx.NodeProto],
) -> None:
    """Infers what follows from inputs, weights, and declared types of values by name."""
    proto = _for_inference(ir_model, written)
    inferred = _infer(proto, isolate)
    if inferred is None:
        return
    claims = _claims_of_the_lost(ir_model, inferred)
    if claims:
        inferred = _from_claims(proto, inferred, claims, declared, ir_model, isolate)
    take_over(ir_model, inferred)


def _from_claims(
    proto: onnx.ModelProto,
    inferred: onnx.ModelProto,
    claims: Mapping[str, onnx.ValueInfoProto],
    declared: Container[str],
    ir_model: ir.Model,
    isolate: bool,
) -> onnx.ModelProto:
    """What follows from ranks that operators tell, and from claims where these do not.

    Args:
        proto: The model as inference reads it; declared and claimed types are added to it.
        inferred: What follows without either.
        claims: By name of a value what the file says of it, where inference found less.
        declared: Names of values whose types the application's own operators tell.
        ir_model: The model itself; not changed.
        isolate: Whether inference runs in a process of its own.
    """
    for _ in range(_MOST_ROUNDS):
        if not tell_ranks(proto.graph, inferred.graph):
            break
        inferred = _infer(proto, isolate) or inferred
    found = types_of(inferred.graph)
    claims = {name: info for name, info in claims.items() if _fits(info.type, found.get(name))}
    if not _has_fixed_inputs(ir_model):
        for name, info in claims.items():
            if name not in declared:
                _doubt(info)
    if not claims:
        return inferred
    _add_claims(proto.graph, claims)
    return _infer(proto, isolate) or inferred


def _has_fixed_inputs(ir_model: ir.Model) -> bool:
    """Whether the sizes of all inputs are known, so that those of all else may be, too."""
    return all(
        value.shape is not None and value.shape.is_static() for value in ir_model.graph.inputs
    )


def _claims_of_the_lost(
    ir_model: ir.Model, inferred: onnx.ModelProto
) -> dict[str, onnx.ValueInfoProto]:
    """What the model claims of the values of which inference found no rank, by name."""
    from onnx_ir import serde

    found = types_of(inferred.graph)
    return {
        value.name: serde.serialize_value(value)
        for node in ir_model.graph
        for value in node.outputs
        if (value.type is not None or value.shape is not None)
        and value.name
        and not _tells_rank(found.get(value.name))
    }


def _fits(claim: onnx.TypeProto, found: onnx.TypeProto | None) -> bool:
    """Whether a claim contradicts nothing that was found of the same value."""
    if found is None or not found.tensor_type.HasField("shape"):
        return True
    claimed, known = claim.tensor_type.shape.dim, found.tensor_type.shape.dim
    if not claim.tensor_type.HasField("shape") or len(claimed) != len(known):
        return False
    pairs = zip(claimed, known, strict=True)
    return all(a.dim_value == b.dim_value for a, b in pairs if a.dim_value and b.dim_value)


def _add_claims(graph: onnx.GraphProto, claims: dict[str, onnx.ValueInfoProto]) -> None:
    """Lets inference start from claims too, in the place of what is known of these values."""
    rest = [info for info in graph.value_info if info.name not in claims]
    outputs = {output.name for output in graph.output}
    for output in graph.output:
        if output.name in claims:
            output.CopyFrom(claims[output.name])
    rest += [info for name, info in claims.items() if name not in outputs]
    del graph.value_info[:]
    graph.value_info.extend(rest)


def _tells_rank(kind: onnx.TypeProto | None) -> bool:
    """Whether a type says how many dimensions there are, or is of what has none."""
    if kind is None:
        return False
    if kind.tensor_type.HasField("shape"):
        return True
    return kind.WhichOneof("value") not in (None, "tensor_type")


def _for_inference(
    ir_model: ir.Model, written: Mapping[ir.Node, onnx.NodeProto]
) -> onnx.ModelProto:
    """What inference needs of a model: no claims, and large weights as inputs of their shape."""
    import onnx
    from onnx_ir import serde

    proto = onnx.ModelProto(ir_version=max(ir_model.ir_version or 0, _FREE_INITIALIZERS))
    for domain, version in ir_model.graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in ir_model.functions.values():
        serde.serialize_function_into(proto.functions.add(), function)
    graph = proto.graph
    graph.name = ir_model.graph.name or "model"
    for value in ir_model.graph.inputs:
        serde.serialize_value_into(graph.input.add(), value)
    for name, value in ir_model.graph.initializers.data.items():
        weight = value.const_value
        if weight is None:
            continue
        held = weight.raw if isinstance(weight, serde.TensorProtoTensor) else None
        if held is None:
            element_type, dims = int(weight.dtype), tuple(weight.shape.numpy())
            nbytes = weight.nbytes
        else:  # which makes an object of each for an answer
            element_type, dims = held.data_type, tuple(held.dims)
            nbytes = -(-math.prod(dims) * _bits_of(element_type) // 8)
        if nbytes > _SMALL_BYTES:
            graph.input.add(name=name, type=tensor_type(element_type, dims))
        else:
            tensor = graph.initializer.add()
            if held is None:
                serde.serialize_tensor_into(tensor, weight)
            else:
                tensor.CopyFrom(held)
            tensor.name = name
    writer = ModelWriter(proto, written, doubts_sizes=not _has_fixed_inputs(ir_model))
    writer.add(ir_model.graph)
    for value in ir_model.graph.outputs:
        graph.output.add(name=value.name)
    return proto


@functools.cache
def _bits_of(element_type: int) -> int:
    """Bits of an element, by the number of its type in protobufs."""
    bits: int = data_type(element_type).bitwidth
    return bits


def without_large_weights(ir_model: ir.Model) -> onnx.ModelProto:
    """The model as a protobuf in which large weights of the main graph are inputs instead."""
    import onnx_ir as ir

    copy = ir_model.clone()
    copy.ir_version = max(copy.ir_version, _FREE_INITIALIZERS)
    graph = copy.graph
    for name, value in list(graph.initializers.items()):
        weight = value.const_value
        if weight is not None and weight.nbytes > _SMALL_BYTES:
            value.shape, value.dtype = ir.Shape(weight.shape.numpy()), weight.dtype
            del graph.initializers[name]
            value.const_value = None
            graph.inputs.append(value)
    return ir.to_proto(copy)


def _infer(proto: onnx.ModelProto, isolate: bool) -> onnx.ModelProto | None:
    from onnx import shape_inference

    try:
        while True:
            inferred = _infer_once(proto, isolate)
            known = scopes(proto, inferred)
            if not (
                settle_rounding(known)
                or settle_output_shapes(known)
                or settle_attention(proto, known)
                or settle_einsum(proto, known)
            ):
                return inferred
    except ModelFormatError:
        raise
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        _log.warning("Shapes of model '%s' could not be inferred: %s", proto.graph.name, error)
        return None


def _infer_once(proto: onnx.ModelProto, isolate: bool) -> onnx.ModelProto:
    """What onnx finds, in a process of its own or in this one."""
    import onnx

    if not isolate:
        return infer_following(proto)
    inferred = onnx.ModelProto()
    inferred.ParseFromString(inferred_apart(proto.SerializeToString()))
    return inferred


def _doubt(claim: onnx.ValueInfoProto) -> None:
    """Forgets the sizes if they are all that is claimed; symbols show that somebody took care."""
    dims = claim.type.tensor_type.shape.dim
    if all(dim.HasField("dim_value") for dim in dims):
        for dim in dims:
            dim.ClearField("dim_value")


def _says_nothing(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim < 0
    return dim.value in ("", "?", "-1")
