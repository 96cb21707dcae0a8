"""Symmetric quantization of float32 to int8 or int16, with one scale for each group of terms.

The left side of products with block-quantized weights. For int8 see `rows_int8` and `dot_unpacked`
(which has the order of levels and says what units are); for int16 see `rows_int16` and
`dot_blocks`. A scale is the group's largest magnitude divided by 127 or 32767.

Where `scales_by_exponents` is true, scales of int16 are ``factor * 2**e``: `factor`, from 1 to 2,
is such that the largest magnitude of the row becomes 32767, and `e` is the least that keeps all
levels of a group within 32767.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

MANTISSA_BITS = 23
"""How many these are."""

SIXTEEN_BITS = 4
"""By how many bits numbers of groups are shifted to count sixteens."""

_PAIR = 2 * 4 * STEP
"""Bytes of two vectors of terms."""

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
        unsigned: Whether half of the range is added to levels where they are stored.
    """

    bits: int
    largest: float
    order: tuple[int, ...] = ()
    exponents: bool = False
    unsigned: bool = False


UNSIGNED = "groups_unsigned"
"""The symbol of the kernel for weights of 4 bits that are int8, less their zero points: levels are
uint8, 128 more, and second numbers mean nothing."""


def kernel_name(bits: int, equal: bool) -> str:
    """The symbol of the kernel for weights of so many bits, and whether zero points are equal."""
    return f"groups_{bits}{'_equal' if equal else ''}"


def functions(level: Level) -> list[Function]:
    """The kernels for int8."""
    made = [
        _groups(kernel_name(bits, equal), _Levels(8, 127.0, quad_order(bits)), equal)
        for bits in PANEL_BITS
        for equal in (False, True)
    ]
    if level.dots_bytes:
        unsigned = _Levels(8, 127.0, quad_order(4), unsigned=True)
        made.append(_groups(UNSIGNED, unsigned, equal=False))
    return made


def int16_functions(level: Level) -> list[Function]:
    """The kernels for int16."""
    levels = _Levels(16, 32767.0, exponents=scales_by_exponents(level))
    return [_groups(INT16, levels, False), _groups(INT16_EQUAL, levels, True)]


def _groups(name: str, levels: _Levels, equal: bool) -> Function:
    """Groups by sixteens, where they are units of two vectors; the others one by one."""
    f = Function(name, PARAMETERS, "i64")
    below = f.let(f"sub i32 0, {f.let('trunc i64 %zero to i32')}") if equal else ""
    steps = f.let("mul i64 %units, %steps")
    factor = inverse = ""
    if levels.exponents:
        of_row = [("ptr", "%x"), (_INTS, "zeroinitializer")]
        _, found = f.loop(f.let(f"mul i64 %groups, {steps}"), of_row, partial(_measure, f))
        factor, inverse = _row_factor(f, _reduced(f, found), levels.largest)
    inverses = f.let(f"alloca {_FLOATS}, align 64")
    scales = partial(_powers_of_two if levels.exponents else _quotients, f)
    by = inverse if levels.exponents else levels.largest

    def group(_: str, values: list[str]) -> list[str]:
        x, out, numbers, most = values
        _, found = f.loop(steps, [("ptr", x), (_INTS, "zeroinitializer")], partial(_measure, f))
        largest = _reduced(f, found)
        most = f.let(f"call i32 @llvm.smax.i32(i32 {most}, i32 {largest})")
        counts = f.let(f"icmp sgt i32 {largest}, {SMALLEST_BITS}")
        chosen = [
            f.let(f"select i1 {counts}, float {each}, float 0.0")
            for each in scales(_SINGLE, largest, by)
        ]
        return [*_write(f, (x, out, numbers), _Scale(*chosen), levels, below), most]

    def sixteen(_: str, values: list[str]) -> list[str]:
        *at, most = values
        largest = _reduced_each(f, _larger, lambda i: _measured_pair(f, f.at(at[0], _PAIR * i)))
        counts = f.let(f"icmp sgt {_INTS} {largest}, {_WIDE.constant('i32', SMALLEST_BITS)}")
        chosen = [
            f.let(f"select <{STEP} x i1> {counts}, {_FLOATS} {each}, {_FLOATS} zeroinitializer")
            for each in scales(_WIDE, largest, by)
        ]
        following = _write_sixteen(f, at, _Scale(*chosen), inverses, levels, below)
        return [*following, _larger(f, most, largest)]

    one = f.let("icmp eq i64 %units, 1")
    two = f.let("icmp eq i64 %steps, 2")
    whole = f.let(f"zext i1 {f.let(f'and i1 {one}, {two}')} to i64")
    rounds = f.let(f"mul i64 {whole}, {f.let(f'lshr i64 %groups, {SIXTEEN_BITS}')}")
    places = [("ptr", place) for place in ("%x", "%out", "%numbers")]
    *after, most = f.loop(rounds, [*places, (_INTS, "zeroinitializer")], sixteen)
    rest = f.let(f"sub i64 %groups, {f.let(f'shl i64 {rounds}, {SIXTEEN_BITS}')}")
    state = [*(("ptr", place) for place in after), ("i32", _reduced(f, most))]
    *_, most = f.loop(rest, state, group)
    finite = f.let(f"icmp slt i32 {most}, {0x7F800000}")
    answer = f.let(f"zext i1 {finite} to i64")
    if factor:
        bits = f.let(f"zext i32 {f.let(f'bitcast float {factor} to i32')} to i64")
        answer = f.let(f"or i64 {answer}, {f.let(f'shl i64 {bits}, 32')}")
    f.do(f"ret i64 {answer}")
    return f


