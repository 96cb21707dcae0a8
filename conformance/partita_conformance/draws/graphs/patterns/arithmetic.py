"""Patterns of arithmetic: identities that hold for some numbers, types and sizes only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import SPECIAL, Pattern, one, row, whole

_NEUTRAL = (
    *(one(0), one(1), one(-1), row(0), row(1).reshape(1, 1), np.zeros((2, 1, 1), np.float32)),
    *(np.ones((1, 3, 1), np.float32), np.ones((3, 4), np.float32), row(1, 1, 1, 2), one(np.inf)),
)
PATTERNS: Mapping[str, Pattern] = {
    "a number that does nothing": Pattern(
        "float[3,4] x",
        "y = {op}({sides})",
        {
            "op": ("Add", "Sub", "Mul", "Div", "Max", "Min"),
            "sides": ("x, {number}", "{number}, x"),
            "number": _NEUTRAL,
        },
        numbers=SPECIAL[:5],
    ),
    "a value and itself": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {one} _b = {other} y = {op}",
        {
            "one": ("Identity(x)", "Neg(x)", "Abs(x)", "Sub(x, z)"),
            "other": ("Identity(x)", "Neg(x)", "Sub(z, x)", "Abs(x)"),
            "op": ("Sub(_a, _b)", "Add(_a, _b)", "Div(_a, _b)", "Mul(_a, _b)", "Max(_a, _b)"),
        },
        numbers=SPECIAL,
    ),
    "a function and its contrary": Pattern(
        "float[3,4] x",
        "_a = {first} y = {then}",
        {
            "first": ("Pow(x, {power})", "Exp(x)", "Log(x)", "Sqrt(x)", "Reciprocal(x)", "Neg(x)"),
            "then": ("Pow(_a, {power2})", "Log(_a)", "Exp(_a)", "Sqrt(_a)", "Abs(_a)", "Neg(_a)"),
            "power": (one(2), one(0.5), one(3), one(-1), one(1), one(0)),
            "power2": (one(0.5), one(2), one(1 / 3), one(-1), one(1), one(0)),
        },
        numbers=SPECIAL[1:],
    ),
    "numbers that are put together": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {first}({inner}) y = {then}({outer})",
        {
            "first": ("Add", "Mul", "Sub", "Div"),
            "inner": ("x, {number}", "{number}, x", "x, z"),
            "then": ("Add", "Mul", "Sub", "Div"),
            "outer": ("_a, {other}", "{other}, _a", "_a, z", "_a, x", "_a, _a"),
            "number": (one(2), row(1, -2, 3, 0.5), row(1, -2, 3).reshape(3, 1), one(-0.5)),
            "other": (one(3), row(2, 1, -1, 0.25), row(2, -1).reshape(2, 1, 1), one(-2)),
        },
    ),
    "whole numbers that are put together": Pattern(
        "int32[3,4] x, int32[3,4] z",
        "_a = {first}({inner}) y = {then}({outer})",
        {
            "first": ("Div", "Mul", "Add", "Sub", "Mod"),
            "inner": ("x, {number}", "z, {number}"),
            "then": ("Mul", "Div", "Add", "Sub", "Mod"),
            "outer": ("_a, {other}", "{other}, {number}"),
            "number": (one(4, np.int32), one(3, np.int32), one(2**30, np.int32)),
            "other": (one(4, np.int32), one(2, np.int32), np.array([2, 5, 7, 3], np.int32)),
        },
        "int32",
    ),
    "what a division leaves": Pattern(
        "int32[3,4] x, int32[3,4] z",
        "_n = Sub(x, z) _q = {quotient} _p = Mul({product}) y = {left}",
        {
            "quotient": ("Div(x, {by})", "Div(_n, {by})", "Mod(x, {by})", "Div({by}, {by2})"),
            "by": tuple(one(number, np.int32) for number in (3, -3, 4, 1)),
            "by2": (one(5, np.int32),),
            "product": ("_q, {by}", "{by}, _q", "_q, {by2}"),
            "left": ("Sub(x, _p)", "Sub(_n, _p)", "Sub(_p, x)", "Add(x, _p)"),
        },
        "int32",
    ),
    "types that are changed": Pattern(
        "float[3,4] x, int64[3,4] i",
        "_a = {first} y = Cast <to = {last}> (_a)",
        {
            "first": (
                "Cast <to = 7> (x)",
                "Cast <to = 10> (x)",
                "Cast <to = 11> (x)",
                "Cast <to = 9> (x)",
                "Cast <to = 9> (i)",
                "Cast <to = 3> (i)",
                "Cast <to = 6> (i)",
                "Cast <to = 10> (i)",
                "Floor(x)",
            ),
            "last": ("1",),
        },
    ),
    "types that are changed twice": Pattern(
        "float[3,4] x, int64[3,4] i",
        "_a = Cast <to = {first}> ({of}) _b = Cast <to = {then}> (_a) y = Cast <to = {last}> (_b)",
        {
            "of": ("i", "x"),
            "first": ("1", "3", "5", "6", "7", "9", "10", "11"),
            "then": ("7", "1", "3", "6", "9", "10", "11"),
            "last": ("11",),
        },
        "double",
    ),
    "what is true": Pattern(
        "float[3,4] x, float[3,4] z",
        "_k = Equal(x, z) _a = {compared}(x, {side}) _b = {then} y = {end}",
        {
            "compared": ("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual"),
            "side": ("z", "{number}", "x"),
            "number": (one(0.1), row(0, 0.5, -1, 1)),
            "then": ("Not(_a)", "Identity(_a)", "And(_a, _a)", "Xor(_a, _a)", "Or(_a, _k)"),
            "end": ("Not(_b)", "Identity(_b)", "Xor(_a, _b)", "And(_b, _a)", "Equal(_a, _b)"),
        },
        "bool",
        numbers=SPECIAL,
    ),
    "what is chosen": Pattern(
        "float[3,4] x, float[3,4] z",
        "_n = Neg(z) _c = {compared}({sides}) y = Where(_c, {chosen})",
        {
            "compared": ("Greater", "Less", "Equal", "GreaterOrEqual"),
            "sides": ("x, z", "z, x", "x, {zero}", "{zero}, x"),
            "zero": (one(0), one(0.5), row(0, -1, 1, 0.5)),
            "chosen": ("x, z", "z, x", "x, {zero}", "{zero}, x", "x, _n", "z, z"),
        },
        numbers=SPECIAL,
    ),
    "places of the largest": Pattern(
        "float[3,4] x",
        "_a = {first} y = {end}",
        {
            "first": (
                "Softmax <axis = 1> (x)",
                "Softmax <axis = 0> (x)",
                "Neg(x)",
                "Mul(x, {factor})",
                "Exp(x)",
                "LogSoftmax <axis = 0> (x)",
                "Transpose(x)",
            ),
            "factor": (one(-2), row(1, -2, 3, 0.5), one(0.5)),
            "end": (
                "ArgMax <axis = 1> (_a)",
                "ArgMax <axis = 0, keepdims = 0> (_a)",
                "ArgMin <axis = -1> (_a)",
                "ArgMax <axis = 1, select_last_index = 1> (_a)",
            ),
        },
        "int64",
    ),
    "the largest ones": Pattern(
        "float[3,4] x",
        "_a = {first} _v, _i = TopK {how} (_a, {count}) y = {end}",
        {
            "first": ("Identity(x)", "Neg(x)", "Softmax <axis = 1> (x)"),
            "how": ("<axis = 1>", "<axis = 0>", "<largest = 0>", "<axis = -1, largest = 1>"),
            "count": (whole(1), whole(2), whole(3)),
            "end": (
                "Identity(_v)",
                "ReduceMax <axes = [1]> (_v)",
                "ReduceMin <axes = [0]> (_v)",
                "Cast <to = 1> (_i)",
                "ReduceSum(_v)",
                "GatherElements <axis = 1> (x, _i)",
            ),
        },
    ),
}
"""Names of patterns to them."""
