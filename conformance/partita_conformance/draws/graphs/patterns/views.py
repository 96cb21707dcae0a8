"""Patterns of values that are the same memory in another shape, and of axes that come and go."""

from __future__ import annotations

from collections.abc import Mapping

from partita_conformance.draws.graphs.patterns.pattern import Pattern, one, row, whole

_VIEWS = (
    "Reshape(_n, {shape})",
    "Flatten <axis = 2> (_n)",
    "Unsqueeze(_n, {zero})",
    "Identity(_n)",
    "Slice(_n, {zero}, {far}, {zero})",
    "Transpose(_n)",
)
_UNSQUEEZED = (whole(1), whole(0), whole(2), whole(-1), whole(0, 2), whole(3, 1), whole(-2))
_SQUEEZED = (whole(2), whole(0), whole(-1), whole(0, 2), whole(-3))
PATTERNS: Mapping[str, Pattern] = {
    "views that are read again": Pattern(
        "float[2,3,4] x",
        "_n = {made} _v = {view} _u = {changed}(_v) _s = {after} _t = ReduceSum(_u)"
        " y = Add(_s, _t)",
        {
            "made": ("Neg(x)", "Mul(x, {factor})", "Concat <axis = 0> (x, x)"),
            "factor": (one(1.5),),
            "view": _VIEWS,
            "shape": (whole(4, -1),),
            "zero": (whole(0),),
            "far": (whole(2**40),),
            "changed": ("Sigmoid", "Neg", "Relu", "Abs"),
            "after": ("Mul(_n, {factor})", "Neg(_n)", "ReduceMax(_n)", "Exp(_n)"),
        },
    ),
    "views of views": Pattern(
        "float[2,3,4] x",
        "_n = Neg(x) _a = {first} y = {then}",
        {
            "first": (
                "Flatten <axis = 2> (_n)",
                "Flatten(_n)",
                "Flatten <axis = 0> (_n)",
                "Flatten <axis = 3> (_n)",
                "Transpose(_n)",
                "Slice(_n, {one}, {three}, {one})",
                "Unsqueeze(_n, {one})",
                "Reshape(_n, {shape})",
            ),
            "one": (whole(1),),
            "three": (whole(3),),
            "shape": (whole(4, 0, 2),),
            "then": (
                "Reshape(_a, {shape2})",
                "Flatten(_a)",
                "Flatten <axis = 0> (_a)",
                "Transpose(_a)",
                "Unsqueeze(_a, {one})",
                "Reshape <allowzero = 1> (_a, {whole2})",
            ),
            "shape2": (whole(0, -1), whole(-1), whole(-1, 0), whole(0, 2, -1), whole(3, 0, -1)),
            "whole2": (whole(3, -1), whole(2, 2, -1)),
        },
    ),
    "axes that are made in turn": Pattern(
        "float[2,3,4] x",
        "_a = Unsqueeze(x, {first}) y = {then}",
        {
            "first": _UNSQUEEZED,
            "then": (
                "Unsqueeze(_a, {second})",
                "Squeeze(_a, {second})",
                "Squeeze(_a)",
                "ReduceSum <keepdims = 0> (_a, {second})",
            ),
            "second": (whole(0), *_UNSQUEEZED[2:], whole(1)),
        },
    ),
    "axes that are taken in turn": Pattern(
        "float[1,2,1,3,1] x",
        "_a = {first} y = {then}",
        {
            "first": (
                "Squeeze(x, {axes})",
                "ReduceMax <axes = [1], keepdims = 0> (x)",
                "ReduceSum <keepdims = 0> (x, {axes})",
            ),
            "axes": _SQUEEZED,
            "then": (
                "Squeeze(_a, {axes2})",
                "Unsqueeze(_a, {axes2})",
                "ReduceSum(_a, {axes2})",
                "ReduceMean <axes = [1], keepdims = 0> (_a)",
                "Squeeze(_a)",
            ),
            "axes2": (whole(0), whole(2), whole(-1), whole(3), whole(-2)),
        },
    ),
    "parts of what was joined": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = Concat <axis = {axis}> ({order}) {split} y = {end}",
        {
            "axis": ("1", "-1"),
            "order": ("x, z", "z, x", "x, x"),
            "split": (
                "_p, _q = Split <axis = 1> (_a, {parts})",
                "_p, _q = Split <axis = -1> (_a, {parts})",
                "_p, _q = Split <axis = 0> (_a, {rows})",
                "_p, _r, _q = Split <axis = 1> (_a, {three})",
            ),
            "parts": (whole(4, 4), whole(3, 5), whole(6, 2), whole(1, 7)),
            "rows": (whole(1, 2),),
            "three": (whole(4, 2, 2), whole(1, 3, 4)),
            "end": (
                "Concat <axis = 1> (_q, _p)",
                "ReduceSum(_p)",
                "ReduceSum(_q)",
                "Neg(_p)",
                "Mul(_q, _q)",
            ),
        },
    ),
    "a part of sizes": Pattern(
        "float[2,3,4] x, float[A,B] z",
        "_s = Shape {part} ({of}) _p = {read} _f = Cast <to = 1> (_p) y = Mul(_f, {factor})",
        {
            "part": ("", "<start = 1>", "<start = -2>", "<end = -1>", "<start = 1, end = 2>"),
            "of": ("x", "z"),
            "read": (
                "Gather(_s, {place})",
                "Slice(_s, {zero}, {one})",
                "ReduceProd(_s)",
                "Squeeze(_s)",
                "Mul(_s, {two})",
                "Concat <axis = 0> ({one}, _s)",
            ),
            "place": (one(0, int), one(-1, int), whole(0), whole(-1, 0), whole(1)),
            "zero": (whole(0),),
            "one": (whole(1),),
            "two": (whole(2),),
            "factor": (row(1.5),),
        },
    ),
    "images of blocks": Pattern(
        "float[1,8,3,2] x",
        "_a = Reshape(x, {blocks}) _b = Transpose <perm = {turned}> (_a) y = Reshape(_b, {back})",
        {
            "blocks": (whole(1, 2, 2, 2, 3, 2), whole(1, 2, 2, 2, -1, 2), whole(1, 2, 4, 1, 3, 2)),
            "turned": (
                "[0,1,4,2,5,3]",
                "[0,1,4,3,5,2]",
                "[0,1,2,4,3,5]",
                "[0,1,3,4,2,5]",
                "[0,1,5,2,4,3]",
                "[0,1,5,3,4,2]",
                "[0,3,4,1,5,2]",
                "[0,3,4,2,5,1]",
                "[0,2,4,1,5,3]",
                "[0,2,4,3,5,1]",
                "[0,4,2,5,3,1]",
                "[0,4,3,5,2,1]",
            ),
            "back": (whole(1, 2, 6, 4), whole(1, 2, 4, 6), whole(1, 6, 4, 2), whole(2, 6, 4)),
        },
    ),
}
"""Names of patterns to them."""
