"""GridSample on device OPENCL, against onnxruntime or a sum that is written out."""

import numpy as np
import pytest

import partita

from ..comparison import TILINGS, check, compiled, floats, refusal, single

MODES = {"nearest": 1, "linear": 2, "cubic": 4}
PADDINGS = ["zeros", "border", "reflection"]


def grid_of(*shape, reach=1.7):
    return np.random.default_rng(3).uniform(-reach, reach, shape).astype(np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("aligned", [0, 1])
def test_images(mode, padding, aligned):
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    arrays = [floats(2, 3, 6, 9), grid_of(2, 5, 8, 2)]
    check(*single("GridSample", arrays, attrs, opset=20), atol=2e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("aligned", [0, 1])
def test_volumes(mode, padding, aligned):
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    arrays = [floats(2, 3, 4, 6, 5), grid_of(2, 3, 4, 2, 3)]
    check(*single("GridSample", arrays, attrs, opset=20), atol=2e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_modes_of_opset_16(mode):
    check(
        *single("GridSample", [floats(1, 2, 5, 5), grid_of(1, 4, 4, 2)], {"mode": mode}, opset=16)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_coordinates_out_of_all_bounds(mode, padding):
    """They read nothing outside: zeros, the border or some element."""
    grid = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e9, -1e9, 0.0], np.float32)
    grid = np.stack(np.meshgrid(grid, grid), -1)[None]
    model, feeds = single(
        "GridSample",
        [np.ones((1, 1, 5, 7), np.float32), grid],
        {"mode": mode, "padding_mode": padding},
        opset=20,
    )
    for tiling in TILINGS:
        (found,) = compiled(model, TILING=tiling)(feeds).values()
        assert np.isfinite(found).all()
        if padding != "zeros":
            np.testing.assert_allclose(found, 1.0, rtol=1e-5)


def test_empty_images():
    arrays = [np.zeros((1, 2, 0, 4), np.float32), grid_of(1, 3, 3, 2)]
    for padding in PADDINGS:
        model, feeds = single("GridSample", arrays, {"padding_mode": padding}, opset=20)
        (found,) = compiled(model)(feeds).values()
        np.testing.assert_array_equal(found, np.zeros((1, 2, 3, 3), np.float32))


def test_sizes_that_vary():
    arrays = [floats(2, 3, 6, 9), grid_of(2, 5, 8, 2)]
    model, feeds = single("GridSample", arrays, opset=20, dynamic=True)
    other = {"x0": floats(1, 7, 5, 5), "x1": grid_of(1, 40, 3, 2)}
    check(model, feeds, other, feeds, atol=2e-5)


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_in_half(precision):
    """The grid is of coordinates that bfloat16 holds; elements between them are rounded."""
    grid = np.round(grid_of(1, 5, 8, 2) * 16) / 16
    model, feeds = single("GridSample", [floats(1, 3, 6, 8), grid], opset=20)
    check(model, feeds, rtol=3e-2, atol=3e-2, INFERENCE_PRECISION_HINT=precision)


@pytest.mark.parametrize("types", [(np.float16, np.float32), (np.float32, np.float16)])
def test_images_and_grids_of_two_types(types):
    grid = np.round(grid_of(1, 5, 8, 2) * 16) / 16
    x = floats(1, 3, 6, 8)
    model, feeds = single("GridSample", [x, grid], opset=20)
    (wanted,) = compiled(model)(feeds).values()
    model, feeds = single("GridSample", [x.astype(types[0]), grid.astype(types[1])], opset=20)
    (found,) = compiled(model)(feeds).values()
    assert found.dtype == types[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def test_what_is_not_defined():
    arrays = [floats(1, 2, 3, 4, 5), grid_of(1, 2, 2, 2, 3)]
    model, feeds = single("GridSample", arrays, {"mode": "cubic"}, opset=20)
    with pytest.raises(partita.PartitaError, match="cannot sample"):
        compiled(model)(feeds)
    arrays = [floats(1, 2, 4, 5), grid_of(1, 2, 2, 2)]
    assert "padding_mode" in refusal("GridSample", arrays, {"padding_mode": "no"}, opset=20).detail
