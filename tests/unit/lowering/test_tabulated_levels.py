"""Functions of one quantized tensor become tables, and what is none stays as it is."""

import math

import numpy as np
import pytest
from onnx import parser

from partita.lowering import fuse_levels, lower_proto, reference_fold

SCALARS = """float s = {0.05}, float t = {0.02}, float half = {0.5}, float one = {1.0},
  float[1] row = {0.25}, uint8 z = {128}, int8 i = {3}, float v = {1.5}"""


def graph_of(steps, *, given="uint8[2,3,5] x", result="uint8[2,3,5] y", scalars=SCALARS):
    """The lowered graph of a model, given as text, before and after its levels are fused."""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 21, "com.microsoft" : 1]>
        g ({given}) => ({result}) <{scalars}> {{ {steps} }}"""
    )
    graphs = lower_proto(proto), lower_proto(proto)
    fuse_levels(graphs[1])
    return graphs


def computed(graph, *arrays):
    values = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        if node.kind == "partita::LevelTable":
            x, table = (values[value] for value in node.inputs)
            values[node.outputs[0]] = table.reshape(-1)[x.view(np.uint8)]
            continue
        reads = [None if value is None else values.get(value, value.const) for value in node.inputs]
        values[node.outputs[0]] = reference_fold(node, reads)[0]
    return [values[value] for value in graph.outputs]


GELU = """
  f = DequantizeLinear (x, s, z)      d = Div (f, v)
  dq = QuantizeLinear (d, s, z)       df = DequantizeLinear (dq, s, z)
  e = Erf (df)                        eq = QuantizeLinear (e, t, i)
  ef = DequantizeLinear (eq, t, i)
  a = Add (ef, one)                   aq = QuantizeLinear (a, t, z)
  af = DequantizeLinear (aq, t, z)    m = Mul (f, af)
  mq = QuantizeLinear (m, s, z)       mf = DequantizeLinear (mq, s, z)
  h = Mul (mf, half)                  y = QuantizeLinear (h, t, z)
"""

FUNCTIONS = {
    "a gelu, each step of which rounds": GELU,
    "a bound": "f = DequantizeLinear (x, s, z) c = Clip (f, half, v) y = QuantizeLinear (c, t, z)",
    "another scale": "f = DequantizeLinear (x, s, z) y = QuantizeLinear (f, t, z)",
    "a scalar that is quantized": """f = DequantizeLinear (x, s, z) o = DequantizeLinear (i, half)
      a = Mul (f, o) y = QuantizeLinear (a, t, z)""",
    "a row of one": """f = DequantizeLinear (x, s, z) a = Sub (row, f)
      y = QuantizeLinear (a, t, z)""",
    "levels of onnxruntime's operators": """
      a = com.microsoft.QLinearSigmoid (x, s, z, t, z)
      y = com.microsoft.QLinearMul (x, s, z, a, t, z, s, z)""",
}


@pytest.mark.parametrize("steps", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_levels_are_looked_up(steps):
    plain, fused = graph_of(steps + " q = Identity (y)", result="uint8[2,3,5] q")
    (table,) = (node for node in fused.nodes if node.kind == "partita::LevelTable")
    assert [node for node in fused.nodes if fused.inputs[0] in node.inputs] == [table]
    assert fused.nodes[-1].inputs == table.outputs
    if "microsoft" in steps:  # which REFERENCE's kernels do not compute
        assert {node.op_type for node in fused.nodes[:-2]} == {"QLinearSigmoid", "QLinearMul"}
        return
    x = np.random.default_rng(7).integers(0, 256, (2, 3, 5)).astype(np.uint8)
    np.testing.assert_array_equal(computed(fused, x)[0], computed(plain, x)[0])


def test_operations_that_are_not_computed_any_more_are_those_of_the_table():
    plain, fused = graph_of(GELU)
    (table,) = (node for node in fused.nodes if node.kind == "partita::LevelTable")
    assert {name for node in fused.nodes for name in node.origins} == set(table.origins)
    assert table.origins == tuple(node.name for node in plain.nodes)


def test_what_others_read_is_still_there():
    plain, fused = graph_of(
        """f = DequantizeLinear (x, s, z) a = Relu (f) q = QuantizeLinear (a, s, z)
        g = DequantizeLinear (q, s, z) b = Mul (g, half) y = QuantizeLinear (b, t, z)""",
        result="uint8[2,3,5] y, uint8[2,3,5] q, float[2,3,5] a",
    )
    assert [node.kind for node in fused.nodes].count("partita::LevelTable") == 2
    x = np.arange(30, dtype=np.uint8).reshape(2, 3, 5) * 8
    for found, due in zip(computed(fused, x), computed(plain, x), strict=True):
        np.testing.assert_array_equal(found, due)


def test_signed_levels_are_told_by_their_bytes():
    steps = "f = DequantizeLinear (x, s, i) a = Neg (f) y = QuantizeLinear (a, t, z)"
    plain, fused = graph_of(steps, given="int8[256] x", result="uint8[256] y")
    x = np.arange(-128, 128).astype(np.int8)
    np.testing.assert_array_equal(computed(fused, x)[0], computed(plain, x)[0])


OTHERS = {
    "two tensors": """f = DequantizeLinear (x, s, z) g = DequantizeLinear (w, s, z)
      a = Mul (f, g) y = QuantizeLinear (a, t, z)""",
    "a tensor of floats": """f = DequantizeLinear (x, s, z) a = Mul (f, u)
      y = QuantizeLinear (a, t, z)""",
    "a scale for each channel": """f = DequantizeLinear <axis=2> (x, n, m) a = Relu (f)
      y = QuantizeLinear (a, t, z)""",
    "a row of several": """f = DequantizeLinear (x, s, z) a = Mul (f, n)
      y = QuantizeLinear (a, t, z)""",
    "more dimensions": """f = DequantizeLinear (x, s, z) a = Mul (f, l)
      y = QuantizeLinear (a, t, z)""",
    "a sum over an axis": """f = DequantizeLinear (x, s, z) a = LogSoftmax (f)
      y = QuantizeLinear (a, t, z)""",
}
MORE = (
    SCALARS
    + """, float[5] n = {1, 2, 3, 4, 5}, uint8[5] m = {1, 2, 3, 4, 5},
  float[1,1,1,1] l = {2}"""
)


@pytest.mark.parametrize("steps", OTHERS.values(), ids=OTHERS)
def test_what_is_no_function_of_a_level_stays(steps):
    given = "uint8[2,3,5] x, uint8[2,3,5] w, float[2,3,5] u"
    plain, fused = graph_of(steps, given=given, result="uint8[a,b,c] y", scalars=MORE)
    assert [node.kind for node in fused.nodes] == [node.kind for node in plain.nodes]


def test_a_back_end_without_tables_keeps_its_graph():
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 21]>
      g (uint8[2,3,5] x) => (uint8[2,3,5] y) <{SCALARS}> {{ {FUNCTIONS["a bound"]} }}""")
    graph = lower_proto(proto)
    fuse_levels(graph, lambda node: node.op_type != "LevelTable")
    assert [node.kind for node in graph.nodes] == ["DequantizeLinear", "Clip", "QuantizeLinear"]
    assert [node.outputs[0].producer for node in graph.nodes] == graph.nodes


def test_long_chains_do_not_pile_up_calls():
    count = 3000
    steps = "f0 = DequantizeLinear (x, s, z)"
    steps += "".join(f" f{k + 1} = Neg (f{k})" for k in range(count))
    _, fused = graph_of(f"{steps} y = QuantizeLinear (f{count}, s, z)")
    assert math.isclose(len(fused.nodes), count + 3)
