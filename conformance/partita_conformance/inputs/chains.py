"""Small models of a few operations that compilers like to rewrite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from partita_conformance.inputs.models import Array, Sample, parse


def _numbers(*shape: int, start: float = -1.0) -> Array:
    count = int(np.prod(shape))
    return np.asarray(start + (np.arange(count) * 7 % 11) / 4, np.float32).reshape(shape)


_TEXTS: Mapping[str, str] = {
    "zeros that broadcast": "float[3] x => float[2,3] y: y = Add(x, zeros)",
    "zeros that are taken away": "float[3] x => float[2,3] y: y = Sub(x, zeros)",
    "ones that broadcast": "float[3] x => float[2,3] y: y = Mul(x, ones)",
    "divided by ones": "float[3] x => float[2,3] y: y = Div(x, ones)",
    "power of ones": "float[3] x => float[2,3] y: y = Pow(x, ones)",
    "turned twice": "float[2,3,4] x => float[3,4,2] y, float[3,4,2] z:"
    " a = Transpose <perm = [2,0,1]> (x) y = Transpose <perm = [2,0,1]> (a)"
    " b = Transpose <perm = [1,0,2]> (x) z = Transpose <perm = [0,2,1]> (b)",
    "turned and reshaped": "float[2,3,4] x => float[6,4] y:"
    " a = Transpose <perm = [1,0,2]> (x) y = Reshape(a, six)",
    "reshaped twice": "float[2,3,4] x => float[6,4] y: a = Reshape(x, six) y = Reshape(a, keep)",
    "reshaped by a rest": "float[2,3,4] x => float[2,12] y, float[2,3,4] z:"
    " a = Reshape(x, row) y = Reshape(a, rest) b = Flatten(x) z = Reshape(b, cube)",
    "squeezed and back": "float[2,1,3] x => float[2,3,1] y:"
    " a = Squeeze(x, one) y = Unsqueeze(a, two)",
    "one axis more and another less": "float[2,1,3] x => float[1,2,3] y:"
    " a = Unsqueeze(x, zero) y = Squeeze(a, two)",
    "cast to integers and back": "float[2,3] x => float[2,3] y:"
    " a = Cast <to = 7> (x) y = Cast <to = 1> (a)",
    "cast to bytes and back": "int64[2,3] i => int64[2,3] y:"
    " m = Mul(i, big) a = Cast <to = 3> (m) y = Cast <to = 7> (a)",
    "cast to halves and back": "float[2,3] x => float[2,3] y:"
    " m = Mul(x, third) a = Cast <to = 10> (m) y = Cast <to = 1> (a)",
    "cast to truth and back": "float[2,3] x => float[2,3] y:"
    " a = Cast <to = 9> (x) y = Cast <to = 1> (a)",
    "slices of a slice": "float[2,7] x => float[2,3] y: a = Slice(x, one, eight, one)"
    " y = Slice(a, zero, six1, one, two)",
    "clipped after Relu": "float[2,3] x => float[2,3] y: a = Relu(x) y = Clip(a, low, high)",
    "clipped before Relu": "float[2,3] x => float[2,3] y: a = Clip(x, low, high) y = Relu(a)",
    "clipped twice": "float[2,3] x => float[2,3] y: a = Clip(x, low, high) y = Clip(a, high, low)",
    "Relu of Neg": "float[2,3] x => float[2,3] y: a = Neg(x) b = Relu(a) y = Neg(b)",
    "Abs of Neg": "float[2,3] x => float[2,3] y: a = Abs(x) b = Neg(a) c = Abs(b) y = Neg(c)",
    "constants first": "float[2,3] x => float[2,3] y, float[2,3] z, bool[2,3] t:"
    " y = Sub(third, x) z = Div(third, x) t = Greater(third, x)",
    "one input, other attributes": "float[2,3] x => float[2,3] y, float[2,3] z, float[2,3] w:"
    " y = LeakyRelu <alpha = 0.1> (x) z = LeakyRelu <alpha = 0.5> (x) w = LeakyRelu(x)",
    "one input, other axes": "float[3,3] x => float[3,3] y, float[3,3] z, float[3,3] w:"
    " y = Softmax <axis = 0> (x) z = Softmax <axis = 1> (x) w = Add(y, z)",
    "the same twice": "float[2,3] x => float[2,3] y, float[2,3] z: y = Exp(x) z = Exp(x)",
    "integers that are constants": "int64[3] i => int64[3] y:"
    " a = Add(long, long) b = Mul(a, minus) y = Add(b, i)",
    "a value in many places": "float[2,3] x => float[8,3] y:"
    " a = Abs(x) b = Neg(a) y = Concat <axis = 0> (a, b, a, a)",
    "joined in two ways": "float[2,3] x => float[4,6] y:"
    " a = Concat <axis = 1> (x, x) b = Neg(a) y = Concat <axis = 0> (b, a)",
    "parted and joined": "float[2,6] x => float[2,6] y:"
    " a, b = Split <axis = 1> (x) y = Concat <axis = 1> (b, a)",
    "places that begin and end as a range": "float[2,5] x => float[2,4] y, float[2,4] z:"
    " y = Gather <axis = 1> (x, swapped) z = Gather <axis = 1> (x, twice)",
    "places without values": "float[2,7] x => int64[2,3] i: v, i = TopK(x, three)",
    "padded for a convolution": "float[1,2,5,5] x => float[1,3,5,7] y:"
    " a = Pad(x, pads, third) y = Conv(a, kernel)",
    "padded for a pool": "float[1,2,5,5] x => float[1,2,6,8] y:"
    " a = Pad(x, pads) y = MaxPool <kernel_shape = [2,2]> (a)",
    "normalized after a convolution": "float[1,2,5,5] x => float[1,3,3,3] y:"
    " a = Conv(x, kernel, bias)"
    " y = BatchNormalization <epsilon = 0.01> (a, bias, bias2, mean, var)",
    "normalized before a convolution": "float[1,3,5,5] x => float[1,3,5,5] y:"
    " a = BatchNormalization(x, bias, bias2, mean, var) y = Conv <pads = [1,1,1,1]> (a, square)",
    "scaled after a convolution": "float[1,2,5,5] x => float[1,3,3,3] y:"
    " a = Conv(x, kernel, bias) b = Mul(a, channels) y = Add(b, columns)",
    "a convolution and its input": "float[1,3,5,5] x => float[1,3,5,5] y:"
    " a = Conv <pads = [1,1,1,1]> (x, square) b = Add(x, a) y = Relu(b)",
    "a product and a column": "float[3,2] x => float[3,3] y:"
    " a = MatMul(x, matrix) y = Add(a, column)",
    "a product and a row": "float[3,2] x => float[3,3] y: a = MatMul(x, matrix) y = Add(bias, a)",
    "a product that grows": "float[2] x => float[3,3] y: a = MatMul(x, matrix) y = Add(a, column)",
    "a product that is turned": "float[2,3] x => float[3,3] y:"
    " a = Transpose(x) b = MatMul(a, matrix) y = Transpose(b)",
    "Gemm of what was turned": "float[2,3] x => float[3,3] y:"
    " a = Transpose(x) b = Gemm <alpha = 0.5, beta = 2.0> (a, matrix, bias) y = Sub(b, column)",
    "a product that is read and activated": "float[3,2] x => float[3,3] a, float[3,3] y:"
    " a = MatMul(x, matrix) y = Relu(a)",
    "a sum that is read and activated": "float[2,3] x => float[2,3] a, float[2,3] y:"
    " a = Add(x, third) y = Relu(a)",
    "a convolution that is read, scaled and activated": "float[1,2,5,5] x => float[1,3,3,3] a,"
    " float[1,3,3,3] b, float[1,3,3,3] y:"
    " a = Conv(x, kernel, bias) b = Mul(a, channels) y = Relu(b)",
    "a convolution that is read and normalized": "float[1,2,5,5] x => float[1,3,3,3] a,"
    " float[1,3,3,3] y: a = Conv(x, kernel, bias)"
    " y = BatchNormalization <epsilon = 0.01> (a, bias, bias2, mean, var)",
    "turned twice and read between": "float[2,3,4] x => float[4,2,3] a, float[3,4,2] y:"
    " a = Transpose <perm = [2,0,1]> (x) y = Transpose <perm = [2,0,1]> (a)",
    "a gate": "float[2,3] x => float[2,3] y: a = Sigmoid(x) b = Mul(x, a) y = Mul(b, a)",
    "a gate of something else": "float[2,3] x, float[2,3] z => float[2,3] y, float[2,3] w:"
    " a = Sigmoid(z) y = Mul(x, a) b = Sigmoid(x) w = Mul(b, z)",
    "zeros that are multiplied": "float[2,3] x => float[2,3] y, float[2,3] z:"
    " y = Mul(x, zeros) z = Mul(zeros, x)",
    "taken from itself and divided by itself": "float[2,3] x => float[2,3] y, float[2,3] z:"
    " y = Sub(x, x) z = Div(x, x)",
    "the contrary of comparisons": "float[2,3] x, float[2,3] z => bool[2,3] y, bool[2,3] w,"
    " bool[2,3] u: a = Greater(x, z) y = Not(a) b = Less(x, z) w = Not(b)"
    " c = Equal(x, z) u = Not(c)",
    "logarithms and powers of e": "float[2,3] x => float[2,3] y, float[2,3] z:"
    " a = Log(x) y = Exp(a) b = Exp(x) z = Log(b)",
    "squares of roots": "float[2,3] x => float[2,3] y: a = Sqrt(x) y = Mul(a, a)",
    "the contrary of the contrary": "float[2,3] x => float[2,3] y, float[2,3] z:"
    " a = Reciprocal(x) y = Reciprocal(a) b = Neg(x) z = Sub(b, b)",
    "the greatest of the least": "float[2,3] x => float[2,3] y, float[2,3] z:"
    " a = Min(x, third) y = Max(a, x) b = Max(x, x) z = Min(b, x)",
    "parts of what was joined": "float[2,3] x, float[2,3] z => float[2,5] y, float[2,2] w,"
    " float[2,3] u, float[2,3] v: a = Concat <axis = 1> (x, z) y = Slice(a, zero, five1, one)"
    " w = Slice(a, two, four1, one) u = Slice(a, three, six1, one) v = Slice(a, zero, three, one)",
    "the start of what was joined": "float[2,3] x, float[2,3] z => float[2,5] y:"
    " a = Concat <axis = 1> (x, z) y = Slice(a, zero, five1, one)",
    "joined of what was turned": "float[2,3] x, float[2,3] z => float[6,2] y:"
    " a = Transpose <perm = [1,0]> (x) b = Transpose <perm = [1,0]> (z)"
    " y = Concat <axis = 0> (a, b)",
    "shifted and scaled": "float[2,3] x => float[2,3] y, float[2,3] z:"
    " a = Add(x, third) y = Mul(a, root) b = Mul(x, root) z = Add(b, third)",
    "divided twice": "float[2,3] x => float[2,3] y: a = Div(x, third) y = Div(a, root)",
    "branches with constants of one name": "float[2,3] x, bool t => float[2,3] y:"
    " y = If (t) <then_branch = p () => (float[2,3] b) { c = Constant <value_float = 2.5> ()"
    " b = Mul(x, c) }, else_branch = q () => (float[2,3] d)"
    " { c = Constant <value_float = -7.0> () d = Mul(x, c) }>",
    "many outputs": "float[2,3] x => "
    + ", ".join(f"float[2,3] y{n}" for n in range(40))
    + ": "
    + " ".join(f"y{n} = Add({f'y{n - 1}' if n else 'x'}, third)" for n in range(40)),
    "variance of rows": "float[3,3] x => float[3,3] y:"
    " a = ReduceMean <axes = [0]> (x) b = Sub(x, a) c = Mul(b, b) d = ReduceMean <axes = [0]> (c)"
    " e = Add(d, third) f = Sqrt(e) g = Div(b, f) h = Mul(g, column) y = Add(h, bias)",
    "bell curves": "float[2,3] x => float[2,3] y:"
    " a = Div(x, root) b = Erf(a) c = Add(b, unit) d = Mul(x, c) y = Mul(d, half)",
    "quantized and back": "float[2,3] x => float[2,3] y:"
    " a = QuantizeLinear(x, step, point) y = DequantizeLinear(a, step, point)",
    "a quantized product": "float[3,2] x => float[3,3] y:"
    " a = QuantizeLinear(x, step, point) b = DequantizeLinear(a, step, point)"
    " c = MatMul(b, matrix) d = QuantizeLinear(c, step, point)"
    " y = DequantizeLinear(d, step, point)",
    "quantized again with another point": "float[2,3] x => uint8[2,3] y, uint8[2,3] z:"
    " a = QuantizeLinear(x, step, point) b = DequantizeLinear(a, step, point)"
    " y = QuantizeLinear(b, step, origin) c = DequantizeLinear(a, step, point)"
    " z = QuantizeLinear(c, half, point)",
    "rectified and quantized": "float[2,3] x => uint8[2,3] y, uint8[2,3] z:"
    " a = Relu(x) y = QuantizeLinear(a, step, point) b = Clip(x, low, high)"
    " z = QuantizeLinear(b, step, point)",
    "quantized and compared": "float[2,3] x, float[2,3] z => uint8[2,3] y, float[3,2] w:"
    " a = QuantizeLinear(x, step, point) b = QuantizeLinear(z, step, origin)"
    " c = DequantizeLinear(a, step, point) d = DequantizeLinear(b, step, origin)"
    " e = Max(c, d) y = QuantizeLinear(e, step, point) f = Transpose(a)"
    " w = DequantizeLinear(f, step, point)",
    "products of matrices in either order": "float[3,3] x, float[3,3] z => float[3,3] y,"
    " float[3,3] w, float[3,3] v, float[3,3] u: y = MatMul(x, z) w = MatMul(z, x)"
    " v = Gemm <transA = 1> (x, z) u = Gemm <transA = 1> (z, x)",
    "squeezed of what turns out to be one": "float[N,3,M] x => float[] y, float[] z:"
    " y = Squeeze(x) a = Relu(x) z = Squeeze(a)",
    "sizes that are computed": "float[N,6] x => float[M,3] y:"
    " s = Shape(x) n = Gather(s, zero) t = Mul(n, two) u = Concat <axis = 0> (t, three)"
    " y = Reshape(x, u)",
    "chosen by what is not": "float[2,3] x => float[2,3] y:"
    " a = Greater(x, third) b = Not(a) y = Where(b, x, third)",
    "the root of squares": "float[2,3] x => float[2,3] y: a = Mul(x, x) y = Sqrt(a)",
    "logarithms of shares": "float[2,3] x => float[2,3] y: a = Softmax(x) y = Log(a)",
    "read in a body alone": "float[2,3] x, bool t => float[2,3] y: a = Exp(x)"
    " y = If (t) <then_branch = p () => (float[2,3] b) { b = Neg(a) },"
    " else_branch = q () => (float[2,3] c) { c = Add(a, a) }>",
    "left before its end": "float[3] x => float[3] y, float[K,3] z:"
    " y, z = Loop (five, truth, x) <body = r (int64 n, bool c, float[3] s)"
    " => (bool d, float[3] u, float[3] v)"
    " { u = Add(s, x) m = Cast <to = 7> (two0) d = Less(n, m) v = Neg(u) }>",
}
"""What invites to a rewrite that is wrong, and the model: ports, ``:``, and the operations."""

_WEIGHTS: Mapping[str, Array] = {
    "zeros": np.zeros((2, 3), np.float32),
    "ones": np.ones((2, 3), np.float32),
    "six": np.array([6, 4], np.int64),
    "keep": np.array([0, -1], np.int64),
    "row": np.array([1, 24], np.int64),
    "rest": np.array([2, -1], np.int64),
    "cube": np.array([0, 3, 4], np.int64),
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "two0": np.array(2, np.int32),
    "three": np.array([3], np.int64),
    "swapped": np.array([0, 2, 1, 3], np.int64),
    "twice": np.array([1, 1, 4, 4], np.int64),
    "four1": np.array([4], np.int64),
    "five1": np.array([5], np.int64),
    "six1": np.array([6], np.int64),
    "five": np.array(5, np.int64),
    "eight": np.array([8], np.int64),
    "truth": np.array(True),
    "big": np.array(37, np.int64),
    "third": np.array(1 / 3, np.float32),
    "half": np.array(0.5, np.float32),
    "unit": np.array(1, np.float32),
    "root": np.array(2**0.5, np.float32),
    "low": np.array(-0.5, np.float32),
    "high": np.array(0.25, np.float32),
    "long": np.array([2**53 + 1, 2**60 + 1, -(2**55) - 3], np.int64),
    "minus": np.array(-1, np.int64),
    "pads": np.array([0, 0, 1, 2, 0, 0, 1, 2], np.int64),
    "kernel": _numbers(3, 2, 3, 3),
    "square": _numbers(3, 3, 3, 3),
    "matrix": _numbers(2, 3),
    "bias": np.array([0.5, -1.25, 2], np.float32),
    "bias2": np.array([1.5, 0.25, -1], np.float32),
    "mean": np.array([0.1, -0.2, 0.3], np.float32),
    "var": np.array([0.5, 2, 0.01], np.float32),
    "channels": np.array([2, -0.5, 3], np.float32).reshape(3, 1, 1),
    "columns": np.array([2, -0.5, 3], np.float32),
    "column": np.array([[2], [-0.5], [3]], np.float32),
    "step": np.array(0.125, np.float32),
    "point": np.array(117, np.uint8),
    "origin": np.array(3, np.uint8),
}
"""What the models read beside their inputs."""


_SIZES = {"squeezed of what turns out to be one": {"N": 1, "M": 4}}
"""Sizes of dimensions with names, where they are not the usual ones."""

_OF_ELEMENTS = {
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Max",
    "Min",
    "Neg",
    "Abs",
    "Relu",
    "Clip",
    "Exp",
}
_OF_ELEMENTS |= {"Log", "Sqrt", "Sigmoid", "Reciprocal", "Greater", "Less", "Equal", "Not", "Where"}
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5, 88.5)


def special_feeds(sample: Sample) -> dict[str, Array] | None:
    """Inputs that are no numbers, infinite or zero, of a model that works on each element.

    ``None`` for other models, in which they would spread, or become any integer, and for Clip with
    one limit: past the other, engines let infinity pass or do not.
    """
    nodes = sample.proto.graph.node
    if not {node.op_type for node in nodes} <= _OF_ELEMENTS:
        return None
    if any(node.op_type == "Clip" and sum(map(bool, node.input)) < 3 for node in nodes):
        return None
    feeds = sample.feeds(5)
    if any(array.dtype.kind not in "fb" for array in feeds.values()):
        return None
    for turn, (name, array) in enumerate(feeds.items()):
        if array.dtype.kind == "f":
            pool = np.roll(np.array(_SPECIAL, array.dtype), 3 * turn)
            feeds[name] = np.resize(pool, array.shape)
    return feeds


_DEEP, _BROAD = 1200, 300
"""Operations one after another, more than Python calls may be nested; and side by side."""


def _deep() -> onnx.ModelProto:
    """As many operations as a network of many blocks has, each reading the one before."""
    kinds = ("Neg", "Abs", "Relu", "Neg")
    nodes = [
        helper.make_node(kinds[n % 4], [f"v{n}" if n else "x"], [f"v{n + 1}"]) for n in range(_DEEP)
    ]
    return _model(nodes, f"v{_DEEP}")


def _broad() -> onnx.ModelProto:
    """One value that many operations read, and one operation that reads them all."""
    names = [f"v{n}" for n in range(_BROAD)]
    nodes = [
        helper.make_node(("Neg", "Abs", "Relu")[n % 3], ["x"], [v]) for n, v in enumerate(names)
    ]
    return _model([*nodes, helper.make_node("Concat", names, ["y"], axis=0)], "y")


def _model(nodes: Sequence[onnx.NodeProto], output: str) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "chain", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chains() -> list[Sample]:
    """The models, each with the weights that it reads; the last ones are of many operations."""
    found = []
    for name, text in _TEXTS.items():
        ports, _, body = text.partition(":")
        inputs, _, outputs = ports.partition("=>")
        words = set("".join(c if c.isalnum() else " " for c in body).split())
        weights = {n: array for n, array in _WEIGHTS.items() if n in words}
        proto = parse(f"chain ({inputs}) => ({outputs}) {{ {body} }}", weights)
        found.append(Sample(name, proto, _SIZES.get(name, {"N": 4, "M": 8, "K": 3})))
    many = {"more than a thousand in a row": _deep(), "hundreds side by side": _broad()}
    return [*found, *(Sample(name, proto) for name, proto in many.items())]
