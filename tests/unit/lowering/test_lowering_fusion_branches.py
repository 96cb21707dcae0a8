"""Branches of convolutions and normalizations: one convolution where that computes the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from sampling import examples
from test_lowering_fusion import check, evaluate, model_of, normal, run_ort

from partita.lowering import fuse, lower_proto

X = normal(2, 4, 7, 6)
NORM = {
    "s": np.abs(normal(4)) + 0.5,
    "o": normal(4),
    "m": normal(4),
    "v": np.abs(normal(4)) + 0.5,
}
WEIGHTS = {
    "d3": normal(4, 1, 3, 3), "e3": normal(4, 1, 3, 3), "d5": normal(4, 1, 5, 5),
    "d1": normal(4, 1, 1, 1), "w3": normal(4, 4, 3, 3), "w1": normal(4, 4, 1, 1),
    "v1": normal(4, 4, 1, 1), "b": normal(4), "g": normal(4, 1, 1), **NORM,
}  # fmt: skip
P1, P2 = "pads = [1, 1, 1, 1]", "pads = [2, 2, 2, 2]"


def model(chain, **more):
    given = {name: array for name, array in (WEIGHTS | more).items() if name in chain}
    return model_of(f"branches (float[2, 4, 7, 6] x) => (float[2, 4, H, W] y) {{ {chain} }}", given)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (f"a = Conv <{P1}> (x, w3, b) c = Conv(x, w1) y = Add(a, c)", "Conv"),
        (f"a = Conv <{P1}> (x, w3) c = Conv(x, w1, b) z = Add(a, c) y = Relu(z)", "partita::Conv"),
        (f"a = Conv <group = 4, {P1}> (x, d3, b) c = Conv <group = 4, {P2}> (x, d5) "
         "f = Conv <group = 4> (x, d1) n = BatchNormalization(x, s, o, m, v) "
         "p = Add(a, c) q = Add(p, f) y = Add(q, n)", "Conv"),
        (f"a = Conv <group = 4, {P1}> (x, d3, b) k = Mul(a, g) y = Add(x, k)", "Conv"),
        (f"a = Conv <group = 4, {P1}> (x, d3) n = BatchNormalization(x, s, o, m, v) "
         "p = Add(a, n) q = Sub(p, n) k = Mul(g, q) h = Add(k, g) y = Sub(x, h)", "Conv"),
        ("a = Conv(x, w1) c = Conv(x, v1) y = Sub(a, c)", "Conv"),
    ],
)  # fmt: skip
def test_branches_become_one_convolution(chain, expected):
    graph = check(model(chain), expected, x=X)
    names = {name for node in graph.nodes for name in node.origins}
    assert len(names) == chain.count("(") - chain.count("BatchNormalization(x)")


def test_a_normalization_that_others_read_stays_beside():
    chain = (
        f"n = BatchNormalization(x, s, o, m, v) a = Conv <{P1}> (x, w3) p = Add(a, n) "
        "r = Relu(p) t = Sigmoid(n) y = Add(r, t)"
    )
    check(model(chain), "BatchNormalization partita::Conv Sigmoid Add", x=X)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        # A dense and a depthwise convolution: their sum would be dense.
        (f"a = Conv <group = 4, {P1}> (x, d3) c = Conv(x, w1) y = Add(a, c)", "Conv partita::Conv"),
        # Of other images.
        ("r = Relu(x) a = Conv(r, w1) c = Conv(x, v1) y = Add(a, c)", "Relu Conv partita::Conv"),
        # Somebody else reads one of them.
        ("a = Conv(x, w1) c = Conv(x, v1) z = Add(a, c) y = Mul(z, a)", "Conv partita::Conv Mul"),
        # Padding that depends on the size.
        ('a = Conv <auto_pad = "SAME_UPPER"> (x, w3) c = Conv(x, w1) y = Add(a, c)',
         "Conv partita::Conv"),
        # Images of other sizes, broadcast.
        ("a = Conv <strides = [7, 6]> (x, w1) c = Conv(x, v1) y = Add(a, c)", "Conv Conv Add"),
        # A factor that varies within the image.
        (f"a = Conv <{P1}> (x, w3) k = Mul(a, f) y = Add(x, k)", "Conv Mul Add"),
        # Several channels of one: the image is repeated.
        (f"z = ReduceMax <axes = [1]> (x) a = Conv <{P1}> (z, d3) c = Add(a, z) y = Relu(c)",
         "ReduceMax Conv Add Relu"),
    ],
)  # fmt: skip
def test_what_stays_a_sum(chain, expected):
    opset = {"opset": 13} if "axes" in chain else {}
    weights = WEIGHTS | {"f": normal(1, 6)}
    given = {name: array for name, array in weights.items() if name in chain}
    text = f"branches (float[2, 4, 7, 6] x) => (float[2, 4, H, W] y) {{ {chain} }}"
    check(model_of(text, given, **opset), expected, x=X)


def test_a_sum_that_doubles_at_each_step_takes_no_time():
    chain = "a0 = Conv(x, w1) " + " ".join(f"a{n + 1} = Add(a{n}, a{n})" for n in range(60))
    proto = model(f"{chain} y = Mul(a60, q)", q=np.float32(2.0**-60))
    graph = lower_proto(proto)
    fuse(graph)
    (found,), (want,) = evaluate(graph, {"x": X}), run_ort(proto, {"x": X})
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@st.composite
def branches(draw):
    """An input's shape, and nodes that are added up, with their weights."""
    rank, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 4]))
    strides = [draw(st.integers(1, 2))] * rank
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    shape = (2, 4, *(draw(st.integers(5, 9)) for _ in range(rank)))
    nodes, weights = [], dict(NORM)
    for i in range(draw(st.integers(2, 4))):
        kind = draw(st.sampled_from(["Conv", "Conv", "Conv", "BatchNormalization", "x"]))
        name = f"a{i}"
        if kind == "BatchNormalization":
            nodes.append(helper.make_node(kind, ["x", "s", "o", "m", "v"], [name], name=name))
        elif kind == "x":
            nodes.append(helper.make_node("Mul", ["x", "two"], [name], name=name))
            weights["two"] = np.float32(2)
        else:
            kernel = [draw(st.sampled_from([1, 2, 3, 5])) for _ in range(rank)]
            more = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
            begin = [draw(st.integers(0, n)) for n in more]
            end = [n - b for n, b in zip(more, begin, strict=True)]
            weights[f"w{i}"], weights[f"b{i}"] = normal(4, 4 // groups, *kernel), normal(4)
            attrs = {"group": groups, "dilations": dilations, "strides": strides}
            inputs = ["x", f"w{i}", f"b{i}"]
            pads = [*begin, *end]
            nodes.append(helper.make_node("Conv", inputs, [name], name=name, pads=pads, **attrs))
    if strides[0] > 1:
        nodes = [node for node in nodes if node.op_type == "Conv"]
    total = "x" if strides[0] == 1 and draw(st.booleans()) else nodes[0].output[0] if nodes else "x"
    for i, node in enumerate(list(nodes)):
        if node.output[0] == total:
            continue
        kind = draw(st.sampled_from(["Add", "Sub"]))
        pair = [total, node.output[0]][:: draw(st.sampled_from([1, -1]))]
        nodes.append(helper.make_node(kind, pair, [f"t{i}"], name=f"t{i}"))
        total = f"t{i}"
    nodes.append(helper.make_node("Relu", [total], ["y"], name="last"))
    return shape, nodes, weights


@examples(150)
@given(branches())
def test_random_branches(drawn):
    shape, nodes, weights = drawn
    proto = helper.make_model(
        helper.make_graph(
            nodes,
            "branches",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    graph = lower_proto(proto)
    fuse(graph)
    (found,), (want,) = evaluate(graph, {"x": x}), run_ort(proto, {"x": x})
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
