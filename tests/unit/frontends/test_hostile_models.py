"""Small files that would end a process, or fill its memory, if they were believed."""

import os
import re
import subprocess
import sys
import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from models import affine, model_of, neg, node, value, weight
from onnx import TensorProto, helper

from partita import Core
from partita.errors import CompileError, ModelFormatError, PartitaError
from partita.frontends.onnx import function_inlining
from partita.frontends.reader import read_model
from partita.model.inference import inference_process
from partita.model.operator_checks import check_domains

INT64 = TensorProto.INT64


def split():
    made = node("Split", ["x"], ["a", "b"], "cut", num_outputs=1)
    return model_of([made], [value("x", [4])], ["a", "b"], opset=18)


def gather_nd():
    made = node("GatherND", ["x", "i"], "y", "pick", batch_dims=-5)
    return model_of([made], [value("x", [2, 2]), value("i", [2, 1], INT64)], ["y"])


def layer_norm():
    made = node("LayerNormalization", ["x", "s"], "y", "norm", axis=2**31)
    return model_of([made], [value("x", [2, 3]), value("s", [3])], ["y"])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (split, "Operation 'cut' (Split) has num_outputs 1 and 2 outputs"),
        (gather_nd, "'pick' (GatherND) has an attribute 'batch_dims' of -5; allowed are 0 to 64"),
        (layer_norm, "'norm' (LayerNormalization) has an attribute 'axis' of 2147483648; allowed"),
    ],
)
def test_attributes_that_end_onnxs_inference_are_refused(model, said):
    with pytest.raises(ModelFormatError) as caught:
        read_model(model().SerializeToString())
    assert said in str(caught.value)


def test_attributes_in_bodies_and_functions_are_looked_at():
    inner = node("Softmax", ["x"], "y", "deep", axis=2**40)
    body = helper.make_graph([inner], "then", [], [value("y", None)])
    branch = node("If", ["c"], "y", then_branch=body, else_branch=body)
    model = model_of([branch], [value("c", [], TensorProto.BOOL), value("x", [2])], ["y"])
    with pytest.raises(ModelFormatError, match="'deep'"):
        read_model(model.SerializeToString())
    function = helper.make_function(
        "own", "F", ["x"], ["y"], [inner], [helper.make_opsetid("", 17)]
    )
    model = model_of([node("F", ["x"], "y", domain="own")], [value("x", [2])], ["y"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(ModelFormatError, match="'axis' of 1099511627776"):
        read_model(model.SerializeToString())


def test_attributes_that_are_given_to_a_function_are_looked_at():
    inner = node("LayerNormalization", ["x", "x"], "y", "deep")
    inner.attribute.add(name="axis", type=onnx.AttributeProto.INT, ref_attr_name="where")
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "F", ["x"], ["y"], [inner], opset, ["where"])
    call = node("F", ["x"], "y", domain="own", where=2**31)
    model = model_of([call], [value("x", [2])], ["y"])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(ModelFormatError, match=r"'deep'.*'axis' of 2147483648"):
        read_model(model.SerializeToString())


def of_one(op, shapes, domain="", **attributes):
    """A model of one operation."""
    names = [f"i{place}" for place in range(len(shapes))]
    made = node(op, names, "y", "one", domain=domain, **attributes)
    ports = [value(name, shape) for name, shape in zip(names, shapes, strict=True)]
    model = model_of([made], ports, ["y"])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model.SerializeToString()


@pytest.mark.parametrize("number", [-1, 2, 2**32])
@pytest.mark.parametrize(
    ("op", "name", "inputs", "attributes"),
    [
        ("ReduceMean", "keepdims", [[2, 3]], {"axes": [1]}),
        ("ArgMax", "keepdims", [[2, 3]], {}),
        ("MaxPool", "ceil_mode", [[1, 1, 6, 6]], {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ("com.microsoft.Attention", "unidirectional", [[1, 2, 4], [4, 12]], {"num_heads": 2}),
    ],
)
def test_numbers_that_stand_for_yes_or_no_are_0_or_1(op, name, inputs, attributes, number):
    """onnxruntime takes other numbers of these for a no, OpenVINO for a yes."""
    domain, _, op = op.rpartition(".")
    for truth in (0, 1):
        assert read_model(of_one(op, inputs, domain, **attributes, **{name: truth})).ops
    said = rf"'one' \({op}\) has an attribute '{name}' of {number}; allowed are 0 and 1"
    with pytest.raises(ModelFormatError, match=said):
        read_model(of_one(op, inputs, domain, **attributes, **{name: number}))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"axis": "one"}, "has an attribute 'axis' of type STRING; expected INT"),
        ({"axis": 1, "to": b"\xff"}, "has an attribute 'to' that is no UTF-8 text"),
        ({"axis": [1, 2]}, "has an attribute 'axis' of type INTS; expected INT"),
        ({}, "lacks its attribute 'axis' of type INT"),
    ],
)
def test_attributes_of_other_types_and_none(attributes, said):
    model = model_of([node("Concat", ["x", "x"], "y", **attributes)], [value("x", [2])], ["y"])
    with pytest.raises(ModelFormatError) as caught:
        read_model(model.SerializeToString())
    assert said in str(caught.value)


