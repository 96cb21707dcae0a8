"""Products whose tiles the copy engine of NVIDIA's Hopper brings; others do without it."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

import partita
from partita_opencl.device.device import find_device
from partita_opencl.emitters.gemm.bulk_copies import slab_count
from partita_opencl.launches.work_sizes import Tuning
from partita_opencl.runtime import device_model as compiled_module
from partita_opencl.trials import matrix_unit_checks
from partita_opencl.tuning import product_tiles
from partita_opencl.tuning.product_tiles import StreamTile

from ..comparison import build, compiled, core, expected, floats

TILE = StreamTile(32, 64, 64, (2, 1), 0.0, 0.0, 3, True, 0.0, 0.0, True)
OTHER = StreamTile(32, 32, 64, (2, 2), 1.0, 1.0, 3, False, 1.0, 1.0)


@pytest.fixture(autouse=True)
def copy_engine(monkeypatch):
    """One tile that is brought so, before all others; as if processors had what it takes."""
    device = find_device("")
    if device.limits.is_nvidia:
        if not device.limits.warpgroups:
            pytest.skip("this processor of NVIDIA has no such engine")
        brought = next(tile for tile in product_tiles.STREAM_TILES if tile.bulk)
        free = replace(brought, latency=0.0, work=0.0, start=0.0, store=0.0)
        tiles = [free if tile is brought else tile for tile in product_tiles.STREAM_TILES]
        monkeypatch.setattr(product_tiles, "STREAM_TILES", tuple(tiles))
        return
    of = Tuning.of
    able = {"warpgroups": True, "copy_engine": True}
    monkeypatch.setattr(Tuning, "of", lambda *a, **how: replace(of(*a, **how), **able))
    monkeypatch.setattr(device, "limits", replace(device.limits, matrix_units=True))
    monkeypatch.setattr(compiled_module, "objections", lambda _, wanted: dict.fromkeys(wanted, ""))
    monkeypatch.setattr(product_tiles, "CPU_STREAM_TILES", (TILE, OTHER))


HOW = {"INFERENCE_PRECISION_HINT": "f16", "TILING": "LOCAL", "PERF_COUNT": True}


def product(rows, depth, columns, precision="f16"):
    """A product with bias and activation; the result stays with halves."""
    weights = [
        numpy_helper.from_array(floats(depth, columns, seed=1) * depth**-0.5, "w"),
        numpy_helper.from_array(floats(columns, seed=2), "b"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["h"]),
        helper.make_node("Transpose", ["h"], ["y"]),
    ]
    return build(nodes, {"x": np.empty((rows, depth), np.float32)}, ["y"], weights)


def kernels(request):
    return [name for info in request.get_profiling_info() for name in info.exec_type.split("+")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sizes", [(70, 200, 72), (33, 1024, 136), (8, 64, 64), (200, 24, 200)])
@pytest.mark.parametrize(("precision", "bound"), [("f16", 2e-3), ("bf16", 2e-2)])
def test_products(sizes, precision, bound):
    model = product(*sizes)
    feeds = {"x": floats(*sizes[:2])}
    request = compiled(model, **{**HOW, "INFERENCE_PRECISION_HINT": precision})
    request = request.create_infer_request()
    [wanted] = expected(model, feeds)
    for _ in range(2):
        found = np.array(request.infer(feeds)[0])
        assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)
    assert "product_bulk" in kernels(request)


def test_products_without_bias():
    x, w = floats(70, 200), floats(200, 72, seed=1) * 200**-0.5
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["h"]),
        helper.make_node("Transpose", ["h"], ["y"]),
    ]
    model = build(nodes, {"x": x}, ["y"], [numpy_helper.from_array(w, "w")])
    request = compiled(model, **HOW).create_infer_request()
    wanted = np.maximum(x.astype(np.float64) @ w, 0).T
    for _ in range(2):
        found = np.array(request.infer({"x": x})[0])
        assert np.linalg.norm(found - wanted) <= 2e-3 * np.linalg.norm(wanted)
    assert "product_bulk" in kernels(request)


def test_residuals_and_results_of_float32():
    assert matrix_unit_checks.product_error("0", rows=70) < 2e-3


def test_matrices_that_lie_elsewhere_are_described_anew():
    model = product(40, 64, 64)
    runner = compiled(model, **HOW).device_model.create_runner()
    arrays = [floats(40, 64, seed=seed).astype(np.float32) for seed in range(3)]
    tensors = [
        core().device_api.transfer_to("OPENCL", partita.HostTensor(array)) for array in arrays
    ]
    for i in (0, 1, 0, 2, 2, 1):
        [found] = runner.run([tensors[i]])
        [wanted] = expected(model, {"x": arrays[i]})
        assert np.linalg.norm(found.numpy() - wanted) <= 2e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_copy_engine_that_fails_its_trial_is_left_alone(monkeypatch, is_known):
    """Also where it is tried when a plan needs it first."""
    copy_engine = matrix_unit_checks.Units.COPY_ENGINE

    def objections(_, wanted):
        fails = {copy_engine: "no such instruction"} if is_known or wanted.get(copy_engine) else {}
        return dict.fromkeys(wanted, "") | fails

    monkeypatch.setattr(compiled_module, "objections", objections)
    model = product(40, 64, 64)
    built = compiled(model, **HOW)
    assert built.device_model.tuning.warpgroups
    assert not built.device_model.tuning.copy_engine
    request = built.create_infer_request()
    found = np.array(request.infer({"x": floats(40, 64)})[0])
    (wanted,) = expected(model, {"x": floats(40, 64)})
    assert np.linalg.norm(found - wanted) <= 2e-3 * np.linalg.norm(wanted)
    assert "product_stream (stepped back: no such instruction)" in kernels(request)


def test_the_trial_tells_which_tile_is_wrong(monkeypatch):
    copy_engine = matrix_unit_checks.Units.COPY_ENGINE
    first = next(tile for tile in product_tiles.STREAM_TILES if tile.bulk)
    errors = iter((1e-4, float("nan")))
    monkeypatch.setattr(matrix_unit_checks, "product_error", lambda _: next(errors))
    assert not matrix_unit_checks.fault("", copy_engine, 0)
    wanted = f"a product by {first.high} x {first.wide} is off by nan"
    assert matrix_unit_checks.fault("", copy_engine, 0) == wanted


@pytest.mark.parametrize(
    ("parts", "room", "wanted"),
    [(4, 0, 1), (4, 4096, 2), (4, 10_000, 2), (6, 20_000, 3), (1, 0, 1)],
)
def test_slabs_divide_the_parts(parts, room, wanted):
    assert slab_count(TILE, parts, TILE.local_bytes + room) == wanted
