"""States that no iteration changes: which are read in place, and what is left of the loop."""

import pytest
from onnx import parser
from onnx.shape_inference import infer_shapes

from partita.lowering import lower_proto
from partita.lowering.loop_states import release_states

LOOP = """<ir_version: 9, opset_import: ["" : 17]>
g (int64 n, float[2] x, float[2] w) => (float[2] y) {{
    {outs} = Loop (n, , x, w) <body = b (int64 i, bool c, float[2] s, float[2] u) =>
        (bool d, float[2] t, float[2] v) {{ d = Identity(c)  {body} }}>
    {end}
}}"""


def released(outs="a, z", body="", end="y = Sub(a, z)"):
    graph = lower_proto(
        infer_shapes(parser.parse_model(LOOP.format(outs=outs, body=body, end=end)))
    )
    release_states(graph)
    (loop,) = (node for node in graph.nodes if node.op_type == "Loop")
    return graph, loop, loop.attrs["body"]


def names(values):
    return [None if value is None else value.name for value in values]


def test_what_every_iteration_hands_on_is_read_where_it_lies():
    graph, loop, body = released(body="t = Mul(s, u)  h = Identity(u)  v = Identity(h)")
    assert names(loop.inputs) == ["n", None, "x"]
    assert names(loop.outputs) == ["a"]
    assert names(body.inputs) == ["i", "c", "s"]
    assert names(body.outputs) == ["d", "t"]
    (product,) = (node for node in body.nodes if node.op_type == "Mul")
    assert product.inputs[1] is graph.inputs[2]
    after = graph.nodes[graph.nodes.index(loop) + 1]
    assert after.op_type == "Identity"
    assert (after.inputs, names(after.outputs)) == ([graph.inputs[2]], ["z"])
    assert after.outputs[0].producer is after


@pytest.mark.parametrize(
    "body",
    [
        "t = Neg(s)  v = Neg(u)",
        "t = Identity(u)  v = Identity(s)",
        "t = Identity(u)  v = Neg(u)",
    ],
    ids=["both change", "exchanged", "one follows the other"],
)
def test_what_changes_stays_a_state(body):
    _, loop, inner = released(body=body)
    assert len(loop.inputs) == 4
    assert names(inner.inputs) == ["i", "c", "s", "u"]


def test_what_an_inner_loop_hands_on_is_no_state_of_the_outer_one_either():
    nested = """t, v = Loop (n, , s, u) <body = k (int64 j, bool e, float[2] p, float[2] q) =>
        (bool f, float[2] r, float[2] o) { f = Identity(e)  r = Add(p, q)  o = Identity(q) }>"""
    graph, loop, body = released(body=nested)
    (inner,) = (node for node in body.nodes if node.op_type == "Loop")
    assert (names(loop.inputs), names(inner.inputs)) == (["n", None, "x"], ["n", None, "s"])
    (add,) = (node for node in inner.attrs["body"].nodes if node.op_type == "Add")
    assert add.inputs[1] is graph.inputs[2]


def kinds(nodes):
    return [node.op_type for node in nodes if node.op_type != "Identity"]


def test_what_is_the_same_in_each_iteration_is_computed_before():
    body = """v = Identity(u)  h = Tanh(u)  p = Mul(h, w)  q = Add(s, p)  k = Neg(w)
        t = Sub(q, k)"""
    graph, loop, inner = released(body=body)
    before = graph.nodes[: graph.nodes.index(loop)]
    assert kinds(before) == ["Tanh", "Mul", "Neg"]
    assert kinds(inner.nodes) == ["Add", "Sub"]
    assert names(inner.captures()) == ["p", "k"]


def test_what_is_the_same_in_loops_of_loops_goes_all_the_way_out():
    nested = """v = Identity(u)
        t = Loop (n, , s) <body = k (int64 j, bool e, float[2] p) => (bool f, float[2] r) {
            f = Identity(e)  a = Neg(w)  b = Exp(s)  c = Add(a, b)  r = Add(p, c) }>"""
    graph, loop, body = released(body=nested)
    assert kinds(graph.nodes[: graph.nodes.index(loop)]) == ["Neg"]
    (inner,) = (node for node in body.nodes if node.op_type == "Loop")
    assert kinds(body.nodes[: body.nodes.index(inner)]) == ["Exp", "Add"]


@pytest.mark.parametrize(
    "node",
    [
        "h = Div(u, w)",
        "h = RandomNormalLike(u)",
        "h = Gather(u, n)",
        "h = MatMul(u, w)",
        "h = Add(u, wide)",
        "h = Neg(s)",
    ],
)
def test_what_could_fail_or_differ_stays_where_it_is(node):
    """A loop of no iteration does not compute it."""
    text = LOOP.format(
        outs="a, z", body=f"v = Identity(u)  {node}  t = Add(s, h)", end="y = Neg(a)"
    )
    text = text.replace("float[2] w)", "float[2] w, float[M] wide)")
    graph = lower_proto(infer_shapes(parser.parse_model(text)))
    release_states(graph)
    assert kinds(graph.nodes)[0] == "Loop"


def test_a_scan_keeps_what_it_walks():
    graph = lower_proto(
        parser.parse_model(
            """<ir_version: 9, opset_import: ["" : 17]>
            g (float[2] w, float[2] x, float[N, 2] z) => (float[2] v, float[2] y, float[N, 2] m) {
                v, y, m = Scan <num_scan_inputs = 1, body = b (float[2] u, float[2] s, float[2] e)
                    => (float[2] v2, float[2] t, float[2] o)
                    { v2 = Identity(u)  p = Mul(s, u)  t = Add(p, e)  o = Neg(t) }> (w, x, z)
            }"""
        )
    )
    release_states(graph)
    *_, scan, link = graph.nodes
    assert names(scan.inputs) == ["x", "z"]
    assert names(scan.outputs) == ["y", "m"]
    assert names(scan.attrs["body"].inputs) == ["s", "e"]
    assert names(scan.attrs["body"].outputs) == ["t", "o"]
    assert (link.op_type, names(link.inputs), names(link.outputs)) == ("Identity", ["w"], ["v"])
