"""Ports with channels last: which of a model's images need no conversion if they come so.

What converts images inside of a program is :mod:`partita_cpu.passes.nhwc`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from partita import Port
from partita.lowering import Graph, Specializer
from partita.lowering.nhwc.conversion import SINGLE, Shapes
from partita.lowering.nhwc.ports import converted_ports, with_ports_last
from partita.lowering.program import Spec
from partita.tensors.layout import MemoryLayout

_log = logging.getLogger(__name__)

CHANNELS_LAST = MemoryLayout((0, 2, 3, 1), SINGLE)
"""How images lie in memory inside of programs."""

GUESSED_SIZE = 64
"""Size of unknown dimensions, but for the first one (the batch), in trials of ports that have no
example."""


def with_layouts(specializer: Specializer, layouts: Mapping[Port, MemoryLayout]) -> Specializer:
    """Makes the programs of the same graph with channels last at some ports."""
    graph = with_ports_last(
        specializer.graph,
        [port.index for port in layouts if port.is_input],
        [port.index for port in layouts if not port.is_input],
        SINGLE,
    )
    return Specializer(graph, specializer.target)


def ports_to_lay_out(
    specializer: Specializer, inputs: Sequence[Port], outputs: Sequence[Port]
) -> dict[Port, Sequence[MemoryLayout]]:
    """Ports that need no conversion if images come and go with channels last.

    Tries it with all of them: what is converted then would be better plain. Unknown dimensions
    have those of a port's example for that, or some size; where the model has no program for it,
    nothing is named.
    """
    graph = specializer.graph
    computed = {v for node in graph.nodes for v in node.outputs if v is not None}
    images = [port for port in inputs if _is_image(port)] + [
        port
        for port, value in zip(outputs, graph.outputs, strict=True)
        if _is_image(port) and value in computed
    ]
    if not images:
        return {}
    walked: list[Graph] = []
    target = specializer.target

    def refine(graph: Graph, shapes: Shapes) -> None:
        if target.refine is not None:
            target.refine(graph, shapes)
        walked.append(graph)

    trial = with_layouts(specializer, dict.fromkeys(images, CHANNELS_LAST))
    trial.target = replace(target, refine=refine)
    try:
        trial.program([_in_memory(port) for port in inputs], _unknown)
    except Exception as error:
        if all(port.is_static for port in inputs) and not isinstance(error, _NeedsElements):
            raise
        _log.info("no layouts are named, since no program was found: %s", error)
        return {}
    kept_in, kept_out = converted_ports(walked[0])
    return {
        port: (CHANNELS_LAST,)
        for port in images
        if port.index not in (kept_in if port.is_input else kept_out)
    }


class _NeedsElements(Exception):  # noqa: N818  # a signal, not an error
    """The program depends on the elements of an input."""


def _unknown(index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    raise _NeedsElements


def _is_image(port: Port) -> bool:
    return port.dtype == SINGLE and port.shape is not None and len(port.shape) == 4


def _in_memory(port: Port) -> Spec:
    """What the trial's input is in memory."""
    if port.dtype is None or port.shape is None:
        raise _NeedsElements
    shape = port.example or tuple(
        dim if isinstance(dim, int) else 1 if axis == 0 else GUESSED_SIZE
        for axis, dim in enumerate(port.shape)
    )
    return (CHANNELS_LAST.shape_in_memory(shape) if _is_image(port) else shape), port.dtype
