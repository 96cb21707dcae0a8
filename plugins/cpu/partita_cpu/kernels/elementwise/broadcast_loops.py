"""The loops of elementwise operators: one array, and two or three arrays that broadcast.

An operator gives a scalar function; `mapped` and `broadcast` make the kernel. Each kernel gets a
qualified name of its own, since that is what numba files its cached code under.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Operand
from partita.lowering.geometry import broadcasting
from partita.lowering.geometry.boxes import strides_of
from partita.lowering.shapes.symbolic_size import always_equal, found_equal, integers
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.instructions import wide_vectors

Kernel = Callable[..., None]
LOOPS = 4
"""Dimensions of the loop nest over broadcast operands."""
SHORT = 16
"""Rows of fewer elements are not computed one by one."""


def _named(body: Callable[..., Any], scalar: Callable[..., Any]) -> Kernel:
    body.__name__ = body.__qualname__ = f"{body.__name__}_{scalar.__name__}"
    return loop(body)


def mapped(scalar: Callable[..., Any]) -> Kernel:
    """A kernel ``(x, y, tid, nt)`` for ``y = scalar(x)`` on flat arrays."""

    def map1(x: Any, y: Any, tid: int, nt: int) -> None:
        wide_vectors()
        start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
        source, target = x[start:stop], y[start:stop]
        for i in range(target.size):
            target[i] = scalar(source[i])

    return _named(map1, scalar)


def mapped_with(scalar: Callable[..., Any]) -> Kernel:
    """A kernel ``(x, y, alpha, beta, tid, nt)`` for ``y = scalar(x, alpha, beta)`` on flat arrays.

    Args:
        scalar: A function of an element and of two numbers that are the same for all elements.
    """

    def map3(x: Any, y: Any, alpha: Any, beta: Any, tid: int, nt: int) -> None:
        wide_vectors()
        start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
        source, target = x[start:stop], y[start:stop]
        for i in range(target.size):
            target[i] = scalar(source[i], alpha, beta)

    return _named(map3, scalar)


def gated(scalar: Callable[..., Any]) -> Kernel:
    """A kernel ``(x, other, y, tid, nt)`` for ``y = scalar(x) * other`` on flat arrays."""

    def map_gated(x: Any, other: Any, y: Any, tid: int, nt: int) -> None:
        wide_vectors()
        start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
        source, factors, target = x[start:stop], other[start:stop], y[start:stop]
        for i in range(target.size):
            target[i] = scalar(source[i]) * factors[i]

    return _named(map_gated, scalar)


def gated_in_place(scalar: Callable[..., Any]) -> Kernel:
    """A kernel ``(x, other, tid, nt)`` for ``x = scalar(x) * other`` on flat arrays.

    That of `gated`, given one array as ``x`` and as ``y``, takes one element after another: its
    vectors are for arrays that do not overlap.
    """

    def map_gated_in_place(x: Any, other: Any, tid: int, nt: int) -> None:
        wide_vectors()
        start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
        target, factors = x[start:stop], other[start:stop]
        for i in range(target.size):
            target[i] = scalar(target[i]) * factors[i]

    return _named(map_gated_in_place, scalar)


@loop(inline=True)
def share_of_rows(rows: int, inner: int, tid: int, nt: int) -> Any:
    """A thread's share of rows: the first and the one behind the last, and its columns likewise.

    Threads share rows, or the columns of rows that are few.
    """
    first, last, start, stop = 0, rows, 0, inner
    if rows >= 4 * nt:
        first, last = rows * tid // nt, rows * (tid + 1) // nt
    else:
        start, stop = inner * tid // nt, inner * (tid + 1) // nt
    return first, last, start, stop


def broadcast(scalar: Callable[..., Any]) -> Kernel:
    """A kernel ``(a, b, y, nest, tid, nt)`` for ``y = scalar(a, b)`` on flat arrays.

    Args:
        scalar: A function of two elements.

    Returns:
        The kernel; ``nest`` is what `loop_nest` makes of the shapes: sizes, then strides of either
        operand, which are 0 along what it repeats.
    """

    def map2(a: Any, b: Any, y: Any, nest: Any, tid: int, nt: int) -> None:
        n1, n2, inner = nest[1], nest[2], nest[3]
        a2, a3, b2, b3 = nest[6], nest[7], nest[10], nest[11]
        if inner < SHORT and n2 > inner:
            # Rows are too short to be worth a loop each: take the same column of all rows.
            first, last = n2 * tid // nt, n2 * (tid + 1) // nt
            for line in range(nest[0] * n1):
                i0, i1 = line // n1, line % n1
                for i in range(inner):
                    at = i0 * nest[4] + i1 * nest[5] + i * a3
                    bt = i0 * nest[8] + i1 * nest[9] + i * b3
                    yt = line * n2 * inner + i
                    for k in range(first, last):
                        left, right = a[np.uint64(at + k * a2)], b[np.uint64(bt + k * b2)]
                        y[np.uint64(yt + k * inner)] = scalar(left, right)
            return
        first, last, start, stop = share_of_rows(nest[0] * n1 * n2, inner, tid, nt)
        above = first // n2
        i2, i1, i0 = first - above * n2, above % n1, above // n1
        for row in range(first, last):
            at = i0 * nest[4] + i1 * nest[5] + i2 * a2
            bt = i0 * nest[8] + i1 * nest[9] + i2 * b2
            target = y[row * inner + start : row * inner + stop]
            if a3 == 0:
                left = a[at]
                right = b[bt + start : bt + stop]
                for i in range(target.size):
                    target[i] = scalar(left, right[i])
            elif b3 == 0:
                head = a[at + start : at + stop]
                tail = b[bt]
                for i in range(target.size):
                    target[i] = scalar(head[i], tail)
            else:
                head = a[at + start : at + stop]
                right = b[bt + start : bt + stop]
                for i in range(target.size):
                    target[i] = scalar(head[i], right[i])
            i2 += 1
            if i2 == n2:
                i2 = 0
                i1 += 1
                if i1 == n1:
                    i1 = 0
                    i0 += 1

    return _named(map2, scalar)


def broadcast_shape(b: Builder, operands: Sequence[Operand]) -> tuple[int, ...]:
    """The common shape of the operands.

    Args:
        b: The program's builder, whose operation the message names.
        operands: At least one.

    Raises:
        OperandError: There is none.
    """
    shapes = [operand.shape for operand in operands]
    try:
        return broadcasting.broadcast(*shapes)
    except ValueError as error:
        listed = ", ".join(str(list(shape)) for shape in shapes)
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}): the shapes {listed} do not "
            "broadcast; check the shapes of the inputs."
        ) from error


def loop_nest(
    shape: Sequence[int], operands: Sequence[Operand]
) -> tuple[list[int], list[list[int]]] | None:
    """At most four loops over ``shape`` that serve all operands.

    Returns:
        Their lengths, outermost first, and for each operand its strides in elements, 0 where it
        is repeated; or ``None`` if the operands alternate too often for four loops.
    """
    return merged_loops(shape, [strides_in(operand.shape, shape) for operand in operands])


def merged_loops(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]] | None:
    """The same for operands of any strides along the axes of ``shape``.

    Whether a size is 1 that stands for others is asked only of the innermost loop, and where there
    are too many loops if it is not.
    """
    return _merged(shape, strides, always_equal) or _merged(shape, strides, found_equal)


def _merged(
    shape: Sequence[int], strides: Sequence[Sequence[int]], same: Callable[[int, int], bool]
) -> tuple[list[int], list[list[int]]] | None:
    lengths: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, length in enumerate(shape):
        if (found_equal if axis == len(shape) - 1 else same)(length, 1):
            continue
        steps = [stride[axis] for stride in strides]
        if lengths and all(
            same(own[-1], step * length) for own, step in zip(merged, steps, strict=True)
        ):
            lengths[-1] *= length
            for own, step in zip(merged, steps, strict=True):
                own[-1] = step
        else:
            lengths.append(length)
            for own, step in zip(merged, steps, strict=True):
                own.append(step)
    if len(lengths) > LOOPS:
        return None
    if not lengths:
        return [1] * LOOPS, [[0] * (LOOPS - 1) + [1] for _ in strides]
    missing = LOOPS - len(lengths)
    return [1] * missing + lengths, [[0] * missing + own for own in merged]


def strides_in(shape: Sequence[int], whole: Sequence[int]) -> list[int]:
    """Elements from one to the next along the axes of a shape; 0 where one is repeated.

    Args:
        shape: Of what is broadcast to it.
        whole: The shape.
    """
    return broadcasting.repeating_strides(shape, strides_of(shape), whole)


def expand(source: Array, target: Array) -> None:
    """Copies ``source`` into all of the larger ``target``."""
    np.copyto(target, source)


def emit_broadcast(
    b: Builder, kernel: Kernel, operands: Sequence[Operand], y: Operand, *args: Any
) -> None:
    """Records a broadcast kernel over any number of operands and the result ``y``.

    Args:
        b: Records it.
        kernel: Takes the operands, the result, the plan of loops, and ``args``.
        operands: What it reads.
        y: What it writes, of the shape that operands broadcast to.
        args: Numbers that it takes besides.

    Raises:
        OperandError: An operand does not broadcast to the shape of the result.
    """
    if not all(_is_as(operand.shape, y.shape) for operand in operands) and (
        broadcast_shape(b, [*operands, y]) != y.shape
    ):
        listed = ", ".join(str(list(operand.shape)) for operand in operands)
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}): the shapes {listed} do not "
            f"broadcast to {list(y.shape)}; check the shapes of the inputs."
        )
    with b.if_any(y.size) as is_any:
        if not is_any:
            return
        nest = loop_nest(y.shape, operands)
        if nest is None:
            operands = [_expanded(b, operand, y.shape) for operand in operands]
            nest = loop_nest(y.shape, operands)
        lengths, strides = nest or ([], [])
        plan = b.constant(integers([*lengths, *(step for own in strides for step in own)]))
        b.call(kernel, *(b.flat(operand) for operand in operands), b.flat(y), plan, *args)


def _is_as(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether shapes are known to be the same, which decides nothing."""
    return len(shape) == len(other) and all(map(always_equal, shape, other))


def _expanded(b: Builder, x: Operand, shape: tuple[int, ...]) -> Operand:
    if _is_as(x.shape, shape):
        return x
    full = b.empty(shape, x.dtype)
    b.call_numpy(expand, x, full)
    return full


def emit_map(b: Builder, kernel: Kernel, x: Operand, dtype: Any = None, *args: Any) -> Operand:
    """Records a mapped kernel and returns its result, of ``dtype`` or as ``x``.

    Args:
        b: Records it.
        kernel: Takes the operand, the result, and ``args``.
        x: What it reads.
        dtype: Element type of the result; ``None`` for that of ``x``.
        args: Numbers that it takes besides.
    """
    y = b.empty(x.shape, x.dtype if dtype is None else dtype)
    with b.if_any(x.size) as is_any:
        if is_any:
            b.call(kernel, b.flat(x), b.flat(y), *args)
    return y