def test_an_attribute_of_no_type():
    made = node("Relu", ["x"], "y")
    made.attribute.append(onnx.AttributeProto(name="own"))
    with pytest.raises(ModelFormatError, match="has an attribute 'own' of no type"):
        read_model(model_of([made], [value("x", [2])], ["y"]).SerializeToString())


def test_a_number_is_no_list():
    made = node("Transpose", ["x"], "y", perm=1)
    with pytest.raises(ModelFormatError, match="'perm' of type INT; expected INTS"):
        read_model(model_of([made], [value("x", [2])], ["y"]).SerializeToString())


def test_numbers_that_exporters_write_for_floats():
    made = node("LeakyRelu", ["x"], "y", alpha=1)
    made.attribute[0].CopyFrom(helper.make_attribute("alpha", 1))
    assert made.attribute[0].type == onnx.AttributeProto.INT
    assert read_model(model_of([made], [value("x", [2])], ["y"]).SerializeToString()).ops


def test_every_attribute_that_has_a_range_is_of_an_operator():
    from partita.model.operator_checks import RANGES

    known = {
        name for schema in onnx.defs.get_all_schemas_with_history() for name in schema.attributes
    }
    # Of MatMulNBits and of attention, which onnx does not know.
    of_onnxruntime = {"K", "N", "do_rotary", "rotary_interleaved", "unidirectional"}
    assert set(RANGES) <= known | of_onnxruntime


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited by Linux")
@pytest.mark.timeout(120)
def test_values_that_double_are_not_followed():
    """900 bytes of Concats took gigabytes, since inference follows what shapes are made of."""
    nodes, last = [], "x"
    for step in range(40):
        nodes.append(node("Concat", [last, last], f"c{step}", axis=0))
        last = f"c{step}"
    nodes.append(node("Reshape", ["data", last], "y"))
    model = model_of(nodes, [value("data", [4])], ["y"], [weight("x", np.array([1], np.int64))])
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30));"
    code = limited + (
        "import sys; from partita.frontends.reader import read_model; "
        "print(len(read_model(sys.stdin.buffer.read()).ops))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=model.SerializeToString(),
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.stdout.strip() == b"41", done.stderr


def test_values_of_usual_length_are_followed():
    nodes = [
        node("Shape", ["x"], "s"),
        node("Gather", ["s", "zero"], "n"),
        node("Concat", ["n", "rest"], "wanted", axis=0),
        node("Reshape", ["x", "wanted"], "y"),
    ]
    weights = [weight("zero", np.array([0])), weight("rest", np.array([3, 1]))]
    model = read_model(model_of(nodes, [value("x", [2, 3])], ["y"], weights).SerializeToString())
    assert model.outputs[0].shape == (2, 3, 1)


def doubling(depth):
    """Functions each of which calls the one before it twice."""
    functions = []
    for level in range(depth):
        inner = [("Neg", "")] * 2 if level == 0 else [(f"F{level - 1}", "own")] * 2
        nodes = [
            node(inner[0][0], ["x"], "t", domain=inner[0][1]),
            node(inner[1][0], ["t"], "y", domain=inner[1][1]),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", f"F{level}", ["x"], ["y"], nodes, opsets))
    made = model_of([node(f"F{depth - 1}", ["x"], "y", domain="own")], [value("x", [2])], ["y"])
    made.functions.extend(functions)
    made.opset_import.append(helper.make_opsetid("own", 1))
    return made


@pytest.mark.timeout(60)
def test_functions_that_double_are_refused():
    with pytest.raises(ModelFormatError, match=r"would become more than 1,000,000 operations"):
        read_model(doubling(28).SerializeToString())
    assert len(read_model(doubling(5).SerializeToString()).ops) == 32


def test_functions_that_call_themselves_are_refused():
    made = doubling(3)
    made.functions[0].node[0].op_type, made.functions[0].node[0].domain = "F2", "own"
    with pytest.raises(ModelFormatError, match=r"Function 'F[012]' of the model calls itself"):
        read_model(made.SerializeToString())


def test_the_limit_is_of_operations_after_inlining(monkeypatch):
    monkeypatch.setattr(function_inlining, "MOST_OPERATIONS", 31)
    with pytest.raises(ModelFormatError, match="more than 31 operations"):
        read_model(doubling(5).SerializeToString())


# ------------------------------------------------------------------ another process


def test_another_process_infers_the_same():
    data = affine().SerializeToString()
    here, there = read_model(data), Core().read_model(data, isolate=True)
    assert [p.shape for p in there.outputs] == [p.shape for p in here.outputs] == [("N", 3)]


def test_what_cannot_be_inferred_there_stays_unknown_as_here(monkeypatch, caplog):
    code = inference_process.CHILD_CODE.rpartition("main(")[0] + "sys.exit(3)"
    monkeypatch.setattr(inference_process, "CHILD_CODE", code)
    assert read_model(neg().SerializeToString(), isolate=True).outputs[0].shape is None
    assert "could not be inferred" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_inference_that_ends_its_process_ends_no_other(monkeypatch):
    monkeypatch.setattr(inference_process, "CHILD_CODE", "import os; os.abort()")
    with pytest.raises(ModelFormatError, match=r"ended its process with code -\d+"):
        read_model(neg().SerializeToString(), isolate=True)


def test_inference_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(inference_process, "SECONDS", 0.01)
    began = time.monotonic()
    with pytest.raises(ModelFormatError, match="could not be inferred in another process"):
        read_model(neg().SerializeToString(), isolate=True)
    assert time.monotonic() - began < 60


# ---------------------------------------------------------------------- whose fault


def test_constants_are_checked_before_they_are_lifted():
    made = node("Constant", [], "c", "constant", value_int=1)
    made.attribute[0].name = "value"
    with pytest.raises(ModelFormatError, match="attribute 'value' of type INT; expected TENSOR"):
        read_model(model_of([made, node("Neg", ["c"], "y")], [], ["y"]).SerializeToString())


@pytest.mark.parametrize("number", [0, -4, 65536])
def test_element_types_that_there_are_not(number):
    made = node("Cast", ["x"], "y", "cast", to=number)
    with pytest.raises(ModelFormatError, match="'to' of"):
        read_model(model_of([made], [value("x", [2])], ["y"]).SerializeToString())


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"mode": "hostile"}, "hostile"),
        ({"padding_mode": "nowhere"}, "nowhere"),
    ],
)
def test_modes_that_a_table_lacks_name_the_operation(core, attributes, said):
    made = node("GridSample", ["x", "g"], "y", "sample", **attributes)
    model = model_of([made], [value("x", [1, 1, 2, 2]), value("g", [1, 2, 2, 2])], ["y"], opset=20)
    with pytest.raises(PartitaError, match="'sample'") as caught:
        core.compile_model(model.SerializeToString(), "CPU")
    assert said in str(caught.value)
    assert isinstance(caught.value, CompileError)


