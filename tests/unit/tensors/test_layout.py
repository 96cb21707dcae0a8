"""Layouts: orders of axes and element types, and tensors that lie in them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import partita
from partita.errors import InferError
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor, stored_as

F32, F16 = np.dtype(np.float32), np.dtype(np.float16)
NHWC = MemoryLayout((0, 2, 3, 1), F32)


def test_names():
    assert NHWC.name == "NHWC float32"
    assert MemoryLayout((0, 1), F16).name == "01 float16"


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
def test_every_order_of_axes_keeps_every_element(axes):
    layout = MemoryLayout(axes, F16)
    plain = np.arange(24, dtype=F32).reshape(2, 3, 4)
    stored = layout.stored(plain)
    assert stored.shape == layout.shape_in_memory((2, 3, 4))
    assert stored.dtype == F16
    assert stored.flags.c_contiguous
    assert layout.nbytes((2, 3, 4)) == stored.nbytes
    for index in np.ndindex(2, 3, 4):
        assert stored[tuple(index[axis] for axis in axes)] == plain[index]
    tensor = LaidOutTensor(stored, F32, layout)
    assert tensor.shape == (2, 3, 4)
    assert tensor.dtype == F32
    assert tensor.numpy().flags.c_contiguous
    np.testing.assert_array_equal(tensor.numpy(), plain)
    assert tensor.stored() is stored


def test_a_tensor_in_a_layout_is_no_host_memory():
    tensor = LaidOutTensor(np.zeros((1, 2, 2, 3), F32), F32, NHWC)
    assert tensor.memory != "host"
    assert not partita.Core().device_api.can_share("CPU", tensor.memory)


def test_a_layout_that_was_not_agreed_on_is_an_error():
    tensor = LaidOutTensor(np.zeros((1, 2, 2, 3), F32), F32, NHWC)
    assert stored_as(tensor, NHWC) is tensor.stored()
    plain = partita.HostTensor(np.zeros(3, F32))
    assert stored_as(plain, None) is plain.numpy()
    with pytest.raises(InferError, match="came in layout NHWC float32; plain was agreed"):
        stored_as(tensor, None)
    with pytest.raises(InferError, match="came plain; in layout NHWC float32 was agreed"):
        stored_as(plain, NHWC)
