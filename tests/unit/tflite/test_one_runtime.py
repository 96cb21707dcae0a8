"""ONE Runtime's environment variables place TFLite models."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tflite_files import File

import partita
from partita.errors import PropertyError
from partita.frontends.tflite.one_runtime import is_set, placement

META = "meta:partita.tflite.operator"


@pytest.mark.parametrize(
    ("environ", "device", "config"),
    [
        ({"BACKENDS": "acl_cl;cpu"}, "HETERO:GPU,CPU", {}),
        ({"BACKENDS": "REFERENCE;ruy;xnnpack"}, "HETERO:REFERENCE,CPU", {}),
        ({"BACKENDS": "cpu;gpu_cl", "OP_BACKEND_ALLOPS": "gpu_cl"}, "HETERO:GPU,CPU", {}),
        ({"OP_BACKEND_ALLOPS": "cpu"}, "HETERO:CPU", {}),
        ({"EXECUTOR": "Parallel"}, "HETERO:CPU", {"HETERO_EXECUTOR": "PARALLEL"}),
        (
            {"BACKENDS": "cpu", "OP_BACKEND_PReLU": "acl_cl"},
            "HETERO:CPU,GPU",
            {"HETERO_PINS": [f"{META}=PRELU=GPU"]},
        ),
        (
            {"OP_BACKEND_MAP": "10=acl_cl; 3=cpu"},
            "HETERO:CPU,GPU",
            {
                "HETERO_PINS": [
                    "meta:partita.tflite.index=10=GPU",
                    "meta:partita.tflite.index=3=CPU",
                ]
            },
        ),
    ],
)
def test_variables_become_a_device_and_pins(environ, device, config):
    assert is_set(environ)
    assert placement(environ) == (device, config)


def test_nothing_is_set_by_other_variables():
    assert not is_set({"PATH": "/bin", "BACKENDS": "", "OP_BACKEND_Conv2D": ""})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"OP_BACKEND_Conv": "cpu"},
            "'OP_BACKEND_Conv' names no operation that is known; .*Conv2D",
        ),
        ({"OP_BACKEND_MAP": "a=cpu"}, "'OP_BACKEND_MAP' holds 'a=cpu'; write PLACE=BACKEND"),
        ({"EXECUTOR": "Fast"}, "'EXECUTOR' is 'Fast'; Linear, Dataflow, Parallel are known"),
    ],
)
def test_what_is_not_known_is_refused(environ, message):
    with pytest.raises(PropertyError, match=message):
        placement(environ)


def test_a_model_runs_where_they_say(monkeypatch):
    file = File()
    x = file.main.input((3,), name="x")
    y = file.main.op("EXP", [x], [file.main.tensor((3,), name="y")])
    file.main.outputs(file.main.op("NEG", [y], [file.main.tensor((3,), name="z")]))
    for name, value in {"BACKENDS": "cpu;REFERENCE", "OP_BACKEND_MAP": "1=REFERENCE"}.items():
        monkeypatch.setenv(name, value)
    core = partita.Core()
    compiled = core.compile_model(file.bytes())
    told = compiled.explain()
    assert (told["y"].device, told["z"].device) == ("CPU", "REFERENCE")
    np.testing.assert_allclose(compiled({"x": np.zeros(3, np.float32)})["z"], -np.ones(3))
    assert core.compile_model(file.bytes(), "CPU").explain()["z"].device == "CPU"


def test_other_models_are_not_concerned(monkeypatch):
    monkeypatch.setenv("BACKENDS", "nobody")
    ports = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, [3])] for n in "xy"]
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", *ports)
    model: onnx.ModelProto = helper.make_model(graph, ir_version=10)
    assert partita.Core().compile_model(model).outputs[0].name == "y"
