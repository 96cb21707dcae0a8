"""Loop, Scan and sequences in device REFERENCE, where onnx.reference leaves parts out."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from judge import onnxruntime_results
from onnx import parser

import partita
from partita.errors import PartitaError


def both(text, feeds):
    """The outputs of REFERENCE and of onnxruntime."""
    model = parser.parse_model(text)
    ours = partita.Core().compile_model(model, "REFERENCE")(feeds).to_tuple()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return ours, session.run(None, feeds)


def agree(text, feeds):
    ours, theirs = both(text, feeds)
    assert len(ours) == len(theirs)
    for have, want in zip(ours, theirs, strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-6)


SCAN = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[3] s, float[3,{time}] x) => (float[3] t, float[3,n] y) {{
  t, y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
    scan_input_directions = [{forth}], scan_output_directions = [{back}],
    body = b (float[3] state, float[3] row) => (float[3] next, float[3] out) {{
      next = Add(state, row)
      out = Mul(next, next)
    }}> (s, x)
}}
"""


@pytest.mark.parametrize("forth", [0, 1])
@pytest.mark.parametrize("back", [0, 1])
def test_scan_takes_axes_and_directions(forth, back):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    agree(SCAN.format(time=4, forth=forth, back=back), {"s": np.ones(3, np.float32), "x": x})


def test_scan_over_nothing_has_an_empty_output():
    feeds = {"s": np.ones(3, np.float32), "x": np.zeros((3, 0), np.float32)}
    model = parser.parse_model(SCAN.format(time="t", forth=0, back=0))
    ours = partita.Core().compile_model(model, "REFERENCE")(feeds)  # onnxruntime divides by zero
    assert ours[1].shape == (3, 0)
    np.testing.assert_array_equal(ours[0], feeds["s"])


SIZES_LEFT_OPEN = """
<ir_version: 8, opset_import: ["" : 16]>
g (float[k] s, float[n, k] x) => (float[k] t, float[k, n] y, float[n] z) {
  t, y, z = Scan <
    num_scan_inputs = 1, scan_output_axes = [1, 0], scan_output_directions = [1, 0],
    body = b (float[k] state, float[k] row) => (float[k] next, float[k] out, float total) {
      next = Add(state, row)
      out = Mul(next, next)
      total = ReduceSum <keepdims = 0> (row)
    }> (s, x)
}
"""


@pytest.mark.parametrize("device", ["REFERENCE", "CPU"])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("steps", [0, 2])
def test_scans_over_nothing_have_the_sizes_that_the_body_makes(device, declared, steps):
    """The sizes that a model leaves open are those of what is scanned; axes as they are asked."""
    model = parser.parse_model(SIZES_LEFT_OPEN)
    if not declared:
        for value in model.graph.node[0].attribute[-1].g.output:
            value.type.tensor_type.ClearField("shape")
    feeds = {"s": np.ones(3, np.float32), "x": np.ones((steps, 3), np.float32)}
    t, y, z = partita.Core().compile_model(model, device)(feeds).to_tuple()
    np.testing.assert_array_equal(t, np.full(3, 1 + steps, np.float32))
    np.testing.assert_array_equal(y, [[9, 4][2 - steps :]] * 3 if steps else np.zeros((3, 0)))
    np.testing.assert_array_equal(z, np.full(steps, 3, np.float32))


LOOP = """
<ir_version: 8, opset_import: ["" : 16]>
g (int64 n, float[2] s) => (float[2] t, float[m] sums, float[m,2] rows) {
  keep = Constant <value = bool {1}> ()
  t, sums, rows = Loop (n, keep, s) <
    body = b (int64 i, bool c, float[2] state) => (bool d, float[2] next, float total, float[2] row)
    {
      d = Identity(c)
      next = Add(state, s)
      total = ReduceSum <keepdims = 0> (next)
      row = Neg(next)
    }>
}
"""


@pytest.mark.parametrize("count", [0, 1, 5])
def test_loop_stacks_scalars_and_rows(count):
    agree(LOOP, {"n": np.array(count), "s": np.array([1, 2], np.float32)})


