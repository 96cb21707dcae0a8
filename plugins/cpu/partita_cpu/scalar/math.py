"""Scalar functions that kernels are made of; those for float32 vectorize.

numba calls the C library for ``exp`` and its kin, one element at a time. Here they are polynomials
without branches or calls, so that a loop over them becomes vector code. The polynomials were
fitted with Lawson's iteration (weighted least squares towards the smallest maximal error); the
largest errors over all of float32 are checked in the tests. float64 takes the C library's.

All functions are for use inside compiled kernels only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from partita_cpu.jit.deferred_numba import overload, register_jitable, types
from partita_cpu.llvm.activations import EXP2_POWERS, FEW_EXP2_POWERS, TAIL_POWERS
from partita_cpu.scalar.instructions import bits, copysign, larger_integer, like, muladd, ordered

LN2_HIGH = np.float32(0.693145751953125)
"""ln 2 to 16 bits: its product with an exponent is exact."""
LN2_LOW = np.float32(math.log(2) - 0.693145751953125)
LOG2_E = np.float32(1 / math.log(2))
ROUND = np.float32(12582912.0)
"""1.5 * 2**23: adding it rounds a float32 to a whole number, in its low bits."""
ROUND_BITS = np.int32(0x4B400000)
INFINITY = np.float32(math.inf)
NAN = np.float32(math.nan)


@register_jitable
def power_of_two(k: Any) -> Any:
    """``2**k`` for an int32 in [-126, 127]."""
    return bits(np.int32((k + np.int32(127)) << np.int32(23)))


def _select(name: str, single: Callable[..., Any], double: Callable[..., Any]) -> Any:
    """A function that is ``single`` for float32 and ``double`` for all other numbers."""

    def chosen(x: Any) -> Any:
        raise NotImplementedError(f"{name} is for compiled kernels")

    def choose(x: Any) -> Any:  # numba asks for the implementations' very parameter
        return single if x == types.float32 else double

    chosen.__name__ = chosen.__qualname__ = name
    overload(chosen)(choose)
    return chosen


def _exp64(x: Any) -> Any:
    return np.exp(x)


def _expm1_64(x: Any) -> Any:
    return np.expm1(x)


def _tanh64(x: Any) -> Any:
    return np.tanh(x)


def _log64(x: Any) -> Any:
    return np.log(x)


def _erf64(x: Any) -> Any:
    return math.erf(x)


# exp


@register_jitable
def _exp_near_zero(r: Any) -> Any:
    """exp(r) in float32 for |r| <= ln(2) / 2."""
    p = muladd(np.float32(0.0013813144760206342), r, np.float32(0.008369418792426586))
    p = muladd(p, r, np.float32(0.04166845604777336))
    p = muladd(p, r, np.float32(0.16666515171527863))
    p = muladd(p, r, np.float32(0.4999999403953552))
    return muladd(p * r, r, r) + np.float32(1.0)


def _exp32(x: Any) -> Any:
    # exp(x) = 2**k * exp(r) with |r| <= ln(2) / 2; two factors reach subnormal results.
    limited = np.float32(89.0) if x > np.float32(89.0) else x
    limited = np.float32(-105.0) if limited < np.float32(-105.0) else limited
    shifted = muladd(limited, LOG2_E, ROUND)
    whole = shifted - ROUND
    r = muladd(whole, -LN2_LOW, muladd(whole, -LN2_HIGH, limited))
    p = _exp_near_zero(r)
    k = np.int32(bits(shifted) - ROUND_BITS)
    half = np.int32(k >> np.int32(1))
    return p * power_of_two(half) * power_of_two(np.int32(k - half))


exp = _select("exp", _exp32, _exp64)
"""exp(x)."""


def _exp_below_zero32(x: Any) -> Any:
    limited = np.float32(-87.0) if x < np.float32(-87.0) else x
    shifted = muladd(limited, LOG2_E, ROUND)
    whole = shifted - ROUND
    r = muladd(whole, -LN2_LOW, muladd(whole, -LN2_HIGH, limited))
    p = _exp_near_zero(r)
    result = p * power_of_two(np.int32(bits(shifted) - ROUND_BITS))
    return np.float32(0.0) if x < np.float32(-87.0) else result


exp_below_zero = _select("exp_below_zero", _exp_below_zero32, _exp64)
"""exp(x) for x <= 0, with 0 in place of subnormal results; a third faster."""


@register_jitable
def rough_power_of_two(x: Any) -> Any:
    """``2**x`` in float32 for x <= 0, 0 below ``2**-126``, to 8e-5 of it.

    That is a quarter of what rounding to bfloat16 leaves.
    """
    limited = np.float32(-127.0) if x < np.float32(-126.0) else x
    shifted = limited + ROUND
    r = limited - (shifted - ROUND)
    p = muladd(np.float32(FEW_EXP2_POWERS[0]), r, np.float32(FEW_EXP2_POWERS[1]))
    p = muladd(p, r, np.float32(FEW_EXP2_POWERS[2]))
    p = muladd(p, r, np.float32(FEW_EXP2_POWERS[3]))
    return p * power_of_two(np.int32(bits(shifted) - ROUND_BITS))


@register_jitable
def round_to_bfloat16(x: Any) -> Any:
    """The bits of the nearest bfloat16 of a float32 in [0, 1], ties upwards."""
    return np.uint16(np.int32(bits(x) + np.int32(0x8000)) >> np.int32(16))


# expm1 and tanh


@register_jitable
def _expm1_limited(x: Any) -> Any:
    """exp(x) - 1 in float32 for |x| < 80."""
    shifted = muladd(x, LOG2_E, ROUND)
    whole = shifted - ROUND
    r = muladd(whole, -LN2_LOW, muladd(whole, -LN2_HIGH, x))
    p = muladd(np.float32(0.0013882395578548312), r, np.float32(0.008367180824279785))
    p = muladd(p, r, np.float32(0.04166722297668457))
    p = muladd(p, r, np.float32(0.16666539013385773))
    p = muladd(p, r, np.float32(0.4999999701976776))
    p = muladd(p * r, r, r)
    scale = power_of_two(np.int32(bits(shifted) - ROUND_BITS))
    return muladd(scale, p, scale - np.float32(1.0))


def _expm1_below_zero32(x: Any) -> Any:
    limited = np.float32(-20.0) if x < np.float32(-20.0) else x
    return _expm1_limited(limited)


expm1_below_zero = _select("expm1_below_zero", _expm1_below_zero32, _expm1_64)
"""exp(x) - 1 for x <= 0, accurate near 0."""


def _tanh32(x: Any) -> Any:
    size = abs(x)
    size = np.float32(9.2) if size > np.float32(9.2) else size
    grown = _expm1_limited(size + size)
    return copysign(grown / (grown + np.float32(2.0)), x)


tanh = _select("tanh", _tanh32, _tanh64)
"""tanh(x)."""


@register_jitable
def row_maximum(row: Any) -> Any:
    """The largest float of a row; several times faster than a loop of `maximum`.

    As integers the elements can be compared in any order. A NaN of positive sign wins, one of
    negative sign loses.
    """
    top = ordered(row[0])
    for i in range(row.size):
        top = larger_integer(top, ordered(row[i]))
    return bits(ordered(top))


@register_jitable
def copy_row(source: Any, target: Any) -> None:
    """Copies a row; numba's own slice assignment would allocate in case the two overlap."""
    for i in range(target.size):
        target[i] = source[i]


