"""DYNAMIC_QUANTIZATION_GROUP_SIZE: rows in int8, and what is told about them, on every level."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from block_weights import Weights
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from single_op import model_of, normal

import partita
from partita.errors import PropertyError
from partita_cpu.gemm import precision_policy
from partita_cpu.jit.isa import available
from partita_cpu.kernels.quantized_weights.unpacked_products import QUAD_ROWS
from partita_cpu.llvm.levels import EVERY
from partita_cpu.llvm.tiles.dot_blocks import scales_by_exponents
from partita_cpu.llvm.tiles.dot_unpacked import longest_unit

PROPERTY = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
NEAR = 2e-6
"""Of the largest sum of products without their signs: by what float32 differs from float64."""

EXACT = 2e-5
"""The same for rows in 16 bits."""

ROUNDED = 2e-3
"""And for those in 8."""

KINDS = [None, "bytes", "equal", "floats", "minimum"]
LEVELS = [level.name for level in available()]


def compiled(weights, x, group, device="CPU", **config):
    constants = tuple(range(1, 1 + len(weights.inputs)))
    made = model_of(
        "MatMulNBits",
        [x, *weights.inputs],
        domain="com.microsoft",
        constants=constants,
        **weights.sizes,
    )
    core = partita.Core()
    model = core.read_model(made.SerializeToString())
    return core.compile_model(model, device, {PROPERTY: group, **config})


def grouped(x, group):
    """Rows in multiples of a 127th of the largest number of each group, by numpy."""
    padded = np.zeros((len(x), -(-x.shape[1] // group), group), np.float32)
    padded.reshape(len(x), -1)[:, : x.shape[1]] = x
    largest = np.abs(padded).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        levels = np.where(largest > 0, np.rint(padded * (np.float32(127) / largest)), 0)
    scales = (largest / np.float32(127)).astype(np.float64)
    return (levels * scales).reshape(len(x), -1)[:, : x.shape[1]]


def off(got, x, weights):
    """The largest difference from float64, of the largest sum of products without their signs.

    Or of one with weights of half a level each, if these are larger: last bits are those of
    products with levels, before zero points are taken off, and all weights may be zero.
    """
    matrix, size = weights.matrix(), weights.sizes["block_size"]
    levels = np.repeat(np.abs(weights.scales), size, axis=1)[:, : len(matrix)].T
    sums = np.abs(x) @ np.abs(matrix), np.abs(x) @ levels / 2
    return np.abs(got - x @ matrix).max() / max(float(each.max(initial=1e-30)) for each in sums)


def off_by_16_bits(x, weights):
    """How far off sums may be: half a step of 16 bits for each term, and float32's last bits.

    A step is a part of the largest term of a block, whose weight may be small or zero: a 32767th,
    or up to twice as much where steps are powers of two times a factor of the row. Last bits are
    those of products with levels, before zero points are taken off.
    """
    terms, size = x.shape[1], weights.sizes["block_size"]
    blocks = np.pad(np.abs(x), ((0, 0), (0, -terms % size))).reshape(len(x), -1, size)
    largest = np.repeat(blocks.max(-1), size, axis=1)[:, :terms]
    levels = (
        np.repeat(np.abs(weights.scales), size, axis=1)[:, :terms].T * 2.0 ** weights.sizes["bits"]
    )
    matrix = np.abs(weights.matrix())
    if scales_by_exponents(precision_policy.this_machine().level):
        largest = 2 * largest
    return largest / 65534 @ matrix + 2.0**-21 * (np.abs(x) @ (levels + matrix))


def is_rounded(rows, bits):
    level = precision_policy.this_machine().level
    return longest_unit(level, bits) > 0 and rows >= QUAD_ROWS[level.lanes]


@examples(40)
@given(
    rows=st.integers(1, 100),
    terms=st.integers(1, 900),
    columns=st.integers(1, 70),
    size=st.sampled_from([16, 32, 64, 128, 256]),
    bits=st.sampled_from([4, 8]),
    zeros=st.sampled_from(KINDS),
    halves=st.booleans(),
    group=st.sampled_from([32, 64, 96, 128, 1 << 20]),
    seed=st.integers(0, 99),
)
def test_products(rows, terms, columns, size, bits, zeros, halves, group, seed):
    weights = Weights(seed, terms, columns, size, bits, zeros, halves)
    x = normal(seed, rows, terms) * np.float32(10.0) ** (seed % 7 - 3)
    y = compiled(weights, x, group)([x])["y0"]
    if not is_rounded(rows, bits):
        wide = x.astype(np.float64)
        assert (np.abs(y - wide @ weights.matrix()) <= off_by_16_bits(wide, weights)).all()
        return
    group = min(group, -(-terms // size) * size)
    assert off(y, grouped(x, group), weights) <= NEAR


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bits", [4, 8])
def test_rounded_rows_are_near_the_exact_ones(level, bits, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", level)
    weights, x = Weights(3, 1536, 200, 32, bits, "floats"), normal(4, 130, 1536)
    exact, rounded = (
        off(compiled(weights, x, group)([x])["y0"], x.astype(np.float64), weights)
        for group in (0, 32)
    )
    assert exact <= EXACT
    assert rounded <= (ROUNDED if is_rounded(len(x), bits) else EXACT)
    assert bool(rounded > EXACT) is is_rounded(len(x), bits)


@pytest.mark.parametrize("threads", [1, 3])
def test_numbers_of_rows_change(threads):
    weights = Weights(5, 640, 70, 32, 4, "bytes")
    x = normal(6, 400, 640)
    request = compiled(weights, x, 32, INFERENCE_NUM_THREADS=threads).create_infer_request()
    rounded, exact = grouped(x, 32), x.astype(np.float64)
    for rows in (60, 3, 60, 400, 11, 12, 31, 32, 100):
        y = request.infer([x[:rows]])["y0"]
        given, bound = (rounded, NEAR) if is_rounded(rows, 4) else (exact, EXACT)
        assert off(y, given[:rows], weights) <= bound


def test_rows_that_are_not_finite_leave_the_others_alone():
    weights = Weights(7, 300, 40, 32, 4)
    x = normal(8, 60, 300)
    plain = compiled(weights, x, 32)([x])["y0"]
    x[11, 299], x[12, 0] = np.inf, np.nan
    y = compiled(weights, x, 32)([x])["y0"]
    assert not np.isfinite(y[11:13]).any()
    np.testing.assert_array_equal(np.delete(y, (11, 12), 0), np.delete(plain, (11, 12), 0))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
@pytest.mark.parametrize("group", [0, 32])
def test_it_is_told_what_it_comes_to(level, device, group, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", level)
    weights, x = Weights(1, 64, 16, 32, 4), normal(2, 3, 64)
    model = compiled(weights, x, group, device)
    own = model
    if device != "CPU":
        own = model.get_property("DEVICE_PROPERTIES")["CPU"]
    effective, note = (
        own[name] if isinstance(own, dict) else own.get_property(name)
        for name in (PROPERTY, "DYNAMIC_QUANTIZATION_NOTE")
    )
    able = longest_unit(EVERY[level], 4) > 0
    assert effective == (group if able else 0)
    notes = "\n".join(model.explain().notes)
    assert (PROPERTY in notes) is bool(group)
    assert note in notes
    if not group:
        assert note == ""
    elif able:
        both = longest_unit(EVERY[level], 8) > 0
        assert ("4 and 8 bits" in note) is both
        assert f"'{level}'" in note
    else:
        assert f"{PROPERTY}=32 is 0 here: level '{level}'" in note


def test_the_log_says_once_that_kernels_lack(caplog, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", "portable")
    precision_policy.warn_once.cache_clear()
    weights, x = Weights(1, 64, 16, 32, 4), normal(2, 3, 64)
    with caplog.at_level(logging.WARNING, "partita_cpu"):
        compiled(weights, x, 32)
        compiled(weights, x, 32)
    assert len([record for record in caplog.records if PROPERTY in record.message]) == 1


def test_products_of_bfloat16_go_before():
    note = precision_policy.groups_note(32, EVERY["amx"])
    assert "no such kernels beside products of bfloat16 by AMX" in note


@pytest.mark.parametrize("group", [-32, 16, 33, "many"])
def test_groups_of_other_sizes_are_refused(group):
    with pytest.raises(PropertyError, match=f"'{PROPERTY}' of device 'CPU'"):
        partita.Core().set_property("CPU", {PROPERTY: group})


def test_an_exported_model_keeps_it():
    weights, x = Weights(1, 640, 16, 32, 4), normal(2, 60, 640)
    made = compiled(weights, x, 64)
    again = partita.Core().import_model(made.export_model(), "CPU")
    assert again.get_property(PROPERTY) == made.get_property(PROPERTY)
    np.testing.assert_array_equal(again([x])["y0"], made([x])["y0"])
