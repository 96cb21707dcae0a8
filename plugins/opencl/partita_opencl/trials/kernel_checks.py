"""Small models by kernel family, with their results in float64: what a driver must get right."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from partita.lowering import Array
from partita.tensors.cache_rows import ATTRIBUTES, encoded
from partita_opencl.trials.recurrent_checks import RECURRENT_CHECKS
from partita_opencl.trials.sample import MICROSOFT, FamilyChecks, Sample
from partita_opencl.trials.sampling_checks import SAMPLING_CHECKS
from partita_opencl.trials.selection_checks import SELECTION_CHECKS

CHECKS = FamilyChecks(SELECTION_CHECKS | RECURRENT_CHECKS | SAMPLING_CHECKS)
"""A function per family that fills a model in."""

_family = CHECKS.family


def sample(family: str, part: int | None = None) -> Sample:
    """The model of a family; with a part, a number below :func:`parts`, of that output alone.

    Args:
        family: A key of `CHECKS`.
        part: Number of an output; ``None`` for all.
    """
    made = Sample()
    CHECKS[family](made)
    if part is not None:
        made.keep(part)
    return made


@functools.cache
def parts(family: str) -> int:
    """In how many parts a family can be tried, so that processes can share them."""
    return len(sample(family).expected)


@_family
def _elementwise(s: Sample) -> None:
    x = s.feed("x", s.numbers(3, 4, 5, 7))
    column = s.weight("column", s.numbers(4, 1, 1))
    row = s.weight("row", s.numbers(7))
    s.step("Sigmoid", "x", "a")
    s.step("Tanh", "a", "b")
    s.step("Exp", "b", "c")
    s.step("Relu", "x", "d")
    s.step("Add", "c d", "e")
    s.step("Sqrt", "e", "f")
    s.step("Erf", "x", "g")
    e = np.exp(np.tanh(1.0 / (1.0 + np.exp(-x)))) + np.maximum(x, 0.0)
    erf = np.array([math.erf(v) for v in x.ravel()]).reshape(x.shape)
    s.check("Mul", "f g", np.sqrt(e) * erf)
    s.step("Mul", "x column", "h")
    s.check("Add", "h row", x * column + row)
    n = s.feed("n", s.random.integers(-9, 9, (3, 5)))
    s.check("Mul", "n n", n * n)
    s.check("Cast", "n", n, to=1)


@_family
def _matmul(s: Sample) -> None:
    x = s.feed("x", s.numbers(20, 37))
    w = s.weight("w", s.numbers(37, 21))
    s.check("MatMul", "x w", x @ w)
    a, b = s.feed("a", s.numbers(2, 5, 33)), s.feed("b", s.numbers(2, 33, 40))
    s.check("MatMul", "a b", a @ b)
    deep = s.feed("deep", s.numbers(10, 700))  # so deep that its sums are cut in parts
    taken = s.weight("taken", s.numbers(700, 9))
    s.check("MatMul", "deep taken", deep @ taken)


@_family
def _integer_product(s: Sample) -> None:
    a = s.feed("a", s.random.integers(0, 256, (2, 19, 40)).astype(np.uint8))
    b = s.feed("b", s.random.integers(-128, 128, (40, 21)).astype(np.int8))
    zero = s.weight("zero", np.array(7, np.uint8))
    zeros = s.weight("zeros", s.random.integers(-9, 9, 21).astype(np.int8))
    s.check("MatMulInteger", "a b zero zeros", (a - zero) @ (b - zeros))


@_family
def _block_products(s: Sample) -> None:
    for bits, block, rows in ((4, 32, 1), (8, 16, 3), (4, 16, 7)):
        x = s.feed(f"x{bits}{block}", s.numbers(rows, 100))
        blocks = math.ceil(100 / block)
        numbers = s.random.integers(0, 1 << bits, (21, blocks, block))
        scales = s.weight(f"s{bits}{block}", s.numbers(21, blocks))
        zeros = s.weight(f"z{bits}{block}", s.numbers(21, blocks))
        data = numbers[..., ::2] | numbers[..., 1::2] << 4 if bits == 4 else numbers
        s.weight(f"w{bits}{block}", data.astype(np.uint8))
        w = (scales[..., None] * (numbers - zeros[..., None])).reshape(21, -1)[:, :100]
        names = " ".join(f"{name}{bits}{block}" for name in "xwsz")
        sizes = {"K": 100, "N": 21, "bits": bits, "block_size": block}
        s.check("MatMulNBits", names, x @ w.T, domain=MICROSOFT, **sizes)


@_family
def _mixture(s: Sample) -> None:
    for bits, tokens in ((4, 2), (0, 50)):  # few tokens, and many
        x, logits = s.feed(f"x{bits}", s.numbers(tokens, 40)), s.numbers(tokens, 3)
        logits += np.eye(3, dtype=np.float32)[np.arange(tokens) % 3] * 9  # no narrow decisions
        chosen = s.feed(f"l{bits}", logits).argmax(1)
        parts = [_experts(s, f"{bits}{name}", bits, *sizes) for name, sizes in _PARTS.items()]
        inner = np.einsum("tk,tnk->tn", x, parts[0][1][chosen])
        expected = np.einsum("tk,tnk->tn", np.maximum(inner, 0.0), parts[1][1][chosen])
        names = " ".join([f"x{bits}", f"l{bits}", *(names for names, _ in parts)])
        attrs = {"expert_weight_bits": bits, "block_size": 32} if bits else {}
        more = {"normalize_routing_weights": 1, "domain": MICROSOFT, **attrs}
        s.check("QMoE" if bits else "MoE", names, expected, **more)


_PARTS = {"in": (34, 40), "out": (40, 34)}
"""Columns and terms of experts' products."""


