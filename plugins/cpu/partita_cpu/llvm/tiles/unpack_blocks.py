"""Unpacks block-quantized weights to bfloat16 tiles of AMX, for products of many rows.

A step is 32 terms of a panel of `dot_blocks`. The pairs of neighbouring terms in its words are the
pairs that an AMX tile wants. Each weight becomes one bfloat16 or the sum of two, whose second parts
lie behind the tiles of both panels of a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import rounded_pair
from partita_cpu.llvm.tiles.amx import TILE_BYTES
from partita_cpu.llvm.tiles.dot_blocks import (
    COLUMNS,
    Variant,
    Zeros,
    column_numbers,
    quad_pairs,
    six_bit_quads,
)

PARAMETERS = (
    "ptr %w, ptr %scales, ptr %zeros, ptr %more_scales, ptr %more_zeros, float %zero, ptr %to"
)
"""w: a step of a panel. scales, zeros: of its first 16 terms; more_scales, more_zeros: of the
others. zero: the zero point if all are equal. to: the step's tile of the first part."""

STEP = 32
"""Terms of a step."""

PLANES = (1, 2)
"""In how many parts weights are laid out."""

_LANES = COLUMNS
_FLOATS = f"<{_LANES} x float>"
_INTS = f"<{_LANES} x i32>"
_HALVES = f"<{2 * _LANES} x bfloat>"


def functions(variant: Variant) -> list[Function]:
    """All for one kind of panels."""
    return [unpack_blocks(f"unpack_{variant.name}_{planes}", variant, planes) for planes in PLANES]


def unpack_blocks(name: str, variant: Variant, planes: int) -> Function:
    """Lays out a step in so many parts; see `PARAMETERS`."""
    f = Function(name, PARAMETERS)
    numbers: tuple[str, str] = "", ""
    for number, (pair, words, shift) in enumerate(_places(f, variant.bits)):
        if number % (STEP // 4) == 0:
            numbers = _numbers(f, variant, "more_" if number else "")
        floats = [_weight(f, variant, words, shift + half, numbers) for half in (0, 16)]
        at = f.at("%to", 4 * COLUMNS * pair)
        for plane in range(planes):
            rounded = _rounded(f, floats)
            f.do(f"store {_INTS} {rounded}, ptr {f.at(at, 2 * TILE_BYTES * plane)}, align 4")
            if plane + 1 < planes:
                floats = _rest(f, floats, rounded)
    f.do("ret void")
    return f


def _places(f: Function, bits: int) -> Iterator[tuple[int, str, int]]:
    """Pairs of a step: which one, words that hold it, and at which bit of their lower half."""
    if bits != 6:
        each = 16 // bits
        for word in range(STEP // 2 // each):
            words = f.load(_INTS, f.at("%w", word * 4 * COLUMNS), 1)
            yield from ((word * each + pair, words, pair * bits) for pair in range(each))
        return
    shorts = f"<{2 * COLUMNS} x i16>"
    for part in range(2):
        at = [f.at("%w", (3 * part + word) * 4 * COLUMNS) for word in range(3)]
        for quad, found in enumerate(
            six_bit_quads(f, COLUMNS, [f.load(shorts, place, 1) for place in at])
        ):
            words = f.let(f"bitcast {shorts} {found} to {_INTS}")
            for half, pair in enumerate(quad_pairs(quad)):
                yield part * STEP // 4 + pair, words, 8 * half


def block_numbers(
    f: Function, variant: Variant, scales: str, zeros: str, zero: str
) -> tuple[str, str]:
    """Scales of a block of a panel, and zero points times scales.

    Args:
        f: Where instructions go.
        variant: What the panel holds.
        scales: Pointer to the block's scales.
        zeros: To its zero points.
        zero: The zero point if all are equal, a float.
    """
    found = column_numbers(f, _LANES, scales, variant.scale_bytes)
    if variant.zeros is Zeros.EQUAL:
        terms = f.splat(_LANES, "float", zero)
    else:
        terms = column_numbers(f, _LANES, zeros, variant.zeros.size)
    if variant.zeros in (Zeros.EQUAL, Zeros.BYTES):
        terms = f.let(f"fmul {_FLOATS} {terms}, {found}")
    return found, terms


def _numbers(f: Function, variant: Variant, which: str) -> tuple[str, str]:
    """Scales, and zero points times scales, negative."""
    scales, terms = block_numbers(f, variant, f"%{which}scales", f"%{which}zeros", "%zero")
    return scales, f.let(f"fneg {_FLOATS} {terms}")


def _weight(f: Function, variant: Variant, words: str, shift: int, numbers: tuple[str, str]) -> str:
    """The weights that begin at a bit of each word, as floats."""
    if shift:
        words = f.let(f"lshr {_INTS} {words}, {f.splat(_LANES, 'i32', str(shift))}")
    if shift + variant.bits < 32:
        mask = str((1 << variant.bits) - 1)
        words = f.let(f"and {_INTS} {words}, {f.splat(_LANES, 'i32', mask)}")
    level = f.let(f"sitofp {_INTS} {words} to {_FLOATS}")
    scales, terms = numbers
    return f.fma(_LANES, level, scales, terms)


def _rounded(f: Function, floats: list[str]) -> str:
    """Two vectors as bfloat16, each of the first beside its neighbour of the second."""
    first, second = floats
    both = rounded_pair(f, first, second)
    order = ", ".join(f"i32 {lane // 2 + lane % 2 * _LANES}" for lane in range(2 * _LANES))
    mask = f"<{2 * _LANES} x i32> <{order}>"
    beside = f.let(f"shufflevector {_HALVES} {both}, {_HALVES} poison, {mask}")
    return f.let(f"bitcast {_HALVES} {beside} to {_INTS}")


def _rest(f: Function, floats: list[str], rounded: str) -> list[str]:
    """What is left of two vectors that were rounded."""
    shift = f.splat(_LANES, "i32", "16")
    upper = f.splat(_LANES, "i32", str(-1 << 16))
    taken = [f.let(f"shl {_INTS} {rounded}, {shift}"), f.let(f"and {_INTS} {rounded}, {upper}")]
    rests = []
    for x, bits in zip(floats, taken, strict=True):
        rests.append(f.let(f"fsub {_FLOATS} {x}, {f.let(f'bitcast {_INTS} {bits} to {_FLOATS}')}"))
    return rests