# log


def _log32(x: Any) -> Any:
    # log(x) = k * ln(2) + log(1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
    tiny = x < np.float32(1.1754943508222875e-38)
    scaled = x * np.float32(8388608.0) if tiny else x
    pattern = bits(scaled)
    k = np.int32(np.int32(pattern - np.int32(0x3F3504F3)) >> np.int32(23))
    f = bits(np.int32(pattern - np.int32(k << np.int32(23)))) - np.float32(1.0)
    p = muladd(np.float32(-0.07634486258029938), f, np.float32(0.12761573493480682))
    p = muladd(p, f, np.float32(-0.13160184025764465))
    p = muladd(p, f, np.float32(0.14201758801937103))
    p = muladd(p, f, np.float32(-0.16623356938362122))
    p = muladd(p, f, np.float32(0.20001226663589478))
    p = muladd(p, f, np.float32(-0.2500081956386566))
    p = muladd(p, f, np.float32(0.3333333134651184))
    e = np.float32(k) - (np.float32(23.0) if tiny else np.float32(0.0))
    square = f * f
    rest = muladd(p * f, square, e * LN2_LOW) - np.float32(0.5) * square
    result = muladd(e, LN2_HIGH, f + rest)
    result = result if x > np.float32(0.0) else NAN
    result = INFINITY if x == INFINITY else result
    return -INFINITY if x == np.float32(0.0) else result


log = _select("log", _log32, _log64)
"""log(x); -inf at 0, NaN below."""


@register_jitable
def log1p_of_unit(x: Any) -> Any:
    """log(1 + x) for x in [0, 1]."""
    one = like(x, 1)
    total = one + x
    return log(total) + (x - (total - one)) / total


# erf


