"""What folding may make, and what becomes of the rest."""

import numpy as np
import pytest
from onnx import parser
from test_lowering_specialize import EMITTERS, Emit, find, run

from partita.errors import CompileError
from partita.lowering import Graph, Node, Specializer, Target, Value, fold_constants, lower_proto
from partita.lowering.shapes.fold_allowance import (
    BYTES_PER_WEIGHT_BYTE,
    FLOOR_BYTES,
    FoldAllowance,
    TooMuchToFold,
    foldable,
)

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'
ROWS = "g (float[N] x) => (float[N] y) <float[1] w = {2}, int64[1] s = {40}>"


def graph_of(text):
    return lower_proto(parser.parse_model(HEAD + text))


def kinds(graph):
    return [node.op_type for node in graph.nodes]


def test_bytes_are_counted_down_and_never_below_nothing():
    allowance = FoldAllowance(10)
    allowance.take(6)
    with pytest.raises(TooMuchToFold):
        allowance.take(5)
    assert allowance.left == 4
    FoldAllowance().take(2**60)


def test_weights_allow_for_more_each_counted_once_in_bodies_too():
    weight = Value.constant(np.zeros(1000, np.float32))
    inner = Value.constant(np.zeros(7, np.int8))
    body = Graph([], [Value("z")], [Node("Neg", [inner], [Value("z")])])
    nodes = [Node("Add", [weight, weight, None], [Value("a")], {"body": body})]
    graph = Graph([], [], nodes)
    assert foldable(graph)[0] == FLOOR_BYTES + BYTES_PER_WEIGHT_BYTE * 4007
    assert Target(find).allowance(graph).left == foldable(graph)[0]


def test_a_target_keeps_what_the_first_graph_allows():
    """Weights that folding has made allow for no more of them."""
    target = Target(find)
    target.allowance(Graph([], [], []))
    weight = Value.constant(np.zeros(1000, np.float32))
    graph = Graph([], [], [Node("Relu", [weight], [Value("a")])])
    assert target.allowance(graph).left == FLOOR_BYTES


@pytest.mark.parametrize(
    ("allowed", "left"), [(159, ["Expand", "Relu"]), (160, ["Relu"]), (319, ["Relu"]), (320, [])]
)
def test_what_all_nodes_make_is_added_up(allowed, left):
    graph = graph_of(ROWS + "{ e = Expand(w, s) n = Relu(e) y = Add(x, n) }")
    fold_constants(graph, Target(find, fold_bytes=allowed))
    assert kinds(graph) == [*left, "Add"]


@pytest.mark.parametrize("allowed", [0, 170, 10_000])
def test_results_are_the_same_whatever_is_folded(allowed):
    text = ROWS + "{ e = Expand(w, s) n = Relu(e) y = Add(x, n) }"
    graph = graph_of(text)
    target = Target(find, fold_bytes=allowed)
    fold_constants(graph, target)
    maker = Specializer(graph, target)
    x = np.arange(40, dtype=np.float32)
    (y,) = run(maker, x)
    np.testing.assert_array_equal(y, x + 2)
    steps = [step.op.op_type for step in maker.program_for([x]).steps]
    assert steps == {0: ["Expand", "Relu", "Add"], 170: ["Relu", "Add"], 10_000: ["Add"]}[allowed]


def test_what_only_its_emitter_tells_is_given_back_when_it_is_too_much():
    """The first result would fit, the second does not: nothing counts as made."""
    made = []

    def twice(b, node, x):
        first = b.empty((10,), np.int8)
        made.append(b.folding)
        b.call_numpy(lambda y: y.fill(3), first)
        second = b.empty((91,), np.int8)
        b.call_numpy(lambda y: y.fill(4), second)
        return first, second

    graph = graph_of(
        "g (float[N] x) => (float[N] y, int8[M] b) <float[1] w = {2}> { a, b = Own(w) y = Relu(x)}"
    )
    target = Target(lambda node, operands: Emit(twice), fold_bytes=100)
    fold_constants(graph, target)
    assert kinds(graph) == ["Own", "Relu"]
    assert made == [True]
    target.fold_bytes = 101
    fold_constants(graph, target)
    assert kinds(graph) == ["Relu"]
    np.testing.assert_array_equal(graph.outputs[1].const, np.full(91, 4))


