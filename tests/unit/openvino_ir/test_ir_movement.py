"""Layers of an OpenVINO IR that move elements, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from irs import single

RNG = np.random.default_rng(11)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*numbers):
    return np.array(numbers, np.int64)


X = floats(2, 4, 6, 5)


@pytest.mark.parametrize(
    ("shifts", "axes"),
    [([1, -2], [1, -1]), ([7], [2]), ([3], [0, 2]), ([-1, 1], [2, 2]), ([0], [1])],
)
def test_rolls(shifts, axes):
    found = single("Roll", X, whole(*shifts), whole(*axes), version="opset7")[0]
    both = shifts * len(axes) if len(shifts) == 1 else shifts
    expected = X
    for shift, axis in zip(both, axes, strict=True):
        expected = np.roll(expected, shift, axis)
    np.testing.assert_array_equal(found, expected)


def test_rolls_by_computed_shifts():
    shifts = whole(5, -1)
    found = single("Roll", X, whole(2, 3), inputs=[shifts], version="opset7")[0]
    np.testing.assert_array_equal(found, np.roll(X, shifts, (2, 3)))


@pytest.mark.parametrize("pads", [([1, 2], [2, 0]), ([3, 0], [7, 9])])
def test_pads_that_mirror_the_edge_too(pads):
    x = floats(3, 4)
    found = single("Pad", x, *map(np.array, pads), pad_mode="symmetric")[0]
    np.testing.assert_array_equal(found, np.pad(x, list(zip(*pads, strict=True)), "symmetric"))


def blocks(x, block, blocks_first):
    """Blocks as channels, element by element, from the definition."""
    count = x.ndim - 2
    channels = x.shape[1]
    sizes = [size // block for size in x.shape[2:]]
    out = np.empty((x.shape[0], channels * block**count, *sizes), x.dtype)
    for channel in range(channels):
        for number, offset in enumerate(np.ndindex(*[block] * count)):
            part = x[(slice(None), channel, *(slice(place, None, block) for place in offset))]
            behind = (
                number * channels + channel if blocks_first else channel * block**count + number
            )
            out[:, behind] = part
    return out


@pytest.mark.parametrize("mode", ["blocks_first", "depth_first"])
@pytest.mark.parametrize("sizes", [(6,), (4, 6), (2, 4, 6)])
def test_blocks_as_channels_and_back(mode, sizes):
    x = floats(2, 3, *sizes)
    expected = blocks(x, 2, mode == "blocks_first")
    found = single("SpaceToDepth", x, mode=mode, block_size=2)[0]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(single("DepthToSpace", expected, mode=mode, block_size=2)[0], x)


def test_blocks_as_batches_and_back():
    x = floats(2, 3, 4, 5)
    block, begin, end = whole(1, 1, 2, 3), whole(0, 0, 1, 0), whole(0, 0, 1, 1)
    found = single("SpaceToBatch", x, block, begin, end, version="opset2")[0]
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 1)])
    expected = [padded[:, :, down::2, across::3] for down in range(2) for across in range(3)]
    np.testing.assert_array_equal(found, np.concatenate(expected))
    back = single("BatchToSpace", found, block, begin, end, version="opset2")[0]
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize(("batch", "time"), [(0, 2), (2, 1), (1, 3)])
def test_sequences_along_any_axes_the_other_way_round(batch, time):
    lengths = (1 + np.arange(X.shape[batch]) % X.shape[time]).astype(np.int32)
    found = single("ReverseSequence", X, lengths, batch_axis=batch, seq_axis=time)[0]
    moved = np.moveaxis(X, (batch, time), (0, 1)).copy()
    for row, length in zip(moved, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    np.testing.assert_array_equal(found, np.moveaxis(moved, (0, 1), (batch, time)))


def test_axes_of_more_than_one_element_are_not_left_out():
    out = [("f32", (3, 1))]
    assert single("Squeeze", floats(1, 3, 1), whole(0, 1), out=out)[0].shape == (3, 1)


@pytest.mark.parametrize("shift", [0, 1, -2])
def test_ones_on_diagonals(shift):
    constants = [np.int32(4), np.int32(shift), np.int32([2])]
    out = [("f32", (2, 3, 4))]
    found = single("Eye", np.array(3, np.int32), *constants, out=out, output_type="f32")[0]
    np.testing.assert_array_equal(found, np.broadcast_to(np.eye(3, 4, shift), (2, 3, 4)))


def test_elements_by_index_behind_batches_and_other_axes():
    places = RNG.integers(-6, 6, (2, 3, 2)).astype(np.int32)
    found = single("Gather", X, places, whole(2)[0], version="opset8", batch_dims=1)[0]
    expected = np.stack([np.take(row, at, 1) for row, at in zip(X, places, strict=True)])
    np.testing.assert_array_equal(found, expected)


def test_batches_of_slices_were_one_axis_in_operation_set_5():
    x, places = floats(2, 3, 4), RNG.integers(0, 4, (2, 3, 1)).astype(np.int32)
    found = single("GatherND", x, places, version="opset5", batch_dims=2)[0]
    np.testing.assert_array_equal(found, np.take_along_axis(x, places, 2).reshape(6))


PLACES = np.array([[0, 1, 1], [4, -2, 1]])
UPDATES = floats(2, 3)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "prod", "min", "max", "mean"])
def test_elements_written_with_and_without_what_was_there(reduction, first):
    x = floats(2, 5)
    data = {"reduction": reduction, "use_init_val": first}
    found = single("ScatterElementsUpdate", x, PLACES, UPDATES, whole(1)[0], **data)[0]
    join = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "mean": np.mean}[
        reduction
    ]
    expected = x.astype(float)
    for row in range(2):
        for place in set((PLACES[row] % 5).tolist()):
            there = UPDATES[row][PLACES[row] % 5 == place].astype(float)
            expected[row, place] = join([*there, *([x[row, place]] if first else [])])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_slices_are_taken_away():
    x, updates = floats(4, 3), floats(3, 3)
    data = {"version": "opset15", "reduction": "sub"}
    found = single("ScatterNDUpdate", x, np.array([[1], [2], [1]]), updates, **data)[0]
    expected = x.copy()
    np.subtract.at(expected, [1, 2, 1], updates)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("places", [np.array([[1, 3], [0, 2]]), np.array(2)])
def test_slices_are_written_by_indices_of_any_rank(places):
    x, updates = floats(3, 5, 2), floats(3, *places.shape, 2)
    found = single("ScatterUpdate", x, places, updates, whole(1)[0], version="opset3")[0]
    expected = x.copy()
    expected[:, places] = updates
    np.testing.assert_array_equal(found, expected)


def test_a_slice_is_written():
    x, updates = floats(3, 7), floats(3, 2)
    slices = [whole(-2), whole(0), whole(-3), whole(1)]
    found = single("SliceScatter", x, updates, *slices, version="opset15")[0]
    expected = x.copy()
    expected[:, -2:0:-3] = updates
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("right", [True, False])
def test_places_among_bounds(right):
    x, bounds = np.float32([[-2, -1, 0.5], [1, 0, 3]]), np.float32([-1, 0, 1])
    out = [("i64", x.shape)]
    found = single("Bucketize", x, bounds, out=out, with_right_bound=right)[0]
    np.testing.assert_array_equal(found, np.digitize(x, bounds, right=right))
    found = single("SearchSorted", np.stack([bounds, bounds]), x, out=out, right_mode=right)[0]
    np.testing.assert_array_equal(found, np.searchsorted(bounds, x, "right" if right else "left"))


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_largest_by_their_places(mode):
    x = floats(3, 7)
    out = [("f32", (3, 3)), ("i64", (3, 3))]
    data = {"axis": 1, "mode": mode, "sort": "index", "index_element_type": "i64"}
    values, places = single("TopK", x, np.array(3), out=out, **data)
    expected = np.sort(np.argsort(-x if mode == "max" else x, 1)[:, :3], 1)
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))


@pytest.mark.parametrize("kind", ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"])
def test_bits_of_booleans(kind):
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    expected = {"And": a & b, "Or": a | b, "Xor": a ^ b, "Not": ~a}[kind.removeprefix("Bitwise")]
    inputs = [] if kind == "BitwiseNot" else [b]
    np.testing.assert_array_equal(single(kind, a, inputs=inputs, version="opset13")[0], expected)


PATCHES = [([3, 3], [2, 2], [1, 1]), ([2, 3], [1, 3], [2, 1]), ([3, 2], [5, 4], [2, 3])]


@pytest.mark.parametrize(("sizes", "strides", "rates"), PATCHES)
@pytest.mark.parametrize("auto_pad", ["valid", "same_upper", "same_lower"])
def test_patches_as_channels(sizes, strides, rates, auto_pad):
    x = floats(2, 3, 9, 11)
    reach = [(size - 1) * rate + 1 for size, rate in zip(sizes, rates, strict=True)]
    counts = [-(-size // by) for size, by in zip((9, 11), strides, strict=True)]
    pads = [(0, 0), (0, 0)]
    for count, by, far, size in zip(counts, strides, reach, (9, 11), strict=True):
        missing = max((count - 1) * by + far - size, 0)
        before = -(-missing // 2) if auto_pad == "same_lower" else missing // 2
        pads.append((before, missing - before))
    padded = x if auto_pad == "valid" else np.pad(x, pads)
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, (2, 3))
    views = views[:, :, :: strides[0], :: strides[1], :: rates[0], :: rates[1]]
    expected = views.transpose(0, 4, 5, 1, 2, 3).reshape(2, -1, *views.shape[2:4])
    data = {"sizes": sizes, "strides": strides, "rates": rates}
    data = {key: ",".join(map(str, numbers)) for key, numbers in data.items()}
    out, data["auto_pad"] = [("f32", expected.shape)], auto_pad
    found = single("ExtractImagePatches", x, out=out, version="opset3", **data)[0]
    np.testing.assert_array_equal(found, expected)


def test_patches_keep_infinities_to_themselves():
    x = np.float32([[[[np.inf, 1], [2, 3]]]])
    data = {"sizes": "1,2", "strides": "1,1", "rates": "1,1", "auto_pad": "valid"}
    found = single("ExtractImagePatches", x, out=[("f32", (1, 2, 2, 1))], **data)[0]
    np.testing.assert_array_equal(found[0, :, :, 0], [[np.inf, 2], [1, 3]])


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_blocks_as_darknet_counts_them(stride):
    """By its loops: https://github.com/pjreddie/darknet/blob/master/src/blas.c, reorg_cpu."""
    x, block = floats(2, 16, 8, 4), stride * stride
    wide = x.reshape(2, 16 // block, 8 * stride, 4 * stride)
    expected = np.empty_like(x)
    for channel, row, column in np.ndindex(x.shape[1:]):
        offset, source = divmod(channel, 16 // block)
        down, across = divmod(offset, stride)
        places = source, row * stride + down, column * stride + across
        expected[:, channel, row, column] = wide[(slice(None), *places)]
    expected = expected.reshape(2, 16 * block, 8 // stride, 4 // stride)
    out = [("f32", expected.shape)]
    found = single("ReorgYolo", x, out=out, version="opset2", stride=stride)[0]
    np.testing.assert_array_equal(found, expected)
