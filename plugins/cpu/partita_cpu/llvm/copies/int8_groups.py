"""Groups of float32 as int8, each number a multiple of a 127th of the largest one of its group.

For products with weights quantized in blocks: see `dot_unpacked`, which says in which order numbers
are, and what units are.
"""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.tiles.dot_unpacked import BLOCK_BITS, quad_order

PARAMETERS = "ptr %x, ptr %out, ptr %numbers, i64 %groups, i64 %units, i64 %steps, i64 %zero"
"""x: the first group; the others follow. out: as many bytes. numbers: for each unit its group's
scale, and this times the sum of the unit's bytes; or, as an int32, this sum times the negative zero
point. groups: how many; units: of each; steps: of `STEP` numbers in each unit. zero: the zero point
of all weights, if that is what rows are for.

Returns 1, or 0 where a number is not finite: what is written then means nothing."""

STEP = 16
"""Numbers that are taken at a time."""

LARGEST = 127.0
"""What the largest number becomes."""

SMALLEST_BITS = 0x0DA24260
"""Those of 1e-30: groups of no larger numbers become zeros, as the inverse of their scale may be
infinite."""

_FLOATS, _INTS, _BYTES = (f"<{STEP} x {kind}>" for kind in ("float", "i32", "i8"))


def kernel_name(bits: int, equal: bool) -> str:
    """The symbol of the kernel for weights of so many bits, and whether zero points are equal."""
    return f"groups_{bits}{'_equal' if equal else ''}"


def functions() -> list[Function]:
    """All kernels."""
    return [_groups(bits, equal) for bits in BLOCK_BITS for equal in (False, True)]


def _groups(bits: int, equal: bool) -> Function:
    f = Function(kernel_name(bits, equal), PARAMETERS, "i64")
    below = f.let(f"sub i32 0, {f.let('trunc i64 %zero to i32')}") if equal else ""
    steps = f.let("mul i64 %units, %steps")
    sign_off = f.splat(STEP, "i32", str(0x7FFFFFFF))

    def measure(_: str, values: list[str]) -> list[str]:
        at, largest = values
        sizes = f.let(f"and {_INTS} {f.load(_INTS, at)}, {sign_off}")
        larger = f.let(f"call {_INTS} @llvm.smax.v{STEP}i32({_INTS} {largest}, {_INTS} {sizes})")
        return [f.at(at, 4 * STEP), larger]

    def group(_: str, values: list[str]) -> list[str]:
        x, out, numbers, most = values
        _, found = f.loop(steps, [("ptr", x), (_INTS, "zeroinitializer")], measure)
        largest = f.let(f"call i32 @llvm.vector.reduce.smax.v{STEP}i32({_INTS} {found})")
        most = f.let(f"call i32 @llvm.smax.i32(i32 {most}, i32 {largest})")
        return [*_write(f, x, out, numbers, largest, bits, below), most]

    state = [("ptr", "%x"), ("ptr", "%out"), ("ptr", "%numbers"), ("i32", "0")]
    *_, most = f.loop("%groups", state, group)
    finite = f.let(f"icmp slt i32 {most}, {0x7F800000}")
    f.do(f"ret i64 {f.let(f'zext i1 {finite} to i64')}")
    return f


def _write(
    f: Function, x: str, out: str, numbers: str, largest: str, bits: int, below: str
) -> list[str]:
    """A group by the bits of its largest number; returns where the next one is, and goes.

    `below`: the negative zero point, or nothing where zero points differ.
    """
    top = f.let(f"bitcast i32 {largest} to float")
    counts = f.let(f"icmp sgt i32 {largest}, {SMALLEST_BITS}")
    quotients = f"fdiv float {top}, {LARGEST}", f"fdiv float {LARGEST}, {top}"
    scale, inverse = (
        f.let(f"select i1 {counts}, float {f.let(quotient)}, float 0.0") for quotient in quotients
    )
    factor = f.splat(STEP, "float", inverse)
    order = quad_order(bits)
    each = len(order)
    places = ", ".join(f"i32 {i - i % each + order[i % each]}" for i in range(STEP))

    def step(_: str, values: list[str]) -> list[str]:
        x, out, total = values
        scaled = f.let(f"fmul {_FLOATS} {f.load(_FLOATS, x)}, {factor}")
        levels = f.let(f"call {_INTS} @llvm.lrint.v{STEP}i32.v{STEP}f32({_FLOATS} {scaled})")
        narrow = f.let(f"trunc {_INTS} {levels} to {_BYTES}")
        turned = f"shufflevector {_BYTES} {narrow}, {_BYTES} poison, {_INTS} <{places}>"
        f.do(f"store {_BYTES} {f.let(turned)}, ptr {out}, align 1")
        return [f.at(x, 4 * STEP), f.at(out, STEP), f.let(f"add {_INTS} {total}, {levels}")]

    def unit(_: str, values: list[str]) -> list[str]:
        x, out, numbers = values
        state = [("ptr", x), ("ptr", out), (_INTS, "zeroinitializer")]
        x, out, levels = f.loop("%steps", state, step)
        total = f.let(f"call i32 @llvm.vector.reduce.add.v{STEP}i32({_INTS} {levels})")
        f.do(f"store float {scale}, ptr {numbers}, align 4")
        if below:
            second = f"i32 {f.let(f'mul i32 {total}, {below}')}"
        else:
            whole = f.let(f"sitofp i32 {total} to float")
            second = f"float {f.let(f'fmul float {scale}, {whole}')}"
        f.do(f"store {second}, ptr {f.at(numbers, 4)}, align 4")
        return [x, out, f.at(numbers, 8)]

    return f.loop("%units", [("ptr", x), ("ptr", out), ("ptr", numbers)], unit)


def declarations() -> str:
    """What the kernels call."""
    return (
        f"declare {_INTS} @llvm.smax.v{STEP}i32({_INTS}, {_INTS})\n"
        "declare i32 @llvm.smax.i32(i32, i32)\n"
        f"declare i32 @llvm.vector.reduce.smax.v{STEP}i32({_INTS})\n"
        f"declare i32 @llvm.vector.reduce.add.v{STEP}i32({_INTS})\n"
        f"declare {_INTS} @llvm.lrint.v{STEP}i32.v{STEP}f32({_FLOATS})\n"
    )
