"""Ranks that onnx's inference does not tell, against files that claim others."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

import partita

RNG = np.random.default_rng(4)


def model_of(text, opset):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


FALSE = {
    "sizes that are computed": (
        """g (float[a, b, 6] x) => (float[1, claimed] y) {
            s = Shape(x)
            one = Constant <value_ints = [1]> ()
            two = Constant <value_ints = [2]> ()
            six = Constant <value_ints = [6]> ()
            a = Gather <axis = 0> (s, one)
            all = Concat <axis = 0> (six, a, two, one)
            t = Reshape(x, all)
            y = Relu(t)
        }""",
        (2, 5, 6),
    ),
    "axes that come with the run": (
        "g (float[a, b] x, int64[2] axes) => (float[a, claimed] y) { y = Unsqueeze(x, axes) }",
        (2, 5),
    ),
    "axes that are summed over": (
        "g (float[a, b, c] x, int64[1] axes) => (float[claimed] y) { y = ReduceSum(x, axes) }",
        (2, 5, 3),
    ),
    "a row of which the length follows from another": (
        """g (float[a, b] x) => (float[1, claimed] y) {
            one = Constant <value_ints = [1]> ()
            s = Shape(x)
            wider = Concat <axis = 0> (one, s)
            t = Reshape(x, wider)
            s3 = Shape(t)
            widest = Concat <axis = 0> (one, s3)
            y = Reshape(t, widest)
        }""",
        (2, 5),
    ),
}


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
@pytest.mark.parametrize("case", FALSE)
def test_a_false_claim_of_a_rank_is_not_believed(case, device):
    text, shape = FALSE[case]
    model = model_of(text, 13)
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
    if "axes" in text:
        feeds["axes"] = np.array([0, 2] if "int64[2]" in text else [1])
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    compiled = partita.Core().compile_model(model, device)
    assert len(compiled.outputs[0].shape) == wanted.ndim
    np.testing.assert_array_equal(compiled(feeds)["y"], wanted)


def test_a_claim_that_fits_is_kept():
    text, _ = FALSE["axes that come with the run"]
    model = partita.Core().read_model(model_of(text.replace("[a, claimed]", "[1, a, 1, b]"), 13))
    assert model.outputs[0].shape == (1, "a", 1, "b")


def test_sizes_that_are_no_rank_are_none():
    model = model_of("g (float[6] x, int64[999999999] s) => (float[n] y) { y = Reshape(x, s) }", 13)
    assert partita.Core().read_model(model).outputs[0].shape == ("n",)


def test_sizes_that_are_computed_tell_shapes_in_bodies_too():
    """Before opset 14 onnx's inference says nothing of such a Reshape."""
    text = """g (float[a, 6] x, bool c) => (float[p, q, r] y, z) {
        s = Shape(x)
        at = Constant <value_ints = [0]> ()
        rest = Constant <value_ints = [2, 3]> ()
        first = Gather(s, at)
        all = Concat <axis = 0> (first, rest)
        y = Reshape(x, all)
        z = If (c) <
            then_branch = t () => (t0) { t0 = Reshape(x, all) },
            else_branch = e () => (e0) { e0 = Abs(y) }
        >
    }"""
    model = partita.Core().read_model(model_of(text, 13))
    assert [port.shape for port in model.outputs] == [("a", 2, 3), ("a", 2, 3)]