def _erf32(x: Any) -> Any:
    size = abs(x)
    size = np.float32(4.0) if size > np.float32(4.0) else size
    square = size * size
    near = muladd(np.float32(-0.0005862141260877252), square, np.float32(0.004967521410435438))
    near = muladd(near, square, np.float32(-0.02674887701869011))
    near = muladd(near, square, np.float32(0.11281321197748184))
    near = muladd(near, square, np.float32(-0.37612447142601013))
    near = muladd(near, square, np.float32(0.12837913632392883))
    near = muladd(near, size, size)
    # 1 - erf(x) = exp(-x + q(x))
    q = muladd(np.float32(0.00019821983005385846), size, np.float32(-0.003065491793677211))
    q = muladd(q, size, np.float32(0.022315219044685364))
    q = muladd(q, size, np.float32(-0.10411369055509567))
    q = muladd(q, size, np.float32(-0.6369760632514954))
    q = muladd(q, size, np.float32(-0.12779724597930908))
    q = muladd(q, size, np.float32(-0.0001664463197812438))
    far = np.float32(1.0) - exp_below_zero(q - size)
    return copysign(near if size < np.float32(0.92) else far, x)


erf = _select("erf", _erf32, _erf64)
"""erf(x)."""


# the normal distribution

_TAIL_POWERS = tuple(np.float32(factor) for factor in TAIL_POWERS)
_EXP2_POWERS = tuple(np.float32(factor) for factor in EXP2_POWERS)


@register_jitable
def _exp2_below_zero(x: Any) -> Any:
    """2**x in float32 for x <= 0, with 0 in place of subnormal results."""
    limited = np.float32(-127.0) if x < np.float32(-127.0) else x
    shifted = limited + ROUND
    r = limited - (shifted - ROUND)
    a, b, c, d, e, f, g = _EXP2_POWERS
    p = muladd(muladd(muladd(a, r, b), r, c), r, d)
    p = muladd(muladd(muladd(p, r, e), r, f), r, g)
    return p * power_of_two(np.int32(bits(shifted) - ROUND_BITS))


def _below_normal32(x: Any) -> Any:
    size = abs(x)
    a, b, c, d, e, f, g, h, i, j, k = _TAIL_POWERS
    p = muladd(muladd(muladd(a, size, b), size, c), size, d)
    p = muladd(muladd(muladd(p, size, e), size, f), size, g)
    p = muladd(muladd(muladd(p, size, h), size, i), size, j)
    tail = _exp2_below_zero(muladd(p, size, k))
    return np.float32(1.0) - tail if x >= np.float32(0.0) else tail


def _below_normal64(x: Any) -> Any:
    return 0.5 * (1.0 + math.erf(x * math.sqrt(0.5)))


below_normal = _select("below_normal", _below_normal32, _below_normal64)
"""The probability that a number of the normal distribution is below x."""


# sigmoid, softplus


@register_jitable
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow."""
    one = like(x, 1)
    e = exp_below_zero(-abs(x))
    return (one if x >= like(x, 0) else e) / (one + e)


@register_jitable
def softplus(x: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    zero = like(x, 0)
    return (zero if x < zero else x) + log1p_of_unit(exp_below_zero(-abs(x)))


# sin and cos

SINE_LIMIT = np.float32(1 << 20)
"""Beyond it the short reduction of sine and cosine loses bits; the C library takes over."""


@register_jitable
def _quarter_turns(x: Any) -> Any:
    """Splits x = turns * pi / 2 + r, |r| <= pi / 4, through float64; r and the turns' low bits."""
    wide = np.float64(x)
    shifted = wide * 0.6366197723675814 + 6755399441055744.0
    whole = shifted - 6755399441055744.0
    r = (wide - whole * 1.57079632673412561417) - whole * 6.07710050650619224932e-11
    return np.float32(r), np.int32(bits(shifted))


@register_jitable
def _sine_of_turns(r: Any, turns: Any) -> Any:
    square = r * r
    s = muladd(np.float32(-0.00019508741388563067), square, np.float32(0.008332112804055214))
    s = muladd(s, square, np.float32(-0.16666653752326965))
    s = muladd(s * square, r, r)
    c = muladd(np.float32(2.4425680749118328e-05), square, np.float32(-0.0013887251261621714))
    c = muladd(c, square, np.float32(0.04166664555668831))
    c = muladd(c * square, square, muladd(square, np.float32(-0.5), np.float32(1.0)))
    result = c if (turns & np.int32(1)) != 0 else s
    return -result if (turns & np.int32(2)) != 0 else result


@register_jitable
def sine_below_limit(x: Any) -> Any:
    """sin(x) in float32 for |x| <= SINE_LIMIT; zeros keep their sign."""
    r, turns = _quarter_turns(x)
    result = _sine_of_turns(r, turns)
    return x if x == np.float32(0) else result


@register_jitable
def cosine_below_limit(x: Any) -> Any:
    """cos(x) in float32 for |x| <= SINE_LIMIT."""
    r, turns = _quarter_turns(x)
    return _sine_of_turns(r, np.int32(turns + np.int32(1)))
