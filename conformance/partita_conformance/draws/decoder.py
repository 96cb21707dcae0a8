"""Random models of the operators of onnxruntime that decoders of language models are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.tensors.cache_rows import ATTRIBUTES, encoded
from partita_conformance.draws.draw import (
    Array,
    Draw,
    Generator,
    Rng,
    floats,
    integers,
    one_of,
    size,
)
from partita_conformance.draws.mixtures import mixture, mixture_of_few_bits

_DOMAIN = "com.microsoft"


def group_query_attention(rng: Rng) -> Draw:
    """Draws GroupQueryAttention: a first prompt, a chunk behind one, or a single token."""
    sizes = _Sizes.drawn(rng)
    given = sizes.attributes | _scored(rng)
    parts = [floats(rng, shape) for shape in sizes.tokens]
    inputs: list[Array | None] = [*parts]
    if rng.random() < 0.3:
        inputs = [np.concatenate(parts, axis=2), None, None]
    inputs += [floats(rng, [*sizes.cache, sizes.width]) for _ in range(2)]
    inputs += [sizes.lengths, np.array(sizes.total, np.int32)]
    if rng.random() < 0.7:
        given |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        inputs += _angles(rng, sizes.cache[2], sizes.width // 2)
    return Draw(inputs, given, outputs=3, domain=_DOMAIN)


def attention_over_codes(rng: Rng) -> Draw:
    """Draws GroupQueryAttention over caches of int8, whose rows have scales.

    New elements are nearer to a code than to the middle between two, so that all devices round them
    alike; of the results only the first is looked at, since scales may differ in the last bit.
    """
    sizes = _Sizes.drawn(rng)
    given = sizes.attributes | _scored(rng) | dict(ATTRIBUTES)
    query, key, value = sizes.tokens
    rows = (*key[:2], sizes.cache[1], sizes.width)
    inputs: list[Array | None] = [floats(rng, query)]
    inputs += [_near_codes(rng, rows).reshape(shape) for shape in (key, value)]
    inputs += [encoded(_near_codes(rng, (*sizes.cache, sizes.width))) for _ in range(2)]
    inputs += [sizes.lengths, np.array(sizes.total, np.int32)]
    return Draw(inputs, given, domain=_DOMAIN)


def _near_codes(rng: Rng, shape: Sequence[int]) -> Array:
    """Rows whose largest element is 127 steps, and whose others are nearly so many steps."""
    steps = rng.integers(-126, 127, shape) + rng.uniform(-0.3, 0.3, shape)
    steps[..., 0] = 127
    return np.asarray(steps / 64, np.float32)


class _Sizes(NamedTuple):
    """Sizes of an attention over a cache; ``cache`` is batch, heads of keys, places."""

    attributes: dict[str, Any]
    width: int
    tokens: list[list[int]]
    cache: tuple[int, int, int]
    total: int
    lengths: Array

    @classmethod
    def drawn(cls, rng: Rng) -> _Sizes:
        """Draws them."""
        batch, kv_heads, group = (int(n) for n in rng.integers(1, 4, 3))
        heads, width = kv_heads * group, one_of(rng, 2, 8, 20)
        places = size(rng, 8, 40)
        count = one_of(rng, 1, 1, int(rng.integers(2, 8)))
        is_first = count > 1 and rng.random() < 0.5
        total = count if is_first else int(rng.integers(count + 1, places + 1))
        least = 0 if total == count else count - 1
        lengths = np.asarray(rng.integers(least, total, batch), np.int32)
        lengths[int(rng.integers(batch))] = total - 1
        tokens = [[batch, count, n * width] for n in (heads, kv_heads, kv_heads)]
        given = {"num_heads": heads, "kv_num_heads": kv_heads}
        return cls(given, width, tokens, (batch, kv_heads, places), total, lengths)


def _scored(rng: Rng) -> dict[str, Any]:
    """Attributes of what becomes of scores."""
    drawn: dict[str, Any] = one_of(
        rng, {}, {"softcap": 2.0}, {"scale": 0.25}, {"local_window_size": 3}
    )
    return drawn


def _angles(rng: Rng, places: int, pairs: int) -> list[Array]:
    """Tables of cosines and sines."""
    angles = floats(rng, [places, pairs])
    return [np.cos(angles), np.sin(angles)]


def rotary_embedding(rng: Rng) -> Draw:
    """Draws RotaryEmbedding, of tokens with a position each, or after that of the first one."""
    batch, count, heads = (int(n) for n in rng.integers(1, 5, 3))
    pairs = one_of(rng, 1, 4, 9)
    shape = one_of(rng, [batch, count, heads * 2 * pairs], [batch, heads, count, 2 * pairs])
    given: dict[str, Any] = {"interleaved": int(rng.integers(2))}
    positions = one_of(
        rng, integers(rng, 0, 4, 1), np.asarray(rng.integers(0, 9, [batch, count]), np.int64)
    )
    inputs = [floats(rng, shape), positions.astype(np.int64), *_angles(rng, 9, pairs)]
    if rng.random() < 0.3:
        given |= {"num_heads": heads, "rotary_embedding_dim": 2 * pairs}
        shape = [batch, count, heads * (2 * pairs + 2)]
        inputs[0] = floats(rng, shape)
    return Draw(inputs, given, domain=_DOMAIN)


def skip_simplified_normalization(rng: Rng) -> Draw:
    """Draws SkipSimplifiedLayerNormalization with its sum, sometimes of three terms."""
    shape = [int(rng.integers(1, 4)), int(rng.integers(1, 4)), size(rng, 3, 40)]
    inputs = [floats(rng, shape), floats(rng, shape), floats(rng, shape[-1:])]
    inputs += [floats(rng, shape[-1:])] if rng.random() < 0.5 else []
    return Draw(inputs, {"epsilon": one_of(rng, 1e-5, 0.1)}, outputs=4, domain=_DOMAIN)


def simplified_normalization(rng: Rng) -> Draw:
    """Draws SimplifiedLayerNormalization, under the name that onnxruntime's files have."""
    shape = [int(n) for n in rng.integers(1, 9, 3)]
    axis = one_of(rng, -1, 1)
    inputs = [floats(rng, shape), floats(rng, shape[axis:])]
    return Draw(inputs, {"axis": axis, "epsilon": one_of(rng, 1e-5, 0.1)})