ROWS_OF_ANY_SHAPE = """
<ir_version: 8, opset_import: ["" : 16]>
g (int64 n, int64[k] sizes, float[6] x) => (float[m,2,p] y) {
  y = Loop (n, "") <
    body = b (int64 i, bool c) => (bool d, float row) {
      d = Identity(c)
      row = Reshape(x, sizes)
    }>
}
"""


@pytest.mark.parametrize("device", ["REFERENCE", "CPU"])
@pytest.mark.parametrize("count", [0, 2])
def test_loops_without_iterations_have_the_sizes_that_outputs_declare(device, count):
    """Where the body tells not even their number; onnxruntime's result does not fit the model."""
    model = parser.parse_model(ROWS_OF_ANY_SHAPE)
    model.graph.node[0].attribute[0].g.output[1].type.tensor_type.ClearField("shape")
    feeds = {"n": np.array(count), "sizes": np.array([2, 3]), "x": np.arange(6, dtype=np.float32)}
    (y,) = partita.Core().compile_model(model, device)(feeds).to_tuple()
    (theirs,) = onnxruntime_results(model, feeds)
    assert theirs.shape == ((count, 2, 3) if count else (0,))
    rows = np.broadcast_to(feeds["x"].reshape(2, 3), (count, 2, 3))
    np.testing.assert_array_equal(y, rows if count else np.zeros((0, 2, 0)))


SEQUENCE_MAP = """
<ir_version: 9, opset_import: ["" : 19]>
g (float[N,2] x, float[N,2] w, float[2] b) => (float[M,2] y, float[K,2] z) {
  rows = Constant <value = int64 {2}> ()
  s = SplitToSequence (x, rows)
  t = SplitToSequence (w, rows)
  p, q = SequenceMap <body = body (float[n,2] e, float[n,2] f, float[2] g)
      => (float[n,2] c, float[n,2] d) {
    m = Mul (e, f)
    c = Add (m, b)
    d = Sub (e, g)
  }> (s, t, b)
  y = ConcatFromSequence <axis = 0> (p)
  z = ConcatFromSequence <axis = 0> (q)
}
"""


def test_bodies_of_sequences_read_the_graph_around_them():
    """Beside a further sequence and a tensor."""
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    agree(SEQUENCE_MAP, {"x": x, "w": x[::-1] - 3, "b": np.array([0.5, -7], np.float32)})


def test_sequences_of_different_lengths_are_not_mapped_together():
    feeds = {"x": np.ones((6, 2), np.float32), "w": np.ones((4, 2), np.float32)}
    feeds["b"] = np.zeros(2, np.float32)
    text = SEQUENCE_MAP.replace("float[N,2] w", "float[L,2] w")
    with pytest.raises(PartitaError, match="different lengths: \\[3, 2\\]"):
        partita.Core().compile_model(parser.parse_model(text), "REFERENCE")(feeds)


def test_the_map_of_an_empty_sequence_is_empty():
    text = """
        <ir_version: 9, opset_import: ["" : 19]>
        g (float[2] x) => (int64 n) {
          s = SequenceEmpty <dtype = 1> ()
          t = SequenceMap <body = body (float[2] e) => (c) { c = Mul (e, x) }> (s)
          n = SequenceLength (t)
        }
        """
    (n,) = (
        partita.Core()
        .compile_model(parser.parse_model(text), "REFERENCE")({"x": np.ones(2, np.float32)})
        .to_tuple()
    )
    assert n == 0


def test_scatter_of_old_opsets():
    agree(
        """
        <ir_version: 5, opset_import: ["" : 10]>
        g (float[1,5] x, int64[1,2] i, float[1,2] u) => (float[1,5] y) {
          y = Scatter <axis = 1> (x, i, u)
        }
        """,
        {
            "x": np.arange(5, dtype=np.float32).reshape(1, 5),
            "i": np.array([[1, 3]]),
            "u": np.array([[10, 20]], np.float32),
        },
    )


def test_functions_that_depend_on_types_are_taken():
    text = """
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[4] x) => (float[4] y) { y = Gelu (x) }
        """
    core = partita.Core()
    assert len(core.query_model(core.read_model(parser.parse_model(text)), "REFERENCE")) == 1
    agree(text, {"x": np.linspace(-2, 2, 4, dtype=np.float32)})
