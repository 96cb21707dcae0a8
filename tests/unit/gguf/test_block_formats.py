"""Blocks of quants become quants, scales and zero points of the same numbers."""

import weakref

import numpy as np
import pytest
from gguf_files import ELEMENTS, QUANTISED, Stored, gguf_bytes, random_tensor, stored

from partita.frontends.gguf import rotary, weights
from partita.frontends.gguf.container import GgufFile
from partita.frontends.gguf.hyperparameters import RopeScaling


def tensor_of(content):
    file = GgufFile(memoryview(gguf_bytes({}, {"w": content})), "the test's file")
    return file.tensors["w"]


def unpacked(tensor):
    """scale * (quant - zero point) in float64, from the arrays that operators get."""
    form = tensor.format
    packed = weights.quantised(tensor).quants().numpy()
    if form.bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1)
    quants = packed.reshape(*packed.shape[:2], -1).astype(np.float64)
    scales = weights.quantised(tensor).scales().numpy().astype(np.float64)[..., None]
    zero_points = weights.quantised(tensor).zero_points()
    middle = 1 << (form.bits - 1)
    zero = middle if zero_points is None else zero_points.numpy().astype(np.float64)[..., None]
    return (scales * (quants - zero)).reshape(tensor.shape)


@pytest.mark.parametrize("kind", QUANTISED)
def test_weights_are_those_of_the_blocks(kind):
    content = random_tensor(np.random.default_rng(1), kind, (7, 512))
    due = content.numbers()
    found = unpacked(tensor_of(content))
    # An offset is a multiple of the scale, rounded once: to 2**-24 of itself.
    np.testing.assert_allclose(found, due, rtol=0, atol=np.abs(due).max() * 2**-21)


@pytest.mark.parametrize("kind", QUANTISED)
def test_many_rows_are_unpacked_in_parts(kind, monkeypatch):
    content = random_tensor(np.random.default_rng(2), kind, (9, 256))
    tensor = tensor_of(content)
    whole = unpacked(tensor)
    monkeypatch.setattr(weights, "CHUNK_BYTES", len(content.data) // 4)
    np.testing.assert_array_equal(unpacked(tensor), whole)


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_1"])
def test_a_block_without_scale_is_its_offset(kind):
    content = random_tensor(np.random.default_rng(3), kind, (2, 64))
    size = len(content.data) // 4
    flat = b"\0\0" + np.float16(0.75).tobytes()
    content.data = flat + content.data[4:size] + content.data[size:]
    found = unpacked(tensor_of(content))
    np.testing.assert_array_equal(found[0, :32], 0.75)
    np.testing.assert_allclose(found, content.numbers(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K"])
def test_a_group_of_scale_zero_is_its_offset(kind):
    content = random_tensor(np.random.default_rng(4), kind, (1, 256))
    data = bytearray(content.data)
    data[4] &= 0xC0  # the scale of the first group
    data[8] |= 1  # and its offset, which is not zero
    content.data = bytes(data)
    found = unpacked(tensor_of(content))
    due = content.numbers()
    assert due[0, 0] == due[0, 31] != 0
    np.testing.assert_allclose(found, due, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", QUANTISED)
def test_blocks_of_zeros_are_zeros(kind):
    data = bytes(len(random_tensor(np.random.default_rng(5), kind, (1, 256)).data))
    assert not unpacked(tensor_of(Stored(kind, (1, 256), data))).any()


@pytest.mark.parametrize("kind", [kind for kind in QUANTISED if kind != "MXFP4"])
@pytest.mark.parametrize("half", [b"\x00\x7c", b"\xff\xff"], ids=["infinite", "no number"])
def test_scales_that_are_no_numbers_make_no_warning(kind, half):
    count = len(random_tensor(np.random.default_rng(6), kind, (1, 256)).data)
    tensor = tensor_of(Stored(kind, (1, 256), half * (count // 2)))
    assert not np.isfinite(weights.quantised(tensor).scales().numpy()).all()
    zero_points = weights.quantised(tensor).zero_points()
    assert zero_points is None or not np.isfinite(zero_points.numpy()).all()
    assert weights.quantised(tensor).quants().numpy().dtype == np.uint8


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_numbers_are_views_of_the_file(kind):
    content = stored(kind, np.random.default_rng(7).normal(size=(3, 5)))
    tensor = tensor_of(content)
    array = weights.plain(tensor, transposed=True).numpy()
    np.testing.assert_array_equal(array.astype(np.float64), content.numbers().T)
    assert not array.flags.owndata


@pytest.mark.parametrize("kind", QUANTISED)
def test_nothing_that_was_made_is_kept(kind):
    tensor = tensor_of(random_tensor(np.random.default_rng(8), kind, (2, 256)))
    lazy = weights.quantised(tensor).quants()
    assert lazy.numpy() is not lazy.numpy()
    assert lazy.nbytes == lazy.numpy().nbytes
    assert tensor.blocks().shape == (2, 256 // ELEMENTS.get(kind, 32))


def test_rotary_tables_are_kept_by_who_asked_for_them():
    tables = rotary.RotaryTables(np.array([1.0, 0.01]), 3000, RopeScaling())
    lazy = {part: tables.tensor(part) for part in ("cos", "sin")}
    turns = np.arange(3000)[:, None] * np.array([1.0, 0.01])
    for part in ("cos", "sin", "sin", "cos"):
        found = lazy[part].numpy()
        np.testing.assert_allclose(found, getattr(np, part)(turns), atol=1e-6)
        kept = weakref.ref(found)
        del found
        assert kept() is None
