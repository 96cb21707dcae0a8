"""GroupQueryAttention of device OPENCL over caches of int8, whose rows have scales."""

import os
import subprocess
import sys

import numpy as np
import pytest
from int8_rows import decoded, encoded

import partita
from partita.tensors.cache_rows import ATTRIBUTES

from ..comparison import compiled, core, expected, floats
from .attention_case import DECODE, Case


def cases(form, **attributes):
    """The same operation over int8, and over the numbers that stand there, new ones included."""
    exact, coded = Case(*form, **attributes), Case(*form, **ATTRIBUTES, **attributes)
    size = form[0][4]
    for name in ("past_key", "past_value"):
        rows = encoded(exact.inputs[name])
        coded.inputs[name], exact.inputs[name] = rows, decoded(rows, size)
    for name in ("k", "v"):
        x = exact.inputs[name]
        kept = decoded(encoded(x.reshape(*x.shape[:2], -1, size)), size)
        exact.inputs[name] = kept.reshape(x.shape).astype(np.float32)
    return exact, coded


def of_zeros(form, **attributes):
    """The operation over a cache in which nothing is yet."""
    case = Case(*form, **ATTRIBUTES, **attributes)
    (batch, _, kv_heads, _, size), places = form[:2]
    for name in ("past_key", "past_value"):
        case.inputs[name] = np.zeros((batch, kv_heads, places, -(-size // 4) * 4 + 4), np.int8)
    return case


FEW = ((1, 6, 3, 2, 16), 40, 31, (30,))
CHUNK = ((1, 6, 3, 5, 16), 40, 31, (30,))
LONG = ((1, 1, 1, 1, 64), 700, 651, (650,))
BOUNDED = {"softcap": 2.0, "scale": 0.3, "local_window_size": 4}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("form", "attributes"),
    [(DECODE, {}), (FEW, {"causal": 0}), (CHUNK, BOUNDED), (LONG, {})],
)
@pytest.mark.parametrize("packed", [False, True])
def test_agrees_with_onnxruntime(form, attributes, packed):
    exact, coded = cases(form, **attributes)
    due = expected(exact.model(), exact.feeds())
    size = form[0][4]
    for found in (coded.packed() if packed else coded).found():
        for row, length in enumerate(coded.lengths):
            valid = min(coded.tokens, length + 1)
            np.testing.assert_allclose(found[0][row, :valid], due[0][row, :valid], 2e-4, 2e-4)
            for mine, theirs in zip(found[1:], due[1:], strict=True):
                elements = decoded(mine, size)[row, :, : length + 1]
                np.testing.assert_allclose(elements, theirs[row, :, : length + 1], 1e-5, 1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_random_sizes_with_rotation(seed):
    """Beside REFERENCE, whose codes are of numbers in float64: at a tie one may be the next."""
    rng = np.random.default_rng(seed)
    kv_heads, tokens = int(rng.integers(1, 4)), (1, 3, 20)[seed]
    size, places = 2 * int(rng.integers(1, 7)), tokens + int(rng.integers(0, 200))
    total = int(rng.integers(tokens, places + 1))
    lengths = rng.integers(0 if total == tokens else tokens - 1, total, 2)
    form = (2, kv_heads * int(rng.integers(1, 4)), kv_heads, tokens, size), places, total, lengths
    _, coded = cases(form, do_rotary=1, rotary_interleaved=int(rng.integers(2)))
    if seed % 2:
        coded.halved()
    due = coded.due()
    for found in coded.found():
        np.testing.assert_allclose(found[0].astype(float), due[0].astype(float), 2e-2, 2e-2)
        for mine, theirs in zip(found[1:], due[1:], strict=True):
            assert np.abs(mine[..., :size].astype(int) - theirs[..., :size]).max() <= 1
            np.testing.assert_allclose(decoded(mine, size), decoded(theirs, size), 0, 0.2)


@pytest.mark.parametrize(("form", "attributes"), [(DECODE, {}), (CHUNK, BOUNDED)])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["k", "v"])
def test_a_row_that_is_not_finite_is_nan(form, attributes, number, name):
    case = of_zeros(form, **attributes)
    size, place = form[0][4], case.lengths[0] + 1 - case.tokens
    case.inputs[name][0, 0, 3] = number
    group = form[0][1] // form[0][2] * size
    for y, *caches in case.found():
        rows = decoded(caches["kv".index(name)], size)
        assert np.isnan(rows[0, 0, place]).all()
        assert np.isnan(y[0, 0, :group]).all()
        assert np.isfinite(y[0, 0, group:]).all() and np.isfinite(y[1:]).all()


@pytest.mark.parametrize("scale", [0, 1e-44, 1e-38, 1e38])
def test_rows_of_all_sizes(scale):
    case = of_zeros(DECODE)
    case.inputs["v"] *= np.float32(scale / 4)
    case.inputs["k"] *= np.float32(0)
    for y, _, values in case.found():
        due = case.inputs["v"].reshape(2, 1, 2, 16)[0, 0]
        elements = decoded(values, 16)[0, :, 9]
        assert np.isfinite(y).all()
        np.testing.assert_allclose(elements, due, atol=max(np.abs(due).max() / 250, 2e-35), rtol=0)


def test_lengths_vary_without_another_plan():
    _, case = cases(LONG)
    request = compiled(case.model()).create_infer_request()
    for length in (0, 64, 699):
        case.inputs["lengths"] = np.array([length], np.int32)
        case.inputs["total"] = np.array(length + 1, np.int32)
        found, due = request.infer(case.feeds()).to_tuple(), case.due()
        np.testing.assert_allclose(found[0], due[0], 2e-4, 2e-4)
    assert len(request.compiled_model.device_model.plans) == 1


@pytest.mark.parametrize(
    ("attributes", "past", "words"),
    [
        (ATTRIBUTES, floats(2, 2, 20, 20), "input 3 is float32; these attributes are for int8"),
        ({}, np.zeros((2, 2, 20, 16), np.int8), "input 3 is int8; these attributes are for floats"),
        (ATTRIBUTES, None, "input 3 is left out; these attributes are for int8"),
        ({**ATTRIBUTES, "v_quant_type": "NONE"}, None, "v_quant_type is NONE; takes PER_TOKEN"),
    ],
)
def test_caches_of_another_type_are_refused(attributes, past, words):
    case = Case(*DECODE, **attributes)
    case.inputs |= {"past_key": past, "past_value": past}
    if past is None:
        case.without_past()
    reasons = core().query_model(core().read_model(case.model()), "OPENCL").reasons
    assert words in reasons["attend"].detail


def test_rows_of_another_length_are_refused():
    case = of_zeros(DECODE)
    for name in ("past_key", "past_value"):
        case.inputs[name] = case.inputs[name][..., :16].copy()
    with pytest.raises(partita.PartitaError, match=r"past_key.* \[2, 2, 20, 20\]"):
        compiled(case.model()).infer_new_request(case.feeds())


BEHIND = """
import sys

import numpy as np
from device.opencl.comparison import compiled
from device.opencl.attention.test_opencl_int8_caches import cases
from partita_opencl.trials import kernel_checks

kernel_checks.CHECKS.clear()  # to try all families of optimized kernels first takes half a minute
for total in (6, 11):
    form = (1, 3, 1, 6, 8), 19, total, (total - 1,)
    _, case = cases(form, local_window_size=3)
    _, *caches = compiled(case.model())(case.feeds()).to_tuple()
    for name, found in zip(("past_key", "past_value"), caches, strict=True):
        np.testing.assert_array_equal(found[:, :, total:], case.inputs[name][:, :, total:])
"""


def test_nothing_is_written_behind_the_new_tokens_by_optimized_kernels():
    """Rows of few words, which fewer items bring to the cache than a group has.

    In a process of its own, whose kernels are optimized as users' are; those of tests are not.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("POCL_EXTRA_BUILD_FLAGS", None)
    command = [sys.executable, "-c", BEHIND]
    subprocess.run(command, env=environment, check=True, timeout=600)
