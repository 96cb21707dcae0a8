"""Layers that read the labels of a sequence from scores (connectionist temporal classification)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("CTCGreedyDecoder")
def labels_by_mask(at: Site) -> ir.Value:
    """The best labels of sequences that end where their mask does; -1 behind them."""
    scores = at.emit("Transpose", at.inputs[0], perm=[1, 0, 2])
    mask = at.emit("Transpose", at.inputs[1], perm=[1, 0])
    ends = at.emit("Cast", at.emit("Equal", mask, at.like(0, 1)), to=7)
    ended = at.emit("CumSum", ends, at.const(1, np.int64))
    goes_on = at.emit("Equal", ended, at.const(0, np.int64))
    labels, _ = _decoded(at, scores, goes_on, None, at.flag("ctc_merge_repeated", True))
    last = at.const([2, 3], np.int64)
    return at.emit("Unsqueeze", at.emit("CastLike", labels, at.inputs[0]), last)


@translates("CTCGreedyDecoderSeqLen")
def labels_by_length(at: Site) -> list[ir.Value]:
    """The best labels of sequences of given lengths, -1 behind them, and how many there are."""
    scores = at.inputs[0]
    places = at.counting(at.size(scores, 1))
    lengths = at.emit("Unsqueeze", at.indices(1), at.const([1], np.int64))
    goes_on = at.emit("Less", places, lengths)
    blank = at.row(2) if at.has(2) else None
    labels, count = _decoded(at, scores, goes_on, blank, at.flag("merge_repeated", True))
    types = ("classes_index_type", "sequence_length_type")
    return [
        at.emit("Cast", value, to=at.output_type(key, "i32"))
        for value, key in zip((labels, count), types, strict=True)
    ]


def _decoded(
    at: Site, scores: ir.Value, goes_on: ir.Value, blank: ir.Value | None, merges: bool
) -> tuple[ir.Value, ir.Value]:
    """Labels side by side from the front, and how many there are.

    Args:
        at: The layer.
        scores: Of [rows, steps, classes].
        goes_on: Whether a step belongs to its row's sequence.
        blank: The class that stands for no label; the last one if none is given.
        merges: Whether a label that follows itself is left out.
    """
    one = at.const([1], np.int64)
    if blank is None:
        blank = at.emit("Sub", at.size(scores, 2), one)
    best = at.emit("ArgMax", scores, axis=2, keepdims=0)
    kept = at.emit("And", goes_on, at.emit("Not", at.emit("Equal", best, blank)))
    if merges:
        pads, axis = at.const([1, -1], np.int64), one
        before = at.emit("Pad", best, pads, at.const(-1, np.int64), axis)
        kept = at.emit("And", kept, at.emit("Not", at.emit("Equal", best, before)))
    return in_front(at, best, kept, at.const(-1, np.int64))


def in_front(
    at: Site, values: ir.Value, kept: ir.Value, filling: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """What is kept of each row, side by side from its front, and how many there are.

    Args:
        at: The layer.
        values: Of [rows, steps], int64.
        kept: Likewise, of truth values.
        filling: What stands behind.
    """
    one = at.const([1], np.int64)
    numbers, steps = at.emit("Cast", kept, to=7), at.size(values, 1)
    behind = at.emit("Sub", at.emit("CumSum", numbers, at.const(1, np.int64)), one)
    place = at.emit("Where", kept, behind, steps)  # all others share one place behind
    room = at.emit("Concat", at.size(values, 0), at.emit("Add", steps, one), axis=0)
    written = at.emit("Where", kept, values, filling)
    found = at.emit("ScatterElements", at.emit("Expand", filling, room), place, written, axis=1)
    count = at.emit("ReduceSum", numbers, one, keepdims=0)
    return at.emit("Slice", found, at.const([0], np.int64), steps, one), count
