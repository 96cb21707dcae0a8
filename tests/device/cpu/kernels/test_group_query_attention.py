"""GroupQueryAttention: against onnxruntime, and REFERENCE's float64 where onnxruntime refuses."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cpu_levels import float_levels
from group_query_case import NAMES, Case
from single_op import model_of, normal

from partita.errors import CompileError, InputError
from partita.lowering import Specializer, Target, lower_proto
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.kernels.attention.cache_append import (
    Caches,
    RotatedQueries,
    append_kernel,
)
from partita_cpu.kernels.attention.new_heads import NewHeads
from partita_cpu.kernels.operator_table import emitter_for
from partita_cpu.llvm.attention.attend import in_pairs
from partita_cpu.runtime.device_model import run_graph

DECODE = ((2, 6, 2, 1, 16), 20, 12, (9, 11))
PROMPT = ((2, 4, 2, 9, 16), 20, 9, (6, 8))
CHUNK = ((1, 6, 3, 5, 16), 40, 31, (30,))
LONG = ((1, 4, 1, 1, 64), 1300, 1201, (1200,))


@pytest.mark.parametrize("form", [DECODE, PROMPT, CHUNK, LONG])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"do_rotary": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
        {"softcap": 2.0, "scale": 0.3},
        {"local_window_size": 4},
        {"smooth_softmax": 1},
        {"causal": 0},
    ],
)
def test_agrees_with_onnxruntime(form, attributes):
    Case(*form, **attributes).check_onnxruntime()
    Case(*form, **attributes).packed().check_onnxruntime()


@pytest.mark.parametrize("form", [DECODE, PROMPT, CHUNK])
def test_terms_of_scores_agree_with_onnxruntime(form):
    case = Case(*form, softcap=3.0)
    case.inputs["bias"] = normal(7, case.batch, 1, case.count, case.total)
    case.inputs["sinks"] = normal(8, case.heads)
    case.check_onnxruntime()


@pytest.mark.parametrize("form", [DECODE, PROMPT, CHUNK])
def test_normalized_queries_and_keys(form):
    """They are what comes out of normalized ones; onnxruntime has norms on other devices only."""
    case = Case(*form, do_rotary=1, qk_norm_epsilon=0.01)
    weights = {"q": normal(7, 16), "k": normal(8, 16)}
    before = Case(*form, do_rotary=1)
    for name, weight in weights.items():
        heads = before.inputs[name].reshape(-1, 16)
        root = np.sqrt((heads * heads).mean(axis=1, keepdims=True) + np.float32(0.01))
        before.inputs[name] = (heads / root * weight).reshape(before.inputs[name].shape)
    before.check_onnxruntime()
    expected = before.computed()
    case.inputs.update(query_norm=weights["q"], key_norm=weights["k"])
    case.check()
    for got, want in zip(case.computed(), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_sizes(seed):
    rng = np.random.default_rng(seed)
    kv_heads, batch = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    sizes = (batch, kv_heads * int(rng.integers(1, 6)), kv_heads, int(rng.integers(1, 40)))
    places = sizes[3] + int(rng.integers(0, 200))
    total = int(rng.integers(sizes[3], places + 1))
    least = 0 if total == sizes[3] else sizes[3] - 1
    lengths = rng.integers(least, total, batch)
    size = 2 * int(rng.integers(1, 40))
    window = int(rng.choice([-1, 1, 30]))
    causal = int(window >= 0 or rng.integers(2))
    attributes = {"do_rotary": 1, "local_window_size": window, "causal": causal}
    Case((*sizes, size), places, total, lengths, seed, **attributes).check()


FEW = [
    ((1, 9, 3, 1, 64), 700, 600, (599,), {}),
    ((2, 8, 1, 1, 128), 300, 257, (256, 3), {"local_window_size": 100}),
    ((1, 5, 5, 1, 80), 2100, 2050, (2049,), {"softcap": 2.0}),
    ((3, 14, 2, 1, 34), 60, 50, (49, 0, 20), {"smooth_softmax": 1}),
    ((1, 4, 2, 1, 256), 90, 90, (89,), {}),
    ((1, 6, 1, 3, 38), 1300, 1200, (1199,), {"local_window_size": 300}),
    ((2, 20, 1, 1, 2), 20, 12, (11, 4), {}),
    ((1, 4, 4, 11, 48), 400, 290, (289,), {"causal": 0}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", float_levels()[1:])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("form", FEW)
def test_few_queries_over_rows_as_they_lie(form, kind, level, threads):
    *form, attributes = form
    case = Case(*form, do_rotary=1, **attributes)
    case.inputs["bias"] = normal(7, 1, case.heads, case.count, case.total)
    for name in ("past_key", "past_value"):
        case.inputs[name] = case.inputs[name].astype(kind)
    got, want = case.native(level, threads)[0], case.expected()[0]
    np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("level", float_levels())
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_few_queries_meet_what_is_not_finite(level, number):
    """In a key, a value and a bias: rows of other heads of keys stay as they were."""
    for name in ("past_key", "past_value", "bias"):
        case = Case((1, 6, 2, 1, 40), 400, 330, (329,))
        case.inputs["bias"] = normal(7, 1, 6, 1, 330)
        if name == "bias":
            case.inputs[name][0, 1, 0, 270] = number
        else:
            case.inputs[name][0, 0, 270, 3] = number
        with np.errstate(invalid="ignore"):
            got = case.native(level, 1)[0].reshape(6, 40)
            want = case.expected()[0].reshape(6, 40)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)


MANY = [
    ((1, 6, 2, 130, 64), 700, 600, (599,), {}),
    ((2, 4, 4, 33, 10), 64, 33, (32, 20), {"local_window_size": 7}),
    ((1, 2, 1, 301, 40), 301, 301, (300,), {"softcap": 2.0, "smooth_softmax": 1}),
    ((3, 8, 1, 4, 6), 400, 300, (299, 3, 270), {"local_window_size": 30}),
    ((2, 6, 2, 33, 16), 64, 33, (32, 20), {"causal": 0}),
    ((2, 6, 2, 33, 16), 164, 133, (132, 120), {"causal": 0, "softcap": 2.0}),
    ((1, 6, 2, 410, 8), 420, 420, (419,), {}),
    ((1, 4, 4, 600, 6), 640, 640, (639,), {"local_window_size": 300}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", float_levels()[1:])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("form", MANY)
def test_many_queries_at_once(form, level, threads):
    *form, attributes = form
    case = Case(*form, do_rotary=1, **attributes)
    for got, want in zip(case.native(level, threads), case.expected(), strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=3e-5)


TILED = [level for level in float_levels()[1:] if level.tiles]
IN_BFLOAT16 = [level for level in float_levels()[1:] if in_pairs(level)] + TILED


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", IN_BFLOAT16)
@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("form", [*MANY, ((1, 3, 1, 41, 7), 50, 49, (48,), {})])
def test_many_queries_at_once_in_bfloat16(form, kind, level):
    """Each factor is off by 2**-9 of itself at most, and results are means of values."""
    *form, attributes = form
    case = Case(*form, do_rotary=form[0][4] % 2 == 0, **attributes)
    for name in ("past_key", "past_value"):
        case.inputs[name] = case.inputs[name].astype(kind)
    expected = case.expected()
    got = case.native(level, 3, Arithmetic.BF16)
    exact = case.native(level, 3)
    most = np.abs(expected[0]).max()
    assert 0 < np.abs(got[0] - exact[0]).max() <= 2**-6 * most
    assert np.sqrt(np.mean((got[0] - expected[0]) ** 2)) <= 2**-9 * most
    for mine, other in zip(got[1:], exact[1:], strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("level", TILED)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("form", [*MANY, ((1, 3, 1, 41, 7), 50, 49, (48,), {})])
def test_many_queries_at_once_by_sums_of_two_bfloat16(form, threads, level):
    *form, attributes = form
    case = Case(*form, do_rotary=form[0][4] % 2 == 0, **attributes)
    got = case.native(level, threads, Arithmetic.BF16X3)[0]
    assert np.abs(got - case.native(level, threads)[0]).max() > 0
    np.testing.assert_allclose(got, case.expected()[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", TILED)
@pytest.mark.parametrize("name", ["q", "past_key", "past_value"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max])
def test_numbers_without_second_parts(level, name, number):
    case = Case((1, 6, 2, 130, 64), 700, 600, (599,))
    case.inputs[name][..., 50, 5] = number
    with np.errstate(all="ignore"):
        got, want = (case.native(level, 2, a)[0] for a in (Arithmetic.BF16X3, Arithmetic.F32))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", float_levels()[1:])
def test_all_inputs_beside_many_queries(level):
    case = Case(*MANY[0][:4], do_rotary=1, rotary_interleaved=1).packed()
    case.inputs["positions"] = np.arange(case.count)[None] * 7 % 500
    case.inputs["bias"] = normal(7, 1, case.heads, case.count, case.total)
    case.inputs["sinks"] = normal(8, case.heads)
    case.inputs.update(query_norm=normal(9, case.size), key_norm=normal(10, case.size))
    for name in ("past_key", "past_value"):
        case.inputs[name] = case.inputs[name].astype(np.float16)
    for got, want in zip(case.native(level, 2), case.expected(), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("level", float_levels()[1:])
def test_many_queries_without_any_open_key(level):
    case = Case((1, 2, 2, 40, 8), 40, 40, (39,))
    case.inputs["bias"] = np.full((1, 1, 40, 40), -np.inf, np.float32)
    np.testing.assert_array_equal(case.native(level, 2)[0], 0)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("form", [DECODE, PROMPT, CHUNK])
def test_caches_of_16_bits(form, kind):
    case = Case(*form, do_rotary=1)
    for name in ("past_key", "past_value"):
        case.inputs[name] = case.inputs[name].astype(kind)
    case.check(1e-2 if kind == np.float16 else 5e-2)


@pytest.mark.parametrize("name", ["past_key", "past_value"])
def test_past_keys_and_values_are_of_one_type(name):
    """Kernels walk through both by the type of the keys, and would read beyond the values."""
    case = Case((1, 2, 2, 7, 20), 34, 10, [9])
    case.inputs[name] = case.inputs[name].astype(np.float16)
    with pytest.raises(CompileError, match="are float16 and float32; expected one type"):
        case.computed()


def test_all_in_float16():
    case = Case(*DECODE, do_rotary=1)
    for name, x in case.inputs.items():
        if x is not None and x.dtype == np.float32:
            case.inputs[name] = x.astype(np.float16)
    case.check(2e-3)


def test_positions_may_be_given():
    case = Case(*CHUNK, do_rotary=1)
    case.inputs["positions"] = np.array([[3, 1, 4, 1, 5]])
    case.check()


def test_no_past_is_a_first_prompt():
    case = Case(*PROMPT, do_rotary=1)
    case.inputs.update(past_key=None, past_value=None)
    case.check()


def test_no_tokens_keep_the_past():
    case = Case((2, 4, 2, 0, 16), 5, 3, (2, 2))
    y, keys, values = case.computed()
    assert y.shape == (2, 0, 64)
    np.testing.assert_array_equal(keys, case.inputs["past_key"])
    np.testing.assert_array_equal(values, case.inputs["past_value"])


def test_chunks_and_single_tokens_make_what_one_prompt_makes():
    whole = Case((1, 4, 2, 30, 8), 40, 30, (29,), do_rotary=1)
    prompt, keys, values = whole.computed()
    cache = {name: whole.inputs[name] for name in ("past_key", "past_value")}
    found = []
    for start, end in ((0, 13), (13, 26), *((n, n + 1) for n in range(26, 30))):
        case = Case((1, 4, 2, end - start, 8), 40, end, (end - 1,), do_rotary=1)
        case.inputs.update({name: whole.inputs[name] for name in ("cosines", "sines")})
        case.inputs.update({name: whole.inputs[name][:, start:end] for name in ("q", "k", "v")})
        case.inputs.update(cache)
        y, *grown = case.computed()
        cache = dict(zip(cache, grown, strict=True))
        found.append(y)
    np.testing.assert_allclose(np.concatenate(found, axis=1), prompt, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(cache["past_key"], keys, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(cache["past_value"], values)


def test_garbage_behind_the_valid_keys_is_never_read():
    case = Case(*DECODE, do_rotary=1)
    clean = case.computed()[0]
    for row, length in enumerate(case.lengths):
        for name in ("past_key", "past_value"):
            case.inputs[name][row, :, length:] = np.nan
    np.testing.assert_array_equal(case.computed()[0], clean)


def test_one_program_serves_all_lengths():
    case = Case(*DECODE, do_rotary=1)
    specializer = Specializer(lower_proto(case.model()), Target(emitter_for))
    arrays = list(case.feeds().values())
    first = specializer.program_for(arrays)
    arrays[5], arrays[6] = np.array([3, 15], np.int32), np.array(16, np.int32)
    assert specializer.program_for(arrays) is first
    assert specializer.value_inputs == ()


def test_a_known_total_makes_present_longer():
    case = Case((1, 2, 1, 3, 4), 5, 8, (7,))
    given = [case.inputs[name] for name in NAMES[:7]]
    attributes = {"domain": "com.microsoft", "constants": (6,), **case.attributes}
    model = model_of("GroupQueryAttention", given, outputs=3, **attributes)
    results = run_graph(lower_proto(model), given[:6])
    for got, want in zip(results, case.expected(), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_total_that_is_given_makes_present_longer_where_the_model_says_so():
    """As in a part of a model whose shapes are computed by another device."""
    case = Case((1, 2, 1, 1, 4), 5, 6, (5,))
    given = [case.inputs[name] for name in NAMES[:7]]
    model = model_of(
        "GroupQueryAttention", given, outputs=3, domain="com.microsoft", **case.attributes
    )
    graph = lower_proto(model)
    node = graph.nodes[0]
    node.inputs[3].shape, node.outputs[1].shape = ((1, 1, length, 4) for length in ("p", "t"))
    results = run_graph(graph, given)
    for got, want in zip(results, case.expected(), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_known_total_is_not_counted_in_32_bits():
    """Of 512 tokens, heads of 64 elements and 2 ** 15 places, work is 2 ** 31."""
    case = Case((1, 1, 1, 512, 64), (1 << 15) - 512, 1 << 15, (511,))
    given = [case.inputs[name] for name in NAMES[:7]]
    attributes = {"domain": "com.microsoft", "constants": (6,), **case.attributes}
    graph = lower_proto(model_of("GroupQueryAttention", given, outputs=3, **attributes))
    assert run_graph(graph, given[:6])[1].shape == (1, 1, 1 << 15, 64)


def test_a_cache_that_grows_in_place_is_not_copied():
    """Present is past's memory: what lies behind the new token stays, and nothing else is there."""
    cache = [normal(seed, 1, 1, 6, 4).reshape(-1) for seed in (1, 2)]
    kept = [part.copy() for part in cache]
    new = normal(3, 3, 4)
    nothing = np.zeros(1, np.float32)
    as_they_are = (
        nothing,
        nothing,
        np.zeros(1, np.int64),
        nothing,
        np.zeros(9, np.int64),
        0.0,
        1.0,
    )
    append_kernel(
        *Caches(*cache, *cache),
        *NewHeads(new[0], *as_they_are),
        *NewHeads(new[1], *as_they_are),
        *(new[2], np.array([2, 3])),
        *RotatedQueries(np.zeros(4, np.float32), np.zeros(16, np.float32)),
        *(np.array([1, 1, 1, 1, 4, 6, 6, 4, 0]), 0, 1),
    )
    for part, old, row in zip(cache, kept, new[1:], strict=True):
        old[8:12] = row
        np.testing.assert_array_equal(part, old)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"total": 21}, "total_sequence_length is 21; with 1 new tokens it may be 1 to 20"),
        ({"total": 0}, "total_sequence_length is 0"),
        ({"total": -(2**31)}, "total_sequence_length is -2147483648"),
        ({"lengths": (9, 12)}, "seqlens_k of row 1 is 12; it may be 0 to 11"),
        ({"lengths": (-1, 11)}, "seqlens_k of row 0 is -1"),
        ({"lengths": (2**31 - 1, 11)}, "seqlens_k of row 0 is 2147483647"),
        ({"positions": np.array([[0], [23]])}, "row 1 is at position 23; .* positions 0 to 22"),
        ({"positions": np.array([[-(2**63)], [0]])}, "row 0 is at position -9223372036854775808"),
    ],
)
def test_numbers_in_tensors_that_do_not_fit(change, words):
    case = Case(*DECODE, do_rotary=1)
    case.inputs.update(
        {
            name: np.asarray(x, case.inputs[name].dtype)
            for name, x in change.items()
            if name != "positions"
        }
    )
    if "positions" in change:
        case.inputs["positions"] = change["positions"]
    for threads in (1, 3):
        with pytest.raises(InputError, match=words):
            case.computed(threads)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_heads": 5}, "5 heads cannot share 2 heads of keys"),
        ({"kv_num_heads": 0}, "cannot share 0 heads"),
        ({"past_key": normal(1, 2, 2, 20, 8)}, "past_key is to be of shape"),
        ({"past_value": normal(1, 2, 2, 19, 16)}, "past_value is to be of shape"),
        ({"past_value": None}, "past_key and past_value are to be given both"),
        ({"k": normal(1, 2, 2, 32)}, "key is to be of shape"),
        ({"v": None}, "key and value are to be given both"),
        ({"lengths": np.zeros(3, np.int32)}, "seqlens_k is to be of shape"),
        ({"total": np.zeros(2, np.int32)}, "total_sequence_length is to be of shape"),
        ({"cosines": normal(1, 23, 9)}, "sin_cache is to be of shape"),
        ({"cosines": normal(1, 23, 9), "sines": normal(1, 23, 9)}, "has 9 angles"),
        ({"cosines": None}, "cos_cache is to have 2 dimensions"),
        ({"positions": np.zeros((2, 2), np.int64)}, "position_ids is to be of shape"),
        ({"bias": normal(1, 2, 3, 1, 20)}, "attention_bias is to be of shape"),
        ({"sinks": normal(1, 5)}, "head_sink is to be of shape"),
        ({"query_norm": normal(1, 16)}, "are to be given both, or neither"),
        ({"causal": 0, "local_window_size": 3}, "local_window_size is 3; takes -1"),
        ({"key_scale": normal(1, 1)}, "input 12, k_scale, is given"),
        ({"past_key": np.zeros((2, 2, 20, 16), np.int8)}, "input 3 is int8"),
    ],
)
def test_inputs_that_do_not_fit(change, words):
    case = Case(*DECODE, do_rotary=1)
    for name, value in change.items():
        (case.inputs if name in NAMES else case.attributes)[name] = value
    with pytest.raises(CompileError, match=words):
        case.computed()
