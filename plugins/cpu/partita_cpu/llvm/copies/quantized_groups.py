"""Symmetric quantization of float32 to int8 or int16, with one scale for each group of terms.

The left side of products with block-quantized weights. For int8 see `rows_int8` and `dot_unpacked`
(which has the order of levels and says what units are); for int16 see `rows_int16` and
`dot_blocks`. A scale is the group's largest magnitude divided by 127 or 32767.

Where `scales_by_exponents` is true, scales of int16 are ``factor * 2**e``: `factor`, from 1 to 2,
is such that the largest magnitude of the row becomes 32767, and `e` is the least that keeps all
levels of a group within 32767.
"""

from __future__ import annotations

from typing import NamedTuple

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.dot_blocks import scales_by_exponents
from partita_cpu.llvm.tiles.dot_unpacked import PANEL_BITS, quad_order

PARAMETERS = "ptr %x, ptr %out, ptr %numbers, i64 %groups, i64 %units, i64 %steps, i64 %zero"
"""x: the first group; the others follow. out: as many int8 or int16. numbers: for each unit the
scale of its group, and this times the sum of the unit's levels; or, as an int32, this sum times the
negative zero point. groups: number of groups; units: units of a group; steps: steps of `STEP` terms
of a unit. zero: the zero point of all weights, if all are equal.

Returns 1, or 0 where a term is not finite: what is written then is undefined. The upper half of the
64 bits is the row's factor as float32, where scales are powers of two times one."""

STEP = 16
"""Terms of one vector."""

INT16 = "groups_int16"
"""The symbol of the kernel for int16."""

INT16_EQUAL = "groups_int16_equal"
"""The same for weights whose zero points are equal."""

SMALLEST_BITS = 0x0DA24260
"""The bits of 1e-30: groups of no larger magnitude become zeros, as the inverse of their scale may
be infinite."""

BIAS = 127
"""The bias of float32's exponent."""

LEVEL_POWER = 14
"""The exponent of the largest int16 levels."""

MANTISSA = 0x7FFFFF
"""Bits of float32 that hold the mantissa."""

LAST_HALF = 256
"""Added to the bits of a float32, rounds mantissas from 32767.5 / 16384 up to the next power of
two, so that no level rounds to 32768."""

_FLOATS, _INTS = (f"<{STEP} x {kind}>" for kind in ("float", "i32"))

_ROUND = 12582912.0
"""A float of this size has whole numbers in its last bits, the nearest ones, ties to even."""

_ROUND_BITS = 0x4B400000


class _Levels(NamedTuple):
    """A form of quantized terms.

    Attributes:
        bits: Bits of a level.
        largest: The level of a group's largest magnitude.
        order: A permutation in which each so many levels are stored.
        exponents: Whether scales are powers of two times a factor of the row, and exponents are
            stored in their place.
    """

    bits: int
    largest: float
    order: tuple[int, ...] = ()
    exponents: bool = False


def kernel_name(bits: int, equal: bool) -> str:
    """The symbol of the kernel for weights of so many bits, and whether zero points are equal."""
    return f"groups_{bits}{'_equal' if equal else ''}"


def functions() -> list[Function]:
    """The kernels for int8."""
    return [
        _groups(kernel_name(bits, equal), _Levels(8, 127.0, quad_order(bits)), equal)
        for bits in PANEL_BITS
        for equal in (False, True)
    ]


def int16_functions(level: Level) -> list[Function]:
    """The kernels for int16."""
    levels = _Levels(16, 32767.0, exponents=scales_by_exponents(level))
    return [_groups(INT16, levels, False), _groups(INT16_EQUAL, levels, True)]


def _groups(name: str, levels: _Levels, equal: bool) -> Function:
    f = Function(name, PARAMETERS, "i64")
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
        if levels.exponents:
            scales = _powers_of_two(f, largest, inverse)
        else:
            scales = _quotients(f, largest, levels.largest)
        counts = f.let(f"icmp sgt i32 {largest}, {SMALLEST_BITS}")
        chosen = [f.let(f"select i1 {counts}, float {each}, float 0.0") for each in scales]
        return [*_write(f, (x, out, numbers), _Scale(*chosen), levels, below), most]

    factor = inverse = ""
    if levels.exponents:
        of_row = [("ptr", "%x"), (_INTS, "zeroinitializer")]
        _, found = f.loop(f.let(f"mul i64 %groups, {steps}"), of_row, measure)
        largest = f.let(f"call i32 @llvm.vector.reduce.smax.v{STEP}i32({_INTS} {found})")
        factor, inverse = _row_factor(f, largest, levels.largest)
    state = [("ptr", "%x"), ("ptr", "%out"), ("ptr", "%numbers"), ("i32", "0")]
    *_, most = f.loop("%groups", state, group)
    finite = f.let(f"icmp slt i32 {most}, {0x7F800000}")
    answer = f.let(f"zext i1 {finite} to i64")
    if factor:
        bits = f.let(f"zext i32 {f.let(f'bitcast float {factor} to i32')} to i64")
        answer = f.let(f"or i64 {answer}, {f.let(f'shl i64 {bits}, 32')}")
    f.do(f"ret i64 {answer}")
    return f