@pytest.mark.parametrize(
    ("op_type", "inputs", "said"),
    [("Add", ["x"], "lacks its input 1, 'B'"), ("Add", ["", "x"], "lacks its input 0, 'A'")],
)
def test_inputs_that_must_be_there(op_type, inputs, said):
    with pytest.raises(ModelFormatError, match=re.escape(said)):
        read_model(model_of([node(op_type, inputs, "y")], [value("x", [2])], ["y"]))


@pytest.mark.parametrize(
    ("op_type", "inputs", "place"),
    [("Scan", [""], 0), ("Scan", ["x", ""], 1), ("Loop", ["", "", ""], 2)],
)
def test_none_of_any_number_of_inputs_may_be_left_out(op_type, inputs, place):
    count = {"num_scan_inputs": 1} if op_type == "Scan" else {}
    body = helper.make_graph([node("Identity", ["x"], "c")], "b", [], [value("c", [2])])
    model = model_of([node(op_type, inputs, "y", body=body, **count)], [value("x", [2])], ["y"])
    with pytest.raises(ModelFormatError, match=rf"\({op_type}\) lacks its input {place}, one of"):
        read_model(model)


@pytest.mark.parametrize(
    ("op_type", "inputs", "place"),
    [("QGemm", ["x", "", "x", "x", "x", "x"], 1), ("QLinearConcat", ["x", "x", "x", "x", ""], 4)],
)
def test_inputs_of_operators_of_onnxruntime_that_must_be_there(op_type, inputs, place):
    made = helper.make_node(op_type, inputs, ["y"], name="n", domain="com.microsoft")
    model = model_of([made], [value("x", [2])], ["y"])
    with pytest.raises(ModelFormatError, match=rf"'n' \({op_type}\) lacks its input {place}\."):
        read_model(model)


