"""Unpacks block-quantized weights to the words of `dot_unpacked`: quads of bytes, pairs of int16.

Scales, and zero points times scales, become float32, one of each per column and unit. Whole zero
points are subtracted from pairs, and from quads where `dot_unpacked.subtracts_zeros` is true: what
rows that are 128 too large give is subtracted then, as an int32 in the place of the other float32.
"""

from __future__ import annotations

from collections.abc import Callable

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.dot_blocks import (
    COLUMNS,
    STEP,
    VARIANTS,
    Variant,
    Zeros,
    quad_pairs,
    six_bit_quads,
)
from partita_cpu.llvm.tiles.dot_unpacked import Factors, subtracts_zeros
from partita_cpu.llvm.tiles.unpack_blocks import block_numbers

PARAMETERS = (
    "ptr %w, ptr %scales, ptr %zeros, i64 %blocks, i64 %steps, i64 %units, ptr %to, "
    "ptr %to_scales, ptr %to_terms, i64 %pitch, float %zero"
)
"""w, scales, zeros: those of a panel, from a block on. blocks: how many; steps: of 16 terms of
each; units: of each. to, to_scales, to_terms: where they go, pitch bytes from one word or unit to
the next. zero: the zero point if all are equal."""

_INTS, _FLOATS = f"<{COLUMNS} x i32>", f"<{COLUMNS} x float>"
_SHORTS = f"<{2 * COLUMNS} x i16>"
_BYTES = f"<{4 * COLUMNS} x i8>"
_NIBBLES = 0x0F0F0F0F
_EVERY_BYTE = 0x01010101
_EVEN_BYTES = 0x00FF00FF
_BYTE_OFFSET = 128
"""What is added to the levels of rows that are uint8."""


def kernel_name(variant: Variant, factors: Factors) -> str:
    """The symbol of a kernel."""
    return f"{factors.value}_of_{variant.name}"


def quad_functions(level: Level) -> list[Function]:
    """All of them for quads."""
    return [
        _unpack_signed(variant)
        if subtracts_zeros(level, variant)
        else _unpack(variant, Factors.QUADS)
        for variant in VARIANTS
    ]


def pair_function(variant: Variant) -> Function:
    """The one for pairs."""
    return _unpack(variant, Factors.PAIRS)


def _unpack(variant: Variant, factors: Factors) -> Function:
    f = Function(kernel_name(variant, factors), PARAMETERS)

    def block(values: list[str]) -> list[str]:
        w, scales, zeros, to, to_scales, to_terms = values
        numbers = block_numbers(f, variant, scales, zeros, "%zero")
        below = _pairs_of_zeros(f, variant, zeros) if factors is Factors.PAIRS else ""

        def unit(_: str, places: list[str]) -> list[str]:
            for number, place in zip(numbers, places, strict=True):
                f.do(f"store {_FLOATS} {number}, ptr {place}, align 4")
            return [f.at(place, "%pitch") for place in places]

        def step(_: str, values: list[str]) -> list[str]:
            w, to = values
            words = variant.bits // 2
            found = [f.load(_INTS, f.at(w, 4 * COLUMNS * word), 1) for word in range(words)]
            if factors is Factors.QUADS:
                made, kind = _quads(f, variant.bits, found), _INTS
            else:
                made, kind = _pairs(f, variant.bits, found, below), _SHORTS
            for word in made:
                f.do(f"store {kind} {word}, ptr {to}, align 4")
                to = f.at(to, "%pitch")
            return [f.at(w, 4 * COLUMNS * words), to]

        state = [("ptr", to_scales), ("ptr", to_terms)]
        to_scales, to_terms = f.loop("%units", state, unit)
        w, to = f.loop("%steps", [("ptr", w), ("ptr", to)], step)
        return [w, to, to_scales, to_terms]

    _unpack_blocks(f, variant, block)
    return f


def _unpack_signed(variant: Variant) -> Function:
    """Quads of 4 bits less their zero points; sums of the levels of each unit go with them."""
    f = Function(kernel_name(variant, Factors.QUADS), PARAMETERS)
    steps = f.let("udiv i64 %steps, %units")
    terms = f.let(f"trunc i64 {f.let(f'mul i64 {steps}, {STEP}')} to i32")

    def block(values: list[str]) -> list[str]:
        w, scales, zeros, to, to_scales, to_terms = values
        scale, _ = block_numbers(f, variant, scales, zeros, "%zero")
        zero = f.let(f"zext <{COLUMNS} x i8> {f.load(f'<{COLUMNS} x i8>', zeros, 1)} to {_INTS}")
        of_bytes = f.let(f"mul {_INTS} {zero}, {f.splat(COLUMNS, 'i32', str(_EVERY_BYTE))}")
        of_unit = f.let(f"mul {_INTS} {zero}, {f.splat(COLUMNS, 'i32', terms)}")

        def step(_: str, values: list[str]) -> list[str]:
            w, to, total = values
            found = [f.load(_INTS, f.at(w, 4 * COLUMNS * word), 1) for word in range(2)]
            quads = _quads(f, 4, found)
            for quad in quads:
                f.do(f"store {_BYTES} {_difference(f, quad, of_bytes)}, ptr {to}, align 4")
                to = f.at(to, "%pitch")
            return [f.at(w, 8 * COLUMNS), to, _with_bytes(f, total, quads)]

        def unit(_: str, values: list[str]) -> list[str]:
            w, to, to_scales, to_terms = values
            state = [("ptr", w), ("ptr", to), (_INTS, "zeroinitializer")]
            w, to, total = f.loop(steps, state, step)
            total = f.let(f"sub {_INTS} {of_unit}, {_halves_added(f, total)}")
            total = f.let(f"mul {_INTS} {total}, {f.splat(COLUMNS, 'i32', str(_BYTE_OFFSET))}")
            f.do(f"store {_FLOATS} {scale}, ptr {to_scales}, align 4")
            f.do(f"store {_INTS} {total}, ptr {to_terms}, align 4")
            return [w, to, f.at(to_scales, "%pitch"), f.at(to_terms, "%pitch")]

        state = [("ptr", place) for place in (w, to, to_scales, to_terms)]
        w, to, to_scales, to_terms = f.loop("%units", state, unit)
        return [w, to, to_scales, to_terms]

    _unpack_blocks(f, variant, block)
    return f


