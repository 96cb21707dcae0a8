"""Special values (NaN, infinity, limits): which operators are tried with which, and their draws."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from partita_conformance.draws.casts import nans
from partita_conformance.draws.draw import Array, Draw
from partita_conformance.draws.large.long_sums import LONG_SUMS, OF_AN_AXIS, long_sum
from partita_conformance.draws.vary import first_input, formal_input, schema_of
from partita_conformance.judging.tolerances import CENTRED, ELEMENTWISE, EXACT, MOVED, ROUNDED

_FLOATS: Mapping[str, tuple[float, ...]] = {
    "special": (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5),
    "infinite": (np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5),
    "large": (
        *(3e38, -3e38, 1e30, -1e25, 16777217.0, 2147483904.0, -2147484160.0),
        *(90.0, -104.0, 88.5, 89.1, 11.05),
    ),
    "small": (1e-30, -1e-37, 1e-20, -0.0, 0.5, -1e-12),
    "denormal": (1e-40, -3e-39, 6e-8, -5e-8, 1e-310, 0.5),
    "ties": (0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 8388609.0, -0.49999997, 3.0, 3.0),
    "scales": tuple(
        sign * part * 10.0**power
        for sign in (1, -1)
        for power in (-4, -3, -2, -1, 0, 1)
        for part in (1, 1.3, 1.7, 2.2, 2.9, 3.8, 4.9, 6.3, 8.1)
    ),
}
_DOUBLES: Mapping[str, tuple[float, ...]] = {
    "large": (
        *(1e300, -1e200, 2.0**53 - 1, -(2.0**31) - 0.5, 4294967297.0),
        *(700.5, -700.5, 709.5, 710.2),
    ),
    "small": (1e-300, -1e-200, 1e-50),
    "ties": (4503599627370497.5, -0.49999999999999994, 1 + 1e-9, 1 - 1e-9, 1 / 3, -2 / 3),
}
"""What only float64 tells apart, beside what stands above."""

_PAIRED = {"Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Greater", "Less"}
_PAIRED |= {"Pow", "GreaterOrEqual", "LessOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
"""Operators of two numbers, tried with every pair of a group's: NaN beside NaN, 0 beside -0."""

_MOST_VALUES, _WIDE = 24, 35
"""More than any group has; and elements of a row that no vector divides, of which it holds some."""

