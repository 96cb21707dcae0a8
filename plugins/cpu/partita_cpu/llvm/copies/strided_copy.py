"""Strided copies: runs of bytes from equal distances to equal distances."""

from __future__ import annotations

from partita_cpu.llvm.function import Function

PARAMETERS = "ptr %x, i64 %x_step, ptr %y, i64 %y_step, i64 %count, i64 %bytes, i64 %flip"
"""x, y: the first run and where it goes; x_step, y_step: bytes to the next. count: how many runs,
of how many bytes. flip: what each byte is combined with by exclusive or: 128
makes int8 of uint8."""

LANES = 64


def copy_runs(name: str) -> Function:
    """Copies whole vectors, then what is left under a mask; for AVX-512."""
    f = Function(name, PARAMETERS)
    v, m = f"<{LANES} x i8>", f"<{LANES} x i1>"
    flip = f.splat(LANES, "i8", f.let("trunc i64 %flip to i8"))
    whole = f.let(f"udiv i64 %bytes, {LANES}")
    done = f.let(f"mul i64 {whole}, {LANES}")
    rest = f.let(f"sub i64 %bytes, {done}")
    # One bit for each byte that is left.
    bits = f.let(f"sub i64 {f.let(f'shl i64 1, {rest}')}, 1")
    mask = f.let(f"bitcast i64 {bits} to {m}")

    def run(_: str, places: list[str]) -> list[str]:
        source, target = places

        def vector(index: str, _: list[str]) -> list[str]:
            at = f.let(f"mul i64 {index}, {LANES}")
            x = f.let(f"xor {v} {f.load(v, f.at(source, at), 1)}, {flip}")
            f.do(f"store {v} {x}, ptr {f.at(target, at)}, align 1")
            return []

        f.loop(whole, [], vector)
        load = f"call {v} @llvm.masked.load.v{LANES}i8.p0"
        x = f.let(f"{load}(ptr {f.at(source, done)}, i32 1, {m} {mask}, {v} zeroinitializer)")
        x = f.let(f"xor {v} {x}, {flip}")
        store = f"call void @llvm.masked.store.v{LANES}i8.p0"
        f.do(f"{store}({v} {x}, ptr {f.at(target, done)}, i32 1, {m} {mask})")
        return [f.at(source, "%x_step"), f.at(target, "%y_step")]

    f.loop("%count", [("ptr", "%x"), ("ptr", "%y")], run)
    f.do("ret void")
    return f


def declarations() -> str:
    """What the kernel calls."""
    v, m = f"<{LANES} x i8>", f"<{LANES} x i1>"
    return (
        f"declare {v} @llvm.masked.load.v{LANES}i8.p0(ptr, i32 immarg, {m}, {v})\n"
        f"declare void @llvm.masked.store.v{LANES}i8.p0({v}, ptr, i32 immarg, {m})\n"
    )
