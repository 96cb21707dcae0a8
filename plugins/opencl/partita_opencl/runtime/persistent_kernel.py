"""Runs of products as one kernel whose work-groups stay on the device, where launches cost most.

At batch 1, a convolutional network is some fifty products of a few microseconds each; the host
takes as long to launch one as the device to compute it. Products that stream halves and follow one
another become records of a table, and one launch of ``product_run.cl`` goes through them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.lowering import NO_ACTIVATION, Operand, Step
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.emitters.gemm.stream import Streamed
from partita_opencl.launches.emitter_kit import f32, i32
from partita_opencl.launches.steps import STALL, ConcatenatedConstants, Counters, Launch
from partita_opencl.launches.work_sizes import Tuning
from partita_opencl.passes.half_precision import HALF, SINGLE
from partita_opencl.tuning.product_tiles import (
    STREAM_DEEP,
    Cut,
    StreamTile,
    cut,
    run_tile,
    tiles_for,
)

KERNEL = "product_run"
"""The kernel's name."""

_FEWEST = 4
"""Products that are worth a kernel that waits for itself."""

MOST_ELEMENTS = 2**31 - 1
"""Elements of a run's input, weights, intermediate memory and result that an int addresses."""

FIELDS = (
    *("units", "first_group", "wait_a", "tiles_a", "wait_b", "tiles_b", "rows", "columns", "depth"),
    *("image_x", "image_y", "pitch", "channels", "out_x", "out_y", "taps_x", "dilation_x"),
    *("dilation_y", "stride_x", "stride_y", "pad_x", "pad_y", "steps_per_split", "splits", "tiles"),
    *("column_tiles", "activates", "a_at", "w_at", "bias_at", "adds", "residual_at", "y_at"),
    *("counter_at", "partial_at"),
)
_RECORD = 40
_LINE = 32
"""Fields and ints of a record, and counters of a cache line; as in the kernel."""

_ALIGNED = 128
"""Elements of which the place of a tensor is a multiple."""

LAUNCH_US = 5.5
_WAIT = 1.0
"""Microseconds that the host takes for a launch, and that a group takes to hear of another."""


def join(steps: Sequence[Step], kept: set[Operand], tuning: Tuning) -> list[Step]:
    """Puts one step in the place of each run of products that is done sooner so.

    Args:
        steps: The launches in order.
        kept: Operands that are needed beyond the steps.
        tuning: The device's; how many groups it holds at a time.
    """
    readers: dict[Operand, int] = {}
    for number, step in enumerate(steps):
        for arg in step.args:
            if isinstance(arg, Operand):
                readers[arg.root] = number
    result: list[Step] = []
    start = 0
    while start < len(steps):
        end = start
        while end < len(steps) and _continues(steps[start:end], steps[end]):
            end += 1
        # What a run leaves behind is its last result: no other one is read from outside.
        while end > start and any(
            step.args[4].root in kept or readers[step.args[4].root] >= end
            for step in steps[start : end - 1]
        ):
            end -= 1
        if end == start:
            end += 1
        result += _joined(steps[start:end], tuning)
        start = end
    return result


def _runs(step: Step) -> bool:
    """Whether a step is a product of the kind that a run takes."""
    if not isinstance(step.fn, Launch) or not isinstance(step.fn.product, Streamed):
        return False
    product = step.fn.product
    stream = product.stream
    if not product.plain or stream.groups > 1 or stream.ragged or stream.channels % STREAM_DEEP:
        return False
    return all(not source.is_constant for source in _sources(step))


def _continues(run: Sequence[Step], step: Step) -> bool:
    """Whether a step can follow: all of a run read one tensor from outside, and activate alike."""
    if not _runs(step):
        return False
    made = {before.args[4].root for before in run}
    outside = {o.root for s in (*run, step) for o in _sources(s)} - made
    kinds = {_product(s).activation for s in (*run, step)} - {NO_ACTIVATION}
    return len(outside) == 1 and len(kinds) <= 1


def _product(step: Step) -> Streamed:
    product = step.fn.product if isinstance(step.fn, Launch) else None
    if not isinstance(product, Streamed):
        raise TypeError(f"{step.fn!r} does not stream")
    return product


def _sources(step: Step) -> list[Operand]:
    """The tensors that a product reads: its input, and its residual if it has one."""
    return [step.args[0], step.args[3]] if _product(step).residual else [step.args[0]]


