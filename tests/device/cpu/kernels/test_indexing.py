"""Gather, scatter and their kin against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from single_op import assert_same, check, model_of, normal, run_ours

import partita
from partita.errors import InputError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("index_shape", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("constants", [(), (1,), (0, 1)])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_gather(axis, index_shape, constants, kind):
    index = RNG.integers(-4, 4, index_shape).astype(kind)
    check("Gather", [normal(1, 4, 5, 6), np.asarray(index)], axis=axis, constants=constants)


def windows(count, size, step=1, start=0):
    return start + step * np.arange(count)[:, None] + np.arange(size)


EVENLY_SPACED = [
    np.arange(9),
    np.arange(9).reshape(3, 3),
    np.arange(9)[::-1].copy(),
    np.arange(1, 8, 3),
    np.array([7, 7, 7]),
    np.array([-1, -2, -3]),
    np.array([-5]),
    np.array(4),
    windows(5, 4),
    windows(3, 2, 3, 1),
    windows(3, 3).reshape(3, 1, 3),
]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("index", EVENLY_SPACED, ids=lambda index: str(index.tolist()))
def test_gather_at_evenly_spaced_constants(axis, index):
    """They are copies of boxes, or no copy where all elements stay as they are."""
    x = normal(1, 9, 9, 9)
    check("Gather", [x, index], axis=axis, constants=(1,))
    core = partita.Core()
    model = model_of("Gather", [x, index], axis=axis, constants=(1,)).SerializeToString()
    compiled = core.compile_model(core.read_model(model), "CPU")
    program = compiled.device_model.specializer.program([((9, 9, 9), x.dtype)], None)
    assert not {step.fn.__name__ for step in program.steps} & {"gather_rows"}


@pytest.mark.parametrize("index", [[0, 2, 3], [[0, 1], [2, 4]], [[0, 1], [1, 3]], [1, 1, 0]])
def test_gather_at_other_constants(index):
    check("Gather", [normal(1, 9, 9, 9), np.array(index)], axis=1, constants=(1,))


@pytest.mark.parametrize(("shape", "axis"), [((7, 5, 3), 1), ((600, 4), 1), ((5, 1), -1)])
@pytest.mark.parametrize("index", [np.array(-1), np.array([0]), np.array([0, 0, -1])])
def test_gather_of_single_elements(shape, axis, index):
    check("Gather", [normal(1, *shape), index], axis=axis)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float16, np.int32, np.float64])
def test_gather_types(dtype):
    check("Gather", [normal(1, 4, 5).astype(dtype), np.array([3, -1, 0])], axis=1)


def test_gather_bfloat16():
    x = normal(1, 4, 5).astype(ml_dtypes.bfloat16)
    (y,) = run_ours("Gather", [x, np.array([3, -1])])
    np.testing.assert_array_equal(y, x[[3, -1]])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_gather_elements(axis, constants):
    index = RNG.integers(-4, 4, (3, 2, 4))
    check("GatherElements", [normal(1, 4, 5, 6), index], axis=axis, constants=constants)


@pytest.mark.parametrize(
    ("shape", "index_shape", "batch"),
    [
        ((4, 5, 6), (3, 2), 0),
        ((4, 5, 6), (2, 3, 3), 0),
        ((2, 4, 5), (2, 3, 1), 1),
        ((2, 3, 4, 5), (2, 3, 2), 2),
        ((4,), (1,), 0),
    ],
)
def test_gather_nd(shape, index_shape, batch):
    check("GatherND", [normal(1, *shape), RNG.integers(-4, 4, index_shape)], batch_dims=batch)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_scatter_elements(reduction, axis, dtype):
    index = RNG.integers(-4, 4, (3, 2, 4))
    inputs = [normal(1, 4, 5, 6, dtype=dtype), index, normal(2, 3, 2, 4, dtype=dtype)]
    check("ScatterElements", inputs, axis=axis, reduction=reduction)


def test_scatter_of_old_opsets():
    inputs = [normal(1, 4, 5), np.array([[1, 0], [3, 2]]), normal(2, 2, 2)]
    check("Scatter", inputs, opset=10, axis=1)
    check("ScatterElements", inputs, opset=11)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
@pytest.mark.parametrize(
    ("index_shape", "update_shape"), [((3, 1), (3, 5, 6)), ((2, 2, 3), (2, 2))]
)
def test_scatter_nd(reduction, index_shape, update_shape):
    index = RNG.integers(-4, 4, index_shape)
    inputs = [normal(1, 4, 5, 6), index, normal(2, *update_shape)]
    check("ScatterND", inputs, reduction=reduction)


@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int32, np.uint64])
def test_many_updates_of_one_place(reduction, dtype):
    """As numpy combines them, one after another; whole numbers wrap round."""
    rng = np.random.default_rng(5)
    x = rng.integers(0, 90, (7, 5)).astype(dtype)
    updates = rng.integers(0, 90, (40, 5)).astype(dtype)
    if x.dtype.kind == "f":
        updates[3, 2] = np.nan
        updates, x = updates / 64, x / 64
    rows = rng.integers(0, 7, 40)
    wanted = x.copy()
    function = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[reduction]
    function.at(wanted, rows, updates)
    (got,) = run_ours("ScatterND", [x, rows[:, None], updates], opset=18, reduction=reduction)
    assert_same(got, wanted, 1e-6 if x.dtype == np.float32 else 1e-14, 0)
    places = np.broadcast_to(rows[:, None], updates.shape).copy()
    inputs = [x, places, updates]
    (got,) = run_ours("ScatterElements", inputs, opset=18, reduction=reduction, axis=0)
    assert_same(got, wanted, 1e-6 if x.dtype == np.float32 else 1e-14, 0)


@pytest.mark.parametrize("kind", ["ScatterElements", "ScatterND", "GatherND"])
def test_indices_are_read_by_compiled_kernels(kind):
    """numpy's own loops over places take fifty times as long, and memory for each tuple."""
    x, rows = normal(1, 8, 6), np.array([[2], [-1], [2]])
    inputs = [x, rows] if kind == "GatherND" else [x, rows, normal(2, 3, 6)]
    attributes = {} if kind == "GatherND" else {"reduction": "add"}
    if kind == "ScatterElements":
        inputs[1] = np.repeat(rows, 6, axis=1)
    core = partita.Core()
    model = core.read_model(model_of(kind, inputs, **attributes).SerializeToString())
    request = core.compile_model(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    request.infer({f"x{k}": array for k, array in enumerate(inputs)})
    assert {info.exec_type for info in request.get_profiling_info()} == {"numba"}


def test_later_updates_win():
    index = np.array([[2], [0], [2], [2]])
    inputs = [np.zeros((4, 3), np.float32), index, normal(2, 4, 3)]
    check("ScatterND", inputs)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_one_hot(axis, kind):
    index = np.array([[0, 4, -1], [5, -5, 9]], np.int64)
    check("OneHot", [index, np.array(5), np.array([2, 7], kind)], axis=axis)


@pytest.mark.parametrize("time_axis", [0, 1])
@pytest.mark.parametrize("shape", [(4, 4, 3), (4, 4)])
def test_reverse_sequence(time_axis, shape):
    lengths = np.array([1, 4, 2, 3])
    attributes = {"time_axis": time_axis, "batch_axis": 1 - time_axis}
    check("ReverseSequence", [normal(1, *shape), lengths], **attributes)


OUTSIDE = [
    ("Gather", [normal(1, 4, 5), np.array([0, 4])], "index 4 is out of range .* size 4"),
    ("Gather", [normal(1, 4, 5), np.array([-5])], "index -5 is out of range"),
    ("Gather", [normal(1, 0, 5), np.array([0])], "size 0; there is none to take"),
    ("GatherElements", [normal(1, 2, 2), np.array([[0, 2]])], "index 2"),
    ("GatherND", [normal(1, 2, 3), np.array([[0, 3]])], "index 3 is out of range .* size 3"),
    ("ScatterND", [normal(1, 2, 3), np.array([[2]]), normal(2, 1, 3)], "index 2"),
    ("ScatterElements", [normal(1, 2, 3), np.array([[-3]]), normal(2, 1, 1)], "index -3"),
]


@pytest.mark.parametrize(("op_type", "inputs", "message"), OUTSIDE)
@pytest.mark.parametrize("constants", [(), (1,)])
def test_indices_out_of_range(op_type, inputs, message, constants):
    with pytest.raises(InputError, match=message):
        run_ours(op_type, inputs, constants=constants)


def test_sequence_lengths_out_of_range():
    with pytest.raises(InputError, match="sequence lengths are 1 to 5"):
        run_ours("ReverseSequence", [normal(1, 4, 2), np.array([1, 5])])
