"""Shapes in bodies of If, Loop and Scan: as exact as those of the main graph, and as doubtful."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser, reference

import partita

rng = np.random.default_rng(7)


def chosen(then, otherwise, inputs, opset, outputs="y", rest=""):
    """A model that returns what one of two bodies makes of the inputs."""
    return parser.parse_model(f"""<ir_version: 10, opset_import: ["" : {opset}]>
    g (bool c, {inputs}) => ({outputs}) {{
      y = If (c) <then_branch = t () => (a) {{ {then} }},
                  else_branch = e () => (b) {{ {otherwise} }}>
      {rest}
    }}""")


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
def test_attention_in_a_body_is_as_wide_as_the_values(device):
    heads = "q_num_heads=2, kv_num_heads=2"
    proto = chosen(
        f"a = Attention <{heads}> (q, k, v)",
        f"b = Attention <is_causal=1, {heads}> (q, k, v)",
        "float[B,S,D] q, float[B,T,D] k, float[B,T,E] v, float[12,3] w",
        23,
        "y, z",
        "z = MatMul (y, w)",
    )
    assert partita.Core().read_model(proto).outputs[0].shape == ("B", "S", None)
    feeds = {"c": np.array(True), "q": floats(2, 3, 8), "k": floats(2, 5, 8), "v": floats(2, 5, 12)}
    feeds["w"] = floats(12, 3)
    compiled = partita.Core().compile_model(proto, device)
    wanted = reference.ReferenceEvaluator(proto).run(None, feeds)
    for result, want in zip(compiled(feeds).values(), wanted, strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)


def test_scores_of_an_unknown_length_are_of_a_known_type_in_a_body():
    heads = "q_num_heads=2, kv_num_heads=2"
    proto = chosen(
        f"r, pk, pv, a = Attention <{heads}> (q, k, v)",
        f"s, qk, qv, b = Attention <is_causal=1, {heads}> (q, k, v)",
        "float16[B,S,D] q, float16[B,T,D] k, float16[B,T,E] v",
        23,
    )
    (port,) = partita.Core().read_model(proto).outputs
    assert port.dtype == np.float16
    assert port.shape == (None, None, None, None)


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
def test_pools_in_a_body_round_up_to_windows_that_exist(device):
    window = "ceil_mode=1, kernel_shape=[2,2], strides=[3,3], pads=[1,1,1,1]"
    inputs = "float[1,2,14,15] x"
    proto = chosen(f"a = MaxPool <{window}> (x)", f"b = LpPool <{window}> (x)", inputs, 18)
    assert partita.Core().read_model(proto).outputs[0].shape == (1, 2, 5, 6)
    x = floats(1, 2, 14, 15)
    compiled = partita.Core().compile_model(proto, device)
    assert compiled({"c": np.array(True), "x": x})["y"].shape == (1, 2, 5, 6)


def test_normalizations_in_a_body_are_known():
    proto = chosen(
        "u = GroupNormalization <num_groups=2> (x, s, s)\n a = Relu (u)",
        "v = MeanVarianceNormalization (x)\n b = Relu (v)",
        "float[B,8,H,W] x, float[8] s",
        21,
    )
    model = partita.Core().read_model(proto)
    found = [
        value
        for node in ir.traversal.RecursiveGraphIterator(model.ir.graph)
        for value in node.outputs
    ]
    assert len(found) == 5
    for value in found:
        assert (value.dtype, list(value.shape)) == (ir.DataType.FLOAT, ["B", 8, "H", "W"])


def test_products_of_packed_weights_in_two_bodies_are_known():
    """Values of two bodies may have one name, and differ in their widths."""
    weights = {
        "w8": np.zeros((8, 4, 8), np.uint8), "s8": np.ones(32, np.float32),
        "w6": np.zeros((6, 4, 8), np.uint8), "s6": np.ones(24, np.float32),
        "rows": np.zeros((6, 8), np.float32),
    }  # fmt: skip
    product = {"domain": "com.microsoft", "K": 64, "bits": 4, "block_size": 16}
    wide = [helper.make_node("MatMulNBits", ["x", "w8", "s8"], ["r"], N=8, **product)]
    narrow = [
        helper.make_node("MatMulNBits", ["x", "w6", "s6"], ["r"], N=6, **product),
        helper.make_node("MatMul", ["r", "rows"], ["q"]),
    ]
    bodies = [
        helper.make_graph(nodes, "body", [], [helper.make_empty_tensor_value_info(name)])
        for nodes, name in ((wide, "r"), (narrow, "q"))
    ]
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64]),
        ],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (port,) = partita.Core().read_model(proto).outputs
    assert (port.dtype, port.shape) == (np.float32, ("N", 8))


BRANCHES = "(float[1,4] {0}) <float[1,4] {1}> {{ {1} = Abs (x) {0} = Relu ({1}) }}"
STALE = {
    "If": f"""(bool c, float[B,4] x) => (y) {{
      y = If (c) <then_branch = t () => {BRANCHES.format("a", "u")},
                  else_branch = e () => {BRANCHES.format("b", "v")}> }}""",
    "Loop": """(int64 n, bool c, float[B,4] x) => (y, z) {
      y, z = Loop (n, c, x) <body = t (int64 i, bool go, float[1,4] s)
        => (bool on, float[1,4] next, float[1,4] each) {
          on = Identity (go) next = Abs (s) each = Relu (s) }> }""",
    "Scan": """(float[S,B,4] e, float[B,4] x) => (y, z) {
      y, z = Scan <num_scan_inputs=1, body = t (float[1,4] s, float[1,4] d)
        => (float[1,4] next, float[1,4] each) { next = Add (s, d) each = Abs (d) }> (x, e) }""",
}


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
@pytest.mark.parametrize("op_type", STALE)
def test_sizes_that_bodies_claim_are_doubted_where_inputs_vary(op_type, device):
    """They are those of the tensors with which somebody exported the model."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {STALE[op_type]}')
    x, e = floats(2, 4), floats(3, 2, 4)
    feeds = {"c": np.array(True), "n": np.array(2), "x": x, "e": e}
    wanted = {
        "If": [np.abs(x)],
        "Loop": [np.abs(x), np.stack([np.maximum(x, 0), np.abs(x)])],
        "Scan": [x + e.sum(0), np.abs(e)],
    }
    compiled = partita.Core().compile_model(proto, device)
    results = compiled({port.name: feeds[port.name] for port in proto.graph.input}).values()
    for result, want in zip(results, wanted[op_type], strict=True):
        assert result.shape == want.shape
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-6)
