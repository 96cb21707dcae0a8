"""Operators that rearrange elements against onnxruntime and numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from single_op import assert_same, check, model_of, normal, run_ours, run_shared

from partita.errors import CompileError
from partita.lowering import lower_proto
from partita.lowering.geometry.boxes import strides_of
from partita_cpu.kernels.movement.copy_plan import plan_copy, plan_length, plan_loops
from partita_cpu.kernels.movement.strided_copy import copy_nd


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@examples(100)
@given(st.data())
def test_any_strided_copy(data):
    draw = data.draw
    rank = draw(st.integers(0, 5))
    source = np.arange(20**2 * 3**3, dtype=np.uint32)
    dims = [draw(st.integers(1, 20 if axis < 2 else 3)) for axis in range(rank)]
    order = draw(st.permutations(range(rank)))
    steps = strides_of([dims[axis] for axis in order])
    strides = [steps[order.index(axis)] * draw(st.sampled_from([0, 1])) for axis in range(rank)]
    expected = np.lib.stride_tricks.as_strided(source, dims, [4 * s for s in strides])
    plan = plan_copy(dims, strides, strides_of(dims))
    threads = draw(st.integers(1, 40))
    result = np.full(max(1, expected.size), 7, np.uint32)
    for tid in range(threads):
        copy_nd(source, result, plan, tid, threads)
    np.testing.assert_array_equal(result[: expected.size].reshape(dims), expected)


@examples(200)
@given(st.data())
def test_plans_of_numbers_are_those_that_programs_make(data):
    draw = data.draw
    rank = draw(st.integers(0, 6))
    dims = [draw(st.sampled_from([0, 1, 1, 2, 5, 8, 24, 256])) for _ in range(rank)]
    order = draw(st.permutations(range(rank)))
    steps = strides_of([dims[axis] for axis in order])
    moves = [
        steps[order.index(axis)] * draw(st.sampled_from([1, 1, 0, -1])) for axis in range(rank)
    ]
    due = plan_copy(dims, moves, strides_of(dims), 3, 5)
    box = np.array([*dims, *moves, *strides_of(dims), 3, 5], np.int64)
    plan = np.full(plan_length(rank), 99, np.int64)
    for tid in range(2):
        plan_loops(box, plan, rank, tid, 2)
    np.testing.assert_array_equal(plan[: due.size], due)
    if 0 in dims:
        target = np.full(9, 7, np.uint32)
        copy_nd(np.zeros(9, np.uint32), target, plan, 0, 1)
        np.testing.assert_array_equal(target, 7)


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((3, 4), (1, 0)),
        ((40, 50), (1, 0)),
        ((2, 3, 4, 5), (0, 2, 3, 1)),
        ((2, 17, 33, 3), (0, 3, 1, 2)),
        ((1, 3, 1, 4), (2, 1, 0, 3)),
        ((2, 3, 4, 5, 2), (4, 1, 3, 0, 2)),
        ((9, 2, 16, 2), (0, 2, 1, 3)),
        ((2, 16, 70, 4), (0, 3, 2, 1)),
        ((4, 70, 32), (2, 1, 0)),
        ((4, 3, 2, 200), (3, 2, 1, 0)),
        ((2, 0, 3), (2, 1, 0)),
        ((5,), (0,)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.float16])
def test_transpose(shape, perm, dtype):
    check("Transpose", [normal(1, *shape, dtype=dtype)], perm=perm)


def test_transpose_reverses_by_default():
    check("Transpose", [normal(1, 2, 3, 4)])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64])
def test_types_that_onnxruntime_does_not_move(dtype):
    x = normal(1, 5, 7).astype(dtype)
    (y,) = run_ours("Transpose", [x], perm=(1, 0))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize(
    ("shape", "to", "attributes"),
    [
        ((2, 3, 4), (4, 6), {}),
        ((2, 3, 4), (0, -1), {}),
        ((2, 3, 4), (-1,), {}),
        ((0, 3), (3, 0), {"allowzero": 1}),
        ((0, 3, 4), (0, 12), {}),
        ((1,), (), {}),
    ],
)
@pytest.mark.parametrize("constants", [(), (1,)])
def test_reshape(shape, to, attributes, constants):
    check("Reshape", [normal(1, *shape), int64(*to)], constants=constants, **attributes)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(axis):
    check("Flatten", [normal(1, 2, 3, 4)], axis=axis)


@pytest.mark.parametrize("axes", [None, (0,), (0, -2)])
def test_squeeze(axes):
    x = normal(1, 1, 3, 1, 4)
    check("Squeeze", [x] if axes is None else [x, int64(*axes)])
    check("Squeeze", [x], opset=11, **({} if axes is None else {"axes": list(axes)}))


@pytest.mark.parametrize("axes", [(0,), (1, 3), (-1, 0)])
def test_unsqueeze(axes):
    check("Unsqueeze", [normal(1, 3, 4), int64(*axes)])
    check("Unsqueeze", [normal(1, 3, 4)], opset=11, axes=axes)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int64])
def test_concat(axis, dtype):
    shapes = [[2, 3, 4] for _ in range(3)]
    for shape, size in zip(shapes, (1, 0, 5), strict=True):
        shape[axis] = size
    check("Concat", [normal(k, *s).astype(dtype) for k, s in enumerate(shapes)], axis=axis)


def test_concat_of_one_and_of_nothing():
    check("Concat", [normal(1, 2, 3)], axis=1)
    check("Concat", [normal(1, 0, 3), normal(1, 0, 4)], axis=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(axis):
    x = normal(1, 6, 6, 6)
    check("Split", [x], outputs=3, axis=axis, opset=11)
    check("Split", [x], outputs=3, axis=axis, opset=11, split=[1, 3, 2])
    check("Split", [x, int64(1, 5, 0)], outputs=3, axis=axis, opset=13)
    x = normal(1, 7, 7, 7)
    check("Split", [x], outputs=4, axis=axis, num_outputs=4)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ((1, 0), (3, 4), None, None),
        ((1,), (100,), (2,), None),
        ((-3, 5), (-1, 0), (1, 2), (1, -2)),
        ((-1,), (-100,), (2,), (-1,)),
        ((3,), (3,), (1,), None),
        ((0, 0), (100, 100), (-1, 0), (3, 2)),
        ((100,), (-100,), (1,), (-1,)),
        ((-100,), (-101,), (1,), (-1,)),
        ((0,), (2**63 - 1,), (0,), None),
    ],
)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_slice(starts, ends, axes, steps, kind):
    top = np.iinfo(kind).max
    inputs = [None if v is None else np.array(v) for v in (starts, ends, axes, steps)]
    inputs = [None if v is None else np.minimum(v, top).astype(kind) for v in inputs]
    while inputs[-1] is None:
        inputs.pop()
    check("Slice", [normal(1, 4, 5, 6), *inputs])
    check("Slice", [normal(1, 4, 5, 6), *inputs], constants=(1, 2))


def test_slice_by_attributes():
    check("Slice", [normal(1, 4, 5, 6)], opset=9, starts=[1, -2], ends=[3, 1000], axes=[0, 2])
    check("Slice", [normal(1, 4, 5, 6)], opset=9, starts=[1, 0], ends=[-1, 2])


@pytest.mark.parametrize("shape", [(3, 1), (1,), (2, 3, 4), (2, 1, 1)])
def test_expand(shape):
    check("Expand", [normal(1, 3, 1), int64(*shape)])


@pytest.mark.parametrize("repeats", [(1, 1), (2, 3), (0, 2), (1, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
def test_tile(repeats, dtype):
    check("Tile", [normal(1, 3, 4, dtype=dtype), int64(*repeats)])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode):
    check("DepthToSpace", [normal(1, 2, 12, 3, 5)], blocksize=2, mode=mode)


def test_space_to_depth():
    check("SpaceToDepth", [normal(1, 2, 3, 6, 4)], blocksize=2)


PADS = [(0, 1, 2, 0), (1, 0, 0, 3), (2, 3, 2, 1), (0, 0, 0, 0)]


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode, pads):
    check("Pad", [normal(1, 3, 4), int64(*pads)], mode=mode)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.uint8])
def test_pad_with_a_value(dtype):
    value = np.array(1, dtype)
    check("Pad", [normal(1, 3, 4).astype(dtype), int64(1, 0, 0, 2), value])
    check("Pad", [normal(1, 3, 4).astype(dtype), int64(1, 2), value, int64(-1)])


def test_pad_crops():
    check("Pad", [normal(1, 5, 6), int64(-1, 2, 1, -3), np.array(3, np.float32)])
    check("Pad", [normal(1, 5, 6), int64(-5, 2, 1, -3), np.array(3, np.float32)])
    x = np.arange(6, dtype=np.float32)
    (y,) = run_ours("Pad", [x, int64(-1, 2)], mode="reflect")
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5, 4, 3])


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_borders_that_repeat_elements(mode):
    """Few of them, which are copied as boxes, and so many that the border folds again."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        shape = rng.integers(1, 7, rng.integers(1, 4))
        pads = rng.integers(-2, 9, (2, shape.size))
        pads = np.where(pads.clip(max=0).sum(0) + shape < 1, 1, pads)
        x = rng.standard_normal(shape).astype(np.float32)
        cut = tuple(slice(max(-low, 0), min(high, 0) or None) for low, high in pads.T)
        expected = np.pad(x[cut], pads.clip(0).T, mode)
        model = model_of("Pad", [x, pads.ravel()], mode=mode)
        np.testing.assert_array_equal(
            run_shared(lower_proto(model), [x, pads.ravel()])[0], expected
        )


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(3, -5), (-5, 3), (9, -7), (2, -7)])
def test_borders_that_repeat_nothing_are_refused(mode, pads):
    with pytest.raises(CompileError, match="which leave nothing of the 5 elements along axis 0"):
        run_ours("Pad", [normal(1, 5), int64(*pads)], mode=mode)


