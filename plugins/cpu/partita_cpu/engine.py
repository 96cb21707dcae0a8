"""Runs graphs on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.lowering import Array, Graph, Specialiser, Target
from partita_cpu.binding import GraphRunner
from partita_cpu.kernels.table import emitter_for
from partita_cpu.team import Team


def run_graph(
    graph: Graph, feeds: Mapping[str, Array] | Sequence[Array], threads: int = 1
) -> list[Array]:
    """Computes a lowered graph once; for tests of single operators.

    Args:
        graph: The graph, as :func:`partita.lowering.lower_proto` makes it.
        feeds: Inputs by name or in order.
        threads: Threads that large steps are shared among.
    """
    if isinstance(feeds, Mapping):
        feeds = [feeds[value.name] for value in graph.inputs]
    runner = GraphRunner(Specialiser(graph, Target(emitter_for)), Team(threads))
    return [array.copy() for array in runner.run(feeds)]
