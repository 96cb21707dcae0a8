"""GroupQueryAttention over caches of int8, beside onnxruntime over the numbers that stand there."""

import numpy as np
import pytest
from group_query_case import Case
from int8_rows import decoded, encoded
from judge import onnxruntime_results
from single_op import normal

from partita.errors import CompileError
from partita.tensors.cache_rows import ATTRIBUTES
from partita_cpu.jit.isa import available

DECODE = ((2, 6, 2, 1, 16), 20, 12, (9, 11))
CHUNK = ((1, 4, 4, 5, 16), 30, 14, (13,))
ODD = ((2, 3, 1, 2, 10), 40, 33, (32, 20))
LONG = ((1, 2, 1, 1, 64), 1500, 1400, (1399,))
PROMPT = ((1, 6, 2, 130, 64), 700, 600, (599,))


def by_head(x, case):
    return x.reshape(case.batch, case.count, case.kv_heads, case.size)


def cases(form, **attributes):
    """The same operation over int8, and over the numbers that stand there, new ones included."""
    exact, coded = Case(*form, **attributes), Case(*form, **ATTRIBUTES, **attributes)
    for name in ("past_key", "past_value"):
        rows = encoded(exact.inputs[name])
        coded.inputs[name], exact.inputs[name] = rows, decoded(rows, exact.size)
    for name in ("k", "v"):
        kept = decoded(encoded(by_head(exact.inputs[name], exact)), exact.size)
        exact.inputs[name] = kept.reshape(exact.inputs[name].shape).astype(np.float32)
    return exact, coded


def assert_agrees(exact, coded, results):
    if exact.size % 8:  # which onnxruntime refuses: in float64, over the same numbers
        judged = exact.expected()
    else:
        judged = onnxruntime_results(exact.model(), exact.feeds())
    for row, length in enumerate(exact.lengths):
        valid = min(exact.count, length + 1)
        np.testing.assert_allclose(
            results[0][row, :valid], judged[0][row, :valid], rtol=2e-4, atol=2e-4
        )
        for n in (1, 2):
            found = decoded(results[n], exact.size)[row, :, : length + 1]
            np.testing.assert_allclose(found, judged[n][row, :, : length + 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [DECODE, CHUNK, ODD, LONG])
@pytest.mark.parametrize(
    "attributes", [{}, {"softcap": 2.0, "scale": 0.3}, {"local_window_size": 4}, {"causal": 0}]
)
def test_agrees_with_onnxruntime(form, attributes):
    exact, coded = cases(form, **attributes)
    for results in (coded.computed(), coded.computed(3), coded.expected()):
        assert_agrees(exact, coded, results)


@pytest.mark.parametrize("form", [DECODE, CHUNK])
def test_packed_tokens(form):
    exact, coded = cases(form)
    assert_agrees(exact, coded, coded.packed().computed())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", available())
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("form", [DECODE, ODD, LONG, PROMPT])
def test_every_level(form, level, threads):
    exact, coded = cases(form)
    assert_agrees(exact, coded, coded.native(level, threads))


@pytest.mark.parametrize("seed", range(8))
def test_random_sizes_with_rotation_and_norms(seed):
    """Beside REFERENCE, whose codes are of numbers in float64: at a tie one may be the next."""
    rng = np.random.default_rng(seed)
    kv_heads, count = int(rng.integers(1, 4)), int(rng.integers(1, 40))
    size, places = 2 * int(rng.integers(1, 40)), count + int(rng.integers(0, 200))
    total = int(rng.integers(count, places + 1))
    sizes = (2, kv_heads * int(rng.integers(1, 5)), kv_heads, count, size)
    lengths = rng.integers(0 if total == count else count - 1, total, 2)
    interleaved = int(rng.integers(2))
    form = sizes, places, total, lengths, seed
    _, coded = cases(form, do_rotary=1, rotary_interleaved=interleaved)
    coded.inputs.update(query_norm=normal(7, size), key_norm=normal(8, size))
    want, got = coded.expected(), coded.computed()
    np.testing.assert_allclose(got[0], want[0], rtol=2e-2, atol=2e-2)
    for found, due in zip(got[1:], want[1:], strict=True):
        assert np.abs(found[..., :size].astype(int) - due[..., :size]).max() <= 1
        np.testing.assert_allclose(decoded(found, size), decoded(due, size), atol=0.2, rtol=0)


def test_an_element_is_off_by_half_a_step_at_most():
    case = Case((1, 2, 2, 300, 64), 300, 300, (299,), **ATTRIBUTES)
    for name in ("past_key", "past_value"):
        case.inputs[name] = np.zeros((1, 2, 300, 68), np.int8)
    for results in (case.computed(3), case.expected()):
        for name, rows in (("k", results[1]), ("v", results[2])):
            due = by_head(case.inputs[name], case).swapaxes(1, 2)
            steps = np.abs(due).max(-1, keepdims=True) / 127
            assert (np.abs(decoded(rows, 64) - due) <= steps * 0.50001).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan(number):
    case = Case(*DECODE, **ATTRIBUTES)
    for name in ("past_key", "past_value"):
        case.inputs[name] = np.zeros((2, 2, 20, 20), np.int8)
    case.inputs["v"][0, 0, 3] = number
    for y, _, values in (case.computed(), case.expected()):
        assert np.isnan(decoded(values, 16)[0, 0, 9]).all()
        assert np.isnan(y[0, 0, :48]).all()
        assert np.isfinite(y[0, 0, 48:]).all() and np.isfinite(y[1]).all()


@pytest.mark.parametrize("scale", [0, 1e-44, 1e-38, 1e38])
def test_rows_of_all_sizes(scale):
    case = Case(*DECODE, **ATTRIBUTES)
    for name in ("past_key", "past_value"):
        case.inputs[name] = np.zeros((2, 2, 20, 20), np.int8)
    case.inputs["v"] *= np.float32(scale / 4)
    case.inputs["k"] *= np.float32(0)
    for y, _, values in (case.computed(), case.expected()):
        due = by_head(case.inputs["v"], case)[0, 0]
        found = decoded(values, 16)[0, :, 9]
        assert np.isfinite(y).all()
        np.testing.assert_allclose(found, due, atol=max(np.abs(due).max() / 250, 2e-35), rtol=0)


@pytest.mark.parametrize(
    ("attributes", "past", "words"),
    [
        (ATTRIBUTES, normal(0, 2, 2, 20, 20), "input 3 is float32; these attributes are for int8"),
        ({}, np.zeros((2, 2, 20, 16), np.int8), "input 3 is int8; these attributes are for floats"),
        (ATTRIBUTES, None, "input 3 is left out; these attributes are for int8"),
        (ATTRIBUTES, np.zeros((2, 2, 20, 16), np.int8), r"past_key.* \[2, 2, 20, 20\]"),
        ({**ATTRIBUTES, "v_quant_type": "NONE"}, None, "v_quant_type is NONE; takes PER_TOKEN"),
    ],
)
def test_caches_of_another_type_are_refused(attributes, past, words):
    case = Case(*DECODE, **attributes)
    case.inputs.update(past_key=past, past_value=past)
    with pytest.raises(CompileError, match=words):
        case.computed()
    if "quant" not in words:
        told = r"attributes say that it is int8|broadcast|total_sequence_length is 12"
        with pytest.raises(ValueError, match=told):
            case.expected()
