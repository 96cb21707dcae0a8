"""Attention whose queries, keys and values lie within other tensors, in domain `HEADS`."""

from __future__ import annotations

import numpy as np

from partita.errors import CompileError
from partita.lowering import Builder, Node, Operand
from partita_cpu.kernels.nhwc.placement import HALF
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.nhwc.attention import emit_attention
from partita_cpu.nhwc.attention_table import HeadSizes, HeadView, Mask, Scores

HEADS = "partita.heads"
"""Domain of attention that `passes.attention_in_place` makes, where there are native kernels."""


@kernel("Attention", domain=HEADS, dtypes=F32, folds=False)
def attention_in_place(
    b: Builder,
    node: Node,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    other: Operand | None = None,
    factors: Operand | None = None,
) -> Operand:
    """``softmax(scale * q @ k.T + mask + other) @ v`` of all heads.

    Attributes: `shape` of the result; `sizes`, the fields of `HeadSizes`; `places`, start and steps
    of queries, keys and values as `HeadView` has them, one after another; `result_steps`; `masks`,
    the steps of each mask; `scale`, `least` and `becomes_zero` of `Scores`; `half`, whether it ends
    in bfloat16.

    Raises:
        CompileError: It does not fit the memory that it is made for.
    """
    attrs = node.attrs
    places, steps = attrs["places"], attrs["masks"]
    parts = [
        HeadView(x, tuple(places[4 * n + 1 : 4 * n + 4]), places[4 * n])
        for n, x in enumerate((q, k, v))
    ]
    y = b.empty(attrs["shape"], HALF if attrs.get("half") else np.float32)
    parts.append(HeadView(y, tuple(attrs["result_steps"])))
    given = [x for x in (mask, other) if x is not None]
    masks = [Mask(x, tuple(steps[5 * n : 5 * n + 5])) for n, x in enumerate(given)]
    scores = Scores(attrs["scale"], masks, factors, attrs.get("least"), attrs["becomes_zero"])
    if not emit_attention(b, parts, HeadSizes(*attrs["sizes"]), scores):
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}): attention of {list(attrs['shape'])} "
            "does not fit into one step."
        )
    return y
