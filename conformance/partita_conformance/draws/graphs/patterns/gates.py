"""Patterns of activations that are spelled in several operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import Pattern, one, row, whole

_ROOT = one(2**0.5)
PATTERNS: Mapping[str, Pattern] = {
    "a bell's gate": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {into}(x, {root}) _b = Erf(_a) _c = Add(_b, {one}) _d = Mul({gated}, _c)"
        " y = Mul(_d, {half})",
        {
            "into": ("Div", "Mul", "Sub"),
            "root": (_ROOT, one(1.5), one(0.5**0.5), row(1, 2, 3, 2**0.5)),
            "one": (one(1), one(0.9), one(-1), row(1, 1, 1, 2)),
            "gated": ("x", "z", "_a"),
            "half": (one(0.5), one(0.6), row(0.5, 0.5, 0.25, 0.5)),
        },
    ),
    "a bell's gate by tangents": Pattern(
        "float[3,4] x",
        "_a = Pow(x, {three}) _b = Mul(_a, {little}) _c = Add(x, _b) _d = Mul(_c, {root})"
        " _e = {bent}(_d) _f = Add(_e, {one}) _g = Mul(x, _f) y = Mul(_g, {half})",
        {
            "three": (one(3), one(2)),
            "little": (one(0.044715), one(0.05)),
            "root": (one((2 / np.pi) ** 0.5), one(1)),
            "bent": ("Tanh", "Sigmoid", "Softsign"),
            "one": (one(1), one(0.5)),
            "half": (one(0.5), one(1)),
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
            "three": (one(3), one(2.5), row(3, 3, 3, 0)),
            "low": (one(0), one(-1)),
            "high": (one(6), one(4)),
            "gated": ("x", "z", "_a"),
            "into": ("Div", "Mul", "Sub"),
            "six": (one(6), one(5), one(1 / 6)),
        },
    ),
    "a smooth gate": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {scaled} _b = {bent}(_a) y = Mul({gated}, _b)",
        {
            "scaled": ("Identity(x)", "Mul(x, {factor})", "Neg(x)", "Identity(z)"),
            "factor": (one(1.702), row(1, 2, -1, 3)),
            "bent": ("Sigmoid", "HardSigmoid", "Softplus"),
            "gated": ("x", "z", "_b", "_a"),
        },
    ),
    "a part that opens another": Pattern(
        "float[2,8] x",
        "_a, _b = Split <axis = 1> (x, {sizes}) _c = {bent}({one}) y = {joined}",
        {
            "sizes": (whole(4, 4),),
            "bent": ("Sigmoid", "Relu", "HardSigmoid"),
            "one": ("_b", "_a"),
            "joined": ("Mul(_a, _c)", "Mul(_c, _b)", "Add(_a, _c)"),
        },
    ),
    "a gate of tangents": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {soft}(x) _b = {bent}(_a) y = {joined}",
        {
            "soft": ("Softplus", "Exp", "Sigmoid", "Relu"),
            "bent": ("Tanh", "Sigmoid", "Identity", "Log"),
            "joined": ("Mul(x, _b)", "Mul(z, _b)", "Mul(_a, _b)", "Add(x, _b)", "Mul(_b, _b)"),
        },
    ),
    "softness spelled out": Pattern(
        "float[3,4] x",
        "_n = Neg(x) _a = Exp({of}) _b = Add(_a, {one}) y = {end}(_b)",
        {
            "of": ("x", "_n"),
            "one": (one(1), one(0.5), row(1, 1, 1, 2)),
            "end": ("Log", "Reciprocal", "Sqrt"),
        },
    ),
    "a bent line spelled out": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = Mul({of}, {slope}) y = {chosen}",
        {
            "of": ("x", "z"),
            "slope": (one(0.1), one(1.5), one(-0.5), row(0.1, 0.2, 3, -1)),
            "chosen": (
                "Max(x, _a)",
                "Max(_a, x)",
                "Min(x, _a)",
                "Max(z, _a)",
                "PRelu(x, {slope})",
                "LeakyRelu <alpha = 0.1> (_a)",
            ),
        },
    ),
    "limits spelled out": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = {first}(x, {low}) y = {then}({of}, {high})",
        {
            "first": ("Max", "Min", "Add"),
            "then": ("Min", "Max", "Sub"),
            "of": ("_a", "x", "z"),
            "low": (one(0), one(0.8), row(0, -1, 1, 0.5), row(0, -1, 1).reshape(3, 1)),
            "high": (one(0.5), one(-0.5), row(1, 0.5, 2, -1), row(1, 2).reshape(2, 1, 1)),
        },
    ),
    "limits in a row": Pattern(
        "float[3,4] x",
        "_a = {first} y = {then}",
        {
            "first": (
                "Clip(x, {low}, {high})",
                "Relu(x)",
                "Clip(x, {low})",
                "Clip(x, , {high})",
                "Clip(x, {high}, {low})",
                "Neg(x)",
                "Abs(x)",
            ),
            "then": (
                "Clip(_a, {low2}, {high2})",
                "Relu(_a)",
                "Clip(_a, {low2})",
                "Clip(_a, , {high2})",
                "Neg(_a)",
                "Abs(_a)",
            ),
            "low": (one(-0.5), one(0.6), one(0)),
            "high": (one(0.5), one(6)),
            "low2": (one(0), one(0.7), one(-1)),
            "high2": (one(0.25), one(-0.25), one(1)),
        },
    ),
}
"""Names of patterns to them."""
