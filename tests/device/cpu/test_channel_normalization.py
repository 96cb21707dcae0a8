"""Normalization of channels as networks of images spell it, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import numpy_helper, parser

import partita
from partita.contract.profiling import Status

NORMALIZED = """m = ReduceMean <axes = [1]> ({x}) d = Sub({x}, m) p = Pow(d, two)
    v = ReduceMean <axes = [1]> (p) e = Add(v, epsilon) r = Sqrt(e) q = Div(d, r)
    s = Mul(q, scale) n = Add(s, shift)"""


def model_of(shape, text, constants):
    declared = ", ".join(map(str, shape))
    results = ", ".join("abcde"[: len(shape)])
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{declared}] x) => '
        f"(float[{results}] y) {{ {text} }}"
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    )
    return model


def constants_of(channels, rank, rng):
    ones = (1,) * (rank - 2)
    return {
        "two": np.float32(2),
        "epsilon": np.float32(1e-5),
        "scale": rng.standard_normal((channels, *ones)).astype(np.float32),
        "shift": rng.standard_normal((1, channels, *ones)).astype(np.float32),
    }


def computed(model, x, **config):
    compiled = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True, **config})
    request = compiled.create_infer_request()
    (found,) = request.infer({"x": x}).values()
    steps = [s for s in request.get_profiling_info() if s.status is Status.EXECUTED]
    return np.array(found), [step for step in steps if step.exec_type != "view"]


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_random_sizes(rank):
    rng = np.random.default_rng(rank)
    for _ in range(8):
        shape = [int(n) for n in rng.integers(1, [4, 70, 20, 20, 5][:rank])]
        model = model_of(
            shape, NORMALIZED.format(x="x") + " y = Identity(n)", constants_of(shape[1], rank, rng)
        )
        x = rng.standard_normal(shape).astype(np.float32) * 3 + 1
        found, steps = computed(model, x)
        np.testing.assert_allclose(
            found, onnxruntime_results(model, {"x": x})[0], rtol=2e-5, atol=2e-5
        )
        assert not {"ReduceMean", "Sub", "Sqrt"} & {step.node_type for step in steps}


@pytest.mark.parametrize(("hint", "tolerance"), [({}, 2e-4), ("bf16", 4e-2)])
@pytest.mark.parametrize("channels", [24, 37])
def test_between_convolutions_nothing_is_transposed(hint, tolerance, channels):
    rng = np.random.default_rng(channels)
    text = f"""c = Conv <pads = [1, 1, 1, 1]> (x, w1) {NORMALIZED.format(x="c")}
        z = Conv(n, w2) y = Add(z, c)"""
    weights = {
        "w1": rng.standard_normal((channels, 8, 3, 3)).astype(np.float32) / 8,
        "w2": rng.standard_normal((channels, channels, 1, 1)).astype(np.float32) / 6,
    }
    model = model_of((2, 8, 9, 11), text, constants_of(channels, 4, rng) | weights)
    x = rng.standard_normal((2, 8, 9, 11)).astype(np.float32)
    config = {"INFERENCE_PRECISION_HINT": hint} if hint else {}
    found, steps = computed(model, x, **config)
    (wanted,) = onnxruntime_results(model, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
    assert sum(step.exec_type == "reorder" for step in steps) <= 2
    assert len(steps) <= 5
