"""A factor and a summand in front of a convolution move into its weights and bias.

PP-LCNetV3 multiplies and shifts every activation by two learnt numbers. Behind a convolution they
are part of its epilogue, but in front of one they would take two passes over the image. Where the
convolution pads, with zeros, the summand stays in front of it; only the factor moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.lowering.fusion.rewriting import Rewriter, fusion_pass, is_float, origins, scalar_input
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array

SMALLEST = 1e-3
"""A summand that stays is divided by the factor: by none smaller than this."""


@fusion_pass(100)
def fuse_prologues(rewriter: Rewriter) -> None:
    """Moves numbers that an image is multiplied by, and numbers added then, into convolutions."""
    for node in rewriter.nodes():
        if node.kind in ("Conv", "partita::Conv"):
            _fuse(rewriter, node)


@dataclass(frozen=True)
class _Prologue:
    """``source * factor + summand``, and the nodes that compute it."""

    source: Value
    factor: float
    summand: float
    nodes: tuple[Node, ...]


def _fuse(rewriter: Rewriter, conv: Node) -> None:
    found, weight = _prologue(rewriter, conv), conv.inputs[1]
    if found is None or weight is None or weight.const is None or not is_float(weight.const):
        return
    bias = conv.input(2)
    if bias is not None and bias.const is None:
        return
    scaled = Value.constant(weight.const * weight.const.dtype.type(found.factor), weight.name)
    rest = conv.inputs[3:]
    if found.summand == 0:
        _replace(rewriter, (*found.nodes, conv), conv, [found.source, scaled, bias, *rest])
        return
    if not _pads(conv):
        axes = tuple(range(1, weight.const.ndim))
        sums = weight.const.sum(axis=axes, dtype=np.float64)
        row = sums * found.summand + (0 if bias is None else _float64(bias))
        shifted: Value | None = Value.constant(row.astype(weight.const.dtype))
        _replace(rewriter, (*found.nodes, conv), conv, [found.source, scaled, shifted, *rest])
        return
    last = found.nodes[-1]
    if len(found.nodes) < 2 or abs(found.factor) < SMALLEST or last.kind != "Add":
        return
    summand = np.array(found.summand / found.factor, weight.const.dtype)
    image = last.outputs[0]
    inputs: list[Value | None] = [image, scaled, bias, *rest]
    if _replace(rewriter, (conv,), conv, inputs):
        _replace(rewriter, found.nodes, last, [found.source, Value.constant(summand)])


def _prologue(rewriter: Rewriter, conv: Node) -> _Prologue | None:
    """What is computed of another value by one number each, for this convolution only."""
    value, factor, summand = conv.inputs[0], 1.0, 0.0
    nodes: list[Node] = []
    for kind in ("Add", "Mul"):
        node = rewriter.maker(value, kind)
        parts = None if node is None else scalar_input(node)
        if node is None or parts is None or rewriter.only_user(value) is not (nodes or [conv])[0]:
            continue
        nodes.insert(0, node)
        value = parts[0]
        if kind == "Add":
            summand = parts[1]
        else:
            factor = parts[1]
    if not nodes or value is None:
        return None
    return _Prologue(value, factor, summand, tuple(nodes))


def _replace(
    rewriter: Rewriter, nodes: tuple[Node, ...], last: Node, inputs: list[Value | None]
) -> bool:
    """Puts a node like `last`, on other inputs, in the place of all."""
    return rewriter.replace(nodes, last.like(inputs, origins=origins(nodes)))


def _pads(conv: Node) -> bool:
    if conv.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return True
    return any(conv.attrs.get("pads") or ())


def _float64(value: Value) -> Array | float:
    return 0.0 if value.const is None else value.const.astype(np.float64)
