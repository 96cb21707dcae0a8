"""A Loop that hands on what it gets has no result left, beside what passes over graphs look for."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita

SHAPE = [1, 8, 9, 9]


def _model() -> bytes:
    """A sum of convolutions and a depthwise pair, of an image that a Loop hands on."""
    rng = np.random.default_rng(0)

    def weights(name: str, *shape: int):
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    def port(name: str, kind: int = TensorProto.FLOAT, shape=SHAPE):
        return helper.make_tensor_value_info(name, kind, shape)

    inside = [port("i", TensorProto.INT64, []), port("c", TensorProto.BOOL, []), port("v")]
    outside = [port("again", TensorProto.BOOL, []), port("kept")]
    copies = [
        helper.make_node("Identity", *pair) for pair in ((["c"], ["again"]), (["v"], ["kept"]))
    ]
    body = helper.make_graph(copies, "body", inside, outside)
    nodes = [
        helper.make_node("Loop", ["times", "yes", "x"], ["l"], body=body),
        helper.make_node("Conv", ["l", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["l", "v1"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Conv", ["s", "d"], ["e"], group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["e", "p"], ["y"]),
    ]
    constants = [
        weights("w", 8, 8, 3, 3),
        weights("v1", 8, 8, 1, 1),
        weights("d", 8, 1, 3, 3),
        weights("p", 8, 8, 1, 1),
    ]
    given = [port("x"), port("times", TensorProto.INT64, []), port("yes", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", given, [port("y")], constants)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 1e-5), ("bf16", 3e-2)])
def test_they_are_passed_over(precision, tolerance) -> None:
    model = _model()
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    feeds = {"x": x, "times": np.array(3), "yes": np.array(True)}
    cpu = ["CPUExecutionProvider"]
    (wanted,) = onnxruntime.InferenceSession(model, providers=cpu).run(None, feeds)
    core = partita.Core()
    config = {"INFERENCE_PRECISION_HINT": precision}
    found = core.compile_model(core.read_model(model), "CPU", config)(feeds)["y"]
    assert np.max(np.abs(found - wanted)) <= tolerance * np.max(np.abs(wanted))
