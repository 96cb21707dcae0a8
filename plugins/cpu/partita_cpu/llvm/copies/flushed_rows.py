"""Packing of float32 weights row by row, with subnormal numbers flushed to 0."""

from __future__ import annotations

from collections.abc import Sequence

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.masked import column_masks, masked_load

PARAMETERS = "ptr %x, i64 %ldx, ptr %y, ptr %places, i64 %rows, i64 %columns"
"""x: the first of so many rows; ldx: bytes between them. y: the result, to which row k goes at
float places[k]. columns: how many floats of a row exist; the rest is written as 0."""

EXPONENT = 0x7F800000
"""The bits of a float32's exponent; 0 and subnormal numbers have none of them."""


def copy_flushed(name: str, lanes: int, side: int) -> Function:
    """Writes ``side`` floats of each row.

    Args:
        name: Its symbol.
        lanes: Floats of a vector.
        side: A multiple of them.
    """
    f = Function(name, PARAMETERS)
    vectors = side // lanes

    def rows(masks: Sequence[str | None]) -> None:
        def row(index: str, carried: list[str]) -> list[str]:
            place = f.load("i64", f.at("%places", f.let(f"shl i64 {index}, 3")), 8)
            target = f.at("%y", f.let(f"shl i64 {place}, 2"))
            for i, mask in enumerate(masks):
                x = masked_load(f, lanes, f.at(carried[0], 4 * lanes * i), mask)
                _store_flushed(f, lanes, x, f.at(target, 4 * lanes * i))
            return [f.at(carried[0], "%ldx")]

        f.loop("%rows", [("ptr", "%x")], row)

    every = f.let(f"icmp sge i64 %columns, {side}")
    f.either(
        every,
        lambda: rows([None] * vectors),
        lambda: rows(column_masks(f, "%columns", lanes, vectors)),
    )
    f.do("ret void")
    return f


def _store_flushed(f: Function, lanes: int, x: str, pointer: str) -> None:
    """Writes a vector with 0 where its exponent is 0."""
    v, bits = f"<{lanes} x float>", f"<{lanes} x i32>"
    mask = f.splat(lanes, "i32", str(EXPONENT))
    exponent = f.let(f"and {bits} {f.let(f'bitcast {v} {x} to {bits}')}, {mask}")
    normal = f.let(f"icmp ne {bits} {exponent}, zeroinitializer")
    kept = f.let(f"select <{lanes} x i1> {normal}, {v} {x}, {v} zeroinitializer")
    f.do(f"store {v} {kept}, ptr {pointer}, align 4")
