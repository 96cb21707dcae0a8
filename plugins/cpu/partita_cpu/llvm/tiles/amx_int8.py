"""8-bit tile kernels on AMX: 16 or 32 rows of uint8 times a panel of int8, int32 accumulators.

A panel is 64 columns wide; its layout is (quad of terms, column, 4). Sixteen quads of sixteen
columns are a tile register; their rows lie a whole panel row apart.
"""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.tiles.amx import begin_sums, store_sums

PARAMETERS = "ptr %a, i64 %lda, ptr %b, i64 %steps, i64 %step, ptr %tile, i64 %more"
"""a: the first row of bytes; the others follow at distances of lda, all 16 or 32 of them. b: the
panel. steps: how many times `step` terms; step: at most 64, a multiple of 4.
tile: where the sums go, 64 to a row; more: not 0 if they are added to those that are there."""

STEP = 64
"""Terms that one instruction takes, at most."""

COLUMNS = 64
_ROW_BYTES = 256
_SIDE = 64
_A_TILE, _B_TILE = 4, 6


def byte_tile(name: str, halves: int) -> Function:
    """``tile += a @ b`` for `16 * halves` rows: 16 at once with all columns, or 32 with half."""
    f = Function(name, PARAMETERS)
    below, next_to = f.let("shl i64 %lda, 4"), f.let("shl i64 %step, 6")
    across = 4 // halves
    for first in range(0, 4, across):
        columns = list(range(first, first + across))
        _pass(f, [0, *[below] * (halves - 1)], columns, next_to)
    f.do("ret void")
    return f


def _pass(f: Function, rows: list[str | int], columns: list[int], next_to: str) -> None:
    """Sums of one or two times 16 rows and some quarters of the panel, kept in tiles 0 to 3."""
    a_tile, b_tile = _A_TILE, _B_TILE
    cells = [(i, j) for i in range(len(rows)) for j in range(len(columns))]
    places = [f.at("%tile", 16 * _ROW_BYTES * i + _SIDE * columns[j]) for i, j in cells]
    begin_sums(f, f.let("icmp eq i64 %more, 0"), places, _ROW_BYTES)

    def step(_: str, values: list[str]) -> list[str]:
        a, b = values
        for i, down in enumerate(rows):
            place = f.at(a, down) if down else a
            f.do(f"call void @llvm.x86.tileloadd64(i8 {a_tile + i}, ptr {place}, i64 %lda)")
        for j, column in enumerate(columns):
            to, place = b_tile + j % 2, f.at(b, _SIDE * column)
            f.do(f"call void @llvm.x86.tileloadd64(i8 {to}, ptr {place}, i64 {_ROW_BYTES})")
            for i in range(len(rows)):
                c = i * len(columns) + j
                f.do(f"call void @llvm.x86.tdpbusd(i8 {c}, i8 {a_tile + i}, i8 {to})")
        return [f.at(a, "%step"), f.at(b, next_to)]

    f.loop("%steps", [("ptr", "%a"), ("ptr", "%b")], step)
    store_sums(f, places, _ROW_BYTES)


DECLARATIONS = "declare void @llvm.x86.tdpbusd(i8 immarg, i8 immarg, i8 immarg)\n"
"""What the kernels call beside what `amx.declarations` has."""
