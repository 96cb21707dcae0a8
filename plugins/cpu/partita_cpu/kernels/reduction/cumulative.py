"""Cumulative sums and products along an axis."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.axes import axis_of
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.elementwise.broadcast_loops import Kernel
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, INDICES, INTS, kernel
from partita_cpu.kernels.reduction.reduce_loops import lanes_of, share_of_lanes
from partita_cpu.scalar.instructions import like


def _scan_kernel(combine: Callable[..., Any]) -> Kernel:
    """A kernel ``(x, y, neutral, outer, n, inner, exclusive, reverse, tid, nt)``.

    It reads ``x`` (outer, n, inner) and writes ``y``, of the same size, both flat: along the middle
    axis what all elements up to a place come to, without its own if ``exclusive``, and from the
    end if ``reverse``.

    Args:
        combine: Two elements to one; ``neutral`` and an element give that element.
    """

    def scan(
        x: Any,
        y: Any,
        neutral: Any,
        outer: int,
        n: int,
        inner: int,
        exclusive: int,
        reverse: int,
        tid: int,
        nt: int,
    ) -> None:
        if inner == 1:
            step = -1 if reverse else 1
            for o in range(outer * tid // nt, outer * (tid + 1) // nt):
                at = o * n + (n - 1 if reverse else 0)
                total = neutral
                for _ in range(n):
                    value = x[at]
                    if exclusive:
                        y[at] = total
                        total = like(total, combine(total, value))
                    else:
                        total = like(total, combine(total, value))
                        y[at] = total
                    at += step
            return
        begin, end, pieces = share_of_lanes(outer, inner, tid, nt)
        for task in range(begin, end):
            o, first, last = lanes_of(task, pieces, inner)
            before = (o * n + (n - 1 if reverse else 0)) * inner
            for k in range(n):
                here = (o * n + (n - 1 - k if reverse else k)) * inner
                source = x[here + first : here + last]
                if exclusive:
                    source = x[before + first : before + last]
                total = y[before + first : before + last]
                target = y[here + first : here + last]
                if k == 0:
                    for i in range(target.size):
                        target[i] = neutral if exclusive else source[i]
                else:
                    for i in range(target.size):
                        target[i] = combine(total[i], source[i])
                before = here

    scan.__name__ = scan.__qualname__ = f"scan_{combine.__name__}"
    return loop(scan)


_SCANS = {"CumSum": (_scan_kernel(operator.add), 0), "CumProd": (_scan_kernel(operator.mul), 1)}


@kernel("CumSum", "CumProd", dtypes={0: ALL_FLOATS | INTS, 1: INDICES})
@through_float32
def scan(b: Builder, node: Node, x: Operand, axis: Operand) -> Operand:
    """Cumulative sum or product."""
    position = axis_of(b.node, int(b.value(axis).item()), x.ndim)
    function, neutral = _SCANS[node.op_type]
    y = b.empty(x.shape, x.dtype)
    if x.size:
        n, inner = x.shape[position], math.prod(x.shape[position + 1 :])
        b.call(
            function,
            b.flat(x),
            b.flat(y),
            x.dtype.type(neutral),
            x.size // (n * inner),
            n,
            inner,
            int(node.attrs.get("exclusive", 0)),
            int(node.attrs.get("reverse", 0)),
        )
    return y