EACH = EXACT | ROUNDED | ELEMENTWISE
"""Operators whose results each depend on few elements, so that every element may be special."""
_SUMS = {f"Reduce{name}" for name in ("Sum", "Mean", "L1", "L2", "SumSquare", "LogSumExp", "Prod")}
_SUMS |= {"CumSum", "MatMul", "Gemm", "Einsum", "Softmax", "LogSoftmax", "GlobalAveragePool"}
_WINDOWED = {"Conv", "ConvTranspose", "AveragePool", "BatchNormalization", "RMSNormalization"}
"""Operators that add up, or scale, what lies near each other."""
_WIDE_INTEGERS = (2049, 4097, 12_347, -30_011, 40_961, 70_001, -123_457, 16_777_217)
"""Integers that half precision does not hold, far from where a zero point makes them wrap."""
_SQUASHED = {"LSTM", "GRU", "RNN"}
"""Operators whose results stay small whatever goes in."""
_COPIED = {"TensorScatter", "MaxUnpool"}
_EXPONENTIAL = {"Softmax", "LogSoftmax", "ReduceLogSumExp"}
"""Operators that must not overflow where their results do not."""
_SEARCHES = {"ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "TopK"}
_SEARCHES |= {"ArgMax", "ArgMin", "Hardmax"}
"""Operators that look for the largest or least element, and have to start somewhere."""
_MASKED = {"Softmax", "LogSoftmax", "ReduceLogSumExp"}
"""Operators of which a row of -inf alone has an answer, which is NaN or -inf."""
HALVES = ("float16", "bfloat16")
_SPREAD = (1000, -1000, 990, 88.5, -104, 0.5)
_SHORT = ("", "a", "bc", "zero")
_LONG = ("", "a" * 40, "b" * 41 + "c", "zero", "\u00e4\u2713 ", "end\0", "a\0b", "c" * 257)
_FACTORS = {"ReduceL1": 1, "ReduceSum": 1, "CumSum": 1, "ReduceSumSquare": 2, "ReduceProd": 2}
_FACTORS |= {"MatMul": 2, "Einsum": 2}
"""Operators of integers that add up, by how many elements a term is the product of."""
_UNORDERED = {"MaxPool", "GlobalMaxPool", "TopK", "ArgMax", "ArgMin", "Hardmax", "Unique"}
_ORDINARY = {"ConstantOfShape", "Range", "Cast", "CastLike"}
"""Operators without values to change: sizes, and casts, which have values of their own."""

UNTOLD: Mapping[str, Set[str]] = {
    "special": _UNORDERED | {"OneHot"},
    "infinite": {"OneHot"},
    "large": {"OneHot"},
}
"""Operators whose answers to a group of values ONNX does not say: NaN has no order, and what is
beyond the range of an integer becomes any."""


def groups_of(op_type: str, element: str) -> list[str]:
    """The groups of values that an operator of an element type is tried with."""
    if op_type in _ORDINARY or element == "bool":
        return []
    if element == "string":
        return ["short texts", "long texts"] if op_type in EACH else []
    whole = "int" in element
    ends = ["lowest", "highest"] if op_type in _SEARCHES else []
    long = ["long sums"] if op_type in LONG_SUMS and element in HALVES else []
    long += ["long sums of an axis"] if long and op_type in OF_AN_AXIS else []
    if op_type == "DequantizeLinear":
        return ["wide"] if element in ("int16", "uint16", "int32") else []
    if op_type == "QuantizeLinear":
        return [] if whole else ["infinite", "large"]
    if op_type in _COPIED:
        return ["limits"] if whole else ["special", "denormal"]
    if op_type in EACH:
        groups = _whole_groups(op_type, element) if whole else list(_FLOATS)
        if op_type not in MOVED and "denormal" in groups:
            groups.remove("denormal")  # which arithmetic may flush to zero
        if op_type not in ELEMENTWISE - {"Pow"} and "scales" in groups:
            groups.remove("scales")  # which say where one series ends and the next begins
        return [one for one in groups if op_type not in UNTOLD.get(one, ())] + ends + long
    if whole:
        return ["sums"] if op_type in _FACTORS else []
    sums = ["few special"] if op_type in _SUMS | CENTRED | _WINDOWED else []
    sums += ["saturated"] if op_type in _SQUASHED else []
    centred = ["offset"] if op_type in CENTRED and element in ("float", "double") else []
    halves = ["tall"] if op_type in CENTRED and element == "float16" else []
    weights = ["infinite weights"] if op_type in ("MatMul", "Gemm") else []
    spread = ["spread"] if op_type in _EXPONENTIAL else []
    masked = ["lowest"] if op_type in _MASKED else []
    return sums + centred + halves + weights + spread + masked + long


_DIVISORS = {("Div", 1), ("Mod", 1)}
"""Inputs that must not be zero, nor -1 beside the smallest number, which has no answer."""
_FIXED = {"Clip", "OneHot"}
"""Operators whose constants have no answer if they are special."""
_BOUNDED = {("BitShift", 1), ("Pow", 1), ("QuantizeLinear", 1)}
"""Inputs whose limits have no answer; powers of floats have."""


def revalued(op_type: str, draw: Draw, group: str) -> Draw:
    """The draw with values of a group instead of its first input's, and of others of its type.

    Args:
        op_type: The operator.
        draw: Of the element type that is to be tried.
        group: One of :func:`groups_of`.
    """
    if group in ("long sums", "long sums of an axis"):
        return long_sum(op_type, draw.inputs[0], group != "long sums")
    schema = schema_of(op_type, draw.opset)
    assert schema is not None  # noqa: S101  # a draw is of an operator that its opset has
    variable = formal_input(schema, first_input(op_type, draw)).type_str
    rng = np.random.default_rng(zlib.crc32(f"{op_type}/{group}".encode()))
    inputs = list(draw.inputs)
    if group == "scales":
        pool = np.array(_FLOATS[group]).astype(getattr(draw.inputs[0], "dtype", np.float32))
        return dataclasses.replace(draw, inputs=[pool, *inputs[1:]])
    crossed = op_type in _PAIRED and len(inputs) == 2 and group in (*_FLOATS, "limits")
    for i, array in enumerate(inputs):
        same = op_type == "Pow" or formal_input(schema, i).type_str == variable
        bounded = (op_type, i) in _BOUNDED and (op_type != "Pow" or group not in _FLOATS)
        fixed = bounded or (i in draw.constant and op_type in _FIXED)
        if array is not None and same and not fixed:
            room = np.resize(array, _MOST_VALUES) if crossed else array
            inputs[i] = _values(rng, op_type, i, room, group, _terms(op_type, draw))
    if crossed:
        inputs = _crossed(inputs)
    if op_type == "Clip" and group in _FLOATS and draw.opset >= 11:  # else limits have defaults
        return _limited(dataclasses.replace(draw, inputs=inputs))
    base, exponent = (*inputs, None)[:2]
    if (op_type, group) == ("Pow", "limits") and base is not None and exponent is not None:
        inputs[:2] = _powers(base, exponent)
    if op_type == "MaxPool" and group in ("lowest", "highest"):
        return dataclasses.replace(draw, inputs=inputs, outputs=1)  # places of equals are not said
    if (op_type, group) == ("ReduceProd", "sums"):  # of all elements, two of which are not 1
        given = {n: v for n, v in draw.attributes.items() if n == "keepdims"}
        return dataclasses.replace(draw, inputs=inputs[:1], attributes=given)
    return dataclasses.replace(draw, inputs=inputs)


def _limited(draw: Draw) -> Draw:
    """A Clip with both limits: past one that is left out, engines let infinity pass or do not."""
    x = draw.inputs[0]
    assert x is not None  # noqa: S101  # Clip has it
    given = (*draw.inputs[1:], None, None)[:2]
    limits = [
        np.array(usual, x.dtype) if limit is None else limit
        for usual, limit in zip((-0.5, 0.8), given, strict=True)
    ]
    return dataclasses.replace(draw, inputs=[x, *limits], constant=[1, 2])


def _crossed(inputs: Sequence[Array | None]) -> list[Array | None]:
    """Two inputs of which each different element of one meets each of the other, in long rows."""
    first, second = (None if a is None else np.unique(a.view(_bits(a))) for a in inputs)
    if first is None or second is None:
        return list(inputs)
    a, b = inputs
    assert a is not None and b is not None  # noqa: S101  # looked at above
    again = -(-_WIDE // second.size)
    sides = np.meshgrid(first, np.tile(second, again), indexing="ij")
    return [np.ascontiguousarray(s).view(x.dtype) for s, x in zip(sides, (a, b), strict=True)]


def _bits(array: Array) -> str:
    """The type of integers as wide as an array's elements, by which NaN and -0 are told apart."""
    return f"u{array.dtype.itemsize}"


def _terms(op_type: str, draw: Draw) -> int:
    """How many elements are added up or multiplied at most."""
    first = draw.inputs[first_input(op_type, draw)]
    assert first is not None  # noqa: S101  # see first_input
    return max(2, first.shape[-1] if op_type == "MatMul" and first.ndim else first.size)


def _values(
    rng: np.random.Generator, op_type: str, i: int, array: Array, group: str, terms: int
) -> Array:
    """An array of an input's shape and type with values of a group.

    Args:
        rng: The source of chance.
        op_type: The operator that reads the input.
        i: The input's index.
        array: An array of its shape and type, as a draw made it.
        group: The name of the group.
        terms: How many terms the operator adds up.
    """
    if array.dtype == np.object_:
        texts = _LONG if group == "long texts" else _SHORT
        return _filled(rng, array, np.array(texts, object))
    if group == "limits":
        pool = _limits(array.dtype)
        if (op_type, i) in _DIVISORS:
            pool = pool[(pool != 0) & (pool + 1 != 0)]
        return _filled(rng, array, pool)
    if group == "neighbours":
        return _filled(rng, array, _neighbours(array.dtype))
    if op_type == "ReduceProd" and group == "sums":
        return _two_factors(rng, array)
    if group == "sums":
        return _addends(rng, array, terms, _FACTORS[op_type])
    if group == "few special":
        return _with_few(rng, array, (np.nan, np.inf, -np.inf) if i == 0 else ())
    if group == "offset":
        return np.asarray(array + np.asarray(300 if i == 0 else 0, array.dtype))
    if group == "tall":  # squares of halves beyond 256 are infinite
        return np.asarray(array * np.asarray(300 if i == 0 else 1, array.dtype))
    if group == "wide":
        ends = np.iinfo(array.dtype)
        fitting = [n for n in _WIDE_INTEGERS if ends.min <= n <= ends.max]
        return _filled(rng, array, np.array(fitting, array.dtype)) if i == 0 else array
    if group == "saturated":
        return np.asarray(array * np.asarray(1000 if i == 0 else 1, array.dtype))
    if group == "infinite weights":
        return _with_few(rng, array, (0.0, 0.0, 0.0) if i == 0 else (np.inf,) if i == 1 else ())
    if group in ("lowest", "highest"):
        return _end(array, group == "highest") if i == 0 else array
    if group == "spread":
        return _filled(rng, array, np.array(_SPREAD).astype(array.dtype))
    pool = np.array(_FLOATS[group])
    if array.dtype == np.float64:
        pool = np.concatenate([pool, _DOUBLES.get(group, ())])
    with np.errstate(all="ignore"):
        numbers = pool.astype(array.dtype)
    # Powers of one and of what signals that it is no number, libraries disagree about.
    more = nans(array.dtype) if group == "special" and op_type != "Pow" else numbers[:0]
    return _filled(rng, array, np.concatenate([numbers, more]))


def _end(array: Array, high: bool) -> Array:
    """Nothing but one end of a type's range: an infinity, or the integer that goes furthest."""
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        return np.full_like(array, limits.max if high else limits.min)
    return np.full_like(array, np.inf if high else -np.inf)


def _limits(dtype: np.dtype[Any]) -> Array:
    """Both ends of an integer type, and what floats of 24 and 53 digits do not hold."""
    limits = np.iinfo(dtype)
    bits = dtype.itemsize * 8
    values = [0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.min, limits.min + 1]
    values += [2**24 + 1, 2**24 + 2, 2**53 + 1, 2**53 + 2]
    values += [2 ** (bits - 2) + 1, 2 ** (bits // 2) + 1]
    if dtype.kind == "i":
        values += [-1, -2, -3, -(2**24) - 1, -(2**53) - 1]
    kept = [value for value in values if limits.min <= value <= limits.max]
    return np.array(kept, dtype)


def _whole_groups(op_type: str, element: str) -> list[str]:
    few = element in ("int8", "uint8") or op_type == "Pow"  # which overflows
    return ["limits"] if few else ["limits", "neighbours"]


def _neighbours(dtype: np.dtype[Any]) -> Array:
    """Integers one apart, which are one number in the floats that might stand for the type."""
    limits = np.iinfo(dtype)
    middle = 2 ** {2: 11, 4: 24, 8: 53}[dtype.itemsize]
    values = [middle, middle + 1, limits.max - 1, limits.max]
    if dtype.kind == "i":
        values += [-middle - 1, -middle]
    return np.array(values, dtype)


def _addends(rng: np.random.Generator, array: Array, terms: int, factors: int) -> Array:
    """Odd integers whose sums, of products of ``factors`` of them, just fit the type."""
    most = np.iinfo(array.dtype).max // terms
    most = max(3, math.isqrt(most) if factors == 2 else most)
    values = np.asarray(rng.integers(most // 2, most, array.shape, np.uint64) | 1, array.dtype)
    if array.dtype.kind == "i":
        values = np.where(rng.random(array.shape) < 0.4, -values, values)
    return np.asarray(values, array.dtype)


def _two_factors(rng: np.random.Generator, array: Array) -> Array:
    """Ones, beside two numbers whose product just fits the type."""
    result = np.ones_like(array)
    places = rng.permutation(array.size)[:2]
    result.reshape(-1)[places] = math.isqrt(np.iinfo(array.dtype).max) | 1
    result.reshape(-1)[places[:1]] -= 2
    return result


def quotients(op_type: str, element: str) -> list[tuple[str, Draw]]:
    """Multiples of whole numbers by these, which rounded reciprocals divide to a little less."""
    if op_type not in ("Div", "Mod") or "int" not in element:
        return []
    limits = np.iinfo(element)
    by = np.arange(1, min(127, limits.max) + 1)
    multiples = (by * np.array([1, 2, 3, 5, 7, 41])[:, None]).clip(0, limits.max)
    if limits.min:
        multiples = np.concatenate([multiples, -multiples])
    sides = (multiples, np.broadcast_to(by, multiples.shape))
    return [("whole quotients", Draw([side.astype(element) for side in sides]))]


def scores(op_type: str, element: str) -> list[tuple[str, Draw]]:
    """Queries and keys whose products are infinite in half precision, and scaled ones are not."""
    if (op_type, element) != ("Attention", "float16"):
        return []
    rng = np.random.default_rng(3)
    q, k, v = (rng.uniform(0.5, 1, (1, 2, n, 64)).astype(np.float16) for n in (3, 5, 5))
    apart = np.array([56, 20, 40, 30, 50], np.float16).reshape(5, 1)  # so that one key is nearest
    return [("large scores", Draw([q * np.float16(60), k * apart, v], {}, (), opset=23))]


def _powers(base: Array, exponent: Array) -> list[Array | None]:
    """Each of some bases with each exponent; powers beyond float32 that a float64 still holds."""
    bits = min(52, np.iinfo(base.dtype).bits - 1)
    most = int(bits / math.log2(7))
    sides = np.meshgrid([0, 1, 2, 3, 5, 7], np.arange(most // 2, most + 1), indexing="ij")
    return [np.asarray(sides[0], base.dtype), np.asarray(sides[1], exponent.dtype)]


def _with_few(rng: np.random.Generator, array: Array, specials: tuple[float, ...]) -> Array:
    """A copy in which some elements are special."""
    result = array.copy()
    places = rng.permutation(array.size)[: min(len(specials), max(1, array.size // 8))]
    for place, value in zip(places, specials, strict=False):
        result.reshape(-1)[place] = value
    return result


def _filled(rng: np.random.Generator, array: Array, pool: Array) -> Array:
    """The pool in random order, as often as it takes."""
    order = np.concatenate([rng.permutation(len(pool)) for _ in range(array.size // len(pool) + 1)])
    return np.asarray(pool[order[: array.size]].reshape(array.shape))


_BELOW, _BOTH_SIDES = (6e-8, 3e-5, 5.9e-5, 1e-6), (6e-8, -3e-5, 5.9e-5, 1e-6)
SUBNORMAL: Mapping[str, Sequence[Sequence[float]]] = {
    "Mul": (_BOTH_SIDES, (3e4, -2e4)),
    "Div": ((1e-3, -2.5e-4), _BOTH_SIDES),
    "MatMul": (_BOTH_SIDES, (3e4, -2e4)),
    "Reciprocal": ((2e-5, -3e-5, 5.9e-5),),
    "Log": (_BELOW,),
    "Sqrt": (_BELOW,),
    "Sign": (_BOTH_SIDES,),
    "Pow": (_BELOW, (0.5, 0.25)),
    "Greater": (_BOTH_SIDES, (0.0, 5e-7)),
    "Less": (_BOTH_SIDES, (0.0, 5e-7)),
    "Equal": (_BOTH_SIDES, (0.0, 6e-8)),
}
"""Operators that take halves below the smallest normal one, which no float32 flushes, to results
that are none: by input the numbers that it is to read."""


def subnormal(op_type: str, draw: Draw) -> Draw:
    """A draw of an operator of :data:`SUBNORMAL` in its shapes, with such numbers."""
    arrays = [array for array in draw.inputs if array is not None]
    each = np.broadcast_shapes(*(a.shape for a in arrays)) if op_type in EACH else None
    pools = zip(arrays, SUBNORMAL[op_type], strict=True)
    inputs = [np.resize(np.array(pool, np.float16), each or a.shape) for a, pool in pools]
    return dataclasses.replace(draw, inputs=inputs)
