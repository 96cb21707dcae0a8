"""Reading: whatever real files hold is understood, and everything else is refused by name."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from judge import onnxruntime_results
from models import FLOAT, affine, if_with_capture, model_of, neg, node, value, weight
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from partita import Core
from partita.errors import ModelError, ModelFormatError, ModelNotFoundError
from partita.frontends.onnx.protobuf_fields import field_head
from partita.frontends.reader import external_files, read_model

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def refused(proto, said, error=ModelFormatError):
    with pytest.raises(error) as caught:
        read_model(proto)
    assert said in str(caught.value)


def evaluate(model, **feeds):
    return ReferenceEvaluator(model.to_onnx()).run(None, feeds)


def weights_of(model):
    return {name: v.const_value.numpy() for name, v in model.ir.graph.initializers.items()}


# ---------------------------------------------------------------------------- sources


def test_every_kind_of_source(tmp_path):
    proto = neg()
    data, path = proto.SerializeToString(), tmp_path / "m.onnx"
    path.write_bytes(data)
    sources = [
        proto,
        data,
        bytearray(data),
        memoryview(data),
        path,
        str(path),
        ir.from_proto(proto),
    ]
    for source in sources:
        assert [op.name for op in read_model(source).ops] == ["neg"]
    model = read_model(proto)
    assert read_model(model) is model


def test_a_graph_without_name_is_called_after_its_file(tmp_path):
    proto = neg()
    proto.graph.name = ""
    (tmp_path / "yolo.v8.onnx").write_bytes(proto.SerializeToString())
    assert read_model(tmp_path / "yolo.v8.onnx").name == "yolo.v8"
    assert read_model(proto).name == "model"


def test_reading_leaves_the_protobuf_alone():
    proto = model_of(
        [node("Constant", [], "c", value_float=1.0), node("Add", ["x", "c"], "y")],
        [value("x", [-1])],
        [value("y", [-1])],
    )
    before = proto.SerializeToString()
    read_model(proto)
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("wrong", [None, 3, ["m.onnx"], np.zeros(3)])
def test_sources_of_another_type(wrong):
    refused(
        wrong, f"Cannot read a model from {type(wrong).__name__}; give a path, bytes or an onnx"
    )


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(ModelNotFoundError) as caught:
        read_model(tmp_path / "absent.onnx")
    assert f"'{tmp_path / 'absent.onnx'}' does not exist (looked in '{tmp_path}')." in str(
        caught.value
    )
    refused(tmp_path, "cannot be read: ")
    with pytest.raises(FileNotFoundError):
        read_model("absent.onnx")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty, and no model: export or download it again"),
        (
            b"# a text file\n",
            "is not an ONNX model or is damaged (14 bytes, starting with b'# a text'",
        ),
        (b"\x89PNG\r\n\x1a\n", "is not an ONNX model or is damaged"),
        (affine().SerializeToString()[:-40], "is not an ONNX model or is damaged"),
        (weight("w", X).SerializeToString(), "is not an ONNX model"),
        (helper.make_opsetid("", 17).SerializeToString(), "is not an ONNX model"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "it holds no graph"),
        (model_of([], [], []).SerializeToString(), "its graph has no output"),
        (model_of([node("Neg", ["x"], "y")], ["x"], []).SerializeToString(), "has no output"),
    ],
)
def test_files_that_are_no_models(tmp_path, data, said):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    for source, origin in ((data, "the given data"), (path, f"'{path}'")):
        refused(source, said)
        refused(source, origin)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git lfs pull"),
        (b"\n<!doctype html><html>", "it is a web page"),
        (b"<html><body>404</body></html>", "it is a web page"),
        (b"PK\x03\x04\x14\x00archive/data.pkl", "torch.onnx.export"),
        (b"\x89HDF\r\n\x1a\n", "tf2onnx"),
        (b"hello", "export or download it again"),
    ],
)
def test_files_that_are_taken_for_models_say_what_they_are(tmp_path, data, said):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    refused(path, said)


def test_bodies_nested_deeper_than_protobuf_parses_are_not_called_damaged():
    inner = field_head(1, 0)  # a graph with an empty operation
    for _ in range(33):
        attribute = field_head(6, len(inner)) + inner  # its graph
        operation = field_head(5, len(attribute)) + attribute
        inner = field_head(1, len(operation)) + operation
    for graph, said in ((inner, "nested more than 100 deep"), (inner[:-30], "damaged")):
        refused(field_head(7, len(graph)) + graph, said)


def test_an_empty_path_is_no_folder():
    with pytest.raises(ModelNotFoundError, match=r"The path of the model is empty"):
        read_model("")


def test_damaged_files_raise_model_errors_and_nothing_else():
    """Cut short anywhere, or with any byte changed: a ModelError, or a model that reads."""
    data = model_of(
        [
            node("Constant", [], "c", value_ints=[1, 2]),
            node("Reshape", ["x", "c"], "r", "first", allowzero=1),
            node("Add", ["r", "w"], "y", "second"),
        ],
        [value("x", ["N", 2])],
        [value("y", [1, 2])],
        [weight("w", X[0, :2])],
    ).SerializeToString()
    rng = random.Random(7)
    damaged = [data[:size] for size in range(0, len(data), 3)]
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    read = 0
    for case in damaged:
        try:
            read_model(case)
        except ModelError:
            continue
        read += 1
    assert 0 < read < len(damaged)


# ----------------------------------------------------------------------------- opsets


@pytest.mark.parametrize("opset", [0, -1, 999])
def test_opsets_that_do_not_exist(opset):
    refused(model_of([node("Neg", ["x"], "y")], ["x"], ["y"], opset=opset), f"uses opset {opset};")


def test_other_maps_are_refused():
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))
    for kind in (maps, helper.make_sequence_type_proto(maps)):
        proto = neg()
        proto.graph.output.append(helper.make_value_info("chances", kind))
        refused(proto, "'chances' is made of maps")


@pytest.mark.parametrize("labels", [[3, -5], ["no", "yes"]], ids=["numbers", "texts"])
def test_maps_of_each_row_are_columns_and_labels_are_notes(labels):
    kind = "strings" if isinstance(labels[0], str) else "int64s"
    key = TensorProto.STRING if kind == "strings" else TensorProto.INT64
    maps = helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, []))
    proto = model_of([node("Neg", ["x"], "y")], [value("x", ["rows", 2])], ["y"])
    given = {f"classlabels_{kind}": labels}
    zipped = helper.make_node("ZipMap", ["y"], ["chances"], domain="ai.onnx.ml", **given)
    proto.graph.node.append(zipped)
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    rows = helper.make_sequence_type_proto(maps)
    proto.graph.output.append(helper.make_value_info("chances", rows))
    x = X[:, :2]
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(["chances"], {"x": x})[0]
    model = read_model(proto)
    found = evaluate(model, x=x)[1]
    assert model.get_rt_info(["class_labels", "chances"]) == labels
    assert [dict(zip(labels, row, strict=True)) for row in found.tolist()] == expected
    assert proto.graph.node[1].op_type == "ZipMap"  # the caller's stays as it was
    del zipped.attribute[:]
    proto.graph.node[1].CopyFrom(zipped)
    refused(proto, "ZipMap of 'chances' has no labels, or numbers and texts")


def test_no_opset():
    proto = neg()
    del proto.opset_import[:]
    refused(proto, "names no opset version for the ONNX operators")
    proto.opset_import.add(domain="their.own", version=1)
    refused(proto, "names no opset version for the ONNX operators")
    proto.ir_version = 2
    assert read_model(proto).ops[0].version == 1


def test_opset_domains():
    proto = neg()
    proto.opset_import.add(domain="unused.domain", version=12345)
    proto.opset_import.add(domain="ai.onnx.ml", version=3)
    assert [op.name for op in read_model(proto).ops] == ["neg"]
    spelled = neg()
    spelled.opset_import[0].domain = "ai.onnx"
    spelled.graph.node[0].domain = "ai.onnx"
    (op,) = read_model(spelled).ops
    assert (op.domain, op.version) == ("", 17)


# ----------------------------------------------------------------------------- op_graph


def test_operations_are_sorted():
    shuffled = [
        node("Abs", ["b"], "c", "3"),
        node("Neg", ["x"], "a", "1"),
        node("Exp", ["a"], "b", "2"),
    ]
    assert [op.name for op in read_model(model_of(shuffled, ["x"], ["c"])).ops] == ["1", "2", "3"]


@pytest.mark.parametrize("read", ["y", "z"])
def test_a_body_that_reads_what_comes_of_it(read):
    proto = if_with_capture()
    proto.graph.node.append(node("Neg", ["y"], "z"))
    proto.graph.node[0].attribute[0].g.node[0].input[0] = read
    refused(proto, "has a cycle")


@pytest.mark.parametrize("name", ["a\0.onnx", "\ud800.onnx"])
def test_names_that_no_file_can_have(name):
    with pytest.raises(ModelFormatError, match="cannot be read"):
        read_model(name)


def test_long_chains_are_no_trouble():
    nodes = [node("Neg", [f"v{i}"], f"v{i + 1}") for i in range(3000)]
    model = read_model(model_of(nodes[::-1], [value("v0", [1])], ["v3000"]))
    assert len({op.name for op in model.ops}) == 3000
    assert model.outputs[0].shape == (1,)


@pytest.mark.parametrize(
    ("nodes", "outputs", "said"),
    [
        ([("Add", ["x", "b"], "a"), ("Neg", ["a"], "b")], ["b"], "has a cycle"),
        ([("Add", ["x", "y"], "y")], ["y"], "has a cycle"),
        ([("Add", ["x", "none"], "y")], ["y"], "'Add' reads 'none', which nothing produces"),
        ([("Neg", ["x"], "y")], ["z"], "nothing produces output 'z'"),
        ([("Neg", ["x"], "y")], ["y", ""], "output 1 has no name"),
        (
            [("Neg", ["x"], "y"), ("Abs", ["x"], "y")],
            ["y"],
            "computes 'y', which is computed by operation 0 too",
        ),
        ([("Neg", ["w"], "w")], ["w"], "computes 'w', which is an input or initializer"),
    ],
)
def test_wiring_that_cannot_be(nodes, outputs, said):
    refused(model_of([node(*n) for n in nodes], ["x"], outputs, [weight("w", X)]), said)


def test_values_may_be_listed_as_outputs_several_times():
    nodes = [node("Neg", ["x"], "y"), node("Abs", ["y"], "y/2")]
    proto = model_of(nodes, ["x"], ["y", "y/2", "y", "x", "x", "y"])
    model = read_model(proto)
    names = ["y", "y/2", "y/2_", "x", "x/4", "y/5"]
    assert [port.name for port in model.outputs] == names
    expected = onnxruntime_results(proto, {"x": X})
    np.testing.assert_array_equal(evaluate(model, x=X), expected)


def test_initializers_that_cannot_be():
    weights = [weight("w", X), weight("w", X)]
    proto = model_of([node("Add", ["x", "w"], "y")], ["x"], ["y"], weights)
    refused(proto, "has two initializers 'w', and nothing says which one counts")


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_opsets_that_cannot_be(domain):
    proto = model_of([node("Neg", ["x"], "y")], ["x"], ["y"])
    version = proto.opset_import[0].version
    proto.opset_import.add(domain=domain, version=version)
    assert read_model(proto).outputs[0].name == "y"
    proto.opset_import[-1].version = 7
    refused(proto, f"names opsets {version} and 7 for the ONNX operators")


def test_inputs_that_cannot_be():
    refused(model_of([node("Neg", ["x"], "y")], ["x", "x"], ["y"]), "lists input 'x' twice")
    refused(model_of([node("Neg", ["x"], "y")], ["x", ""], ["y"]), "input 1 has no name")


def test_undefined_values_in_bodies():
    proto = if_with_capture()
    proto.graph.node[0].attribute[0].g.node[0].input[0] = "none"
    refused(proto, "reads 'none', which nothing produces")
    proto = if_with_capture()
    proto.graph.node[0].attribute[0].g.output[0].name = "none"
    refused(proto, "nothing in body 'else' produces its output 'none'; a value from outside is ret")


def test_inputs_and_weights_can_be_outputs():
    model = read_model(model_of([], [value("x", [2, 3])], ["x", "w"], [weight("w", X)]))
    assert model.ops == []
    x, w = evaluate(model, x=-X)
    np.testing.assert_array_equal(x, -X)
    np.testing.assert_array_equal(w, X)


# ------------------------------------------------------------------------------ names


def test_every_operation_gets_a_name_of_its_own():
    names = ["", "a", "a", "", "Neg_0", "a_0", "a", ""]
    nodes = [node("Neg", [f"v{i}"], f"v{i + 1}", name) for i, name in enumerate(names)]
    found = [op.name for op in read_model(model_of(nodes, ["v0"], [f"v{len(names)}"])).ops]
    assert len(set(found)) == len(names)
    for given, name in zip(names, found, strict=True):
        assert name.startswith(given or "Neg_")
    assert [found[i] for i in (1, 4, 5)] == ["a", "Neg_0", "a_0"]


def test_names_in_bodies_are_their_own_too():
    proto = if_with_capture()
    for graph in (proto.graph, *(a.g for a in proto.graph.node[0].attribute)):
        for inner in graph.node:
            inner.name = "same"
    model = read_model(proto)
    names = [n.name for n in ir.traversal.RecursiveGraphIterator(model.ir.graph)]
    assert len(set(names)) == len(names) == 3


# ------------------------------------------------------------------------- dimensions


def test_dimensions_that_say_nothing():
    dims = [-1, "", "?", "-1", None, "N", 0, 5]
    proto = model_of([node("Neg", ["x"], "y")], [value("x", dims)], [value("y", dims)])
    expected = (None, None, None, None, None, "N", 0, 5)
    model = read_model(proto)
    assert model.inputs[0].shape == model.outputs[0].shape == expected


# -------------------------------------------------------------------------- constants


CONSTANTS = {
    "value": (weight("", X), X),
    "value_float": (1.5, np.float32(1.5)),
    "value_floats": ([1.5, 2], np.array([1.5, 2], np.float32)),
    "value_int": (3, np.int64(3)),
    "value_ints": ([1, 2], np.array([1, 2])),
    "value_string": ("Grüße", np.array("Grüße", object)),
    "value_strings": (["ja", "nein ", ""], np.array(["ja", "nein ", ""], object)),
    "sparse_value": (
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([5, 6], np.float32), "values"),
            numpy_helper.from_array(np.array([1, 5])),
            [2, 3],
        ),
        np.array([[0, 5, 0], [0, 0, 6]], np.float32),
    ),
}


@pytest.mark.parametrize("form", CONSTANTS)
def test_constants_become_weights(form):
    given, expected = CONSTANTS[form]
    nodes = [node("Constant", [], "c", **{form: given}), node("Identity", ["c"], "y")]
    model = read_model(model_of(nodes, [], ["y"]))
    assert [op.op_type for op in model.ops] == ["Identity"]
    assert (model.outputs[0].dtype, model.outputs[0].shape) == (expected.dtype, expected.shape)
    (found,) = evaluate(model)
    assert np.asarray(found).tolist() == expected.tolist()


@pytest.mark.parametrize("form", CONSTANTS)
def test_constants_that_are_outputs(form, core):
    given, expected = CONSTANTS[form]
    proto = model_of([node("Constant", [], "c", **{form: given})], [], ["c"])
    (found,) = core.compile_model(proto, "REFERENCE")().to_tuple()
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("attributes", [{}, {"value_int": 1, "value_float": 2.0}, {"value": 3}])
def test_constants_without_a_clear_value(attributes):
    proto = model_of([node("Constant", [], "c", **attributes), node("Neg", ["c"], "y")], [], ["y"])
    try:
        model = read_model(proto)
    except ModelFormatError:
        return
    assert [op.op_type for op in model.ops] == ["Constant", "Neg"]


def test_constants_in_bodies():
    then = helper.make_graph(
        [node("Constant", [], "one", value_float=1.0), node("Add", ["x", "one"], "sum")],
        "then", [], [value("sum", None)],
    )  # fmt: skip
    other = helper.make_graph([node("Neg", ["x"], "minus")], "else", [], [value("minus", None)])
    choose = node("If", ["flag"], "y", then_branch=then, else_branch=other)
    inputs = [value("flag", [], TensorProto.BOOL), value("x", [2])]
    model = read_model(model_of([choose], inputs, ["y"]))
    body = model.ir.graph[0].attributes["then_branch"].as_graph()
    assert [inner.op_type for inner in body] == ["Add"]
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(evaluate(model, flag=np.array(True), x=x)[0], [2, 3])


def test_weights_that_are_inputs_too():
    proto = affine()
    proto.graph.input.extend([value("w", [4, 3]), value("b", [3])])
    model = read_model(proto)
    assert [port.name for port in model.inputs] == ["x"]
    assert set(weights_of(model)) == {"w", "b"}


# ----------------------------------------------------------------------------- sparse


def sparse(indices, dims=(2, 3)):
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([5, 6], np.float32), "w"),
        numpy_helper.from_array(np.array(indices, np.int64), "w_indices"),
        dims,
    )


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_weights_become_dense(indices):
    proto = model_of(
        [node("Add", ["x", "w"], "y")], ["x"], ["y"], sparse_initializer=[sparse(indices)]
    )
    before = proto.SerializeToString()
    np.testing.assert_array_equal(weights_of(read_model(proto))["w"], [[0, 5, 0], [0, 0, 6]])
    assert proto.SerializeToString() == before


@pytest.mark.parametrize("dims", [[1 << 40], [1 << 20, 1 << 10], [-6]])
@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_sparse_weights_that_claim_to_be_large(dims, place):
    claimed = sparse([0, 1] if len(dims) == 1 else [[0, 0], [0, 1]], dims)
    if place == "initializer":
        model = model_of([node("Add", ["x", "w"], "y")], ["x"], ["y"], sparse_initializer=[claimed])
    else:
        made = node("Constant", [], "w", sparse_value=claimed)
        model = model_of([made, node("Add", ["x", "w"], "y")], ["x"], ["y"])
    refused(model, f"Sparse tensor 'w' of the ModelProto has shape {dims}; s")


@pytest.mark.parametrize(
    "indices", [[1, 6], [-1, 0], [[0, 1], [1, 3]], [[0], [1]], [[[0]]], [1, 2, 3]]
)
def test_sparse_weights_that_do_not_fit(indices):
    proto = model_of(
        [node("Add", ["x", "w"], "y")], ["x"], ["y"], sparse_initializer=[sparse(indices)]
    )
    refused(proto, "Sparse tensor 'w' of the ModelProto does not fit its shape [2, 3]")


# --------------------------------------------------------------------- local functions


def with_function(body, name="twice_and_neg"):
    function = helper.make_function(
        "local",
        name,
        ["a"],
        ["c"],
        body,
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )
    proto = model_of(
        [
            node(name, ["x"], "h", "one", domain="local"),
            node(name, ["h"], "y", "two", domain="local"),
        ],
        [value("x", [2, 3])],
        ["y"],
    )
    proto.opset_import.add(domain="local", version=1)
    proto.functions.append(function)
    return proto


def test_local_functions_are_inlined():
    proto = with_function([node("Add", ["a", "a"], "b"), node("Neg", ["b"], "c")])
    model = read_model(proto)
    assert [op.op_type for op in model.ops] == ["Add", "Neg", "Add", "Neg"]
    assert len({op.name for op in model.ops}) == 4
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(evaluate(model, x=X)[0], expected)


@pytest.mark.parametrize("taken", [["h", "z", "t"], ["h", "z"], ["", "z", "t"]])
def test_local_functions_that_return_inputs_and_values_twice(taken):
    proto = with_function([node("Neg", ["a"], "b")])
    proto.functions[0].output[:] = ["a", "b", "b"]
    first, second = proto.graph.node
    first.output[:] = taken
    second.CopyFrom(node("Add", ["x", "z"], "y"))
    proto.graph.output.extend(value(name, [2, 3]) for name in taken if name)
    model = read_model(proto)
    assert [port.name for port in model.inputs] == ["x"]
    assert [port.name for port in model.outputs] == ["y", *filter(None, taken)]
    due = {
        "y": X - X,
        "h": X,
        "z": -X,
        "t": -X,
    }  # onnxruntime takes no value that is returned twice
    for port, found in zip(model.outputs, evaluate(model, x=X), strict=True):
        np.testing.assert_array_equal(found, due[port.name])


def test_shapes_beside_a_local_function_that_returns_its_input():
    proto = with_function([node("Neg", ["a"], "b")])
    proto.functions[0].output[0] = "a"
    second, output = proto.graph.node[1], proto.graph.output[0]
    second.op_type, second.domain, second.input[0] = "Transpose", "", "x"
    output.type.tensor_type.ClearField("shape")
    assert read_model(proto).outputs[0].shape == (3, 2)


@pytest.mark.parametrize("opset", [13, 14])  # to 14 Add took fewer types
def test_local_functions_of_another_opset(opset):
    """As sklearn's KNNImputer is written: functions of opset 14 in a model of 18."""
    proto = with_function([node("Add", ["a", "a"], "b"), node("Neg", ["b"], "c")])
    proto.functions[0].opset_import[0].version = opset
    model = read_model(proto)
    assert model.ir.opset_imports[""] == 17
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": X})
    np.testing.assert_array_equal(evaluate(model, x=X)[0], expected)


