"""Products of few rows that follow one another as one kernel, whose work-groups stay on the device.

A token of a decoder is six products or so for each layer, and each of them reads a few megabytes:
to launch one takes longer than to compute it. What stands between two attentions, the products of
``emitters/gemm/block_products.py``, becomes one launch of ``block_run.cl``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from partita.lowering import NO_ACTIVATION, Operand, Step
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.emitters.gemm import block_tiles
from partita_opencl.emitters.gemm.block_tiles import FewRows, Placed
from partita_opencl.launches.emitter_kit import Argument, f32, is_half
from partita_opencl.launches.steps import STALL, Counters, Launch, StallFlag
from partita_opencl.launches.work_sizes import Tuning

KERNEL = "block_run"
"""The kernel's name."""

_FEWEST, _MOST = 2, 4
"""Products of a run; the kernel has arguments for so many."""

_ITEMS = 512
_WARP = 32
"""Items of a group, and of a warp."""

_COLUMNS, _DEEP = 2, 2
"""Columns of a warp at a time, and units of them that are on their way."""

_TENSORS, _WEIGHTS = 3 * _MOST, 5
"""Arguments for tensors, which products may share, and for what belongs to one product."""

_HALVES = 16
"""Bits of weights that stay apart: to read them takes longer than to launch their products."""

_LINE, _RECORD = 32, 16
"""Counters of a cache line, and ints of a record; as in the kernel."""

_LOCAL_BYTES = 40 << 10
"""Local memory for the rows, of the 48 KiB that a group gets everywhere."""


def join(steps: Sequence[Step], tuning: Tuning) -> list[Step]:
    """Puts one step in the place of products of few rows that follow one another.

    Args:
        steps: The launches in order.
        tuning: The device's; whether groups may wait for one another.
    """
    result: list[Step] = []
    start = 0
    while start < len(steps):
        end = start
        while end < min(start + _MOST, len(steps)) and _continues(steps[start:end], steps[end]):
            end += 1
        run = steps[start : max(end, start + 1)]
        result += [_joined(run, tuning)] if len(run) >= _FEWEST else run
        start += len(run)
    return result


def _placed(step: Step) -> Placed | None:
    """The product that a step computes, if it is one of few rows."""
    found = step.fn.product if isinstance(step.fn, Launch) else None
    if not isinstance(found, FewRows):
        return None
    return Placed(found, *(block_tiles.ends(step) if found.weights.tiled else step.args[:7:6]))


def _continues(run: Sequence[Step], step: Step) -> bool:
    """Whether a step can follow others, or begin: weights, rows and activations must be alike."""
    placed = _placed(step)
    if placed is None:
        return False
    product = placed.product
    if product.weights.form.depth % 8 or product.weights.form.bits == _HALVES:
        return False
    bias = product.epilogue.bias
    if bias is not None and bias.size != product.weights.form.columns:
        return False
    others = [found for before in run if (found := _placed(before)) is not None]
    products = [other.product for other in others]
    kinds = {one.epilogue.activation for one in (*products, product)} - {NO_ACTIVATION}
    if len(kinds) > 1:
        return False
    if product.weights.tiled:
        # A group adds of a residual what it has made itself: what comes from gates, another made.
        residual = product.epilogue.residual
        gates = [other.y.root for other in others if other.product.gated]
        if residual is not None and residual.root in gates:
            return False
    elif _row_bytes([*others, placed]) > _LOCAL_BYTES:
        return False
    return all(
        one.rows == product.rows and one.weights.options() == product.weights.options()
        for one in products
    ) and all(other.x.dtype == placed.x.dtype for other in others)


def _row_bytes(run: Sequence[Placed]) -> int:
    """Local memory that the longest rows take, as ``STRIDE`` in the kernel has it."""
    halves = is_half(run[0].x.dtype)
    sizes = []
    for product, _, _ in run:
        form = product.weights.form
        stride = form.elements + ((8 if form.elements > 8 else 0) if halves else 4)
        totals = 4 * form.parts if product.weights.offsets is not None else 0
        units = math.ceil(form.units / _WARP) * _WARP
        sizes.append(product.rows * units * (stride * (2 if halves else 4) + totals))
    return max(sizes)


def _joined(run: Sequence[Step], tuning: Tuning) -> Step:
    """The launch that computes all."""
    placed = [found for step in run if (found := _placed(step)) is not None]
    last = run[-1]
    if not isinstance(last.fn, Launch):
        raise TypeError(f"{last.fn!r} is not a launch")
    shared = ("HALF", "BFLOAT", "NVIDIA", *tuning.form.options)
    common = {name: value for name, value in last.fn.program.options if name in shared}
    file, kernel, launch_of = f"{KERNEL}.cl", KERNEL, _launch_of
    if placed[0].product.weights.tiled:
        file, kernel, launch_of = block_tiles.FILE, block_tiles.KERNEL, block_tiles.launch_of
    made = launch_of(placed, tuning)
    key = ProgramKey(file, tuple((made.options | common).items()))
    names = tuple(dict.fromkeys(name for step in run for name in step.op.origins))
    op = replace(last.op, origins=names, exec_type=kernel)
    return replace(last, fn=Launch(key, kernel, made.sizes), args=made.args, op=op)


def _launch_of(run: Sequence[Placed], tuning: Tuning) -> block_tiles.RunLaunch:
    """One launch of ``block_run.cl``."""
    groups = min(tuning.resident_groups, tuning.limits.compute_units)
    products = [placed.product for placed in run]
    tensors: dict[Operand, int] = {}
    records = np.zeros((len(run), _RECORD), np.int32)
    weights: list[Argument | StallFlag | None] = []
    for number, (product, x, y) in enumerate(run):
        bias, residual = product.epilogue.bias, product.epilogue.residual
        at = [tensors.setdefault(tensor, len(tensors)) for tensor in (x, y)]
        at.append(at[0] if residual is None else tensors.setdefault(residual, len(tensors)))
        fields = [*_fields(product), *at]
        records[number, : len(fields)] = fields
        words, scales, _ = product.weights.buffers()
        weights += [words, scales, product.weights.offsets, bias, product.factors]
    unused = [None] * (_TENSORS - len(tensors))
    weights += [None] * (_WEIGHTS * _MOST - len(weights))
    kinds = [product.epilogue.activation for product in products]
    activation = next((kind for kind in kinds if kind != NO_ACTIVATION), NO_ACTIVATION)
    options: dict[str, str | int | None] = {
        "ITEMS": _ITEMS,
        "ROWS": products[0].rows,
        "COLUMNS": _COLUMNS,
        "DEEP": _DEEP,
        "PRODUCTS": len(run),
        "DEPTH": max(product.weights.form.depth for product in products),
        "ACTIVATION": int(activation.code),
        "NORMALIZE": None,
        **products[0].weights.options(),
    }
    args = (
        Operand(records.shape, records.dtype, records),
        Counters((len(run) + 1) * _LINE),
        STALL,
        f32(activation.alpha),
        f32(activation.beta),
        *(*tensors, *unused),
        *weights,
    )
    return block_tiles.RunLaunch(((groups * _ITEMS,), (_ITEMS,)), args, options)


def _fields(product: FewRows) -> list[int]:
    """What ``block_run.cl`` reads of a product."""
    form, epilogue = product.weights.form, product.epilogue
    return [
        *(form.columns, form.depth, form.units, form.blocks),
        int(epilogue.bias is not None),
        int(epilogue.residual is not None),
        int(product.gated),
        int(epilogue.activation != NO_ACTIVATION),
        int(product.factors is not None),
        int(np.float32(product.epsilon).view(np.int32)),
    ]
