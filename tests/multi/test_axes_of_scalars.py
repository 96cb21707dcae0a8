"""Axes of scalars: all devices have one rule, and refuse what onnxruntime refuses."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import partita

DEVICES = ["CPU", "OPENCL", "REFERENCE"]
SCALAR = np.array(3.5, np.float32)
PLACE = np.array(0)
ONE = np.array([1])
NO_DIMENSION = (
    r"tensor has 0 dimensions|out of (range for 0|bounds for array of) dimension|squeeze out"
)


def single(op_type, arrays, outputs, attributes, opset=18, shape=None):
    """A model of one operation whose inputs may have any shape, unless one is given."""
    names = [f"x{n}" for n in range(len(arrays))]
    results = [f"y{n}" for n in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, results, **attributes)],
        "single",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shape)
            for name, x in zip(names, arrays, strict=True)
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return model.SerializeToString(), dict(zip(names, arrays, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, -1, 1])
@pytest.mark.parametrize(
    ("op_type", "others", "outputs"),
    [
        *(("Gather", (PLACE,), 1), ("GatherElements", (PLACE,), 1), ("Concat", (SCALAR,), 1)),
        *(("ScatterElements", (PLACE, SCALAR), 1), ("Split", (), 1), ("TopK", (ONE,), 2)),
        *(("LayerNormalization", (SCALAR,), 1), ("LpNormalization", (), 1)),
        *(("Softmax", (), 1), ("LogSoftmax", (), 1), ("Hardmax", (), 1)),
    ],
)
def test_a_scalar_has_no_axis(device, axis, op_type, others, outputs):
    attributes = {"axis": axis} | ({"num_outputs": 1} if op_type == "Split" else {})
    model, feeds = single(op_type, [SCALAR, *others], outputs, attributes)
    with pytest.raises(partita.PartitaError) as found:
        partita.Core().compile_model(model, device)(feeds)
    assert isinstance(found.value, (partita.errors.InputError, partita.errors.UnsupportedOpError))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), None])
@pytest.mark.parametrize("axes", [None, [0], [-1], [1]])
def test_a_scalar_has_no_mean_along_axes(device, shape, axes):
    attributes = {} if axes is None else {"axes": axes}
    model, feeds = single("MeanVarianceNormalization", [SCALAR], 1, attributes, shape=shape)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="No valid axes"):
        session.run(None, feeds)
    kinds = partita.errors.OperandError, partita.errors.InputError
    with pytest.raises(kinds, match=NO_DIMENSION):
        partita.Core().compile_model(model, device)(feeds)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("op_type", ["CumSum", "Squeeze", "Pad"])
def test_a_scalar_has_no_axis_that_a_tensor_names(device, axis, op_type):
    given = np.array(axis) if op_type == "CumSum" else np.array([axis])
    others = (np.array([1, 1]), SCALAR, given) if op_type == "Pad" else (given,)
    model, feeds = single(op_type, [SCALAR, *others], 1, {})
    with pytest.raises(partita.errors.InputError, match=NO_DIMENSION):
        partita.Core().compile_model(model, device)(feeds)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, -1, 1])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_a_scalar_has_no_axis_for_an_early_softmax(device, axis, op_type):
    model, feeds = single(op_type, [SCALAR], 1, {"axis": axis}, opset=11)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="not in valid range"):
        session.run(None, feeds)
    with pytest.raises(partita.errors.InputError, match=NO_DIMENSION):
        partita.Core().compile_model(model, device)(feeds)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, -1, 1])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMax", "ReduceL2"])
def test_any_axis_of_a_scalar_is_reduced(device, axis, op_type):
    model, feeds = single(op_type, [SCALAR, np.array([axis])], 1, {})
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = partita.Core().compile_model(model, device)(feeds).to_tuple()
    np.testing.assert_array_equal(found, session.run(None, feeds)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op_type", "opset"), [("ReduceMean", 13), ("ReduceSum", 18)])
def test_an_axis_that_is_named_twice_is_reduced_once(device, op_type, opset):
    axes = [0, -2, 0]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays, attributes = ([x], {"axes": axes}) if opset < 18 else ([x, np.array(axes)], {})
    model, feeds = single(op_type, arrays, 1, attributes, opset)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = partita.Core().compile_model(model, device)(feeds).to_tuple()
    np.testing.assert_array_equal(found, session.run(None, feeds)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op_type", ["ArgMax", "ReduceMean"])
def test_a_scalar_that_is_declared_is_reduced_too(device, op_type):
    """ONNX's inference says that there is no axis; so does onnxruntime here, unlike above."""
    attributes = {"axis": 0} if op_type == "ArgMax" else {"axes": [0]}
    model, feeds = single(op_type, [SCALAR], 1, attributes, opset=13, shape=())
    (found,) = partita.Core().compile_model(model, device)(feeds).to_tuple()
    np.testing.assert_array_equal(found, 0 if op_type == "ArgMax" else SCALAR)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_the_largest_of_one_is_the_first(device, axis, keepdims, op_type):
    model, feeds = single(op_type, [SCALAR], 1, {"axis": axis, "keepdims": keepdims})
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = partita.Core().compile_model(model, device)(feeds).to_tuple()
    np.testing.assert_array_equal(found, session.run(None, feeds)[0])


@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE"])
@pytest.mark.parametrize("shape", [(), None])
def test_indices_of_one_hot_have_a_dimension(device, shape):
    """ONNX and onnxruntime demand it; no device takes in a compile what another one refuses."""
    model, feeds = single("OneHot", [np.array(1), np.array(3), np.ones(2, np.float32)], 1, {})
    read = partita.Core().read_model(model)
    if shape is not None:
        read.reshape({"x0": shape})
    kinds = partita.errors.OperandError, partita.errors.InputError
    with pytest.raises(kinds, match=r"ndices (are to have a dimension|tensor must have rank >= 1)"):
        partita.Core().compile_model(read, device)(feeds)


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
@pytest.mark.parametrize(
    ("op_type", "x", "others", "attributes", "words"),
    [
        ("Flatten", np.ones((2, 3)), (), {"axis": 3}, "axis 3 is out of range"),
        ("Flatten", np.ones((2, 3)), (), {"axis": -3}, "axis -3 is out of range"),
        ("Tile", np.ones((2, 3)), (np.array([2]),), {}, "repeats is to be of shape"),
        ("Trilu", np.ones(3), (), {}, "to have 2 dimensions or more"),
    ],
)
def test_dimensions_that_are_missing_are_named(device, op_type, x, others, attributes, words):
    model, feeds = single(op_type, [x.astype(np.float32), *others], 1, attributes)
    with pytest.raises(partita.errors.InputError, match=words):
        partita.Core().compile_model(model, device)(feeds)
