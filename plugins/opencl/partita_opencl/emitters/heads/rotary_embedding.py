"""RotaryEmbedding, of ONNX and of onnxruntime: heads rotated by the positions of their tokens."""

from __future__ import annotations

import numpy as np

from partita.contract.query import Reason
from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.kernel_table import refused_attribute
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.launches.emitter_kit import Kit, i32, i64, is_half
from partita_opencl.launches.steps import FAULT

_INT64: DTypes = frozenset({np.dtype(np.int64)})


@operator(
    "RotaryEmbedding",
    types={**dict.fromkeys((0, 1, 2), FLOATS), 3: _INT64},
    since=23,
)
def rotary_embedding(
    k: Kit,
    node: Node,
    x: Operand,
    cosines: Operand,
    sines: Operand,
    positions: Operand | None = None,
) -> Operand:
    """Tables have a row for each position, or, without positions, for each token."""
    return _rotated(k, node, x, positions, cosines, sines)


def _plain(node: Node) -> Reason | None:
    return refused_attribute(node, {"is_packed_batching": 0, "scale": 1.0})


@operator(
    "RotaryEmbedding",
    domain="com.microsoft",
    types={**dict.fromkeys((0, 2, 3), FLOATS), 1: _INT64},
    check=_plain,
)
def rotary_embedding_of_microsoft(
    k: Kit, node: Node, x: Operand, positions: Operand, cosines: Operand, sines: Operand
) -> Operand:
    """A position for each token, or one for all first tokens."""
    return _rotated(k, node, x, positions, cosines, sines)


def _rotated(
    k: Kit, node: Node, x: Operand, positions: Operand | None, cosines: Operand, sines: Operand
) -> Operand:
    """Records the rotation of all heads.

    Args:
        k: The kit.
        node: The operation.
        x: Heads (batch, head, token, size) or (batch, token, heads x size).
        positions: Which row of the tables a token is rotated by; None if tables have a row for each
            token.
        cosines: The table of cosines (position, half of what is rotated).
        sines: That of sines.
    """
    batch, heads, tokens, size = _sizes(node, x, cosines)
    rotated = 2 * cosines.shape[-1]
    rows = cosines.size // max(1, cosines.shape[-1])
    ids = 0 if positions is None else 2
    if positions is not None and positions.size == 1 and node.domain:
        ids = 1
    wrong = cosines.shape != sines.shape or cosines.dtype != sines.dtype or rotated > size
    if ids == 0:
        wrong = wrong or cosines.shape[:-1] != (batch, tokens)
    elif ids == 2 and positions is not None:
        wrong = wrong or positions.size != batch * tokens
    if wrong or int(node.attrs.get("rotary_embedding_dim", 0)) not in (0, rotated):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot rotate an input of shape "
            f"{list(x.shape)} by tables of shapes {list(cosines.shape)} and {list(sines.shape)}."
        )
    y = k.empty(x.shape, x.dtype)
    flags = {
        "TOKEN_HALF": is_half(x.dtype),
        "TABLE_HALF": is_half(cosines.dtype),
        "INTERLEAVED": bool(node.attrs.get("interleaved", 0)),
        "HEADS_FIRST": x.ndim == 4,
    }
    k.launch(
        "rotary.cl",
        "rotary",
        k.tuning.flat(y.size),
        x,
        positions or x,
        cosines,
        sines,
        y,
        FAULT,
        i64(y.size),
        i32(heads),
        i32(tokens),
        i32(rows),
        i32(len(k.builder.ops)),
        SIZE=size,
        ROTATED=rotated,
        IDS=ids,
        **{name: None for name, on in flags.items() if on},
    )
    return y


def _sizes(node: Node, x: Operand, cosines: Operand) -> tuple[int, int, int, int]:
    """Batch, heads, tokens, elements of a head.

    Raises:
        OperandError: The input does not fall into heads.
    """
    if x.ndim == 4:
        batch, heads, tokens, size = x.shape
        return batch, heads, tokens, size
    heads = int(node.attrs.get("num_heads", 0))
    width = x.shape[-1] if x.ndim == 3 else 0
    size = width // heads if heads else 2 * cosines.shape[-1] if cosines.ndim else 0
    if not size or width % size:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot cut an input of shape "
            f"{list(x.shape)} into {heads} heads."
        )
    return x.shape[0], width // size, x.shape[1], size
