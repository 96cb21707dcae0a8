"""Attention of many new tokens over a cache, for devices with matrix units of halves."""

from __future__ import annotations

import math

import numpy as np

from partita.lowering import Node, Operand
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_opencl.emitters.heads.attention import MOST_ELEMENTS, ROWS, head_options
from partita_opencl.emitters.heads.cache_operands import (
    Inputs,
    Sizes,
    bias_steps,
    scale_of,
    score_options,
    tensors,
    token_options,
    turns,
)
from partita_opencl.launches.emitter_kit import Kit, f32, i32, ints, is_half
from partita_opencl.launches.steps import FAULT
from partita_opencl.passes.nhwc import UNIT

_WARPS = 4
"""Warps of a group."""

_TALL = 2
"""How many times `ROWS` a warp has where there are groups enough: they share what it loads."""

_BLOCK, _SHORT_BLOCK, _LONG_HEAD = 64, 32, 64
"""Keys at a time, and how many where heads have more elements than so many."""


def by_matrix_units(
    k: Kit,
    node: Node,
    sizes: Sizes,
    inputs: Inputs,
    present: tuple[Operand, ...],
    y: Operand,
    **flags: int | None,
) -> bool:
    """Records the attention, if it is one for matrix units: of so many tokens that groups are full.

    Args:
        k: What records.
        node: The operation; its attributes are those of ``GroupQueryAttention``.
        sizes: Its sizes.
        inputs: Its inputs.
        present: Keys and values, which the new tokens have joined.
        y: The result, (batch, token, features).
        flags: Options of the kernel beside those that follow from the rest.

    Returns:
        Whether it is recorded.
    """
    tuning = k.tuning
    if not (tuning.matrix_units and tuning.limits.is_nvidia) or "APPENDS" in flags:
        return False
    if not is_half(inputs.query.dtype) or sizes.size % UNIT or sizes.size > MOST_ELEMENTS:
        return False
    heads, rows = sizes.batch * sizes.heads, sizes.tokens * sizes.group
    units = tuning.limits.compute_units
    groups = heads * math.ceil(rows / (_WARPS * ROWS))
    if rows < ROWS or 4 * groups < units:
        return False
    long = sizes.size > _LONG_HEAD
    tall = 1 if long else settled(evaluated(_tall, heads, rows, units))
    groups = heads * math.ceil(rows / (_WARPS * ROWS * tall))
    if not is_half(present[0].dtype):
        present = _halves(k, node, sizes, inputs, present, **flags)
        inputs = inputs._replace(past_key=present[0], past_value=present[1])
    steps, starts = sizes.steps()
    k.launch(
        "cache_prompt.cl",
        "cache_prompt",
        tuning.groups(groups, _WARPS * 32),
        inputs.query,
        *present,
        *tensors(inputs),
        inputs.bias or inputs.query,
        y,
        FAULT,
        i32(sizes.batch),
        i32(sizes.tokens),
        i32(sizes.places),
        turns(inputs),
        ints(steps[0], starts[0]),
        ints(*bias_steps(sizes, inputs.bias)),
        f32(scale_of(node, sizes)),
        i32(len(k.builder.ops)),
        **token_options(k, node, sizes, inputs),
        **score_options(node, sizes, inputs),
        **flags,
        **head_options(sizes.size),
        WARPS=_WARPS,
        TALL=tall,
        BLOCK=_SHORT_BLOCK if long else _BLOCK,
    )
    return True


def _tall(heads: int, rows: int, units: int) -> int:
    """How many times 16 rows a warp has."""
    groups = heads * math.ceil(rows / (_WARPS * ROWS * _TALL))
    return _TALL if groups >= 2 * units else 1


def _halves(
    k: Kit,
    node: Node,
    sizes: Sizes,
    inputs: Inputs,
    present: tuple[Operand, ...],
    **flags: int | None,
) -> tuple[Operand, ...]:
    """Keys and values as halves, in memory that is free once the attention is computed.

    Args:
        k: As for :func:`by_matrix_units`; so are the others.
        node: The operation.
        sizes: Its sizes.
        inputs: Its inputs.
        present: Keys and values of another type.
        flags: Options of the kernel.
    """
    shape = (sizes.batch, sizes.heads, sizes.places, sizes.size)
    halves = tuple(k.empty(shape, np.float16) for _ in present)
    k.launch(
        "cache_halves.cl",
        "cache_halves",
        k.tuning.flat(math.prod(shape) // UNIT),
        *present,
        *halves,
        inputs.lengths,
        inputs.total,
        FAULT,
        i32(sizes.batch),
        i32(sizes.tokens),
        i32(sizes.places),
        turns(inputs),
        i32(len(k.builder.ops)),
        **token_options(k, node, sizes, inputs),
        **flags,
        HEADS=sizes.heads,
    )
    return halves
