"""Weights of a few bits in blocks on device OPENCL, against onnxruntime and float64."""

import numpy as np
import pytest

import partita
from partita_opencl.device.device import find_device
from partita_opencl.emitters.gemm.block_products import cut_of, groups_of
from partita_opencl.emitters.gemm.block_weights import BlockForm
from partita_opencl.launches.work_sizes import Tuning
from partita_opencl.properties import Tiling

from ..comparison import TILINGS, check_single, compiled, floats, integers, refusal, single

MICROSOFT = {"domain": "com.microsoft"}


def product(rows, columns, depth, bits, block, zeros="", *, biased=False, dtype=np.float32):
    """The inputs and attributes of a MatMulNBits."""
    blocks = -(-depth // block)
    inputs = [
        floats(2, rows, depth).astype(dtype),
        integers(columns, blocks, block * bits // 8, low=0, high=256, dtype=np.uint8),
        (floats(columns, blocks, seed=1) / 8).astype(np.float16).astype(dtype),
    ]
    if zeros == "packed":
        size = -(-blocks * bits // 8)
        inputs.append(integers(columns, size, low=0, high=256, dtype=np.uint8, seed=2))
    elif zeros == "float":
        drawn = np.random.default_rng(2).random((columns, blocks)) * 15
        inputs.append(drawn.astype(dtype))
    else:
        inputs.append(None)
    inputs += [None, floats(columns, seed=3).astype(dtype) if biased else None]
    while inputs[-1] is None:
        inputs.pop()
    return inputs, {"K": depth, "N": columns, "bits": bits, "block_size": block, **MICROSOFT}


def constants(inputs):
    return [place for place, x in enumerate(inputs) if place and x is not None]


def in_float64(inputs, attrs):
    """The product by its definition."""
    x, data, scales, zeros, _, bias = [*inputs, *[None] * (6 - len(inputs))]
    bits, depth = attrs["bits"], attrs["K"]

    def numbers(array):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        rows = (array.reshape(attrs["N"], -1)[..., None] >> shifts) & ((1 << bits) - 1)
        return rows.reshape(len(rows), -1)

    if zeros is None:
        zeros = np.full(scales.shape, 2.0 ** (bits - 1))
    elif zeros.dtype == np.uint8:
        zeros = numbers(zeros)[:, : scales.shape[1]]
    wide = numbers(data).reshape(*scales.shape, -1).astype(np.float64)
    w = (wide - zeros[..., None]) * scales[..., None].astype(np.float64)
    y = x.astype(np.float64) @ w.reshape(attrs["N"], -1)[:, :depth].T
    return y if bias is None else y + bias


@pytest.mark.sampled(3)
@pytest.mark.parametrize("zeros", ["", "packed", "float"])
@pytest.mark.parametrize(("bits", "block"), [(2, 16), (2, 64), (4, 32), (4, 16), (8, 16), (8, 64)])
def test_few_rows(bits, block, zeros):
    inputs, attrs = product(1, 37, 96, bits, block, zeros, biased=True)
    if (bits, zeros) not in [(2, "float"), (8, "float")]:  # which onnxruntime does not take
        check_single("MatMulNBits", inputs, attrs, constant=constants(inputs), atol=1e-4)
        return
    model, feeds = single("MatMulNBits", inputs, attrs, constant=constants(inputs))
    for tiling in TILINGS:
        found = compiled(model, TILING=tiling).infer_new_request(feeds)[0]
        np.testing.assert_allclose(found, in_float64(inputs, attrs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (4, "float"), (8, "packed")])
def test_many_rows(bits, zeros):
    inputs, attrs = product(9, 40, 64, bits, 32, zeros, biased=True)
    check_single("MatMulNBits", inputs, attrs, constant=constants(inputs), atol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("depth", "block"), [(100, 32), (40, 16), (24, 16)])
def test_depths_that_are_no_whole_blocks(rows, depth, block):
    inputs, attrs = product(rows, 33, depth, 4, block, "packed")
    model, feeds = single("MatMulNBits", inputs, attrs, constant=constants(inputs))
    for tiling in TILINGS:
        found = compiled(model, TILING=tiling).infer_new_request(feeds)[0]
        np.testing.assert_allclose(found, in_float64(inputs, attrs), rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 3, 9])
@pytest.mark.parametrize("zeros", ["", "float"])
def test_halves(rows, zeros):
    inputs, attrs = product(rows, 40, 160, 4, 32, zeros, dtype=np.float16)
    model, feeds = single("MatMulNBits", inputs, attrs, constant=constants(inputs))
    due = in_float64(inputs, attrs)
    for tiling in TILINGS:
        found = compiled(model, TILING=tiling).infer_new_request(feeds)[0]
        assert np.abs(found - due).max() < 2e-3 * np.abs(due).max()


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_scales_keep_their_bits_where_rows_are_narrowed(precision):
    inputs, attrs = product(1, 64, 320, 4, 32, "float")
    inputs[2] = floats(*inputs[2].shape, seed=7)  # not those of float16
    model, feeds = single("MatMulNBits", inputs, attrs, constant=constants(inputs))
    due = in_float64(inputs, attrs)
    found = compiled(model, INFERENCE_PRECISION_HINT=precision).infer_new_request(feeds)[0]
    error = np.abs(found - due).max() / np.abs(due).max()
    assert error < (1e-3 if precision == "f16" else 8e-3)


def test_long_sums_of_many_tiles():
    inputs, attrs = product(2, 20, 9000, 8, 32, "packed")
    model, feeds = single("MatMulNBits", inputs, attrs, constant=constants(inputs))
    due = in_float64(inputs, attrs)
    for tiling in TILINGS:
        found = compiled(model, TILING=tiling).infer_new_request(feeds)[0]
        assert np.abs(found - due).max() < 1e-5 * np.abs(due).max()


@pytest.mark.parametrize(("columns", "depth"), [(2048, 2048), (8192, 2048), (2048, 8192)])
def test_all_compute_units_have_work(columns, depth):
    limits = find_device("").limits
    units = 132
    large = Tuning.of(
        type(limits)(1024, (1024, 1024, 64), 48 << 10, 1 << 34, 1 << 36, 256, units, False),
        Tiling.LOCAL,
    )

    class Kit:
        tuning = large

    form = BlockForm(columns, depth, 4, 32)
    assert groups_of(form, cut_of(Kit, form)) >= 1.9 * units


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"bits": 2}, "bits 2"),
        ({"block_size": 24}, "block_size 24"),
        ({"weight_prepacked": 1}, "weight_prepacked"),
        ({"N": -4}, "N -4"),
    ],
)
def test_refused(attrs, text):
    inputs, usual = product(1, 32, 64, 4, 32)
    told = refusal("MatMulNBits", inputs, {**usual, **attrs}, constant=[1, 2])
    assert text in told.detail


