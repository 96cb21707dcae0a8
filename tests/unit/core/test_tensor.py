"""Tensors."""

from __future__ import annotations

import numpy as np
import pytest
from toy_device import ToyTensor

import partita as ov
from partita.tensor import HostTensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_host_tensor_is_the_array():
    x = X.copy()
    tensor = HostTensor(x)
    assert tensor.numpy() is tensor.data is x
    x[0, 0] = 9
    assert tensor.data[0, 0] == 9
    assert (tensor.shape, tensor.dtype, tensor.device, tensor.memory) == (
        (2, 3),
        "f4",
        "CPU",
        "host",
    )
    assert (tensor.size, tensor.nbytes, tensor.byte_size) == (6, 24, 24)
    assert tensor.element_type == np.float32
    assert repr(tensor) == "<Tensor float32[2, 3] on CPU>"


def test_openvinos_constructor_copies_unless_told_to_share():
    x = X.copy()
    copied, shared = ov.Tensor(x), ov.Tensor(x, shared_memory=True)
    x[0, 0] = 9
    assert isinstance(copied, ov.Tensor)
    assert copied.data[0, 0] == 0
    assert shared.data[0, 0] == 9
    assert ov.Tensor(X.T).numpy().flags.c_contiguous
    assert ov.Tensor([1, 2]).shape == (2,)
    assert repr(copied) == "<Tensor float32[2, 3] on CPU>"


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)])
def test_sizes_of_odd_shapes(shape):
    tensor = HostTensor(np.zeros(shape, np.int16))
    assert tensor.size == np.prod(shape, dtype=int)
    assert tensor.nbytes == 2 * tensor.size


def test_tensors_are_arrays_to_numpy():
    tensor = HostTensor(X)
    np.testing.assert_array_equal(np.asarray(tensor), X)
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert np.asarray(tensor).base is X or np.asarray(tensor) is X
    assert not np.shares_memory(np.array(tensor, copy=True), X)
    with pytest.raises(ValueError, match="copy"):
        np.array(tensor, dtype=np.float64, copy=False)


def test_tensors_cross_by_dlpack():
    x = X.copy()
    taken = np.from_dlpack(HostTensor(x))
    assert np.shares_memory(taken, x)
    assert HostTensor(x).__dlpack_device__() == (1, 0)


def test_tensors_of_other_memories_come_as_copies():
    tensor = ToyTensor(X)
    assert not np.shares_memory(tensor.numpy(), X)
    np.testing.assert_array_equal(np.asarray(tensor), X)
    np.testing.assert_array_equal(np.from_dlpack(tensor), X)
    assert repr(tensor) == "<Tensor float32[2, 3] on TOY>"


def test_a_tensor_class_without_numpy_is_abstract():
    class Half(ov.Tensor):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Half()
