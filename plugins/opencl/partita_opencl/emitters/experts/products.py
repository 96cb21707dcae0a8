"""Rows that choose experts, and their products with the weights of these."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Activation, Operand
from partita_opencl.emitters.experts.weights import ExpertWeights
from partita_opencl.emitters.gemm.block_products import cut_of, groups_of, tile_of
from partita_opencl.launches.emitter_kit import Argument, Kit, Options, f32, i32, i64, ints, is_half
from partita_opencl.launches.work_sizes import Tuning

_FEW_TOKENS = 4
"""Rows of at most so many tokens are by themselves; others are sorted by expert."""

_WIDE = 64
"""Columns of a tile."""

_TILE_ITEMS = 128
"""Items of a group that computes one; as in the kernel."""

_LANE_COLUMNS = 4
"""Columns of an item that works in registers."""

_LANE_ROWS = 4
"""Rows of such an item."""


class Gate(NamedTuple):
    """How a number of an expert becomes that of the next product.

    Attributes:
        activation: Of the gate, or of all there is.
        limit: Largest gate, and largest size of its factor, where these are gated as GPT-OSS does;
            the activation has numbers for that.
    """

    activation: Activation
    limit: float | None = None

    @property
    def options(self) -> dict[str, str | int | None]:
        """The kernels' macros."""
        found: dict[str, str | int | None] = {"ACTIVATION": int(self.activation.code)}
        if self.limit is not None:
            finite = math.isfinite(self.limit)
            found["LIMIT"] = f"{float(np.float32(self.limit)).hex()}f" if finite else "INFINITY"
        return found

    @property
    def numbers(self) -> tuple[Argument, Argument]:
        """The kernels' ``alpha, beta``."""
        return f32(self.activation.alpha), f32(self.activation.beta)


class Routes(NamedTuple):
    """The rows of tokens: one for each expert that a token chose.

    Attributes:
        chosen: int64, the expert of each row.
        shares: Its part of its token's result.
        experts: How many experts there are.
        used: Rows of a token.
        tiles: Rows of an expert that are multiplied together, if rows are sorted: int32 (tiles, 4).
        order: int32, the rows in the order of their experts.
        high: Most rows of a tile.
    """

    chosen: Operand
    shares: Operand
    experts: int
    used: int
    tiles: Operand | None = None
    order: Operand | None = None
    high: int = 1

    @property
    def rows(self) -> int:
        """Rows of all tokens."""
        return self.chosen.size


