"""Patterns of quantized numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import Pattern, one, row, whole

_STEP, _ZERO = one(0.125), one(7, np.uint8)
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
    "codes that are numbers between": Pattern(
        "uint8[4,4] x, uint8[4,4] z",
        "_a = DequantizeLinear {axis} (x, {step}, {zero})"
        " _b = DequantizeLinear(z, {step2}, {zero2}) _c = {moved}"
        " y = QuantizeLinear(_c, {step3}, {zero3})",
        {
            "axis": ("<axis = 1>", "<axis = 0>"),
            "moved": _ROUND_CODES,
            "step": (_STEP, one(0.25)),
            "zero": (_ZERO, one(3, np.uint8), one(90, np.uint8)),
            "step2": (_STEP, one(0.5)),
            "zero2": (_ZERO, one(20, np.uint8)),
            "step3": (_STEP, one(0.5)),
            "zero3": (_ZERO, one(0, np.uint8)),
            "keep": (whole(2, -1),),
            "one": (whole(1),),
            "three": (whole(3),),
        },
        "uint8",
    ),
    "codes that are joined": Pattern(
        "uint8[4,4] x, uint8[4,4] z",
        "_a = DequantizeLinear(x, {step}, {zero}) _b = DequantizeLinear(z, {step2}, {zero2})"
        " y = {joined}",
        {
            "step": (_STEP,),
            "zero": (_ZERO, one(90, np.uint8)),
            "step2": (_STEP, one(0.5)),
            "zero2": (_ZERO, one(20, np.uint8)),
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
            "steps": (row(0.125, 0.25, 0.5, 1),),
            "zeros": (np.array([0, 3, -7, 9], np.int8),),
            "zeros2": (np.array([0, 3, -7, 9], np.int8), np.array([9, 0, 5, -3], np.int8)),
            "keep": (whole(2, -1),),
            "one": (whole(1),),
            "three": (whole(3),),
        },
    ),
    "codes that are weighed": Pattern(
        "uint8[3,4] x, float[3,4] z",
        "_a = DequantizeLinear(x, {step}, {zero}) _w = DequantizeLinear {axis} ({codes}, {steps},"
        " {zeros}) _c = MatMul(_a, _w) _d = Add(_c, {bias})"
        " _q = QuantizeLinear(_d, {step2}, {zero2}) y = Cast <to = 1> (_q)",
        {
            "step": (_STEP, one(0.25)),
            "zero": (_ZERO, one(90, np.uint8)),
            "codes": (np.resize(np.array([3, -7, 1, 9, -128, 127, 5], np.int8), (4, 4)),),
            "axis": ("<axis = 1>", "<axis = 0>"),
            "steps": (row(0.125, 0.25, 0.5, 1), row(1, 0.5, 0.5, 0.0625)),
            "zeros": (np.zeros(4, np.int8), np.array([0, 3, -7, 9], np.int8)),
            "bias": (row(1, -2, 3, 0.5), one(1.5), row(1, -2, 3).reshape(3, 1)),
            "step2": (one(4), one(2)),
            "zero2": (one(100, np.uint8), one(3, np.int8), one(0, np.uint8)),
        },
        "float",
    ),
    "codes spelled out": Pattern(
        "float[4,6] x",
        "_f = Mul(x, {far}) _d = Div(_f, {step}) _r = {whole}(_d) {kept} y = Cast <to = 1> (_q)",
        {
            "far": (one(40),),
            "step": (_STEP, one(0.3), one(1)),
            "whole": ("Round", "Floor", "Ceil"),
            "kept": (
                "_c = Clip(_r, {a}, {b}) _q = Cast <to = 3> (_c)",
                "_c = Clip(_r, {a1}, {b}) _q = Cast <to = 3> (_c)",
                "_c = Clip(_r, {a}, {b1}) _q = Cast <to = 3> (_c)",
                "_c = Clip(_r, {low}, {high}) _q = Cast <to = 3> (_c)",
                "_c = Clip(_r, {zero}, {b}) _q = Cast <to = 3> (_c)",
                "_c = Clip(_r, {zero}, {most}) _q = Cast <to = 2> (_c)",
                "_c = Clip(_r, {zero}, {b}) _q = Cast <to = 2> (_c)",
                "_c = Clip(_r, {high}, {most}) _q = Cast <to = 2> (_c)",
            ),
            "a": (one(-128),),
            "b": (one(127),),
            "a1": (one(-127),),
            "b1": (one(126),),
            "low": (one(-8),),
            "high": (one(7),),
            "zero": (one(0),),
            "most": (one(255),),
        },
    ),
    "codes that are made again": Pattern(
        "float[3,4] x, uint8[3,4] c",
        "_a = {bent} _q = QuantizeLinear(_a, {step}, {zero})"
        " _b = DequantizeLinear(_q, {step2}, {zero2}) y = {end}",
        {
            "bent": ("Relu(x)", "Identity(x)", "Clip(x, {low}, {high})", "Neg(x)"),
            "low": (one(0), one(-1)),
            "high": (one(6), one(1)),
            "step": (_STEP, one(0.5)),
            "zero": (one(0, np.uint8), one(0, np.int8), one(7, np.uint8), one(-128, np.int8)),
            "step2": (_STEP, one(0.25)),
            "zero2": (one(0, np.uint8), one(0, np.int8), one(7, np.uint8), one(-128, np.int8)),
            "end": ("Identity(_b)", "Relu(_b)", "Add(_b, x)", "Max(_b, {low})"),
        },
    ),
    "codes of windows": Pattern(
        "uint8[1,2,4,4] x",
        "_a = DequantizeLinear(x, {step}, {zero}) y = {window}",
        {
            "step": (_STEP,),
            "zero": (_ZERO, one(90, np.uint8), one(0, np.uint8)),
            "window": (
                "MaxPool <kernel_shape = [2,2]> (_a)",
                "MaxPool <kernel_shape = [2,2], pads = [1,0,0,1]> (_a)",
                "AveragePool <kernel_shape = [2,2], pads = [1,0,0,1], count_include_pad = 1> (_a)",
                "Conv <pads = [1,1,1,1]> (_a, {kernel})",
                "Pad(_a, {sides})",
                "Pad(_a, {sides}, {fill})",
                'Resize <mode = "nearest"> (_a, , {factors})',
                "GlobalAveragePool(_a)",
            ),
            "kernel": (np.resize(row(1, -2, 0.5, 3, 0.25), (2, 2, 3, 3)),),
            "sides": (whole(0, 0, 1, 0, 0, 0, 0, 2),),
            "fill": (one(1.5),),
            "factors": (row(1, 1, 2, 2),),
        },
    ),
    "whole numbers that are weighed": Pattern(
        "float[3,4] x",
        "_q, _s, _z = DynamicQuantizeLinear(x) _i = {product} _f = Cast <to = 1> (_i)"
        " _m = Mul(_s, {step}) _g = Mul(_f, _m) y = Add(_g, {bias})",
        {
            "product": (
                "MatMulInteger(_q, {codes}, _z, {zeros})",
                "MatMulInteger(_q, {codes}, _z)",
                "MatMulInteger(_q, {codes})",
            ),
            "codes": (np.resize(np.array([3, -7, 1, 9, -128, 127, 5], np.int8), (4, 4)),),
            "zeros": (one(0, np.int8), one(9, np.int8), np.array([0, 3, -7, 9], np.int8)),
            "step": (one(0.05), row(0.05, 0.1, 0.2, 0.3)),
            "bias": (row(1, -2, 3, 0.5), one(1.5), row(1, -2, 3).reshape(3, 1)),
        },
    ),
}
"""Names of patterns to them."""
