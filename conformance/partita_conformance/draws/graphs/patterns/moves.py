"""Patterns of elements that move: what undoes what, and what does not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.graphs.patterns.pattern import Pattern, one, row, whole

_PERMS = ("[0,2,1]", "[1,2,0]", "[2,0,1]", "[2,1,0]", "[1,0,2]", "[0,1,2]")
PATTERNS: Mapping[str, Pattern] = {
    "turned there and back": Pattern(
        "float[2,3,4] x",
        "_a = Transpose <perm = {first}> (x) _b = {between} y = Transpose <perm = {then}> (_b)",
        {
            "first": _PERMS,
            "between": (
                "Relu(_a)",
                "Mul(_a, {factor})",
                "Softmax <axis = {axis}> (_a)",
                "ReduceSum(_a, {one})",
                "Concat <axis = {axis}> (_a, _a)",
                "Slice(_a, {one}, {far}, {one})",
                "Pad(_a, {sides})",
                "CumSum(_a, {last})",
                "Gather <axis = {axis}> (_a, {order})",
                "Tile(_a, {times})",
            ),
            "axis": ("-1", "0", "1"),
            "factor": (
                one(2),
                row(1, -2, 3),
                row(1, -2, 3, 4).reshape(4, 1),
                row(1, -2).reshape(2, 1, 1),
            ),
            "one": (whole(1), whole(-1), whole(0)),
            "far": (whole(2**40),),
            "last": (one(2, np.int64), one(-2, np.int64)),
            "order": (whole(1, 0), whole(-1, 0, 0)),
            "times": (whole(1, 2, 1), whole(2, 1, 3)),
            "sides": (whole(0, 1, 0, 2, 0, 0), whole(1, 0, 0, 0, 1, 3)),
            "then": _PERMS,
        },
    ),
    "turned and padded": Pattern(
        "float[2,3,4] x",
        "_a = {turned} y = {padded}",
        {
            "turned": (
                "Transpose <perm = {perm}> (x)",
                "Pad <mode = {mode}> (x, {sides}, {fill}, {axes})",
            ),
            "padded": (
                "Pad <mode = {mode}> (_a, {sides}, {fill}, {axes})",
                "Transpose <perm = {perm}> (_a)",
            ),
            "perm": _PERMS[1:],
            "mode": ('"constant"', '"edge"', '"reflect"'),
            "sides": (whole(1, 2), whole(0, 1, 2, 1), whole(1, 0, 0, 1, 1, 2)),
            "fill": (one(0), one(1.5)),
            "axes": (whole(1), whole(0), whole(-1), whole(2, 0), whole(0, 1), whole(2, 1, 0)),
        },
        opset=18,
    ),
    "parts that are joined": Pattern(
        "float[2,6] x, float[2,6] z",
        "_a = Slice(x, {from1}, {to1}, {axis}, {step}) _b = Slice({of}, {from2}, {to2}, {axis})"
        " y = {joined}",
        {
            "of": ("x", "z"),
            "from1": (whole(0), whole(1), whole(-6)),
            "to1": (whole(3), whole(2), whole(-3)),
            "from2": (whole(3), whole(2), whole(4), whole(-3)),
            "to2": (whole(6), whole(2**40), whole(5), whole(-1)),
            "axis": (whole(1), whole(-1)),
            "step": (whole(1), whole(2)),
            "joined": ("Concat <axis = 1> (_a, _b)", "Concat <axis = -1> (_b, _a)", "Add(_a, _b)"),
        },
    ),
    "parts that are put back": Pattern(
        "float[6,6] x, float[6,6] z",
        "_a, _b, _c = Split <axis = {axis}> (x, {parts}) y = Concat <axis = {axis2}> ({order})",
        {
            "axis": ("1", "0", "-1"),
            "axis2": ("1", "0", "-2"),
            "parts": (whole(2, 2, 2), whole(1, 2, 3), whole(3, 1, 2)),
            "order": ("_a, _b, _c", "_a, _c, _b", "_a, _b", "_a, _b, _b", "_a, _b, _c, z", "_b"),
        },
    ),
    "a part of what was joined": Pattern(
        "float[3,4] x, float[3,4] z",
        "_a = Concat <axis = {axis}> ({order}) y = {part}",
        {
            "axis": ("1", "0"),
            "order": ("x, z", "z, x", "x, x", "x, {row}", "x, z, x"),
            "row": (np.resize(row(1, -2, 3), (3, 2)),),
            "part": (
                "Slice(_a, {from}, {to}, {along})",
                "Gather <axis = 1> (_a, {places})",
                "ReduceSum(_a, {along})",
                "ReduceMax <axes = [0]> (_a)",
                "Transpose(_a)",
                "MatMul(z, {weight})",
            ),
            "from": (whole(0), whole(4), whole(2), whole(-4)),
            "to": (whole(4), whole(8), whole(6), whole(2**40)),
            "along": (whole(1), whole(0)),
            "places": (whole(0, 1, 2, 3), whole(3, -1, 0), one(-1, np.int64)),
            "weight": (np.ones((4, 2), np.float32),),
        },
    ),
    "places of places": Pattern(
        "float[4,5] x, int64[2,3] i",
        "_a = {first} y = {then}",
        {
            "first": (
                "Gather <axis = 0> (x, {places})",
                "Gather <axis = 1> (x, {places})",
                "Slice(x, {from}, {to}, {along}, {step})",
                "Transpose(x)",
                "GatherElements <axis = 1> (x, {each})",
                "Reshape(x, {shape})",
                "Unsqueeze(x, {along})",
            ),
            "places": (whole(2, 0, -1), whole(1, 2, 3), whole(-1, -2, 0)),
            "from": (whole(1), whole(-2), whole(0)),
            "to": (whole(4), whole(2**40), whole(-1)),
            "along": (whole(0), whole(1)),
            "step": (whole(1), whole(2)),
            "each": (np.array([[0, 1, -1], [2, 2, 0], [1, 4, 3], [-5, 0, 2]], np.int64),),
            "shape": (whole(2, 10), whole(-1, 4)),
            "then": (
                "Gather <axis = 0> (_a, {places2})",
                "Gather <axis = -1> (_a, {places2})",
                "Slice(_a, {from2}, {to2}, {along2}, {step2})",
                "GatherElements <axis = 0> (_a, {each2})",
                "ReduceSum(_a, {along2})",
                "Expand(_a, {wide})",
            ),
            "places2": (whole(0, 1), whole(-1, 0), one(1, np.int64), one(-1, np.int64)),
            "from2": (whole(0), whole(1), whole(-1)),
            "to2": (whole(2), whole(2**40), whole(-(2**40))),
            "along2": (whole(0), whole(1), whole(-1)),
            "step2": (whole(1), whole(-1), whole(2)),
            "each2": (np.array([[0, 1, -1], [-1, 0, 1]], np.int64),),
            "wide": (whole(2, 1, 1),),
        },
    ),
    "sizes that grow": Pattern(
        "float[3,1] x, float[3,4] z, float[1,4] r",
        "_a = {grown} y = {read}",
        {
            "grown": (
                "Expand(x, {sizes})",
                "Tile(x, {times})",
                "Concat <axis = 1> (x, x)",
                "Unsqueeze(x, {axis})",
                "Expand(r, {sizes})",
                "Squeeze(x, {last})",
            ),
            "sizes": (whole(3, 4), whole(2, 3, 1), whole(1, 4), whole(1)),
            "times": (whole(1, 4),),
            "weight": (np.resize(row(1, -2, 3), (4, 2)),),
            "axis": (whole(0), whole(2), whole(-1)),
            "last": (whole(1), whole(-1)),
            "read": (
                "Add(_a, z)",
                "Mul(z, _a)",
                "Sub(_a, x)",
                "Add(_a, r)",
                "ReduceSum(_a, {last})",
                "Div(z, _a)",
                "MatMul(_a, {weight})",
                "Transpose(_a)",
            ),
        },
    ),
    "blocks of an image": Pattern(
        "float[1,4,4,6] x",
        "_a = Reshape(x, {blocks}) _b = Transpose <perm = {turned}> (_a) y = Reshape(_b, {back})",
        {
            "blocks": (
                whole(1, 4, 2, 2, 3, 2),
                whole(1, 2, 2, 1, 4, 6),
                whole(1, 2, 2, 4, 2, 3),
                whole(1, 4, 2, 2, 2, 3),
            ),
            "turned": ("[0,1,3,5,2,4]", "[0,3,5,1,2,4]", "[0,3,4,1,5,2]", "[0,1,2,4,3,5]"),
            "back": (whole(1, 16, 2, 3), whole(1, 1, 8, 12), whole(4, 4, 6), whole(1, -1, 2, 3)),
        },
    ),
    "depths and blocks": Pattern(
        "float[1,4,4,4] x",
        "_a = {first} _b = {between} y = {then}",
        {
            "first": (
                "SpaceToDepth <blocksize = 2> (x)",
                'DepthToSpace <blocksize = 2, mode = "DCR"> (x)',
                'DepthToSpace <blocksize = 2, mode = "CRD"> (x)',
                "Transpose <perm = [0,2,3,1]> (x)",
                "Relu(x)",
            ),
            "between": ("Identity(_a)", "Relu(_a)", "Mul(_a, {factor})"),
            "factor": (one(2), row(1, -2)),
            "then": (
                'DepthToSpace <blocksize = 2, mode = "DCR"> (_b)',
                'DepthToSpace <blocksize = 2, mode = "CRD"> (_b)',
                "DepthToSpace <blocksize = 2> (_b)",
                "SpaceToDepth <blocksize = 2> (_b)",
                "Transpose <perm = [0,3,1,2]> (_b)",
            ),
        },
    ),
    "rows that are written": Pattern(
        "float[4,3] x, float[2,3] u",
        "_a = {written} y = {read}",
        {
            "written": (
                "ScatterND(x, {rows}, u)",
                "ScatterND(x, {cells}, {numbers})",
                "ScatterElements <axis = 0> (x, {each}, u)",
                "ScatterElements <axis = 1> (x, {each2}, {numbers2})",
            ),
            "rows": (
                np.array([[1], [2]]),
                np.array([[-1], [0]]),
                np.array([[3], [1]]),
                np.array([[0], [1]]),
            ),
            "cells": (np.array([[0, 1], [3, -1]]),),
            "numbers": (row(7, 8),),
            "each": (np.array([[0, 1, 2], [-1, 3, 0]]),),
            "each2": (np.array([[0], [2], [1], [-1]]),),
            "numbers2": (row(1, 2, 3, 4).reshape(4, 1),),
            "read": ("Add(_a, x)", "Identity(_a)", "Gather <axis = 0> (_a, {back})", "Neg(_a)"),
            "back": (whole(1, 2), whole(-1)),
        },
    ),
    "axes of one": Pattern(
        "float[1,3,1,2] x",
        "_a = {first} _b = {between} y = {then}",
        {
            "first": (
                "Squeeze(x, {axes})",
                "Squeeze(x)",
                "Unsqueeze(x, {new})",
                "ReduceSum <keepdims = 0> (x, {axes})",
                "Flatten <axis = 2> (x)",
            ),
            "axes": (whole(0), whole(2), whole(-2, 0), whole(-4)),
            "new": (whole(0), whole(-1), whole(4, 1), whole(1, 2)),
            "between": ("Identity(_a)", "Relu(_a)", "Add(_a, {row})"),
            "row": (row(1, -2), row(1, -2, 3).reshape(3, 1, 1)),
            "then": (
                "Unsqueeze(_b, {axes2})",
                "Squeeze(_b, {first0})",
                "Squeeze(_b)",
                "Reshape(_b, {shape})",
                "Transpose(_b)",
            ),
            "axes2": (whole(0), whole(2), whole(-1), whole(0, 2)),
            "first0": (whole(0),),
            "shape": (whole(1, 3, 1, 2), whole(0, -1), whole(3, 0, -1)),
        },
    ),
}
"""Names of patterns to them."""
