"""Runs of float32 copied, as they are, as bfloat16, or as pairs of bfloat16 that add up to them."""

from __future__ import annotations

from partita_cpu.native.ir.finish import store_half
from partita_cpu.native.ir.masked import masked_load, masked_store
from partita_cpu.native.ir.text import Function

PARAMETERS = "ptr %x, i64 %n, ptr %to, i64 %low_plane, i64 %padded"
"""x: n floats. to: gets `padded` elements, zeros behind the n. low_plane: distance in bytes from
`to` to the lower halves."""

_FLOATS, _INTS, _SHORTS = "<16 x float>", "<16 x i32>", "<16 x i16>"
_MASK = "<32 x i1>"


def copy(name: str, lanes: int) -> Function:
    """Copies a run as it is; returns 0."""
    f = Function(name, PARAMETERS, "i64")
    whole = f.let("sdiv i64 %n, " + str(lanes))
    done = f.let(f"mul i64 {whole}, {lanes}")
    kind = f"<{lanes} x float>"

    def full(index: str, _: list[str]) -> list[str]:
        place = f.let(f"mul i64 {index}, {4 * lanes}")
        f.do(f"store {kind} {f.load(kind, f.at('%x', place))}, ptr {f.at('%to', place)}, align 4")
        return []

    f.loop(whole, [], full)
    rounds = f.let(f"add i64 {f.let(f'sub i64 %padded, {done}')}, {lanes - 1}")
    rounds = f.let(f"sdiv i64 {rounds}, {lanes}")
    lane_kind = f"<{lanes} x i32>"
    numbers = "<" + ", ".join(f"i32 {lane}" for lane in range(lanes)) + ">"

    def rest(index: str, _: list[str]) -> list[str]:
        first = f.let(f"add i64 {done}, {f.let(f'mul i64 {index}, {lanes}')}")
        masks = []
        for end in ("%n", "%padded"):
            left = f.let(f"trunc i64 {f.let(f'sub i64 {end}, {first}')} to i32")
            masks.append(f.let(f"icmp slt {lane_kind} {numbers}, {f.splat(lanes, 'i32', left)}"))
        place = f.let(f"shl i64 {first}, 2")
        x = masked_load(f, lanes, f.at("%x", place), masks[0])
        masked_store(f, lanes, x, f.at("%to", place), masks[1])
        return []

    f.loop(rounds, [], rest)
    f.do("ret i64 0")
    return f


def narrow(name: str, split: bool) -> Function:
    """Converts a run; returns the largest bit pattern of an absolute value among the floats.

    The pattern tells whether there was an infinity, a NaN or a number that rounds to infinity.
    """
    f = Function(name, PARAMETERS, "i64")
    rounds = f.let("lshr i64 " + f.let("add i64 %padded, 15") + ", 4")
    lanes = "<" + ", ".join(f"i64 {lane}" for lane in range(16)) + ">"
    length = f.splat(16, "i64", "%n")
    room = f.splat(16, "i64", "%padded")

    def piece(index: str, values: list[str]) -> list[str]:
        first = f.let(f"shl i64 {index}, 4")
        number = f.let(f"add <16 x i64> {f.splat(16, 'i64', first)}, {lanes}")
        inside = f.let(f"icmp slt <16 x i64> {number}, {length}")
        writable = f.let(f"icmp slt <16 x i64> {number}, {room}")
        x = masked_load(f, 16, f.at("%x", f.let(f"shl i64 {first}, 2")), inside)
        to = f.at("%to", f.let(f"shl i64 {first}, 1"))
        high = store_half(f, 16, x, to, writable)
        if split:
            whole = f.let(f"zext {_SHORTS} {high} to {_INTS}")
            shifted = f.let(f"shl {_INTS} {whole}, {f.splat(16, 'i32', '16')}")
            back = f.let(f"bitcast {_INTS} {shifted} to {_FLOATS}")
            rest = f.let(f"fsub {_FLOATS} {x}, {back}")
            store_half(f, 16, rest, f.at(to, "%low_plane"), writable)
        bits = f.let(f"bitcast {_FLOATS} {x} to {_INTS}")
        size = f.let(f"and {_INTS} {bits}, {f.splat(16, 'i32', '2147483647')}")
        return [f.let(f"call {_INTS} @llvm.umax.v16i32({_INTS} {values[0]}, {_INTS} {size})")]

    largest = f.loop(rounds, [(_INTS, "zeroinitializer")], piece)[0]
    found = f.let(f"call i32 @llvm.vector.reduce.umax.v16i32({_INTS} {largest})")
    f.do(f"ret i64 {f.let(f'zext i32 {found} to i64')}")
    return f


def copy_halves(name: str) -> Function:
    """Copies a run of bfloat16; returns what `narrow` returns."""
    f = Function(name, PARAMETERS, "i64")
    rounds = f.let("lshr i64 " + f.let("add i64 %padded, 31") + ", 5")
    kind, mask = "<32 x i16>", "<32 x i1>"
    numbers = "<" + ", ".join(f"i32 {lane}" for lane in range(32)) + ">"

    def piece(index: str, values: list[str]) -> list[str]:
        first = f.let(f"shl i64 {index}, 5")
        masks = []
        for end in ("%n", "%padded"):
            left = f.let(f"trunc i64 {f.let(f'sub i64 {end}, {first}')} to i32")
            masks.append(f.let(f"icmp slt <32 x i32> {numbers}, {f.splat(32, 'i32', left)}"))
        place = f.let(f"shl i64 {first}, 1")
        load = f"call {kind} @llvm.masked.load.v32i16.p0(ptr {f.at('%x', place)}, i32 2, "
        x = f.let(f"{load}{mask} {masks[0]}, {kind} zeroinitializer)")
        to = f.at("%to", place)
        name = "@llvm.masked.store.v32i16.p0"
        f.do(f"call void {name}({kind} {x}, ptr {to}, i32 2, {mask} {masks[1]})")
        size = f.let(f"and {kind} {x}, {f.splat(32, 'i16', '32767')}")
        return [f.let(f"call {kind} @llvm.umax.v32i16({kind} {values[0]}, {kind} {size})")]

    largest = f.loop(rounds, [(kind, "zeroinitializer")], piece)[0]
    found = f.let(f"call i16 @llvm.vector.reduce.umax.v32i16({kind} {largest})")
    f.do(f"ret i64 {f.let('shl i64 ' + f.let(f'zext i16 {found} to i64') + ', 16')}")
    return f


def declarations() -> str:
    """What the kernels call, beyond those of `masked` and `finish`."""
    return (
        f"declare {_INTS} @llvm.umax.v16i32({_INTS}, {_INTS})\n"
        f"declare i32 @llvm.vector.reduce.umax.v16i32({_INTS})\n"
        "declare <32 x i16> @llvm.umax.v32i16(<32 x i16>, <32 x i16>)\n"
        "declare i16 @llvm.vector.reduce.umax.v32i16(<32 x i16>)\n"
        f"declare <32 x i16> @llvm.masked.load.v32i16.p0(ptr, i32 immarg, {_MASK}, <32 x i16>)\n"
        f"declare void @llvm.masked.store.v32i16.p0(<32 x i16>, ptr, i32 immarg, {_MASK})\n"
    )