def test_pad_by_attributes():
    check("Pad", [normal(1, 3, 4)], opset=10, pads=[0, 1, 2, 0], value=2.5)
    check("Pad", [normal(1, 3, 4)], opset=10, pads=[0, 1, 2, 0], mode="reflect")


@pytest.mark.parametrize("shape", [(4, 4), (3, 8), (9, 2), (5, 5)])
def test_center_crop_pad(shape):
    x = normal(1, 5, 5)
    (y,) = run_ours("CenterCropPad", [x, int64(*shape)])
    expected = x
    for axis, size in enumerate(shape):
        extra = size - expected.shape[axis]
        if extra < 0:
            start = -extra // 2
            expected = np.take(expected, range(start, start + size), axis=axis)
        else:
            widths = [(0, 0), (0, 0)]
            widths[axis] = (extra // 2, extra - extra // 2)
            expected = np.pad(expected, widths)
    assert_same(y, expected, 0, 0)


def test_shapes_that_do_not_fit():
    with pytest.raises(CompileError, match="cannot view a tensor"):
        run_ours("Reshape", [normal(1, 2, 3), int64(4)])
    with pytest.raises(CompileError, match="copies a dimension that its input"):
        run_ours("Reshape", [normal(1, 6), int64(6, 0)])
    with pytest.raises(CompileError, match="pieces of"):
        run_ours("Split", [normal(1, 6), int64(1, 2)], outputs=2)
    with pytest.raises(CompileError, match="has axis 3"):
        run_ours("Concat", [normal(1, 2), normal(2, 2)], axis=3)


def test_unknown_pad_mode():
    with pytest.raises(CompileError, match="mode is 'mirror'"):
        run_ours("Pad", [normal(1, 2), int64(1, 1)], mode="mirror")


def test_border_of_nothing():
    with pytest.raises(CompileError, match="nothing of the 0 elements along axis 0 to repeat"):
        run_ours("Pad", [normal(1, 0), int64(1, 1)], mode="edge")
