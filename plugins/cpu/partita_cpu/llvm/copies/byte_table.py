"""Look-ups of bytes in a table of 256 bytes, 64 at a time; for AVX-512.

The table lies in four registers, as 128 pairs. The upper seven bits of a byte choose the pair, its
last bit the byte of the pair.
"""

from __future__ import annotations

from partita_cpu.llvm.function import Function

PARAMETERS = "ptr %x, ptr %table, ptr %y, i64 %blocks"
"""blocks: how many times `BLOCK` bytes of x are looked up, and written to y."""

BLOCK = 64
_LANES = 32
_BYTES, _PAIRS = f"<{_LANES} x i8>", f"<{_LANES} x i16>"
_PERMUTE = "@llvm.x86.avx512.vpermi2var.hi.512"


def look_up_bytes(name: str) -> Function:
    """``y = table[x]``."""
    f = Function(name, PARAMETERS)
    table = [f.load(_PAIRS, f.at("%table", 2 * _LANES * part), 1) for part in range(4)]
    one, eight, middle = (f.splat(_LANES, "i16", number) for number in ("1", "8", "128"))

    def looked_up(pointer: str) -> str:
        place = f.let(f"zext {_BYTES} {f.load(_BYTES, pointer, 1)} to {_PAIRS}")
        pair = f.let(f"lshr {_PAIRS} {place}, {one}")
        low, high = (
            f.let(f"call {_PAIRS} {_PERMUTE}({_PAIRS} {first}, {_PAIRS} {pair}, {_PAIRS} {second})")
            for first, second in (table[:2], table[2:])
        )
        is_low = f.let(f"icmp ult {_PAIRS} {place}, {middle}")
        found = f.let(f"select <{_LANES} x i1> {is_low}, {_PAIRS} {low}, {_PAIRS} {high}")
        odd = f.let(f"and {_PAIRS} {place}, {one}")
        shift = f.let(f"mul {_PAIRS} {odd}, {eight}")
        return f.let(f"trunc {_PAIRS} {f.let(f'lshr {_PAIRS} {found}, {shift}')} to {_BYTES}")

    def block(_: str, places: list[str]) -> list[str]:
        source, target = places
        for first in range(0, BLOCK, _LANES):
            found = looked_up(f.at(source, first))
            f.do(f"store {_BYTES} {found}, ptr {f.at(target, first)}, align 1")
        return [f.at(source, BLOCK), f.at(target, BLOCK)]

    f.loop("%blocks", [("ptr", "%x"), ("ptr", "%y")], block)
    f.do("ret void")
    return f


def declarations() -> str:
    """What the kernel calls."""
    return f"declare {_PAIRS} {_PERMUTE}({_PAIRS}, {_PAIRS}, {_PAIRS})\n"
