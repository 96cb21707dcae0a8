"""Resize, Upsample, GridSample and AffineGrid against onnxruntime."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx.reference import ReferenceEvaluator
from sampling import examples
from single_op import (
    assert_same,
    check,
    model_of,
    normal,
    run_ours,
)

from partita.errors import CompileError, PartitaError
from partita.lowering.emission import builder
from partita.lowering.geometry import resampling

TRANSFORMS = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]
SCALES = [(1, 1, 2, 3), (1, 1, 0.6, 0.5), (1, 1, 1.7, 0.3), (1, 1, 1, 2)]
ROUNDED = SCALES[1:3]
"""By which sizes are no whole numbers: corners are then aligned otherwise by onnxruntime."""


def scales_of(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def check_by_onnx(x, scales, **attributes):
    inputs = [x, None, scales_of(*scales)]
    model = model_of("Resize", inputs, constants=(2,), **attributes)
    (expected,) = ReferenceEvaluator(model).run(None, {"x0": x})
    (y,) = run_ours("Resize", inputs, constants=(2,), **attributes)
    assert_same(y, expected.astype(np.float32), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest(scales, transform, rounding):
    if transform == "align_corners" and scales in ROUNDED:
        modes = {"coordinate_transformation_mode": transform, "nearest_mode": rounding}
        check_by_onnx(normal(1, 1, 2, 7, 6), scales, **modes)
        return
    check(
        "Resize",
        [normal(1, 1, 2, 7, 6), None, scales_of(*scales)],
        constants=(2,),
        coordinate_transformation_mode=transform,
        nearest_mode=rounding,
    )


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("transform", ["asymmetric", "half_pixel"])
def test_places_that_float32_computes_beside_a_half_are_halves(transform, rounding):
    attributes = {"coordinate_transformation_mode": transform, "nearest_mode": rounding}
    for size, out in [(7, 2), (7, 8), (11, 26), (14, 1), (14, 19), (18, 21), (20, 6), (23, 28)]:
        x = np.arange(size, dtype=np.float32).reshape(1, 1, -1)
        check("Resize", [x, None, None, np.array([1, 1, out])], constants=(3,), **attributes)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_symmetric(rounding):
    check(
        "Resize",
        [normal(1, 1, 2, 7, 7), None, scales_of(1, 1, 0.65, 1.55)],
        constants=(2,),
        coordinate_transformation_mode="half_pixel_symmetric",
        nearest_mode=rounding,
    )


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("transform", [*TRANSFORMS, "half_pixel_symmetric"])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation(scales, transform, antialias, mode):
    if transform == "align_corners" and scales in ROUNDED:
        modes = {"coordinate_transformation_mode": transform, "mode": mode}
        check_by_onnx(normal(1, 2, 2, 7, 6), scales, **modes, antialias=antialias)
        return
    check(
        "Resize",
        [normal(1, 2, 2, 7, 6), None, scales_of(*scales)],
        constants=(2,),
        coordinate_transformation_mode=transform,
        mode=mode,
        antialias=antialias,
    )


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("coefficient", [-0.5, -0.75])
def test_cubic_without_border(antialias, coefficient):
    check(
        "Resize",
        [normal(1, 1, 2, 7, 6), None, scales_of(1, 1, 0.6, 1.7)],
        constants=(2,),
        mode="cubic",
        antialias=antialias,
        cubic_coeff_a=coefficient,
        exclude_outside=1,
    )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(mode):
    region = scales_of(0, 0, -0.2, 0.3, 1, 1, 0.8, 1.2)
    check(
        "Resize",
        [normal(1, 1, 2, 7, 6), region, None, np.array([1, 2, 5, 9])],
        constants=(1, 3),
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_other_ranks(mode):
    check("Resize", [normal(1, 1, 2, 9), None, scales_of(1, 1, 2.5)], constants=(2,), mode=mode)
    volume = normal(1, 1, 2, 3, 4, 5)
    check("Resize", [volume, None, scales_of(1, 1, 2, 1.5, 0.7)], constants=(2,), mode=mode)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("constants", [(), (3,)])
def test_sizes_of_some_axes(policy, constants):
    check(
        "Resize",
        [normal(1, 1, 2, 7, 6), None, None, np.array([10, 13])],
        constants=constants,
        axes=[2, 3],
        keep_aspect_ratio_policy=policy,
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16])
def test_nearest_moves_other_types(dtype):
    x = normal(1, 1, 2, 3, 4, dtype=dtype)
    (y,) = run_ours("Resize", [x, None, scales_of(1, 1, 2, 2)], constants=(2,))
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x.repeat(2, axis=2).repeat(2, axis=3))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_linear_of_integers(dtype):
    # Sums that are whole numbers but for rounding errors may fall to either side: within 1.
    x = normal(1, 1, 2, 7, 6, dtype=dtype)
    scales = scales_of(1, 1, 2, 1.5)
    model = model_of("Resize", [x, None, scales], constants=(2,), mode="linear")
    (expected,) = onnxruntime_results(model, {"x0": x})
    (got,) = run_ours("Resize", [x, None, scales], constants=(2,), mode="linear")
    assert got.dtype == dtype
    wrong = np.abs(got.astype(np.int64) - expected.astype(np.int64))
    assert wrong.max() <= 1
    assert np.mean(wrong > 0) < 0.02


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 2.0, 3.0), (1.0, 1.0, 1.5, 2.5)])
def test_old_opsets(mode, scales):
    x = normal(1, 1, 2, 4, 5)
    check("Upsample", [x], opset=7, mode=mode, scales=scales)
    check("Upsample", [x, scales_of(*scales)], opset=9, mode=mode, constants=(1,))
    check("Resize", [x, scales_of(*scales)], opset=10, mode=mode, constants=(1,))
    check("Resize", [x, scales_of(1, 1, 0.6, 0.5)], opset=10, mode=mode, constants=(1,))
    nothing = np.zeros(0, np.float32)
    check("Resize", [x, nothing, scales_of(*scales)], opset=11, mode=mode, constants=(1, 2))


def test_last_element_of_an_axis_whose_places_float32_rounds_up():
    x = np.zeros(2**25, np.uint8)
    x[[0, -1]] = 3, 7
    modes = {"coordinate_transformation_mode": "align_corners", "nearest_mode": "floor"}
    (y,) = run_ours("Resize", [x, None, None, np.array([2])], constants=(3,), **modes)
    np.testing.assert_array_equal(y, [3, 7])


@examples(100)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.3, 3.5)), min_size=2, max_size=2),
    st.sampled_from(["half_pixel", "pytorch_half_pixel", "asymmetric"]),
    st.sampled_from(["linear", "cubic"]),
    st.tuples(st.booleans(), st.booleans()),
    st.integers(1, 200),
)
def test_tables_in_pieces(sizes, transform, mode, flags, most):
    """As large ones are made by runs, and in blocks."""
    x = normal(3, 1, 2, *(n for n, _ in sizes))
    scales = scales_of(1, 1, *(max(scale, 1.01 / n) for n, scale in sizes))
    exact = x.shape * scales.astype(np.float64)
    # onnxruntime rounds 3 * 2.3333333 to 7.0 of float32; ONNX, and all devices here, make it 6.
    assume((np.floor(exact) == np.floor(exact.astype(np.float32))).all())
    scales[np.floor(exact) == x.shape] = 1  # onnxruntime leaves these axes as they are
    attributes = {"mode": mode, "coordinate_transformation_mode": transform}
    attributes |= {"antialias": int(flags[0]), "exclude_outside": int(flags[1] and mode == "cubic")}
    with (
        mock.patch.object(builder, "MOST_TABLE_BYTES", most),
        mock.patch.object(resampling, "BLOCK", 1 + most // 20),
    ):
        check("Resize", [x, None, scales], constants=(2,), **attributes)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("aligned", [0, 1])
def test_grid_sample(mode, padding, aligned):
    grid = normal(2, 2, 3, 5, 2)
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    check("GridSample", [normal(1, 2, 3, 6, 4), grid], opset=20, **attributes)
    if mode != "cubic":
        volume = normal(1, 1, 2, 3, 6, 4)
        check("GridSample", [volume, normal(2, 1, 3, 2, 5, 3)], opset=20, **attributes)


@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("channels", [3, 4, 12])
def test_channels_sampled_together(padding, channels):
    """Some points lie beside the image; what is not finite reaches its own channel alone."""
    x = normal(1, 2, channels, 7, 9)
    x[0, 1, 0, 0], x[1, channels - 1, 6, 8] = np.inf, np.nan
    check("GridSample", [x, normal(2, 2, 23, 31, 2)], opset=20, padding_mode=padding)


def test_grid_of_infinities_reads_only_padding():
    grid = np.array([[[[np.inf, 0], [np.nan, 0], [-np.inf, 1e30]]]], np.float32)
    (y,) = run_ours("GridSample", [normal(1, 1, 1, 4, 4), grid], opset=20)
    np.testing.assert_array_equal(y, np.zeros((1, 1, 1, 3), np.float32))


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_affine_grid(aligned, size):
    rank = len(size) - 2
    inputs = [normal(1, size[0], rank, rank + 1), np.array(size)]
    model = model_of("AffineGrid", inputs, align_corners=aligned)
    feeds = dict(zip(("x0", "x1"), inputs, strict=True))
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    (got,) = run_ours("AffineGrid", inputs, align_corners=aligned)
    assert_same(got, expected, 1e-5, 1e-5)


def test_refusals():
    x = normal(1, 1, 2, 4, 5)
    with pytest.raises(CompileError, match="neither scales nor sizes"):
        run_ours("Resize", [x, None, None])
    with pytest.raises(CompileError, match="has no 'roi' input"):
        attributes = {"coordinate_transformation_mode": "tf_crop_and_resize"}
        run_ours("Resize", [x, None, scales_of(1, 1, 2, 2)], **attributes)
    with pytest.raises(CompileError, match="uint8 with mode 'cubic'"):
        run_ours("Resize", [x.astype(np.uint8), None, scales_of(1, 1, 2, 2)], mode="cubic")
    with pytest.raises(CompileError, match="cannot sample an input"):
        run_ours("GridSample", [x, normal(2, 1, 2, 2, 3)], opset=20)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("constants", [(), (3,)], ids=["sizes of the request", "known sizes"])
def test_more_elements_than_places_can_be_told_apart_are_refused(mode, constants):
    """And nothing is allocated for them before."""
    inputs = [normal(1, 1, 1), None, None, np.array([1, 2**31], np.int64)]
    with pytest.raises(PartitaError, match="2147483648 elements along an axis; 1073741824 are the"):
        run_ours("Resize", inputs, constants=constants, mode=mode)


@pytest.mark.parametrize("kind", [np.complex64, np.bool_, np.float32, np.object_])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("op_type", ["Resize", "Split"])
def test_sizes_that_are_no_integers_are_named(op_type, constant, kind):
    sizes = np.array([b"1", b"1"] if kind is np.object_ else [1, 1], kind)
    inputs = [normal(1, 2), None, None, sizes] if op_type == "Resize" else [normal(2, 1), sizes]
    place = len(inputs) - 1
    with pytest.raises(PartitaError, match=rf"\({op_type}\).* input {place} is .*takes int32"):
        run_ours(op_type, inputs, constants=(place,) if constant else ())
