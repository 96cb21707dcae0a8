"""Patterns of attention: shares, masks, heads, and places that turn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import AXES, Pattern, one, row, whole

_HIDDEN = np.float32(-1e4)
"""What is added to scores that are hidden."""
PATTERNS: Mapping[str, Pattern] = {
    "shares spelled out": Pattern(
        "float[3,4,4] x, float[3,4,4] z",
        "_m = ReduceMax <axes = {axes}> (x) _d = Sub(x, _m) _e = Exp({of})"
        " _s = ReduceSum(_e, {others}) _y = {over} y = {end}(_y)",
        {
            "axes": AXES,
            "of": ("_d", "x", "z", "_m"),
            "others": (whole(-1), whole(1), whole(0), whole(1, 2)),
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
                one(0.5),
                one(1.5),
                row(0.5, 2, 1, 3).reshape(4, 1, 1),
                row(1, 2, 0.5, 0.1),
                row(1, 2, 0.5, 0.1).reshape(4, 1),
            ),
            "mask": (
                np.where(np.tri(4) > 0, 0, -10).astype(np.float32),
                np.where(np.tri(4).T > 0, 0, -10).astype(np.float32),
                one(0),
                row(0, 0, -10, -10),
                row(0, -10, 0, -5).reshape(4, 1, 1, 1),
            ),
            "axis": ("-1", "-2", "1"),
            "end": ("MatMul(_p, v)", "MatMul(v, _p)", "MatMul(_p, k)", "Mul(_p, v)"),
        },
    ),
    "masked shares": Pattern(
        "float[2,3,4] x, bool[2,3,4] m, bool[4] k",
        "_k = {mask} _a = Where(_k, {chosen}) _s = Softmax {axis} (_a) y = {end}",
        {
            "mask": ("Identity(m)", "Not(m)", "And(m, k)", "Or(m, k)", "Identity(k)", "Xor(m, k)"),
            "chosen": ("x, {low}", "{low}, x", "{low}, {zero}"),
            "low": (one(-1e4), one(0), row(-1, -5, 0, 2), one(-3)),
            "zero": (one(0),),
            "axis": ("<axis = -1>", "<axis = 1>", "<axis = 0>"),
            "end": ("Identity(_s)", "Where(_k, _s, {zero})", "Mul(_s, x)", "Where(_k, {zero}, _s)"),
        },
    ),
    "heads of a product": Pattern(
        "float[2,3,8] x",
        "_a = MatMul(x, {weight}) _b = Reshape(_a, {heads}) _t = Transpose <perm = {turned}> (_b)"
        " _u = {side} _p = MatMul(_t, _u) _z = Transpose <perm = {back}> (_p)"
        " y = Reshape(_z, {flat})",
        {
            "weight": (np.resize(row(1, -2, 0.5, 3, 0.25, -0.5, 0.1), (8, 8)) / 4,),
            "heads": (whole(2, 3, 2, 4), whole(0, 0, 2, 4), whole(0, 0, 4, 2), whole(0, -1, 2, 4)),
            "turned": ("[0,2,1,3]", "[0,2,3,1]", "[1,2,0,3]", "[0,1,2,3]", "[2,0,1,3]"),
            "side": (
                "Transpose <perm = [0,1,3,2]> (_t)",
                "Transpose <perm = [1,0,3,2]> (_t)",
                "Transpose <perm = [0,1,3,2]> (_b)",
            ),
            "back": ("[0,2,1,3]", "[0,1,2,3]", "[2,0,1,3]", "[0,2,3,1]"),
            "flat": (whole(0, 0, -1), whole(2, -1), whole(-1, 3)),
        },
    ),
    "heads that are repeated": Pattern(
        "float[2,2,3,4] x",
        "_a = {wider} _b = {more} y = Reshape(_b, {flat})",
        {
            "wider": ("Unsqueeze(x, {axis})", "Reshape(x, {five})"),
            "axis": (whole(2), whole(1), whole(-1), whole(0)),
            "five": (whole(2, 2, 1, 3, 4),),
            "more": ("Expand(_a, {sizes})", "Tile(_a, {times})", "Concat <axis = 1> (_a, _a)"),
            "sizes": (whole(2, 2, 3, 3, 4), whole(3, 1, 1, 1, 1), whole(2, 3, 2, 3, 4)),
            "times": (whole(1, 1, 3, 1, 1), whole(1, 3, 1, 1, 1), whole(3, 1, 1, 1, 1)),
            "flat": (whole(2, 6, 3, 4), whole(6, -1), whole(-1, 3, 4)),
        },
    ),
    "places that turn": Pattern(
        "float[2,3,8] x, float[3,8] c, float[3,8] s",
        "_a, _b = Split <axis = -1> (x, {parts}) _n = {minus} _r = Concat <axis = -1> ({order})"
        " _p = Mul(x, {cosine}) _q = Mul(_r, {sine}) y = {joined}",
        {
            "parts": (whole(4, 4), whole(2, 6), whole(6, 2)),
            "minus": ("Neg(_b)", "Neg(_a)", "Identity(_b)"),
            "order": ("_n, _a", "_a, _n", "_n, _b", "_b, _n"),
            "cosine": ("c", "s"),
            "sine": ("s", "c"),
            "joined": ("Add(_p, _q)", "Sub(_p, _q)", "Sub(_q, _p)"),
        },
    ),
    "shares and masks that are added": Pattern(
        "float[2,4,4] x, bool[4] k",
        "_m = Cast <to = 1> (k) _i = Sub({one}, _m) _l = Mul(_i, {least}) _a = Add({masked})"
        " y = Softmax {axis} (_a)",
        {
            "one": (one(1),),
            "least": (one(-1e4), one(-3)),
            "masked": ("x, _l", "x, {mask}", "{mask}, x"),
            "mask": (
                _HIDDEN * np.triu(np.ones((4, 4), np.float32), 1),
                _HIDDEN * np.triu(np.ones((4, 4), np.float32), 2),
                _HIDDEN * (np.abs(np.subtract.outer(range(4), range(4))) > 1).astype(np.float32),
                _HIDDEN * np.resize(row(0, 0, 0, 1), (4, 4)),
            ),
            "axis": ("<axis = -1>", "<axis = 1>"),
        },
    ),
    "a triangle of a mask": Pattern(
        "float[2,3,4] x",
        "_t = Trilu {upper} ({of}{k}) y = {end}",
        {
            "upper": ("<upper = 0>", "<upper = 1>", ""),
            "of": ("x", "{ones}"),
            "ones": (np.ones((3, 4), np.float32),),
            "k": (", {one}", "", ", {less}"),
            "one": (one(1, np.int64),),
            "less": (one(-1, np.int64),),
            "end": ("Mul(_t, x)", "Add(_t, x)", "Softmax <axis = -1> (_t)"),
        },
    ),
}
"""Names of patterns to them."""
