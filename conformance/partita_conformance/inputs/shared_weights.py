"""Models in which several operations read one weight, which a compiler may transform for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx

from partita_conformance.inputs.models import Array, Sample, parse


def _numbers(*shape: int) -> Array:
    count = int(np.prod(shape))
    return np.asarray(0.5 + (np.arange(count) * 5 % 13) / 4, np.float32).reshape(shape)


class Family(NamedTuple):
    """Uses of one weight ``w`` beside an input ``x``.

    Attributes:
        shape: Of ``x``.
        uses: Operations that read the weight, by what they are; ``{y}`` stands for the result, and
            begins the names of what lies between.
        weights: What they read, with ``w``.
    """

    shape: Sequence[int]
    uses: Mapping[str, str]
    weights: Mapping[str, Array]


FAMILIES: Mapping[str, Family] = {
    "matrix": Family(
        (4, 4),
        {
            "added": "{y} = Add(x, w)",
            "multiplied": "{y} = MatMul(x, w)",
            "multiplied from the left": "{y} = MatMul(w, x)",
            "turned by Gemm": "{y} = Gemm <transB = 1> (x, w)",
            "turned by Gemm on the left": "{y} = Gemm <transA = 1> (w, x)",
            "halved by Gemm": "{y} = Gemm <alpha = 0.5> (x, w)",
            "doubled by Gemm": "{y} = Gemm <beta = 2.0> (x, m, w)",
            "multiplied and scaled": "{y}a = MatMul(x, w) {y} = Mul({y}a, r)",
            "multiplied and divided": "{y}a = MatMul(x, w) {y} = Div({y}a, two)",
            "turned": "{y}a = Transpose(w) {y} = Sub(x, {y}a)",
            "turned and multiplied": "{y}a = Transpose(w) {y} = MatMul(x, {y}a)",
            "negative": "{y}a = Neg(w) {y} = Mul(x, {y}a)",
            "cast": "{y}a = Cast <to = 10> (w) {y}b = Cast <to = 1> ({y}a) {y} = Add(x, {y}b)",
            "reshaped": "{y}a = Reshape(w, square) {y} = Mul(x, {y}a)",
            "chosen": "{y}a = Gather <axis = 1> (w, swapped) {y} = MatMul(x, {y}a)",
        },
        {
            "w": _numbers(4, 4),
            "m": _numbers(4, 4)[::-1].copy(),
            "r": _numbers(4),
            "two": np.array(2, np.float32),
            "swapped": np.array([2, 3, 0, 0], np.int64),
            "square": np.array([4, -1], np.int64),
        },
    ),
    "kernel": Family(
        (1, 4, 5, 5),
        {
            "convolved": "{y} = Conv(x, w)",
            "convolved with a bias": "{y} = Conv(x, w, r)",
            "convolved and normalized": "{y}a = Conv(x, w)"
            " {y} = BatchNormalization({y}a, r, r, r, r)",
            "normalized and convolved": "{y}a = BatchNormalization(x, r, r, r, r)"
            " {y} = Conv({y}a, w)",
            "convolved and scaled": "{y}a = Conv(x, w) {y} = Mul({y}a, c)",
            "scaled and convolved": "{y}a = Mul(x, c) {y} = Conv({y}a, w)",
            "convolved with strides": "{y} = Conv <strides = [2, 2]> (x, w)",
            "convolved in groups": "{y}a = Concat <axis = 1> (x, x)"
            " {y} = Conv <group = 2> ({y}a, w)",
            "convolved in groups with a bias": "{y}a = Concat <axis = 1> (x, x)"
            " {y} = Conv <group = 2> ({y}a, w, r)",
            "spread": "{y} = ConvTranspose(x, w)",
            "flat": "{y}a = Reshape(w, columns) {y}b = Reshape(x, rows) {y} = MatMul({y}b, {y}a)",
        },
        {
            "w": _numbers(4, 4, 2, 2),
            "r": _numbers(4),
            "c": _numbers(4, 1, 1),
            "columns": np.array([4, 16], np.int64),
            "rows": np.array([25, 4], np.int64),
        },
    ),
    "row": Family(
        (3, 4),
        {
            "added": "{y} = Add(x, w)",
            "multiplied": "{y} = Mul(x, w)",
            "taken away": "{y} = Sub(x, w)",
            "divided by": "{y} = Div(x, w)",
            "a bias": "{y} = Gemm(x, m, w)",
            "a bias that is halved": "{y} = Gemm <beta = 0.5> (x, m, w)",
            "added to a product": "{y}a = MatMul(x, m) {y} = Add({y}a, w)",
            "a scale": "{y} = LayerNormalization(x, w, w)",
            "a scale of channels": "{y} = BatchNormalization(x, w, w, w, w)",
            "a slope": "{y} = PRelu(x, w)",
            "a column": "{y}a = Unsqueeze(w, last) {y} = MatMul(x, {y}a)",
        },
        {"w": _numbers(4), "m": _numbers(4, 4), "last": np.array([1], np.int64)},
    ),
    "shape": Family(
        (8, 1),
        {
            "one to reshape to": "{y} = Reshape(x, w)",
            "one to reach": "{y}a = ReduceMax <keepdims = 1> (x) {y} = Expand({y}a, w)",
            "one to fill": "{y}a = ConstantOfShape(w) {y} = Add({y}a, one)",
            "numbers of copies": "{y} = Tile(x, w)",
            "ends": "{y} = Slice(x, start, w)",
            "places": "{y} = Gather(x, w)",
            "numbers": "{y}a = Cast <to = 1> (w) {y} = Add(x, {y}a)",
            "numbers that are computed with": "{y}a = Mul(w, w) {y}b = Cast <to = 1> ({y}a)"
            " {y} = Add(x, {y}b)",
            "one of two, of which one is turned": "{y}a = Gather(w, turned) {y} = Reshape(x, {y}a)",
        },
        {
            "w": np.array([4, 2], np.int64),
            "one": np.ones((4, 1), np.float32),
            "start": np.zeros(2, np.int64),
            "turned": np.array([1, 0], np.int64),
        },
    ),
}
"""Kinds of weights; the first use of each is the plain one, beside which each other is tried."""


def shared(name: str, taken: Callable[[onnx.ModelProto], bool]) -> Iterator[Sample]:
    """Models of a family: each use beside the plain one, before and behind it, and all together.

    Args:
        name: Of the family.
        taken: Whether a device takes a model of one use.
    """
    uses = [use for use in FAMILIES[name].uses if taken(_model(name, [use]))]
    for use in uses[1:]:
        yield Sample(f"a {name} that is {use} and {uses[0]}", _model(name, [use, uses[0]]))
        yield Sample(f"a {name} that is {uses[0]} and {use}", _model(name, [uses[0], use]))
    for order in (uses, uses[::-1]):
        if order:
            yield Sample(f"a {name} that is {', '.join(order)}", _model(name, order))


def _model(name: str, uses: Sequence[str]) -> onnx.ModelProto:
    family = FAMILIES[name]
    body = " ".join(family.uses[use].format(y=f"y{i}") for i, use in enumerate(uses))
    words = set("".join(c if c.isalnum() else " " for c in body).split())
    shape = ",".join(map(str, family.shape))
    outputs = ", ".join(f"float y{i}" for i in range(len(uses)))
    read = {n: array for n, array in family.weights.items() if n in words}
    proto = parse(f"shared (float[{shape}] x) => ({outputs}) {{ {body} }}", read)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto
