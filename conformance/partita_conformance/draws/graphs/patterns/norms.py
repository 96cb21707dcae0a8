"""Patterns of means, norms and sums."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import AXES, Pattern, one, row, whole

PATTERNS: Mapping[str, Pattern] = {
    "a layer's norm": Pattern(
        "float[2,4,4] x, float[2,4,4] z",
        "_m = ReduceMean <axes = {axes}> (x) _d = {taken} _q = {square}"
        " _v = ReduceMean <axes = {others}> (_q) _e = Add(_v, {epsilon}) _r = {root}(_e)"
        " _n = Div(_d, _r) _s = Mul(_n, {scale}) y = Add(_s, {shift})",
        {
            "axes": AXES,
            "others": ("={axes}", "[1]", "[0]", "[0,1,2]"),
            "taken": ("Sub(x, _m)", "Sub(_m, x)", "Sub(z, _m)", "Add(x, _m)"),
            "square": ("Pow(_d, {two})", "Mul(_d, _d)", "Abs(_d)", "Mul(_d, x)", "Mul(_d, z)"),
            "two": (one(2), one(4)),
            "epsilon": (one(1e-5), one(0.3), row(0.1, 0.5, 1, 2), row(0.1, 2).reshape(2, 1, 1)),
            "root": ("Sqrt", "Identity", "Exp"),
            "scale": (row(1, -2, 0.5, 3), one(1.5), row(1, 2, 3, -4).reshape(4, 1)),
            "shift": (row(0.5, 1, -1, 0), one(-0.5), row(1, -2).reshape(2, 1, 1)),
        },
    ),
    "a layer's norm alone": Pattern(
        "float[2,4,3] x",
        "_m = ReduceMean <axes = {axes}> (x) _d = Sub(x, _m) _q = Pow(_d, {two})"
        " _v = ReduceMean <axes = {axes}> (_q) _e = Add(_v, {epsilon}) _r = Sqrt(_e)"
        " y = Div(_d, _r)",
        {"axes": AXES, "two": (one(2), one(4)), "epsilon": (one(1e-5), one(0.3))},
    ),
    "a norm of squares": Pattern(
        "float[2,4,4] x, float[2,4,4] z",
        "_q = {square} _m = {mean} <axes = {axes}> (_q) _e = Add(_m, {epsilon}) _r = {root}(_e)"
        " _n = {over} y = Mul(_n, {scale})",
        {
            "square": ("Mul(x, x)", "Pow(x, {two})", "Mul(x, z)", "Abs(x)"),
            "two": (one(2), one(4)),
            "mean": ("ReduceMean", "ReduceMax", "ReduceL2"),
            "axes": AXES,
            "epsilon": (one(1e-5), one(0.3)),
            "root": ("Sqrt", "Identity"),
            "over": ("Div(x, _r)", "Div(z, _r)", "Div(_r, x)", "Mul(x, _r)"),
            "scale": (row(1, -2, 0.5, 3), one(1.5), row(1, 2, 3, -4).reshape(4, 1)),
        },
    ),
    "halves that are cast around a sum": Pattern(
        "float16[2,4] x, float16[2,4] z",
        "_x = Mul(x, {large}) _z = Mul(z, {large}) _w = Cast <to = {wide}> ({of})"
        " _q = {square} _r = {sum} {end}",
        {
            "large": (
                np.array([300, 20, 20, 400], np.float16),
                one(300, np.float16),
                one(1, np.float16),
                one(90, np.float16),
            ),
            "wide": ("1", "11"),
            "of": ("_x", "_z"),
            "square": (
                "Pow(_w, {two})",
                "Mul(_w, _w)",
                "Abs(_w)",
                "ReduceSumSquare <axes = [1]> (_w)",
            ),
            "two": (one(2),),
            "sum": (
                "ReduceMean <axes = [-1]> (_q)",
                "ReduceMean <axes = [0]> (_q)",
                "ReduceSum(_q)",
                "ReduceL2 <axes = [-1]> (_q)",
            ),
            "end": (
                "_s = Sqrt(_r) y = Cast <to = 10> (_s)",
                "y = Cast <to = 10> (_r)",
                "_s = Log(_r) y = Cast <to = 10> (_s)",
            ),
        },
        "float16",
    ),
    "a mean spelled out": Pattern(
        "float[3,4,2] x",
        "_a = ReduceSum {keep} (x, {axes}) y = {into}(_a, {count})",
        {
            "keep": ("", "<keepdims = 0>"),
            "axes": (whole(1), whole(0, 1), whole(-1)),
            "into": ("Div", "Mul"),
            "count": (one(4), one(3), one(0.25)),
        },
    ),
    "a root of a sum": Pattern(
        "float[2,3,4] x, float[2,3,4] z",
        "_q = {square} _s = {sum} _e = {more} y = {root}(_e)",
        {
            "square": ("Mul(x, x)", "Mul(x, z)", "Abs(x)", "Pow(x, {two})", "Exp(x)"),
            "two": (one(2), one(3)),
            "sum": (
                "ReduceSum(_q, {axes})",
                "ReduceSum <keepdims = 0> (_q, {axes})",
                "ReduceSum(_q)",
                "ReduceMean <axes = [1]> (_q)",
                "ReduceMax <axes = [1]> (_q)",
            ),
            "axes": (whole(-1), whole(0), whole(1, 2), whole(0, 2)),
            "more": ("Identity(_s)", "Add(_s, {epsilon})", "Max(_s, {epsilon})"),
            "epsilon": (one(1e-6), one(0.5)),
            "root": ("Sqrt", "Log", "Identity", "Abs"),
        },
    ),
    "a sum over a part of the axes": Pattern(
        "float[2,3,4] x",
        "_a = {first} y = {then}",
        {
            "first": (
                "ReduceSum <keepdims = 0> (x, {axes})",
                "ReduceSum(x, {axes})",
                "ReduceMean <axes = [1], keepdims = 0> (x)",
                "ReduceMax <axes = [0], keepdims = 0> (x)",
                "Transpose <perm = [2,0,1]> (x)",
                "ReduceSum <noop_with_empty_axes = 1> (x, {none})",
                "Mul(x, {factor})",
            ),
            "axes": (whole(1), whole(0), whole(-1)),
            "none": (np.zeros(0, np.int64),),
            "factor": (row(1, -2, 3, 0.5), one(-2), row(1, -2, 3).reshape(3, 1)),
            "then": (
                "ReduceSum(_a, {axes2})",
                "ReduceSum <keepdims = 0> (_a, {axes2})",
                "ReduceMean <axes = [0]> (_a)",
                "ReduceMax <axes = [-1]> (_a)",
                "ReduceSum(_a)",
                "ReduceSum(_a, {none})",
            ),
            "axes2": (whole(1), whole(0), whole(-1)),
        },
    ),
    "a mean over space": Pattern(
        "float[2,3,2,2,3] x, float[2,3,2,4] z",
        "_a = {of} y = ReduceMean {how} (_a)",
        {
            "of": ("Neg(z)", "Neg(x)"),
            "how": (
                "<axes = [2,3]>",
                "<axes = [2,3], keepdims = 0>",
                "<axes = [3,2]>",
                "<axes = [-2,-1]>",
                "<axes = [1,2]>",
                "<axes = [3]>",
            ),
        },
    ),
    "a norm of groups": Pattern(
        "float[2,4,3,2] x",
        "_a = Reshape(x, {groups}) _n = InstanceNormalization {epsilon} (_a, {ones}, {zeros})"
        " _b = Reshape(_n, {back}) _s = Mul(_b, {scale}) y = Add(_s, {shift})",
        {
            "groups": (whole(2, 2, -1), whole(2, 2, 4, 3), whole(4, 2, -1), whole(1, 2, -1)),
            "epsilon": ("<epsilon = 0.01>", "<epsilon = 0.3>", ""),
            "ones": (row(1, 1), row(1, -2)),
            "zeros": (row(0, 0), row(0.5, -1)),
            "back": (whole(2, 4, 3, 2), whole(2, 4, 2, 3)),
            "scale": (row(1, -2, 0.5, 3).reshape(4, 1, 1), one(1.5), row(1, 2)),
            "shift": (row(0.5, 1, -1, 0).reshape(1, 4, 1, 1), one(-0.5), row(1, -2)),
        },
    ),
    "a norm behind a sum": Pattern(
        "float[2,3,4] x, float[2,3,4] z",
        "_a = Add({one}, {other}) _n = LayerNormalization {how} (_a, {scale}, {shift}) y = {end}",
        {
            "one": ("x", "{row}"),
            "other": ("z", "x", "{row}"),
            "row": (row(1, -2, 3, 0.5), row(1, -2, 3).reshape(3, 1)),
            "how": ("<epsilon = 0.01>", "<epsilon = 0.3>", "<axis = -1, epsilon = 0.01>"),
            "scale": (row(1, -2, 0.5, 3),),
            "shift": (row(0.5, 1, -1, 0), row(0, 0, 0, 1)),
            "end": ("Identity(_n)", "Add(_n, _a)", "Mul(_n, x)", "Add(_a, _a)"),
        },
    ),
}
"""Names of patterns to them."""
