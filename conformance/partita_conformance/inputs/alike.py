"""Families of models that differ in one thing only, down to the name of the graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from partita_conformance.inputs.models import Array, Sample, parse

_SIZES = {"N": 3, "M": 3}

_TEXTS: Mapping[str, tuple[str, ...]] = {
    "what reads what": (
        "(float[3,3] a, float[3,3] b) => (float[3,3] y) { c = Sub(a, b) y = Mul(c, a) }",
        "(float[3,3] a, float[3,3] b) => (float[3,3] y) { c = Sub(a, b) y = Mul(c, b) }",
        "(float[3,3] a, float[3,3] b) => (float[3,3] y) { c = Sub(b, a) y = Mul(c, a) }",
        "(float[3,3] a, float[3,3] b) => (float[3,3] y) { c = Sub(a, a) y = Mul(b, c) }",
        "(float[3,3] b, float[3,3] a) => (float[3,3] y) { c = Sub(a, b) y = Mul(c, a) }",
    ),
    "what comes out": (
        "(float[3,3] x) => (float[3,3] y, float[3,3] z) { y = Neg(x) z = Add(y, y) }",
        "(float[3,3] x) => (float[3,3] z, float[3,3] y) { y = Neg(x) z = Add(y, y) }",
        "(float[3,3] x) => (float[3,3] z) { y = Neg(x) z = Add(y, y) }",
        "(float[3,3] x) => (float[3,3] y) { y = Neg(x) z = Add(y, y) }",
        "(float[3,3] x) => (float[3,3] y, float[3,3] x, float[3,3] z) { y = Neg(x) z = Add(y, y) }",
    ),
    "names": (
        "(float[3,3] a, float[3,3] b) => (float[3,3] y) { y = Sub(a, b) }",
        "(float[3,3] b, float[3,3] a) => (float[3,3] y) { y = Sub(b, a) }",
        "(float[3,3] A, float[3,3] a) => (float[3,3] y) { y = Sub(A, a) }",
        "(float[3,3] a, float[3,3] b) => (float[3,3] Y) { Y = Sub(a, b) }",
    ),
    "shapes": tuple(
        f"(float[{dims}] x) => (float[{dims}] y) {{ y = Softmax <axis = 0> (x) }}"
        for dims in ("3,3", "4,4", "9", "1,9", "9,1", "N,3", "3,N", "N,M", "3,3,1")
    ),
    "element types": tuple(
        f"({kind}[3,3] x) => ({kind}[3,3] y) {{ y = Add(x, x) }}"
        for kind in ("float", "double", "float16", "bfloat16", "int32", "int64", "uint8", "int8")
    ),
    "types of results": tuple(
        f"(float[3,3] x) => ({kind}[3,3] y) {{ y = Cast <to = {number}> (x) }}"
        for kind, number in (("double", 11), ("int32", 6), ("int64", 7), ("float", 1), ("bool", 9))
    ),
    "a number": tuple(
        f"(float[3,3] x) => (float[3,3] y) {{ y = LeakyRelu <alpha = {alpha}> (x) }}"
        for alpha in ("0.25", "0.5", "2.5", "-0.25", "2500000.0", "2500040.0")
    ),
    "an axis": tuple(
        f"(float[3,3] x) => (float[3,3] y) {{ y = Softmax{axis} (x) }}"
        for axis in ("", " <axis = 0>", " <axis = 1>", " <axis = -2>")
    ),
    "numbers in a row": tuple(
        f"(float[3,3,3] x) => (float[3,3,3] y) {{ y = Transpose{perm} (x) }}"
        for perm in ("", " <perm = [0,2,1]>", " <perm = [1,0,2]>", " <perm = [1,2,0]>")
    ),
    "a word": tuple(
        f"(float[1,8,3,3] x) => (float[1,2,6,6] y) {{ y = DepthToSpace <blocksize = 2{mode}> (x) }}"
        for mode in ("", ', mode = "DCR"', ', mode = "CRD"')
    ),
    "a constant": tuple(
        "(float[3,3] x) => (float[3,3] y)"
        f" {{ c = Constant <value_float = {number}> () y = Mul(x, c) }}"
        for number in ("0.5", "2.0", "-2.0", "2.0000002")
    ),
    "a constant tensor": tuple(
        "(float[3,3] x) => (float[3,3] y)"
        f" {{ c = Constant <value = float[3] {{{row}}}> () y = Mul(x, c) }}"
        for row in ("1, 2, 3", "1, 2, -3", "3, 2, 1")
    ),
    "optional inputs": (
        "(float[3,3] x, float low) => (float[3,3] y) { y = Clip(x, low) }",
        "(float[3,3] x, float low) => (float[3,3] y) { y = Clip(x, , low) }",
        "(float[3,3] x, float low) => (float[3,3] y) { y = Clip(x, low, low) }",
    ),
    "branches": tuple(
        "(float[3,3] x, bool c) => (float[3,3] y) { y = If (c) <"
        f" then_branch = t () => (float[3,3] a) {{ a = {one}(x) }},"
        f" else_branch = e () => (float[3,3] b) {{ b = {other}(x) }}> }}"
        for one, other in (("Neg", "Abs"), ("Abs", "Neg"), ("Neg", "Neg"), ("Neg", "Exp"))
    ),
    "loops": tuple(
        "(float[3,3] x, int64 n, bool c) => (float[3,3] y) { y = Loop (n, c, x) <"
        " body = r (int64 i, bool p, float[3,3] s) => (bool q, float[3,3] t) {"
        f" q = Identity(p) t = {step} }}> }}"
        for step in ("Add(s, s)", "Add(s, x)", "Sub(s, x)", "Neg(s)")
    ),
}
"""Texts of models, by what tells them apart."""

_ROW = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
_LARGE = 48


def _with(text: str, **weights: Array) -> onnx.ModelProto:
    return parse(f"g {text}", weights)


def _weighted() -> Iterator[tuple[str, list[onnx.ModelProto]]]:
    """Families whose members differ in what does not stand in their text."""
    plain = "(float[3,3] x) => (float[3,3] y) { y = Add(x, w) }"
    rows = {"as they are": _ROW, "turned": _ROW.T, "reversed": _ROW[::-1], "negative": -_ROW}
    yield "weights", [_with(plain, w=np.ascontiguousarray(row)) for row in rows.values()]
    yield (
        "shapes of weights",
        [_with(plain, w=_ROW[:1].reshape(dims)) for dims in ((3,), (1, 3), (3, 1))],
    )
    square = f"(float[{_LARGE},{_LARGE}] x) => (float[{_LARGE},{_LARGE}] y) {{ y = Add(x, w) }}"
    places = np.random.default_rng(2).choice(_LARGE * _LARGE, 8, replace=False)
    yield "one element of a weight", [_with(square, w=_all_but(int(n))) for n in (*places, -1)]
    two = "(float[3,3] x) => (float[3,3] y) { a = Mul(x, v) y = Add(a, w) }"
    pairs = ((_ROW, -_ROW), (-_ROW, _ROW), (_ROW, _ROW), (-_ROW, -_ROW))
    yield "which weight is which", [_with(two, v=v, w=w) for v, w in pairs]
    shape = "(float[3,4] x) => (float[A,B] y) { y = Reshape(x, s) }"
    sizes = ((2, 6), (6, 2), (4, 3), (3, -1), (12, 1))
    yield "a shape that is a weight", [_with(shape, s=np.array(one)) for one in sizes]
    places_of = "(float[3,3] x) => (float[2,3] y) { y = Gather(x, i) }"
    kinds = ((0, 1), (1, 0), (2, 2), (-1, 0))
    yield "indices that are weights", [_with(places_of, i=np.array(one)) for one in kinds]
    given = "(float[3,3] x, float[3,3] w) => (float[3,3] y) { y = Add(x, w) }"
    yield "a weight or an input", [_with(plain, w=_ROW), _with(given), _with(plain, w=_ROW * 2)]
    scalar = "(float[3,3] x) => (float[3,3] y) { y = Mul(x, w) }"
    numbers = (2, 0.5, -0.5, np.nextafter(np.float32(2), np.float32(3)))
    yield "a number that is a weight", [_with(scalar, w=np.array(n, np.float32)) for n in numbers]
    body = (
        "(float[3,3] x, bool c) => (float[3,3] y) { y = If (c) <"
        " then_branch = t () => (float[3,3] a) { a = Add(x, w) },"
        " else_branch = e () => (float[3,3] b) { b = Mul(x, w) }> }"
    )
    yield "a weight that only bodies read", [_with(body, w=row) for row in (_ROW, -_ROW)]


def _all_but(place: int) -> Array:
    weight = np.full(_LARGE * _LARGE, 0.5, np.float32)
    if place >= 0:
        weight[place] = 3
    return weight.reshape(_LARGE, _LARGE)


def families() -> Iterator[tuple[str, list[Sample]]]:
    """What tells the members apart, and the members, each with sizes for its symbols."""
    texts = ((what, [_with(text) for text in some]) for what, some in _TEXTS.items())
    for what, protos in itertools.chain(texts, _weighted()):
        yield what, [Sample(f"{what}, {n + 1}", proto, _SIZES) for n, proto in enumerate(protos)]
