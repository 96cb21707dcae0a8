"""Patterns of sizes, and of elements that move."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import Pattern, one, row, whole

PATTERNS: Mapping[str, Pattern] = {
    "sizes of another value": Pattern(
        "float[A,B] x, float[C,D,E] z",
        "_s = Shape({of}) _i = Gather(_s, {index}) _n = Mul(_i, {times}) _t = {joined}"
        " y = Reshape({reshaped}, _t)",
        {
            "of": ("x", "z"),
            "index": (whole(0), whole(1), whole(-1)),
            "times": (whole(1), whole(2)),
            "joined": (
                "Concat <axis = 0> (_n, {rest})",
                "Concat <axis = 0> ({rest}, _n)",
                "Concat <axis = 0> (_n, {rest}, {one})",
            ),
            "rest": (whole(-1),),
            "one": (whole(1),),
            "reshaped": ("x", "z"),
        },
    ),
    "sizes of another value as they are": Pattern(
        "float[A,B] x, float[C,D,E] z",
        "_s = Shape({of}) _i = Gather(_s, {index}) _t = {joined} y = Reshape({reshaped}, _t)",
        {
            "of": ("x", "z"),
            "index": (whole(0), whole(1), whole(-1)),
            "joined": (
                "Concat <axis = 0> (_i, {rest})",
                "Concat <axis = 0> ({rest}, _i)",
                "Concat <axis = 0> (_i, {rest}, {one})",
            ),
            "rest": (whole(-1),),
            "one": (whole(1),),
            "reshaped": ("x", "z"),
        },
    ),
    "shuffled channels": Pattern(
        "float[1,4,2,2] x",
        "_a = Reshape(x, {groups}) _b = Transpose <perm = {turned}> (_a) y = Reshape(_b, {back})",
        {
            "groups": (whole(1, 2, 2, 2, 2), whole(2, 1, 2, 2, 2), whole(2, 2, 1, 2, 2)),
            "turned": ("[0,2,1,3,4]", "[0,1,2,4,3]", "[0,3,4,1,2]", "[0,3,1,4,2]", "[0,1,3,2,4]"),
            "back": (whole(1, 4, 2, 2), whole(1, 1, 4, 4), whole(4, 4)),
        },
    ),
    "sizes that are computed": Pattern(
        "float[A,B,D] x, float[C,B] z",
        "_s = Shape {part} ({of}) _n = {into} _t = Concat <axis = 0> ({joined}) y = {end}",
        {
            "part": ("<start = 0, end = 1>", "<start = 1, end = 2>", "<start = -1>", "<end = -2>"),
            "of": ("x", "z"),
            "into": (
                "Identity(_s)",
                "Mul(_s, {two})",
                "Add(_s, {one})",
                "Div(_s, {two})",
                "Sub(_s, {one})",
                "Neg(_s)",
            ),
            "one": (whole(1),),
            "two": (whole(2), whole(3)),
            "joined": ("_n, {one}", "{one}, _n", "_n, _n", "{two}, _n"),
            "end": (
                "Expand({c}, _t)",
                "ConstantOfShape(_t)",
                "Cast <to = 1> (_t)",
            ),
            "c": (row(1.5),),
        },
    ),
    "sizes of what was moved": Pattern(
        "float[A,B,D] x",
        "_a = {moved} _s = Shape(_a) _p = Gather(_s, {index}) _f = Cast <to = 1> (_p) y = {end}",
        {
            "moved": (
                "Transpose <perm = [2,0,1]> (x)",
                "Transpose <perm = [0,2,1]> (x)",
                "Flatten <axis = 2> (x)",
                "Unsqueeze(x, {axis})",
                "ReduceSum <keepdims = 0> (x, {axis})",
                "Concat <axis = 1> (x, x)",
                "MatMul(x, {weight})",
                "Slice(x, {axis}, {far}, {axis})",
                "Pad(x, {sides})",
                "Add(x, {wide})",
            ),
            "axis": (whole(1), whole(0)),
            "far": (whole(2**40), whole(2)),
            "weight": (np.ones((3, 5), np.float32),),
            "wide": (np.ones((2, 1, 1, 1), np.float32),),
            "sides": (whole(0, 1, 0, 2, 0, 0),),
            "index": (whole(0, 1), whole(-1), whole(1), one(-2, np.int64)),
            "end": ("Identity(_f)", "Expand({c}, _p)", "Mul(_f, {c})"),
            "c": (row(1.5),),
        },
    ),
    "a shape that is asked for twice": Pattern(
        "float[2,3,4] x",
        "_a = Reshape {zero} (x, {first}) _b = {between} y = Reshape {zero2} (_b, {then})",
        {
            "zero": ("", "<allowzero = 1>"),
            "zero2": ("", "<allowzero = 1>"),
            "first": (whole(3, 8), whole(0, -1), whole(4, 0, 2), whole(-1), whole(1, 2, 3, 4)),
            "between": ("Identity(_a)", "Relu(_a)", "Transpose(_a)", "Neg(_a)"),
            "then": (whole(2, 3, 4), whole(0, -1), whole(-1, 2), whole(0, 2, -1), whole(4, 0, -1)),
        },
    ),
}
"""Names of patterns to them."""
