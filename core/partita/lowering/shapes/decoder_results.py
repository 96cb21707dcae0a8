"""Shapes and types of results of operators of decoders; see `result_shapes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.symbolic_size import evaluated, settled, whole

Rules = Callable[[Node, Any], Sequence[Operand] | None]

DECODER_RULES: dict[str, Rules] = {}
"""By operator; each makes stand-ins for all outputs, or ``None`` if they are not as usual."""

_MICROSOFT = "com.microsoft::"
_BYTE = np.dtype(np.uint8)


def _rule(*kinds: str) -> Callable[[Rules], Rules]:
    def register(rule: Rules) -> Rules:
        DECODER_RULES.update(dict.fromkeys(kinds, rule))
        return rule

    return register


def _outputs(node: Node, *found: Operand) -> Sequence[Operand] | None:
    """As many as the node has; ``None`` if it has more that are used."""
    return found if all(value is None for value in node.outputs[len(found) :]) else None


@_rule(_MICROSOFT + "MatMulNBits")
def _matmul_nbits(node: Node, operands: Any) -> Sequence[Operand] | None:
    x = operands[0]
    return _outputs(node, Operand((*x.shape[:-1], node.attrs["N"]), x.dtype))


@_rule(_MICROSOFT + "GatherBlockQuantized")
def _gather_block_quantized(node: Node, operands: Any) -> Sequence[Operand] | None:
    data, index, scales = operands[:3]
    shape = list(data.shape)
    if data.dtype == _BYTE:
        shape[-1] *= 8 // node.attrs.get("bits", 4)
    axis = node.attrs.get("gather_axis", 0) % len(shape)
    return _outputs(node, Operand((*shape[:axis], *index.shape, *shape[axis + 1 :]), scales.dtype))


@_rule(
    *("SimplifiedLayerNormalization", "RotaryEmbedding", "partita::Mixture"),
    *(_MICROSOFT + name for name in ("RotaryEmbedding", "FastGelu", "BiasGelu", "QuickGelu")),
    *(_MICROSOFT + name for name in ("MoE", "QMoE")),
)
def _like_first(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _outputs(node, Operand(operands[0].shape, operands[0].dtype))


@_rule(
    *(_MICROSOFT + name for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"))
)
def _normalized_sum(node: Node, operands: Any) -> Sequence[Operand] | None:
    if any(value is not None for value in node.outputs[1:3]):
        return None
    return [Operand(operands[0].shape, operands[0].dtype) for _ in node.outputs]


@_rule(_MICROSOFT + "GroupQueryAttention")
def _group_query_attention(node: Node, operands: Any) -> Sequence[Operand] | None:
    query, key, _, past_key, past_value, _, total = operands[:7]
    if past_key is None or past_value is None:
        return None
    batch, queries, _ = query.shape
    _, kv_heads, places, row = past_key.shape
    if total.const is not None:
        places = evaluated(max, places, whole(total.const.reshape(-1)[0]))
    shape = (batch, kv_heads, places, row)
    heads, width = node.attrs["num_heads"], query.shape[2]
    if key is None:
        width = settled(width // (heads + 2 * kv_heads)) * heads
    y = Operand((batch, queries, width), query.dtype)
    return _outputs(node, y, *(Operand(shape, past.dtype) for past in (past_key, past_value)))


@_rule("TensorScatter")
def _tensor_scatter(node: Node, operands: Any) -> Sequence[Operand] | None:
    return _outputs(node, Operand(operands[0].shape, operands[0].dtype))
