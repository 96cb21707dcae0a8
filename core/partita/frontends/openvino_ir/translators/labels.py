"""Layers of sequences of labels: read from scores, judged by them, and those of a beam search.

Scores are those of connectionist temporal classification (CTC), where one class is none: the blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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


@translates("GatherTree")
def gather_tree(at: Site) -> ir.Value:
    """The tokens of each beam of a search, which is followed back from its last step.

    Behind the first end token, and behind the end of a sequence, there are only end tokens.
    """
    tokens, parents = at.inputs[0], at.indices(1)
    end = at.emit("Reshape", at.inputs[3], at.const([], np.int64))
    zero = at.const(0, np.int64)
    steps = at.counting(at.size(tokens, 0))
    column, last = at.const([1], np.int64), at.const([-1], np.int64)
    inside = at.emit("Less", at.emit("Unsqueeze", steps, column), at.indices(2))
    inside = at.emit("Unsqueeze", inside, last)  # steps, batch, 1
    beams = at.counting(at.size(tokens, 2))
    beams = at.emit("Expand", beams, at.emit("Shape", tokens, start=1))

    def step(
        body: Site, states: list[ir.Value], slices: list[ir.Value]
    ) -> tuple[Sequence[ir.Value], Sequence[ir.Value]]:
        (beam,), (token, parent, is_inside) = states, slices
        taken = [body.emit("GatherElements", value, beam, axis=1) for value in (token, parent)]
        token, parent = taken
        before = body.emit("Where", is_inside, parent, beam)
        return [before], [body.emit("Where", is_inside, token, end)]

    kinds = at.dtype(0), np.int64, np.bool_
    sequences = list(zip((tokens, parents, inside), kinds, strict=True))
    _, found = at.scan(step, [(beams, np.int64)], sequences, 1, backwards=True)
    ends = at.emit("Cast", at.emit("Equal", found, end), to=7)
    ended = at.emit("Greater", at.emit("CumSum", ends, zero, exclusive=1), zero)
    return at.emit("Where", ended, end, found)


@translates("CTCLoss")
def alignment_loss(at: Site) -> ir.Value:
    """What is against labels, by all alignments of them with scores: -ln of their probability.

    The forward recursion of Graves et al., "Connectionist Temporal Classification" (ICML 2006),
    section 4.1, in logarithms: states are blank, label, blank, label, ..., blank.
    """
    kind = np.dtype(np.float32) if at.dtype(0).itemsize == 2 else at.dtype(0)
    wide = at.emit("CastLike", at.inputs[0], at.const(0, kind))  # for sums of many steps
    chances = at.emit("LogSoftmax", wide, axis=2)
    blank = at.row(4) if at.has(4) else at.emit("Sub", at.size(wide, 2), at.const([1], np.int64))
    labels, count = _labels_due(at, blank)
    states = _between_blanks(at, labels, blank)
    repeats = at.flag("ctc_merge_repeated", True)
    stays, leaps = _barred(at, states, repeats, kind)
    nothing = at.const(-np.inf, kind)
    is_first = at.emit("Equal", at.counting(at.size(states, 1)), at.const(0, np.int64))
    first = at.emit("Where", is_first, at.const(0, kind), nothing)
    first = at.emit("Expand", first, at.emit("Shape", states))
    zero, one, two = (at.const([number], np.int64) for number in (0, 1, 2))
    width, pads = at.size(states, 1), at.const([0, 2, 0, 0], np.int64)
    behind = at.emit("Add", width, one)

    def step(
        body: Site, held: list[ir.Value], slices: list[ir.Value]
    ) -> tuple[Sequence[ir.Value], Sequence[ir.Value]]:
        (before,), (scores, goes_on) = held, slices
        padded = body.emit("Pad", before, pads, nothing)
        ways = [
            body.emit("Add", before, stays),
            body.emit("Slice", padded, one, behind, one),
            body.emit("Add", body.emit("Slice", padded, zero, width, one), leaps),
        ]
        reached = body.emit("GatherElements", scores, states, axis=1)
        reached = body.emit("Add", _sum_of_logs(body, ways, kind), reached)
        return [body.emit("Where", goes_on, reached, before)], []

    steps = at.counting(at.size(wide, 1))
    goes_on = at.emit("Less", at.emit("Unsqueeze", steps, one), at.indices(1))
    sequences = [
        (at.emit("Transpose", chances, perm=[1, 0, 2]), kind),
        (at.emit("Unsqueeze", goes_on, two), np.bool_),
    ]
    (last,) = at.scan(step, [(first, kind)], sequences, 0)
    # The last label, or the blank behind it; without labels there is but the blank.
    padded = at.emit("Pad", last, at.const([0, 1, 0, 0], np.int64), nothing)
    end = at.emit("Unsqueeze", at.emit("Mul", count, two), one)
    ends = [
        at.emit("GatherElements", padded, place, axis=1)
        for place in (end, at.emit("Add", end, one))
    ]
    loss = at.emit("Neg", at.emit("Squeeze", _sum_of_logs(at, ends, kind), one))
    return at.emit("CastLike", loss, at.inputs[0])


def _labels_due(at: Site, blank: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The labels to be aligned, blanks behind them, and how many each row has."""
    labels, one = at.indices(2), at.const([1], np.int64)
    steps = at.size(labels, 1)
    kept = at.emit("Less", at.counting(steps), at.emit("Unsqueeze", at.indices(3), one))
    if at.flag("unique"):
        column, row = (at.emit("Unsqueeze", labels, at.const([axis], np.int64)) for axis in (2, 1))
        same = at.emit("Cast", at.emit("Equal", column, row), to=7)
        earlier = at.emit("Trilu", same, at.const(-1, np.int64), upper=0)
        found = at.emit("ReduceMax", earlier, at.const([2], np.int64), keepdims=0)
        kept = at.emit("And", kept, at.emit("Equal", found, at.const(0, np.int64)))
    elif at.flag("preprocess_collapse_repeated"):
        before = at.emit("Slice", labels, at.const([0], np.int64), at.const([-1], np.int64), one)
        after = at.emit("Slice", labels, one, steps, one)
        other = at.emit("Cast", at.emit("Equal", before, after), to=7)
        other = at.emit("Pad", other, at.const([0, 1, 0, 0], np.int64))
        kept = at.emit("And", kept, at.emit("Equal", other, at.const(0, np.int64)))
    else:
        return at.emit("Where", kept, labels, blank), at.indices(3)
    return in_front(at, labels, kept, blank)


