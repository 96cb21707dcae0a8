"""Tensors."""

from __future__ import annotations

import numpy as np
import pytest
from toy_device import ToyTensor

import partita as ov
from partita.errors import InputError
from partita.tensors.tensor import HostTensor

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
        "host",
        "host",
    )
    assert (tensor.size, tensor.nbytes, tensor.byte_size) == (6, 24, 24)
    assert tensor.element_type == np.float32
    assert repr(tensor) == "<Tensor float32[2, 3] on host>"


def test_openvinos_constructor_copies_unless_told_to_share():
    x = X.copy()
    copied, shared = ov.Tensor(x), ov.Tensor(x, shared_memory=True)
    x[0, 0] = 9
    assert isinstance(copied, ov.Tensor)
    assert copied.data[0, 0] == 0
    assert shared.data[0, 0] == 9
    assert ov.Tensor(X.T).numpy().flags.c_contiguous
    assert ov.Tensor([1, 2]).shape == (2,)
    assert repr(copied) == "<Tensor float32[2, 3] on host>"


@pytest.mark.parametrize("kind", [np.float32, np.dtype("float32"), ov.Type.f32, float])
def test_a_type_and_a_shape_make_zeros(kind):
    tensor = ov.Tensor(kind, [2, 4])
    assert (tensor.shape, tensor.get_shape()) == ((2, 4), (2, 4))
    assert tensor.dtype == (np.float64 if kind is float else np.float32)
    assert not tensor.data.any()
    assert ov.Tensor(kind, shape=(3,)).shape == (3,)
    assert ov.Tensor(kind, []).shape == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.float32,), "needs a shape: Tensor(type, shape)"),
        ((ov.Type.f32, [2, -1]), "no negative dimensions; found [2, -1]"),
        ((ov.Type.f32, 3), "a sequence of whole numbers; found 3"),
        ((ov.Type.f32, [1.5]), "a sequence of whole numbers; found [1.5]"),
        ((ov.Type.dynamic, [1]), "is not an element type of a tensor"),
        (([1, 2], [2]), "an array and whether to share its memory, or a type and a shape"),
        ((object(),), "A tensor holds numbers, truth values or texts; found object among object[]"),
        (([print],), "found builtin_function_or_method among object[1]"),
        ((np.array([1.5], object),), "found float among object[1]. Numbers need a type of their"),
        (([[1, 2], [3]],), "list cannot be made a tensor: setting an array element"),
        ((np.array([b"\xff"], object),), "texts are in UTF-8; found b'\\xff'"),
    ],
)
def test_what_makes_no_tensor(arguments, said):
    with pytest.raises(InputError) as caught:
        ov.Tensor(*arguments)
    assert said in str(caught.value)


def test_texts_make_a_tensor():
    tensor = ov.Tensor(np.array(["a", "bc"], object))
    assert (tensor.shape, tensor.element_type) == ((2,), ov.Type.string)


def test_a_tensor_takes_another_shape():
    tensor = ov.Tensor(X)
    tensor.shape = [3, 2]
    np.testing.assert_array_equal(tensor.data, X.reshape(3, 2))
    tensor.set_shape((1, 4))
    assert (tensor.shape, tensor.data.shape, tensor.byte_size) == ((1, 4), (1, 4), 16)
    assert not tensor.data.any()
    with pytest.raises(InputError, match="no negative dimensions"):
        tensor.shape = (-1,)
    assert tensor.shape == (1, 4)


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

    class Foreign:
        """What another library has, known by DLPack alone."""

        __dlpack__, __dlpack_device__ = x.__dlpack__, x.__dlpack_device__

    for is_shared in (True, False):
        tensor = ov.Tensor(Foreign(), shared_memory=is_shared)
        np.testing.assert_array_equal(tensor.data, x)
        assert np.shares_memory(tensor.data, x) == is_shared


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


def test_a_host_tensor_holds_an_array():
    number = HostTensor(np.float32(3) - np.float32(1))
    assert type(number.numpy()) is np.ndarray
    assert (number.shape, number.numpy().item()) == ((), 2)
    with pytest.raises(TypeError, match=r"holds a numpy array, not list"):
        HostTensor([1.0, 2.0])
