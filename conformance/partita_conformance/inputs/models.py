"""Small models that checks run: simple ones first, so that a device of few operators finds one."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

import partita

Array = np.ndarray[Any, Any]

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


@dataclass(frozen=True)
class Sample:
    """A model with inputs to feed.

    Attributes:
        name: What messages call it.
        proto: The model.
        sizes: Sizes for symbolic dimensions, where a check does not choose its own.
    """

    name: str
    proto: onnx.ModelProto = field(repr=False)
    sizes: dict[str, int] = field(default_factory=dict)

    def feeds(self, seed: int = 0, **sizes: int) -> dict[str, Array]:
        """Random inputs; the same for the same seed.

        Args:
            seed: Which ones.
            sizes: Sizes of symbolic dimensions.
        """
        rng = np.random.default_rng(seed)
        chosen = {**self.sizes, **sizes}
        return {
            value.name: random_array(
                rng,
                [d.dim_value or chosen[d.dim_param] for d in value.type.tensor_type.shape.dim]
                if value.type.tensor_type.shape.dim
                else [],
                helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
            )
            for value in self.proto.graph.input
        }


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> Array:
    """Numbers of every sign for floats, small ones for integers, both values for bool."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if kind.kind == "i":
        return np.asarray(rng.integers(-20, 21, shape)).astype(kind)
    if kind.kind == "u":
        return np.asarray(rng.integers(0, 41, shape)).astype(kind)
    return np.asarray(rng.standard_normal(shape)).astype(kind)


def parse(text: str, weights: dict[str, Array] | None = None) -> onnx.ModelProto:
    """A model from ONNX's textual form, with initializers added."""
    model = parser.parse_model(_HEADER + text)
    for name, array in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def beside(
    steps: Sequence[str], ports: Sequence[str], weights: dict[str, Array]
) -> onnx.ModelProto:
    """A model in which each of some operations makes an output.

    Args:
        steps: The operations, in ONNX's textual form.
        ports: Inputs with their types, of which those that are read are the model's.
        weights: Likewise.
    """
    lines = " ".join(f"y{number} = {step}" for number, step in enumerate(steps))
    outputs = ", ".join(f"float y{number}" for number in range(len(steps)))
    words = set(re.findall(r"\w+", lines))
    inputs = ", ".join(port for port in ports if port.split()[1] in words)
    read = {name: array for name, array in weights.items() if name in words}
    proto = parse(f"beside ({inputs}) => ({outputs}) {{ {lines} }}", read)
    for output in proto.graph.output:
        output.ClearField("type")
    return onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def _floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _plain() -> list[Sample]:
    mlp = parse(
        "mlp (float[4,8] x) => (float[4,5] y) { a = MatMul(x, w) b = Add(a, c) y = Relu(b) }",
        {"w": _floats(1, 8, 5), "c": _floats(2, 5)},
    )
    conv = parse(
        "conv (float[1,3,8,8] x) => (float[1,4,8,8] y) {"
        " a = Conv <pads = [1,1,1,1]> (x, w) y = Relu(a) }",
        {"w": _floats(1, 4, 3, 3, 3)},
    )
    affine = parse(
        "affine (float[4,6] x) => (float[4,6] y) { a = Mul(x, w) y = Add(a, c) }",
        {"w": _floats(1, 6) + 2, "c": _floats(2, 6)},
    )
    return [
        Sample("mlp", mlp),
        Sample("conv", conv),
        Sample("affine", affine),
        Sample("double", parse("double (float[4,6] x) => (float[4,6] y) { y = Add(x, x) }")),
        *(
            Sample(op.lower(), parse(f"one (float[4,6] x) => (float[4,6] y) {{ y = {op}(x) }}"))
            for op in ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp", "Softmax", "Identity")
        ),
    ]