def routes(k: Kit, chosen: Operand, shares: Operand, experts: int) -> Routes:
    """The rows of choices, sorted by expert unless they are few.

    Args:
        k: The kit.
        chosen: int64 (..., choices of a token).
        shares: As many.
        experts: How many there are.
    """
    used = chosen.shape[-1]
    found = Routes(chosen, shares, experts, used)
    if found.rows <= _FEW_TOKENS * used:
        return found
    high = _LANE_ROWS
    if _has_tiles(k.tuning):
        high = 64 if found.rows >= 48 * experts else 32
    count = -(-found.rows // high) + experts
    tiles, order = k.empty((count, 4), np.int32), k.empty((found.rows,), np.int32)
    items = k.tuning.row_items
    sizes = k.tuning.groups(1, items)
    numbers = i32(found.rows), i32(count)
    options = {"EXPERTS": experts, "HIGH": high, "ITEMS": items}
    k.launch("mixture_rows.cl", "sort_rows", sizes, chosen, order, tiles, *numbers, **options)
    return found._replace(tiles=tiles, order=order, high=high)


def _has_tiles(tuning: Tuning) -> bool:
    return tuning.fits(_TILE_ITEMS, 1)


def product(
    k: Kit,
    x: Operand,
    found: Routes,
    experts: ExpertWeights,
    gate: Gate,
    *,
    of_tokens: bool,
    gated: bool = False,
) -> Operand:
    """Each row times the weights of its expert, (rows, columns).

    Args:
        k: The kit.
        x: Rows, or a row for each token.
        found: Which experts these are.
        experts: The weights.
        gate: Applied to results.
        of_tokens: Whether ``x`` has a row for each token.
        gated: Whether the activation of one column is multiplied by the next.
    """
    form = experts.weights.form
    y = k.empty((found.rows, form.columns // (2 if gated else 1)), x.dtype)
    sharing = i32(found.used if of_tokens else 1)
    if found.tiles is None and k.tuning.local_tiles:
        _multiply_few(k, x, found, experts, gate, y, sharing, gated=gated)
        return y
    weights, bias = experts.weights, experts.bias
    options = {**weights.options(), **gate.options, **({"GATED": None} if gated else {})}
    places: tuple[Argument, ...] = (found.chosen,)
    if found.tiles is not None and found.order is not None:
        places = found.tiles, found.order
        options["SORTED"] = None
    args = (
        *(x, *weights.buffers(), bias or x, y, *places, *weights.sizes(), sharing),
        *(i32(bias is not None), *gate.numbers),
    )
    options |= {"EXPERTS": experts.experts, "HIGH": found.high}
    tiles = found.rows if found.tiles is None else found.tiles.shape[0]
    if _has_tiles(k.tuning) and form.depth:  # whose first step reads weights in any case
        options.pop("SORTED")
        groups = tiles * -(-form.columns // _WIDE)
        sizes = k.tuning.groups(groups, _TILE_ITEMS)
        options |= _tile_options(k, x, form.depth)
        k.launch("mixture_tiles.cl", "mixture_tiles", sizes, *args, WIDE=_WIDE, **options)
        return y
    lanes = ((-(-form.columns // _LANE_COLUMNS), tiles), (1, 1))
    k.launch("mixture_lanes.cl", "mixture_lanes", lanes, *args, COLUMNS=_LANE_COLUMNS, **options)
    return y


def _tile_options(k: Kit, x: Operand, depth: int) -> dict[str, Any]:
    """How deep tiles are, and what multiplies them."""
    options: dict[str, Any] = {"A_QUADS": None} if depth % 4 == 0 else {}
    if k.tuning.matrix_units and is_half(x.dtype):
        return {**options, "DEEP": 64, "MATRIX": None}
    return {**options, "DEEP": 32}


def _multiply_few(
    k: Kit,
    x: Operand,
    found: Routes,
    experts: ExpertWeights,
    gate: Gate,
    y: Operand,
    sharing: Argument,
    *,
    gated: bool,
) -> None:
    """Records products of single rows, which read the weights once, as they are.

    Args:
        k: Records it.
        x: Rows, of which several products may read the same one.
        found: Which expert each row of the result goes through.
        experts: Weights and biases of all experts.
        gate: The activation, and its numbers.
        y: Receives the results.
        sharing: How many neighbouring products read one row.
        gated: Whether columns are pairs, of which the activation of one is multiplied by the other.
    """
    weights, bias, form = experts.weights, experts.bias, experts.weights.form
    cut = cut_of(k, form)
    k.launch(
        "block_product.cl",
        "block_product",
        ((groups_of(form, cut) * cut.lanes, found.rows * cut.high), (cut.lanes, cut.high)),
        x,
        *weights.buffers(),
        bias or x,
        x,
        y,
        i32(found.rows),
        *weights.sizes(),
        ints(0, 1),
        i32(bias is not None),
        i32(0),
        *gate.numbers,
        found.chosen,
        sharing,
        LX=cut.lanes,
        LY=cut.high,
        ROWS=1,
        COLUMNS=cut.columns,
        TILE=tile_of(form, cut, 1),
        EXPERTS=experts.experts,
        **weights.options(),
        **gate.options,
        **({"GATED": None} if gated else {}),
    )


def gate_rows(k: Kit, gates: Operand, x: Operand, gate: Gate) -> Operand:
    """The activated gates times what they let through."""
    y = k.empty(x.shape, x.dtype)
    options: Options = tuple({**gate.options, "EXPERTS": 1}.items())
    sizes = k.tuning.flat(y.size)
    count = i64(y.size)
    k.launch(
        "mixture_rows.cl", "gate_rows", sizes, gates, x, y, count, *gate.numbers, **dict(options)
    )
    return y


def sums_of_rows(k: Kit, rows: Operand, found: Routes, y: Operand) -> None:
    """Adds up the rows of each token, each times its share, into ``y`` (..., columns)."""
    sizes = i64(y.size), i32(y.shape[-1]), i32(found.used)
    flat, options = k.tuning.flat(y.size), {"EXPERTS": found.experts}
    k.launch("mixture_rows.cl", "sum_rows", flat, rows, found.shares, y, *sizes, **options)