def test_an_operator_of_onnxruntime_under_the_domain_of_onnx():
    model = model_of([node("SimplifiedLayerNormalization", ["x"], "y")], [value("x", [2])], ["y"])
    with pytest.raises(ModelFormatError, match="lacks its input 1"):
        read_model(model)


def test_an_input_that_a_call_leaves_out_is_missed_where_it_is_needed():
    body = helper.make_function(
        "mine",
        "twice",
        ["a", "b"],
        ["c"],
        [node("Add", ["a", "b"], "c")],
        [helper.make_opsetid("", 17)],
    )
    call = helper.make_node("twice", ["x"], ["y"], domain="mine")
    model = model_of([call], [value("x", [2])], ["y"])
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    with pytest.raises(ModelFormatError, match="lacks its input 1, 'B'"):
        read_model(model)


def test_inputs_that_may_be_left_out():
    nodes = [node("Clip", ["x", "", "high"], "a"), node("Resize", ["a", "", "scales"], "y")]
    weights = [weight("high", np.float32(3)), weight("scales", np.ones(4, np.float32))]
    read_model(model_of(nodes, [value("x", [1, 1, 2, 2])], ["y"], weights, opset=11))


def one_relu():
    """A Relu of a small input as a protobuf, for tests to damage."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], name="r")],
        "damaged",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_what_is_wrong_with_a_file_is_said_in_our_words():
    twice, missing = one_relu(), one_relu()
    twice.graph.node.append(helper.make_node("Neg", ["x"], ["y"]))
    missing.functions.append(helper.make_function("own", "F", ["x"], ["gone"], [], []))
    bytes_name = one_relu().SerializeToString().replace(b"\x0a\x01x", b"\x0a\x01\xff")
    wanted = [
        (twice, r"operation 1 of graph 'damaged' \(Neg\) computes 'y', which is computed by op"),
        (missing, r"nothing computes output 'gone' of function 'F'"),
        (bytes_name, r"has the name b'\\xff', which is no UTF-8"),
    ]
    for damaged, message in wanted:
        with pytest.raises(ModelFormatError, match=message) as caught:
            read_model(damaged)
        assert "export or download it again" in str(caught.value)
        assert "KeyError" not in str(caught.value)


@pytest.mark.parametrize("part", ["op_type", "domain"])
def test_operators_whose_names_are_no_text_are_refused(part):
    proto = one_relu()
    proto.graph.node[0].domain = "own"
    mark = {"op_type": b"Relu", "domain": b"own"}[part]
    data = proto.SerializeToString().replace(mark, b"\xff" * len(mark))
    model = ir.from_proto(onnx.ModelProto.FromString(data))
    with pytest.raises(ModelFormatError, match="whose name is no UTF-8 text"):
        check_domains(model.graph)


def test_no_input_of_many_may_be_left_out():
    proto = one_relu()
    proto.graph.node[0].op_type = "Concat"
    proto.graph.node[0].input.append("")
    proto.graph.node[0].input.append("x")
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    with pytest.raises(
        ModelFormatError, match=r"'r' \(Concat\) lacks its input 1, one of 'inputs'"
    ):
        read_model(proto)


def test_operators_of_other_onnx_domains_are_checked_too():
    """onnx's inference reads the first input of a LabelEncoder whether it is there or not."""
    made = helper.make_node(
        "LabelEncoder",
        [""],
        ["y"],
        name="labels",
        domain="ai.onnx.ml",
        keys_strings=["a"],
        values_int64s=[1],
    )
    text = helper.make_tensor_value_info("x", TensorProto.STRING, [5])
    output = helper.make_tensor_value_info("y", INT64, [5])
    graph = helper.make_graph([made], "labels", [text], [output])
    opsets = [helper.make_opsetid("ai.onnx.ml", 4)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with pytest.raises(ModelFormatError, match=r"'labels' \(LabelEncoder\) lacks its input 0, 'X'"):
        read_model(proto)


def test_operators_of_domains_below_ours_are_refused_too():
    """Kernels trust what such a node says: a ScaleShift of few factors read beyond these."""
    made = helper.make_node("ScaleShift", ["x", "x", "x"], ["y"], name="n", domain="partita.nhwc")
    with pytest.raises(ModelFormatError, match=r"'n' \(ScaleShift\) is of domain 'partita.nhwc'"):
        read_model(model_of([made], [value("x", [1, 2, 2, 2])], ["y"]))


def of_our_domain():
    """A model that names an operator which devices make when they compile."""
    proto = one_relu()
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Silu", "partita"
    proto.opset_import.append(helper.make_opsetid("partita", 1))
    return proto


@pytest.mark.parametrize("tidy", [True, False])
def test_no_file_may_hold_operators_that_devices_make(tidy):
    with pytest.raises(ModelFormatError, match=r"'r' \(Silu\) is of domain 'partita', whose"):
        read_model(of_our_domain(), tidy)


def test_bodies_hold_no_operators_that_devices_make_either():
    inner = of_our_domain().graph
    inner.ClearField("input")
    graph = helper.make_graph(
        [node("If", ["c"], "y", "if", then_branch=inner, else_branch=inner)],
        "outer",
        [value("c", [], TensorProto.BOOL), value("x", [2])],
        [value("y", [2])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("partita", 1)]
    with pytest.raises(ModelFormatError, match="is of domain 'partita'"):
        read_model(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def test_functions_may_have_the_name_of_our_domain():
    proto = of_our_domain()
    opsets = [helper.make_opsetid("", 18)]
    proto.functions.append(
        helper.make_function("partita", "Silu", ["a"], ["b"], [node("Relu", ["a"], "b")], opsets)
    )
    assert [op.op_type for op in read_model(proto).ops] == ["Relu"]


def test_functions_of_a_model_that_is_taken_for_tidy_hold_none_either():
    proto = one_relu()
    made = helper.make_node("ScaleShift", ["a", "a", "a"], ["b"], domain="partita.nhwc")
    opsets = [helper.make_opsetid("partita.nhwc", 1)]
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], [made], opsets))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "F", "own"
    proto.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(ModelFormatError, match=r"is of domain 'partita\.nhwc'"):
        read_model(proto, tidy=False)
