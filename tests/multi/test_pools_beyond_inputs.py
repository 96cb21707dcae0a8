"""Pools whose window is larger than the padded input: one window, which sees what there is.

So ONNX's shape inference counts, and so onnxruntime computes; these are its numbers for the inputs
1 and 2, checked once with 1.30.
"""

from __future__ import annotations

import numpy as np
import pytest

import partita

from .graphs import model_of, node

X = np.float32([[[[1], [2]]]])
CASES = {
    "plain": ({"kernel": 2, "stride": 2}, [1, 2]),
    "one stride too large": ({"kernel": 3, "stride": 2}, []),
    "between paddings": ({"kernel": 4, "stride": 5, "pads": [0, 1, 0, 1]}, [1, 2]),
    "VALID": ({"kernel": 2, "stride": 2, "auto_pad": "VALID"}, [1, 2]),
}
COUNTED = {
    "plain": ({"kernel": 2, "stride": 2}, [1, 2]),
    "both paddings": ({"kernel": 4, "stride": 5, "pads": [0, 1, 0, 1]}, [1 / 3, 2 / 3]),
    "in front": ({"kernel": 4, "stride": 5, "pads": [0, 1, 0, 0]}, [0.5, 1]),
    "behind": ({"kernel": 4, "stride": 5, "pads": [0, 0, 0, 1]}, [0.5, 1]),
}
DEVICES = ["CPU", "OPENCL", "REFERENCE"]


def pooled(device, op_type, kernel, stride, shape=(1, 1, 2, 1), **more):
    pool = node(op_type, ["x"], "y", kernel_shape=[1, kernel], strides=[1, stride], **more)
    compiled = partita.Core().compile_model(model_of([pool], ["y"], shape=shape), device)
    return compiled({"x": X})["y"]


@pytest.mark.parametrize("shape", [(1, 1, 2, 1), ("n", "c", "h", "w")], ids=["fixed", "free"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("device", "op_type"),
    [
        *((device, op_type) for device in DEVICES for op_type in ("MaxPool", "AveragePool")),
        ("CPU", "LpPool"),
        ("REFERENCE", "LpPool"),
    ],
)
def test_a_window_sees_what_there_is(device, op_type, case, shape):
    given, expected = CASES[case]
    found = pooled(device, op_type, shape=shape, **given)
    assert found.shape == (1, 1, 2, len(expected) // 2)
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-6)


@pytest.mark.parametrize("case", COUNTED)
@pytest.mark.parametrize("device", DEVICES)
def test_paddings_that_count_are_divided_by(device, case):
    given, expected = COUNTED[case]
    found = pooled(device, "AveragePool", count_include_pad=1, **given)
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-6)
