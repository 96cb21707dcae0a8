"""Networks on machines that are not at hand, and what this machine is taken for."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results

import partita
from partita.cli.main import main
from partita.errors import PropertyError
from partita.system.cache_sizes import CacheSizes, cache_sizes
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import LARGE_PANEL_SHARE, PANEL_SHARE, plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.tile_fields import PANEL_UNITS, ROWS_AHEAD, TILE_ROWS
from partita_cpu.gemm.tile_kernels import tile_kernels
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.isa import isa
from partita_cpu.llvm import module
from partita_cpu.llvm.levels import AMX, AVX2, AVX512, AVX512_BF16, PORTABLE
from partita_cpu.machine_model import VARIABLE, MachineModel, this_machine

from ..conftest import CACHES
from .test_native_layout import LEVELS, Net, check, compiled
from .test_native_passes import dense_block


@pytest.fixture(params=CACHES.values(), ids=CACHES)
def caches(request, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/".join(f"{size >> 10}K" for size in request.param))
    assert this_machine().caches == request.param
    return request.param


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param)


def image_network(seed):
    """Convolutions of all kinds, of random sizes."""
    rng = np.random.default_rng(seed)
    height, width, channels = (int(rng.integers(low, high)) for low, high in ((9, 60),) * 3)
    net = Net(int(rng.integers(1, 3)), 3, height, width, seed=seed)
    x = net.add("Relu", net.conv("x", 3, channels, 3))
    y = net.add("Relu", net.conv(x, channels, 4 * channels, 1))
    y = net.add("HardSwish", net.conv(y, 4 * channels, 4 * channels, 3, 4 * channels))
    x = net.add("Add", x, net.conv(y, 4 * channels, channels, 1))
    x = net.add("HardSwish", net.conv(x, channels, channels, 7, channels))
    x = net.conv(x, channels, 5 * channels + 3, 3, strides=[2, 2])
    return net, net.conv(net.add("Relu", x), 5 * channels + 3, 2, 5)


@pytest.mark.usefixtures("level", "caches")
@pytest.mark.parametrize("seed", range(3))
def test_random_image_networks(seed):
    net, y = image_network(seed)
    check(net, y, config={"EXECUTION_MODE_HINT": "ACCURACY"}, tolerance=1e-5)


@pytest.mark.usefixtures("level", "caches")
def test_a_network_whose_images_are_concatenated():
    check(*dense_block(), config={"EXECUTION_MODE_HINT": "ACCURACY"}, tolerance=1e-5)


@pytest.mark.usefixtures("level", "caches")
@pytest.mark.parametrize(("rows", "depth", "columns"), [(37, 70, 45), (130, 300, 64), (5, 700, 9)])
def test_products_of_matrices_that_only_the_run_brings(rows, depth, columns):
    net = Net(3, rows, depth)
    other = net.const(values=net.rng.standard_normal((1, depth, columns)).astype(np.float32))
    scores = net.add("MatMul", "x", net.add("Transpose", "x", perm=[0, 2, 1]))
    values = net.add("MatMul", net.add("MatMul", net.add("Softmax", scores, axis=-1), "x"), other)
    check(net, values, config={"EXECUTION_MODE_HINT": "ACCURACY"}, tolerance=1e-5)


@pytest.mark.usefixtures("level")
def test_an_exported_model_runs_on_a_machine_with_other_caches(monkeypatch):
    net, y = image_network(5)
    model = net.model(y)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (wanted,) = onnxruntime_results(model, {"x": x})
    sizes = ["1K/4K", "48K/2M", "32K/256K/8M"]
    for made, run in zip(sizes, sizes[1:] + sizes[:1], strict=True):
        monkeypatch.setenv(VARIABLE, made)
        exported = compiled(model, EXECUTION_MODE_HINT="ACCURACY").export_model()
        monkeypatch.setenv(VARIABLE, run)
        found = np.asarray(partita.Core().import_model(exported, "CPU")({"x": x})[0])
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_blocks_are_whole_lines_of_a_cache_and_never_empty():
    for sizes in CACHES.values():
        machine = MachineModel(AVX512, 1, sizes)
        for share in (1e-6, 1 / 3, 2 / 3, 2.0):
            for found in (machine.l1_bytes(share), machine.l2_bytes(share)):
                assert found > 0
                assert found % 64 == 0
        assert abs(machine.l1_bytes(1 / 3) - sizes.l1d / 3) <= 32
        assert abs(machine.l2_bytes(2.0) - 2 * sizes.l2) <= 32


@pytest.mark.parametrize(("kib", "rows"), [(1, 6), (32, 12), (48, 14), (64, 14)])
def test_rows_of_tiles_leave_room_in_the_sets_of_the_nearest_cache(kib, rows):
    caches = CacheSizes(kib << 10, 1 << 20, 0)
    for level, most in ((AVX512, rows), (AVX2, 6)):
        machine = MachineModel(level, 1, caches)
        cut = plan(Images.matrix(1000, 256, 64), machine, Arithmetic.F32, 1)
        assert machine.tile_rows == cut.table[TILE_ROWS] == most
    tiles = MachineModel(AMX, 1, caches)
    cut = plan(Images.matrix(1000, 256, 64), tiles, Arithmetic.BF16, 1)
    assert cut.table[TILE_ROWS] == 32


@pytest.mark.parametrize(
    ("level", "arithmetic", "rows", "scaled", "asked"),
    [
        (AVX512, Arithmetic.F32, 2049, False, 1),
        (AVX2, Arithmetic.F32, 2049, False, 1),
        (AVX512, Arithmetic.F32, 2048, False, 0),  # the second-level cache twice
        (AVX512, Arithmetic.F32, 4000, True, 0),  # copied first
        (AMX, Arithmetic.BF16X6, 4000, False, 0),
    ],
)
def test_rows_of_far_tensors_are_asked_for(level, arithmetic, rows, scaled, asked):
    machine = MachineModel(level, 1, CacheSizes(32 << 10, 1 << 20, 0))
    storage = Storage(scaled=scaled)
    cut = plan(Images.matrix(rows, 256, 64), machine, arithmetic, 1, storage)
    assert cut.table[ROWS_AHEAD] == asked


@pytest.mark.parametrize(
    ("level", "arithmetic", "depth", "outputs", "half_out", "row"),
    [
        (AVX512, Arithmetic.F32, 64, 256, False, 4 * (64 + 256)),
        (AVX2, Arithmetic.F32, 64, 256, False, 4 * (64 + 256)),
        (AVX512_BF16, Arithmetic.BF16, 64, 256, True, 2 * (64 + 256)),
        (AMX, Arithmetic.BF16, 64, 256, False, 2 * 64),
        # Weights that do not stay in the cache are read again for every panel.
        (AVX512, Arithmetic.F32, 1024, 1024, False, 4 * 1024),
    ],
)
def test_a_panel_and_its_result_stay_in_the_cache(level, arithmetic, depth, outputs, half_out, row):
    l2 = 1 << 20
    machine = MachineModel(level, 1, CacheSizes(32 << 10, l2, 0))
    storage = Storage(half_in=arithmetic is Arithmetic.BF16, half_out=half_out)
    images = Images.matrix(1 << 14, depth, outputs)
    cut = plan(images, machine, arithmetic, 1, storage)
    room = l2 * (LARGE_PANEL_SHARE if 4 * depth * outputs > l2 // 2 else PANEL_SHARE)
    most = room / row
    assert most - cut.table[TILE_ROWS] < cut.table[PANEL_UNITS] <= most


def test_this_machine_is_what_the_system_says(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    machine = this_machine()
    assert machine.caches == cache_sizes()
    assert machine.level is isa()
    assert machine.cores >= 1


@pytest.mark.parametrize(
    ("told", "sizes"),
    [
        ("32K/1M", (32 << 10, 1 << 20, 0)),
        (" 48k/2m/260m ", (48 << 10, 2 << 20, 260 << 20)),
        ("0064K/512K/0K", (64 << 10, 512 << 10, 0)),
    ],
)
def test_caches_that_the_user_tells(told, sizes, monkeypatch):
    monkeypatch.setenv(VARIABLE, told)
    assert this_machine().caches == sizes


@pytest.mark.parametrize(
    "told", ["1M", "32K", "32/256", "32K/256K/", "0K/1M", "32K/0M", "-1K/1M", "9999999999M/1M", "x"]
)
def test_caches_that_cannot_be(told, monkeypatch):
    monkeypatch.setenv(VARIABLE, told)
    with pytest.raises(PropertyError, match=r"PARTITA_CPU_CACHES is .*; write .*32K/1M"):
        this_machine()
    with pytest.raises(PropertyError, match="PARTITA_CPU_CACHES"):
        compiled(Net(1, 2).model("x"))


def test_the_device_tells_them(monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "48K/2M")
    info = partita.Core().device_info("CPU")
    assert info.details["caches"] == "48 KiB L1d, 2048 KiB L2 per core"
    assert main(["devices", "--details"]) == 0
    assert "48 KiB L1d, 2048 KiB L2 per core" in capsys.readouterr().out
    assert main(["devices"]) == 0
    assert "L1d" not in capsys.readouterr().out


def test_machines_are_equal_if_kernels_are_cut_alike():
    assert MachineModel(PORTABLE) == MachineModel(PORTABLE)
    assert MachineModel(PORTABLE) != MachineModel(AVX512)


@pytest.mark.parametrize(
    ("level", "arithmetic"), [(AVX512, Arithmetic.F32), (AVX512_BF16, Arithmetic.BF16)]
)
def test_kernels_of_more_rows_than_tiles_have_are_not_compiled(monkeypatch, level, arithmetic):
    asked = []

    def addresses(level, part=""):
        asked.append(part)
        return {function.name: 1 for function in module.functions(level, part)}

    monkeypatch.setattr(llvm_kernel, "addresses", addresses)
    found = tile_kernels.__wrapped__(level, arithmetic, most_rows=12)
    assert (found[1:13] != 0).all() and not found[13:15].any()
    assert not any(part.endswith("_tall") for part in asked)
    found = tile_kernels.__wrapped__(level, arithmetic, most_rows=14)
    assert (found[1:15] != 0).all() and any(part.endswith("_tall") for part in asked)