def _unpack_blocks(f: Function, variant: Variant, unpack: Callable[[list[str]], list[str]]) -> None:
    """Unpacks all blocks, and ends the function.

    Args:
        f: The function.
        variant: Of the weights.
        unpack: Unpacks one; given where its words, scales and zero points are and where its words,
            scales and terms go, it returns all of that but scales and zero points for the next.
    """

    def block(_: str, values: list[str]) -> list[str]:
        w, *places = unpack(values)
        scales = f.at(values[1], variant.scale_bytes * COLUMNS)
        zeros = f.at(values[2], variant.zeros.size * COLUMNS)
        return [w, scales, zeros, *places]

    names = ("w", "scales", "zeros", "to", "to_scales", "to_terms")
    f.loop("%blocks", [("ptr", f"%{name}") for name in names], block)
    f.do("ret void")


def _difference(f: Function, words: str, others: str) -> str:
    """The bytes of words less those of others."""
    both = (f.let(f"bitcast {_INTS} {each} to {_BYTES}") for each in (words, others))
    return f.let(f"sub {_BYTES} {', '.join(both)}")


def _with_bytes(f: Function, total: str, quads: list[str]) -> str:
    """Sums in both halves of words, and the bytes of four quads of 4 bits."""
    first, *others = quads
    for other in others:
        first = f.let(f"add {_INTS} {first}, {other}")
    mask = f.splat(COLUMNS, "i32", str(_EVEN_BYTES))
    odd = f.let(f"lshr {_INTS} {first}, {f.splat(COLUMNS, 'i32', '8')}")
    for each in (first, odd):
        total = f.let(f"add {_INTS} {total}, {f.let(f'and {_INTS} {each}, {mask}')}")
    return total


def _halves_added(f: Function, words: str) -> str:
    """The sums of both halves of words."""
    low = f.let(f"and {_INTS} {words}, {f.splat(COLUMNS, 'i32', str(0xFFFF))}")
    high = f.let(f"lshr {_INTS} {words}, {f.splat(COLUMNS, 'i32', '16')}")
    return f.let(f"add {_INTS} {low}, {high}")


def _quads(f: Function, bits: int, words: list[str]) -> list[str]:
    """The words of 16 terms as four words of bytes."""
    if bits == 8:
        return words
    if bits == 6:
        halves = [f.let(f"bitcast {_INTS} {word} to {_SHORTS}") for word in words]
        quads = six_bit_quads(f, COLUMNS, halves)
        return [f.let(f"bitcast {_SHORTS} {quad} to {_INTS}") for quad in quads]
    mask, shift = f.splat(COLUMNS, "i32", str(_NIBBLES)), f.splat(COLUMNS, "i32", "4")
    found = []
    for word in words:
        found.append(f.let(f"and {_INTS} {word}, {mask}"))
        found.append(f.let(f"and {_INTS} {f.let(f'lshr {_INTS} {word}, {shift}')}, {mask}"))
    return found


def _pairs(f: Function, bits: int, words: list[str], below: str) -> list[str]:
    """The words of 16 terms as eight pairs of int16, less zero points."""
    found, each = [""] * (STEP // 2), 16 // bits
    words = [f.let(f"bitcast {_INTS} {word} to {_SHORTS}") for word in words]
    if bits == 6:
        for quad, word in enumerate(six_bit_quads(f, COLUMNS, words)):
            for half, pair in enumerate(quad_pairs(quad)):
                found[pair] = _shifted(f, word, 8 * half, 8)
    else:
        for number in range(STEP // 2):
            found[number] = _shifted(f, words[number // each], number % each * bits, bits)
    if not below:
        return found
    return [f.let(f"sub {_SHORTS} {pair}, {below}") for pair in found]


def _shifted(f: Function, word: str, shift: int, bits: int) -> str:
    """What begins at a bit of all halves of words."""
    if shift:
        word = f.let(f"lshr {_SHORTS} {word}, {f.splat(2 * COLUMNS, 'i16', str(shift))}")
    if shift + bits < 16:
        mask = f.splat(2 * COLUMNS, "i16", str((1 << bits) - 1))
        word = f.let(f"and {_SHORTS} {word}, {mask}")
    return word


def _pairs_of_zeros(f: Function, variant: Variant, zeros: str) -> str:
    """The whole zero points of a block, each twice; empty if there are others."""
    if variant.zeros is Zeros.EQUAL:
        return f.splat(2 * COLUMNS, "i16", f.let("fptosi float %zero to i16"))
    if variant.zeros is not Zeros.BYTES:
        return ""
    stored = f"<{COLUMNS} x i8>"
    once = f.let(f"zext {stored} {f.load(stored, zeros, 1)} to {_INTS}")
    high = f.let(f"shl {_INTS} {once}, {f.splat(COLUMNS, 'i32', '16')}")
    return f.let(f"bitcast {_INTS} {f.let(f'or {_INTS} {once}, {high}')} to {_SHORTS}")
