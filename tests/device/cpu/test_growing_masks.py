"""Masks of decoders whose cache grows: computed of sizes, and filled into recorded programs."""

from unittest import mock

import numpy as np
import onnx.parser
import pytest
from judge import onnxruntime_results

import partita
from partita.lowering.emission.walk import Walk
from partita_cpu.jit.isa import isa

START = """
<ir_version: 8, opset_import: ["" : 17]>
mask (float[N, 8] x, float[P, 8] past) => (float[A, B] y, float[M, 8] present)
<int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] last = {1}, int64 two = {2},
 int64 minus = {-2}, float far = {-1e9}> {
    past_shape = Shape(past)
    before = Gather(past_shape, zero)
    x_shape = Shape(x)
    new = Gather(x_shape, zero)
    total = Add(before, new)
    present = Concat<axis = 0>(past, x)
    turned = Transpose<perm = [1, 0]>(present)
    scores = MatMul(x, turned)
"""

MASKS = {
    "ranges": """
        places = Range(before, total, one)
        column = Unsqueeze(places, last)
        keys = Range(zero, total, one)
        seen = LessOrEqual(keys, column)
        y = Where(seen, scores, far)
    """,
    "distances": """
        twice = Mul(total, two)
        downwards = Range(twice, zero, minus)
        distance = Cast<to = 1>(downwards)
        y = Sub(scores, distance)
    """,
    "triangle": """
        rows = Unsqueeze(total, axis)
        square = Concat<axis = 0>(rows, rows)
        full = ConstantOfShape<value = float[1] {-1e9}>(square)
        triangle = Trilu<upper = 1>(full, one)
        first = Unsqueeze(before, axis)
        mine = Slice(triangle, first, rows, axis)
        y = Add(scores, mine)
    """,
    "lower": """
        rows = Unsqueeze(total, axis)
        square = Concat<axis = 0>(rows, rows)
        full = ConstantOfShape<value = float[1] {1.0}>(square)
        triangle = Trilu<upper = 0>(full, zero)
        first = Unsqueeze(before, axis)
        mine = Slice(triangle, first, rows, axis)
        y = Mul(scores, mine)
    """,
    "none": """
        none = Range(total, before, one)
        wide = Unsqueeze(none, last)
        floats = Cast<to = 1>(wide)
        sum = ReduceSum<keepdims = 1>(floats, axis)
        y = Sub(scores, sum)
    """,
}


@pytest.mark.parametrize("mask", MASKS)
def test_steps_of_a_growing_cache_are_emitted_for_none_of_its_lengths(mask):
    model = onnx.parser.parse_model(START + MASKS[mask] + "}")
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    rng = np.random.default_rng(1)
    past = rng.standard_normal((2, 8)).astype(np.float32)

    def step(rows):
        feeds = {"x": rng.standard_normal((rows, 8)).astype(np.float32), "past": past}
        for found, wanted in zip(
            request.infer(feeds).to_tuple(), onnxruntime_results(model, feeds), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        return np.concatenate([past, feeds["x"]])

    for rows in (5, 1, 1, 1):
        past = step(rows)
    emits = AssertionError("emitted") if isa().native else None
    with mock.patch.object(Walk, "run", autospec=True, side_effect=emits or Walk.run):
        for _ in range(20):
            past = step(1)
