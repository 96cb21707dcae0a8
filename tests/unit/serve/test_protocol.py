"""Element types and errors of the protocol; tritonclient lays out the bytes that are compared."""

import ml_dtypes
import numpy as np
import pytest
from tritonclient import utils as triton

from partita.errors import DeviceMemoryError, InferError, InputError
from partita_serve.protocol import errors
from partita_serve.protocol.datatypes import (
    array_from_bytes,
    array_to_bytes,
    datatype_of,
    dtype_of,
)
from partita_serve.protocol.errors import (
    InternalError,
    InvalidRequest,
    NotSupported,
    Overloaded,
    ServingError,
    serving_error,
)


def test_messages_are_short_whatever_they_quote():
    assert str(InvalidRequest("a" * 3000)) == "a" * 2000 + "..."


NUMBERS = ["BOOL", "FP16", "FP32", "FP64"] + [
    f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)
]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_types_are_those_of_the_client(datatype):
    dtype = np.dtype(triton.triton_to_np_dtype(datatype))
    assert dtype_of(datatype) == dtype
    assert datatype_of(dtype) == datatype == triton.np_to_triton_dtype(dtype)
    sent = np.arange(6).astype(dtype).reshape(2, 3)
    np.testing.assert_array_equal(array_from_bytes("x", datatype, (2, 3), sent.tobytes()), sent)
    assert bytes(array_to_bytes(sent.T)) == sent.T.tobytes()


def test_arrays_are_views_of_what_came():
    body = bytearray(np.ones(4, np.float32).tobytes())
    array = array_from_bytes("x", "FP32", (4,), memoryview(body))
    body[:4] = b"\0\0\0\0"
    assert array.tolist() == [0, 1, 1, 1]
    assert np.shares_memory(np.frombuffer(array_to_bytes(array), np.uint8), array)


def test_texts_are_laid_out_as_the_client_does_it():
    texts = np.array([[b"", b"abc"], ["äö".encode(), b"\0\xff"]], object)
    sent = triton.serialize_byte_tensor(texts).item()
    assert bytes(array_to_bytes(texts)) == sent
    np.testing.assert_array_equal(array_from_bytes("x", "BYTES", (2, 2), sent), texts)


def test_bfloat16_is_the_upper_half_of_float32():
    numbers = np.array([1, -2.5, 2.0**100], np.float32)
    sent = (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()
    taken = array_from_bytes("x", "BF16", (3,), sent)
    assert taken.dtype == ml_dtypes.bfloat16
    assert taken.astype(np.float32).tolist() == numbers.tolist()
    assert bytes(array_to_bytes(taken)) == sent


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "said"),
    [
        ("FP32", (2,), b"\0" * 7, r"Input 'x' has 7 bytes; FP32\[2\] takes 8"),
        ("FP31", (2,), b"", "no datatype 'FP31'"),
        ("FP32", (2**40, 2**40), b"", "takes"),
        ("FP32", (0, 2**70), b"", "none of shape"),
        ("BYTES", (2**50,), b"\0\0\0\0", "at least"),
        ("BYTES", (1,), b"\5\0\0\0ab", "ends inside element 0 of 1"),
        ("BYTES", (2,), b"\4\0\0\0abcd\1", "ends inside element 1 of 2"),
        ("BYTES", (1,), b"\1\0\0\0abc", "2 bytes behind its 1 elements"),
    ],
)
def test_wrong_bytes_are_refused(datatype, shape, data, said):
    with pytest.raises(InvalidRequest, match=said):
        array_from_bytes("x", datatype, shape, data)


def test_types_without_a_name_are_refused():
    with pytest.raises(NotSupported, match="no element type for complex64; it has BOOL"):
        datatype_of(np.dtype(np.complex64))


def test_errors_have_codes_of_both_transports():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, ServingError)]
    assert len(kinds) == 11
    for kind in kinds:
        assert 400 <= kind.http_status < 600
        assert kind.grpc_code.isupper()


def test_errors_of_the_framework_become_those_of_the_protocol():
    told = InvalidRequest("no")
    assert serving_error(told) is told
    assert isinstance(serving_error(InputError("shape")), InvalidRequest)
    assert isinstance(serving_error(DeviceMemoryError("full")), Overloaded)
    assert isinstance(serving_error(InferError("broken")), InternalError)
    assert str(serving_error(KeyError("/etc/secret"))) == (
        "The server failed (KeyError); its log says why."
    )
