"""Values and attributes that are out of all bounds: an answer or an error, soon, and no crash."""

import numpy as np
import pytest

from partita.errors import PartitaError
from partita_opencl.runtime import host_folding

from .comparison import check, compiled, floats, single

WINDOWS = [
    ("AveragePool", [floats(1, 2, 5, 6)], {"kernel_shape": [3, 3], "pads": [1, 2, 1, 0]}),
    ("MaxPool", [floats(1, 2, 5, 6)], {"kernel_shape": [2, 3], "strides": [2, 1]}),
    ("Conv", [floats(1, 2, 5, 6), floats(3, 2, 3, 3)], {}),
    ("ConvTranspose", [floats(1, 2, 5, 6), floats(2, 3, 3, 3)], {}),
    ("Resize", [floats(1, 2, 5, 6), None, np.array([1, 1, 2, 3], np.float32)], {"mode": "linear"}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attrs"), WINDOWS)
def test_windows_over_constants_are_computed_by_the_device(monkeypatch, op_type, inputs, attrs):
    """The host evaluates them in Python, one by one: minutes, with a pad of millions."""

    def never(node, arrays):
        raise AssertionError(f"{node.op_type} was evaluated by the host")

    monkeypatch.setattr(host_folding, "reference_fold", never)
    constant = [i for i, x in enumerate(inputs) if x is not None]
    model, _ = single(op_type, inputs, attrs, constant=constant)
    check(model, {})


@pytest.mark.parametrize("which", [1, 2])
def test_sizes_and_scales_that_are_one_number(which):
    """A scalar was no list; as a row of one number it fits a tensor of one dimension."""
    inputs = [floats(5), None, None, None][: which + 2]
    inputs[which + 1] = np.array(2, np.float32) if which == 1 else np.array(10, np.int64)
    model, feeds = single("Resize", inputs, constant=[which + 1])
    (found,) = compiled(model)(feeds).values()
    np.testing.assert_array_equal(found, np.repeat(inputs[0], 2))


@pytest.mark.parametrize("axis", [0, -1])
def test_constants_gathered_by_element_are_so_by_numpy(monkeypatch, axis):
    """ONNX's reference takes minutes for large constants, trying one way after another."""

    def never(node, arrays):
        raise AssertionError(f"{node.op_type} was evaluated by ONNX's reference")

    monkeypatch.setattr(host_folding, "reference_fold", never)
    inputs = [floats(4, 5), np.array([[0, -1, 2], [3, 1, -4]])]
    model, _ = single("GatherElements", inputs, {"axis": axis}, constant=[0, 1])
    check(model, {})


@pytest.mark.parametrize("others", [np.float32, np.int8])
def test_tensors_of_several_types_are_not_joined(others):
    """Elements of four bytes were written to a result of one byte each, and beyond it."""
    first = np.int8 if others is np.float32 else np.float32
    parts = [np.ones(4, first), np.ones(4096, others)]
    model, feeds = single("Concat", parts, {"axis": 0})
    with pytest.raises(PartitaError, match=r"\(Concat\) has inputs of types"):
        compiled(model)(feeds)


@pytest.mark.parametrize("fill", [np.zeros(0, np.float32), np.ones((), np.float16)])
def test_a_border_is_of_one_element_of_the_type_of_the_tensor(fill):
    model, feeds = single("Pad", [floats(3), np.array([1, 1]), fill], constant=[1])
    with pytest.raises(PartitaError, match=f"by {fill.size} elements of {fill.dtype}; it must be"):
        compiled(model)(feeds)


def test_images_of_more_pixels_than_kernels_count():
    attrs = {"kernel_shape": [1, 1], "pads": [1 << 15] * 4}
    model, _ = single("MaxPool", [floats(1, 1, 5, 5)], attrs)
    with pytest.raises(PartitaError, match="pixels; device OPENCL takes 2147483647"):
        compiled(model)
