"""Operations that compute nothing: which ones they are, and when they follow their neighbours."""

from __future__ import annotations

import hypothesis.strategies as st
import onnx_ir as ir
import pytest
from hypothesis import given

from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.data_movement import computes_nothing, follow


def node(op_type, *types, domain=""):
    """An operation of values of such types, the last one being its output."""
    values = [ir.Value(type=ir.TensorType(t), shape=ir.Shape(shape)) for t, shape in types]
    return ir.Node(domain, op_type, values[:-1], outputs=values[-1:])


I64, F32, BOOL = ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.BOOL


@pytest.mark.parametrize(
    ("operation", "idle"),
    [
        (node("Reshape", (F32, [None, 3, 800]), (I64, [2]), (F32, [None, None])), True),
        (node("Equal", (I64, []), (I64, []), (BOOL, [])), True),
        (node("Mul", (F32, []), (F32, [1]), (F32, [1])), True),
        (node("Add", (I64, [64]), (I64, []), (I64, [64])), True),
        (node("Add", (I64, [65]), (I64, []), (I64, [65])), False),
        (node("Add", (I64, ["n"]), (I64, []), (I64, ["n"])), False),
        (node("Mul", (F32, [2]), (F32, []), (F32, [2])), False),
        (node("ReduceMax", (F32, [99]), (F32, [])), False),
        (node("Exp", (F32, [None]), (F32, [None])), False),
        (node("Gather", (F32, [9]), (F32, []), domain="com.example"), False),
    ],
    ids=lambda case: case.op_type if isinstance(case, ir.Node) else str(case),
)
def test_which_compute_nothing(operation, idle):
    assert computes_nothing(operation) is idle


def test_what_holds_a_body_computes_whatever_that_does():
    body = ir.Graph([], [], nodes=[])
    flag = ir.Value(type=ir.TensorType(BOOL), shape=ir.Shape([]))
    branches = [ir.AttrGraph(name, body) for name in ("then_branch", "else_branch")]
    assert not computes_nothing(ir.Node("", "If", [flag], branches, outputs=[ir.Value()]))


def graph_of(text, edges, constant=()):
    """A graph by one letter for each operation: ``i`` moves data, all others compute."""
    edges = set(edges)
    preds = [sorted(a for a, b in edges if b == op) for op in range(len(text))]
    succs = [sorted(b for a, b in edges if a == op) for op in range(len(text))]
    nodes = [ir.Node("", "Identity" if letter == "i" else "Exp", []) for letter in text]
    none = [[] for _ in text]
    fixed = [op in constant for op in range(len(text))]
    return OpGraph(nodes, none, none, {}, preds, succs, fixed, [True] * len(text), [])


def chain(text, homes, refused=(), pinned=(), constant=()):
    """Where the operations of a chain are in the end, with devices A, B and C."""
    graph = graph_of(text, list(zip(range(len(text)), range(1, len(text)), strict=False)), constant)
    moved = follow(
        graph,
        list(homes),
        [op not in pinned for op in range(len(text))],
        lambda op, device: (op, device) not in refused,
        "ABC",
    )
    return "".join(moved.get(op, home) for op, home in enumerate(homes))


@pytest.mark.parametrize(
    ("text", "homes", "end"),
    [
        ("iei", "ABA", "BBB"),  # alone round what another device computes
        ("eie", "BAB", "BBB"),
        ("eiie", "BAAB", "BBBB"),
        ("eie", "AAB", "AAB"),  # a neighbour computes there
        ("eiie", "AAAB", "AAAB"),
        ("ii", "AA", "AA"),  # no neighbours at all
        ("eie", "CAB", "CBB"),  # neighbours on two devices: the first of the list
        ("iie", "ABC", "CCC"),  # one after the other
        ("ieieie", "ABABAB", "BBBBBB"),
    ],
)
def test_they_follow_where_no_neighbour_computes(text, homes, end):
    assert chain(text, homes) == end


def test_a_region_moves_as_one_or_not_at_all():
    assert chain("eiie", "BAAB", refused=[(1, "B")]) == "BAAB"
    assert chain("eiie", "BAAC", refused=[(1, "B")]) == "BCCC"


def test_a_pinned_operation_stays_and_keeps_its_neighbours():
    assert chain("iie", "AAB", pinned=[0]) == "AAB"
    assert chain("ie", "AB", pinned=[0]) == "AB"


def test_constant_operations_are_nobodys_neighbours():
    assert chain("eie", "AAB", constant=[0]) == "ABB"


@given(st.data())
def test_moves_only_ever_join(data):
    count = data.draw(st.integers(1, 12))
    text = data.draw(st.text("ie", min_size=count, max_size=count))
    homes = list(data.draw(st.text("ABC", min_size=count, max_size=count)))
    places = st.integers(0, count - 1)
    edges = [(a, b) for a, b in data.draw(st.lists(st.tuples(places, places))) if a < b]
    refused = data.draw(st.sets(st.tuples(places, st.sampled_from("ABC")), max_size=8))
    graph = graph_of(text, edges)

    def crossings(where):
        return sum(where[a] != where[b] for a, b in set(edges))

    moved = follow(graph, homes, [True] * count, lambda *place: place not in refused, "ABC")
    after = [moved.get(op, home) for op, home in enumerate(homes)]
    assert all(text[op] == "i" and (op, device) not in refused for op, device in moved.items())
    assert crossings(after) <= crossings(homes) - bool(moved)
