"""Recurrent operators of the judge, with the attributes that the evaluator leaves out."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita

STEPS, BATCH, TERMS, HIDDEN = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def model_of(op_type, attributes, lengths=None, opset=14):
    """The operator with bias, lengths and initial states; and its feeds."""
    rng = np.random.default_rng(3)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = GATES[op_type] * HIDDEN
    shapes = {
        "x": (STEPS, BATCH, TERMS),
        "w": (directions, rows, TERMS),
        "r": (directions, rows, HIDDEN),
        "b": (directions, 2 * rows),
        "h": (directions, BATCH, HIDDEN),
    }
    if op_type == "LSTM":
        shapes |= {"c": (directions, BATCH, HIDDEN), "p": (directions, 3 * HIDDEN)}
    if attributes.get("layout"):
        shapes = {n: s if n in "wrbp" else (s[1], s[0], *s[2:]) for n, s in shapes.items()}
    feeds = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    names = ["x", "w", "r", "b", "", *list(feeds)[4:]]
    if lengths is not None:
        feeds["n"], names[4] = np.array(lengths, np.int32), "n"
    outputs = ["y", "last", "cell"][: 3 if op_type == "LSTM" else 2]
    node = helper.make_node(op_type, names, outputs, hidden_size=HIDDEN, **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "recurrent", inputs, results)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


CASES = [
    ("LSTM", {"clip": 0.4}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"activations": ["HardSigmoid", "Softsign", "Relu"]}),
    ("LSTM", {"direction": "bidirectional", "clip": 0.7, "activations": ["Sigmoid"] * 6}),
    ("GRU", {"clip": 0.3}),
    ("GRU", {"linear_before_reset": 1, "activations": ["Sigmoid", "Softplus"]}),
    ("GRU", {"direction": "reverse"}),
    ("RNN", {"clip": 0.3}),
    ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
    (
        "RNN",
        {
            "direction": "bidirectional",
            "activations": ["Affine", "ScaledTanh"],
            "activation_alpha": [0.5, 1.5],
            "activation_beta": [0.1, 0.7],
        },
    ),
]


@pytest.mark.parametrize(("op_type", "attributes"), CASES)
@pytest.mark.parametrize("lengths", [None, [5, 2, 4]])
def test_recurrent_as_onnxruntime(op_type, attributes, lengths):
    proto, feeds = model_of(op_type, attributes, lengths)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    found = partita.Core().compile_model(proto, "REFERENCE")(feeds)
    for got, want in zip(found.to_tuple(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("op_type", list(GATES))
def test_layout_only_moves_dimensions(op_type):
    usual, feeds = model_of(op_type, {}, [5, 2, 4])
    moved, _ = model_of(op_type, {"layout": 1}, [5, 2, 4])
    want = partita.Core().compile_model(usual, "REFERENCE")(feeds).to_tuple()
    swapped = {n: a.swapaxes(0, 1) if n in ("x", "h", "c") else a for n, a in feeds.items()}
    got = partita.Core().compile_model(moved, "REFERENCE")(swapped).to_tuple()
    np.testing.assert_array_equal(got[0], want[0].transpose(2, 0, 1, 3))
    for one, other in zip(got[1:], want[1:], strict=True):
        np.testing.assert_array_equal(one, other.swapaxes(0, 1))


def test_hundredth_is_a_float32():
    x = np.full((1, 1, 1), -1.0)
    one = np.ones((1, 1, 1))
    graph = helper.make_graph(
        [helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=1, activations=["LeakyRelu"])],
        "one",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, (1, 1, 1)) for n in "xwr"],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    for device in ("REFERENCE", "CPU"):
        found = partita.Core().compile_model(proto, device)({"x": x, "w": one, "r": one})[0]
        assert found.item() == -float(np.float32(0.01))
