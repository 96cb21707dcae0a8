"""Patterns of products and windows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import Pattern, one, row, whole

PATTERNS: Mapping[str, Pattern] = {
    "pads around pads": Pattern(
        "float[1,2,4,4] x",
        "_a = Pad {mode} (x, {pads}) y = Pad {mode} (_a, {pads2})",
        {
            "mode": ('<mode = "reflect">', '<mode = "edge">', ""),
            "pads": (whole(0, 0, 1, 2, 0, 0, 1, 0), whole(0, 0, 2, 0, 0, 0, 0, 1)),
            "pads2": (whole(0, 0, 1, 1, 0, 0, 2, 1), whole(0, 0, 0, 0, 0, 0, 1, 2)),
        },
    ),
    "pads ahead of a window": Pattern(
        "float[1,2,4,4] x",
        "_a = Pad {mode} (x, {pads}) y = {window} (_a)",
        {
            "mode": ("", '<mode = "edge">', '<mode = "reflect">'),
            "pads": (whole(0, 0, 1, 1, 0, 0, 1, 1), whole(0, 0, 1, 0, 0, 0, 0, 1)),
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
            "factor": (one(2), one(-1.5), row(2, -0.5).reshape(2, 1, 1), row(1, -2, 3, 0.5)),
            "window": ("MaxPool <kernel_shape = [2,2]>", "ReduceMax", "GlobalAveragePool"),
        },
    ),
    "a linear layer": Pattern(
        "float[3,4] x",
        "_a = {product} y = {into}",
        {
            "product": (
                "MatMul(x, {weight})",
                "Gemm(x, {weight})",
                "MatMul({left}, x)",
                "Gemm <alpha = 0.5, beta = 0.25> (x, {weight})",
                "Gemm <alpha = 0.5, beta = -2.0> (x, {weight}, {row})",
            ),
            "row": (row(3, 0.5, -1, 2),),
            "weight": (np.resize(row(1, -2, 0.5, 3, 0.25), (4, 4)),),
            "left": (np.resize(row(1, -2, 0.5, 3, 0.25, -1), (3, 3)),),
            "into": (
                "Add(_a, {bias})",
                "Add({bias}, _a)",
                "Sub(_a, {bias})",
                "Mul(_a, {bias})",
                "Mul(_a, {number})",
            ),
            "number": (one(-2),),
            "bias": (
                row(1, -2, 3, 0.5),
                row(1, -2, 3, 0.5).reshape(1, 4),
                row(1, -2, 3, 0.5).reshape(1, 1, 4),
                row(1, -2, 3).reshape(3, 1),
                row(1, -2, 3).reshape(1, 3, 1),
                row(1, -2).reshape(2, 1, 1),
                one(1.5),
                row(1.5).reshape(1, 1, 1),
                np.resize(row(1, -2, 3, 0.5, 7), (3, 4)),
            ),
        },
    ),
}
"""Names of patterns to them."""
