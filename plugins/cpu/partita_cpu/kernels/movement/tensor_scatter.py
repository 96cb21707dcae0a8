"""TensorScatter: new rows of a cache, at a place of their own for each batch."""

from __future__ import annotations

import functools
import math
from typing import NoReturn

import numpy as np

from partita.contract.query import Reason
from partita.errors import InputError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita.lowering.kernel_table import refused_choice
from partita.lowering.shapes.symbolic_size import integers
from partita_cpu.jit.intrinsics.address_call import address
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.movement.strided_copy import MOVABLE
from partita_cpu.kernels.operator_table import INT64, kernel
from partita_cpu.scalar.math import copy_row

(BATCHES, PARTS, PLACES, NEW, INNER, CIRCULAR) = range(6)
"""What the table of `write_rows` holds. PARTS: of each batch, before the axis; PLACES: along it;
NEW: rows to be written; INNER: elements of a row; CIRCULAR: whether the first follows the last.
"""


@loop
def write_rows(
    past: Array,
    update: Array,
    present: Array,
    starts: Array,
    wrong: Array,
    table: Array,
    tid: int,
    nt: int,
) -> None:
    """Writes rows from a place on; copies what was there before, unless it is the same memory.

    Args:
        past: (BATCHES, PARTS, PLACES, INNER), flat.
        update: (BATCHES, PARTS, NEW, INNER), flat.
        present: As `past`; receives it with the new rows.
        starts: int64 of (BATCHES,): where the new rows belong.
        wrong: Receives a batch whose rows belong nowhere.
        table: As above.
        tid: This thread.
        nt: All threads; they share the parts.
    """
    places, new, inner, parts = table[PLACES], table[NEW], table[INNER], table[PARTS]
    units = table[BATCHES] * parts
    for unit in range(units * tid // nt, units * (tid + 1) // nt):
        start = starts[unit // parts]
        if table[CIRCULAR]:
            start %= places
        elif start < 0 or start > places - new:
            wrong[0] = unit // parts
            raise ValueError("rows are out of range")
        target = present[unit * places * inner : (unit + 1) * places * inner]
        if address(past) != address(present):
            copy_row(past[unit * places * inner : (unit + 1) * places * inner], target)
        for row in range(new):
            place = start + row
            place -= places if place >= places else 0
            source = (unit * new + row) * inner
            copy_row(update[source : source + inner], target[place * inner : (place + 1) * inner])


def _refuse(name: str, *arguments: Array) -> NoReturn:
    *_, starts, wrong, table = arguments
    batch, places, new = int(wrong[0]), int(table[PLACES]), int(table[NEW])
    found = f" at {int(starts[batch])}" if isinstance(starts, np.ndarray) else ""
    raise InputError(
        f"Operation '{name}': {new} new rows of batch {batch} do not fit{found}; with {places} "
        f"places write_indices may be 0 to {places - new}."
    )


def _check(node: Node) -> Reason | None:
    return refused_choice(node, "mode", "linear", "circular")


@kernel(
    "TensorScatter",
    dtypes={0: MOVABLE, 1: MOVABLE, 2: INT64},
    check=_check,
    since=24,
    in_place={0: 0},
)
def tensor_scatter(
    b: Builder, node: Node, past: Operand, update: Operand, starts: Operand | None = None
) -> Operand:
    """The past with rows replaced; in place where its memory is that of the result."""
    present = b.empty(past.shape, past.dtype)
    if not past.size:
        return present
    axis = axis_of(node, node.attrs.get("axis", -2), past.ndim)
    batches, shape = past.shape[0], past.shape
    if starts is None:
        starts = b.computed((batches,), np.int64, np.zeros, batches)
    sizes = batches, math.prod(shape[1:axis]), shape[axis], update.shape[axis]
    circular = int(node.attrs.get("mode", "linear") == "circular")
    b.call(
        Checked(write_rows, functools.partial(_refuse, b.node.name), 3),
        b.flat(past),
        b.flat(update),
        b.flat(present),
        b.flat(starts),
        b.empty((1,), np.int64),
        b.constant(integers([*sizes, math.prod(shape[axis + 1 :]), circular])),
    )
    return present
