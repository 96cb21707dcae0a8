"""Shapes that vary on OPENCL: plans are kept by bytes, and all work in the same buffers."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import partita
from partita_opencl.runtime import device_model, runner

CHAIN = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N, 8] x) => (float[N, 8] y) {
    a = MatMul(x, w)
    b = Relu(a)
    c = MatMul(b, w)
    y = Softmax(c)
}"""


def request_and_judge(**config):
    model = parser.parse_model(CHAIN)
    w = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))

    def wanted(x):
        c = np.maximum(x @ w, 0) @ w
        e = np.exp(c - c.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    compiled = partita.Core().compile_model(model, "OPENCL", config)
    return compiled.create_infer_request(), wanted


def counted(monkeypatch, module, name):
    made = []
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args: made.append(args[0]) or real(*args))
    return made


def test_shapes_seen_before_are_neither_planned_nor_bound_again(monkeypatch):
    plans = counted(monkeypatch, device_model, "Plan")
    bound = counted(monkeypatch, runner, "BoundPlan")
    request, wanted = request_and_judge()
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((n, 8)).astype(np.float32) for n in (60, *range(1, 50))]
    for _ in range(3):
        for x in arrays:
            np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    assert len(plans) == len(bound) == 50


@pytest.mark.parametrize("most", [0, 40_000])
def test_what_is_kept_of_shapes_has_a_bound_and_buffers_grow(most):
    request, wanted = request_and_judge(SHAPE_CACHE_BYTES=most)
    rng = np.random.default_rng(1)
    for n in [*range(1, 400, 40), 1, 361, 2]:
        x = rng.standard_normal((n, 8)).astype(np.float32)
        np.testing.assert_allclose(request.infer([x])["y"], wanted(x), rtol=1e-3, atol=1e-4)
    kept = request.runner.bound_plans
    assert kept.nbytes <= most or len(kept) == 1
