"""Operations with a parameter (a shape, a weight) of any origin: initializer, computed, input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance.inputs.models import Array, parse

_X = "float[3,4] x"
_IMAGE = "float[1,2,4,4] x"
_MATRIX = np.asarray(np.arange(12).reshape(4, 3) % 5 - 2, np.float32)
_KERNEL = np.asarray(np.arange(36).reshape(2, 2, 3, 3) % 7 - 3, np.float32)

OPERATIONS: Mapping[str, tuple[str, Array]] = {
    "Reshape": (f"({_X}) => (float[A,B] y) {{ y = Reshape(x, p) }}", np.array([2, 6])),
    "Expand": (f"({_X}) => (float[A,B,C] y) {{ y = Expand(x, p) }}", np.array([2, 3, 4])),
    "Tile": (f"({_X}) => (float[A,B] y) {{ y = Tile(x, p) }}", np.array([2, 1])),
    "Pad": (f"({_X}) => (float[A,B] y) {{ y = Pad(x, p) }}", np.array([0, 1, 1, 2])),
    "TopK": (f"({_X}) => (float[A,B] y, int64[A,B] i) {{ y, i = TopK(x, p) }}", np.array([2])),
    "ReduceSum": (f"({_X}) => (float[A,B] y) {{ y = ReduceSum(x, p) }}", np.array([1])),
    "Unsqueeze": (f"({_X}) => (float[A,B,C] y) {{ y = Unsqueeze(x, p) }}", np.array([1])),
    "Split": (f"({_X}) => (float[A,4] y, float[B,4] z) {{ y, z = Split(x, p) }}", np.array([1, 2])),
    "Gather": (f"({_X}) => (float[A,4] y) {{ y = Gather(x, p) }}", np.array([2, 0])),
    "CumSum": (f"({_X}) => (float[3,4] y) {{ y = CumSum(x, p) }}", np.array(1)),
    "ConstantOfShape": (
        f"({_X}) => (float[A,B] y, float[3,4] z) {{ y = ConstantOfShape(p) z = Neg(x) }}",
        np.array([2, 3]),
    ),
    "Clip": (f"({_X}) => (float[3,4] y) {{ y = Clip(x, p) }}", np.array(0.25, np.float32)),
    "Where": (f"({_X}) => (float[3,4] y) {{ z = Neg(x) y = Where(p, x, z) }}", np.array([True])),
    "MatMul": (f"({_X}) => (float[3,3] y) {{ y = MatMul(x, p) }}", _MATRIX),
    "Gemm": (f"({_X}) => (float[3,3] y) {{ y = Gemm <alpha = 0.5> (x, p) }}", _MATRIX),
    "Add": (f"({_X}) => (float[3,4] y) {{ y = Add(x, p) }}", np.array([1, 2, 3, -4], np.float32)),
    "PRelu": (f"({_X}) => (float[3,4] y) {{ y = PRelu(x, p) }}", np.array([0.25], np.float32)),
    "Conv": (f"({_IMAGE}) => (float[A,B,C,D] y) {{ y = Conv(x, p) }}", _KERNEL),
    "BatchNormalization": (
        f"({_IMAGE}) => (float[1,2,4,4] y) {{ y = BatchNormalization(x, p, p, p, p) }}",
        np.array([1.5, 0.5], np.float32),
    ),
}
"""By operator a model that lacks ``p``, and what that is."""

_SHAPES = ("Reshape", "Expand", "ConstantOfShape")
"""Operators whose parameter may be the shape of something."""


def origins(op: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Models of an operator, by where its parameter comes from; all compute the same."""
    text, array = OPERATIONS[op]

    def made(nodes: list[onnx.NodeProto], weights: Mapping[str, Array]) -> onnx.ModelProto:
        proto = parse(f"g {text}", dict(weights))
        kept = [*proto.graph.node]
        del proto.graph.node[:]
        proto.graph.node.extend([*nodes, *kept])
        return proto

    node = helper.make_node
    yield "a weight", made([], {"p": array})
    value = numpy_helper.from_array(array)
    yield "a constant", made([node("Constant", [], ["p"], value=value)], {})
    yield "handed on", made([node("Identity", ["q"], ["p"])], {"q": array})
    yield "chosen", made([node("Gather", ["q", "n"], ["p"])], _chosen(array))
    if array.dtype != np.bool_:
        zero = np.zeros((), array.dtype)
        yield "a sum of weights", made([node("Add", ["q", "o"], ["p"])], {"q": array, "o": zero})
        wide = {np.dtype(np.int64): np.int32, np.dtype(np.float32): np.float64}[array.dtype]
        to = helper.np_dtype_to_tensor_dtype(array.dtype)
        yield "a cast weight", made([node("Cast", ["q"], ["p"], to=to)], {"q": array.astype(wide)})
    if array.ndim == 1 and len(array) > 1:
        parts = {"q": array[:1], "r": array[1:]}
        yield "joined", made([node("Concat", ["q", "r"], ["p"], axis=0)], parts)
    if op in _SHAPES:
        proto = made([node("Shape", ["t"], ["p"])], {})
        given = helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, array.tolist())
        proto.graph.input.append(given)
        yield "the shape of an input", proto
    proto = made([], {})
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    proto.graph.input.append(helper.make_tensor_value_info("p", element, array.shape))
    yield "an input", proto


def _chosen(array: Array) -> dict[str, Array]:
    """A weight, and the place of the parameter in it."""
    return {"q": np.stack([array, array[..., ::-1] if array.ndim else array]), "n": np.array(0)}
