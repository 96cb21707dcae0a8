"""Which parts of the trials of matrix units a model needs: what its graph or its launches use.

A graph that is not fused yet says what of a warp's units to try. Tiles that four warps multiply
together or the copy engine brings, and groups that wait, are tried when a plan launches them: of
all tiles a network takes a few, and the largest ones take a compiler longest.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from partita.lowering import Graph
from partita_opencl.device.limits import Limits
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.trials.matrix_unit_checks import Units, Use, trial_parts


def parts_for(graph: Graph, limits: Limits, *, bfloat: bool) -> list[int]:
    """The parts of the trial of matrix units that a graph needs before it is planned.

    Other units are tried when a plan launches what uses them: see :func:`parts_launched`.

    Args:
        graph: As it is before fusion.
        limits: The device's.
        bfloat: Whether halves may be bfloat16.
    """
    uses = _uses_of({node.op_type for node in graph.all_nodes()})
    uses |= {Use.BFLOAT} if bfloat else set()
    needed = enumerate(trial_parts(Units.MATRIX, limits))
    return [number for number, part in needed if part.use is None or part.use in uses]


def _uses_of(op_types: set[str]) -> set[Use]:
    """What operations, or what fusion makes of them, do with matrix units."""
    attends = any("Attention" in op_type for op_type in op_types)
    found = {Use.ATTENTION, Use.PROMPTS} if attends else set()
    if "Softmax" in op_types:
        found.add(Use.ATTENTION)
    if op_types & {"LSTM", "GRU", "RNN"}:
        found.add(Use.RECURRENT)
    normal = (op_type for op_type in op_types if op_type != "BatchNormalization")
    if op_types & {"ReduceMean", "Sqrt"} or any("Normalization" in one for one in normal):
        found.add(Use.NORMALIZED)
    return found


def parts_launched(programs: Iterable[ProgramKey], limits: Limits) -> Mapping[Units, set[int]]:
    """The parts of trials that programs depend on; those of a warp's units were made before.

    Args:
        programs: Those of a plan's launches.
        limits: The device's.
    """
    found: dict[Units, set[int]] = defaultdict(set)
    for program in programs:
        for units, numbers in _launched(program, limits):
            found[units] |= numbers
    return found


@functools.lru_cache(4096)
def _launched(program: ProgramKey, limits: Limits) -> list[tuple[Units, set[int]]]:
    """The parts that one program depends on."""
    options: dict[str, Any] = dict(program.options)
    needed = []
    match program.file:
        case "product_stream.cl":
            marks = {Use.BFLOAT: "BFLOAT", Use.NORMALIZED: "NORMALIZE"}
            uses = {None, *(use for use, name in marks.items() if name in options)}
            needed.append((Units.WARPGROUP if "WARPGROUP" in options else Units.MATRIX, uses))
        case "attention.cl":
            needed.append((Units.MATRIX, {Use.ATTENTION}))
        case "cache_prompt.cl":
            needed.append((Units.MATRIX, {Use.PROMPTS}))
        case "product_bulk.cl":
            needed.append((Units.COPY_ENGINE, {None}))
        case "product_run.cl":
            needed.append((Units.RESIDENT, {Use.RUNS}))
        case "block_run.cl":
            needed.append((Units.RESIDENT, {Use.BLOCKS}))
        case "block_tiles.cl" | "block_rows.cl":
            needed.append((Units.COPY_ENGINE, {Use.BLOCKS}))
            if int(options.get("PRODUCTS", 1)) > 1:
                needed.append((Units.RESIDENT, {Use.BLOCKS}))
        case "recurrent_units.cl":
            needed.append((Units.MATRIX, {Use.RECURRENT}))
            if int(options["SHARES"]) > 1:
                needed.append((Units.RESIDENT, {Use.RECURRENT}))
    sizes = options.get("BM"), options.get("BN")
    found = []
    for units, uses in needed:
        of_use = [(n, one) for n, one in enumerate(trial_parts(units, limits)) if one.use in uses]
        of_tile = {n for n, one in of_use if one.tile and (one.tile.high, one.tile.wide) == sizes}
        found.append((units, of_tile or {n for n, _ in of_use}))
    return found
