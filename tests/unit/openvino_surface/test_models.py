"""Models and ports answer as OpenVINO's do, and can be changed as these."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from models import add_sub, affine, neg, value

import partita as ov
from partita.errors import InputError, ModelError, ModelFormatError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def core():
    return ov.Core()


def test_ports(core):
    model = core.read_model(affine())
    port = model.input("x")
    assert (port.get_any_name(), port.get_names(), port.names) == ("x", {"x"}, {"x"})
    assert str(port.partial_shape) == "[N,4]"
    assert port.partial_shape.is_dynamic
    assert (port.get_index(), port.get_tensor().get_names()) == (0, {"x"})
    with pytest.raises(ModelError, match=r"Shape \[N,4\] has dimensions without a size"):
        port.get_shape()
    fixed = core.read_model(neg()).output()
    assert fixed.get_shape() == [2, 3]
    assert isinstance(fixed.get_shape(), ov.Shape)


def test_ends_are_nodes(core):
    model = core.read_model(affine())
    (parameter,), (result,) = model.get_parameters(), model.get_results()
    assert (parameter.get_type_name(), parameter.get_friendly_name()) == ("Parameter", "x")
    assert (result.get_type_name(), result.name) == ("Result", "y")
    assert parameter.get_element_type() == parameter.element_type == ov.Type.f32
    assert parameter.get_partial_shape() == parameter.partial_shape == ["N", 4]
    assert parameter.output(0) == model.input() == parameter.outputs()[0]
    assert model.input().get_node() == model.input().node == parameter
    assert (model.get_parameter_index(parameter), model.get_result_index(result)) == (0, 0)
    assert model.get_parameter_index(core.read_model(add_sub()).parameters[1]) == -1
    assert model.get_result() == model.result == model.get_output_op(0) == result
    assert repr(parameter) == "<Parameter 'x' float32[N, 4]>"
    assert len({parameter, model.parameters[0]}) == 1
    assert core.read_model(neg()).results[0].shape == [2, 3]
    assert parameter.get_output_size() == 1
    assert parameter.get_output_element_type(0) is ov.Type.f32
    with pytest.raises(ModelError, match="there is no output 1"):
        parameter.output(1)
    with pytest.raises(ModelError, match="has 2 outputs; name one"):
        core.read_model(add_sub()).get_result()


def test_operations(core):
    model = core.read_model(affine())
    product, biased, _ = model.get_ordered_ops()
    assert (product.get_name(), product.get_type_name()) == ("matmul", "MatMul")
    assert (product.get_input_size(), product.get_output_size()) == (2, 1)
    assert product.get_input_shape(1) == [4, 3]
    assert product.get_input_element_type(0) is product.get_output_element_type(0) is ov.Type.f32
    assert product.get_output_partial_shape(0) == ["N", 3]
    assert biased.input_value(0).get_any_name() == product.output(0).get_any_name() == "product"
    with pytest.raises(ModelError, match="has 2 inputs; there is no input 2"):
        product.input_value(2)
    product.set_friendly_name("first")
    assert model.ops[0].name == "first"
    assert model.ops[0].get_attributes() == {}


def test_names_and_layouts_of_ports(core):
    model = core.read_model(neg())
    model.input().tensor.set_names({"pixels", "image"})
    model.input().add_names({"picture"})
    model.output().set_names(["answer"])
    model.get_parameters()[0].set_layout(ov.Layout("HW"))
    assert model.input("image").get_names() == {"x", "image", "pixels", "picture"}
    assert model.parameters[0].layout == model.input().get_node().get_layout() == "HW"
    assert model.input().rt_info == {"layout": "[H,W]"}
    compiled = core.compile_model(copy.deepcopy(model), "CPU")
    assert compiled.input("image") == compiled.input("x")
    for _ in range(4):
        result = compiled({"picture": X})
        np.testing.assert_array_equal(result["answer"], -X)
    with pytest.raises(ModelError, match="is of no graph"):
        ov.Port(0, "x", None, None).set_names(["y"])


def test_names_survive_saving(core, tmp_path):
    model = core.read_model(neg())
    model.input().set_names({"image"})
    model.save(tmp_path / "m.onnx")
    assert core.read_model(tmp_path / "m.onnx").input("image").name == "x"


def test_damaged_notes_are_told(core):
    model = core.read_model(neg())
    model.ir.graph.inputs[0].metadata_props["partita.names"] = "{"
    with pytest.raises(ModelFormatError, match="The notes on 'x' in the model's metadata"):
        model.input()


@pytest.mark.parametrize(
    "shape",
    [
        [ov.Dimension(1, 3), 4],
        [(1, 3), 4],
        ["1..3", "4"],
        "1..3,4",
        ov.PartialShape("[1..3,4]"),
    ],
)
def test_bounds_are_kept(core, shape):
    model = core.read_model(affine())
    model.reshape({model.input(): shape})
    assert str(model.input().partial_shape) == "[1..3,4]"
    assert model.is_dynamic()
    assert model.dynamic
    compiled = core.compile_model(model, "CPU")
    assert compiled(np.ones((3, 4)))[0].shape == (3, 3)
    for _ in range(3):
        with pytest.raises(InputError, match=r"takes float32\[1\.\.3, 4\]; found float32\[4, 4\]"):
            compiled(np.ones((4, 4)))
        assert compiled(np.ones((1, 4)))[0].shape == (1, 3)
    model.reshape([2, 4])
    assert model.input().get_shape() == [2, 4]
    assert not model.is_dynamic()
    assert model.is_static


def test_a_shape_is_taken_changed_and_handed_back(core):
    model = core.read_model(affine())
    shapes = {port: port.partial_shape for port in model.inputs}
    for shape in shapes.values():
        shape[0] = 5
    model.reshape(shapes)
    assert model.input().shape == (5, 4)


@pytest.mark.parametrize(
    "added", ["product", "matmul", ["product"], ("matmul", 0), [("matmul", 0)]]
)
def test_results_of_operations_become_outputs(core, added):
    model = core.read_model(affine())
    (port,) = model.add_outputs(added)
    assert (port.name, port.index) == ("product", 1)
    assert model.add_outputs(model.ops[0].output(0)) == model.add_results([port.node]) == [port]
    found = core.compile_model(model, "CPU")(np.ones((1, 4)))
    np.testing.assert_array_equal(found["product"], [[-2, 2, 6]])
    model.remove_result(model.results[0])
    assert [port.name for port in model.outputs] == ["product"]
    with pytest.raises(ModelError, match="'product' is its last"):
        model.remove_result(model.results[0])


def test_outputs_that_cannot_be_added(core):
    model = core.read_model(affine())
    with pytest.raises(ModelError, match="neither a value nor an operation 'no' with an output 0"):
        model.add_outputs(["product", "no"])
    assert len(model.outputs) == 1


def test_inputs_that_nothing_reads_are_removed(core):
    model = core.read_model(add_sub())
    with pytest.raises(ModelError, match="Input 'a' of model 'm' is read by operations"):
        model.remove_parameter(model.parameters[0])
    unread = neg()
    unread.graph.input.append(value("unread", [1]))
    model = core.read_model(unread)
    model.remove_parameter(model.parameters[1])
    np.testing.assert_array_equal(core.compile_model(model, "CPU")(X)[0], -X)


def test_facts_about_outputs(core):
    model = core.read_model(add_sub())
    assert model.get_output_size() == 2
    assert model.get_output_shape(1) == model.get_output_partial_shape(1) == [2, 3]
    assert model.get_output_element_type(0) is ov.Type.f32
    assert (model.get_sinks(), model.sinks, model.get_variables()) == ([], [], ())
    assert model.get_sink_index(model.ops[0]) == -1
    with pytest.raises(ModelError, match="has no variable 'v'; it has none"):
        model.get_variable_by_id("v")
    model.validate_nodes_and_infer_types()
    model.set_friendly_name("other")
    assert model.get_name() == model.get_friendly_name() == model.friendly_name == "other"


def test_evaluate(core):
    model = core.read_model(add_sub())
    targets = [ov.Tensor(ov.Type.f32, [1]), ov.Tensor(ov.Type.f32, [2, 3])]
    assert model.evaluate(targets, [ov.Tensor(X), ov.Tensor(X)])
    np.testing.assert_array_equal(targets[0].data, 2 * X)
    np.testing.assert_array_equal(targets[1].data, 0 * X)
    with pytest.raises(ModelError, match="2 inputs and 2 outputs; 1 and 2 tensors were given"):
        model.evaluate(targets, [ov.Tensor(X)])


def test_notes_on_a_model(core, tmp_path):
    model = core.read_model(neg())
    model.set_rt_info("cat dog", ["model_info", "labels"])
    model.set_rt_info(0.5, ["model_info", "threshold"])
    model.set_rt_info(ov.OVAny([1, 2]), "list")
    model.save(tmp_path / "m.onnx")
    model = core.read_model(tmp_path / "m.onnx")
    assert model.get_rt_info(["model_info", "labels"]).aslist() == ["cat", "dog"]
    assert model.get_rt_info(["model_info", "threshold"]).astype(float) == 0.5
    assert model.get_rt_info("list").value == [1, 2]
    assert model.get_rt_info("model_info")["labels"] == "cat dog"
    assert model.has_rt_info(["model_info", "labels"])
    assert not model.has_rt_info(["model_info", "no"])
    assert model.rt_info == model.get_rt_info() != {}
    with pytest.raises(ModelError, match="has no runtime info 'no'"):
        model.get_rt_info("no")
    with pytest.raises(ModelError, match=r"A note is named by a text, or by texts .*; found 5"):
        model.has_rt_info(5)
    with pytest.raises(ModelError, match="cannot be stored"):
        model.set_rt_info(object(), "x")


def test_any_values():
    any_value = ov.OVAny("3")
    assert (any_value.astype(int), int(any_value), float(any_value)) == (3, 3, 3.0)
    assert (ov.OVAny("yes").astype(bool), str(any_value), any_value.get()) == (True, "3", "3")
    assert ov.OVAny("1, 2").aslist(int) == [1, 2]
    any_value.set([4])
    assert (len(any_value), any_value[0], repr(any_value)) == (1, 4, "<OVAny [4]>")
    assert hash(ov.OVAny("a")) == hash("a")


_IR = """<net name="m" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="2" element_type="f32"/>
<output><port id="0" precision="FP32" names="image,pixels:0"><dim>2</dim></port></output></layer>
<layer id="1" name="r" type="ReLU" version="opset1">
<input><port id="0" precision="FP32"><dim>2</dim></port></input>
<output><port id="1" precision="FP32" names="answer,out"><dim>2</dim></port></output></layer>
<layer id="2" name="result" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>2</dim></port></input></layer></layers>
<edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>
<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges>
<rt_info><model_info><labels value="cat dog"/></model_info><Runtime value="2026"/></rt_info>
</net>"""


def test_all_names_and_notes_of_a_file_are_kept(core):
    model = core.read_model(_IR.encode())
    assert model.input().get_names() == {"image", "pixels:0"}
    assert model.get_rt_info(["model_info", "labels"]).value == "cat dog"
    assert model.get_rt_info("Runtime").astype(int) == 2026
    compiled = core.compile_model(model, "REFERENCE")
    assert compiled({"pixels:0": [-1.0, 1.0]})["out"].tolist() == [0, 1]


def test_kinds_of_counters():
    assert ov.ProfilingInfo.EXECUTED is ov.ProfilingInfo.Status.EXECUTED
    assert ov.ProfilingInfo("a", "Relu").status is ov.ProfilingInfo.EXECUTED
    assert (ov.RTMap, ov.TensorVector, ov.Input) == (dict, list, ov.Port)


def test_what_an_operation_reads(core):
    op = core.read_model(affine()).get_ops()[0]
    assert op.input(0).get_source_output() == op.input_value(0)
    assert op.input(0).get_element_type() is ov.Type.f32
    with pytest.raises(ModelError, match="there is no input 7"):
        op.input(7)