def _dynamic() -> list[Sample]:
    mlp = parse(
        "rows (float[N,8] x) => (float[N,5] y) { a = MatMul(x, w) b = Add(a, c) y = Relu(b) }",
        {"w": _floats(1, 8, 5), "c": _floats(2, 5)},
    )
    affine = parse(
        "rows (float[N,6] x) => (float[N,6] y) { a = Mul(x, w) y = Add(a, c) }",
        {"w": _floats(1, 6) + 2, "c": _floats(2, 6)},
    )
    return [
        Sample("dynamic mlp", mlp, {"N": 3}),
        Sample("dynamic affine", affine, {"N": 3}),
        *(
            Sample(
                f"dynamic {op.lower()}",
                parse(f"rows (float[N,6] x) => (float[N,6] y) {{ y = {op}(x) }}"),
                {"N": 3},
            )
            for op in ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp", "Softmax")
        ),
    ]


def _pair() -> list[Sample]:
    return [
        Sample(
            f"pair {op.lower()}",
            parse(f"pair (float[4,6] a, float[4,6] b) => (float[4,6] y) {{ y = {op}(a, b) }}"),
        )
        for op in ("Sub", "Add", "Mul", "Max")
    ]


def _outputs() -> list[Sample]:
    text = (
        "outputs (float[4,6] x) => (float[4,6] y, float[4,6] z) {{ y = {first}(x) z = {second} }}"
    )
    return [
        Sample(f"outputs {first.lower()}", parse(text.format(first=first, second=second)))
        for first, second in (
            ("Relu", "Add(y, x)"),
            ("Neg", "Add(y, y)"),
            ("Abs", "Neg(y)"),
            ("Sigmoid", "Tanh(y)"),
            ("Relu", "Exp(y)"),
        )
    ]


def _large() -> list[Sample]:
    bias = {"c": _floats(3, 256, 512)}
    return [
        Sample(
            "large add",
            parse("large (float[256,512] x) => (float[256,512] y) { y = Add(x, c) }", bias),
        ),
        *(
            Sample(
                f"large {op.lower()}",
                parse(f"large (float[256,512] x) => (float[256,512] y) {{ y = {op}(x) }}"),
            )
            for op in ("Relu", "Neg", "Abs", "Sigmoid", "Tanh")
        ),
    ]


_KINDS = {
    "plain": _plain,
    "dynamic": _dynamic,
    "pair": _pair,
    "outputs": _outputs,
    "large": _large,
}


@functools.cache
def samples(kind: str) -> tuple[Sample, ...]:
    """The samples of a kind, simple ones last.

    Args:
        kind: ``plain`` (static), ``dynamic`` (N rows), ``pair`` (two inputs of one shape),
            ``outputs`` (two outputs, one read inside) or ``large`` (half a megabyte).
    """
    return tuple(_KINDS[kind]())


@functools.cache
def narrow_samples(kind: str) -> tuple[Sample, ...]:
    """Samples for devices that take none of :func:`samples`: images, and all in float16.

    Args:
        kind: As for :func:`samples`.
    """
    images = _images(kind)
    return (*images, *map(in_halves, (*samples(kind), *images)))


def _images(kind: str) -> tuple[Sample, ...]:
    """The samples of a kind that are simplest, on tensors of four dimensions."""
    shape = {"dynamic": "[N,4,5,6]", "large": "[1,16,64,128]"}.get(kind, "[1,4,5,6]")
    one = f"float{shape}"
    forms = {
        "pair": f"({one} a, {one} b) => ({one} y) {{{{ y = {{}}(a, b) }}}}",
        "outputs": f"({one} x) => ({one} y, {one} z) {{{{ y = {{}}(x) z = Add(y, x) }}}}",
    }
    form = forms.get(kind, f"({one} x) => ({one} y) {{{{ y = {{}}(x) }}}}")
    return tuple(
        Sample(f"{kind} {op.lower()} of images", parse("images " + form.format(op)), {"N": 3})
        for op in (("Sub", "Add", "Mul", "Max") if kind == "pair" else _FUNCTIONS)
    )


_FUNCTIONS = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Exp")


