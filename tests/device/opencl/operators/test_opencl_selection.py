"""GatherND, ScatterND, ReverseSequence and scatter with reductions on device OPENCL."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import partita

from ..comparison import TILINGS, check, check_single, compiled, floats, int64s, integers, single

REDUCTIONS = ["add", "mul", "min", "max"]


@pytest.mark.parametrize(
    ("shape", "indices", "batch"),
    [
        ((3, 4, 5), [[0, 1], [-1, -4], [2, 3]], 0),
        ((3, 4, 5), [[[0, 1, 4]], [[2, -1, 0]]], 0),
        ((3, 4, 5), [[1], [0]], 0),
        ((2, 3, 4), [[[1], [-1], [0]], [[0], [2], [2]]], 1),
        ((2, 2, 4, 3), [[[3], [0]], [[-4], [1]]], 2),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
def test_slices_at_tuples(shape, indices, batch, dtype):
    x = integers(*shape, low=0, high=99).astype(dtype)
    inputs = [x, np.array(indices, np.int64)]
    check_single("GatherND", inputs, {"batch_dims": batch}, dynamic=True)


def test_no_tuples():
    check_single("GatherND", [floats(3, 4), np.zeros((0, 1), np.int64)], dynamic=True)


@pytest.mark.parametrize("op_type", ["GatherND", "ScatterND"])
@pytest.mark.parametrize("place", [[0, 4], [3, 0], [-4, 0], [0, 2**40]])
def test_tuples_that_name_nothing(op_type, place):
    inputs = [floats(3, 4), np.array([[0, 0], place], np.int64), floats(2)]
    model, feeds = single(op_type, inputs[: 2 if op_type == "GatherND" else 3])
    with pytest.raises(partita.PartitaError, match=op_type):
        compiled(model).infer_new_request(feeds)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int64, np.uint8, bool])
def test_slices_replaced(dtype):
    x = integers(4, 3, 5, low=0, high=99).astype(dtype)
    indices = np.array([[[3, 0]], [[-1, -1]], [[0, 2]]], np.int64)
    updates = integers(3, 1, 5, low=0, high=99, seed=1).astype(dtype)
    check_reference("ScatterND", [x, indices, updates], {})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int8, np.uint8, np.uint32])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_slices_joined(dtype, reduction):
    x = integers(4, 5, low=0, high=9).astype(dtype)
    indices = np.array([[3], [0], [3], [-1], [1]], np.int64)
    updates = integers(5, 5, low=0, high=4, seed=1).astype(dtype)
    check_reference("ScatterND", [x, indices, updates], {"reduction": reduction})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int16])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, 7), (2, 9), (3, 200)])
def test_elements_joined(dtype, reduction, shape):
    """Many of them for one place, and fewer than the tensor has beside the axis."""
    x = integers(3, 7, low=0, high=9).astype(dtype)
    indices = integers(*shape, low=-7, high=7, seed=2)
    updates = integers(*shape, low=0, high=2, seed=1).astype(dtype)
    inputs = [x, indices, updates]
    check_reference("ScatterElements", inputs, {"axis": 1, "reduction": reduction})


def check_reference(op_type, inputs, attrs):
    """Compares with ONNX's reference, which takes each type."""
    model, feeds = single(op_type, inputs, attrs)
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    for tiling in TILINGS:
        (found,) = compiled(model, TILING=tiling)(feeds).values()
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_not_a_number_stays_the_least():
    x = np.array([np.nan, 1, 2], np.float32)
    inputs = [x, np.array([[0], [1]], np.int64), np.array([5, np.nan], np.float32)]
    for reduction in ("min", "max"):
        model, feeds = single("ScatterND", inputs, {"reduction": reduction})
        (found,) = compiled(model)(feeds).values()
        np.testing.assert_array_equal(found, np.array([np.nan, np.nan, 2], np.float32))


def test_numbers_of_64_bits_are_not_joined():
    inputs = [np.ones(3, np.int64), int64s(0)[None], np.ones(1, np.int64)]
    model, _ = single("ScatterND", inputs, {"reduction": "add"})
    reasons = partita.Core().query_model(partita.Core().read_model(model), "OPENCL").reasons
    assert "up to 32 bits" in reasons["ScatterND"].detail


def test_scatter_of_old_opsets():
    inputs = [floats(3, 4), np.array([[2, 0], [1, 2]]), floats(2, 2, seed=1)]
    check_single("Scatter", inputs, {"axis": 0}, opset=10)
    model, _ = single("Scatter", inputs, {"axis": 0}, opset=10, constant=[0, 1, 2])
    check(model, {})


@pytest.mark.parametrize(
    ("attrs", "lengths"),
    [({}, [1, 4, 0]), ({"time_axis": 1, "batch_axis": 0}, [3, 2, 0, 1])],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_sequences_backwards(attrs, lengths, dtype):
    x = integers(4, 3, 5, low=0, high=99).astype(dtype)
    check_reference("ReverseSequence", [x, int64s(*lengths)], attrs)


@pytest.mark.parametrize("length", [-1, 5, 2**40])
def test_lengths_that_sequences_do_not_have(length):
    model, feeds = single("ReverseSequence", [floats(4, 2), int64s(1, length)])
    with pytest.raises(partita.PartitaError, match="ReverseSequence"):
        compiled(model).infer_new_request(feeds)


def test_one_program_for_all_sizes():
    model, feeds = single("GatherND", [floats(3, 4), np.array([[0], [2]], np.int64)], dynamic=True)
    other = {"x0": floats(5, 6), "x1": np.array([[4], [-5], [1]], np.int64)}
    check(model, feeds, other, feeds)
    arrays = [floats(3, 4), np.array([[0], [2]], np.int64), floats(2, 4)]
    model, feeds = single("ScatterND", arrays, dynamic=True)
    other = {"x0": floats(5, 6), "x1": np.array([[4], [-5], [1]]), "x2": floats(3, 6)}
    check(model, feeds, other, feeds)


def test_in_half():
    arrays = [floats(3, 4), np.array([[0], [2]], np.int64), floats(2, 4, seed=1)]
    for op_type, attrs in (
        ("ScatterND", {"reduction": "add"}),
        ("ScatterND", {}),
        ("GatherND", {}),
    ):
        model, feeds = single(op_type, arrays[: 2 if op_type == "GatherND" else 3], attrs)
        for precision in ("f16", "bf16"):
            check(model, feeds, rtol=2e-2, atol=2e-2, INFERENCE_PRECISION_HINT=precision)
