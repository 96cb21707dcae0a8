"""TopK and ScatterElements on device OPENCL, against onnxruntime."""

import numpy as np
import pytest

import partita

from ..comparison import check_single, compiled, floats, int64s, integers, single


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("largest", [0, 1])
def test_the_first_of_a_row(axis, largest):
    inputs = [floats(3, 7, 5), int64s(3)]
    check_single("TopK", inputs, {"axis": axis, "largest": largest}, outputs=2, constant=[1])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16])
def test_equal_elements_come_in_order(dtype):
    inputs = [integers(2, 400, low=-2, high=3).astype(dtype), int64s(9)]
    check_single("TopK", inputs, outputs=2, constant=[1])


def test_extremes():
    x = np.array([[0.0, -0.0, -np.inf, np.inf, 1e-40, -1e-40]], np.float32)
    check_single("TopK", [x, int64s(6)], outputs=2, constant=[1])
    x = np.array([[2**63 - 1, -(2**63), 0, -(2**63)]], np.int64)
    for largest in (0, 1):
        check_single("TopK", [x, int64s(4)], {"largest": largest}, outputs=2, constant=[1])


def test_none_and_too_many():
    check_single("TopK", [floats(2, 3), int64s(0)], outputs=2, constant=[1])
    model, _ = single("TopK", [floats(2, 3), int64s(4)], outputs=2, constant=[1], dynamic=True)
    with pytest.raises(partita.PartitaError, match="4"):
        compiled(model).infer_new_request({"x0": floats(2, 3)})


@pytest.mark.parametrize(
    ("axis", "indices"), [(1, [[0, -1], [3, 2]]), (0, [[0, -1, 1, 1, 0, 0, 2]])]
)
def test_scattered_elements(axis, indices):
    places = np.array(indices)
    inputs = [floats(3, 7), places, floats(*places.shape, seed=1)]
    check_single("ScatterElements", inputs, {"axis": axis})


def test_places_that_are_none():
    model, feeds = single("ScatterElements", [floats(2, 3), int64s(3)[None], floats(1, 1)])
    with pytest.raises(partita.PartitaError, match="ScatterElements"):
        compiled(model).infer_new_request(feeds)
