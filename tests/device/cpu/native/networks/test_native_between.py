"""Results of matrix products that stay as the next product reads them, in whole models."""

from __future__ import annotations

import numpy as np
import pytest

from partita_cpu.gemm.packed_lhs.product import multiply_packed, pack_lhs

from .test_native_layout import SETTINGS, Net, check, compiled

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""

BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
F16 = {"INFERENCE_PRECISION_HINT": "f16"}


def block(net, x, width=256, inner=512):
    """Two products with an activation between, and a residual."""
    first = net.const(values=net.rng.standard_normal((width, inner)).astype(np.float32) / 16)
    second = net.const(values=net.rng.standard_normal((inner, width)).astype(np.float32) / 22)
    hidden = net.add("Add", net.add("MatMul", x, first), net.const(inner))
    hidden = net.add("Tanh", hidden)
    y = net.add("Add", net.add("MatMul", hidden, second), net.const(width))
    return hidden, net.add("Add", y, x)


def laid(device):
    """How many steps lay out inputs, and how many products leave their result laid out."""
    specs = [(port.shape, port.dtype) for port in device.inputs]
    steps = device.device_model.specializer.program(specs, None).steps
    staying = [s for s in steps if s.fn is multiply_packed and s.args[5] is not s.args[0]]
    return sum(step.fn is pack_lhs for step in steps), len(staying)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", [*SETTINGS, BF16, F16])
@pytest.mark.parametrize("rows", [9, 64, 100])
def test_a_result_that_one_product_reads(config, rows, level):
    net = Net(1, rows, 256)
    _, first = block(net, net.add("Neg", "x"))
    _, y = block(net, first)
    tolerance = {"bf16": 2e-2, "f16": 3e-3}.get(config.get("INFERENCE_PRECISION_HINT"), 2e-5)
    check(net, y, config=config, tolerance=tolerance)
    counts = laid(compiled(net.model(y), **config))
    small = config.get("EXECUTION_MODE_HINT") == "ACCURACY" and rows < 64
    assert counts == ((2, 2) if level == "amx" and not small else (0, 0))


def test_results_that_others_read_too():
    net = Net(2, 40, 256)
    hidden, y = block(net, "x")
    assert laid(compiled(net.model(y, hidden)))[1] == 0
    check(net, y, hidden, tolerance=1e-4)
    other = net.add("Neg", hidden)
    assert laid(compiled(net.model(y, other)))[1] == 0
    check(net, y, other, tolerance=1e-4)


def test_a_residual_that_has_to_be_repeated():
    net = Net(3, 40, 256)
    wide = net.const(values=net.rng.standard_normal((256, 256)).astype(np.float32) / 16)
    hidden = net.add("Relu", net.add("MatMul", "x", wide))
    row = net.add("ReduceMax", "x", axes=[1], keepdims=1)
    y = net.add("Add", net.add("MatMul", hidden, wide), row)
    check(net, y, tolerance=2e-5)


def test_infinity_on_the_way():
    net = Net(1, 40, 256)
    _, y = block(net, "x")
    model = net.model(y)
    x = net.rng.standard_normal((1, 40, 256)).astype(np.float32)
    x[0, 7, 3] = np.nan
    found = np.asarray(compiled(model)({"x": x})[0])
    assert np.isnan(found[0, 7]).all()
    assert np.isfinite(np.delete(found, 7, axis=1)).all()
