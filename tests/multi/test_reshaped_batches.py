"""A batch of 0 that a Reshape lets be: what -1 stands for is known by the other dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

import partita

HEADS = """
<ir_version: 9, opset_import: ["":17]> g (float[N,5,6] x, float[6,6] w) => (float[A,B,C] y)
<int64[1] first = {0}, int64[1] second = {1}, int64[1] heads = {2}, int64[1] rest = {-1}> {
    shape = Shape(x)
    n = Gather(shape, first)
    length = Gather(shape, second)
    of_heads = Concat<axis = 0>(n, length, heads, rest)
    whole = Concat<axis = 0>(n, length, rest)
    a = Reshape(x, of_heads)
    b = Transpose<perm = [0, 2, 1, 3]>(a)
    c = Transpose<perm = [0, 2, 1, 3]>(b)
    d = Reshape(c, whole)
    y = MatMul(d, w)
}"""
NUMBERS = """
<ir_version: 9, opset_import: ["":17]> g (float[N,5,6] x, float[6,6] w) => (float[A,B,C] y)
<int64[4] apart = {0, 5, -1, 3}, int64[3] whole = {0, 0, -1}> {
    a = Reshape(x, apart)
    b = Relu(a)
    c = Reshape(b, whole)
    y = MatMul(c, w)
}"""
W = np.random.default_rng(0).integers(-3, 4, (6, 6)).astype(np.float32)


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "HETERO:CPU,OPENCL"])
@pytest.mark.parametrize(
    ("text", "first"), [(HEADS, lambda x: x), (NUMBERS, lambda x: np.maximum(x, 0))]
)
def test_a_batch_of_none_leaves_the_other_dimensions_known(text, first, device):
    compiled = partita.Core().compile_model(parse_model(text), device)
    for batch in (2, 0, 3, 0, 1):
        x = np.random.default_rng(batch).integers(-4, 5, (batch, 5, 6)).astype(np.float32)
        np.testing.assert_array_equal(compiled({"x": x, "w": W})["y"], first(x) @ W)
