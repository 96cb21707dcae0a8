"""Makes submodels of subgraphs: their inputs and outputs, and the model cut out for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.model.model import Model
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.partitioner import Subgraph


@dataclass(frozen=True)
class Submodel:
    """One subgraph with its edges.

    Attributes:
        number: From 1, in the order in which the submodels can run.
        device: Where it runs, as the user spelled it.
        ops: Indices of its operations.
        inputs: Names of the values it reads from other submodels or from the model's inputs.
        outputs: Names of the values that others, or the model's outputs, read from it.
    """

    number: int
    device: str
    ops: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
        """What two submodels must agree in to be the same compiled model."""
        return self.device, self.ops, self.inputs, self.outputs


def submodels_of(graph: OpGraph, subgraphs: Sequence[Subgraph[str]]) -> list[Submodel]:
    """Finds the edges of every subgraph, in linear time."""
    home = {op: index for index, subgraph in enumerate(subgraphs) for op in subgraph.ops}
    wanted: list[dict[str, None]] = [{} for _ in subgraphs]
    inputs: list[dict[str, None]] = [{} for _ in subgraphs]
    for index, subgraph in enumerate(subgraphs):
        for op in subgraph.ops:
            for name in graph.reads[op]:
                source = graph.producer.get(name)
                if source is None:
                    inputs[index][name] = None
                elif source in home and home[source] != index:
                    inputs[index][name] = None
                    wanted[home[source]][name] = None
    for name in graph.outputs:
        source = graph.producer.get(name)
        if source is not None:
            wanted[home[source]][name] = None
    return [
        Submodel(i + 1, subgraph.device, subgraph.ops, tuple(inputs[i]), tuple(wanted[i]))
        for i, subgraph in enumerate(subgraphs)
    ]


def submodel_of(graph: OpGraph, device: str, ops: Sequence[int]) -> Submodel:
    """Some operations as a submodel of their own, whatever becomes of the others."""
    inside = set(ops)
    inputs = {
        name: None
        for op in ops
        for name in graph.reads[op]
        if (source := graph.producer.get(name)) not in inside
        and not (source is not None and graph.constant[source])
    }
    outputs = [
        name
        for op in ops
        for name in graph.writes[op]
        if name in graph.outputs
        or any(name in graph.reads[succ] for succ in graph.succs[op] if succ not in inside)
    ]
    return Submodel(1, device, tuple(ops), tuple(inputs), tuple(outputs))


def cut_out(model: Model, graph: OpGraph, submodel: Submodel) -> Model:
    """Cuts the submodel out of the model; constants that it reads are copied along.

    Weights are shared with the model, not copied. Where it is all of the model, that is returned.

    Args:
        model: The whole model; it stays as it is.
        graph: Its operations.
        submodel: Which of them, and the values that go in and out.
    """
    needed = set(submodel.ops)
    stack = list(submodel.ops)
    while stack:
        for source in graph.preds[stack.pop()]:
            if (
                graph.constant[source]
                and source not in needed
                and not _is_input(graph, source, submodel)
            ):
                needed.add(source)
                stack.append(source)
    inputs, outputs = ([port.name for port in ports] for ports in (model.inputs, model.outputs))
    whole = len(needed) == len(graph.nodes) and [*submodel.inputs] == inputs
    if whole and [*submodel.outputs] == outputs:
        return model
    nodes = [graph.nodes[op] for op in sorted(needed)]
    name = f"{model.name}_subgraph{submodel.number}"
    return model.extract(submodel.inputs, submodel.outputs, name, nodes)


def _is_input(graph: OpGraph, op: int, submodel: Submodel) -> bool:
    return any(name in submodel.inputs for name in graph.writes[op])
