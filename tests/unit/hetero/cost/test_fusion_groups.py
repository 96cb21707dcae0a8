"""Groups: what is fused stays together, and groups can always run in their order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from models import model_of, node, value, weight

from partita.frontends.reader import read_model
from partita_hetero.cost.fusion_groups import group
from partita_hetero.partition.op_graph import OpGraph


def groups(nodes, outputs=("y",), weights=(), kind=lambda op: 0, inputs=("x",)):
    op_graph = OpGraph.of(read_model(model_of(nodes, list(inputs), list(outputs), list(weights))))
    found = group(op_graph, kind)
    return [" ".join(op_graph.nodes[op].name for op in one.ops) for one in found]


def ops(*specs):
    """``"conv: x w -> a"`` and the like; the name decides the operator."""
    types = {"conv": "Conv", "mm": "MatMul", "act": "Relu", "sig": "Sigmoid", "add": "Add"}
    nodes = []
    for spec in specs:
        name, _, rest = spec.partition(": ")
        reads, _, output = rest.partition(" -> ")
        kind = types.get(name.rstrip("0123456789"), name.rstrip("0123456789"))
        nodes.append(node(kind, reads.split(), output, name))
    return nodes


W = [weight("w", np.ones((1, 1, 1, 1), np.float32))]


def test_activations_go_behind_the_convolution():
    chain = ops("conv1: x w -> a", "act1: a -> b", "conv2: b w -> c", "act2: c -> y")
    assert groups(chain, weights=W) == ["conv1 act1", "conv2 act2"]


def test_an_activation_of_several_operations():
    silu = ops("conv: x w -> a", "sig: a -> b", "Mul: a b -> y")
    assert groups(silu, weights=W) == ["conv sig Mul"]


def test_a_residual_joins_one_of_its_branches():
    block = ops("conv1: x w -> a", "conv2: x w -> b", "add: a b -> c", "act: c -> y")
    assert groups(block, weights=W) == ["conv1", "conv2 add act"]


def test_what_others_read_stays_an_end():
    shared = ops("conv: x w -> a", "act: a -> b", "conv2: a w -> c", "add: b c -> y")
    assert groups(shared, weights=W) == ["conv", "act conv2 add"]
    assert groups(ops("conv: x w -> a", "act: a -> y"), ("a", "y"), W) == ["conv", "act"]


def test_other_kinds_stay_apart():
    chain = ops("conv: x w -> a", "act1: a -> b", "act2: b -> y")
    assert groups(chain, weights=W, kind=lambda op: op == 1) == ["conv", "act1", "act2"]
    assert groups(chain, weights=W, kind=lambda op: op == 0) == ["conv", "act1 act2"]


def test_constants_and_unused_operations_are_in_none():
    nodes = ops("Exp: w -> e", "conv: x e -> y", "act: x -> unused")
    assert groups(nodes, weights=W) == ["conv"]


def test_a_constant_output_has_a_place():
    assert groups(ops("Exp: w -> e", "conv: x w -> y"), ("y", "e"), W) == ["Exp", "conv"]


@given(
    st.lists(
        st.tuples(st.booleans(), st.sets(st.integers(1, 6), max_size=3)), min_size=1, max_size=30
    )
)
def test_groups_can_run_in_order(spec):
    nodes = []
    for index, (heavy, back) in enumerate(spec):
        reads = sorted({f"v{index - b}" if index - b >= 0 else "x" for b in back}) or ["x"]
        nodes.append(node("Concat" if heavy else "Max", reads, f"v{index}", f"n{index}", axis=0))
        if not heavy:
            del nodes[-1].attribute[:]
    proto = model_of(nodes, [value("x", [2])], [f"v{len(spec) - 1}"])
    op_graph = OpGraph.of(read_model(proto))
    found = group(op_graph, lambda op: 0)
    home = {op: index for index, one in enumerate(found) for op in one.ops}
    assert sorted(home) == [op for op, live in enumerate(op_graph.live) if live]
    for op, sources in enumerate(op_graph.preds):
        if op in home:
            assert all(home[source] <= home[op] for source in sources)
    for one in found:
        assert sum(op_graph.nodes[op].op_type == "Concat" for op in one.ops) <= 1
        for op in one.ops[:-1]:
            assert all(succ in one.ops for succ in op_graph.succs[op] if succ in home)
