"""Attention and the small operators of transformers against onnxruntime and ONNX' reference."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from single_op import assert_same, check, model_of, normal, run_ours

import partita
from partita.errors import CompileError, InferError
from partita.lowering import Operand, Specializer, Target, lower_proto
from partita_cpu.jit import isa
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.kernels.attention.attention_rows import softmax_scores
from partita_cpu.kernels.operator_table import emitter_for
from partita_cpu.query import takes
from partita_reference.corrections import corrected_for


def check_reference(inputs, outputs=1, opset=23, **attributes):
    """Agrees with ONNX' reference implementation of Attention."""
    arguments = {"outputs": outputs, "opset": opset, **attributes}
    model = model_of("Attention", inputs, **arguments)
    feeds = {f"x{k}": x for k, x in enumerate(inputs) if x is not None}
    expected = ReferenceEvaluator(model).run(None, feeds)
    for got, want in zip(run_ours("Attention", inputs, **arguments), expected, strict=True):
        assert_same(got, want, 1e-4, 1e-5)


def heads(keys: int = 5, kv_heads: int = 4, size: int = 6) -> list[np.ndarray]:
    """Query, key and value of two sentences and four heads."""
    key, value = normal(2, 2, kv_heads, keys, 8), normal(3, 2, kv_heads, keys, size)
    return [normal(1, 2, 4, 3, 8), key, value]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}, {"softcap": 2.0}])
def test_attention(kv_heads, causal, attributes):
    check_reference(heads(kv_heads=kv_heads), is_causal=causal, **attributes)


@pytest.mark.skipif(
    not isa.detected().native or not sys.platform.startswith("linux"),
    reason="kernels are not kept here",
)
def test_the_softmax_of_scores_is_kept(monkeypatch):
    """A process that finds it on disk needs no compiler."""
    monkeypatch.delenv(isa.VARIABLE, raising=False)
    x, whole = np.zeros(1, np.float32), np.zeros(15, np.int64)
    assert entry_of(softmax_scores, (x, x, whole, x, whole, 1.0, 0.0)) is not None


