"""RoiAlign on device OPENCL, against onnxruntime."""

import numpy as np
import pytest

import partita

from ..comparison import TILINGS, check, check_single, compiled, floats, refusal, single

REGIONS = np.array([[1, 1, 6, 7], [0, 0, 3.5, 3.5], [-2, 3, 20, 5], [4, 4, 4, 4]], np.float32)
IMAGES = np.array([0, 1, 1, 0])


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_regions(opset, mode, ratio, scale):
    attrs = {"mode": mode, "sampling_ratio": ratio, "spatial_scale": scale}
    attrs |= {"output_height": 3, "output_width": 2}
    check_single("RoiAlign", [floats(2, 3, 9, 8), REGIONS, IMAGES], attrs, opset=opset)


@pytest.mark.parametrize("where", ["half_pixel", "output_half_pixel"])
def test_samples_are_counted_as_float32_rounds(where):
    """15 times 0.8 are 12 pixels in float32, 6 of a cell."""
    attrs = {"spatial_scale": 0.8, "output_height": 3, "output_width": 2}
    attrs["coordinate_transformation_mode"] = where
    region = np.array([[-3, -2, 12, 5]], np.float32)
    check_single("RoiAlign", [floats(1, 2, 8, 8), region, np.array([0])], attrs)


def test_no_regions():
    inputs = [floats(2, 3, 9, 8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    check_single("RoiAlign", inputs, {"output_height": 2, "output_width": 2})


def test_halves():
    model, feeds = single("RoiAlign", [floats(2, 3, 9, 8), REGIONS, IMAGES], {"sampling_ratio": 2})
    check(model, feeds, rtol=5e-3, atol=5e-3, INFERENCE_PRECISION_HINT="f16")


@pytest.mark.parametrize("tiling", TILINGS)
def test_regions_of_any_size_end(tiling):
    """Samples beside the image are left out; undefined regions read nothing."""
    regions = np.array([[-3e38, -3e38, 3e38, 3e38], [np.nan] * 4, [0, 0, np.inf, 1]], np.float32)
    inputs = [floats(1, 2, 5, 5), regions, np.zeros(3, np.int64)]
    model, feeds = single("RoiAlign", inputs, {"output_height": 2, "output_width": 2})
    (found,) = compiled(model, TILING=tiling)(feeds).values()
    assert np.isfinite(found).all()
    assert not found[1:].any()


def test_images_out_of_range():
    model, feeds = single("RoiAlign", [floats(2, 3, 9, 8), REGIONS[:1], np.array([2])])
    with pytest.raises(partita.PartitaError, match="RoiAlign"):
        compiled(model)(feeds)


def test_too_many_samples_are_refused():
    inputs = [floats(2, 3, 9, 8), REGIONS, IMAGES]
    reason = refusal("RoiAlign", inputs, {"sampling_ratio": 1025})
    assert "sampling_ratio is 1025; takes 0 to 1024" in str(reason)