def _experts(s: Sample, name: str, bits: int, columns: int, terms: int) -> tuple[str, Array]:
    """Weights of three experts, with the names of an operation's inputs."""
    if not bits:
        w = s.weight(f"w{name}", s.numbers(3, columns, terms))
        return f"w{name} ", w
    numbers = s.random.integers(0, 1 << bits, (3, columns, terms))
    s.weight(f"w{name}", (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8))
    scales = s.weight(f"s{name}", s.numbers(3, columns, math.ceil(terms / 32)))
    return f"w{name} s{name} ", (numbers - 8.0) * np.repeat(scales, 32, 2)[..., :terms]


@_family
def _convolution(s: Sample) -> None:
    x = s.feed("x", s.numbers(1, 6, 9, 10))
    w = s.weight("w", s.numbers(18, 6, 3, 3))
    bias = s.weight("bias", s.numbers(18))
    expected = _convolved(x, w, 1) + bias[:, None, None]
    s.check("Conv", "x w bias", expected, pads=[1, 1, 1, 1])
    narrow = s.weight("narrow", s.numbers(8, 6, 1, 1))
    s.check("Conv", "x narrow", _convolved(x, narrow, 0))
    deep = s.feed("deep", s.numbers(1, 70, 5, 6))  # so deep that its sums are cut in parts
    taken = s.weight("taken", s.numbers(18, 70, 3, 3))
    expected = _convolved(deep, taken, 1) + bias[:, None, None]
    s.check("Conv", "deep taken bias", expected, pads=[1, 1, 1, 1])


@_family
def _depthwise(s: Sample) -> None:
    x = s.feed("x", s.numbers(1, 6, 9, 10))
    w = s.weight("w", s.numbers(6, 1, 3, 3))
    windows = _windows(x, 3, 1)
    expected = np.einsum("ncyxij,cij->ncyx", windows, w[:, 0])
    s.check("Conv", "x w", expected, pads=[1, 1, 1, 1], group=6)


@_family
def _convolution_transposed(s: Sample) -> None:
    x = s.feed("x", s.numbers(1, 5, 4, 6))
    w = s.weight("w", s.numbers(5, 3, 2, 2))
    expected = np.einsum("ncyx,cfij->nfyixj", x, w).reshape(1, 3, 8, 12)
    s.check("ConvTranspose", "x w", expected, strides=[2, 2])


@_family
def _pooling(s: Sample) -> None:
    x = s.feed("x", s.numbers(2, 3, 8, 9))
    windows = _windows(x, 2, 0)
    s.check("MaxPool", "x", windows.max((4, 5)), kernel_shape=[2, 2])
    s.check("AveragePool", "x", windows.mean((4, 5)), kernel_shape=[2, 2])
    s.check("GlobalAveragePool", "x", x.mean((2, 3), keepdims=True))


