"""Results of matrix products that stay as the next product reads them, in whole models."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles
from partita_cpu.gemm.packed_lhs.product import multiply_packed, pack_lhs
from partita_cpu.llvm.levels import EVERY

from .test_native_layout import SETTINGS, Net, check, compiled

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""

BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
F16 = {"INFERENCE_PRECISION_HINT": "f16"}


def block(net, x, width=256, inner=512, dtype=np.float32):
    """Two products with an activation between, and a residual."""

    def weights(*shape):
        values = net.rng.standard_normal(shape).astype(dtype) / dtype(shape[0] ** 0.5)
        found = net.const(values=values)
        return found if dtype is np.float32 else net.add("Cast", found, to=TensorProto.FLOAT)

    first, second = weights(width, inner), weights(inner, width)
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


def pitches(device, rows):
    """Floats from one row to the next of what each product reads."""
    specs = [(port.shape, port.dtype) for port in device.inputs]
    steps = device.device_model.specializer.program(specs, None).steps
    return [step.args[0].size // rows for step in steps if step.fn is multiply_tiles]


@pytest.mark.parametrize("rows", [1, 40, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_that_would_collide_have_gaps(rows, dtype, level):
    """Of 1,024 floats; in parts of the terms, too, where many share a small cache."""
    net = Net(1, rows, 256)
    _, y = block(net, "x", inner=1024, dtype=dtype)
    check(net, y, config=SETTINGS[0], tolerance=2e-5)
    found = pitches(compiled(net.model(y), **SETTINGS[0]), rows)
    if EVERY[level].lanes == 16 and not EVERY[level].tiles:
        assert found == [256, 1040]


def test_parts_of_rows_with_gaps(level, monkeypatch):
    """Of 2,048 terms 16 rows fit half of a cache of 256 KiB, of 256 more than 100."""
    monkeypatch.setenv("PARTITA_CPU_CACHES", "32K/256K")
    net = Net(1, 100, 256)
    _, first = block(net, "x", inner=2048)
    _, y = block(net, first, inner=2048)
    check(net, y, config=SETTINGS[0], tolerance=2e-5)
    found = pitches(compiled(net.model(y), **SETTINGS[0]), 100)
    if EVERY[level].lanes == 16 and not EVERY[level].tiles:
        assert found == 2 * [256, *[2064] * (len(found) // 2 - 1)]
        assert len(found) > 4


def test_a_result_with_gaps_that_becomes_one_with_gaps(level):
    net = Net(1, 40, 64)
    x = "x"
    for terms, columns in ((64, 1024), (1024, 2048), (2048, 64)):
        values = net.rng.standard_normal((terms, columns)).astype(np.float32) / terms**0.5
        x = net.add("Relu", net.add("MatMul", x, net.const(values=values.astype(np.float32))))
    check(net, x, config=SETTINGS[0], tolerance=2e-5)
    found = pitches(compiled(net.model(x), **SETTINGS[0]), 40)
    if EVERY[level].lanes == 16 and not EVERY[level].tiles:
        assert set(found) == {64, 1040, 2064}


def test_rows_without_gaps_where_others_read_them(level):
    net = Net(1, 40, 256)
    hidden, y = block(net, "x", inner=1024)
    check(net, y, hidden, config=SETTINGS[0], tolerance=2e-5)
    if not EVERY[level].tiles:
        assert set(pitches(compiled(net.model(y, hidden), **SETTINGS[0]), 40)) <= {256, 1024}
