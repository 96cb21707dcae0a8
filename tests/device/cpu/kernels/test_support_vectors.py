"""Support vector machines on device CPU, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from test_classical_models import assert_refused, check, model_of

import partita

WIDTH = 5
KINDS = ["LINEAR", "POLY", "RBF", "SIGMOID"]
SCORES = {"y": TensorProto.INT64, "z": TensorProto.FLOAT}


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32).ravel().tolist()


def classifier(rng, kind, counts, shares=False, **changed):
    """Attributes of a classifier with so many support vectors of each class."""
    classes, count = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    given = {
        "kernel_type": kind,
        "kernel_params": [0.3, 0.25, 3.0],
        "support_vectors": numbers(rng, count, WIDTH),
        "coefficients": numbers(rng, classes - 1, count),
        "rho": numbers(rng, pairs),
        "vectors_per_class": counts,
        "classlabels_ints": [7, -2, 30, 4, 9][:classes],
        "post_transform": "NONE",
    }
    if shares:
        given |= {"prob_a": numbers(rng, pairs), "prob_b": numbers(rng, pairs)}
    return given | changed


def rows(rng, count=37):
    return {"x": rng.standard_normal((count, WIDTH)).astype(np.float32)}


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("counts", [[4, 6], [3, 1, 5], [2, 0, 3, 4], [1, 2, 3, 4, 17]])
@pytest.mark.parametrize("kind", KINDS)
def test_classes_are_voted_for(kind, counts, shares):
    rng = np.random.default_rng(len(counts))
    proto = model_of("SVMClassifier", feeds := rows(rng), SCORES,
                     **classifier(rng, kind, counts, shares))  # fmt: skip
    check(proto, feeds, 1e-4)


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_polynomials_of_any_degree(degree):
    rng = np.random.default_rng(degree)
    attributes = classifier(rng, "POLY", [4, 3, 6], kernel_params=[0.3, 0.25, float(degree)])
    feeds = rows(rng)
    check(model_of("SVMClassifier", feeds, SCORES, **attributes), feeds, 1e-4)


@pytest.mark.parametrize("one_class", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_for_each_row(kind, one_class):
    rng = np.random.default_rng(3)
    feeds = rows(rng)
    proto = model_of("SVMRegressor", feeds, {"y": TensorProto.FLOAT}, kernel_type=kind,
                     kernel_params=[0.3, 0.25, 3.0], n_supports=23, one_class=one_class,
                     coefficients=numbers(rng, 23), rho=[0.125],
                     support_vectors=numbers(rng, 23, WIDTH))  # fmt: skip
    check(proto, feeds, 1e-4)


@pytest.mark.parametrize("op_type", ["SVMClassifier", "SVMRegressor"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_rows_of_many_inputs(kind, op_type, monkeypatch):
    monkeypatch.setitem(globals(), "WIDTH", 67)
    rng = np.random.default_rng(9)
    attributes = classifier(rng, kind, [20, 30, 40], kernel_params=[0.02, 0.25, 3.0])
    if op_type == "SVMRegressor":
        attributes |= {"n_supports": 90, "coefficients": numbers(rng, 90), "rho": [0.5]}
        del attributes["vectors_per_class"], attributes["classlabels_ints"]
    outputs = SCORES if op_type == "SVMClassifier" else {"y": TensorProto.FLOAT}
    proto = model_of(op_type, rows(rng), outputs, **attributes)
    for count in (1, 37, 200):
        check(proto, rows(rng, count), 1e-4)


def test_a_linear_machine_of_many_inputs_against_float64():
    """Where sums cancel, onnxruntime's of each support vector are less exact than one weight."""
    rng = np.random.default_rng(10)
    vectors, factors = rng.standard_normal((90, 67)), rng.standard_normal(90)
    x = rng.standard_normal((200, 67)).astype(np.float32)
    wanted = x.astype(np.float64) @ np.float32(vectors).T.astype(np.float64)
    wanted = wanted @ np.float32(factors).astype(np.float64) + 0.5
    proto = model_of("SVMRegressor", {"x": x}, {"y": TensorProto.FLOAT}, kernel_type="LINEAR",
                     n_supports=90, coefficients=factors.tolist(), rho=[0.5],
                     support_vectors=vectors.ravel().tolist())  # fmt: skip
    found = partita.Core().compile_model(proto, "CPU")({"x": x})["y"][:, 0]
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-4)


@pytest.mark.parametrize("shares", [False, True])
def test_no_rows_have_no_classes(shares):
    rng = np.random.default_rng(4)
    proto = model_of("SVMClassifier", rows(rng), SCORES, **classifier(rng, "RBF", [3, 4], shares))
    found = partita.Core().compile_model(proto, "CPU")(rows(rng, 0))
    assert [found[name].shape for name in SCORES] == [(0,), (0, 2)]


def test_classes_whose_labels_are_texts():
    rng = np.random.default_rng(5)
    texts = ["no", "yes", "perhaps"]
    attributes = classifier(rng, "RBF", [4, 5, 6], True, classlabels_strings=texts)
    del attributes["classlabels_ints"]
    feeds = rows(rng)
    proto = model_of("SVMClassifier", feeds, {**SCORES, "y": TensorProto.STRING}, **attributes)
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    model = partita.Core().read_model(proto)
    devices = partita.Core().query_model(model, "HETERO:CPU,REFERENCE")
    assert [devices[op.name] for op in model.ops] == ["CPU", "REFERENCE"]
    found = partita.Core().compile_model(proto, "HETERO:CPU,REFERENCE")(feeds)
    assert found["y"].tolist() == wanted[0].tolist()
    np.testing.assert_allclose(found["z"], wanted[1], 1e-4, 1e-6)


@pytest.mark.parametrize(
    "changed",
    [
        {"post_transform": "SOFTMAX"},
        {"kernel_params": [0.3, 0.25, 2.5]},
        {"kernel_params": [0.3]},
        {"rho": [1.0]},
        {"coefficients": [1.0] * 3},
        {"support_vectors": [1.0] * 9},
        {"prob_a": [1.0]},
        {"vectors_per_class": [3, 4, -1]},
        {"classlabels_ints": [1, 2]},
        {"vectors_per_class": [0, 0, 0]},
    ],
)
def test_attributes_that_do_not_belong_together_are_refused(changed):
    rng = np.random.default_rng(6)
    attributes = classifier(rng, "POLY", [3, 4, 5]) | changed
    assert_refused(model_of("SVMClassifier", rows(rng), SCORES, **attributes))


def test_two_classes_without_a_negative_coefficient_are_left_to_others():
    rng = np.random.default_rng(7)
    attributes = classifier(rng, "RBF", [3, 4], coefficients=[0.5] * 7)
    assert_refused(model_of("SVMClassifier", rows(rng), SCORES, **attributes))


def test_rows_of_another_width_are_an_error():
    rng = np.random.default_rng(8)
    proto = model_of("SVMClassifier", {"x": np.zeros((2, 9), np.float32)}, SCORES,
                     **classifier(rng, "RBF", [3, 4]))  # fmt: skip
    with pytest.raises(partita.PartitaError, match="support vectors of 5 numbers"):
        partita.Core().compile_model(proto, "CPU")({"x": np.zeros((2, 9), np.float32)})
