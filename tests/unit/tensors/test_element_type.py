"""Element types by OpenVINO's names, beside numpy's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import partita as ov
from partita.model.model import Port

KNOWN = {
    "boolean": np.bool_,
    "string": object,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "i4": ml_dtypes.int4,
    "i8": np.int8,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_type_is_equal_to_numpys_in_both_directions(name):
    kind, dtype = ov.Type(name), np.dtype(KNOWN[name])
    assert ov.Type(dtype) is kind
    assert ov.Type(KNOWN[name]) is kind
    assert kind == dtype
    assert dtype == kind
    assert kind == name
    assert kind != ov.Type.dynamic
    assert [other for other in ov.Type if other == dtype] == [kind]
    assert kind.to_dtype() == np.zeros(2, kind).dtype == dtype


def test_ports_and_tensors_tell_openvinos_types():
    port = Port(0, "x", np.dtype("float32"), (1,))
    assert port.element_type == port.get_element_type() == ov.Type.f32
    assert port.element_type.to_dtype() == np.float32
    assert ov.Tensor(np.int64, [1]).element_type is ov.Type.i64
    assert Port(0, "x", None, None).element_type is ov.Type.dynamic


def test_what_a_type_tells():
    assert ov.Type.bf16.is_real()
    assert not ov.Type.boolean.is_real()
    assert ov.Type.boolean.is_integral()
    assert ov.Type.u4.is_integral()
    assert (ov.Type.f64.size, ov.Type.i8.size) == (8, 1)
    assert ov.Type.i8.get_type_name() == ov.Type.i8.type_name == str(ov.Type.i8) == "i8"
    assert ov.Type.dynamic.is_dynamic()
    assert ov.Type.f32.is_static()
    assert len({ov.Type.f32, ov.Type.f64, ov.Type(np.float32)}) == 2


@pytest.mark.parametrize("other", [None, 5, np.dtype("datetime64[s]"), "float33", [], object()])
def test_what_is_no_type_is_unequal(other):
    assert ov.Type.f32 != other
    assert ov.Type.dynamic != np.dtype("float32")


def test_what_is_no_type_is_refused():
    with pytest.raises(ValueError, match="float33"):
        ov.Type("float33")
    with pytest.raises(AttributeError, match="'dynamic' is not known"):
        _ = ov.Type.dynamic.dtype