def test_local_functions_whose_operators_the_opset_of_the_model_defines_otherwise():
    proto = with_function([node("Add", ["a", "a"], "b"), node("Softmax", ["b"], "c")])
    proto.functions[0].opset_import[0].version = 11  # whose axis is 1 by default
    refused(proto, "uses 'Softmax' of opset 11, the model itself opset 17 (domain '')")
    proto.functions[0].node[1].op_type = "Unknown"
    refused(proto, "uses 'Unknown' of opset 11, the model itself opset 17 (domain '')")


def test_local_functions_that_call_themselves():
    proto = with_function([node("twice_and_neg", ["a"], "c", domain="local")])
    refused(proto, "Function 'twice_and_neg' of the model calls itself")


# ---------------------------------------------------------------------- external data


@pytest.fixture
def external(tmp_path):
    """A function that writes a model with an external weight, and edits its entries."""
    (tmp_path / "secret.bin").write_bytes(bytes(100))
    folder = tmp_path / "model"
    folder.mkdir()

    def write(**entries):
        path = folder / "m.onnx"
        onnx.save(affine(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
        proto = onnx.load(path, load_external_data=False)
        w = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
        for entry in list(w.external_data):
            if entry.key in entries:
                w.external_data.remove(entry)
        for key, text in entries.items():
            if text is not None:
                w.external_data.add(key=key, value=text)
        path.write_bytes(proto.SerializeToString())
        return path

    return write


def test_external_weights(external):
    for path in (external(), external(length=None), external(offset=None)):
        w = numpy_helper.to_array(affine().graph.initializer[0])
        np.testing.assert_array_equal(weights_of(read_model(path))["w"], w)


def test_external_weights_in_a_subfolder_or_behind_a_link_inside(external):
    path = external(location="sub/link.bin")
    sub = path.parent / "sub"
    sub.mkdir()
    (sub / "link.bin").symlink_to("../w.bin")
    assert weights_of(read_model(path))["w"].shape == (4, 3)


def test_external_weights_of_a_cache_whose_files_are_links(external, tmp_path):
    path = external()  # as Hugging Face's cache lays files out
    (tmp_path / "blobs").mkdir()
    for file in (path, path.with_name("w.bin")):
        file.rename(tmp_path / "blobs" / file.stem)
        file.symlink_to(tmp_path / "blobs" / file.stem)
    model = read_model(path)
    assert weights_of(model)["w"].shape == (4, 3)
    np.testing.assert_array_equal(
        Core().compile_model(path, "REFERENCE")(X[:, [0, 1, 2, 0]])[0],
        evaluate(read_model(affine()), x=X[:, [0, 1, 2, 0]])[0],
    )
    assert external_files(path.read_bytes(), path) == [(tmp_path / "blobs" / "w")]
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[1].CopyFrom(proto.graph.initializer[0])
    proto.graph.initializer[1].name = "b"
    proto.graph.initializer[1].external_data[0].value = "beside.bin"
    path.with_name("beside.bin").write_bytes((tmp_path / "blobs" / "w").read_bytes())
    path.write_bytes(proto.SerializeToString())
    refused(path, "has weights in 'beside.bin', and others next to")


def test_external_weights_of_a_relative_path(external, monkeypatch):
    path = external()
    monkeypatch.chdir(path.parent)
    assert weights_of(read_model("m.onnx"))["w"].shape == (4, 3)


@pytest.mark.parametrize(
    ("entries", "said", "error"),
    [
        (
            {"location": "../secret.bin"},
            "points to '../secret.bin', which is outside",
            ModelFormatError,
        ),
        (
            {"location": "a/../../secret.bin"},
            "which is outside the model's folder",
            ModelFormatError,
        ),
        (
            {"location": "/etc/passwd"},
            "points to '/etc/passwd', which is outside",
            ModelFormatError,
        ),
        ({"location": None}, "points to '', which is outside", ModelFormatError),
        ({"location": "."}, "which is a folder, pipe or device", ModelNotFoundError),
        ({"location": "nul\0.bin"}, "broken external-data entry", ModelFormatError),
        ({"location": "absent.bin"}, "absent.bin', which does not exist", ModelNotFoundError),
        ({"location": "x/../w.bin"}, "x/../w.bin', which does not exist", ModelNotFoundError),
        ({"location": "circle.bin"}, "has a broken external-data entry: ", ModelFormatError),
        ({"location": "link.bin"}, "which is outside the model's folder. Put", ModelFormatError),
        ({"offset": "-4"}, "needs bytes -4 to 44 of", ModelFormatError),
        ({"offset": "40"}, "needs bytes 40 to 88 of", ModelFormatError),
        ({"offset": str(2**70)}, "needs bytes", ModelFormatError),
        ({"offset": "x"}, "broken external-data entry: invalid literal", ModelFormatError),
        ({"length": "44"}, "names 44 bytes of", ModelFormatError),
        ({"length": "-1"}, "names -1 bytes of", ModelFormatError),
        ({"length": "1000"}, "names 1000 bytes of", ModelFormatError),
    ],
)
def test_external_weights_that_are_refused(external, entries, said, error):
    path = external(**entries)
    (path.parent / "link.bin").symlink_to("../secret.bin")
    (path.parent / "circle.bin").symlink_to("circle.bin")
    refused(path, said, error)
    refused(path, f"Tensor 'w' of '{path}'", error)


def test_external_weights_cut_short(external):
    path = external()
    data = path.with_name("w.bin")
    data.write_bytes(data.read_bytes()[:-1])
    refused(path, "of '" + str(data))


def test_external_weights_without_a_folder(external):
    path = external()
    refused(path.read_bytes(), "is kept in file 'w.bin'; read the model from its path")
    refused(onnx.load(path, load_external_data=False), "read the model from its path")


def test_external_weights_in_bodies_and_functions_are_checked():
    tensor = TensorProto(name="t", data_type=FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    constant = node("Constant", [], "c", value=tensor)
    proto = with_function([constant, node("Add", ["a", "c"], "c2"), node("Neg", ["c2"], "c3")])
    refused(proto, "Tensor 't' of the ModelProto is kept in file '/etc/passwd'")
    body = if_with_capture()
    body.graph.node[0].attribute[0].g.node.append(constant)
    refused(body, "Tensor 't' of the ModelProto is kept in file '/etc/passwd'")


def placed_in_function(tensor, place):
    """A model whose result is a tensor, which lies deep in a function."""
    out = [value("o", [4])]
    if place == "default":
        constant = node("Constant", [], "c")
        constant.attribute.add(name="value", ref_attr_name="told", type=onnx.AttributeProto.TENSOR)
        proto = with_function([constant])
        proto.functions[0].attribute_proto.append(helper.make_attribute("told", tensor))
        return proto
    if place == "constant of a body":
        body = helper.make_graph([node("Constant", [], "o", value=tensor)], "body", [], out)
    else:
        body = helper.make_graph([node("Identity", ["t"], "o")], "body", [], out, [tensor])
    always = numpy_helper.from_array(np.array(True), "always")
    choose = node("If", ["always"], "c", then_branch=body, else_branch=body)
    return with_function([node("Constant", [], "always", value=always), choose])


@pytest.mark.parametrize("place", ["default", "constant of a body", "initializer of a body"])
def test_external_weights_deep_in_functions(tmp_path, monkeypatch, place):
    """From the current folder they led anywhere, and those beside the model were not found."""
    tensor = TensorProto(name="t", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    entry = tensor.external_data.add(key="location", value="w.bin")
    found = np.arange(4, dtype=np.float32)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "w.bin").write_bytes(found.tobytes())
    path = tmp_path / "in" / "m.onnx"
    path.write_bytes(placed_in_function(tensor, place).SerializeToString())
    assert external_files(path.read_bytes(), path) == [path.with_name("w.bin")]
    monkeypatch.chdir(tmp_path)
    model = read_model(path)
    for again in (model, read_model(model.to_onnx())):  # what is written names no files
        (result,) = evaluate(again, x=X)
        np.testing.assert_array_equal(result, found)
    refused(path.read_bytes(), "is kept in file 'w.bin'; read the model from its path")
    entry.value = str(tmp_path / "in" / "w.bin")
    path.write_bytes(placed_in_function(tensor, place).SerializeToString())
    refused(path, "which is outside the model's folder")


# ------------------------------------------------------------------------ inner weights


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dims": [3, 3]}, "has 24 bytes; its shape [3, 3] and type take 36"),
        ({"dims": [-2, 3]}, "has shape [-2, 3]; sizes are 0 or more"),
        ({"data_type": 99}, "has element type 99"),
        ({"data_type": 0}, "has no element type"),
        ({"raw_data": b"abc"}, "has 3 bytes; its shape [2, 3] and type take 24"),
    ],
)
def test_weights_that_cannot_be(change, said):
    tensor = weight("w", X)
    for field, content in change.items():
        tensor.ClearField(field)
        getattr(tensor, field).extend(content) if field == "dims" else setattr(
            tensor, field, content
        )
    refused(
        model_of([node("Add", ["x", "w"], "y")], ["x"], ["y"], [tensor]), "Tensor 'w' of the Mod"
    )


@pytest.mark.parametrize(
    ("kind", "field", "content"),
    [
        (TensorProto.FLOAT, "float_data", []),
        (TensorProto.FLOAT, "float_data", [1.0] * 5),
        (TensorProto.FLOAT, "float_data", [1.0] * 7),
        (TensorProto.FLOAT, "int32_data", [1] * 6),
        (TensorProto.FLOAT16, "int32_data", [1] * 3),
        (TensorProto.INT4, "int32_data", [1] * 6),
        (TensorProto.COMPLEX64, "float_data", [1.0] * 6),
        (TensorProto.STRING, "string_data", [b"a"] * 5),
    ],
)
@pytest.mark.parametrize("size", [2, 1 << 40])
def test_weights_of_another_number_of_elements(kind, field, content, size):
    """Of a tensor that kept none devices made one of zeros, of any size that it claimed."""
    tensor = TensorProto(name="w", data_type=kind, dims=[size, 3])
    getattr(tensor, field).extend(content)
    refused(
        model_of([node("Identity", ["w"], "y")], [], ["y"], [tensor], opset=21, ir_version=10),
        f"its shape [{size}, 3] needs ",
    )


def test_weights_that_are_segments():
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[2], float_data=[1, 2])
    tensor.segment.end = 2
    refused(model_of([node("Neg", ["w"], "y")], [], ["y"], [tensor]), "is a segment of one")


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_weights_of_every_type_are_read_as_they_are_written(count, raw):
    for name, kind in TensorProto.DataType.items():
        if name in ("UNDEFINED", "STRING") or kind not in set(ir.DataType):
            continue  # onnx may know types that an older onnx-ir does not
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        elements = np.ones(count, np.float32).astype(dtype)
        content = numpy_helper.from_array(elements).raw_data if raw else elements.tolist()
        tensor = helper.make_tensor("w", kind, [count], content, raw=raw)
        proto = model_of([node("Identity", ["w"], "y")], [], ["y"], [tensor], ir_version=13)
        proto.opset_import[0].version = 25
        found = weights_of(read_model(proto))["w"]
        np.testing.assert_array_equal(found.view(dtype), elements, err_msg=name)


