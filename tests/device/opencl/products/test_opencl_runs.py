"""Runs of products that one kernel computes, whose groups wait for one another."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita_opencl.device.device import find_device
from partita_opencl.runtime import device_model as compiled_module
from partita_opencl.runtime import persistent_kernel
from partita_opencl.tuning.product_tiles import run_tile

from ..comparison import build, compiled, expected, floats


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    """Runs are joined wherever they can; a processor's device holds one group for certain."""
    device = find_device("")
    monkeypatch.setattr(persistent_kernel, "LAUNCH_US", 1e6)
    if not device.limits.is_nvidia:
        limits = replace(device.limits, matrix_units=True, resident_groups=1)
        monkeypatch.setattr(device, "limits", limits)
        monkeypatch.setattr(
            compiled_module, "objections", lambda _, wanted: dict.fromkeys(wanted, "")
        )


class Network:
    """Convolutions one after another, with random weights."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def conv(self, x, y, channels, filters, size=1, **attrs):
        w = floats(filters, channels, size, size, seed=len(self.nodes))
        w *= (channels * size**2) ** -0.5
        b = floats(filters, seed=len(self.nodes) + 100)
        self.weights += [numpy_helper.from_array(w, f"w{y}"), numpy_helper.from_array(b, f"b{y}")]
        pads = [size // 2] * 4
        names = [x, f"w{y}", f"b{y}"]
        self.nodes.append(helper.make_node("Conv", names, [y], **{"pads": pads, **attrs}))

    def op(self, kind, y, *x):
        self.nodes.append(helper.make_node(kind, x, [y]))

    def block(self, x, y, channels, inner, filters):
        """What residual networks are made of."""
        self.conv(x, f"{y}1", channels, inner)
        self.op("Relu", f"{y}2", f"{y}1")
        self.conv(f"{y}2", f"{y}3", inner, inner, 3)
        self.op("Relu", f"{y}4", f"{y}3")
        self.conv(f"{y}4", f"{y}5", inner, filters)
        if channels != filters:
            self.conv(x, f"{y}s", channels, filters)
        self.op("Add", f"{y}6", f"{y}5", f"{y}s" if channels != filters else x)
        self.op("Relu", y, f"{y}6")


def check(network, feeds, outputs, bound=2e-3):
    """Compares three runs with onnxruntime in float32; returns the kernels of the plan."""
    model = build(network.nodes, feeds, outputs, network.weights)
    how = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL"}
    request = compiled(model, **how).create_infer_request()
    wanted = expected(model, feeds)
    for _ in range(3):
        for found, one in zip(request.infer(feeds).to_tuple(), wanted, strict=True):
            assert found.shape == one.shape
            assert np.linalg.norm(found - one) <= bound * np.linalg.norm(one)
    return [step.how for step in request.explain_execution().steps]


def test_residual_blocks_are_one_kernel():
    network = Network()
    network.block("x", "p", 64, 64, 128)
    network.block("p", "q", 128, 64, 128)
    network.conv("q", "r", 128, 72, 3, strides=[2, 1], dilations=[1, 2], pads=[0, 2, 1, 1])
    kernels = check(network, {"x": floats(2, 64, 7, 9)}, ["r"])
    assert kernels.count("product_run") == 1
    assert "product_stream" not in kernels


def test_sums_are_cut_in_parts():
    network = Network()
    network.conv("x", "a", 192, 64, 3)
    network.conv("a", "b", 64, 192)
    network.conv("b", "c", 192, 64, 3)
    network.conv("c", "d", 64, 64)
    network.op("Relu", "e", "d")
    device = find_device("")
    groups = max(device.limits.resident_groups, 12)
    tile = run_tile(device.limits)
    cuts = [
        persistent_kernel.cut_products(tile, groups, 20, 64, depth).splits
        for depth in (9 * 192, 64)
    ]
    assert cuts[0] > 1
    assert cuts[1] == 1
    whole = persistent_kernel.cut_products
    persistent_kernel.cut_products = lambda tile, _, *sizes: whole(tile, groups, *sizes)
    try:
        kernels = check(network, {"x": floats(1, 192, 4, 5)}, ["e"])
    finally:
        persistent_kernel.cut_products = whole
    assert "product_run" in kernels


def test_results_that_are_read_from_outside_end_a_run():
    network = Network()
    network.block("x", "p", 64, 64, 64)
    network.op("GlobalAveragePool", "g", "p3")
    network.conv("p", "a", 64, 64)
    network.conv("a", "b", 64, 64)
    feeds = {"x": floats(1, 64, 6, 5)}
    kernels = check(network, feeds, ["b", "g", "p"])
    assert kernels.count("product_run") == 0  # three and two
    network.conv("b", "c", 64, 64)
    network.conv("c", "d", 64, 64)
    network.op("Relu", "e", "d")
    kernels = check(network, feeds, ["e", "g", "p"])
    assert kernels.count("product_run") == 1
    assert kernels.count("product_stream") == 3


def test_other_activations_end_a_run():
    network = Network()
    for i, kind in enumerate(["Relu"] * 4 + ["HardSwish"] * 3):
        network.conv("x" if i == 0 else f"y{i - 1}", f"c{i}", 64, 64)
        network.op(kind, f"y{i}", f"c{i}")
    kernels = check(network, {"x": floats(1, 64, 6, 5)}, ["y6"])
    assert kernels.count("product_run") == 1
    assert kernels.count("product_stream") == 3


def test_profiles_tell_products_apart():
    network = Network()
    network.block("x", "p", 64, 64, 128)
    feeds = {"x": floats(1, 64, 6, 5)}
    model = build(network.nodes, feeds, ["p"], network.weights)
    how = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL", "PERF_COUNT": True}
    request = compiled(model, **how).create_infer_request()
    request.infer(feeds)
    kernels = [info.exec_type for info in request.get_profiling_info()]
    assert sum("product_stream" in kernel for kernel in kernels) == 4


def test_groups_that_wait_in_vain_cost_one_run(monkeypatch, caplog):
    records = persistent_kernel.RunTable.records

    def one_tile_more(table):
        """Records whose groups wait for a tile that nobody computes."""
        made = records(table)
        made[:, persistent_kernel.FIELDS.index("tiles_a")] += 1
        return made

    monkeypatch.setattr(persistent_kernel.RunTable, "records", one_tile_more)
    network = Network()
    network.block("x", "p", 64, 64, 128)
    network.block("p", "q", 128, 64, 128)
    kernels = check(network, {"x": floats(1, 64, 7, 9)}, ["q"])
    assert "product_run" not in kernels
    assert "did not hold all groups" in caplog.text


def test_a_device_that_waits_wrongly_launches_kernels(monkeypatch):
    def objections(_device, wanted):
        return {u: "wrong" if u is compiled_module.Units.RESIDENT else "" for u in wanted}

    monkeypatch.setattr(compiled_module, "objections", objections)
    network = Network()
    network.block("x", "p", 64, 64, 128)
    assert "product_run" not in check(network, {"x": floats(1, 64, 6, 5)}, ["p"])


@pytest.mark.parametrize(("most", "runs"), [(50000, 0), (60000, 1)])
def test_runs_whose_ends_are_beyond_an_int_stay_apart(monkeypatch, most, runs):
    """Their weights and what lies between them were counted, and their input was not."""
    monkeypatch.setattr(persistent_kernel, "MOST_ELEMENTS", most)
    network = Network()
    network.conv("x", "a", 256, 64)
    for x, y in ("ab", "bc", "cd"):
        network.conv(x, y, 64, 64)
    network.op("Relu", "e", "d")
    kernels = check(network, {"x": floats(1, 256, 10, 20)}, ["e"])
    assert kernels.count("product_run") == runs
