"""Concats between submodels: which have nothing to do, and where their inputs are written."""

from __future__ import annotations

import numpy as np
import pytest
from models import model_of, node, value

from partita import Port
from partita.frontends.reader import read_model
from partita.tensors.layout import LaidOutTensor, Layout, Window
from partita.tensors.tensor import HostTensor
from partita_hetero.compile.joining import Join, bring_together, find_joins, in_windows
from partita_hetero.partition import op_graph, partitioner, submodels

F32 = np.dtype(np.float32)
NHWC = Layout((0, 2, 3, 1), F32)
SHAPE = [1, 4, 3, 3]


def cut(places, axis=1, joined=("a", "b"), outputs=("y",), more=()):
    """x -> a, b; k joins them; y reads k. A letter a device, by operation."""
    nodes = [
        node("Exp", ["x"], "a", "a"),
        node("Sin", ["x"], "b", "b"),
        node("Concat", list(joined), "k", "k", axis=axis),
        node("Neg", ["k"], "y", "y"),
        *more,
    ]
    wiring = op_graph.build(read_model(model_of(nodes, [value("x", SHAPE)], list(outputs))))
    parts = partitioner.partition(wiring.preds, wiring.succs, list(places))
    return wiring, submodels.describe(wiring, parts)


def joins_of(*args, host="ABC", **options):
    wiring, pieces = cut(*args, **options)
    return find_joins(wiring, pieces, lambda device: device in host)


def test_a_concat_by_itself():
    wiring, pieces = cut("ABCA")
    (join,) = find_joins(wiring, pieces, lambda device: True)
    number = next(piece.number for piece in pieces if piece.device == "C")
    assert join == Join(number, 1, ("a", "b"), "k")
    assert joins_of("ABCA", axis=-3) == [join]


def test_a_concat_that_is_computed():
    assert joins_of("ABBA") == []  # with another operation
    assert joins_of("ABCA", joined=("a", "a")) == []
    assert joins_of("ABCA", joined=("a", "x")) == []  # what applications bring stays theirs
    assert joins_of("ABCA", outputs=("y", "b")) == []  # so does what they see
    for host in ("AB", "BC", "AC"):
        assert joins_of("ABCA", host=host) == []
    also_read = node("Tan", ["b"], "z", "z")
    assert joins_of("ABCAC", outputs=("y", "z"), more=[also_read]) == []
    assert joins_of("ABCAB", outputs=("y", "z"), more=[also_read])  # by its writer: no matter


class Part:
    def __init__(self, **shapes):
        self.outputs = [Port(i, name, F32, shape) for i, (name, shape) in enumerate(shapes.items())]
        self.gives = list(self.outputs)

    def windows(self):
        return self.gives


def parts():
    return [Part(a=(1, 4, 3, 3), b=(1, 2, 3, 3)), Part(c=(1, 3, 3, 3)), Part(k=(1, 9, 3, 3))]


JOIN = Join(3, 1, ("a", "b", "c"), "k")
ALL = dict.fromkeys("abck", NHWC)


def test_inputs_become_windows_behind_one_another():
    windows = {name: layout.window for name, layout in in_windows(JOIN, parts(), ALL).items()}
    assert windows == {"a": Window(0, 4, 9), "b": Window(4, 2, 9), "c": Window(6, 3, 9)}
    assert all(layout.axes == NHWC.axes for layout in in_windows(JOIN, parts(), ALL).values())


@pytest.mark.parametrize("name", "abck")
def test_all_must_have_agreed_on_one_layout(name):
    narrow = Layout(NHWC.axes, np.dtype(np.float16))
    assert in_windows(JOIN, parts(), {**ALL, name: narrow}) == {}
    assert in_windows(JOIN, parts(), {k: v for k, v in ALL.items() if k != name}) == {}


def test_where_windows_cannot_be():
    across = Join(3, 2, JOIN.inputs, "k")
    assert in_windows(across, parts(), ALL) == {}
    unknown = parts()
    unknown[1] = Part(c=(1, "n", 3, 3))
    assert in_windows(JOIN, unknown, ALL) == {}
    without = parts()
    without[0].gives = without[0].outputs[:1]
    assert in_windows(JOIN, without, ALL) == {}


def test_what_was_written_elsewhere_is_copied():
    image = np.zeros((1, 3, 3, 9), np.float32)
    layouts = in_windows(JOIN, parts(), ALL)
    prepared = [LaidOutTensor(image, F32, layouts[name]) for name in "abc"]
    rng = np.random.default_rng(0)
    plain = [rng.standard_normal((1, size, 3, 3), np.float32) for size in (4, 2, 3)]
    layouts["a"].own(image)[...] = plain[0].transpose(0, 2, 3, 1)
    other = LaidOutTensor(layouts["b"].stored(plain[1]), F32, layouts["b"])
    bring_together([prepared[0], other, HostTensor(plain[2])], prepared, [0, 1, 2])
    np.testing.assert_array_equal(image, np.concatenate(plain, 1).transpose(0, 2, 3, 1))
