"""Products of few rows with weights of 4 bits in tiles, which matrix units multiply.

One launch of ``block_tiles.cl`` computes one product or several that follow one another. A tile is
16 columns; local memory holds the rows, and what of the weights is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import NO_ACTIVATION, Array, Operand, Step
from partita.lowering.shapes.symbolic_size import present
from partita_opencl.device.limits import Limits
from partita_opencl.emitters.gemm.block_weights import BlockForm, BlockWeights
from partita_opencl.emitters.gemm.products import Epilogue
from partita_opencl.emitters.gemm.tiled_weights import PIECE, TILE, WORD_BYTES
from partita_opencl.launches.emitter_kit import Argument, f32, i32, is_half
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

_FIRST_TENSOR = MOST_PRODUCTS + 5
"""Arguments before those for tensors."""

_LINE, _RECORD = 32, 16
"""Counters of a cache line, and ints of a record; as in the kernel."""

_CHUNKS = (4, 2)
"""Pieces that are copied at once: many, or few where there is no room for many."""

_LEAST_DEEP, _DEEP = 2, 3
"""Such copies of each warp that there is room for at least, and that pay: two are asked for at the
beginning, since more on their way would keep rows waiting."""

_TURN_COST = 1
"""Pieces that take as long as joining the sums of a tile."""


class FewRows(NamedTuple):
    """What a launch for few rows computes, for those who put several of them in one.

    Attributes:
        weights: Its weights.
        rows: Rows of both sides.
        epilogue: What becomes of the sums; the bias is of columns.
        factors: A constant row of float32 that normalized rows are multiplied by, or ``None``; if
            weights lie in tiles, as :func:`shares_of_factors` makes them.
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
    return _copies(tuning.limits, MOST_ROWS, pieces, WORD_BYTES + 8 * 4 * 8) is not None


def _copies(limits: Limits, rows: int, pieces: int, piece_bytes: int) -> tuple[int, int] | None:
    """Pieces of a copy, and such copies of a warp, for which there is room beside rows and sums."""
    held = rows * (pieces * PIECE + 32) * 2 + pieces * 2 * 4 * (4 if rows > 2 else rows)
    held += 2 * _WARPS * rows * TILE * 4 + _ITEMS * 4 + MOST_PRODUCTS * _RECORD * 4 + 1280
    for chunk in _CHUNKS:
        room = (limits.kernel_local_bytes - held) // (_WARPS * (chunk * piece_bytes + 8))
        if room >= _LEAST_DEEP:
            return chunk, min(room, _DEEP)
    return None


def sharers_of(form: BlockForm, groups: int) -> int:
    """How many warps of a group share a tile, so that the busiest one is done soonest."""
    tiles, pieces = math.ceil(form.columns / TILE), math.ceil(form.depth / PIECE)

    def cost(sharers: int) -> int:
        turns = math.ceil(tiles / (groups * (_WARPS // sharers)))
        return turns * (math.ceil(pieces / sharers) + _TURN_COST)

    return min((1 << n for n in range(_WARPS.bit_length())), key=cost)


def shares_of_factors(factors: Array) -> Array:
    """Factors over a power of two, so that none is larger than 1, and behind them that power.

    A half times such a factor is no larger than a half, whatever its row is normalized by later.
    """
    most = float(np.max(np.abs(factors), initial=0.0, where=np.isfinite(factors)))
    power = np.float32(2.0 ** min(math.frexp(most)[1], 127))
    return np.append(factors.reshape(-1).astype(np.float32) / power, power)


class Handed(NamedTuple):
    """Which results products of a launch hand to one another, and where among its counters.

    Attributes:
        places: The first counter of each tensor that is handed on.
        counters: Counters in all: a line in which groups count, and a counter for two halves.
    """

    places: dict[Operand, int]
    counters: int

    @classmethod
    def of(cls, run: Sequence[Placed]) -> Handed:
        """Those of products in order."""
        places: dict[Operand, int] = {}
        counters = _LINE
        for number, (product, _, y) in enumerate(run):
            if any(later.x.root is y.root for later in run[number + 1 :]):
                places[y.root] = counters
                width = product.weights.form.columns // (2 if product.gated else 1)
                counters += math.ceil(present(product.rows) * width / (2 * _LINE)) * _LINE
        return cls(places, counters)


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
    handed = Handed.of(run)
    tensors: dict[Operand, int] = {}
    records = np.zeros((MOST_PRODUCTS, _RECORD), np.int32)
    weights: list[Argument | None] = []
    for record, (product, x, y) in zip(records, run, strict=False):
        bias, residual = product.epilogue.bias, product.epilogue.residual
        at = [tensors.setdefault(tensor, len(tensors)) for tensor in (x, y)]
        at.append(at[0] if residual is None else tensors.setdefault(residual, len(tensors)))
        places = [handed.places.get(tensor.root, -1) for tensor in (x, y)]
        fields = [*_fields(product, groups), *at, *places]
        record[: len(fields)] = fields
        weights += [product.weights.words, bias, product.factors]
    weights += [None] * (_WEIGHTS * MOST_PRODUCTS - len(weights))
    kinds = [placed.product.epilogue.activation for placed in run]
    activation = next((kind for kind in kinds if kind != NO_ACTIVATION), NO_ACTIVATION)
    first = run[0].product
    pieces = max(math.ceil(placed.product.weights.form.depth / PIECE) for placed in run)
    copies = _copies(tuning.limits, first.rows, pieces, first.weights.words.shape[-1])
    if copies is None:
        raise ValueError(f"weights of {pieces} pieces lie in tiles, for which there is no room")
    options: dict[str, str | int | None] = {
        "ITEMS": _ITEMS,
        "ROWS": first.rows,
        "PRODUCTS": len(run),
        "PIECES": pieces,
        "DEEP": copies[1],
        "CHUNK": copies[0],
        "ACTIVATION": int(activation.code),
        "NORMALIZE": None,
        **first.weights.options(),
    }
    waiting = (Counters(handed.counters), STALL) if len(run) > 1 else (None, None)
    args = (
        *records,
        *waiting,
        i32(handed.counters),
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
    flags = (
        epilogue.bias is not None,
        epilogue.residual is not None,
        product.gated,
        epilogue.activation != NO_ACTIVATION,
        product.factors is not None,
    )
    return [
        *(form.columns, form.depth, pieces, math.ceil(form.columns / TILE)),
        *(sharers.bit_length() - 1, math.ceil(pieces / sharers)),
        sum(1 << place for place, flag in enumerate(flags) if flag),
        *(int(np.float32(x).view(np.int32)) for x in (product.epsilon, 1.0 / form.depth)),
    ]
