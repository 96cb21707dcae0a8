"""Attention in one step, on memory that ends where the tensors end, and out of whole models."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_levels import float_levels
from ml_dtypes import bfloat16

from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.llvm.levels import PORTABLE
from partita_cpu.nhwc.attention import attend_heads, head_kernels
from partita_cpu.nhwc.attention_table import (
    ROOM,
    HeadSizes,
    HeadView,
    Mask,
    Scores,
    attention_table,
)

from ..networks.test_native_layout import Net, check, compiled

LEVELS = float_levels()[1:]
COMPUTED = [(level, Arithmetic.F32) for level in LEVELS]
COMPUTED += [(one, Arithmetic.BF16) for one in LEVELS if one.dots_bfloat16 and not one.tiles]
SIZES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 4, 2, 15, 33, 7, 9),
    (1, 6, 1, 29, 64, 32, 64),
    (3, 2, 1, 1, 70, 3, 40),
    (1, 1, 1, 13, 33, 70, 80),
    (1, 2, 1, 14, 128, 3, 3),
]
"""Batches, heads, heads that share keys, queries, keys, size of a key, size of a value."""


def softmax(scores):
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def run_attention(level, arithmetic, table, inputs, y, scores, guarded, threads=2):
    """By all threads, one after another."""
    scratch = guarded.array(np.full(threads * int(table[ROOM]), np.nan, np.float32))
    for tid in range(threads):
        attend_heads(
            *(x.reshape(-1) for x in inputs),
            y.reshape(-1),
            scratch,
            np.zeros(1, np.int64),
            head_kernels(level, arithmetic),
            table,
            scores.scale,
            scores.least or 0.0,
            tid,
            threads,
        )


def strides(shape, last):
    _, outer, inner, size = shape
    steps = (inner * size, size)
    return (outer * inner * size, *(steps if last else steps[::-1]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("level", "arithmetic"), COMPUTED)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("masked", [None, (1, 0, 0, 1), (1, 1, 1, 1), (0, 0, 1, 0)])
def test_heads(level, arithmetic, sizes, last, masked, guarded):
    batches, heads, sharing, queries, keys, depth, outputs = sizes
    rng = np.random.default_rng(0)
    shapes = [
        (batches, heads, queries, depth),
        (batches, heads // sharing, keys, depth),
        (batches, heads // sharing, keys, outputs),
        (batches, heads, queries, outputs),
    ]
    q, k, v, _ = arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    if arithmetic is Arithmetic.BF16:  # so that these are not rounded any more
        q, k, v = arrays[:3] = [x.astype(bfloat16).astype(np.float32) for x in arrays[:3]]
    if last:
        arrays = [x.swapaxes(1, 2) for x in arrays]
    full = (batches, heads, queries, keys)
    mask = None
    if masked is not None:
        shape = [n if kept else 1 for n, kept in zip(full, masked, strict=True)]
        mask = rng.standard_normal(shape).astype(np.float32)
        mask[..., 0, 0] = -np.inf
    count = HeadSizes(*sizes)
    scores = Scores(0.25, [] if mask is None else [Mask.broadcast(mask, batches)], becomes_zero=1)
    table = attention_table(
        level, arithmetic, count, [HeadView(x, strides(x.shape, last)) for x in arrays], scores
    )
    tensors = [guarded.array(x) for x in arrays]
    y = tensors[3]
    y[...] = 7
    masks = [tensors[0] if mask is None else guarded.array(mask), tensors[0]]
    run_attention(level, arithmetic, table, [*tensors[:3], *masks, tensors[0]], y, scores, guarded)
    wide_k, wide_v = (np.repeat(x.astype(np.float64), sharing, 1) for x in (k, v))
    scores = 0.25 * q @ wide_k.swapaxes(-1, -2) + (0 if mask is None else mask)
    wanted = np.nan_to_num(softmax(scores)) @ wide_v
    found = y.swapaxes(1, 2) if last else y
    # The softmax adds up to 1, so that rounding it moves results by half a unit of the values.
    off = 4e-6 + (2**-9 if arithmetic is Arithmetic.BF16 else 0)
    assert np.abs(found - wanted).max() <= off * np.abs(v).max()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("level", "arithmetic"), COMPUTED)
@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize(("size", "half"), [(8, False), (7, True), (40, True)])
def test_windows_of_one_product(level, arithmetic, cosine, size, half, guarded):
    """Two masks, one of all heads and one that some windows share; factors of heads; lengths."""
    images, windows, heads, rows = 2, 3, 2, 33
    half = half and arithmetic is Arithmetic.BF16
    rng = np.random.default_rng(0)
    product = rng.standard_normal((images * windows, rows, 3, heads, size)).astype(np.float32)
    product[0, 3], product[4, 5] = 0, 1e-4
    if arithmetic is Arithmetic.BF16:
        product = product.astype(bfloat16).astype(np.float32)
    of_heads = rng.standard_normal((heads, rows, rows)).astype(np.float32)
    of_windows = np.where(rng.random((windows, rows, rows)) < 0.2, -100, 0).astype(np.float32)
    factors = np.array([0.5, 7], np.float32)
    row = heads * size
    steps = (rows * 3 * row, 3 * row, size)
    x = guarded.array(product)
    shape = images * windows, rows, row
    y = guarded.array(np.full(shape, 7, np.uint16 if half else np.float32))
    parts = [HeadView(x, steps, start) for start in (0, row, 2 * row)]
    parts.append(HeadView(y, (rows * row, row, size)))
    masks = [
        Mask(of_heads, (0, 1, rows * rows, rows, 1)),
        Mask(of_windows, (rows * rows, windows, 0, rows, 1)),
    ]
    least = 1e-2 if cosine else None
    scores = Scores(1.5, masks, factors, least)
    sizes = HeadSizes(images * windows, heads, 1, rows, rows, size, size)
    table = attention_table(level, arithmetic, sizes, parts, scores)
    terms = [guarded.array(m) for m in (of_heads, of_windows, factors)]
    run_attention(level, arithmetic, table, [x, x, x, *terms], y, scores, guarded)
    q, k, v = product.astype(np.float64).transpose(2, 0, 3, 1, 4)
    if cosine:
        q, k = (a / np.maximum(np.linalg.norm(a, axis=-1, keepdims=True), least) for a in (q, k))
    wanted = 1.5 * factors[:, None, None] * (q @ k.swapaxes(-1, -2)) + of_heads
    wanted += np.tile(of_windows, (images, 1, 1))[:, None]
    wanted = (softmax(wanted) @ v).swapaxes(1, 2).reshape(y.shape)
    off = 2e-5 + (2**-8 if arithmetic is Arithmetic.BF16 else 0) + (2**-9 if half else 0)
    found = y.view(bfloat16).astype(np.float64) if half else y
    assert np.abs(found - wanted).max() <= off * np.abs(product).max()


@pytest.mark.parametrize(("scale", "of_keys"), [(0.0, 1), (-0.3, 1), (1e32, 1e-32)])
def test_scales_of_any_sign_and_size(scale, of_keys):
    net = Net(1, 40, 2, 8)
    q = net.add("Transpose", "x", perm=[0, 2, 1, 3])
    k = net.add(
        "Transpose", net.add("Mul", "x", net.const(values=np.float32(of_keys))), perm=[0, 2, 3, 1]
    )
    scores = net.add("Mul", net.add("MatMul", q, k), net.const(values=np.float32(scale)))
    check(net, attention(net, scores, q), tolerance=1e-5)


def test_scores_far_from_zero_are_weighed_by_their_differences():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 40, 2, 8)).astype(np.float32)
    q, k = x + np.float32(300), rng.standard_normal((1, 40, 2, 8)).astype(np.float32)
    net = Net(*x.shape)
    first = net.add(
        "Transpose", net.add("Add", "x", net.const(values=np.float32(300))), perm=[0, 2, 1, 3]
    )
    second = net.add("Transpose", net.const(values=k), perm=[0, 2, 3, 1])
    values = net.add("Transpose", "x", perm=[0, 2, 1, 3])
    y = attention(net, net.add("MatMul", first, second), values)
    found = np.asarray(compiled(net.model(y), EXECUTION_MODE_HINT="ACCURACY")({"x": x})[0])
    wide = [a.astype(np.float64).swapaxes(1, 2) for a in (q, k, x)]
    wanted = (softmax(wide[0] @ wide[1].swapaxes(-1, -2)) @ wide[2]).swapaxes(1, 2)
    assert np.abs(found - wanted).max() <= 2e-3  # products of some thousands are off by as much


def attention(net, scores, values):
    p = net.add("Softmax", scores, axis=-1)
    return net.add("Transpose", net.add("MatMul", p, values), perm=[0, 2, 1, 3])


@pytest.fixture(params=[PORTABLE, *LEVELS], autouse=True)
def level_of_models(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param.name.lower())


def test_a_model_that_spells_it_out():
    net = Net(2, 17, 4, 24)  # batch, sequence, heads, size
    q = net.add("Transpose", "x", perm=[0, 2, 1, 3])
    k = net.add("Transpose", net.add("Relu", "x"), perm=[0, 2, 3, 1])
    scores = net.add("Mul", net.add("MatMul", q, k), net.const(values=np.float32(0.3)))
    mask = net.const(values=net.rng.standard_normal((2, 1, 1, 17)).astype(np.float32))
    y = attention(net, net.add("Add", scores, mask), q)
    kinds = check(net, y)
    assert sum(kind != "" for kind in kinds.values()) == 2  # Relu, and all the rest


@pytest.mark.parametrize("shape", [(3, 4, 17, 17), (5, 1, 1, 1)])
def test_a_mask_that_widens_the_scores(shape):
    net = Net(1, 17, 4, 8)
    q = net.add("Transpose", "x", perm=[0, 2, 1, 3])
    k = net.add("Transpose", "x", perm=[0, 2, 3, 1])
    mask = net.const(values=net.rng.standard_normal(shape).astype(np.float32))
    check(net, attention(net, net.add("Add", net.add("MatMul", q, k), mask), q))


@pytest.mark.parametrize(("keys", "tolerance"), [(1, 4e-6), (31, 4e-6), (32, 2**-6)])
def test_few_keys_are_multiplied_in_float32_where_bfloat16_is_asked_for(keys, tolerance):
    net = Net(2, keys, 4, 32)
    q = net.add("Transpose", "x", perm=[0, 2, 1, 3])
    k = net.add("Transpose", "x", perm=[0, 2, 3, 1])
    y = attention(net, net.add("MatMul", q, k), q)
    check(net, y, config={"INFERENCE_PRECISION_HINT": "bf16"}, tolerance=tolerance)


def test_a_query_without_keys_is_not_a_number():
    net = Net(1, 5, 2, 8)
    q = net.add("Transpose", "x", perm=[0, 2, 1, 3])
    k = net.add("Transpose", "x", perm=[0, 2, 3, 1])
    mask = np.zeros((5, 5), np.float32)
    mask[2] = -np.inf
    y = attention(net, net.add("Add", net.add("MatMul", q, k), net.const(values=mask)), q)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    found = np.asarray(compiled(net.model(y))({"x": x})[0])
    assert np.isnan(found[:, 2]).all()
    assert np.isfinite(np.delete(found, 2, 1)).all()