def _between_blanks(at: Site, labels: ir.Value, blank: ir.Value) -> ir.Value:
    """The class of each state: a blank before every label, and one behind the last."""
    last = at.const([-1], np.int64)
    column = at.emit("Unsqueeze", labels, last)
    blanks = at.emit("Expand", blank, at.emit("Shape", column))
    pairs = at.emit("Concat", blanks, column, axis=2)
    pairs = at.emit("Reshape", pairs, at.const([0, -1], np.int64))
    one = at.const([1], np.int64)
    final = at.emit("Expand", blank, at.emit("Concat", at.size(labels, 0), one, axis=0))
    return at.emit("Concat", pairs, final, axis=1)


def _barred(
    at: Site, states: ir.Value, repeats: bool, kind: np.dtype[Any]
) -> tuple[ir.Value, ir.Value]:
    """Minus infinity where a state cannot follow itself, and where not the one before the last."""
    parity = at.emit("Mod", at.counting(at.size(states, 1)), at.const(2, np.int64))
    is_label = at.emit("Equal", parity, at.const(1, np.int64))
    free, barred = at.const(0, kind), at.const(-np.inf, kind)
    if not repeats:  # equal labels that follow each other are two
        return at.emit("Where", is_label, barred, free), at.emit("Where", is_label, free, barred)
    zero, one, two = (at.const([number], np.int64) for number in (0, 1, 2))
    before = at.emit("Slice", states, zero, at.const([-2], np.int64), one)
    behind = at.emit("Slice", states, two, at.size(states, 1), one)
    same = at.emit("Cast", at.emit("Equal", before, behind), to=7)
    same = at.emit("Pad", same, at.const([0, 2, 0, 0], np.int64))
    other = at.emit("Equal", same, at.const(0, np.int64))
    return free, at.emit("Where", at.emit("And", is_label, other), free, barred)


def _sum_of_logs(at: Site, terms: Sequence[ir.Value], kind: np.dtype[Any]) -> ir.Value:
    """The logarithm of the sum of what terms are logarithms of; those of 0 may be among them."""
    most = at.emit("Max", *terms)
    least = at.const(np.finfo(kind).min, kind)
    finite = at.emit("Max", most, least)
    powers = [at.emit("Exp", at.emit("Sub", term, finite)) for term in terms]
    return at.emit("Add", at.emit("Log", at.emit("Sum", *powers)), finite)
