"""Products of attention by AMX: 16 or 32 rows, factors as one bfloat16 or as sums of two."""

from __future__ import annotations

from partita_cpu.llvm.attention.attend import PRODUCT_PARAMETERS, TILED
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.tiles.amx import (
    A_TILES,
    B_TILES,
    Load,
    add_product,
    begin_sums,
    load_tile,
    schedule,
    store_sums,
)

PAIRS = 16
"""Of a step along what is added up."""

_ACROSS = 32
"""Columns of a block."""


def functions() -> list[Function]:
    """All kernels."""
    sizes = [(planes, halves) for planes in (1, 2) for halves in (1, 2)]
    return [tile_products(f"products{TILED}{p}_{halves}", halves, p) for p, halves in sizes]


def tile_products(name: str, halves: int, planes: int) -> Function:
    """As `attend.products`, of so many times 16 rows; depth counts pairs, whole steps of them.

    All these rows are read and written, whether or not they mean something.

    Args:
        name: Its symbol.
        halves: Tiles down.
        planes: Parts of an element: further ones of the left side lie ``further_a`` bytes behind
            each other, those of the right side ``further_b``.
    """
    f = Function(name, PRODUCT_PARAMETERS)
    steps = f.let(f"udiv i64 %depth, {PAIRS}")
    below_a, below_y = f.let("shl i64 %lda, 4"), f.let("shl i64 %ldy, 4")
    alone = f.let("icmp eq ptr %shares, null")
    scaled = f.let(f"select i1 {alone}, i64 0, i64 {16 * halves}")
    order = schedule(halves, planes)

    def load(places: list[str], what: Load) -> None:
        side, half, part = what
        at = places[side == "b"]
        for _ in range(part):
            at = f.at(at, f"%further_{side}")
        if side == "a":
            at = f.at(at, below_a) if half else at
            load_tile(f, A_TILES[half], at, "%lda")
        else:
            at = f.at(at, 64) if half else at
            load_tile(f, B_TILES[half], at, str(4 * _ACROSS))

    def step(_: str, places: list[str]) -> list[str]:
        for what in order:
            if isinstance(what[0], str):
                load(places, (what[0], what[1], what[2]))
            else:
                add_product(f, what[0], what[1])
        a, b = places
        return [f.at(a, 4 * PAIRS), f.at(b, 4 * _ACROSS * PAIRS)]

    def block(_: str, carried: list[str]) -> list[str]:
        b, y = carried
        f.loop(scaled, [("ptr", y), ("ptr", "%shares")], lambda _, at: _scale_row(f, *at))
        sums = [f.at(f.at(y, below_y) if i else y, 64 * j) for i in range(halves) for j in range(2)]
        begin_sums(f, alone, sums, "%ldy")
        f.loop(steps, [("ptr", "%a"), ("ptr", b)], step)
        store_sums(f, sums, "%ldy")
        return [f.at(b, "%step"), f.at(y, 4 * _ACROSS)]

    f.loop("%blocks", [("ptr", "%b"), ("ptr", "%y")], block)
    f.do("ret void")
    return f


def _scale_row(f: Function, y: str, share: str) -> list[str]:
    """Multiplies a row of a block of the result by its share."""
    v, factor = "<16 x float>", f.splat(16, "float", f.load("float", share))
    for at in (y, f.at(y, 64)):
        f.do(f"store {v} {f.let(f'fmul {v} {f.load(v, at)}, {factor}')}, ptr {at}, align 4")
    return [f.at(y, "%ldy"), f.at(share, 4)]
