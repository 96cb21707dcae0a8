"""Products of float32 whose tiles come by copies that arrive later."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita_opencl.device.device import find_device
from partita_opencl.emitters.gemm import products
from partita_opencl.tuning import product_tiles
from partita_opencl.tuning.product_tiles import StagedTile, Tile, ranked, tiles_for

from ..comparison import build, check_single, compiled, expected, floats

STAGED = next(tile for tile in product_tiles.TILES if isinstance(tile, StagedTile))
SMALL = StagedTile(64, 32, 8, (16, 4), 0.5, 0.5, 3)
OTHER = Tile(32, 32, 16, (4, 4), 1.0, 1.0)


@pytest.fixture
def staged(monkeypatch):
    """Such tiles before all others."""
    monkeypatch.setattr(product_tiles, "OVER_SMALL", -1e6)
    monkeypatch.setattr(product_tiles, "TILES", (STAGED, OTHER))
    monkeypatch.setattr(product_tiles, "CPU_TILES", (SMALL, OTHER))
    cuts, macros, used = product_tiles.cuts_of, products.tile_macros, []
    whole = lambda *of: [cut for cut in cuts(*of) if cut.splits == 1]  # noqa: E731
    monkeypatch.setattr(product_tiles, "cuts_of", whole)

    def spied(tile, *of):
        used.append(tile)
        return macros(tile, *of)

    monkeypatch.setattr(products, "tile_macros", spied)
    yield
    assert any(isinstance(tile, StagedTile) for tile in used)


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((130, 64), (64, 72)),  # whole steps, rows and columns past whole tiles
        ((65, 33), (33, 36)),  # a depth that ends within a step
        ((3, 70, 41), (3, 41, 132)),  # several matrices
        ((140, 3), (3, 4)),  # fewer steps than stages
    ],
)
def test_products(left, right):
    check_single("MatMul", [floats(*left), floats(*right, seed=1)], atol=1e-4)


@pytest.mark.usefixtures("staged")
@pytest.mark.parametrize("bias", [(72,), (70, 1), (1,)])
def test_bias_residual_and_activation(bias):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "r"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(floats(50, 72, seed=1), "w"),
        numpy_helper.from_array(floats(*bias, seed=2), "b"),
    ]
    feeds = {"x": floats(70, 50), "r": floats(70, 72, seed=3)}
    model = build(nodes, feeds, ["y"], weights)
    request = compiled(model, TILING="LOCAL").create_infer_request()
    [wanted] = expected(model, feeds)
    np.testing.assert_allclose(request.infer(feeds)[0], wanted, atol=1e-4)


def test_only_large_products_take_them():
    device = find_device("").limits
    limits = replace(
        device, is_cpu=False, compute_units=132, group_items=1024, kernel_local_bytes=226 << 10
    )
    tiles = tiles_for(limits, staged=True)
    assert STAGED in tiles
    assert STAGED not in tiles_for(limits)
    # By measurements beside the other tiles on an H200; see the performance log.
    for sizes, is_staged in [
        ((4096, 4096, 4096), True),
        ((2048, 2048, 2048), True),
        ((512, 4096, 4096), True),
        ((1024, 3072, 768), False),
        ((1024, 768, 3072), False),
        ((1024, 1024, 1024), False),
        ((128, 3072, 768), False),
    ]:
        assert isinstance(ranked(limits, tiles, *sizes, 1)[0].tile, StagedTile) == is_staged
