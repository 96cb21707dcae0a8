"""The bodies of If and Loop as models of their own, with the values that they ran on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.reader import read_model
from partita.model.model import Model

if TYPE_CHECKING:
    from partita.bisection.device_pair import Bench

Array = np.ndarray[Any, Any]

_ITERATIONS = 1000
"""So many iterations of a Loop are looked into."""


@dataclass(frozen=True)
class BodyRun:
    """One run of a body.

    Attributes:
        description: Which one, e.g. ``"Loop 'decode', iteration 3"``.
        model: The body; what it reads from outside is an input or a weight.
        feeds: Its inputs, as the reference computes them.
    """

    description: str
    model: Model
    feeds: dict[str, Array]


def runs(bench: Bench, op: int) -> Iterator[BodyRun]:
    """The bodies that an operation ran, one after the other; none for any but If and Loop.

    The state of a Loop is computed by the reference, iteration by iteration.
    """
    node = bench.nodes[op]
    if node.domain or node.op_type not in ("If", "Loop"):
        return
    model, feeds = bench.piece((op,), bench.writes(op))
    inputs = [None if v is None else v.name for v in node.inputs]
    known: dict[str | None, Any] = {
        name: value.const_value.numpy()
        for name, value in model.ir.graph.initializers.items()
        if value.const_value is not None
    }
    known.update(feeds)
    if node.op_type == "If":
        branch = "then_branch" if bool(np.all(known[inputs[0]])) else "else_branch"
        body = _as_model(bench, model, branch)
        yield BodyRun(f"{branch} of If '{node.name}'", body, _chosen(body, known))
        return
    body = _as_model(bench, model, "body")
    states = [known[name] for name in inputs[2:]]
    limit = _ITERATIONS
    if inputs[0] is not None:
        limit = min(limit, int(np.asarray(known[inputs[0]]).reshape(())))
    going = True if inputs[1] is None else bool(np.all(known[inputs[1]]))
    reference = None
    ports = body.inputs
    for iteration in range(limit):
        if not going:
            return
        own = [np.asarray(iteration, np.int64), np.asarray(True), *states]
        values = known | {port.name: v for port, v in zip(ports, own, strict=False)}
        run = BodyRun(
            f"Loop '{node.name}', iteration {iteration}", body.clone(), _chosen(body, values)
        )
        yield run
        reference = reference or bench.core.compile_model(body, bench.against)
        results = reference(run.feeds).to_tuple()
        going = bool(np.all(results[0]))
        states = list(results[1 : 1 + len(states)])


def _chosen(body: Model, values: Mapping[Any, Array]) -> dict[str, Array]:
    return {port.name: values[port.name] for port in body.inputs}


def _as_model(bench: Bench, model: Model, attribute: str) -> Model:
    """The body of a model's only operation; what it reads from outside comes along."""
    import onnx
    from onnx import helper

    proto = model.to_onnx()
    node = proto.graph.node[0]
    body = next(attr.g for attr in node.attribute if attr.name == attribute)
    own = {info.name for info in body.input}
    graph = helper.make_graph(
        list(body.node),
        body.name or attribute,
        [*body.input, *(info for info in proto.graph.input if info.name not in own)],
        list(body.output),
        [*body.initializer, *proto.graph.initializer],
    )
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    whole.graph.CopyFrom(graph)
    result = read_model(whole)
    device = bench.devices.get(node.name)
    for op in result.ops:
        if device is not None and model.ops[0].affinity is not None:
            op.affinity = device
    return result
