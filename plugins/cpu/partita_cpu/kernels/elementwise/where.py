"""Where: elements of one tensor or of another."""

from __future__ import annotations

from typing import Any

from partita.lowering import Builder, Node, Operand
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import (
    broadcast_shape,
    emit_broadcast,
    share_of_rows,
)
from partita_cpu.kernels.half import as_bits
from partita_cpu.kernels.operator_table import ANY, BOOL, HALVES, kernel
from partita_cpu.scalar.math import copy_row


@loop
def _where(condition: Any, a: Any, b: Any, y: Any, nest: Any, tid: int, nt: int) -> None:
    """A thread's share of Where, with broadcasting.

    Args:
        condition: Flat.
        a: Chosen where it is true; flat.
        b: Chosen where it is not; flat.
        y: The result, flat.
        nest: Sizes of four loops, and for each of condition, `a` and `b` the steps of each loop.
        tid: This thread.
        nt: All threads.
    """
    n1, n2, inner = nest[1], nest[2], nest[3]
    first, last, start, stop = share_of_rows(nest[0] * n1 * n2, inner, tid, nt)
    for row in range(first, last):
        above = row // n2
        i2, i1, i0 = row - above * n2, above % n1, above // n1
        ct = i0 * nest[4] + i1 * nest[5] + i2 * nest[6]
        at = i0 * nest[8] + i1 * nest[9] + i2 * nest[10]
        bt = i0 * nest[12] + i1 * nest[13] + i2 * nest[14]
        target = y[row * inner + start : row * inner + stop]
        if nest[7] == 0:
            # One choice for the whole row.
            source, at, step = (a, at, nest[11]) if condition[ct] else (b, bt, nest[15])
            if step == 0:
                target[:] = source[at]
            else:
                copy_row(source[at + start : at + stop], target)
            continue
        policy = condition[ct + start : ct + stop]
        if nest[11] == 0 and nest[15] == 0:
            one, other = a[at], b[bt]
            for i in range(target.size):
                target[i] = one if policy[i] else other
        elif nest[11] == 0:
            one = a[at]
            others = b[bt + start : bt + stop]
            for i in range(target.size):
                target[i] = one if policy[i] else others[i]
        elif nest[15] == 0:
            ones = a[at + start : at + stop]
            other = b[bt]
            for i in range(target.size):
                target[i] = ones[i] if policy[i] else other
        else:
            ones = a[at + start : at + stop]
            others = b[bt + start : bt + stop]
            for i in range(target.size):
                target[i] = ones[i] if policy[i] else others[i]


_where_bits = as_bits(_where)


@kernel("Where", dtypes={0: BOOL, 1: ANY, 2: ANY})
def where(b: Builder, node: Node, condition: Operand, x: Operand, y: Operand) -> Operand:
    """``x`` where the condition holds, else ``y``."""
    operands = [condition, x, y]
    result = b.empty(broadcast_shape(b, operands), x.dtype)
    emit_broadcast(b, _where_bits if x.dtype in HALVES else _where, operands, result)
    return result