@pytest.mark.parametrize("shape", [(3, 5), (4, 3, 5), (2, 1, 3, 5), (2, 4, 3, 5), (1, 1, 1, 5)])
@pytest.mark.parametrize("kind", [np.float32, np.bool_])
def test_masks(shape, kind):
    mask = normal(4, *shape)
    check_reference([*heads(), mask if kind is np.float32 else mask > 0])


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks_of_integers_are_added(device, kind, causal):
    """ONNX's function, and onnxruntime by it, put infinities into the mask's own type."""
    query, key, value = heads()
    low = 0 if np.dtype(kind).kind == "u" else -2
    mask = np.random.default_rng(5).integers(low, 4, (2, 1, 3, 5)).astype(kind)
    inputs = [query, key, value, mask]
    model = model_of("Attention", inputs, opset=23, is_causal=causal, scale=0.4)
    found = partita.Core().compile_model(model, device)({f"x{k}": x for k, x in enumerate(inputs)})
    scores = 0.4 * query.astype(np.float64) @ key.swapaxes(2, 3) + mask.astype(np.float64)
    if causal:
        scores = np.where(np.tri(3, 5, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    due = shares / shares.sum(-1, keepdims=True) @ value
    np.testing.assert_allclose(found[0], due, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
def test_keys_of_batches_and_heads_in_a_row(device):
    """As ViTDet and SAM have them, with a summand for each query, key and head."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[6, 70, 16] q, float[6, 50, 16] k, float[2, 3, 50, 16] v, float[2, 3, 70, 50] mask)
    => (float[2, 3, 70, 16] y) {
        ql = Reshape(q, of_queries) kt = Transpose <perm = [0, 2, 1]> (k)
        kl = Reshape(kt, of_keys) qs = Mul(ql, half) ks = Mul(kl, half) s = MatMul(qs, ks)
        a = Add(s, mask) p = Softmax(a) y = MatMul(p, v) }"""
    model = parser.parse_model(text)
    constants = {
        "of_queries": np.array([2, 3, 70, 16]),
        "of_keys": np.array([2, 3, 16, 50]),
        "half": np.float32(0.5),
    }
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    ports = model.graph.input
    shapes = [[dim.dim_value for dim in port.type.tensor_type.shape.dim] for port in ports]
    feeds = {port.name: normal(n, *shapes[n]) for n, port in enumerate(ports)}
    (due,) = onnxruntime_results(model, feeds)
    assert_same(partita.Core().compile_model(model, device)(feeds)["y"], due, 1e-4, 1e-5)


def test_rows_without_any_open_key_are_zero():
    mask = np.zeros((3, 5), bool)
    mask[0] = True
    (y,) = run_ours("Attention", [*heads(), mask], opset=23)
    assert np.all(y[:, :, 1:] == 0)
    assert np.all(np.isfinite(y))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_cache_and_scores(causal, mode):
    past = [normal(5, 2, 4, 2, 8), normal(6, 2, 4, 2, 6)]
    inputs = [*heads(), normal(4, 3, 7), *past]
    attributes = {"is_causal": causal, "softcap": 1.5, "qk_matmul_output_mode": mode}
    if mode == 0:
        # The reference shows capped scores here, against the specification.
        check("Attention", inputs, outputs=4, opset=23, **attributes)
    else:
        check_reference(inputs, outputs=4, **attributes)


def test_heads_in_the_last_dimension():
    q, k, v = normal(1, 2, 3, 32), normal(2, 2, 5, 16), normal(3, 2, 5, 12)
    attributes = {"q_num_heads": 4, "kv_num_heads": 2}
    check_reference([q, k, v], **attributes)
    past = [normal(5, 2, 2, 2, 8), normal(6, 2, 2, 2, 6)]
    check_reference([q, k, v, None, *past], outputs=3, is_causal=1, **attributes)


@pytest.mark.parametrize("causal", [0, 1])
def test_lengths_of_a_static_cache(causal):
    lengths = np.array([3, 5], np.int64)
    check_reference([*heads(), None, None, None, lengths], opset=24, is_causal=causal)


def attention_over_valid_keys(q, k, v, lengths, mask=None, causal=0, left=-1, cap=0.0):
    """Each query by itself, in float64; (B, heads, S, size)."""
    group, queries = q.shape[1] // k.shape[1], q.shape[2]
    y = np.zeros((*q.shape[:3], v.shape[3]))
    for batch, head, s in np.ndindex(*q.shape[:3]):
        here = lengths[batch] - queries + s
        last = min(lengths[batch], here + 1) if causal else lengths[batch]
        first = max(here - left, 0) if left >= 0 else 0
        if last <= first:
            continue
        keys, values = (x[batch, head // group, first:last].astype(np.float64) for x in (k, v))
        scores = keys @ q[batch, head, s].astype(np.float64) / np.sqrt(q.shape[3])
        scores = cap * np.tanh(scores / cap) if cap else scores
        if mask is not None:
            scores = scores + np.broadcast_to(mask, (*q.shape[:3], k.shape[2]))[
                batch, head, s, first:last
            ].astype(np.float64)
        shares = np.exp(scores - scores.max())
        y[batch, head, s] = shares / shares.sum() @ values
    return y


@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(
    ("causal", "left", "cap"), [(0, -1, 0.0), (1, -1, 0.0), (1, 2, 0.0), (1, -1, 1.5)]
)
@pytest.mark.parametrize("masked", [None, (1, 1), (2, 4)])
def test_places_behind_the_valid_length_are_not_read(queries, kv_heads, causal, left, cap, masked):
    places, lengths = 300, np.array([290, 41], np.int64)
    q = normal(1, 2, 4, queries, 8)
    k, v = normal(2, 2, kv_heads, places, 8), normal(3, 2, kv_heads, places, 6)
    mask = None if masked is None else normal(4, *masked, queries, places)
    expected = attention_over_valid_keys(q, k, v, lengths, mask, causal, left, cap)
    for batch, length in enumerate(lengths):
        k[batch, :, length:] = v[batch, :, length:] = np.nan
    attributes = {"is_causal": causal, "left_window_size": left, "softcap": cap, "opset": 24}
    if left < 0:
        del attributes["left_window_size"]
    inputs = [q, k, v, mask, None, None, lengths]
    (y,) = run_ours("Attention", inputs, **attributes)
    np.testing.assert_allclose(y, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("queries", [1, 3, 40])
@pytest.mark.parametrize(
    "shape", [(1, 300), (None, 250), (1, 30), (4, None, 289), (4, 1, 299), (2, 1, 1, 41)]
)
def test_masks_of_one_row_or_fewer_keys_over_a_static_cache(shape, queries, causal):
    places, lengths = 300, np.array([290, 41], np.int64)
    q = normal(1, 2, 4, queries, 8)
    k, v = normal(2, 2, 2, places, 8), normal(3, 2, 2, places, 6)
    mask = normal(4, *(queries if n is None else n for n in shape))
    whole = np.full((*mask.shape[:-1], places), -np.inf, np.float32)
    whole[..., : mask.shape[-1]] = mask
    expected = attention_over_valid_keys(q, k, v, lengths, whole, causal)
    inputs = [q, k, v, mask, None, None, lengths]
    reference = ReferenceEvaluator(
        model_of("Attention", inputs, opset=24, is_causal=causal), new_ops=corrected_for(24)
    )
    feeds = {f"x{place}": x for place, x in enumerate(inputs) if x is not None}
    np.testing.assert_allclose(reference.run(None, feeds)[0], expected, 1e-4, 1e-5)
    for batch, length in enumerate(lengths):
        k[batch, :, length:] = v[batch, :, length:] = np.nan
    (y,) = run_ours("Attention", inputs, opset=24, is_causal=causal)
    np.testing.assert_allclose(y, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("masked", [None, np.float32, np.bool_])
@pytest.mark.parametrize(("kind", "digits"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_places_behind_the_valid_length_of_16_bits_are_not_read(queries, masked, kind, digits):
    places, lengths = 300, np.array([290, 141], np.int64)
    q = normal(1, 2, 4, queries, 8).astype(kind)
    k, v = (normal(n, 2, 2, places, 8).astype(kind) for n in (2, 3))
    mask = added = None
    if masked is not None:
        added = normal(4, queries, places)
        if masked is np.bool_:
            mask, added = added > -1, np.where(added > -1, 0.0, -np.inf)
        else:
            mask = added = added.astype(kind)
    expected = attention_over_valid_keys(q, k, v, lengths, added)
    for batch, length in enumerate(lengths):
        k[batch, :, length:] = v[batch, :, length:] = np.nan
    (y,) = run_ours("Attention", [q, k, v, mask, None, None, lengths], opset=24)
    assert y.dtype == kind
    np.testing.assert_allclose(y.astype(np.float64), expected, digits, digits)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_a_cache_of_16_bits_is_not_widened_as_a_whole(kind):
    inputs = [normal(n, 1, 2, tokens, 16).astype(kind) for n, tokens in enumerate((1, 4000, 4000))]
    inputs += [None, None, None, np.array([30], np.int64)]
    model = model_of("Attention", inputs, opset=24)
    programs = Specializer(lower_proto(model), Target(emitter_for))
    program = programs.program_for([x for x in inputs if x is not None])
    tensors = [x for step in program.steps for x in step.args if isinstance(x, Operand)]
    assert max(x.size for x in tensors if x.dtype == kind) == inputs[1].size
    assert max(x.size for x in tensors if x.dtype == np.float32) < inputs[1].size // 8


@pytest.mark.parametrize("lengths", [[0, 2], [-9, 1 << 40], [1, 5]])
def test_lengths_that_are_short_or_cannot_be(lengths):
    q, k, v = heads(kv_heads=2)
    within = np.clip(lengths, 0, 5)
    for causal in (0, 1):
        inputs = [q, k, v, None, None, None, np.array(lengths, np.int64)]
        (y,) = run_ours("Attention", inputs, opset=24, is_causal=causal)
        expected = attention_over_valid_keys(q, k, v, within, causal=causal)
        np.testing.assert_allclose(y, expected, 1e-4, 1e-5)


def test_queries_side_by_side_over_a_static_cache():
    lengths, (_, k, v) = np.array([3, 5], np.int64), heads(kv_heads=2)
    q = normal(1, 2, 3, 32)
    inputs = [q, k, v, None, None, None, lengths]
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1}
    (y,) = run_ours("Attention", inputs, opset=24, **attributes)
    laid = q.reshape(2, 3, 4, 8).swapaxes(1, 2)
    expected = attention_over_valid_keys(laid, k, v, lengths, causal=1)
    np.testing.assert_allclose(y, expected.swapaxes(1, 2).reshape(2, 3, -1), 1e-4, 1e-5)


def test_attention_of_halves():
    inputs = [x.astype(np.float16) for x in heads()]
    (got,) = run_ours("Attention", inputs, opset=23)
    (expected,) = run_ours("Attention", [x.astype(np.float64) for x in inputs], opset=23)
    q, k, v = (x.astype(np.float64) for x in inputs)
    scores = np.exp(np.matmul(q, k.swapaxes(2, 3)) / np.sqrt(8))
    closed_form = np.matmul(scores / scores.sum(axis=-1, keepdims=True), v)
    assert_same(expected, closed_form, 1e-9, 1e-9)
    assert_same(got, closed_form.astype(np.float16), 2e-3, 2e-3)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("padding", [None, (2,), (2, 5), (2, 3, 5)])
@pytest.mark.parametrize("with_terms", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_multi_head_attention(causal, padding, with_terms, with_bias):
    q, k, v = normal(1, 2, 3, 16), normal(2, 2, 5, 16), normal(3, 2, 5, 16)
    mask = None
    if padding is not None:
        mask = np.array([5, 3], np.int32)
        mask = mask if padding == (2,) else (np.arange(5) < mask[:, None]).astype(np.int32)
        if padding == (2, 3, 5):
            mask = np.tril(np.repeat(mask[:, None], 5 if causal else 3, axis=1), 1)
    bias = normal(4, 48) if with_bias else None
    terms = normal(5, 1, 4, 3, 5) if with_terms else None
    if not causal:
        inputs = [q, k, v, bias, mask, terms]
        check("MultiHeadAttention", inputs, domain="com.microsoft", num_heads=4)
    else:
        inputs = [k, k, v, bias, mask]
        options = {"num_heads": 4, "unidirectional": 1}
        check("MultiHeadAttention", inputs, domain="com.microsoft", **options)


@pytest.mark.parametrize("shape", [(2,), (2, 5), (2, 3, 5)])
def test_padding_of_all_forms_is_taken(shape):
    inputs = [normal(seed, 2, 3, 16) for seed in (1, 2, 3)]
    inputs += [None, np.ones(shape, np.int32)]
    options = {"domain": "com.microsoft", "num_heads": 4}
    graph = lower_proto(model_of("MultiHeadAttention", inputs, **options))
    graph.nodes[0].inputs[4].shape = shape
    assert takes(graph.nodes[0])


def test_a_single_query_of_multi_head_attention_sees_all_keys():
    q, k, v = normal(1, 2, 1, 16), normal(2, 2, 4, 5, 4), normal(3, 2, 4, 5, 4)
    options = {"num_heads": 4, "unidirectional": 1}
    check("MultiHeadAttention", [q, k, v], domain="com.microsoft", **options)


@pytest.mark.parametrize("queries", [2, 3, 6])
@pytest.mark.parametrize("with_terms", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_last_query_of_multi_head_attention_sees_all_keys(queries, with_terms, padded):
    q, k, v = normal(1, 2, queries, 16), normal(2, 2, 5, 16), normal(3, 2, 5, 16)
    terms = normal(5, 1, 4, queries, 5) if with_terms else None
    inputs = [q, k, v, None, np.array([4, 3], np.int32) if padded else None, terms]
    options = {"num_heads": 4, "unidirectional": 1}
    check("MultiHeadAttention", inputs, domain="com.microsoft", **options)


def test_multi_head_attention_with_a_cache():
    q, k, v = (normal(seed, 2, 3, 16) for seed in (1, 2, 3))
    past = [normal(5, 2, 4, 2, 4), normal(6, 2, 4, 2, 4)]
    inputs = [q, k, v, None, None, None, *past]
    check("MultiHeadAttention", inputs, domain="com.microsoft", num_heads=4, outputs=3)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_packed_attention(causal, masked):
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32) if masked else None
    inputs = [normal(1, 2, 3, 10), normal(2, 10, 48), normal(3, 48), mask]
    options = {"num_heads": 4, "unidirectional": causal, "domain": "com.microsoft"}
    check("Attention", inputs, **options)
    check("Attention", inputs, constants=(1, 2), outputs=2, **options)


def test_packed_attention_with_a_cache():
    inputs = [normal(1, 2, 3, 10), normal(2, 10, 48), normal(3, 48), None, normal(4, 2, 2, 4, 5, 4)]
    check(
        "Attention",
        inputs,
        domain="com.microsoft",
        outputs=2,
        num_heads=4,
        unidirectional=1,
    )


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu"])
def test_gelu_of_a_sum(op_type):
    check(op_type, [normal(1, 2, 3, 8), normal(2, 8)], domain="com.microsoft")


def test_fast_gelu_without_bias():
    check("FastGelu", [normal(1, 2, 3, 8)], domain="com.microsoft")


@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_embed_layer_normalization(segmented, masked):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 20, (2, 6)).astype(np.int32)
    segments = rng.integers(0, 2, (2, 6)).astype(np.int32) if segmented else None
    tables = [normal(1, 20, 8), normal(2, 10, 8), normal(3, 2, 8) if segmented else None]
    mask = [np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)] if masked else []
    inputs = [words, segments, *tables, normal(4, 8), normal(5, 8), *mask]
    extra = {"mask_index_type": 1} if masked else {}
    check("EmbedLayerNormalization", inputs, domain="com.microsoft", outputs=2, **extra)


def test_words_out_of_range():
    inputs = [np.array([[0, 20]], np.int32), None, normal(1, 20, 8), normal(2, 10, 8), None]
    with pytest.raises(InferError, match="index 20 is out of range"):
        run_ours(
            "EmbedLayerNormalization",
            [*inputs, normal(4, 8), normal(5, 8)],
            outputs=2,
            domain="com.microsoft",
        )


def test_refusals():
    with pytest.raises(CompileError, match="do not fall into 3 heads"):
        inputs = [normal(k, 1, 3, 16) for k in (1, 2, 3)]
        run_ours("Attention", inputs, opset=23, q_num_heads=3, kv_num_heads=3)
    with pytest.raises(CompileError, match="qk_matmul_output_mode is 7"):
        run_ours("Attention", heads(), opset=23, qk_matmul_output_mode=7)
    with pytest.raises(CompileError, match="rotary embedding"):
        inputs = [normal(1, 2, 3, 10), normal(2, 10, 48), normal(3, 48)]
        run_ours("Attention", inputs, domain="com.microsoft", num_heads=4, do_rotary=1)


@pytest.mark.parametrize(
    ("shapes", "attrs", "message"),
    [
        ([(1, 2, 3, 4), (1, 2, 5, 8), (1, 2, 5, 4)], {}, "do not fit each other"),
        ([(1, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4)], {}, "do not fit each other"),
        ([(1, 3, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)], {}, "do not fit each other"),
        ([(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 6, 4)], {}, "do not fit each other"),
        ([(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (4, 5)], {}, "do not fit each other"),
        (
            [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), None, (1, 1, 2, 4), (1, 2, 2, 4)],
            {"outputs": 3},
            "the past is of shape",
        ),
    ],
)
def test_shapes_that_do_not_fit(shapes, attrs, message):
    inputs = [None if s is None else normal(k, *s) for k, s in enumerate(shapes)]
    with pytest.raises(CompileError, match=message):
        run_ours("Attention", inputs, opset=23, **attrs)


def test_widths_beyond_the_projection():
    inputs = [normal(1, 2, 3, 10), normal(2, 10, 24), normal(3, 24)]
    widths = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 16]}
    with pytest.raises(CompileError, match="would copy elements beyond a tensor"):
        run_ours("Attention", inputs, domain="com.microsoft", **widths)
