"""The graph that the partitioner works on: operations by index, and the values between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.model.value_uses import bodies, has_own_source, values_read

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.model.model import Model


@dataclass(frozen=True)
class OpGraph:
    """Plain lists, indexed by operation in topological order.

    Attributes:
        nodes: Those of the graph, without those in bodies.
        reads: Names of the values each operation reads, those its bodies capture included, without
            weights.
        writes: Names of the values each operation writes.
        producer: Value name to the operation that writes it.
        preds: Operations that each one reads from, without doubles.
        succs: Operations that read from each one, without doubles.
        constant: Whether everything an operation reads is constant: it then runs once, at compile
            time, wherever its readers are.
        live: Whether an output depends on the operation.
        outputs: Names of the model's outputs.
    """

    nodes: list[ir.Node]
    reads: list[list[str]]
    writes: list[list[str]]
    producer: dict[str, int]
    preds: list[list[int]]
    succs: list[list[int]]
    constant: list[bool]
    live: list[bool]
    outputs: list[str]

    @classmethod
    def of(cls, model: Model) -> OpGraph:
        """The operations of a model, and which of them read from which; takes linear time."""
        graph = model.ir.graph
        nodes = list(graph)
        producer = {v.name: i for i, node in enumerate(nodes) for v in node.outputs if v.name}
        inputs = {value.name for value in graph.inputs}
        reads: list[list[str]] = []
        preds: list[list[int]] = []
        constant: list[bool] = []
        succs: list[list[int]] = [[] for _ in nodes]
        for index, node in enumerate(nodes):
            names = list(
                dict.fromkeys(
                    v.name for v in values_read(node) if v.name in producer or v.name in inputs
                )
            )
            sources = list(dict.fromkeys(producer[name] for name in names if name in producer))
            reads.append([name for name in names if name])
            preds.append(sources)
            for source in sources:
                succs[source].append(index)
            constant.append(
                not has_own_source(node)
                and all(name in producer for name in names)
                and all(constant[source] for source in sources)
            )
        outputs = [value.name or "" for value in graph.outputs]
        live = [False] * len(nodes)
        stack = [producer[name] for name in outputs if name in producer]
        while stack:
            index = stack.pop()
            if not live[index]:
                live[index] = True
                stack += preds[index]
        return cls(
            nodes,
            reads,
            [[v.name for v in node.outputs if v.name] for node in nodes],
            producer,
            preds,
            succs,
            constant,
            live,
            outputs,
        )

    def names(self) -> list[str]:
        """Names of the operations."""
        return [node.name or "" for node in self.nodes]

    def weights_of(self, op: int, sizes: Mapping[str, int | None]) -> dict[str, int]:
        """What an operation's device keeps for it from run to run: name to bytes.

        That is weights, those in bodies too, and what constant operations make, which is computed
        once. Where its size is not known, the weights that it is made of stand for it.

        Args:
            op: The operation.
            sizes: Bytes of values, where known.
        """
        weights: dict[str, int] = {}
        stack, seen = [op], {op}
        while stack:
            node = self.nodes[stack.pop()]
            for value in values_read(node):
                name = value.name or ""
                source = self.producer.get(name)
                nbytes = sizes.get(name)
                if value.const_value is not None:
                    weights[name] = value.const_value.nbytes
                elif source is None or not self.constant[source] or source in seen:
                    continue
                elif nbytes is not None:
                    weights[name] = nbytes
                else:
                    seen.add(source)
                    stack.append(source)
            for body in bodies(node):
                for name, value in body.initializers.items():
                    if value.const_value is not None:
                        weights[f"{node.name}/{name}"] = value.const_value.nbytes
        return weights
