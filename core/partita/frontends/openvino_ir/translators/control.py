"""Layers with bodies: If, Loop and TensorIterator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from partita.frontends.openvino_ir.document import Layer, Network
from partita.frontends.openvino_ir.translator import Scope, Site, translates
from partita.frontends.operation_site import FULL

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class _Link:
    """An entry of a port map: a port of the layer and a layer of its body."""

    port: str
    inner: str
    axis: int | None
    stride: int
    start: int
    end: int
    part: int
    purpose: str


class _Carried(NamedTuple):
    """A value that one iteration hands to the next: in the body, before it, and its Result."""

    inside: ir.Value
    first: ir.Value
    end: str


def _links(at: Site, path: str) -> list[_Link]:
    found = []
    for element in at.layer.element.iterfind(path):
        numbers = {key: element.get(key) for key in ("axis", "stride", "start", "end", "part_size")}
        try:
            axis, stride, start, end, part = (
                None if text is None else int(text) for text in numbers.values()
            )
        except ValueError as error:
            raise at.error(f"the port map holds {numbers}, not whole numbers") from error
        inner, port = element.get("internal_layer_id"), element.get("external_port_id")
        if inner is None or port is None:
            raise at.error("the port map has an entry without ids")
        purpose = element.get("purpose", "")
        if end is None:
            end = 0 if (stride or 1) < 0 else -1
        found.append(_Link(port, inner, axis, stride or 1, start or 0, end, part or 1, purpose))
    return found


def _outer(at: Site, link: _Link) -> tuple[int, ir.Value]:
    """The place and value of the layer's input port."""
    for place, port in enumerate(at.layer.inputs):
        if port.id == link.port:
            return place, at.inputs[place]
    raise at.error(f"the port map names input port {link.port}, which is not there")


def _inner(at: Site, net: Network, identifier: str, kind: str) -> Layer:
    layer = net.layers.get(identifier)
    if layer is None or layer.type != kind:
        raise at.error(f"the port map names {kind} {identifier}, which the body does not have")
    return layer


@translates("If")
def if_(at: Site) -> Sequence[ir.Value]:
    """One of two bodies; both read the values around them directly."""
    branches = {}
    for name in ("then", "else"):
        scope = at.scope.body(f"{name}_body", at.layer)
        net = scope.net
        given = {
            _inner(at, net, link.inner, "Parameter").id: _outer(at, link)[1]
            for link in _links(at, f"{name}_port_map/input")
        }
        scope.follow(given)
        by_port = {link.port: link.inner for link in _links(at, f"{name}_port_map/output")}
        outputs = []
        for port in at.layer.outputs:
            if port.id not in by_port:
                raise at.error(f"the {name} branch has nothing for output port {port.id}")
            value = scope.result(_inner(at, net, by_port[port.id], "Result"))
            outputs.append(scope.own(value))
        branches[f"{name}_branch"] = scope.graph([], outputs, f"{at.layer.name}/{name}")
    condition = at.emit("Reshape", at.inputs[0], at.const([], np.int64))
    return at.emit_many("If", len(at.layer.outputs), condition, **branches)


@translates("Loop", "TensorIterator")
def loop(at: Site) -> Sequence[ir.Value]:
    """A body run again and again, over slices of inputs and values that it hands on."""
    import onnx_ir as ir

    scope = at.scope.body("body", at.layer)
    net = scope.net
    inputs, outputs = _links(at, "port_map/input"), _links(at, "port_map/output")
    count = _scalar(at, scope, "iteration", ir.DataType.INT64)
    running = _scalar(at, scope, "running", ir.DataType.BOOL)
    given, carried = _enter(at, scope, inputs, count)
    scope.follow(given)

    handed = [scope.own(scope.result(_inner(at, net, one.end, "Result"))) for one in carried]
    finals = {one.end: place for place, one in enumerate(carried)}
    stacked = [link for link in outputs if link.port != "-1" and not _is_final(link, finals)]
    scans = [scope.own(scope.result(_inner(at, net, link.inner, "Result"))) for link in stacked]
    again = _condition(at, net, scope, outputs, running)
    graph = scope.graph(
        [count, running, *(one.inside for one in carried)],
        [again, *handed, *scans],
        f"{at.layer.name}/body",
    )
    trips, first = _bounds(at, inputs)
    values = at.emit_many(
        "Loop",
        len(handed) + len(scans),
        trips,
        first,
        *(one.first for one in carried),
        body=graph,
    )
    by_port: dict[str, ir.Value] = {}
    for link in outputs:
        if _is_final(link, finals):
            by_port[link.port] = values[finals[link.inner]]
    for link, value in zip(stacked, values[len(handed) :], strict=True):
        rank = len(_inner(at, net, link.inner, "Result").inputs[0].dims)
        by_port[link.port] = _joined(at, value, link, rank)
    missing = [port.id for port in at.layer.outputs if port.id not in by_port]
    if missing:
        raise at.error(f"the port map has nothing for output port {missing[0]}")
    return [by_port[port.id] for port in at.layer.outputs]


