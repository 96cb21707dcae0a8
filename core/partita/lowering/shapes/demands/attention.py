"""Demands of operators of decoders: attention with a cache, rotation, rows put into a cache."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import Demand, Shape, Shapes, is_of_shape
from partita.tensors.cache_rows import is_quantized, row_bytes

ATTENTION_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, ATTENTION_DEMANDS)


def _given(name: str, shape: Shape | None, rank: int) -> Shape:
    if shape is None or len(shape) != rank:
        raise ValueError(f"{name} is to have {rank} dimensions")
    return shape


@_demand("com.microsoft::GroupQueryAttention")
def _group_query_attention(node: Node, shapes: Shapes) -> Iterable[str]:
    heads, kv_heads = node.attrs["num_heads"], node.attrs["kv_num_heads"]
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        yield f"{heads} heads cannot share {kv_heads} heads of keys in equal groups"
        return
    batch, queries, width = _given("query", shapes[0], 3)
    key, value = shapes[1:3]
    if (key is None) != (value is None):
        yield "key and value are to be given both, or neither if query holds them as well"
    parts = heads if key is not None else heads + 2 * kv_heads
    size = width // parts
    if width % parts or not size:
        yield f"{width} features do not fall into {parts} heads"
    for name, shape in (("key", key), ("value", value)):
        yield from is_of_shape(name, shape, (batch, queries, kv_heads * size))
    row = row_bytes(size) if is_quantized(node.attrs) else size
    yield from _cache(shapes[3], shapes[4], (batch, kv_heads, row))
    yield from is_of_shape("seqlens_k", shapes[5], (batch,), (batch, 1))
    yield from is_of_shape("total_sequence_length", shapes[6], (), (1,))
    if node.attrs.get("do_rotary", 0):
        yield from _tables(shapes[7], shapes[8], size)
    yield from is_of_shape("position_ids", shapes[9], (batch, queries))
    if shapes[10] is not None:
        keys = _given("attention_bias", shapes[10], 4)[3]
        due = [(n, m, queries, keys) for n in (batch, 1) for m in (heads, 1)]
        yield from is_of_shape("attention_bias", shapes[10], *due)
    yield from is_of_shape("head_sink", shapes[11], (heads,))
    if (shapes[14] is None) != (shapes[15] is None):
        yield "q_norm_weight and k_norm_weight are to be given both, or neither"
    for name, shape in (("q_norm_weight", shapes[14]), ("k_norm_weight", shapes[15])):
        yield from is_of_shape(name, shape, (size,))


def _cache(keys: Shape | None, values: Shape | None, sizes: tuple[int, int, int]) -> Iterable[str]:
    """Faults of past keys and values; sizes: batch, heads, elements for a head of a token."""
    if (keys is None) != (values is None):
        yield "past_key and past_value are to be given both, or neither"
    elif keys is not None:
        places = _given("past_key", keys, 4)[2]
        for name, shape in (("past_key", keys), ("past_value", values)):
            yield from is_of_shape(name, shape, (*sizes[:2], places, sizes[2]))


def _tables(cosines: Shape | None, sines: Shape | None, size: int) -> Iterable[str]:
    """Faults of the tables of a rotary embedding of heads of a size."""
    places, half = _given("cos_cache", cosines, 2)
    _given("sin_cache", sines, 2)
    yield from is_of_shape("sin_cache", sines, (places, half))
    if not half or 2 * half > size:
        yield f"cos_cache has {half} angles; heads of {size} elements take 1 to {size // 2}"


@_demand("RotaryEmbedding", "com.microsoft::RotaryEmbedding")
def _rotary_embedding(node: Node, shapes: Shapes) -> Iterable[str]:
    x = shapes[0]
    if x is None or len(x) not in (3, 4):
        yield "the input is to have 3 or 4 dimensions"
        return
    positions, cosines, sines = (
        (shapes[1], shapes[2], shapes[3]) if node.domain else (shapes[3], shapes[1], shapes[2])
    )
    heads, part = node.attrs.get("num_heads", 0), node.attrs.get("rotary_embedding_dim", 0)
    tokens = (x[0], x[2] if len(x) == 4 else x[1])
    rank = 3 if positions is None else 2
    half = _given("the table of cosines", cosines, rank)[-1]
    yield from is_of_shape("the table of sines", sines, cosines or ())
    if rank == 3:
        yield from is_of_shape("the table of cosines", cosines, (*tokens, half))
    single = [(1,)] if node.domain else []
    yield from is_of_shape("position_ids", positions, tokens, *single)
    if part and part != 2 * half:
        yield f"rotary_embedding_dim is {part}, but the tables have {half} angles"
    size = x[-1]
    if len(x) == 3:
        if heads < 0 or (not node.domain and not heads) or (part and not heads):
            yield f"num_heads is {heads}; tell how many heads the last dimension holds"
            return
        size = x[2] // heads if part or not node.domain else 2 * half
        if not size or x[2] % size or (heads and heads * size != x[2]):
            yield f"{x[2]} features do not fall into heads of {size}"
    if not half or 2 * half > size:
        yield f"{half} angles do not fit heads of {size} elements"
    if not node.domain and not part and 2 * half != size:
        yield f"{half} angles do not turn all {size} elements; tell rotary_embedding_dim"


@_demand("TensorScatter")
def _tensor_scatter(node: Node, shapes: Shapes) -> Iterable[str]:
    past, update = shapes[:2]
    if past is None or update is None or len(past) < 2 or len(past) != len(update):
        yield "past_cache and update are to have as many dimensions, 2 or more"
        return
    axis = node.attrs.get("axis", -2)
    if not -len(past) < axis < len(past) or axis == 0:
        yield f"axis {axis} is none of {len(past)} dimensions behind the first"
        return
    axis %= len(past)
    yield from is_of_shape("update", update, (*past[:axis], update[axis], *past[axis + 1 :]))
    if update[axis] > past[axis]:
        yield f"{update[axis]} new rows do not fit {past[axis]} places"
    yield from is_of_shape("write_indices", shapes[2], (past[0],))