def _joined(run: Sequence[Step], tuning: Tuning) -> list[Step]:
    """The run as one step, or its steps if these are done sooner."""
    if len(run) < _FEWEST:
        return list(run)
    limits = tuning.limits
    tiles = tiles_for(limits, warpgroups=tuning.warpgroups)
    apart = together = 0.0
    cuts = []
    for step in run:
        stream = _product(step).stream
        sizes = (stream.rows, stream.columns, stream.depth)
        best = cut(limits, tiles, *sizes, 1)
        cuts.append(cut_products(run_tile(limits), tuning.resident_groups, *sizes))
        apart += max(LAUNCH_US, best.time(limits))
        together += cuts[-1].time(limits) - _WAIT
    if together > apart:
        return list(run)
    table = RunTable(run, cuts, tuning.resident_groups)
    return [table.step()] if table.is_small else list(run)


def cut_products(tile: StreamTile, groups: int, rows: int, columns: int, depth: int) -> Cut:
    """As many parts as groups have work for; few and long ones, since to hand over takes time."""
    tiles = tile.count(rows, columns, 1)
    steps = depth // STREAM_DEEP
    wanted = max(1, min(groups // tiles, steps // 8, 8))
    per_split = math.ceil(steps / wanted)
    return Cut(tile, tiles, math.ceil(steps / per_split), per_split * STREAM_DEEP)


@dataclass
class _Region:
    """Memory that products use one after another.

    Attributes:
        size: Elements.
        users: The last products that write or read it.
    """

    size: int
    users: set[int]


def _place(regions: list[_Region], size: int, users: set[int], done: set[int]) -> int:
    """The region for a tensor of these users, where the products in ``done`` are done by then."""
    free = [i for i, region in enumerate(regions) if region.users <= done]
    if not free:
        regions.append(_Region(size, users))
        return len(regions) - 1
    found = min(free, key=lambda i: (max(0, size - regions[i].size), regions[i].size))
    regions[found].size = max(size, regions[found].size)
    regions[found].users = users
    return found


class RunTable:
    """The records of a run, and the memory that it takes.

    Args:
        run: The products in order; the last one's result leaves the run.
        cuts: How each is cut.
        groups: Groups that the device holds at a time.
    """

    def __init__(self, run: Sequence[Step], cuts: Sequence[Cut], groups: int) -> None:
        self._run = run
        self._cuts = cuts
        self._tile = cuts[0].tile
        self._groups = groups
        self._makers = {step.args[4].root: number for number, step in enumerate(run)}
        self._weights = ConcatenatedConstants(tuple(step.args[1] for step in run))
        self._biases = ConcatenatedConstants(tuple(step.args[2] for step in run))
        outside = [o for step in run for o in _sources(step) if o.root not in self._makers]
        self._x = outside[0]
        self._done: list[set[int]] = []
        for step in run:
            makers = self._makers_of(step)
            self._done.append(set(makers).union(*(self._done[i] for i in makers)))
        self._arena, self._arena_size = self._regions(
            [step.args[4].size for step in run[:-1]],
            [{n, *self._readers(step.args[4])} for n, step in enumerate(run[:-1])],
        )
        sums = [c.tiles * c.splits * c.tile.high * c.tile.wide if c.splits > 1 else 0 for c in cuts]
        self._partial, self._partial_size = self._regions(sums, [{n} for n in range(len(run))])

    @property
    def is_small(self) -> bool:
        """Whether ints address all of the memory."""
        weights = sum(step.args[1].size for step in self._run)
        ends = max(self._x.size, self._run[-1].args[4].size)
        return bool(max(ends, weights, self._arena_size, self._partial_size) <= MOST_ELEMENTS)

    def _makers_of(self, step: Step) -> list[int]:
        """The products of the run whose results one reads."""
        makers = (self._makers.get(source.root) for source in _sources(step))
        return list(dict.fromkeys(maker for maker in makers if maker is not None))

    def _readers(self, x: Operand) -> list[int]:
        return [n for n, s in enumerate(self._run) if any(o.root is x.root for o in _sources(s))]

    def _regions(self, sizes: Sequence[int], users: Sequence[set[int]]) -> tuple[list[int], int]:
        """The places of tensors that the products write, and the size of all."""
        regions: list[_Region] = []
        of_tensor = [
            _place(regions, size, of, self._done[number])
            for number, (size, of) in enumerate(zip(sizes, users, strict=True))
        ]
        starts = [0]
        for region in regions:
            starts.append(starts[-1] + math.ceil(region.size / _ALIGNED) * _ALIGNED)
        return [starts[i] for i in of_tensor], starts[-1]

    def records(self) -> np.ndarray[Any, Any]:
        """One row per product, as ``product_run.cl`` reads them."""
        table = np.zeros((len(self._run), _RECORD), np.int32)
        units = 0
        counter = (len(self._run) + 1) * _LINE
        for number, (step, how) in enumerate(zip(self._run, self._cuts, strict=True)):
            fields = self._sizes(step)
            makers = self._makers_of(step)
            for letter, maker in zip("ab", (*makers, None, None), strict=False):
                fields[f"wait_{letter}"] = -1 if maker is None else maker
                fields[f"tiles_{letter}"] = 0 if maker is None else self._cuts[maker].tiles
            fields |= {
                "units": how.tiles * how.splits,
                "first_group": units % self._groups,
                "steps_per_split": how.per_split // STREAM_DEEP,
                "splits": how.splits,
                "tiles": how.tiles,
                "column_tiles": math.ceil(fields["columns"] / how.tile.wide),
                "a_at": self._at(step.args[0]),
                "w_at": self._weights.starts[number] // 2,
                "bias_at": self._biases.starts[number] // 4,
                "residual_at": self._at(step.args[3]) if fields["adds"] else 0,
                "y_at": self._at(step.args[4]),
                "counter_at": counter,
                "partial_at": self._partial[number] // 4,
            }
            units += how.tiles * how.splits
            counter += how.tiles
            table[number, : len(FIELDS)] = [fields[name] for name in FIELDS]
        self._counters = counter
        return table

    def _at(self, x: Operand) -> int:
        """The first half of a tensor in the arena, or -1 of one that is not there."""
        maker = self._makers.get(x.root)
        return -1 if maker is None or maker == len(self._run) - 1 else self._arena[maker]

    @staticmethod
    def _sizes(step: Step) -> dict[str, int]:
        product = _product(step)
        stream = product.stream
        fields = {
            "rows": stream.rows,
            "columns": stream.columns,
            "depth": stream.depth,
            "pitch": stream.pitch,
            "channels": stream.channels,
            "taps_x": stream.taps[0],
            "activates": int(product.activation != NO_ACTIVATION),
            "adds": int(product.residual),
        }
        pairs = {
            "image": stream.image,
            "out": stream.out,
            "dilation": stream.dilation,
            "stride": stream.stride,
            "pad": stream.begin,
        }
        for name, (x, y) in pairs.items():
            fields |= {f"{name}_x": x, f"{name}_y": y}
        return fields

    def step(self) -> Step:
        """The launch that computes all."""
        kinds = [_product(step).activation for step in self._run]
        activation = next((kind for kind in kinds if kind != NO_ACTIVATION), NO_ACTIVATION)
        options: dict[str, str | int | None] = {
            **self._tile.options(),
            "ACTIVATION": int(activation.code),
            "HALF": None,
        }
        last = self._run[-1]
        first = last.fn
        if not isinstance(first, Launch):
            raise TypeError(f"{first!r} is not a launch")
        options |= {
            name: value for name, value in first.program.options if name in ("NVIDIA", "BFLOAT")
        }
        records = self.records()
        args = (
            Operand(records.shape, records.dtype, records),
            i32(len(records)),
            self._x,
            self._weights,
            self._biases,
            Operand((max(1, self._arena_size),), HALF),
            last.args[4],
            Operand((max(1, self._partial_size),), SINGLE),
            Counters(self._counters),
            STALL,
            f32(activation.alpha),
            f32(activation.beta),
        )
        key = ProgramKey("product_run.cl", tuple(options.items()))
        sizes = ((self._groups * self._tile.items,), (self._tile.items,))
        names = tuple(dict.fromkeys(n for step in self._run for n in step.op.origins))
        op = replace(last.op, origins=names, exec_type=KERNEL)
        return replace(last, fn=Launch(key, KERNEL, sizes), args=args, op=op)