def _measure(f: Function, _: str, values: list[str]) -> list[str]:
    """The magnitudes of a vector of terms, as bits, if they are larger than those before."""
    at, largest = values
    return [f.at(at, 4 * STEP), _larger(f, largest, _magnitudes(f, at))]


def _measured_pair(f: Function, at: str) -> str:
    """The larger magnitudes of two vectors of terms."""
    return _larger(f, _magnitudes(f, at), _magnitudes(f, f.at(at, 4 * STEP)))


def _magnitudes(f: Function, at: str) -> str:
    return f.let(f"and {_INTS} {f.load(_INTS, at)}, {_WIDE.constant('i32', 0x7FFFFFFF)}")


def _larger(f: Function, one: str, other: str) -> str:
    return f.let(f"call {_INTS} @llvm.smax.v{STEP}i32({_INTS} {one}, {_INTS} {other})")


def _sum(f: Function, one: str, other: str) -> str:
    return f.let(f"add {_INTS} {one}, {other}")


def _reduced(f: Function, sizes: str) -> str:
    """The largest integer of a vector."""
    return f.let(f"call i32 @llvm.vector.reduce.smax.v{STEP}i32({_INTS} {sizes})")


def _reduced_each(
    f: Function, joined: Callable[[Function, str, str], str], vector: Callable[[int], str]
) -> str:
    """A vector of what the elements of each of `STEP` vectors come to, joined two by two.

    Two vectors are joined after every other run of elements of one has taken the place of those of
    the other: of 1 element, of 2, of 4 and of 8. Shorter runs stay within 128 bits.
    """

    def tree(first: int, count: int) -> str:
        if count == 1:
            return vector(first)
        half = count // 2
        one, other = tree(first, half), tree(first + half, half)
        orders = [_gathered(half, odd) for odd in (0, 1)]
        both = [
            f.let(f"shufflevector {_INTS} {one}, {_INTS} {other}, {_INTS} <{order}>")
            for order in orders
        ]
        return joined(f, *both)

    return tree(0, STEP)


