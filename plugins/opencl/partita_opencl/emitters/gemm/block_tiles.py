"""Products of few rows with weights of 4 bits in tiles, which matrix units multiply.

One launch of ``block_tiles.cl`` computes one product or several that follow one another. A tile is
16 columns; local memory holds the rows, and what of the weights is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import NO_ACTIVATION, Operand, Step
from partita_opencl.device.limits import Limits
from partita_opencl.emitters.gemm.block_weights import BlockForm, BlockWeights
from partita_opencl.emitters.gemm.products import Epilogue
from partita_opencl.emitters.gemm.tiled_weights import PIECE, TILE, WORD_BYTES
from partita_opencl.launches.emitter_kit import Argument, f32, is_half
from partita_opencl.launches.steps import STALL, Counters, Sizes, StallFlag
from partita_opencl.launches.work_sizes import Tuning

FILE, KERNEL = "block_tiles.cl", "block_tiles"

MOST_PRODUCTS = 4
"""Products of a launch; the kernel has arguments for so many."""

MOST_ROWS = 4
"""Rows of a launch: the kernel would take 8, if local memory did."""

_ITEMS, _WARPS = 512, 16
"""Items of a group, and its warps."""

_TENSORS, _WEIGHTS = 3 * MOST_PRODUCTS, 3
"""Arguments for tensors, which products may share, and for what belongs to one product."""

_FIRST_TENSOR = MOST_PRODUCTS + 4
"""Arguments before those for tensors."""

_LINE, _RECORD = 32, 16
"""Counters of a cache line, and ints of a record; as in the kernel."""

_CHUNKS = (4, 2)
"""Pieces that are copied at once: many, or few where there is no room for many."""

_DEEP = 2
"""Such copies of each warp that are on their way: more would keep rows and signals waiting."""

_TURN_COST = 1
"""Pieces that take as long as joining the sums of a tile."""


class FewRows(NamedTuple):
    """What a launch for few rows computes, for those who put several of them in one.

    Attributes:
        weights: Its weights.
        rows: Rows of both sides.
        epilogue: What becomes of the sums; the bias is of columns.
        factors: A constant row of float32 that normalized rows are multiplied by, or ``None``.
        epsilon: Added to the mean square.
        gated: Whether the activation of one column is multiplied by the next.
    """

    weights: BlockWeights
    rows: int
    epilogue: Epilogue
    factors: Operand | None
    epsilon: float
    gated: bool


class Placed(NamedTuple):
    """A product, the rows that it reads and those that it writes."""

    product: FewRows
    x: Operand
    y: Operand


def are_tiled(tuning: Tuning, form: BlockForm, dtype: np.dtype[Any]) -> bool:
    """Whether weights lie in tiles, so that matrix units multiply few rows of a type by them."""
    usable = is_half(dtype) and tuning.copy_engine and not tuning.bfloat
    fits = tuning.fits(_ITEMS, 1) and form.bits == 4 and form.block % (PIECE // 2) == 0
    if not usable or not fits or form.depth % 8:
        return False
    pieces = math.ceil(form.depth / PIECE)
    return _chunk(tuning.limits, MOST_ROWS, pieces, WORD_BYTES + 8 * 4 * 8) is not None


def _chunk(limits: Limits, rows: int, pieces: int, piece_bytes: int) -> int | None:
    """Pieces of a copy for which there is room beside rows and sums; ``None`` if there is not."""
    held = rows * (pieces * PIECE + 32) * 2 + pieces * 2 * 4 * (4 if rows > 2 else rows)
    held += 2 * _WARPS * rows * TILE * 4 + _ITEMS * 4 + MOST_PRODUCTS * _RECORD * 4 + 1024
    for chunk in _CHUNKS:
        room = (limits.kernel_local_bytes - held) // (_WARPS * (chunk * piece_bytes + 8))
        if room >= _DEEP:
            return chunk
    return None


def sharers_of(form: BlockForm, groups: int) -> int:
    """How many warps of a group share a tile, so that the busiest one is done soonest."""
    tiles, pieces = math.ceil(form.columns / TILE), math.ceil(form.depth / PIECE)

    def cost(sharers: int) -> int:
        turns = math.ceil(tiles / (groups * (_WARPS // sharers)))
        return turns * (math.ceil(pieces / sharers) + _TURN_COST)

    return min((1 << n for n in range(_WARPS.bit_length())), key=cost)


class RunLaunch(NamedTuple):
    """What is launched: sizes, arguments, and options beside those of every kernel."""

    sizes: Sizes
    args: tuple[Argument | StallFlag | Counters | None, ...]
    options: dict[str, str | int | None]


def ends(step: Step) -> tuple[Operand, Operand]:
    """What the step of one product reads and writes."""
    x, y = step.args[_FIRST_TENSOR : _FIRST_TENSOR + 2]
    return x, y


def launch_of(run: Sequence[Placed], tuning: Tuning) -> RunLaunch:
    """One launch for products of which each may read what those before it wrote.

    Args:
        run: The products; weights, rows and activations are alike.
        tuning: The device's; if there are several products, groups may wait for one another.
    """
    groups = tuning.limits.compute_units
    if len(run) > 1:
        groups = min(groups, tuning.resident_groups)
    tensors: dict[Operand, int] = {}
    records = np.zeros((MOST_PRODUCTS, _RECORD), np.int32)
    weights: list[Argument | None] = []
    for record, (product, x, y) in zip(records, run, strict=False):
        bias, residual = product.epilogue.bias, product.epilogue.residual
        at = [tensors.setdefault(tensor, len(tensors)) for tensor in (x, y)]
        at.append(at[0] if residual is None else tensors.setdefault(residual, len(tensors)))
        fields = [*_fields(product, groups), *at]
        record[: len(fields)] = fields
        weights += [product.weights.words, bias, product.factors]
    weights += [None] * (_WEIGHTS * MOST_PRODUCTS - len(weights))
    kinds = [placed.product.epilogue.activation for placed in run]
    activation = next((kind for kind in kinds if kind != NO_ACTIVATION), NO_ACTIVATION)
    first = run[0].product
    pieces = max(math.ceil(placed.product.weights.form.depth / PIECE) for placed in run)
    chunk = _chunk(tuning.limits, first.rows, pieces, first.weights.words.shape[-1])
    if chunk is None:
        raise ValueError(f"weights of {pieces} pieces lie in tiles, for which there is no room")
    options: dict[str, str | int | None] = {
        "ITEMS": _ITEMS,
        "ROWS": first.rows,
        "PRODUCTS": len(run),
        "PIECES": pieces,
        "DEEP": _DEEP,
        "CHUNK": chunk,
        "ACTIVATION": int(activation.code),
        "NORMALIZE": None,
        **first.weights.options(),
    }
    waiting = (Counters(len(run) * _LINE), STALL) if len(run) > 1 else (None, None)
    args = (
        *records,
        *waiting,
        f32(activation.alpha),
        f32(activation.beta),
        *(*tensors, *[None] * (_TENSORS - len(tensors))),
        *weights,
    )
    return RunLaunch(((groups * _ITEMS,), (_ITEMS,)), args, options)


def _fields(product: FewRows, groups: int) -> list[int]:
    """What the kernel reads of a product."""
    form, epilogue = product.weights.form, product.epilogue
    pieces, sharers = math.ceil(form.depth / PIECE), sharers_of(form, groups)
    return [
        *(form.columns, form.depth, pieces, math.ceil(form.columns / TILE)),
        *(sharers.bit_length() - 1, math.ceil(pieces / sharers)),
        int(epilogue.bias is not None),
        int(epilogue.residual is not None),
        int(product.gated),
        int(epilogue.activation != NO_ACTIVATION),
        int(product.factors is not None),
        int(np.float32(product.epsilon).view(np.int32)),
    ]
