"""Exported models: whatever is damaged or foreign is refused, by one kind of error."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import affine, neg
from toy_device import ToyDevice, core_with

from partita.errors import BlobError
from partita.frontends.reader import read_model
from partita.storage import exported_model
from partita.storage.content_hash import array_fingerprint, fingerprint

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture
def packed():
    model = read_model(affine())
    model.ops[0].affinity = "GPU"
    return exported_model.pack("TOY", {"properties": {"LEVEL": 3}}, model)


def refused(data, said, device="TOY"):
    with pytest.raises(BlobError) as caught:
        exported_model.unpack(data, device)
    assert said in str(caught.value)


def forge(head, payload=b"", version=2, arrays=(), behind=b""):
    """A blob whose checksum is right, whatever it holds."""
    if not isinstance(head, bytes):
        content = {"header": head, "model": len(payload), "arrays": arrays}
        head = json.dumps(content).encode()
        payload += b"\0" * (-len(payload) % 64) + behind
    digest = fingerprint(head + fingerprint(payload))
    return (
        exported_model.PREFIX.pack(exported_model.MAGIC, version, len(head), digest, len(payload))
        + head
        + payload
    )


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_round_trip(packed, kind):
    content = exported_model.unpack(kind(packed), "TOY")
    model = content.model
    assert not content.arrays
    assert content.header == {"properties": {"LEVEL": 3}, "device": "TOY"}
    assert [(op.name, op.affinity) for op in model.ops] == [
        ("matmul", "GPU"),
        ("bias", None),
        ("relu", None),
    ]


def test_cut_short_anywhere(packed):
    for size in (*range(0, len(packed), 97), len(packed) - 1):
        with pytest.raises(BlobError):
            exported_model.unpack(packed[:size], "TOY")
    refused(packed[:10], "These bytes are not an exported Partita model")
    refused(packed[:-1], "cut short or has bytes too many")
    refused(packed + b"\0", "cut short or has bytes too many")


def test_any_byte_changed(packed):
    for position in range(len(packed)):
        changed = bytearray(packed)
        changed[position] ^= 1 << position % 8
        with pytest.raises(BlobError):
            exported_model.unpack(changed, "TOY")
    changed = bytearray(packed)
    changed[-5] ^= 1
    refused(changed, "The exported model is damaged: its checksum does not match")


def test_what_is_no_blob():
    refused("text", "An exported model is bytes; found str")
    refused(None, "found NoneType")
    refused(affine().SerializeToString(), "These bytes are not an exported Partita model")


def test_another_version_or_device(packed):
    refused(forge({"device": "TOY"}, version=1), "has format 1; this version reads 2. Export it ag")
    refused(packed, "was exported from device 'TOY', not from 'CPU'", device="CPU")


@pytest.mark.parametrize(
    ("head", "payload", "said"),
    [
        (b"{", b"", "header is damaged"),
        (b"\xff\xfe", b"", "header is damaged"),
        (b"[" * 100_000, b"", "header is damaged"),
        (b"[]", b"", "header is damaged"),
        (b"{}", b"", "header is damaged"),
        ([1], b"", "was exported from device '[1]'"),
        ({}, b"", "was exported from device 'None'"),
        ({"device": "TOY"}, b"", "is empty, and no model"),
        ({"device": "TOY"}, b"nonsense", "is not an ONNX model"),
    ],
)
def test_forged_blobs(head, payload, said):
    refused(forge(head, payload), said)


@pytest.mark.parametrize(
    "properties", [{"NONE": 1}, {"LEVEL": 99}, {"SERIAL": "x"}, 3, [1], "LEVEL"]
)
def test_forged_properties(properties):
    data = forge({"device": "TOY", "properties": properties}, neg().SerializeToString())
    with pytest.raises(BlobError, match=r"does not fit its device"):
        core_with(ToyDevice()).import_model(data, "TOY")


def test_a_blob_without_properties_has_the_defaults():
    data = forge({"device": "TOY"}, neg().SerializeToString())
    np.testing.assert_array_equal(core_with(ToyDevice()).import_model(data, "TOY")(X)[0], -X)


def test_a_model_too_large_for_a_blob(monkeypatch):
    monkeypatch.setattr("partita.model.model.PROTOBUF_BYTES", 59)
    with pytest.raises(BlobError, match=r"Model 'affine' cannot be exported: it has 0.0 GiB of w"):
        exported_model.pack("TOY", {}, read_model(affine()))
    assert read_model(affine()).weight_bytes == 60


def test_arrays_of_all_kinds_come_back_as_views_of_the_blob():
    import ml_dtypes

    arrays = {
        "f": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.arange(6, dtype=np.int64).reshape(2, 3).T,
        "b": np.array([1.5, -2], ml_dtypes.bfloat16),
        "empty": np.zeros((0, 4), np.uint8),
        "scalar": np.array(True),
    }
    data = bytearray(exported_model.pack("TOY", {}, read_model(affine()), arrays))
    back = exported_model.unpack(data, "TOY").arrays
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
    where = np.frombuffer(data, np.uint8)
    assert np.shares_memory(back["f"], where)
    assert (back["f"].ctypes.data - where.ctypes.data) % 64 == 0, "aligned in a mapped file"


@pytest.mark.parametrize(
    "arrays",
    [
        [["a", "float32", [32], 64]],  # ends behind the blob
        [["a", "float32", [0], 64]],  # leaves bytes that are nobody's
        [["a", "float32", [16], 0]],  # begins in the model
        [["a", "float32", [-16], 64]],
        [["a", "float32", [16], -64]],
        [["a", "float32", [0, 2**70], 64]],
        [["a", "float32", [1e400], 64]],
        [["a", "O", [8], 64]],
        [["a", "V4", [16], 64]],
        [["a", "f4,f4", [8], 64]],
        [["a", "no type", [1], 64]],
        [["a", "float32", "two", 64]],
        [["a", "float32", [8], 64], ["b", "float32", [16], 64]],  # over one another
        [["a", "float32", [16], 64], ["a", "float32", [0], 128]],
        [[3, "float32", [16], 64]],
        [["a"]],
        [3],
        3,
    ],
)
def test_forged_arrays(arrays):
    data = forge({"device": "TOY"}, b"x" * 12, arrays=arrays, behind=bytes(64))
    refused(data, "header is damaged")


def test_fingerprints_tell_contents_apart():
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 300_000, dtype=np.uint8)
    known = {fingerprint(data)}
    for position in (0, 1, 65_535, 65_536, 131_080, 262_143, 262_144, 299_999):
        for bit in (1, 128):
            changed = data.copy()
            changed[position] ^= bit
            known.add(fingerprint(changed))
    swapped = data.copy()
    swapped[:65_536], swapped[65_536:131_072] = data[65_536:131_072], data[:65_536]
    known |= {fingerprint(swapped), fingerprint(data[:-1]), fingerprint(b""), fingerprint(b"\0")}
    assert len(known) == 21
    assert fingerprint(data.tobytes()) == fingerprint(data)
    f = np.arange(6, dtype=np.float32)
    names = [f, f.reshape(2, 3), f.view(np.int32), f[::-1], f.reshape(2, 3).T]
    assert len({array_fingerprint(array) for array in names}) == 5


def test_a_model_comes_back_as_tidy_as_it_was(monkeypatch):
    """Names, types and shapes are stored, and believed if the same code wrote them."""
    before = read_model(affine())
    for stamp in ("same", "other"):
        data = exported_model.pack("TOY", {}, before)
        monkeypatch.setattr(exported_model, "code_stamp", lambda package, stamp=stamp: stamp)
        after = exported_model.unpack(data, "TOY").model
        assert [(op.name, op.inputs, op.outputs) for op in after.ops] == [
            (op.name, op.inputs, op.outputs) for op in before.ops
        ]
        assert after.inputs == before.inputs
        assert after.outputs == before.outputs
        for old, new in zip(before.ir.graph, after.ir.graph, strict=True):
            assert [(v.dtype, str(v.shape)) for v in old.outputs] == [
                (v.dtype, str(v.shape)) for v in new.outputs
            ]
