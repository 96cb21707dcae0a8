"""Results of operators of decoders: products of few bits, caches, normalized sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering.geometry.cache_places import present_places
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.results.rule import ResultRules
from partita.lowering.shapes.symbolic_size import integer, settled

DECODER_RESULTS = ResultRules()

_MICROSOFT = "com.microsoft::"
_BYTE = np.dtype(np.uint8)


def _outputs(node: Node, *found: Operand) -> Sequence[Operand] | None:
    """As many as the node has; ``None`` if it has more that are used."""
    return found if all(value is None for value in node.outputs[len(found) :]) else None


@DECODER_RESULTS.outputs(_MICROSOFT + "MatMulNBits")
def _matmul_nbits(node: Node, operands: Any) -> Sequence[Operand] | None:
    x = operands[0]
    return _outputs(node, Operand((*x.shape[:-1], node.attrs["N"]), x.dtype))


@DECODER_RESULTS.outputs(_MICROSOFT + "GatherBlockQuantized")
def _gather_block_quantized(node: Node, operands: Any) -> Sequence[Operand] | None:
    data, index, scales = operands[:3]
    shape = list(data.shape)
    if data.dtype == _BYTE:
        shape[-1] *= 8 // node.attrs.get("bits", 4)
    axis = node.attrs.get("gather_axis", 0) % len(shape)
    return _outputs(node, Operand((*shape[:axis], *index.shape, *shape[axis + 1 :]), scales.dtype))


@DECODER_RESULTS.outputs(
    *("SimplifiedLayerNormalization", "RotaryEmbedding", "partita::Mixture"),
    *(_MICROSOFT + name for name in ("RotaryEmbedding", "FastGelu", "BiasGelu", "QuickGelu")),
    *(_MICROSOFT + name for name in ("MoE", "QMoE")),
)
def _like_first(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _outputs(node, Operand(operands[0].shape, operands[0].dtype))


@DECODER_RESULTS.outputs(
    *(_MICROSOFT + name for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
)
def _normalized_sum(node: Node, operands: Any) -> Sequence[Operand] | None:
    if any(value is not None for value in node.outputs[1:3]):
        return None
    return [Operand(operands[0].shape, operands[0].dtype) for _ in node.outputs]


@DECODER_RESULTS.outputs(_MICROSOFT + "GroupQueryAttention")
def _group_query_attention(node: Node, operands: Any) -> Sequence[Operand] | None:
    query, key, _, past_key, past_value, _, total = operands[:7]
    if past_key is None or past_value is None:
        return None
    batch, queries, _ = query.shape
    _, kv_heads, places, row = past_key.shape
    if total.const is not None:
        places = present_places(places, queries, integer(total.const.reshape(-1)[0]))
    shape = (batch, kv_heads, places, row)
    heads, width = node.attrs["num_heads"], query.shape[2]
    if key is None:
        width = settled(width // (heads + 2 * kv_heads)) * heads
    y = Operand((batch, queries, width), query.dtype)
    return _outputs(node, y, *(Operand(shape, past.dtype) for past in (past_key, past_value)))


@DECODER_RESULTS.outputs("TensorScatter")
def _tensor_scatter(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _outputs(node, Operand(operands[0].shape, operands[0].dtype))