class _Scale(NamedTuple):
    """The scale of a group, as values of float32.

    Attributes:
        scale: The same; without the factor of the row.
        inverse: By which numbers are multiplied.
        number: What is stored of it.
    """

    scale: str
    inverse: str
    number: str


def _write(
    f: Function, at: tuple[str, str, str], by: _Scale, form: _Levels, below: str
) -> list[str]:
    """Quantizes a group; returns the pointers to what is behind its terms, levels and numbers.

    `at`: pointers to these. `below`: the negative zero point, or empty where zero points differ.
    """
    factor = f.splat(STEP, "float", by.inverse)
    short, each = f"<{STEP} x i{form.bits}>", len(form.order)
    behind, shift = f.splat(STEP, "i32", str(_ROUND_BITS)), f.splat(STEP, "float", str(_ROUND))

    def step(_: str, values: list[str]) -> list[str]:
        x, out, total = values
        scaled = f.let(f"fmul {_FLOATS} {f.load(_FLOATS, x)}, {factor}")
        shifted = f.let(f"fadd {_FLOATS} {scaled}, {shift}")
        levels = f.let(f"bitcast {_FLOATS} {shifted} to {_INTS}")
        levels = f.let(f"sub {_INTS} {levels}, {behind}")
        narrow = f.let(f"trunc {_INTS} {levels} to {short}")
        if each:
            places = ", ".join(f"i32 {i - i % each + form.order[i % each]}" for i in range(STEP))
            turned = f"shufflevector {short} {narrow}, {short} poison, {_INTS} <{places}>"
            narrow = f.let(turned)
        f.do(f"store {short} {narrow}, ptr {out}, align 1")
        further = f.at(out, STEP * form.bits // 8)
        return [f.at(x, 4 * STEP), further, f.let(f"add {_INTS} {total}, {levels}")]

    def unit(_: str, values: list[str]) -> list[str]:
        x, out, numbers = values
        state = [("ptr", x), ("ptr", out), (_INTS, "zeroinitializer")]
        x, out, levels = f.loop("%steps", state, step)
        total = f.let(f"call i32 @llvm.vector.reduce.add.v{STEP}i32({_INTS} {levels})")
        f.do(f"store float {by.number}, ptr {numbers}, align 4")
        if below:
            second = f"i32 {f.let(f'mul i32 {total}, {below}')}"
        else:
            whole = f.let(f"sitofp i32 {total} to float")
            second = f"float {f.let(f'fmul float {by.scale}, {whole}')}"
        f.do(f"store {second}, ptr {f.at(numbers, 4)}, align 4")
        return [x, out, f.at(numbers, 8)]

    return f.loop("%units", [("ptr", place) for place in at], unit)


def _quotients(f: Function, largest: str, level: float) -> tuple[str, str, str]:
    """The scale that makes the largest magnitude `level`, its inverse, and what is stored of it."""
    top = f.let(f"bitcast i32 {largest} to float")
    scale = f.let(f"fdiv float {top}, {level}")
    return scale, f.let(f"fdiv float {level}, {top}"), scale


def _row_factor(f: Function, largest: str, level: float) -> tuple[str, str]:
    """The factor of a row, from the bits of its largest magnitude, and its inverse."""
    top = f.let(f"bitcast i32 {largest} to float")
    bits = f.let(f"bitcast float {f.let(f'fdiv float {top}, {level}')} to i32")
    bits = f.let(f"or i32 {f.let(f'and i32 {bits}, {MANTISSA}')}, {BIAS << 23}")
    factor = f.let(f"bitcast i32 {bits} to float")
    return factor, f.let(f"fdiv float 1.0, {factor}")


def _powers_of_two(f: Function, largest: str, inverse: str) -> tuple[str, str, str]:
    """As `_quotients`: a power of two by which no level is beyond 32767; its exponent is stored."""
    top = f.let(f"bitcast i32 {largest} to float")
    bits = f.let(f"bitcast float {f.let(f'fmul float {top}, {inverse}')} to i32")
    power = f.let(f"lshr i32 {f.let(f'add i32 {bits}, {LAST_HALF}')}, 23")
    both = f"sub i32 {power}, {LEVEL_POWER}", f"sub i32 {2 * BIAS + LEVEL_POWER}, {power}"
    scale, below = (
        f.let(f"bitcast i32 {f.let(f'shl i32 {f.let(each)}, 23')} to float") for each in both
    )
    exponent = f.let(f"sub i32 {power}, {BIAS + LEVEL_POWER}")
    return scale, f.let(f"fmul float {inverse}, {below}"), f.let(f"sitofp i32 {exponent} to float")


def declarations() -> str:
    """What the kernels call."""
    return (
        f"declare {_INTS} @llvm.smax.v{STEP}i32({_INTS}, {_INTS})\n"
        "declare i32 @llvm.smax.i32(i32, i32)\n"
        f"declare i32 @llvm.vector.reduce.smax.v{STEP}i32({_INTS})\n"
        f"declare i32 @llvm.vector.reduce.add.v{STEP}i32({_INTS})\n"
    )
