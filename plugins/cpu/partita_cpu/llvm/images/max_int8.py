"""8-bit max pooling with channels last: some neighbouring output pixels; for AVX-512."""

from __future__ import annotations

from partita_cpu.llvm.function import Function

PARAMETERS = (
    "ptr %x, i64 %row, i64 %tap, i64 %pixel, i64 %rows, i64 %taps, i64 %channels, ptr %y, "
    "i64 %pixels"
)
"""x: the first tap of the first pixel. row, tap, pixel: bytes between rows of taps, taps, pixels.
rows, taps: how many taps down and across. y: the first output pixel; the others follow at once."""

_LANES = 64
_VECTOR, _MASK = f"<{_LANES} x i8>", f"<{_LANES} x i1>"


def largest_bytes(name: str, signed: bool) -> Function:
    """``y = max(x over all taps)`` for every channel; the least byte where there are no taps."""
    f = Function(name, PARAMETERS)
    blocks = f.let(f"udiv i64 {f.let(f'add i64 %channels, {_LANES - 1}')}, {_LANES}")
    least = f.splat(_LANES, "i8", "-128" if signed else "0")
    order = "smax" if signed else "umax"

    def block(index: str, _: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {_LANES}")
        left = f.let(f"sub i64 %channels, {first}")
        some = f.let(f"icmp ult i64 {left}, {_LANES}")
        bits = f.let(f"sub i64 {f.let(f'shl i64 1, {left}')}, 1")
        bits = f.let(f"select i1 {some}, i64 {bits}, i64 -1")
        mask = f.let(f"bitcast i64 {bits} to {_MASK}")

        def across(_: str, values: list[str]) -> list[str]:
            load = f"call {_VECTOR} @llvm.masked.load.v{_LANES}i8.p0"
            x = f.let(f"{load}(ptr {values[0]}, i32 1, {_MASK} {mask}, {_VECTOR} {least})")
            name = f"@llvm.{order}.v{_LANES}i8"
            most = f.let(f"call {_VECTOR} {name}({_VECTOR} {values[1]}, {_VECTOR} {x})")
            return [f.at(values[0], "%tap"), most]

        def down(_: str, values: list[str]) -> list[str]:
            state = [("ptr", values[0]), (_VECTOR, values[1])]
            return [f.at(values[0], "%row"), f.loop("%taps", state, across)[1]]

        def pixel(_: str, places: list[str]) -> list[str]:
            found = f.loop("%rows", [("ptr", places[0]), (_VECTOR, least)], down)[1]
            store = f"call void @llvm.masked.store.v{_LANES}i8.p0"
            f.do(f"{store}({_VECTOR} {found}, ptr {places[1]}, i32 1, {_MASK} {mask})")
            return [f.at(places[0], "%pixel"), f.at(places[1], "%channels")]

        f.loop("%pixels", [("ptr", f.at("%x", first)), ("ptr", f.at("%y", first))], pixel)
        return []

    f.loop(blocks, [], block)
    f.do("ret void")
    return f


def declarations() -> str:
    """What the kernels call, beyond those of `strided_copy`."""
    names = (f"@llvm.{order}.v{_LANES}i8" for order in ("smax", "umax"))
    return "".join(f"declare {_VECTOR} {name}({_VECTOR}, {_VECTOR})\n" for name in names)