@_family
def _reduction(s: Sample) -> None:
    x = s.feed("x", s.numbers(4, 6, 37))
    s.weight("last", np.array([2]))
    s.weight("middle", np.array([1]))
    s.check("ReduceMean", "x last", x.mean(2, keepdims=True))
    s.check("ReduceMax", "x middle", x.max(1, keepdims=True))
    s.check("ReduceSum", "x middle", x.sum(1, keepdims=True))


@_family
def _argument(s: Sample) -> None:
    x = s.feed("x", s.random.permutation(60).reshape(4, 15).astype(np.float32))
    s.check("ArgMax", "x", x.argmax(1, keepdims=True), axis=1)
    s.check("ArgMin", "x", x.argmin(0, keepdims=True), axis=0)


@_family
def _ranking(s: Sample) -> None:
    x = s.feed("x", s.random.permutation(60).reshape(4, 15).astype(np.float32))
    s.weight("k", np.array([3]))
    s.step("TopK", "x k", "values places", axis=1)
    s.expected |= {"values": -np.sort(-x, 1)[:, :3], "places": np.argsort(-x, 1)[:, :3]}


@_family
def _softmax(s: Sample) -> None:
    x = s.feed("x", s.numbers(4, 6, 37))
    for axis in (2, 1):
        powers = np.exp(x - x.max(axis, keepdims=True))
        s.check("Softmax", "x", powers / powers.sum(axis, keepdims=True), axis=axis)


@_family
def _normalization(s: Sample) -> None:
    x = s.feed("x", s.numbers(2, 5, 40))
    scale, shift = s.weight("scale", s.numbers(40)), s.weight("shift", s.numbers(40))
    s.check("LayerNormalization", "x scale shift", _normal(x, 2) * scale + shift)
    gain, offset = s.weight("gain", s.numbers(5)), s.weight("offset", s.numbers(5))
    expected = _normal(x, 2) * gain[:, None] + offset[:, None]
    s.check("InstanceNormalization", "x gain offset", expected)
    factors = 2.0 / np.sqrt(4.0 * (x**2).mean(2, keepdims=True) + 1e-5)
    attrs = {"domain": MICROSOFT, "epsilon": 1e-5}
    s.check("SkipSimplifiedLayerNormalization", "x x scale", x * factors * scale, **attrs)


@_family
def _cache_attention(s: Sample) -> None:
    for tokens in (1, 5):  # whose kernels differ
        names, due, biased = _attention(s, tokens, 32)
        attrs = {"num_heads": 2, "kv_num_heads": 2, "scale": 1 / 32, "domain": MICROSOFT}
        s.check("GroupQueryAttention", " ".join(names), due, **attrs)
        with_bias = " ".join([*names, "", "", "", f"bias{tokens}"])
        s.check("GroupQueryAttention", with_bias, biased, causal=0, **attrs)
        names, due, _ = _attention(s, tokens, 40, "coded")
        for name in names[3:5]:
            s.feeds[name] = encoded(s.feeds[name])
        s.check("GroupQueryAttention", " ".join(names), due, **attrs, **ATTRIBUTES)


def _attention(
    s: Sample, tokens: int, size: int, prefix: str = ""
) -> tuple[list[str], Array, Array]:
    """Adds the inputs of attention over two heads; their names, the result, that with a bias."""
    names = ["q", "k", "v", "keys", "values", "length", "total", "bias"]
    names = [f"{prefix}{name}{tokens}" for name in names]
    q = s.feed(names[0], s.numbers(1, tokens, 2 * size))
    new = [s.feed(name, _rows(s, 1, tokens, 2, size).reshape(q.shape)) for name in names[1:3]]
    past = [s.feed(name, _rows(s, 1, 2, 70, size)) for name in names[3:5]]
    s.feed(names[5], np.array([65], np.int32))
    s.feed(names[6], np.array([66], np.int32))
    before = 66 - tokens
    bias = s.feed(names[7], s.numbers(1, 1, tokens, 66))
    due, biased = np.zeros((2, 1, tokens, 2, size))
    for head, token in itertools.product(range(2), range(tokens)):
        own, seen = slice(head * size, (head + 1) * size), before + token + 1
        keys, values = (
            np.concatenate([cache[0, head, :before], x[0, :, own]])
            for cache, x in zip(past, new, strict=True)
        )
        scores = keys @ q[0, token, own] / 32.0
        powers = np.exp(scores[:seen])
        due[0, token, head] = powers @ values[:seen] / powers.sum()
        powers = np.exp(scores + bias[0, 0, token])
        biased[0, token, head] = powers @ values / powers.sum()
    return names[:7], due.reshape(q.shape), biased.reshape(q.shape)


