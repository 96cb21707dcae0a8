"""Tensors are made, read and copied as OpenVINO's are."""

from __future__ import annotations

import numpy as np
import pytest

import partita as ov
from partita.errors import InputError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_sizes_and_strides():
    tensor = ov.Tensor(X)
    assert (tensor.get_size(), tensor.size) == (12, 12)
    assert (tensor.get_byte_size(), tensor.byte_size) == (48, 48)
    assert tensor.strides == tensor.get_strides() == (16, 4)
    assert tensor.is_continuous()
    assert tensor.get_shape() == tensor.shape == (3, 4)


def test_a_region_of_interest_lies_in_the_whole():
    whole = ov.Tensor(X)
    part = ov.Tensor(whole, [1, 1], [3, 3])
    np.testing.assert_array_equal(part.data, X[1:3, 1:3])
    assert part.strides == (16, 4)
    assert not part.is_continuous()
    part.data[:] = -1
    assert (whole.data == -1).sum() == 4
    same = ov.Tensor(other=whole, begin=[0, 0], end=[1, 4])
    assert same.is_continuous()


@pytest.mark.parametrize(
    ("begin", "end"), [([0], [1]), ([0, 0], [4, 4]), ([2, 0], [1, 4]), ([0, 0], [1, 5])]
)
def test_parts_that_are_not_there(begin, end):
    with pytest.raises(InputError, match=r"has no part from .* to"):
        ov.Tensor(ov.Tensor(X), begin, end)


def test_bytes_are_seen_in_another_shape_and_type():
    seen = ov.Tensor(X.copy(), ov.Shape([4, 3]), ov.Type.i32)
    np.testing.assert_array_equal(seen.data, X.view(np.int32).reshape(4, 3))
    np.testing.assert_array_equal(ov.Tensor(X, [2, 6]).data, X.reshape(2, 6))
    with pytest.raises(InputError, match=r"needs 64 bytes; the array has 48"):
        ov.Tensor(X, [4, 4])
    with pytest.raises(InputError, match="Only contiguous arrays"):
        ov.Tensor(X.T, [12])


@pytest.mark.parametrize("given", [["a", "bcé"], np.array([b"a", "bcé".encode()], object)])
def test_texts(given):
    tensor = ov.Tensor(given)
    assert tensor.element_type is ov.Type.string
    assert tensor.str_data.tolist() == ["a", "bcé"]
    assert tensor.bytes_data.tolist() == [b"a", "bcé".encode()]
    tensor.str_data = ["x", "y", "z"]
    assert tensor.shape == (3,)
    tensor.bytes_data = np.array([b"q"])
    assert tensor.str_data.tolist() == ["q"]
    with pytest.raises(InputError, match="holds no texts"):
        ov.Tensor(X).str_data = ["a"]


def test_copies_take_the_shape_and_keep_the_type():
    source, target = ov.Tensor(X), ov.Tensor(ov.Type.f32, [1])
    target.copy_from(source)
    np.testing.assert_array_equal(target.data, X)
    source.copy_to(other := ov.Tensor(np.float32, [2, 2]))
    np.testing.assert_array_equal(other.data, X)
    other.copy_from(X[:1])
    np.testing.assert_array_equal(other.data, X[:1])
    with pytest.raises(InputError, match=r"cannot be copied to .*: other elements"):
        target.copy_from(ov.Tensor(np.int32, [3, 4]))


def test_arguments_by_name():
    assert ov.Tensor(type=ov.Type.u8, shape=[2]).dtype == np.uint8
    assert ov.Tensor(array=X, shared_memory=True).data is X
    with pytest.raises(InputError, match=r"A tensor is made by Tensor\(array, shared_memory\)"):
        ov.Tensor(X, copy=True)


def test_what_types_tell():
    kinds = ov.Type
    assert (kinds.u4.bitwidth, kinds.u4.size, kinds.nf4.get_bitwidth()) == (4, 1, 4)
    assert (kinds.bf16.bitwidth, kinds.boolean.bitwidth, kinds.f8e5m2.get_size()) == (16, 8, 1)
    assert (kinds.dynamic.size, kinds.dynamic.bitwidth) == (0, 0)
    assert kinds.f32.real
    assert kinds.f32.signed
    assert not kinds.u8.is_signed()
    assert kinds.u8.quantized
    assert kinds.f8e4m3.is_quantized()
    assert not kinds.i16.is_quantized()
    assert kinds.boolean.integral
    assert not kinds.boolean.is_integral_number()
    assert kinds.f32.compatible(kinds.dynamic)
    assert kinds.f32.merge(kinds.dynamic) is kinds.dynamic.merge(kinds.f32) is kinds.f32
    assert kinds.f32.merge(kinds.i8) is None
    assert kinds.u1.to_string() == "u1"
    with pytest.raises(AttributeError, match="'u3' has no bytes of its own"):
        kinds.u3.to_dtype()


def test_a_tensor_of_a_port_has_its_type_and_sizes():
    x = ov.opset13.parameter([2, -1], np.int32, name="x")
    model = ov.Model([ov.opset13.relu(x)], [x], "m")
    tensor = ov.Tensor(model.input(0))
    assert (tensor.shape, tensor.element_type) == ((2, 0), ov.Type.i32)
    model.reshape([2, 3])
    assert not ov.Tensor(model.input(0)).data.any()
    held = np.arange(6, dtype=np.int32)
    for port in (model.input(0), ov.Core().compile_model(model, "CPU").input(0)):
        seen = ov.Tensor(port, held)
        held[0] = 7
        assert seen.data.tolist() == [[7, 1, 2], [3, 4, 5]]
    with pytest.raises(InputError, match="needs 24 bytes; the array has 12"):
        ov.Tensor(model.input(0), held[:3])


@pytest.mark.parametrize(
    ("kind", "held", "due"),
    [
        ("u4", [0x21, 0xF3], [1, 2, 3, 15]),
        ("i4", [0x8F, 0x07], [-1, -8, 7]),
        ("u2", [0b11_10_01_00], [0, 1, 2, 3]),
        ("i2", [0b11_10_01_00], [0, 1, -2, -1]),
        ("f4e2m1", [0x92], [1.0, -0.5]),
    ],
)
def test_elements_of_less_than_a_byte_are_unpacked(kind, held, due):
    kind = ov.Type(kind)
    tensor = ov.Tensor(np.array(held, np.uint8), [len(due)], kind)
    assert (tensor.element_type, tensor.shape) == (kind, (len(due),))
    assert tensor.data.astype(np.float32).tolist() == due
    with pytest.raises(InputError, match="contiguous bytes; found uint8"):
        ov.Tensor(np.array(held, np.uint8), [17], kind)