def test_weights_that_are_not_known_are_refused():
    inputs, attrs = product(1, 32, 64, 4, 32)
    assert "input 1" in refusal("MatMulNBits", inputs, attrs).detail


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_tensors_of_other_sizes(place):
    inputs, attrs = product(1, 32, 64, 4, 32, "packed", biased=True)
    place += place == 4
    inputs[place] = inputs[place][..., :-1].copy()
    model, feeds = single("MatMulNBits", inputs, attrs, constant=constants(inputs))
    with pytest.raises(partita.PartitaError, match="MatMulNBits"):
        compiled(model).infer_new_request(feeds)


def table(bits, block, dtype=np.float32, *, zeros=False):
    """The inputs and attributes of a GatherBlockQuantized."""
    line, lines = 40 * 8 // bits, 9
    blocks = -(-line // block)
    inputs = [
        integers(lines, 40, low=0, high=256, dtype=np.uint8),
        np.array([[3, 0, -1], [8, 8, -9]]),
        floats(lines, blocks).astype(dtype),
    ]
    if zeros:
        size = -(-blocks * bits // 8)
        inputs.append(integers(lines, size, low=0, high=256, dtype=np.uint8, seed=2))
    attrs = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    return inputs, {**attrs, **MICROSOFT}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("zeros", [True, False])
def test_rows_of_a_table(bits, block, zeros):
    inputs, attrs = table(bits, block, zeros=zeros)
    check_single("GatherBlockQuantized", inputs, attrs, constant=[0, 2, 3][: 2 + zeros], opset=21)


def test_rows_of_halves():
    inputs, attrs = table(4, 32, np.float16)
    inputs[1] = np.array([2, -9, 1], np.int32)
    check_single("GatherBlockQuantized", inputs, attrs, constant=[0, 2], opset=21, rtol=1e-3)


def test_indices_out_of_bounds_give_zeros():
    """As in onnxruntime 1.32; earlier ones raise."""
    inputs, attrs = table(4, 32)
    inputs[1] = np.array([2, 9, -10, 1], np.int32)
    model, feeds = single("GatherBlockQuantized", inputs, attrs, constant=[0, 2], opset=21)
    found = np.array(compiled(model).infer_new_request(feeds)[0])
    inputs[1] = np.array([2, 1], np.int32)
    model, feeds = single("GatherBlockQuantized", inputs, attrs, constant=[0, 2], opset=21)
    np.testing.assert_array_equal(found[[0, 3]], compiled(model).infer_new_request(feeds)[0])
    assert not found[[1, 2]].any()


@pytest.mark.parametrize(
    ("attrs", "text"),
    [({"bits": 2}, "bits 2"), ({"gather_axis": 1}, "gather_axis"), ({"quantize_axis": 0}, "last")],
)
def test_refused_tables(attrs, text):
    inputs, usual = table(4, 32)
    told = refusal("GatherBlockQuantized", inputs, {**usual, **attrs}, constant=[0, 2])
    assert text in told.detail


def test_scales_that_do_not_fit_a_table():
    inputs, attrs = table(4, 32)
    inputs[2] = inputs[2][:, :-1].copy()
    model, feeds = single("GatherBlockQuantized", inputs, attrs, constant=[0, 2])
    with pytest.raises(partita.PartitaError, match="GatherBlockQuantized"):
        compiled(model).infer_new_request(feeds)
