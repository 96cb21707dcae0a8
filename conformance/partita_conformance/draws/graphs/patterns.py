"""Sequences of operators that compilers know as one, and others that differ from them in one thing.

A matcher that is too wide takes the others for the one it knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from partita_conformance.draws.draw import Array

Choice: TypeAlias = "str | Array"


class Pattern(NamedTuple):
    """A pattern.

    Attributes:
        ports: The model's inputs, in ONNX's text.
        body: Operations that end in ``y``; words in braces are slots, and ``_`` begins the names of
            values between.
        slots: What may stand in each slot: text, or a weight. The first one is what is known.
        element: The type of the result.
    """

    ports: str
    body: str
    slots: Mapping[str, Sequence[Choice]]
    element: str = "float"


def _one(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def _row(*values: float) -> Array:
    return np.array(values, np.float32)


def _whole(*values: int) -> Array:
    return np.array(values, np.int64)


_AXES = ("[-1]", "[1]", "[0]", "[1,2]", "[-2,-1]", "[0,2]")
_ROOT = _one(2**0.5)
_STEP, _ZERO = _one(0.125), _one(7, np.uint8)
_ROUND_CODES = (
    "Transpose <perm = [1,0]> (_a)",
    "Reshape(_a, {keep})",
    "Relu(_a)",
    "Slice(_a, {one}, {three})",
    "Concat <axis = 0> (_a, _a)",
    "Max(_a, _b)",
    "Concat <axis = 1> (_a, _b)",
    "Gather <axis = 1> (_a, {one})",
    "Add(_a, _b)",
)
PATTERNS: Mapping[str, Pattern] = {
    "a layer's norm": Pattern(
        "float[2,4,4] x, float[2,4,4] z",
        "_m = ReduceMean <axes = {axes}> (x) _d = {taken} _q = {square}"
        " _v = ReduceMean <axes = {others}> (_q) _e = Add(_v, {epsilon}) _r = {root}(_e)"
        " _n = Div(_d, _r) _s = Mul(_n, {scale}) y = Add(_s, {shift})",
        {
            "axes": _AXES,
            "others": ("={axes}", "[1]", "[0]", "[0,1,2]"),
            "taken": ("Sub(x, _m)", "Sub(_m, x)", "Sub(z, _m)", "Add(x, _m)"),
            "square": ("Pow(_d, {two})", "Mul(_d, _d)", "Abs(_d)", "Mul(_d, x)", "Mul(_d, z)"),
            "two": (_one(2), _one(4)),
            "epsilon": (_one(1e-5), _one(0.3), _row(0.1, 0.5, 1, 2), _row(0.1, 2).reshape(2, 1, 1)),
            "root": ("Sqrt", "Identity", "Exp"),
            "scale": (_row(1, -2, 0.5, 3), _one(1.5), _row(1, 2, 3, -4).reshape(4, 1)),
            "shift": (_row(0.5, 1, -1, 0), _one(-0.5), _row(1, -2).reshape(2, 1, 1)),
        },
    ),
    "a layer's norm alone": Pattern(
        "float[2,4,3] x",
        "_m = ReduceMean <axes = {axes}> (x) _d = Sub(x, _m) _q = Pow(_d, {two})"
        " _v = ReduceMean <axes = {axes}> (_q) _e = Add(_v, {epsilon}) _r = Sqrt(_e)"
        " y = Div(_d, _r)",
        {"axes": _AXES, "two": (_one(2), _one(4)), "epsilon": (_one(1e-5), _one(0.3))},
    ),
    "a norm of squares": Pattern(
        "float[2,4,4] x, float[2,4,4] z",
        "_q = {square} _m = {mean} <axes = {axes}> (_q) _e = Add(_m, {epsilon}) _r = {root}(_e)"
        " _n = {over} y = Mul(_n, {scale})",
        {
            "square": ("Mul(x, x)", "Pow(x, {two})", "Mul(x, z)", "Abs(x)"),
            "two": (_one(2), _one(4)),
            "mean": ("ReduceMean", "ReduceMax", "ReduceL2"),
            "axes": _AXES,
            "epsilon": (_one(1e-5), _one(0.3)),
            "root": ("Sqrt", "Identity"),
            "over": ("Div(x, _r)", "Div(z, _r)", "Div(_r, x)", "Mul(x, _r)"),
            "scale": (_row(1, -2, 0.5, 3), _one(1.5), _row(1, 2, 3, -4).reshape(4, 1)),
        },
    ),
    "a bell's gate": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {into}(x, {root}) _b = Erf(_a) _c = Add(_b, {one}) _d = Mul({gated}, _c)"
        " y = Mul(_d, {half})",
        {
            "into": ("Div", "Mul", "Sub"),
            "root": (_ROOT, _one(1.5), _one(0.5**0.5), _row(1, 2, 3, 2**0.5)),
            "one": (_one(1), _one(0.9), _one(-1), _row(1, 1, 1, 2)),
            "gated": ("x", "z", "_a"),
            "half": (_one(0.5), _one(0.6), _row(0.5, 0.5, 0.25, 0.5)),
        },
    ),
    "a bell's gate by tangents": Pattern(
        "float[3,4] x",
        "_a = Pow(x, {three}) _b = Mul(_a, {little}) _c = Add(x, _b) _d = Mul(_c, {root})"
        " _e = {bent}(_d) _f = Add(_e, {one}) _g = Mul(x, _f) y = Mul(_g, {half})",
        {
            "three": (_one(3), _one(2)),
            "little": (_one(0.044715), _one(0.05)),
            "root": (_one((2 / np.pi) ** 0.5), _one(1)),
            "bent": ("Tanh", "Sigmoid", "Softsign"),
            "one": (_one(1), _one(0.5)),
            "half": (_one(0.5), _one(1)),
        },
    ),
    "a straight gate": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = HardSigmoid {slope} ({of}) y = {joined}",
        {
            "slope": (
                "<alpha = 0.16666667, beta = 0.5>",
                "",
                "<alpha = 0.2, beta = 0.5>",
                "<alpha = 0.16666667, beta = 0.4>",
                "<beta = 0.1>",
            ),
            "of": ("x", "z"),
            "joined": ("Mul(x, _a)", "Mul(_a, x)", "Add(x, _a)", "Mul(z, _a)", "Mul(_a, _a)"),
        },
    ),
    "a straight gate spelled out": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = Add(x, {three}) _b = Clip(_a, {low}, {high}) _c = Mul({gated}, _b)"
        " y = {into}(_c, {six})",
        {
            "three": (_one(3), _one(2.5), _row(3, 3, 3, 0)),
            "low": (_one(0), _one(-1)),
            "high": (_one(6), _one(4)),
            "gated": ("x", "z", "_a"),
            "into": ("Div", "Mul", "Sub"),
            "six": (_one(6), _one(5), _one(1 / 6)),
        },
    ),
    "a smooth gate": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {scaled} _b = {bent}(_a) y = Mul({gated}, _b)",
        {
            "scaled": ("Identity(x)", "Mul(x, {factor})", "Neg(x)", "Identity(z)"),
            "factor": (_one(1.702), _row(1, 2, -1, 3)),
            "bent": ("Sigmoid", "HardSigmoid", "Softplus"),
            "gated": ("x", "z", "_b", "_a"),
        },
    ),
    "shares spelled out": Pattern(
        "float[3,4,4] x, float[3,4,4] z",
        "_m = ReduceMax <axes = {axes}> (x) _d = Sub(x, _m) _e = Exp({of})"
        " _s = ReduceSum(_e, {others}) _y = {over} y = {end}(_y)",
        {
            "axes": _AXES,
            "of": ("_d", "x", "z", "_m"),
            "others": (_whole(-1), _whole(1), _whole(0), _whole(1, 2)),
            "over": ("Div(_e, _s)", "Div(_s, _e)", "Sub(_e, _s)", "Div(z, _s)"),
            "end": ("Identity", "Log", "Exp"),
        },
    ),
    "attention": Pattern(
        "float[4,4,4,4] q, float[4,4,4,4] k, float[4,4,4,4] v",
        "_t = Transpose <perm = {turned}> (k) _a = {product} _b = {into}(_a, {scale})"
        " _c = Add(_b, {mask}) _p = Softmax <axis = {axis}> (_c) y = {end}",
        {
            "turned": ("[0,1,3,2]", "[1,0,3,2]", "[0,1,2,3]", "[0,3,2,1]", "[2,1,3,0]"),
            "product": ("MatMul(q, _t)", "MatMul(_t, q)", "MatMul(k, _t)"),
            "into": ("Mul", "Div", "Add"),
            "scale": (
                _one(0.5),
                _one(1.5),
                _row(0.5, 2, 1, 3).reshape(4, 1, 1),
                _row(1, 2, 0.5, 0.1),
                _row(1, 2, 0.5, 0.1).reshape(4, 1),
            ),
            "mask": (
                np.where(np.tri(4) > 0, 0, -10).astype(np.float32),
                np.where(np.tri(4).T > 0, 0, -10).astype(np.float32),
                _one(0),
                _row(0, 0, -10, -10),
                _row(0, -10, 0, -5).reshape(4, 1, 1, 1),
            ),
            "axis": ("-1", "-2", "1"),
            "end": ("MatMul(_p, v)", "MatMul(v, _p)", "MatMul(_p, k)", "Mul(_p, v)"),
        },
    ),
    "halves that are cast around a sum": Pattern(
        "float16[2,4] x, float16[2,4] z",
        "_x = Mul(x, {large}) _z = Mul(z, {large}) _w = Cast <to = {wide}> ({of})"
        " _q = {square} _r = {sum} {end}",
        {
            "large": (_one(300, np.float16), _one(1, np.float16), _one(90, np.float16)),
            "wide": ("1", "11"),
            "of": ("_x", "_z"),
            "square": ("Mul(_w, _w)", "Abs(_w)", "ReduceSumSquare <axes = [1]> (_w)"),
            "sum": (
                "ReduceMean <axes = [-1]> (_q)",
                "ReduceMean <axes = [0]> (_q)",
                "ReduceSum(_q)",
                "ReduceL2 <axes = [-1]> (_q)",
            ),
            "end": (
                "y = Cast <to = 10> (_r)",
                "_s = Sqrt(_r) y = Cast <to = 10> (_s)",
                "_s = Log(_r) y = Cast <to = 10> (_s)",
            ),
        },
        "float16",
    ),
    "codes that are numbers between": Pattern(
        "uint8[4,4] x, uint8[4,4] z",
        "_a = DequantizeLinear {axis} (x, {step}, {zero})"
        " _b = DequantizeLinear(z, {step2}, {zero2}) _c = {moved}"
        " y = QuantizeLinear(_c, {step3}, {zero3})",
        {
            "axis": ("<axis = 1>", "<axis = 0>"),
            "moved": _ROUND_CODES,
            "step": (_STEP, _one(0.25)),
            "zero": (_ZERO, _one(3, np.uint8), _one(90, np.uint8)),
            "step2": (_STEP, _one(0.5)),
            "zero2": (_ZERO, _one(20, np.uint8)),
            "step3": (_STEP, _one(0.5)),
            "zero3": (_ZERO, _one(0, np.uint8)),
            "keep": (_whole(2, -1),),
            "one": (_whole(1),),
            "three": (_whole(3),),
        },
        "uint8",
    ),
    "codes that are joined": Pattern(
        "uint8[4,4] x, uint8[4,4] z",
        "_a = DequantizeLinear(x, {step}, {zero}) _b = DequantizeLinear(z, {step2}, {zero2})"
        " y = {joined}",
        {
            "step": (_STEP,),
            "zero": (_ZERO, _one(90, np.uint8)),
            "step2": (_STEP, _one(0.5)),
            "zero2": (_ZERO, _one(20, np.uint8)),
            "joined": ("Concat <axis = 0> (_a, _b)", "Concat <axis = 1> (_b, _a)", "Max(_a, _b)"),
        },
    ),
    "codes by rows and columns": Pattern(
        "int8[4,4] x, int8[4,4] z",
        "_a = DequantizeLinear <axis = {axis}> (x, {steps}, {zeros})"
        " _b = DequantizeLinear <axis = {axis2}> (z, {steps}, {zeros2}) y = {moved}",
        {
            "axis": ("1", "0", "-1"),
            "axis2": ("1", "0"),
            "moved": _ROUND_CODES,
            "steps": (_row(0.125, 0.25, 0.5, 1),),
            "zeros": (np.array([0, 3, -7, 9], np.int8),),
            "zeros2": (np.array([0, 3, -7, 9], np.int8), np.array([9, 0, 5, -3], np.int8)),
            "keep": (_whole(2, -1),),
            "one": (_whole(1),),
            "three": (_whole(3),),
        },
    ),
    "sizes of another value": Pattern(
        "float[A,B] x, float[C,D,E] z",
        "_s = Shape({of}) _i = Gather(_s, {index}) _n = Mul(_i, {times}) _t = {joined}"
        " y = Reshape({reshaped}, _t)",
        {
            "of": ("x", "z"),
            "index": (_whole(0), _whole(1), _whole(-1)),
            "times": (_whole(1), _whole(2)),
            "joined": (
                "Concat <axis = 0> (_n, {rest})",
                "Concat <axis = 0> ({rest}, _n)",
                "Concat <axis = 0> (_n, {rest}, {one})",
            ),
            "rest": (_whole(-1),),
            "one": (_whole(1),),
            "reshaped": ("x", "z"),
        },
    ),
    "sizes of another value as they are": Pattern(
        "float[A,B] x, float[C,D,E] z",
        "_s = Shape({of}) _i = Gather(_s, {index}) _t = {joined} y = Reshape({reshaped}, _t)",
        {
            "of": ("x", "z"),
            "index": (_whole(0), _whole(1), _whole(-1)),
            "joined": (
                "Concat <axis = 0> (_i, {rest})",
                "Concat <axis = 0> ({rest}, _i)",
                "Concat <axis = 0> (_i, {rest}, {one})",
            ),
            "rest": (_whole(-1),),
            "one": (_whole(1),),
            "reshaped": ("x", "z"),
        },
    ),
    "pads around pads": Pattern(
        "float[1,2,4,4] x",
        "_a = Pad {mode} (x, {pads}) y = Pad {mode} (_a, {pads2})",
        {
            "mode": ('<mode = "reflect">', '<mode = "edge">', ""),
            "pads": (_whole(0, 0, 1, 2, 0, 0, 1, 0), _whole(0, 0, 2, 0, 0, 0, 0, 1)),
            "pads2": (_whole(0, 0, 1, 1, 0, 0, 2, 1), _whole(0, 0, 0, 0, 0, 0, 1, 2)),
        },
    ),
    "pads ahead of a window": Pattern(
        "float[1,2,4,4] x",
        "_a = Pad {mode} (x, {pads}) y = {window} (_a)",
        {
            "mode": ("", '<mode = "edge">', '<mode = "reflect">'),
            "pads": (_whole(0, 0, 1, 1, 0, 0, 1, 1), _whole(0, 0, 1, 0, 0, 0, 0, 1)),
            "window": (
                "MaxPool <kernel_shape = [2,2]>",
                "AveragePool <kernel_shape = [2,2]>",
                "MaxPool <kernel_shape = [2,2], pads = [1,0,0,1]>",
            ),
        },
    ),
    "a factor ahead of a window": Pattern(
        "float[1,2,4,4] x",
        "_a = {into}(x, {factor}) y = {window} (_a)",
        {
            "into": ("Mul", "Div", "Add"),
            "factor": (_one(2), _one(-1.5), _row(2, -0.5).reshape(2, 1, 1), _row(1, -2, 3, 0.5)),
            "window": ("MaxPool <kernel_shape = [2,2]>", "ReduceMax", "GlobalAveragePool"),
        },
    ),
    "a linear layer": Pattern(
        "float[3,4] x",
        "_a = {product} y = {into}",
        {
            "product": ("MatMul(x, {weight})", "Gemm(x, {weight})", "MatMul({left}, x)"),
            "weight": (np.resize(_row(1, -2, 0.5, 3, 0.25), (4, 4)),),
            "left": (np.resize(_row(1, -2, 0.5, 3, 0.25, -1), (3, 3)),),
            "into": ("Add(_a, {bias})", "Add({bias}, _a)", "Sub(_a, {bias})", "Mul(_a, {bias})"),
            "bias": (
                _row(1, -2, 3, 0.5),
                _row(1, -2, 3, 0.5).reshape(1, 4),
                _row(1, -2, 3, 0.5).reshape(1, 1, 4),
                _row(1, -2, 3).reshape(3, 1),
                _row(1, -2, 3).reshape(1, 3, 1),
                _row(1, -2).reshape(2, 1, 1),
                _one(1.5),
                _row(1.5).reshape(1, 1, 1),
                np.resize(_row(1, -2, 3, 0.5, 7), (3, 4)),
            ),
        },
    ),
    "shuffled channels": Pattern(
        "float[1,4,2,2] x",
        "_a = Reshape(x, {groups}) _b = Transpose <perm = {turned}> (_a) y = Reshape(_b, {back})",
        {
            "groups": (_whole(1, 2, 2, 2, 2), _whole(2, 1, 2, 2, 2), _whole(2, 2, 1, 2, 2)),
            "turned": ("[0,2,1,3,4]", "[0,1,2,4,3]", "[0,3,4,1,2]", "[0,3,1,4,2]", "[0,1,3,2,4]"),
            "back": (_whole(1, 4, 2, 2), _whole(1, 1, 4, 4), _whole(4, 4)),
        },
    ),
    "a part that opens another": Pattern(
        "float[2,8] x",
        "_a, _b = Split <axis = 1> (x, {sizes}) _c = {bent}({one}) y = {joined}",
        {
            "sizes": (_whole(4, 4),),
            "bent": ("Sigmoid", "Relu", "HardSigmoid"),
            "one": ("_b", "_a"),
            "joined": ("Mul(_a, _c)", "Mul(_c, _b)", "Add(_a, _c)"),
        },
    ),
    "a mean spelled out": Pattern(
        "float[3,4,2] x",
        "_a = ReduceSum {keep} (x, {axes}) y = {into}(_a, {count})",
        {
            "keep": ("", "<keepdims = 0>"),
            "axes": (_whole(1), _whole(0, 1), _whole(-1)),
            "into": ("Div", "Mul"),
            "count": (_one(4), _one(3), _one(0.25)),
        },
    ),
}
"""Names of patterns to them."""
