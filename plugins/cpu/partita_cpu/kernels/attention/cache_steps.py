"""Records attention over the valid part of a cache, by the kernels for few or for many queries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Builder, Operand
from partita.lowering.shapes.symbolic_size import Number, evaluated, integers, settled
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.attention_kernels import attention_kernels, few_query_kernels
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.kernels.attention.cache_attention import attend_kernel, scratch_floats
from partita_cpu.kernels.attention.cache_blocks import Cache, Results, Terms, join_parts
from partita_cpu.kernels.attention.cache_decode import Kernels, decode_floats, decode_kernel
from partita_cpu.kernels.attention.new_heads import NewHeads
from partita_cpu.kernels.attention.prefill.attend_tiles import Target, prefill_kernel
from partita_cpu.kernels.attention.prefill.tile_memory import prefill_floats, tile_shapes
from partita_cpu.kernels.half import BFLOAT16
from partita_cpu.llvm.attention.attend_few import Elements

_LEAST_KEYS = 256
"""Keys are cut in parts for more threads only if each part can have as many."""

_MANY_QUERIES = 24
"""From so many on, of all heads of a group, tiles of matrix products are faster."""


class Counts(NamedTuple):
    """Sizes of an attention.

    Attributes:
        batch: Batches.
        kv_heads: Heads of keys and values.
        group: Heads of queries that share one of these.
        queries: Of a batch and head.
        size: Of a key.
        outputs: Size of a value.
        places: Of the cache.
    """

    batch: Number
    kv_heads: int
    group: int
    queries: Number
    size: int
    outputs: int
    places: Number


class Scoring(NamedTuple):
    """What happens to scores.

    Attributes:
        bias: Added to them, (B or 1, heads or 1, queries, keys).
        sinks: What the softmax of each head has besides them.
        sinking: Whether it has something besides them; 0 where there are no `sinks`.
        causal: Whether a query sees no later keys.
        window: Most keys that a query sees; -1 for all.
        cap: Their bound through tanh; 0 for none.
    """

    bias: Operand | None = None
    sinks: Operand | None = None
    sinking: bool = False
    causal: bool = True
    window: int = -1
    cap: float = 0.0


def rotates_queries(b: Builder, counts: Counts) -> bool:
    """Whether `attend_places` takes queries as they are given: where it goes by tiles."""
    many = counts.group * counts.queries >= _MANY_QUERIES
    return native_policy(b.options) is not None and not b.folding and bool(many)


def attend_places(
    b: Builder,
    counts: Counts,
    spans: Operand,
    queries: NewHeads | Operand,
    cache: Cache,
    scoring: Scoring,
    y: Operand,
) -> None:
    """Records the attention of queries over the keys of spans.

    Args:
        b: The builder.
        counts: Sizes.
        spans: Keys of each batch before its queries and with them; see `cache_spans`.
        queries: As they are given if it `rotates_queries`; otherwise, or where nothing happens to
            them, (B, KV_HEADS, queries, GROUP, SIZE), float32.
        cache: Keys and values, of any type that a cache may have.
        scoring: What happens to scores.
        y: The result, (B, queries, heads, OUTPUTS), float32.
    """
    policy = native_policy(b.options)
    threads = 1 if policy is None else policy.threads
    parts = evaluated(_parts, threads, counts.batch, counts.kv_heads, counts.queries, counts.places)
    nothing = b.zeros(1, np.float32)
    bias, sinks = scoring.bias, scoring.sinks
    table = [*counts, parts, int(scoring.causal), scoring.window]
    table += [int(bias is not None), *_bias_strides(bias)]
    table += [int(scoring.sinking), int(sinks is not None)]
    terms = Terms(*(nothing if x is None else b.flat(x) for x in (bias, sinks)))
    rows = counts.batch * counts.kv_heads * counts.group * counts.queries
    size, outputs = counts.size, counts.outputs
    work = rows * (size + outputs) * counts.places
    read, spans = Cache(b.flat(cache.keys), b.flat(cache.values)), b.flat(spans)
    if policy is not None and rotates_queries(b, counts):
        if isinstance(queries, Operand):
            queries = _as_they_lie(b, counts, queries)
        level, arithmetic = policy.level, policy.arithmetic
        shapes = tile_shapes(level, arithmetic)
        floats = max(prefill_floats(size, outputs, *shape) for shape in shapes)
        scratch = b.empty((threads * floats,), np.float32)
        kernels = np.concatenate([attention_kernels(level, shape.planes) for shape in shapes])
        known = b.constant(integers([x for shape in shapes for x in (*table, *shape)]))
        rest = Target(b.flat(y), scratch), b.constant(kernels), known, scoring.cap
        kind = (arithmetic if shapes[0].planes else Arithmetic.F32).exec_type(level)
        b.call(prefill_kernel, read, queries, spans, terms, *rest, work=work, exec_type=kind)
        return
    if not isinstance(queries, Operand):
        raise TypeError("few queries are rotated before their attention")
    given = read, b.flat(queries), spans, terms
    partial = b.empty((rows * parts * (outputs + 2),), np.float32)
    results, known = Results(b.flat(y), partial), b.constant(integers(table))
    if policy is not None and not b.folding:
        elements = _ELEMENTS[cache.keys.dtype]
        scratch = b.empty((threads * decode_floats(outputs),), np.float32)
        by = Kernels(b.constant(few_query_kernels(policy.level, elements)), scratch)
        sizes = b.constant(integers([*table, elements.bytes]))
        kind = Arithmetic.F32.exec_type(policy.level)
        b.call(decode_kernel, *given, results, by, sizes, scoring.cap, work=work, exec_type=kind)
    else:
        scratch = b.empty((threads * scratch_floats(outputs),), np.float32)
        b.call(attend_kernel, *given, results, scratch, known, scoring.cap, work=work)
    if settled(parts) > 1:
        b.call(join_parts, terms, results, known)


def _as_they_lie(b: Builder, counts: Counts, queries: Operand) -> NewHeads:
    """Queries to which nothing happens."""
    token, nothing, placeless = (
        counts.group * counts.size,
        b.zeros(1, np.float32),
        b.zeros(1, np.int64),
    )
    strides = counts.kv_heads * counts.queries * token, counts.queries * token, counts.size, token
    table = b.constant(integers([*strides, 0, 0, 0, 0, 0]))
    return NewHeads(b.flat(queries), nothing, nothing, placeless, nothing, table, 0.0, 1.0)


_ELEMENTS = {
    np.dtype(np.float32): Elements.FLOAT32,
    np.dtype(np.float16): Elements.FLOAT16,
    BFLOAT16: Elements.BFLOAT16,
    np.dtype(np.int8): Elements.INT8,
}
"""Of caches by their types."""


def _parts(threads: int, batch: int, kv_heads: int, queries: int, places: int) -> int:
    """In how many parts keys are cut, so that there is work for all threads."""
    units = batch * kv_heads * queries
    if threads == 1 or units % threads == 0 or units >= 4 * threads:
        return 1
    return max(1, min(-(-2 * threads // max(units, 1)), places // _LEAST_KEYS))


def _bias_strides(bias: Operand | None) -> tuple[Number, Number, Number]:
    """Elements from one batch, head and query of a bias to the next."""
    if bias is None:
        return (0, 0, 0)
    batch, heads, queries, keys = bias.shape
    by_batch = 0 if batch == 1 else heads * queries * keys
    return by_batch, 0 if heads == 1 else queries * keys, keys
