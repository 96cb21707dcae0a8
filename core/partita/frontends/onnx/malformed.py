"""Error messages for files that onnx-ir refuses.

Looked for only when reading has failed: onnx-ir's own errors name its classes and positions in its
tables (``KeyError: 'y'``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from partita.errors import causes

if TYPE_CHECKING:
    import onnx

_SHOWN = 160
"""Letters of somebody else's message that are shown."""


def described(proto: onnx.ModelProto | None, error: BaseException) -> str:
    """What is wrong with a model, and what to do.

    Args:
        proto: The model; ``None`` where it is not at hand any more.
        error: What onnx-ir raised, which is what is left to say if nothing else is found.
    """
    fault = None
    if proto is not None:
        fault = next(_faults(proto), None)
    if fault is None:
        *_, first = causes(error)  # onnx-ir wraps its errors once per level
        lines = str(first).strip().splitlines() or [""]
        fault = f"{type(first).__name__}: {lines[0][:_SHOWN]}"
    return f"{fault}; the file is damaged or was written wrongly: export or download it again."


def _faults(proto: onnx.ModelProto) -> Iterator[str]:
    yield from _graph_faults(proto.graph, set())
    for function in proto.functions:
        where = f"function '{_text(function.name)}'"
        yield from _name_faults(where, [function.domain, function.name])
        yield from _body_faults(where, function.node, set(function.input), function.output, set())


def _graph_faults(graph: onnx.GraphProto, outer: set[Any]) -> Iterator[str]:
    where = f"graph '{_text(graph.name)}'"
    inputs = [value.name for value in graph.input]
    constants = [tensor.name for tensor in graph.initializer]
    constants += [tensor.values.name for tensor in graph.sparse_initializer]
    yield from _name_faults(where, [*inputs, *constants, *(value.name for value in graph.output)])
    if not all(constants):
        yield f"an initializer of {where} has no name"
    outputs = [value.name for value in graph.output]
    yield from _body_faults(where, graph.node, {*inputs, *constants}, outputs, outer)


def _body_faults(
    where: str, nodes: Any, given: set[Any], outputs: Iterable[Any], outer: set[Any]
) -> Iterator[str]:
    """Of nodes and what they compute, `given` the values that are there before them."""
    made: dict[Any, str] = {}
    for number, node in enumerate(nodes):
        title = f"operation {number} of {where} ({_text(node.op_type)})"
        yield from _name_faults(title, [node.name, node.op_type, node.domain, *node.input])
        yield from _name_faults(title, node.output)
        for name in filter(None, node.output):
            if name in made or name in given:
                before = made.get(name, f"an input or initializer of {where}")
                yield f"{title} computes '{name}', which is {before}; a value has one source"
            made[name] = f"computed by operation {number} too"
    known = outer | given | set(made)
    for node in nodes:
        for attribute in node.attribute:
            yield from _name_faults(f"an attribute of {where}", [attribute.name])
            for graph in (attribute.g, *attribute.graphs):
                if graph.node or graph.output:
                    yield from _graph_faults(graph, known)
    for name in outputs:
        if name not in known:
            yield f"nothing computes output '{_text(name)}' of {where}"


def _name_faults(where: str, names: Iterable[Any]) -> Iterator[str]:
    """Names that are no text: protobuf hands them over as bytes."""
    for name in names:
        if isinstance(name, bytes):
            yield f"{where} has the name {name!r}, which is no UTF-8"


def _text(name: Any) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
