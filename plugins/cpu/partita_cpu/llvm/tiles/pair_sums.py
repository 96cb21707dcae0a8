"""Products of 16-bit numbers, neighbouring ones added up in int32: ``pmaddwd`` of x86.

On ARM the same is written as products of 32 bits, of which even and odd ones are added up.
"""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import AARCH64, Level


def pair_sums(f: Function, level: Level, x: str, w: str) -> str:
    """Sums of two neighbouring products of 16 bits each, one for each lane.

    Args:
        f: The function that is written.
        level: Of the processor, which says how many lanes there are and how it is computed.
        x: Name of a vector of i16, two for each lane.
        w: Name of the other one.

    Returns:
        The name of a vector of i32.
    """
    lanes = level.lanes
    of, sums = f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    if level.architecture != AARCH64:
        return f.let(f"call {sums} {_instruction(level)}({of} {x}, {of} {w})")
    wide = f"<{2 * lanes} x i32>"
    x, w = (f.let(f"sext {of} {value} to {wide}") for value in (x, w))
    products = f.let(f"mul {wide} {x}, {w}")
    halves = []
    for odd in (0, 1):
        numbers = ", ".join(f"i32 {2 * lane + odd}" for lane in range(lanes))
        order = f"<{lanes} x i32> <{numbers}>"
        halves.append(f.let(f"shufflevector {wide} {products}, {wide} poison, {order}"))
    return f.let(f"add {sums} {halves[0]}, {halves[1]}")


def declaration(level: Level) -> str:
    """What :func:`pair_sums` calls; empty where no instruction makes them."""
    if level.architecture == AARCH64:
        return ""
    of = f"<{2 * level.lanes} x i16>"
    return f"declare <{level.lanes} x i32> {_instruction(level)}({of}, {of})\n"


def _instruction(level: Level) -> str:
    return "@llvm.x86.avx512.pmaddw.d.512" if level.lanes == 16 else "@llvm.x86.avx2.pmadd.wd"