def product_of_few_bits(rng: Rng) -> Draw:
    """Draws MatMulNBits: blocks of weights, the last of which need not be full."""
    bits, block = one_of(rng, 4, 4, 8), one_of(rng, 16, 32)
    rows, columns = int(rng.integers(1, 4)) * block - one_of(rng, 0, 3), size(rng, 2, 20)
    blocks = -(-rows // block)
    given = {"K": rows, "N": columns, "bits": bits, "block_size": block}
    x = floats(rng, [int(n) for n in rng.integers(1, 5, one_of(rng, 1, 2))] + [rows])
    weights = _bytes(rng, [columns, blocks, block * bits // 8])
    inputs: list[Array | None] = [x, weights, floats(rng, [columns * blocks])]
    if rng.random() < 0.6:
        inputs.append(_bytes(rng, [columns * -(-blocks * bits // 8)]))
    return Draw(inputs, given, range(1, len(inputs)), domain=_DOMAIN)


def table_of_few_bits(rng: Rng) -> Draw:
    """Draws GatherBlockQuantized: rows of a table in blocks."""
    bits, block, blocks = one_of(rng, 4, 4, 8), one_of(rng, 16, 32), one_of(rng, 2, 4)
    rows = int(rng.integers(2, 9))
    given = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    places = np.asarray(rng.integers(-rows, rows, [2, int(rng.integers(1, 4))]), np.int64)
    table = _bytes(rng, [rows, blocks * block * bits // 8])
    inputs: list[Array | None] = [table, places, floats(rng, [rows, blocks])]
    constant = [0, 2]
    if rng.random() < 0.6:
        inputs.append(_bytes(rng, [rows, blocks * bits // 8]))
        constant.append(3)
    return Draw(inputs, given, constant, domain=_DOMAIN)


def _bytes(rng: Rng, shape: list[int]) -> Array:
    return np.asarray(rng.integers(0, 256, shape), np.uint8)


DECODER: dict[str, tuple[str, Generator]] = {
    "GatherBlockQuantized": ("GatherBlockQuantized", table_of_few_bits),
    "GroupQueryAttention": ("GroupQueryAttention", group_query_attention),
    "GroupQueryAttention_int8": ("GroupQueryAttention", attention_over_codes),
    "MatMulNBits": ("MatMulNBits", product_of_few_bits),
    "MoE": ("MoE", mixture),
    "QMoE": ("QMoE", mixture_of_few_bits),
    "RotaryEmbedding": ("RotaryEmbedding", rotary_embedding),
    "SimplifiedLayerNormalization": ("SimplifiedLayerNormalization", simplified_normalization),
    "SkipSimplifiedLayerNormalization": (
        "SkipSimplifiedLayerNormalization",
        skip_simplified_normalization,
    ),
}
"""By what is tried: the operator, and what draws a model of it."""