def _gathered(joined: int, odd: int) -> str:
    """Which elements of two vectors meet, where those of so many vectors have been joined each.

    Runs of so many elements are of as many vectors; within 128 bits they are taken in turns, as
    unpacking does; beyond, those of one vector come first.
    """
    if joined >= 4:
        runs = STEP // 4
        chosen = [run for run in range(2 * runs) if run % 2 == odd]
        places = [4 * run + i for run in chosen for i in range(4)]
    else:
        places = []
        for lane in range(0, STEP, 4):
            for run in range(2 // joined):
                begin = lane + (run + odd * (2 // joined)) * joined
                places += [*range(begin, begin + joined)]
                places += [STEP + place for place in range(begin, begin + joined)]
    return ", ".join(f"i32 {place}" for place in places)


class _Scale(NamedTuple):
    """The scale of a group, as values of float32, or those of sixteen groups as vectors.

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

    def step(_: str, values: list[str]) -> list[str]:
        x, out, total = values
        levels = _rounded(f, x, out, factor, form)
        further = f.at(out, STEP * form.bits // 8)
        return [f.at(x, 4 * STEP), further, _sum(f, total, levels)]

    def unit(_: str, values: list[str]) -> list[str]:
        x, out, numbers = values
        state = [("ptr", x), ("ptr", out), (_INTS, "zeroinitializer")]
        x, out, levels = f.loop("%steps", state, step)
        total = f.let(f"call i32 @llvm.vector.reduce.add.v{STEP}i32({_INTS} {levels})")
        second = _second(f, _SINGLE, total, by.scale, below)
        f.do(f"store float {by.number}, ptr {numbers}, align 4")
        f.do(f"store float {second}, ptr {f.at(numbers, 4)}, align 4")
        return [x, out, f.at(numbers, 8)]

    return f.loop("%units", [("ptr", place) for place in at], unit)


def _write_sixteen(
    f: Function, at: list[str], by: _Scale, inverses: str, form: _Levels, below: str
) -> list[str]:
    """As :func:`_write`, for sixteen groups of two vectors, which are units.

    Args:
        f: The function that does it.
        at: Pointers to terms, levels and numbers.
        by: The scales.
        inverses: Pointer to where those of the scales are put meanwhile.
        form: Of levels.
        below: The negative zero point, or empty where zero points differ.
    """
    x, out, numbers = at
    f.do(f"store {_FLOATS} {by.inverse}, ptr {inverses}, align 64")
    size = STEP * form.bits // 8

    def levels(number: int) -> str:
        factor = f.splat(STEP, "float", f.load("float", f.at(inverses, 4 * number)))
        both = (
            _rounded(f, f.at(x, 4 * STEP * i), f.at(out, size * i), factor, form)
            for i in (2 * number, 2 * number + 1)
        )
        return _sum(f, *both)

    second = _second(f, _WIDE, _reduced_each(f, _sum, levels), by.scale, below)
    order = ", ".join(f"i32 {i}, i32 {STEP + i}" for i in range(STEP))
    pairs = f"shufflevector {_FLOATS} {by.number}, {_FLOATS} {second}, <{2 * STEP} x i32> <{order}>"
    f.do(f"store <{2 * STEP} x float> {f.let(pairs)}, ptr {numbers}, align 4")
    return [f.at(x, _PAIR * STEP), f.at(out, 2 * size * STEP), f.at(numbers, 8 * STEP)]


def _rounded(f: Function, x: str, out: str, factor: str, form: _Levels) -> str:
    """Writes the levels of a vector of terms in their order; returns them in that of the terms."""
    short, each = f"<{STEP} x i{form.bits}>", len(form.order)
    scaled = f.let(f"fmul {_FLOATS} {f.load(_FLOATS, x)}, {factor}")
    shifted = f.let(f"fadd {_FLOATS} {scaled}, {_WIDE.constant('float', _ROUND)}")
    levels = f.let(f"bitcast {_FLOATS} {shifted} to {_INTS}")
    levels = f.let(f"sub {_INTS} {levels}, {_WIDE.constant('i32', _ROUND_BITS)}")
    narrow = f.let(f"trunc {_INTS} {levels} to {short}")
    if each:
        places = ", ".join(f"i32 {i - i % each + form.order[i % each]}" for i in range(STEP))
        turned = f"shufflevector {short} {narrow}, {short} poison, {_INTS} <{places}>"
        narrow = f.let(turned)
    if form.unsigned:
        middle = f.splat(STEP, f"i{form.bits}", str(-1 << (form.bits - 1)))
        narrow = f.let(f"xor {short} {narrow}, {middle}")
    f.do(f"store {short} {narrow}, ptr {out}, align 1")
    return levels


def _second(f: Function, width: _Width, total: str, scale: str, below: str) -> str:
    """The second numbers of units whose levels come to `total`, of which zero points take off."""
    ints, floats = width.kind("i32"), width.kind("float")
    if not below:
        return f.let(f"fmul {floats} {scale}, {f.let(f'sitofp {ints} {total} to {floats}')}")
    taken = below if width is _SINGLE else f.splat(STEP, "i32", below)
    return f.let(f"bitcast {ints} {f.let(f'mul {ints} {total}, {taken}')} to {floats}")


class _Width(NamedTuple):
    """One number, or a vector of them.

    Attributes:
        lanes: How many; 0 for one that is no vector.
    """

    lanes: int

    def kind(self, element: str) -> str:
        """LLVM's type."""
        return f"<{self.lanes} x {element}>" if self.lanes else element

    def constant(self, element: str, value: float) -> str:
        """The same number in all places."""
        if not self.lanes:
            return str(value)
        return f"<{', '.join([f'{element} {value}'] * self.lanes)}>"


_SINGLE, _WIDE = _Width(0), _Width(STEP)


def _quotients(f: Function, width: _Width, largest: str, level: float) -> tuple[str, str, str]:
    """The scale that makes the largest magnitude `level`, its inverse, and what is stored of it."""
    ints, floats, most = width.kind("i32"), width.kind("float"), width.constant("float", level)
    top = f.let(f"bitcast {ints} {largest} to {floats}")
    scale = f.let(f"fdiv {floats} {top}, {most}")
    return scale, f.let(f"fdiv {floats} {most}, {top}"), scale


def _row_factor(f: Function, largest: str, level: float) -> tuple[str, str]:
    """The factor of a row, from the bits of its largest magnitude, and its inverse."""
    top = f.let(f"bitcast i32 {largest} to float")
    bits = f.let(f"bitcast float {f.let(f'fdiv float {top}, {level}')} to i32")
    bits = f.let(f"or i32 {f.let(f'and i32 {bits}, {MANTISSA}')}, {BIAS << 23}")
    factor = f.let(f"bitcast i32 {bits} to float")
    return factor, f.let(f"fdiv float 1.0, {factor}")


def _powers_of_two(f: Function, width: _Width, largest: str, inverse: str) -> tuple[str, str, str]:
    """As `_quotients`: a power of two by which no level is beyond 32767; its exponent is stored."""
    ints, floats = width.kind("i32"), width.kind("float")
    factor = inverse if width is _SINGLE else f.splat(STEP, "float", inverse)
    top = f.let(f"bitcast {ints} {largest} to {floats}")
    bits = f.let(f"bitcast {floats} {f.let(f'fmul {floats} {top}, {factor}')} to {ints}")
    rounded = f.let(f"add {ints} {bits}, {width.constant('i32', LAST_HALF)}")
    mantissa = width.constant("i32", MANTISSA_BITS)
    power = f.let(f"lshr {ints} {rounded}, {mantissa}")
    both = (
        f"sub {ints} {power}, {width.constant('i32', LEVEL_POWER)}",
        f"sub {ints} {width.constant('i32', 2 * BIAS + LEVEL_POWER)}, {power}",
    )
    shifted = [f.let(f"shl {ints} {f.let(each)}, {mantissa}") for each in both]
    scale, below = (f.let(f"bitcast {ints} {each} to {floats}") for each in shifted)
    exponent = f.let(f"sub {ints} {power}, {width.constant('i32', BIAS + LEVEL_POWER)}")
    number = f.let(f"sitofp {ints} {exponent} to {floats}")
    return scale, f.let(f"fmul {floats} {factor}, {below}"), number


def declarations() -> str:
    """What the kernels call."""
    return (
        f"declare {_INTS} @llvm.smax.v{STEP}i32({_INTS}, {_INTS})\n"
        "declare i32 @llvm.smax.i32(i32, i32)\n"
        f"declare i32 @llvm.vector.reduce.smax.v{STEP}i32({_INTS})\n"
        f"declare i32 @llvm.vector.reduce.add.v{STEP}i32({_INTS})\n"
    )
