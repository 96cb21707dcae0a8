"""Attention as exporters spell it, in one step, against onnxruntime on random shapes."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import numpy_helper, parser

import partita
from partita.contract.profiling import Status

FORMS = ["apart", "together", "matrices"]
"""Whether heads lie apart before the sequence, or are moved there, keys as a row of matrices."""


def model_of(form, sizes, mask, clears, moved, factors=(1.0, 0.5)):
    """Attention of (batch, heads, queries, keys, size of a key and of a value)."""
    b, h, s, t, d, e = sizes
    shapes = [(b, h, s, d), (b, h, t, d), (b, h, t, e)]
    moves, turn = "", "kt = Transpose <perm = [0, 1, 3, 2]> (kf)"
    names = ("qf", "kf", "vf")
    if form != "apart":
        shapes = [(n, length, heads, size) for n, heads, length, size in shapes]
        for x in names:
            moves += f"{x} = Transpose <perm = [0, 2, 1, 3]> ({x[0]}) "
    else:
        moves = "".join(f"{x} = Relu({x[0]}) " for x in names)
    if form == "matrices":
        turn = """kr = Reshape(kf, row) kx = Transpose <perm = [0, 2, 1]> (kr)
                  kt = Reshape(kx, back)"""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float{list(shapes[0])} q, float{list(shapes[1])} k, float{list(shapes[2])} v,
       float{list(mask or (1,))} m) => (float[a, c, f, g] y) {{
        {moves} {turn}
        qs = Mul(qf, first) ks = Mul(kt, second) scores = MatMul(qs, ks)
        {"masked = Add(scores, m)" if mask else "masked = Identity(scores)"}
        p = Softmax <axis = -1> (masked)
        {"n = IsNaN(p) w = Where(n, zero, p)" if clears else "w = Identity(p)"}
        z = MatMul(w, vf)
        {"y = Transpose <perm = [0, 2, 1, 3]> (z)" if moved else "y = Identity(z)"} }}"""
    model = parser.parse_model(text)
    constants = {
        "first": np.float32(factors[0]),
        "second": np.float32(factors[1]),
        "zero": np.float32(0),
        "row": np.array([-1, t, d]),
        "back": np.array([b, h, d, t]),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return model, shapes


def compared(model, feeds, tolerance=2e-5, **config):
    """Compares with onnxruntime, and says which operations were computed."""
    (expected,) = onnxruntime_results(model, feeds)
    compiled = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True, **config})
    request = compiled.create_infer_request()
    (found,) = (np.array(value) for value in request.infer(feeds).values())
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    steps = request.get_profiling_info()
    return [step.node_type for step in steps if step.status is Status.EXECUTED]


def feeds_of(shapes, mask, rng):
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    added = rng.standard_normal(mask or (1,)).astype(np.float32)
    return dict(zip("qkvm", [*arrays, added], strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("clears", [False, True])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_random_sizes(form, moved, clears, precision):
    rng = np.random.default_rng([FORMS.index(form), moved, clears])
    for _ in range(3):
        sizes = tuple(int(n) for n in rng.integers(1, [4, 5, 40, 70, 33, 33]))
        b, h, s, t = sizes[:4]
        mask = (None, (t,), (b, 1, 1, t), (1, h, s, t), (b, h, s, t))[rng.integers(5)]
        model, shapes = model_of(form, sizes, mask, clears, moved)
        tolerance = 2e-5 if precision == "f32" else 4e-2
        config = {"INFERENCE_PRECISION_HINT": precision}
        steps = compared(model, feeds_of(shapes, mask, rng), tolerance, **config)
        assert "Softmax" not in steps


@pytest.mark.parametrize("keys", [9, 20_000])
@pytest.mark.parametrize("clears", [False, True])
def test_queries_that_see_no_key_or_attend_by_nan(clears, keys):
    """Keys beyond the cache are attended to by separate steps."""
    rng = np.random.default_rng(0)
    sizes, mask = (2, 2, 5, keys, 16, 16), (2, 1, 5, 1)
    model, shapes = model_of("matrices", sizes, mask, clears, True)
    feeds = feeds_of(shapes, mask, rng)
    feeds["m"][0, :, 2] = -np.inf
    feeds["q"][1, 3, 1, 4] = np.nan
    compared(model, feeds)


def test_keys_that_are_not_turned_stay_as_they_are():
    """A product of queries and what is no transposition of keys is none of attention's."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3, 5, 5] q, float[2, 3, 5, 5] k, float[2, 3, 5, 5] v) => (float[a, b, c, d] y) {
        s = MatMul(q, k) p = Softmax <axis = -1> (s) y = MatMul(p, v) }""")
    rng = np.random.default_rng(0)
    feeds = feeds_of([(2, 3, 5, 5)] * 3, None, rng)
    del feeds["m"]
    assert "Softmax" in compared(model, feeds)


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 2e-5), ("bf16", 2e-2)])
def test_queries_and_keys_that_follow_from_shapes(precision, tolerance):
    """What shapes tell is constant once they are known; the run attends to it all the same."""
    rng = np.random.default_rng(0)
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[3, 7, 16] x) => (float[a, b, c, d] y) {
      r = MatMul(x, w) b1 = Relu(r) z = MatMul(b1, w) mean = ReduceMean <keepdims = 0> (z)
      s = Shape(x) f = Cast <to = 1> (s) n = Mul(f, small) rows = MatMul(n, u)
      q = Reshape(rows, dims)
      t = Shape(q) g = Cast <to = 1> (t) m = Mul(g, small) more = MatMul(m, v)
      k = Reshape(more, dims)
      kt = Transpose <perm = [0, 1, 3, 2]> (k) scores = MatMul(q, kt)
      p = Softmax <axis = -1> (scores) e = MatMul(p, q) y = Add(e, mean) }""")
    constants = {
        "w": rng.standard_normal((16, 16)).astype(np.float32) / 4,
        "small": np.float32(0.1),
        "u": rng.standard_normal((3, 64)).astype(np.float32),
        "v": rng.standard_normal((4, 64)).astype(np.float32),
        "dims": np.array([1, 2, 8, 4]),
    }
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    feeds = {"x": rng.standard_normal((3, 7, 16)).astype(np.float32)}
    compared(model, feeds, tolerance, INFERENCE_PRECISION_HINT=precision)