def _scalar(at: Site, scope: Scope, name: str, dtype: ir.DataType) -> ir.Value:
    """An input of the body that has no dimensions."""
    import onnx_ir as ir

    name = scope.fresh(f"{at.layer.name}/{name}")
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]))


def _enter(
    at: Site, scope: Scope, inputs: list[_Link], count: ir.Value
) -> tuple[dict[str, ir.Value], list[_Carried]]:
    """What each Parameter of the body is in an iteration, and what goes from one to the next.

    Args:
        at: The loop.
        scope: Its body.
        inputs: The port map.
        count: The number of the iteration.
    """
    edges = {
        edge.get("to-layer", ""): edge.get("from-layer", "")
        for edge in at.layer.element.iterfind("back_edges/edge")
    }
    body = Site(at.layer, [], scope)
    given: dict[str, ir.Value] = {}
    carried: list[_Carried] = []
    for link in inputs:
        layer = _inner(at, scope.net, link.inner, "Parameter")
        if link.purpose == "current_iteration":
            whole = layer.outputs[0].precision
            inside = count if whole == "I64" else body.emit("Cast", count, to=6)
            shape = body.const(np.ones(len(layer.outputs[0].dims)), np.int64)
            given[layer.id] = body.emit("Reshape", inside, shape)
            continue
        _, value = _outer(at, link)
        if layer.id in edges:
            inside = scope.input_value(layer, scope.fresh(f"{at.layer.name}/{layer.name}"))
            given[layer.id] = inside
            carried.append(_Carried(inside, value, edges[layer.id]))
        elif link.axis is not None:
            given[layer.id] = _part(body, value, link, link.axis, count)
        else:
            given[layer.id] = value
    return given, carried


def _is_final(link: _Link, finals: dict[str, int]) -> bool:
    """Whether an output is the last of a value that is handed on."""
    return link.axis is None and link.inner in finals and link.port != "-1"


def _bounds(at: Site, inputs: list[_Link]) -> tuple[ir.Value | None, ir.Value | None]:
    """The number of iterations and the first condition; absent ones do not bound."""
    scalar = at.const([], np.int64)
    if at.layer.type == "Loop":
        trips, first = at.indices(0), at.inputs[1]
        trips = at.emit("Reshape", trips, scalar)
        endless = at.emit("Less", trips, at.const(0, np.int64))
        trips = at.emit("Where", endless, at.const(FULL, np.int64), trips)
        return trips, at.emit("Reshape", first, scalar)
    for link in inputs:
        if link.axis is not None:
            place, value = _outer(at, link)
            size = at.emit("Reshape", at.size(value, link.axis % at.rank(place)), scalar)
            first, last = (_place(at, size, number) for number in (link.start, link.end))
            length = at.emit("Abs", at.emit("Sub", last, first))
            return at.emit("Div", length, at.const(abs(link.stride), np.int64)), None
    raise at.error("no input is taken in slices, so the number of iterations is not known")


def _condition(
    at: Site, net: Network, scope: Scope, outputs: list[_Link], running: ir.Value
) -> ir.Value:
    """Whether to go on: what the body says, or what was so before."""
    for link in outputs:
        if link.purpose == "execution_condition":
            value = scope.result(_inner(at, net, link.inner, "Result"))
            empty = scope.constant(np.array([], np.int64), at.layer.name)
            return scope.write("Reshape", [value, empty], {}, 1, at.layer.name)[0]
    return scope.write("Identity", [running], {}, 1, at.layer.name)[0]


def _part(body: Site, value: ir.Value, link: _Link, axis: int, count: ir.Value) -> ir.Value:
    """The slice of an iteration; with a negative stride slices end where others begin."""
    row = body.const([1], np.int64)
    moved = body.emit("Mul", body.emit("Reshape", count, row), body.const([link.stride], np.int64))
    begin = body.emit("Add", _place(body, body.size(value, axis), link.start), moved)
    part = body.const([link.part], np.int64)
    if link.stride < 0:
        begin = body.emit("Sub", begin, part)
    end = body.emit("Add", begin, part)
    return body.emit("Slice", value, begin, end, body.const([axis], np.int64))


def _place(at: Site, size: ir.Value, number: int) -> ir.Value:
    """Where slices begin or end along an axis of a size; -1 is behind the last element."""
    if number >= 0:
        like_size = [number] if size.shape is not None and size.shape.rank() else number
        return at.const(like_size, np.int64)
    return at.emit("Add", size, at.const(number + 1, np.int64))


def _joined(at: Site, value: ir.Value, link: _Link, rank: int) -> ir.Value:
    """The results of all iterations along an axis, or the last one."""
    if link.axis is None:
        return at.emit("Gather", value, at.const(-1, np.int64), axis=0)
    axis = link.axis % max(rank, 1)
    if link.stride < 0:
        value = at.reversed(value, 0)
    order = [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]
    moved = at.emit("Transpose", value, perm=order) if axis else value
    sizes = [at.emit("Shape", moved, start=0, end=axis)] if axis else []
    sizes.append(at.const([-1], np.int64))
    if axis + 2 <= rank:
        sizes.append(at.emit("Shape", moved, start=axis + 2))
    return at.emit("Reshape", moved, at.emit("Concat", *sizes, axis=0))
