"""Tensors of int8 become uint8 where results stay what they are, and nowhere else."""

import numpy as np
import pytest
from onnx import parser

from partita.lowering import lower_proto, reference_fold
from partita.lowering.fusion.quantized.unsigned import make_unsigned

SCALARS = """float s = {0.05}, float t = {0.02}, int8 z = {3}, int8 n = {0}, int8 w = {-7},
  float[3] row = {0.5, 0.25, 0.1}, int8[3] zeros = {-3, 0, 9}, int64[2] sizes = {2, 15},
  int8[5,4] m = {9, -1, 2, 3, -4, 5, -6, 7, 8, -9, 1, 1, 2, -2, 3, -3, 4, -4, 5, -5}"""


def graph_of(steps, result="float[2,3,5] y"):
    """The lowered graph of a model, given as text, before and after levels are moved."""
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[2,3,5] x, int8[2,3,5] given) => ({result}) <{SCALARS}> {{ {steps} }}"""
    )
    graphs = lower_proto(proto), lower_proto(proto)
    for value in (v for graph in graphs for node in graph.nodes for v in node.outputs):
        if value is not None and value.name.startswith("q"):
            value.dtype = np.dtype(np.int8)
    make_unsigned(graphs[1])
    return graphs


def computed(graph, *arrays):
    values = dict(zip(graph.inputs, arrays, strict=True))
    for node in graph.nodes:
        reads = [None if value is None else values.get(value, value.const) for value in node.inputs]
        for value, array in zip(node.outputs, reference_fold(node, reads), strict=True):
            values[value] = array
            assert value is None or value.dtype in (None, array.dtype)
    return [values[value] for value in graph.outputs]


MOVED = {
    "quantized and dequantized": "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
    "without a zero point": "q = QuantizeLinear (x, s, n) y = DequantizeLinear (q, s)",
    "of channels": """q = QuantizeLinear <axis=1> (x, row, zeros)
      y = DequantizeLinear <axis=1> (q, row, zeros)""",
    "of channels, without": """q = QuantizeLinear <axis=1> (x, row, zeros)
      y = DequantizeLinear <axis=1> (q, row)""",
    "shared zero points": """q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
      e = DequantizeLinear (given, s, z) y = Add (d, e)""",
    "moved": """q = QuantizeLinear (x, s, z) q1 = Reshape (q, sizes)
      q2 = Transpose <perm = [1, 0]> (q1) q3 = Concat <axis = 0> (q2, q2)
      q4, q5 = Split <axis = 0, num_outputs = 2> (q3) y = DequantizeLinear (q5, s, z)""",
    "multiplied": """q = QuantizeLinear (x, s, z)
      q1 = QLinearMatMul (q, s, z, m, t, w, s, n) y = DequantizeLinear (q1, s, n)""",
    "multiplied to int32": """q = QuantizeLinear (x, s, z)
      c = MatMulInteger (q, m, z) y = Cast <to = 1> (c)""",
}


@pytest.mark.parametrize("steps", MOVED.values(), ids=MOVED)
def test_levels_are_moved(steps):
    plain, moved = graph_of(steps)
    made = {value for node in moved.nodes for value in node.outputs} - {None}
    assert np.dtype(np.int8) not in {value.dtype for value in made}
    rng = np.random.default_rng(5)
    given = rng.integers(-128, 128, (2, 3, 5)).astype(np.int8)
    x = (rng.standard_normal((2, 3, 5)) * 5).astype(np.float32)
    for found, due in zip(computed(moved, x, given), computed(plain, x, given), strict=True):
        np.testing.assert_array_equal(found, due)


@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_all_that_an_operator_takes_is_moved_together(kind):
    _, graph = graph_of(
        f"""q = QuantizeLinear (x, s, z) q1 = QuantizeLinear (x, t, w)
        q2 = com.microsoft.{kind} (q, s, z, q1, t, w, s, n) y = DequantizeLinear (q2, s, n)"""
    )
    operation = next(node for node in graph.nodes if node.op_type == kind)
    assert {operation.inputs[place].dtype for place in (0, 3)} == {np.dtype(np.uint8)}
    assert [operation.inputs[place].const.item() for place in (2, 5, 7)] == [131, 121, 128]
    assert {operation.inputs[place].const.dtype for place in (2, 5, 7)} == {np.dtype(np.uint8)}


STAYING = {
    "an output": "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
    "read by what is no quantized operator": """q0 = QuantizeLinear (x, s, z)
      y = DequantizeLinear (q0, s, z) q1 = Neg (q0) q = Abs (q1)""",
    "added to an input": """q0 = QuantizeLinear (x, s, z)
      q1 = com.microsoft.QLinearAdd (q0, s, z, given, s, z, s, z)
      q = Identity (q1) y = DequantizeLinear (q1, s, z)""",
    "a zero point that the run brings": """q0 = QuantizeLinear (x, s, z)
      zero = Neg (z) y = DequantizeLinear (q0, s, zero) q = Identity (given)""",
    "summed up to an output": """q0 = QuantizeLinear (x, s, z) d = DequantizeLinear (q0, s, z)
      r = Relu (d) a = Add (r, d) q = QuantizeLinear (a, s, n) y = DequantizeLinear (q0, s, z)""",
    "the right side of a product": """q0 = QuantizeLinear (x, s, z)
      q1 = Transpose <perm = [0, 2, 1]> (q0)
      q2 = Transpose <perm = [0, 2, 1]> (q1)
      y = MatMulInteger (given, q1) q = Identity (given)""",
}


@pytest.mark.parametrize("steps", STAYING.values(), ids=STAYING)
def test_what_others_could_tell_stays(steps):
    plain, graph = graph_of(steps, "float[2,3,5] y, int8[2,3,5] q")
    types = [[value.dtype for node in g.nodes for value in node.outputs] for g in (plain, graph)]
    assert types[0] == types[1]
    assert np.dtype(np.uint8) not in types[1]