def test_weights_that_are_strings():
    words = helper.make_tensor("w", TensorProto.STRING, [2], [b"ja", "Gr\u00fc\u00dfe".encode()])
    model = read_model(model_of([node("Identity", ["w"], "y")], [], ["y"], [words]))
    assert evaluate(model)[0].tolist() == ["ja", "Gr\u00fc\u00dfe"]


def test_packed_weights_of_four_bits():
    tensor = helper.make_tensor("w", TensorProto.INT4, [3], [1, -2, 3])
    proto = model_of(
        [node("Cast", ["w"], "y", to=FLOAT)], [], ["y"], [tensor], opset=21, ir_version=10
    )
    assert weights_of(read_model(proto))["w"].astype(int).tolist() == [1, -2, 3]


def test_failed_inference_leaves_the_model_usable(caplog, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("out of ideas")

    monkeypatch.setattr("onnx.shape_inference.infer_shapes", fail)
    model = read_model(neg())
    assert model.outputs[0].shape is None
    assert "Shapes of model 'm' could not be inferred: out of ideas" in caplog.text


def test_defaults_of_inputs_are_constants_unless_they_are_taken_out():
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[2] x, float[2] w = {1.0, 2.0}) => (float[2] y) { y = Add(x, w) }"""
    proto = onnx.parser.parse_model(text)
    assert [port.name for port in read_model(proto).inputs] == ["x"]
    del proto.graph.initializer[:]
    model = read_model(proto)
    assert [port.name for port in model.inputs] == ["x", "w"]
    assert not model.ir.graph.initializers


@pytest.mark.parametrize(
    "told",
    [
        helper.make_tensor_value_info("like", TensorProto.STRING, [3]),
        helper.make_tensor_value_info("like", TensorProto.INT64, None),
        helper.make_tensor_sequence_value_info("like", TensorProto.FLOAT, None),
    ],
)
def test_a_constant_has_the_type_of_its_elements_whatever_a_file_says(told):
    proto = model_of(
        [node("CastLike", ["x", "like"], ["c"]), node("Shape", ["c"], ["y"])],
        [value("x", ["a", "b"], TensorProto.DOUBLE)],
        [value("y", [2], TensorProto.INT64)],
        [weight("like", np.ones(2, np.float32))],
        value_info=[told],
    )
    model = read_model(proto)
    held = model.ir.graph.initializers["like"]
    assert (held.dtype.name, tuple(held.shape)) == ("FLOAT", (2,))
    compiled = Core().compile_model(model, "CPU")
    assert compiled(np.ones((2, 3)))[0].tolist() == [2, 3]


def test_what_nobody_reads_in_a_body_is_dropped_with_its_own_bodies():
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x, bool c) => (float[N] y) {
      a = Exp (x)
      b = Neg (x)
      y = If (c) <
        then_branch = then () => (float[N] t) {
          [unread] u = If (c) <
            then_branch = one () => (float[N] o) { p = Abs (a)  o = Neg (p) },
            else_branch = two () => (float[N] q) { q = Abs (a) }
          >
          [reads_it] v = Neg (u)
          t = Identity (b)
        },
        else_branch = else () => (float[N] e) { e = Identity (x) }
      >
    }
    """
    model = Core().read_model(onnx.parser.parse_model(text))
    read = {name: bool(value.uses()) for name, value in _values(model).items()}
    assert read["b"]
    assert not read["a"]
    for condition in (True, False):
        x = np.array([1, -2], np.float32)
        (y,) = Core().compile_model(model, "CPU")([x, np.array(condition)]).to_tuple()
        np.testing.assert_array_equal(y, -x if condition else x)


def _values(model):
    return {value.name: value for node in model.ir.graph for value in node.outputs}
