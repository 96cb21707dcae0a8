"""Tile kernels with weights of 16 bits, mostly float16: accumulators are float32.

Few tiles widen weights in registers. For many tiles this is done once, to memory in the first-level
cache: on AVX-512 it takes a seventh of a tile's time.
"""

from __future__ import annotations

from partita_cpu.llvm.copies.bf16_split import PARAMETERS, pack_tile
from partita_cpu.llvm.epilogue import epilogue
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import BFLOAT, FLOAT16, load_half, rounded_to_float16
from partita_cpu.llvm.masked import masked_store
from partita_cpu.llvm.tiles.fma import Factors, fma_tile

ROUND_PARAMETERS = "ptr %x, i64 %n"
"""x: n floats, a whole number of vectors."""

CONVERT_PARAMETERS = "ptr %x, i64 %n, ptr %to"
"""x: n numbers; to: where they go."""


def functions(lanes: int, most: int, amx: bool) -> list[Function]:
    """By weights in float16, for vectors of so many floats and tiles of up to `most` rows."""
    made = [fma_tile(f"f16_{rows}", rows, lanes, Factors.FLOAT16) for rows in range(1, most + 1)]
    made.append(_round("round_f16", lanes))
    return [*made, pack_tile("pack_f16", 2, float16=True)] if amx else made


def bfloat16_functions(lanes: int, most: int) -> list[Function]:
    """By weights in bfloat16."""
    made = [
        fma_tile(f"bf16_weights_{rows}", rows, lanes, Factors.BFLOAT16)
        for rows in range(1, most + 1)
    ]
    return [*made, _convert("from_bf16", lanes, BFLOAT, "float", "fpext")]


def narrow_functions(lanes: int, most: int) -> list[Function]:
    """Where float16 is also what results are kept in, or what is multiplied."""
    if lanes < 16:  # AVX2 has no masks for 16-bit numbers: they stay in float32 between steps
        return []
    made = []
    for rows in range(1, most + 1):
        made.append(fma_tile(f"f16_narrow_{rows}", rows, lanes, Factors.FLOAT16, FLOAT16))
        made.append(fma_tile(f"wide_narrow_{rows}", rows, lanes, half=FLOAT16))
    return [*made, epilogue("epilogue_f16", lanes, FLOAT16), _widen("widen_f16", lanes)]


def conversions(lanes: int) -> list[Function]:
    """Copies float16 as floats, and floats as the nearest float16."""
    widen, narrow = (FLOAT16, "float", "fpext"), ("float", FLOAT16, "fptrunc")
    return [_convert("from_f16", lanes, *widen), _convert("to_f16", lanes, *narrow)]


def _convert(name: str, lanes: int, kind: str, to: str, how: str) -> Function:
    """Copies numbers as those of another type: whole vectors, then what is left."""
    f = Function(name, CONVERT_PARAMETERS)

    def run(count: str, first: str, size: int) -> None:
        types = (kind, to) if size == 1 else (f"<{size} x {kind}>", f"<{size} x {to}>")

        def piece(index: str, _: list[str]) -> list[str]:
            at = f.let(f"add i64 {first}, {f.let(f'mul i64 {index}, {size}')}")
            x = f.let(f"getelementptr {kind}, ptr %x, i64 {at}")
            y = f.let(f"{how} {types[0]} {f.load(types[0], x, 2)} to {types[1]}")
            place = f.let(f"getelementptr {to}, ptr %to, i64 {at}")
            f.do(f"store {types[1]} {y}, ptr {place}, align 2")
            return []

        f.loop(count, [], piece)

    run(f.let(f"udiv i64 %n, {lanes}"), "0", lanes)
    left = f.let(f"urem i64 %n, {lanes}")
    run(left, f.let(f"sub i64 %n, {left}"), 1)
    f.do("ret void")
    return f


def _round(name: str, lanes: int) -> Function:
    """Rounds floats to float16 where they lie; what is too large becomes infinite."""
    f = Function(name, ROUND_PARAMETERS)
    kind = f"<{lanes} x float>"

    def piece(index: str, _: list[str]) -> list[str]:
        at = f.at("%x", f.let(f"mul i64 {index}, {4 * lanes}"))
        rounded = rounded_to_float16(f, lanes, f.load(kind, at))
        f.do(f"store {kind} {rounded}, ptr {at}, align 4")
        return []

    f.loop(f.let(f"udiv i64 %n, {lanes}"), [], piece)
    f.do("ret void")
    return f


def _widen(name: str, lanes: int) -> Function:
    """Copies a run of float16 as floats; see `bf16_split.PARAMETERS`. Returns 0."""
    f = Function(name, PARAMETERS, "i64")
    rounds = f.let(f"udiv i64 {f.let(f'add i64 %padded, {lanes - 1}')}, {lanes}")
    numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))

    def below(first: str, end: str) -> str:
        left = f.let(f"trunc i64 {f.let(f'sub i64 {end}, {first}')} to i32")
        return f.let(f"icmp slt <{lanes} x i32> <{numbers}>, {f.splat(lanes, 'i32', left)}")

    def piece(index: str, _: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {lanes}")
        at = f.at("%x", f.let(f"shl i64 {first}, 1"))
        x = load_half(f, lanes, at, below(first, "%n"), FLOAT16)
        to = f.at("%to", f.let(f"shl i64 {first}, 2"))
        masked_store(f, lanes, x, to, below(first, "%padded"))
        return []

    f.loop(rounds, [], piece)
    f.do("ret i64 0")
    return f