def _rows(s: Sample, *shape: int) -> Array:
    """Rows of numbers that are a byte times the largest over 127, which bfloat16 holds."""
    steps = s.random.integers(-127, 128, shape)
    steps[..., 0] = 127
    return (steps / 64.0).astype(np.float32)


@_family
def _rotary_embedding(s: Sample) -> None:
    x = s.feed("x", s.numbers(1, 3, 2 * 8))
    cosines, sines = s.weight("cosines", s.numbers(9, 3)), s.weight("sines", s.numbers(9, 3))
    s.feed("positions", np.array([[4, 0, 8]]))
    c, d = (table[[4, 0, 8]][:, None, :] for table in (cosines, sines))
    heads = x.reshape(3, 2, 8)
    first, second = heads[..., :3], heads[..., 3:6]
    turned = [first * c - second * d, second * c + first * d, heads[..., 6:]]
    attrs = {"num_heads": 2, "rotary_embedding_dim": 6, "domain": MICROSOFT}
    expected = np.concatenate(turned, -1).reshape(x.shape)
    s.check("RotaryEmbedding", "x positions cosines sines", expected, **attrs)


@_family
def _lrn(s: Sample) -> None:
    x = s.feed("x", s.numbers(1, 5, 3, 4))
    padded = np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    sums = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    s.check("LRN", "x", x / (1.0 + sums / 3.0) ** 0.75, size=3, alpha=1.0)


@_family
def _movement(s: Sample) -> None:
    x = s.feed("x", s.numbers(3, 4, 10))
    s.check("Transpose", "x", x.transpose(2, 0, 1), perm=[2, 0, 1])
    s.check("Transpose", "x", x.transpose(0, 2, 1), perm=[0, 2, 1])
    s.check("Concat", "x x", np.concatenate([x, x], 1), axis=1)
    s.weight("pads", np.array([0, 1, 2, 0, 0, 1]))
    s.check("Pad", "x pads", np.pad(x, ((0, 0), (1, 0), (2, 1))))
    s.weight("from", np.array([1]))
    s.weight("to", np.array([9]))
    s.weight("axis", np.array([2]))
    s.weight("step", np.array([2]))
    s.check("Slice", "x from to axis step", x[:, :, 1:9:2])


@_family
def _shapes(s: Sample) -> None:
    start, limit, delta = (
        int(s.feed(name, np.array(number)))
        for name, number in (("start", 2), ("limit", -9), ("delta", -2))
    )
    s.check("Range", "start limit delta", np.arange(start, limit, delta))


@_family
def _resize(s: Sample) -> None:
    x = s.feed("x", s.numbers(1, 2, 4, 5))
    s.weight("scales", np.array([1.0, 1.0, 2.0, 2.0], np.float32))
    how = {"coordinate_transformation_mode": "asymmetric"}
    nearest = x.repeat(2, 2).repeat(2, 3)
    inputs = "x  scales"  # without regions
    s.check("Resize", inputs, nearest, mode="nearest", nearest_mode="floor", **how)
    s.check("Resize", inputs, _doubled(_doubled(x, 2), 3), mode="linear", **how)


def _doubled(x: Array, axis: int) -> Array:
    """Twice as many elements along an axis, the new ones halfway to the next."""
    following = np.concatenate([x.take(range(1, x.shape[axis]), axis), x.take([-1], axis)], axis)
    pairs = np.stack([x, (x + following) / 2.0], axis + 1)
    return pairs.reshape(*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])


def _normal(x: Array, axis: int) -> Array:
    centred = x - x.mean(axis, keepdims=True)
    result: Array = centred / np.sqrt(x.var(axis, keepdims=True) + 1e-5)
    return result


def _windows(x: Array, size: int, pad: int) -> Array:
    image = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    return np.lib.stride_tricks.sliding_window_view(image, (size, size), (2, 3))


def _convolved(x: Array, w: Array, pad: int) -> Array:
    result: Array = np.einsum("ncyxij,fcij->nfyx", _windows(x, w.shape[2], pad), w, optimize=True)
    return result
