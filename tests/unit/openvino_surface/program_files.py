"""The models that the programs read, and the running of these."""

from __future__ import annotations

import inspect
import types
from pathlib import Path

import numpy as np
from models import FLOAT, model_of, node, value, weight
from onnx import TensorProto

PROGRAMS = Path(__file__).parent / "programs"

_ADDER = """<?xml version="1.0"?>
<net name="adder" version="11"><layers>
<layer id="0" name="frame" type="Parameter" version="opset1">
<data shape="1,2" element_type="f32"/>
<output><port id="0" precision="FP32" names="frame"><dim>1</dim><dim>2</dim></port></output></layer>
<layer id="1" name="zero" type="Const" version="opset1">
<data element_type="f32" shape="1,2" offset="0" size="8"/>
<output><port id="0" precision="FP32"><dim>1</dim><dim>2</dim></port></output></layer>
<layer id="2" name="read" type="ReadValue" version="opset6">
<data variable_id="sum" variable_type="f32" variable_shape="1,2"/>
<input><port id="0" precision="FP32"><dim>1</dim><dim>2</dim></port></input>
<output><port id="1" precision="FP32"><dim>1</dim><dim>2</dim></port></output></layer>
<layer id="3" name="add" type="Add" version="opset1"><data auto_broadcast="numpy"/>
<input><port id="0" precision="FP32"><dim>1</dim><dim>2</dim></port>
<port id="1" precision="FP32"><dim>1</dim><dim>2</dim></port></input>
<output><port id="2" precision="FP32" names="total"><dim>1</dim><dim>2</dim></port></output></layer>
<layer id="4" name="assign" type="Assign" version="opset6">
<data variable_id="sum" variable_type="f32" variable_shape="1,2"/>
<input><port id="0" precision="FP32"><dim>1</dim><dim>2</dim></port></input></layer>
<layer id="5" name="result" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>1</dim><dim>2</dim></port></input></layer>
</layers><edges>
<edge from-layer="1" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="0" from-port="0" to-layer="3" to-port="0"/>
<edge from-layer="2" from-port="1" to-layer="3" to-port="1"/>
<edge from-layer="3" from-port="2" to-layer="4" to-port="0"/>
<edge from-layer="3" from-port="2" to-layer="5" to-port="0"/>
</edges></net>
"""


def write_models(folder):
    """Writes the models that programs read into a folder."""
    pixel = value("x", [1, 3, 2, 2])
    classifier = model_of(
        [
            node("GlobalAveragePool", ["x"], "averages", "pool"),
            node("Flatten", ["averages"], "flat", "flatten"),
            node("Div", ["flat", "ten"], "means", "scale"),
            node("Softmax", ["means"], "y", "softmax"),
        ],
        [pixel],
        [value("y", [1, 3])],
        [weight("ten", np.float32(10))],
    )
    pixels = model_of(
        [node("Sub", ["x", "half"], "d", "sub"), node("Relu", ["d"], "y", "relu")],
        [value("x", [1, 3, 2, 2])],
        [value("y", ["N", 3, "H", "W"])],
        [weight("half", np.float32(0.5))],
    )
    sums = model_of(
        [node("Add", ["a", "b"], "s", "add")],
        [value("a", [2, 3]), value("b", [2, 3])],
        [value("s", ["N", 3])],
    )
    negative = model_of(
        [node("Neg", ["x"], "y", "neg")], [value("x", ["N", 3])], [value("y", ["N", 3])]
    )
    ids = TensorProto.INT64
    words = model_of(
        [node("Add", ["ids", "mask"], "y", "add")],
        [value("ids", ["B", "L"], ids), value("mask", ["B", "L"], ids)],
        [value("y", ["B", "L"], ids)],
    )
    named = {"classifier": classifier, "pixels": pixels, "sums": sums}
    named |= {"negative": negative, "words": words}
    assert FLOAT == TensorProto.FLOAT
    for name, model in named.items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / "adder.xml").write_text(_ADDER, encoding="utf-8")
    (folder / "adder.bin").write_bytes(np.zeros(2, np.float32).tobytes())


def functions(package="partita"):
    """What the programs do, by name, each run on the API of a package."""
    found = {}
    for path in sorted(PROGRAMS.glob("*.py")):
        source = path.read_text(encoding="utf-8").replace("import partita", f"import {package}")
        module = types.ModuleType(path.stem)
        source = source.replace("from partita", f"from {package}")
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102  # our own
        for name, function in vars(module).items():
            taken = inspect.isfunction(function) and list(inspect.signature(function).parameters)
            if taken == ["files"]:
                found[f"{path.stem}.{name}"] = function
    return found