def in_halves(sample: Sample) -> Sample:
    """The same sample with all floats in float16."""
    proto = onnx.ModelProto()
    proto.CopyFrom(sample.proto)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            halves = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halves, tensor.name))
    return Sample(f"{sample.name} in float16", proto, sample.sizes)


@functools.cache
def networks() -> tuple[Sample, ...]:
    """Networks of several operators each, for cutting: branches, joins, values read twice."""
    residual = parse(
        "residual (float[1,4,6,6] x) => (float[1,4,6,6] y, float[1,4] g) {"
        " a = Conv <pads = [1,1,1,1]> (x, w1) b = Relu(a)"
        " c = Conv <pads = [1,1,1,1]> (b, w2) d = Add(c, x) e = Relu(d)"
        " f = Sigmoid(e) y = Mul(e, f) h = GlobalAveragePool(y) g = Flatten(h) }",
        {"w1": _floats(1, 4, 4, 3, 3), "w2": _floats(2, 4, 4, 3, 3)},
    )
    attention = parse(
        "attention (float[2,5,8] x) => (float[2,5,8] y) {"
        " q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)"
        " t = Transpose <perm = [0,2,1]> (k) s = MatMul(q, t) n = Mul(s, scale)"
        " p = Softmax <axis = -1> (n) o = MatMul(p, v) r = Add(o, x)"
        " m = ReduceMean <axes = [-1], keepdims = 1> (r) y = Sub(r, m) }",
        {
            "wq": _floats(1, 8, 8),
            "wk": _floats(2, 8, 8),
            "wv": _floats(3, 8, 8),
            "scale": np.array(0.35, np.float32),
        },
    )
    branches = parse(
        "branches (float[2,6] x, float[2,6] z) => (float[2,12] y, float[2,6] u) {"
        " a = Relu(x) b = Neg(z) c = Add(a, b) d = Tanh(c) e = Mul(d, a)"
        " f = Abs(b) y = Concat <axis = 1> (e, f) u = Max(c, f) }"
    )
    shapes = parse(
        "shapes (float[2,3,4] x) => (float[4,6] y, int64[3] s) {"
        " a = Transpose <perm = [2,0,1]> (x) s = Shape(a) b = Reshape(a, to)"
        " c = Exp(b) d = ReduceSum <keepdims = 1> (c, last) y = Div(c, d) }",
        {"to": np.array([4, 6], np.int64), "last": np.array([1], np.int64)},
    )
    mixed = parse(
        "mixed (float[3,7] x) => (float[3,7] y, int64[3,1] i) {"
        " a = Clip(x, low, high) c = Greater(a, zero) d = Not(c) e = Where(d, zero, a)"
        " f = Cast <to = 6> (e) g = Cast <to = 1> (f) h = Sub(a, g) y = Abs(h)"
        " i = ArgMax <axis = 1, keepdims = 1> (h) }",
        {
            "low": np.array(-1.5, np.float32),
            "high": np.array(1.5, np.float32),
            "zero": np.array(0, np.float32),
        },
    )
    rows = parse(
        "rows (float[N,6] x) => (float[N,4] y, float[N,6] z) {"
        " a = Gemm <transB = 1> (x, w, c) b = LeakyRelu <alpha = 0.2> (a) m = Mul(x, x)"
        " n = Sqrt(m) z = Sub(n, x) d = MatMul(z, v) y = Add(b, d) }",
        {"w": _floats(1, 4, 6), "c": _floats(2, 4), "v": _floats(3, 6, 4)},
    )
    return (
        Sample("residual", residual),
        Sample("attention", attention),
        Sample("branches", branches),
        Sample("shapes", shapes),
        Sample("mixed", mixed),
        Sample("rows", rows, {"N": 3}),
    )


def stranger() -> partita.Model:
    """A model of one operator that nobody has."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["a"], name="known"),
            helper.make_node("Transmogrify", ["a"], ["y"], name="strange", domain="com.nobody"),
        ],
        "stranger",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.nobody", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return partita.Core().read_model(model)
