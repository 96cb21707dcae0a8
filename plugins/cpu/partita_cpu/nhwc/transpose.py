"""Transposition of planes, block by block in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.jit.intrinsics.address_call import address, call_transpose
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.transpose_block import SIDE

TOGETHER = 4
"""Blocks beside one another that are transposed before those below: lines that lie together in
memory are fetched together."""


@loop
def _transpose_short(x: Array, y: Array, rows: int, columns: int, tid: int, nt: int) -> None:
    """Element by element: ``y[n, j, i] = x[n, i, j]``.

    Args:
        x: (N, rows, columns), flat.
        y: (N, columns, rows), flat.
        rows: Rows of x.
        columns: Columns of x.
        tid: This thread.
        nt: All threads; they share the rows.
    """
    lines = x.size // columns
    for line in range(lines * tid // nt, lines * (tid + 1) // nt):
        plane = line // rows
        target = plane * rows * columns + line - plane * rows
        for column in range(columns):
            y[np.uint64(target + column * rows)] = x[np.uint64(line * columns + column)]


@loop
def transpose_planes(
    x: Array, y: Array, rows: int, columns: int, kernel: int, tid: int, nt: int
) -> None:
    """``y[n, j, i] = x[n, i, j]`` for elements of 1 or 4 bytes.

    The last blocks down and across end where the plane ends and overlap those before, also
    those of other threads, which write the same there.

    Args:
        x: (N, rows, columns), flat.
        y: (N, columns, rows), flat.
        rows: Rows of x. Fewer than `SIDE` of them, or of columns, go one by one.
        columns: Columns of x.
        kernel: Address of the kernel that transposes a block.
        tid: This thread.
        nt: All threads; they share blocks of columns, or of rows where those are few.
    """
    if rows < SIDE or columns < SIDE:
        _transpose_short(x, y, rows, columns, tid, nt)
        return
    across, down = -(-columns // SIDE), -(-rows // SIDE)
    planes = x.size // (rows * columns)
    size = x.itemsize
    by_rows = planes * across < TOGETHER * nt and across < down
    pieces = down if by_rows else across
    piece, end = planes * pieces * tid // nt, planes * pieces * (tid + 1) // nt
    while piece < end:
        plane = piece // pieces
        first = piece - plane * pieces
        taken = min(end - piece, pieces - first)
        top, bottom, left, right = 0, down, first, first + taken
        if by_rows:
            top, bottom, left, right = first, first + taken, 0, across
        origin = plane * rows * columns
        for begin in range(left, right, TOGETHER):
            for below in range(top, bottom):
                line = min(below * SIDE, rows - SIDE)
                for block in range(begin, min(begin + TOGETHER, right)):
                    place = min(block * SIDE, columns - SIDE)
                    source = address(x) + size * (origin + line * columns + place)
                    target = address(y) + size * (origin + place * rows + line)
                    call_transpose(kernel, (source, size * columns, target, size * rows))
        piece += taken


def emit_transpose(b: Builder, x: Operand, perm: Sequence[int]) -> Operand | None:
    """Records a transposition that swaps two blocks of neighbouring axes behind the others.

    Returns:
        The result, or ``None`` if it is another transposition, or has no kernel.
    """
    policy = native_policy(b.options)
    if policy is None or b.folding or x.dtype.kind not in "fiu" or x.dtype.itemsize not in (1, 4):
        return None
    lead = next((axis for axis, source in enumerate(perm) if source != axis), len(perm))
    middle = perm[lead] if lead < len(perm) else lead
    if list(perm[lead:]) != [*range(middle, len(perm)), *range(lead, middle)]:
        return None
    rows, columns = math.prod(x.shape[lead:middle]), math.prod(x.shape[middle:])
    # Sizes that vary are not asked: the kernel takes them all.
    if any(type(size) is int and size < SIDE for size in (rows, columns)) or not x.size:
        return None
    y = b.empty([x.shape[axis] for axis in perm], x.dtype)
    kernel = addresses(policy.level)[f"transpose_{8 * x.dtype.itemsize}"]
    b.call(transpose_planes, b.flat(x), b.flat(y), rows, columns, kernel, exec_type="reorder")
    return y
