"""One row of many that alone is read is taken before products compute the others."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import partita
from partita_cpu.passes import pipeline
from partita_cpu.passes.early_rows import take_rows_early

RNG = np.random.default_rng(3)
PART = """
    a = MatMul(x, w)
    t = Add(a, x)
    n, m, i = LayerNormalization <axis = -1> (t, scale, scale)
    g = MatMul(n, w)
    s = Sigmoid(g)
    h = Mul(g, s)
    d = MatMul(h, w)
    u = Add(t, d)
"""
"""Two products behind a residual, as decoders feed forward."""


def rows_of_products(monkeypatch, text, rows=7):
    """How many rows products have when rows were taken; compares results with onnxruntime's."""
    header = '<ir_version: 10, opset_import: ["" : 20]>'
    model = parser.parse_model(f"{header} g (float[2, N, 24] x) => ({text}")
    w = RNG.standard_normal((24, 24)).astype(np.float32) / 5
    scale = RNG.uniform(0.5, 2, 24).astype(np.float32)
    for name, array in (("w", w), ("scale", scale), ("last", np.array([-1])), ("one", np.array(0))):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = RNG.standard_normal((2, rows, 24)).astype(np.float32)
    seen = []

    def taken(graph, shapes):
        known = take_rows_early(graph, shapes)
        products = [node for node in graph.nodes if node.op_type == "MatMul"]
        seen.append([math.prod(known[node.result][:-1]) for node in products])
        return known

    monkeypatch.setattr(pipeline, "take_rows_early", taken)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    results = compiled({"x": x})
    for port, want in zip(model.graph.output, session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(results[port.name], want, rtol=2e-5, atol=2e-5)
    assert len(seen[-1]) == 3
    return set(seen[-1])


def test_rows_that_nobody_reads_are_not_computed(monkeypatch):
    assert rows_of_products(monkeypatch, f"y) {{ {PART} y = Gather <axis = 1> (u, last) }}") == {2}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (f"y, u) {{ {PART} y = Gather <axis = 1> (u, last) }}", {14}),  # all are results
        (f"y, z) {{ {PART} z = ReduceMax(n) y = Gather <axis = 1> (u, last) }}", {2, 14}),
        (f"y) {{ {PART} v = CumSum(u, one) y = Gather <axis = 1> (v, last) }}", {14}),
        (f"y) {{ {PART} y = Gather <axis = 2> (u, last) }}", {14}),  # of each row one element
    ],
)
def test_rows_that_somebody_reads_are_computed(monkeypatch, text, rows):
    assert rows_of_products(monkeypatch, text) == rows
