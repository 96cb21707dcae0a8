"""Weights of 4 bits in tiles: their order, and products of few rows that read them so."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita_opencl.device.device import find_device
from partita_opencl.emitters.gemm.block_tiles import sharers_of, shares_of_factors
from partita_opencl.emitters.gemm.block_weights import BlockForm
from partita_opencl.emitters.gemm.tiled_weights import PIECE, TILE, WORD_BYTES, in_tiles
from partita_opencl.runtime import device_model
from partita_opencl.trials.matrix_unit_checks import Units, fault, parts

from ..comparison import build, compiled, expected, floats, integers
from ..networks.test_opencl_decoder_fusion import Decoder, norm, product
from .test_opencl_block_runs import F16, chain


@pytest.fixture
def tiled(monkeypatch):
    """A processor's device holds one group for certain, and copies by its items."""
    device = find_device("")
    if not device.limits.is_nvidia:
        units = {"matrix_units": True, "warpgroups": True, "resident_groups": 1}
        monkeypatch.setattr(device, "limits", replace(device.limits, **units))
        monkeypatch.setattr(device_model, "objections", lambda _, wanted: dict.fromkeys(wanted, ""))


@pytest.mark.parametrize(
    ("columns", "depth", "block", "dtype", "has_offsets"),
    [
        (41, 96, 32, np.uint16, False),
        (33, 200, 64, np.float32, True),
        (16, 64, 128, np.uint16, True),
        (700, 72, 32, np.float32, False),
    ],
)
def test_order(columns, depth, block, dtype, has_offsets):
    blocks = -(-depth // block)
    data = integers(columns, blocks, block // 2, low=0, high=256, dtype=np.uint8)
    scales = integers(columns, blocks, low=1, high=60000, dtype=dtype)
    offsets = scales + dtype(1) if has_offsets else None
    tiles = in_tiles(depth, data, scales, offsets)
    nibbles = np.stack([data & 15, data >> 4], -1).reshape(columns, -1)
    words = tiles[:, :, :WORD_BYTES].reshape(-1, tiles.shape[1], 32, 16)
    sides = np.ascontiguousarray(tiles[:, :, WORD_BYTES:]).view(dtype)
    sides = sides.reshape(-1, tiles.shape[1], 8, 2 if has_offsets else 1, 4)
    for n in range(columns):
        tile, column = n // TILE, n % TILE
        for k in range(depth):
            # Element k is in the word of item (column % 8, k / 8 % 4), of its block and column.
            piece, half, t = k // PIECE, k // 32 % 2, k // 8 % 4
            item, word = column % 8 * 4 + t, half * 2 + column // 8
            byte = words[tile, piece, item, word * 4 + k % 8 // 2]
            assert (byte >> k % 2 * 4) & 15 == nibbles[n, k]
            found = sides[tile, piece, column % 8, :, column // 8 * 2 + half]
            wanted = [scales[n, k // block], *([offsets[n, k // block]] if has_offsets else [])]
            assert found.tolist() == wanted


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize(
    ("sizes", "rows", "more", "kernels"),
    [
        ((4256, 96, 32, 65), 1, {"bias": True}, ["block_tiles"]),
        ((72, 2600, 41), 2, {"zeros": True}, ["block_tiles"]),
        ((200, 96), 3, {"zeros": True, "block": 64, "halves": True}, ["block_tiles"]),
        ((64, 608, 64), 4, {"halves": True}, ["block_tiles"]),
        ((4256, 96, 32, 65), 5, {"bias": True}, ["block_rows"] * 3),
        ((72, 2600, 41), 9, {"zeros": True}, ["block_rows"] * 2),
        ((200, 96), 20, {"zeros": True, "block": 64, "halves": True}, ["block_rows"]),
        ((64, 608, 64), 32, {"halves": True}, ["block_rows"] * 2),
    ],
)
def test_products(sizes, rows, more, kernels):
    model, feeds = chain(rows, sizes, **more)
    request = compiled(model, **F16).create_infer_request()
    (wanted,) = expected(model, feeds)
    for _ in range(3):
        (found,) = request.infer(feeds).to_tuple()
        assert np.abs(found - wanted).max() <= 6e-3 * np.abs(wanted).max()
    found_kernels = [step.how for step in request.explain_execution().steps]
    assert found_kernels == ["chain_flat", *kernels, "chain_flat"]


@pytest.mark.usefixtures("tiled")
def test_prompts_read_the_same_weights():
    model, feeds = chain(33, (128, 192, 64), zeros=True)
    request = compiled(model, **F16).create_infer_request()
    (found,) = request.infer(feeds).to_tuple()
    (wanted,) = expected(model, feeds)
    assert np.abs(found - wanted).max() <= 6e-3 * np.abs(wanted).max()
    assert "block_unpack" in [step.how for step in request.explain_execution().steps]


@pytest.mark.usefixtures("tiled")
def test_layers_of_a_token(tmp_path):
    decoder = Decoder(tmp_path, "Q4_0", **F16)
    decoder.check(4e-3)
    kernels = [kernel for kernel in decoder.kernels() if kernel.startswith(("block", "cache_att"))]
    # Queries, keys and values of the first layer, then a run for each, the last one with the head.
    assert kernels[:5] == ["block_tiles", *["cache_attention", "block_tiles"] * 2]


@pytest.mark.parametrize("factors", [[0.5, -3.0, 1e-3], [0.0, 0.0], [np.inf, 2.0], [3e38, 1.0]])
def test_factors_come_in_shares_that_enlarge_nothing(factors):
    factors = np.array(factors, np.float32)
    *shares, rest = shares_of_factors(factors)
    assert all(abs(share) < 1.0 or np.isinf(share) or rest == 2.0**127 for share in shares)
    np.testing.assert_array_equal(np.array(shares) * rest, factors)


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("scale", [1e4, 1.0, 1e-3])
def test_normalized_rows_times_factors_beyond_halves(scale):
    feeds = {"x": floats(2, 64) * np.float32(scale)}
    factors = numpy_helper.from_array(floats(64, seed=9) * np.float32(100.0), "scale")
    nodes = [norm("SimplifiedLayerNormalization", ["x", "scale"], ["n"], "n")]
    node, weights = product("p", "n", 48, 64)
    nodes.append(node)
    model = build(nodes, feeds, ["p"], [*weights, factors])
    request = compiled(model, **F16).create_infer_request()
    (found,) = request.infer(feeds).to_tuple()
    (wanted,) = expected(model, feeds)
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()
    steps = [step.how for step in request.explain_execution().steps]
    assert steps == ["chain_flat", "block_tiles", "chain_flat"]


@pytest.mark.usefixtures("tiled")
def test_what_gates_made_is_a_residual_of_a_later_launch():
    feeds = {"x": floats(1, 64)}
    scale = numpy_helper.from_array(np.ones(64, np.float32), "scale")
    names = {"gate": ("x", 64), "up": ("x", 64), "p": ("y", 64), "q": ("n", 40)}
    made = {name: product(name, source, n, 64) for name, (source, n) in names.items()}
    biases = [
        numpy_helper.from_array(floats(64, seed=5), f"{name}.bias") for name in ("gate", "up")
    ]
    for name, bias in zip(("gate", "up"), biases, strict=True):
        made[name][0].input.extend(["", "", bias.name])
    nodes = [
        *(made["gate"][0], made["up"][0]),
        helper.make_node("Sigmoid", ["gate"], ["open"], "open"),
        helper.make_node("Mul", ["gate", "open"], ["active"], "active"),
        helper.make_node("Mul", ["active", "up"], ["y"], "y"),
        made["p"][0],
        norm("SkipSimplifiedLayerNormalization", ["y", "p", "scale"], ["n", "", "", "s"], "k"),
        made["q"][0],
    ]
    weights = [scale, *biases, *(array for _, arrays in made.values() for array in arrays)]
    model = build(nodes, feeds, ["q"], weights)
    request = compiled(model, **F16).create_infer_request()
    (found,) = request.infer(feeds).to_tuple()
    (wanted,) = expected(model, feeds)
    assert np.abs(found - wanted).max() <= 6e-3 * np.abs(wanted).max()
    steps = [step.how for step in request.explain_execution().steps]
    assert steps.count("block_tiles") == 2


@pytest.mark.usefixtures("tiled")
def test_trial_finds_no_fault():
    device = find_device("")
    last = parts(Units.COPY_ENGINE, device.limits) - 1
    assert not fault(device.id, Units.COPY_ENGINE, last)


def test_sharers_give_all_warps_work():
    groups = 132
    assert sharers_of(BlockForm(2048, 8192, 4, 32), groups) == 16  # fewer tiles than groups
    assert sharers_of(BlockForm(16384, 2048, 4, 32), groups) == 2  # all tiles in one turn
    assert sharers_of(BlockForm(128256, 2048, 4, 32), groups) == 1
