"""The two GraphViz files: operations coloured by device, and the submodels with what crosses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from partita.contract.explanation import Explanation
from partita.errors import PropertyError
from partita.printable import printable
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel

_COLOURS = ("#aed6f1", "#f9e79f", "#abebc6", "#f5b7b1", "#d7bde2", "#edbb99", "#d5dbdb")


VARIABLES = ("PARTITA_HETERO_DUMP_GRAPH_DOT", "OPENVINO_HETERO_VISUALIZE")
"""Environment variables that ask for the files, as the property HETERO_DUMP_GRAPH_DOT does."""

_ANSWERS = dict.fromkeys(["yes", "true", "on", "1"], True)
_ANSWERS |= dict.fromkeys(["no", "false", "off", "0", ""], False)


def is_requested(environment: Mapping[str, str]) -> bool:
    """Whether an environment variable asks for the files.

    Raises:
        PropertyError: One says neither yes nor no.
    """
    found = False
    for name in VARIABLES:
        text = environment.get(name, "")
        answer = _ANSWERS.get(text.strip().lower())
        if answer is None:
            raise PropertyError(f"The environment variable {name} is '{text}'; write YES or NO.")
        found |= answer
    return found


def write(
    folder: Path, model: str, graph: OpGraph, submodels: Sequence[Submodel], why: Explanation
) -> tuple[Path, Path]:
    """Writes ``hetero_affinity_<model>.dot`` and ``hetero_subgraphs_<model>.dot``.

    Args:
        folder: Where to; it exists.
        model: Its name, of which letters that not all file systems take are replaced.
        graph: All operations.
        submodels: How they were cut.
        why: Devices and reasons, for the boxes.

    Returns:
        The two files.
    """
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", model)
    affinity = folder / f"hetero_affinity_{stem}.dot"
    subgraphs = folder / f"hetero_subgraphs_{stem}.dot"
    affinity.write_text(affinity_graph(graph, why), encoding="utf-8")
    subgraphs.write_text(subgraph_graph(submodels, why), encoding="utf-8")
    return affinity, subgraphs


def affinity_graph(graph: OpGraph, why: Explanation) -> str:
    """Every operation with its device, grouped by submodel."""
    colour = _colours([op.where for op in why.ops])
    lines = ["digraph affinity {", "  rankdir=TB; node [shape=box, style=filled];"]
    for index, op in enumerate(why.ops):
        where = op.where if op.subgraph is None else f"{op.where}, subgraph {op.subgraph}"
        label = quote(f"{op.name}\n{op.op_type}\n{where}")
        lines.append(f'  op{index} [label={label}, fillcolor="{colour[op.where]}"];')
    for index, preds in enumerate(graph.preds):
        lines += [f"  op{pred} -> op{index};" for pred in preds]
    return "\n".join([*lines, "}", ""])


def subgraph_graph(submodels: Sequence[Submodel], why: Explanation) -> str:
    """Every submodel with its device and size; edges carry the tensors and how they pass."""
    places = [why.ops[submodel.ops[0]].where for submodel in submodels]
    colour = _colours(places)
    lines = ["digraph subgraphs {", "  rankdir=TB; node [shape=box, style=filled];"]
    for submodel, where in zip(submodels, places, strict=True):
        label = quote(f"subgraph {submodel.number}\n{where}\n{len(submodel.ops)} ops")
        lines.append(f'  s{submodel.number} [label={label}, fillcolor="{colour[where]}"];')
    for edge in why.boundaries:
        source = "inputs" if edge.source is None else f"s{edge.source}"
        target = "outputs" if edge.target is None else f"s{edge.target}"
        size = "" if edge.nbytes is None else f"\n{edge.nbytes} bytes"
        how = ", ".join([edge.how, *([edge.layout] if edge.layout else []), *edge.casts])
        lines.append(
            f"  {source} -> {target} [label={quote(f'{edge.value}{size}{chr(10)}{how}')}];"
        )
    return "\n".join([*lines, "}", ""])


def _colours(devices: Sequence[str]) -> dict[str, str]:
    return {d: _COLOURS[i % len(_COLOURS)] for i, d in enumerate(dict.fromkeys(devices))}


def quote(text: str) -> str:
    """A text as Graphviz reads it: printable, in quotes."""
    lines = (printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'
