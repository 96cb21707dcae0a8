"""Unpacks block-quantized weights to bytes, four terms in a 32-bit word: quads of `dot_unpacked`.

Scales, and zero points times scales, become float32, one of each per column and unit.
"""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, VARIANTS, Variant, six_bit_quads
from partita_cpu.llvm.tiles.unpack_blocks import block_numbers

PARAMETERS = (
    "ptr %w, ptr %scales, ptr %zeros, i64 %blocks, i64 %steps, i64 %units, ptr %to, "
    "ptr %to_scales, ptr %to_terms, i64 %pitch, float %zero"
)
"""w, scales, zeros: those of a panel, from a block on. blocks: how many; steps: of 16 terms of
each; units: of each. to, to_scales, to_terms: where they go, pitch bytes from one word or unit to
the next. zero: the zero point if all are equal."""

_INTS, _FLOATS = f"<{COLUMNS} x i32>", f"<{COLUMNS} x float>"
_NIBBLES = 0x0F0F0F0F


def kernel_name(variant: Variant) -> str:
    """The symbol of a kernel."""
    return f"quads_of_{variant.name}"


def functions() -> list[Function]:
    """All of them."""
    return [_unpack_quads(variant) for variant in VARIANTS]


def _unpack_quads(variant: Variant) -> Function:
    f = Function(kernel_name(variant), PARAMETERS)

    def step(_: str, values: list[str]) -> list[str]:
        w, to = values
        words = variant.bits // 2
        found = [f.load(_INTS, f.at(w, 4 * COLUMNS * word), 1) for word in range(words)]
        for quad in _quads(f, variant.bits, found):
            f.do(f"store {_INTS} {quad}, ptr {to}, align 4")
            to = f.at(to, "%pitch")
        return [f.at(w, 4 * COLUMNS * words), to]

    def block(_: str, values: list[str]) -> list[str]:
        w, scales, zeros, to, to_scales, to_terms = values
        numbers = block_numbers(f, variant, scales, zeros, "%zero")

        def unit(_: str, places: list[str]) -> list[str]:
            for number, place in zip(numbers, places, strict=True):
                f.do(f"store {_FLOATS} {number}, ptr {place}, align 4")
            return [f.at(place, "%pitch") for place in places]

        state = [("ptr", to_scales), ("ptr", to_terms)]
        to_scales, to_terms = f.loop("%units", state, unit)
        w, to = f.loop("%steps", [("ptr", w), ("ptr", to)], step)
        scales = f.at(scales, variant.scale_bytes * COLUMNS)
        zeros = f.at(zeros, variant.zeros.size * COLUMNS)
        return [w, scales, zeros, to, to_scales, to_terms]

    names = ("w", "scales", "zeros", "to", "to_scales", "to_terms")
    f.loop("%blocks", [("ptr", f"%{name}") for name in names], block)
    f.do("ret void")
    return f


def _quads(f: Function, bits: int, words: list[str]) -> list[str]:
    """The words of 16 terms as four words of bytes."""
    if bits == 8:
        return words
    if bits == 6:
        shorts = f"<{2 * COLUMNS} x i16>"
        halves = [f.let(f"bitcast {_INTS} {word} to {shorts}") for word in words]
        quads = six_bit_quads(f, COLUMNS, halves)
        return [f.let(f"bitcast {shorts} {quad} to {_INTS}") for quad in quads]
    mask, shift = f.splat(COLUMNS, "i32", str(_NIBBLES)), f.splat(COLUMNS, "i32", "4")
    found = []
    for word in words:
        found.append(f.let(f"and {_INTS} {word}, {mask}"))
        found.append(f.let(f"and {_INTS} {f.let(f'lshr {_INTS} {word}, {shift}')}, {mask}"))
    return found