def test_an_emitter_is_not_asked_for_what_the_model_says_is_too_much():
    def never(b, node, *operands):
        raise AssertionError("it was emitted")

    graph = graph_of(
        "g (float[N] x) => (float[N] y) <float[1] w = {2}> { k = Own(w) y = Add(x, k) }"
    )
    graph.nodes[0].outputs[0].shape, graph.nodes[0].outputs[0].dtype = (50,), np.dtype(np.float64)
    fold_constants(graph, Target(lambda node, operands: Emit(never), fold_bytes=399))
    assert kinds(graph) == ["Own", "Add"]


NEEDED = "{ e = Expand(k, s) m = ReduceMax(e) c = Cast(m) y = Reshape(x, c) }"
NEEDS = "g (float[N] x) => (float[M] y) <float[1] k = {-1}, int64[1] s = {40}>" + NEEDED


@pytest.mark.parametrize("allow_split", [True, False])
def test_a_value_that_decides_a_shape_is_found_all_the_same(allow_split):
    """Who can split programs lets the run compute it; who cannot folds it after all."""
    graph = graph_of(NEEDS)
    target = Target(find, allow_split=allow_split, fold_bytes=100)
    fold_constants(graph, target)
    assert kinds(graph)[0] == "Expand"
    program = Specializer(graph, target).program_for([np.zeros(6, np.float32)])
    assert (program.rest is not None) == allow_split
    assert allow_split or program.outputs[0].shape == (6,)


def test_a_node_that_takes_constants_alone_gets_them():
    """Its emitter refuses what the run computes, or what folds otherwise than it emits."""

    def strict(b, node, x, z):
        if z.const is None:
            raise CompileError("input 1 must be a constant")
        return EMITTERS["Add"].emit(b, node, x, z)

    def found(node, operands):
        return Emit(strict) if node.op_type == "Add" else find(node, operands)

    graph = graph_of(ROWS + "{ e = Expand(w, s) y = Add(x, e) }")
    target = Target(found, fold_bytes=100)
    fold_constants(graph, target)
    assert kinds(graph) == ["Expand", "Add"]
    (y,) = run(Specializer(graph, target), np.ones(40, np.float32))
    np.testing.assert_array_equal(y, np.full(40, 3, np.float32))


@pytest.mark.parametrize(("bytes_allowed", "is_taken"), [(159, False), (160, True)])
def test_what_cannot_do_without_folding_may_fold_more_and_not_without_end(bytes_allowed, is_taken):
    """``e`` is of 160 bytes; no other number of bytes is enough for it."""

    def strict(b, node, x, z):
        if z.const is None:
            raise CompileError("input 1 must be a constant.")
        return EMITTERS["Add"].emit(b, node, x, z)

    def found(node, operands):
        return Emit(strict) if node.op_type == "Add" else find(node, operands)

    graph = graph_of(ROWS + "{ e = Expand(w, s) y = Add(x, e) }")
    target = Target(found, fold_bytes=100, must_fold_bytes=bytes_allowed)
    fold_constants(graph, target)
    x = np.ones(40, np.float32)
    if is_taken:
        np.testing.assert_array_equal(run(Specializer(graph, target), x)[0], np.full(40, 3.0))
        return
    told = r"input 1 must be a constant\. What the model computes of its constants would be more"
    with pytest.raises(CompileError, match=told):
        Specializer(graph, target).program_for([x])


def test_an_error_that_folding_does_not_mend_is_told():
    def broken(b, node, x, z):
        raise CompileError("no such sum")

    def found(node, operands):
        return Emit(broken) if node.op_type == "Add" else find(node, operands)

    graph = graph_of(ROWS + "{ e = Expand(w, s) y = Add(x, e) }")
    target = Target(found, fold_bytes=100)
    fold_constants(graph, target)
    with pytest.raises(CompileError, match="no such sum"):
        Specializer(graph, target).program_for([np.ones(40, np.float32)])
