"""Models: ports, operations, notes that survive saving, new shapes, cuts."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
from models import FLOAT, add_sub, affine, if_with_capture, model_of, neg, node, value, weight
from onnx import TensorProto, helper

import partita
from partita import Model
from partita.errors import ModelError, ModelFormatError
from partita.frontends.reader import read_model
from partita.model.port import note_example
from partita.preprocess import PrePostProcessor

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def run(model, **feeds):
    """The model in onnxruntime."""
    proto = model if isinstance(model, onnx.ModelProto) else model.to_onnx()
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, feeds)


# ---------------------------------------------------------------------- ports and ops


def test_ports():
    model = read_model(affine())
    (x,), (y,) = model.inputs, model.outputs
    assert (x.index, x.name, x.dtype, x.shape) == (0, "x", np.float32, ("N", 4))
    assert (y.name, y.dtype, y.shape, y.is_input) == ("y", np.float32, ("N", 3), False)
    assert x.describe() == "float32[N, 4]"
    assert not x.is_static
    assert model.is_dynamic()
    assert read_model(neg()).inputs[0].is_static
    assert not read_model(neg()).is_dynamic()
    assert x.names == {"x"}
    assert x.any_name == x.get_any_name() == "x"
    assert x.partial_shape == x.get_partial_shape() == ("N", 4)
    assert x.element_type == x.get_element_type() == np.float32


def test_ports_of_unknown_type_rank_and_kind():
    model = read_model(neg(None))
    assert model.inputs[0].shape is None
    assert model.inputs[0].describe() == "float32[...]"
    assert not model.inputs[0].is_static
    untyped = model_of([node("Neg", ["x"], "y")], [value("x", [2])], ["y"])
    untyped.graph.input[0].ClearField("type")
    assert read_model(untyped).inputs[0].describe() == "unknown type[...]"
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    model = read_model(model_of([node("SequenceConstruct", ["x"], "s")], ["x"], [sequence]))
    assert (model.outputs[0].dtype, model.outputs[0].shape) == (None, None)
    assert model.outputs[0].describe() == "unknown type[...]"


@pytest.mark.parametrize("key", [1, -1, "b"])
def test_finding_a_port(key):
    model = read_model(add_sub())
    port = model.input(key)
    assert port.name == "b"
    assert model.input(port) == port
    assert model.output(0).name == "sum"
    assert read_model(affine()).input().name == "x"


def test_ports_of_several_have_to_be_named():
    model = read_model(add_sub())
    compiled = partita.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    steps = PrePostProcessor(model)
    for ask in (model.input, compiled.input, request.get_input_tensor, steps.input):
        with pytest.raises(ModelError, match=r"has 2 inputs \('a', 'b'\); say which\.$"):
            ask()
    for ask in (model.output, compiled.output, request.get_output_tensor, steps.output):
        with pytest.raises(ModelError, match=r"has 2 outputs \('sum', 'difference'\); say which"):
            ask()
    with pytest.raises(ModelError, match=r"has 2 outputs"):
        request.set_output_tensor(partita.Tensor(np.zeros((2, 3), np.float32)))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("c", "Model 'm' has no input 'c'; it has 'a', 'b'."),
        (2, "Model 'm' has 2 inputs; there is no input 2."),
        (-3, "there is no input -3"),
    ],
)
def test_ports_that_are_not_there(key, said):
    with pytest.raises(ModelError, match=said):
        read_model(add_sub()).input(key)
    with pytest.raises(ModelError, match=r"has no output 'a'; it has 'sum', 'difference'"):
        read_model(add_sub()).output("a")


def test_operations():
    model = read_model(affine())
    assert [op.name for op in model.ops] == ["matmul", "bias", "relu"]
    first, second, _ = model.get_ordered_ops()
    assert (first.op_type, first.domain, first.version) == ("MatMul", "", 17)
    assert (first.inputs, first.outputs) == (("x", "w"), ("product",))
    assert first.get_friendly_name() == first.friendly_name == "matmul"
    assert first.get_type_name() == "MatMul"
    assert first == model.get_ops()[0]
    assert first != second
    assert len({first, model.ops[0], second}) == 2
    assert repr(first) == "<Op 'matmul' MatMul>"
    assert model.name == model.friendly_name == model.get_friendly_name() == "affine"
    assert repr(model) == "<Model 'affine': 3 ops, 1 inputs, 1 outputs>"


def test_optional_inputs_that_are_left_out():
    clip = model_of([node("Clip", ["x", "", "high"], "y")], ["x"], ["y"], [weight("high", X[0, 0])])
    assert read_model(clip).ops[0].inputs == ("x", None, "high")


# -------------------------------------------------------------- notes and affinities


def test_notes_on_operations():
    op = read_model(neg()).ops[0]
    assert op.affinity is None
    op.get_rt_info()["affinity"] = "GPU.1"
    assert op.affinity == op.rt_info["affinity"] == "GPU.1"
    op.rt_info["cost"] = 3
    assert dict(op.rt_info) == {"affinity": "GPU.1", "cost": "3"}
    assert len(op.rt_info) == 2
    op.affinity = None
    op.affinity = None
    assert dict(op.rt_info) == {"cost": "3"}
    del op.rt_info["cost"]
    with pytest.raises(KeyError):
        op.rt_info["cost"]


def test_notes_of_others_are_left_alone():
    proto = neg()
    proto.graph.node[0].metadata_props.add(key="affinity", value="theirs")
    model = read_model(proto)
    assert model.ops[0].affinity is None
    model.ops[0].affinity = "CPU"
    kept = {entry.key: entry.value for entry in model.to_onnx().graph.node[0].metadata_props}
    assert kept["affinity"] == "theirs"


@pytest.mark.parametrize(
    "name", ["plain", "a/b:c.d", "mit Leerzeichen", "ключ", "x" * 300, "0", "'\""]
)
def test_affinities_survive_saving_whatever_the_names(tmp_path, name):
    proto = neg()
    proto.graph.node[0].name = name
    model = read_model(proto)
    model.ops[0].affinity = "OPENCL.1"
    model.save(tmp_path / "m.onnx")
    again = read_model(tmp_path / "m.onnx")
    assert [(op.name, op.affinity) for op in again.ops] == [(name, "OPENCL.1")]


def test_affinities_of_unnamed_and_equally_named_operations_survive(tmp_path):
    names = ["", "", "twice", "twice", "Neg_0"]
    nodes = [node("Neg", [f"v{i}"], f"v{i + 1}", name) for i, name in enumerate(names)]
    model = read_model(model_of(nodes, ["v0"], ["v5"]))
    for i, op in enumerate(model.ops):
        op.affinity = f"D.{i}"
    model.save(tmp_path / "m.onnx")
    again = read_model(tmp_path / "m.onnx")
    assert [(op.name, op.affinity) for op in again.ops] == [(o.name, o.affinity) for o in model.ops]


def test_saving_where_that_cannot_be(tmp_path):
    with pytest.raises(ModelError, match=r"Cannot save the model to '.*no/m.onnx': .*No such file"):
        read_model(neg()).save(tmp_path / "no" / "m.onnx")


def test_metadata():
    proto = neg()
    proto.metadata_props.add(key="labels", value="cat,dog")
    model = read_model(proto)
    assert model.metadata == {"labels": "cat,dog"}
    assert model.clone().metadata == {"labels": "cat,dog"}


# --------------------------------------------------------------------------- weights


@pytest.fixture
def external(tmp_path):
    """A model whose weights lie in a file beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "m.onnx"
    onnx.save(affine(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_a_protobuf_needs_no_file(external):
    model = read_model(external)
    np.testing.assert_array_equal(run(model, x=X)[0], run(affine(), x=X)[0])


def test_saving_elsewhere_takes_the_weights_along(external, tmp_path):
    read_model(external).save(tmp_path / "other.onnx")
    external.with_name("w.bin").unlink()
    again = read_model(tmp_path / "other.onnx")
    np.testing.assert_array_equal(run(again, x=X)[0], run(affine(), x=X)[0])


def test_weights_too_large_for_one_protobuf_go_beside_it(tmp_path, monkeypatch):
    w = np.arange(400, dtype=np.float32).reshape(4, 100)
    proto = model_of(
        [node("MatMul", ["x", "w"], "y")], [value("x", [2, 4])], ["y"], [weight("w", w)]
    )
    path = tmp_path / "m.onnx"
    monkeypatch.setattr("partita.model.model.PROTOBUF_BYTES", 1000)
    read_model(proto).save(path)
    assert (tmp_path / "m.onnx.data").stat().st_size == w.nbytes
    model = read_model(path)
    model.ops[0].affinity = "CPU"
    model.save(path)  # over the very file that its weights lie in
    for saved in (model, read_model(path)):
        assert saved.ops[0].affinity == "CPU"
        np.testing.assert_allclose(run(saved, x=X)[0], X @ w)


# ---------------------------------------------------------------------------- clones


@pytest.mark.parametrize("duplicate", [Model.clone, copy.copy, copy.deepcopy])
def test_clones_are_independent_but_share_weights(duplicate):
    model = read_model(affine())
    model.ops[0].affinity = "CPU"
    twin = duplicate(model)
    assert [(op.name, op.affinity) for op in twin.ops] == [
        ("matmul", "CPU"), ("bias", None), ("relu", None)
    ]  # fmt: skip
    twin.ops[0].affinity = "GPU"
    twin.ops[1].rt_info["cost"] = "1"
    twin.reshape([7, 4])
    assert model.ops[0].affinity == "CPU"
    assert dict(model.ops[1].rt_info) == {}
    assert model.outputs[0].shape == ("N", 3)
    assert twin.outputs[0].shape == (7, 3)
    weights = [m.ir.graph.initializers["w"].const_value for m in (model, twin)]
    assert weights[0] is weights[1]


def test_clones_keep_bodies():
    twin = read_model(if_with_capture()).clone()
    feeds = {"flag": np.array(False), "x": np.array([1, 2], np.float32)}
    np.testing.assert_array_equal(run(twin, **feeds)[0], [3, 8])


# ----------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("key", [0, "x", None])
def test_reshape(key):
    model = read_model(affine())
    port = model.inputs[0]
    assert model.reshape([2, 4] if key is None else {key: (2, 4)}) is model
    assert model.outputs[0].shape == (2, 3)
    model.reshape({port: [np.int64(5), np.int32(4)]})
    assert model.outputs[0].shape == (5, 3)
    model.reshape(["batch", 4])
    assert model.outputs[0].shape == ("batch", 3)
    for unknown in (-1, None):
        model.reshape([unknown, 4])
        assert model.inputs[0].shape == (None, 4)
        assert model.outputs[0].shape == (None, 3)


@pytest.mark.parametrize(
    ("claimed", "given", "found"),
    [
        (("N", 4), [3, 4], (3, 4)),
        (("N", "M"), [3, 4], (3, "M")),  # no input says what M is
        (("N", 4), ["B", 4], ("B", 4)),
        (("N", 4), [-1, 4], (None, 4)),
        ((7, 4), [3, 4], (None, None)),  # 7 may have come from the input that was
        (None, [3, 4], None),
    ],
)
def test_reshape_keeps_what_holds_behind_operators_that_onnx_does_not_know(claimed, given, found):
    model = read_model(
        model_of(
            [node("Foo", ["x"], "f", domain="mine"), node("Relu", ["f"], "y")],
            [value("x", ("N", 4))],
            [value("y", claimed)],
            value_info=[value("f", claimed)],
        )
    )
    model.reshape(given)
    assert model.outputs[0].shape == found


def test_a_symbol_that_inputs_no_longer_agree_about_is_unknown():
    model = read_model(
        model_of(
            [node("Foo", ["a", "b"], "y", domain="mine")],
            [value("a", ("N", 4)), value("b", ("N", 4))],
            [value("y", ("N", 4))],
        )
    )
    model.reshape({"a": [2, 4], "b": [3, 4]})
    assert model.outputs[0].shape == (None, 4)


def test_reshape_forgets_what_was_inferred_before():
    model = read_model(neg([2, 3]))
    model.reshape([4, 5])
    assert model.outputs[0].shape == (4, 5)
    assert model.ir.graph.outputs[0].shape.numpy() == (4, 5)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([1], "Input 'x' has rank 2 (float32[N, 4]); shape [1] has 1 dimensions."),
        ({"x": [1, 2, 3]}, "shape [1,2,3] has 3 dimensions"),
        ({"z": [1, 4]}, "has no input 'z'; it has 'x'"),
        ({1: [1, 4]}, "has 1 inputs; there is no input 1"),
        ([-2, 4], "'x' cannot have shape [-2, 4]: Sizes from -2 to -2 are not valid bounds"),
        ([2**63, 4], "Sizes from 9223372036854775808 to 9223372036854775808 are not valid bounds"),
        (["9999999999999999999", 4], "'9999999999999999999' are not valid bounds of a dimension"),
        ([1.5, 4], "A dimension is a size, two bounds or a text; found 1.5"),
        (["", 4], "'' is not a dimension; write '3', '2..5', '2..', '..5', '?' or a symbol"),
        ("ab", "shape [ab] has 1 dimensions"),
        ("x[1,4]", "'x[1' is not a dimension; write '3'"),
        ("...", "The shape of input 'x' is a sequence of dimensions; found '...'."),
        (3, "A shape is a sequence of dimensions; found 3"),
        ({"x": None}, "is a sequence of dimensions; found None"),
    ],
)
def test_reshape_refuses(shapes, said):
    model = read_model(affine())
    with pytest.raises(ModelError) as caught:
        model.reshape(shapes)
    assert said in str(caught.value)


def test_reshape_is_all_or_nothing():
    model = read_model(add_sub())
    with pytest.raises(ModelError, match=r"has rank 2"):
        model.reshape({"a": [4, 4], "b": [4]})
    assert [port.shape for port in (*model.inputs, *model.outputs)] == [(2, 3)] * 4
    with pytest.raises(ModelError, match=r"has 2 inputs; give a dict of input name to shape"):
        model.reshape([4, 4])


def test_claims_about_computed_shapes_give_way_to_inference():
    proto = model_of([node("Neg", ["x"], "y")], [value("x", ["N", 3])], [value("y", [1, 3])])
    assert read_model(proto).outputs[0].shape == ("N", 3)


@pytest.mark.parametrize(
    ("given", "claimed", "expected"),
    [
        ([2, 3], [2, 7], (2, 7)),
        (["N", 3], ["N", 7], ("N", 7)),
        (["N", 3], [1, 7], (None, None)),  # 1 may be from when it was exported
        (["N", 3], None, None),
    ],
)
def test_claims_count_where_inference_ends(given, claimed, expected):
    foreign = helper.make_node("Magic", ["x"], ["m"], domain="their.own")
    inputs = [value("x", given)]
    inside = model_of(
        [foreign, node("Neg", ["m"], "y")], inputs, ["y"], value_info=[value("m", claimed)]
    )
    model = read_model(inside)
    assert model.outputs[0].shape == expected
    assert model.ops[0].version == 1
    assert (
        read_model(model_of([foreign], inputs, [value("m", claimed)])).outputs[0].shape == expected
    )


def test_weights_take_part_in_inference_in_models_of_old_ir_versions():
    proto = model_of(
        [node("Unsqueeze", ["w"], "u", axes=[1]), node("Mul", ["x", "u"], "y")],
        [value("x", [1, 4, 5])],
        ["y"],
        [weight("w", np.ones(4, np.float32))],
        opset=9,
        ir_version=3,
    )
    assert read_model(proto).output().shape == (1, 4, 5)


def test_shapes_are_computed_from_weights_and_types_are_corrected():
    proto = model_of(
        [node("Reshape", ["x", "to"], "r"), node("Shape", ["r"], "y")],
        [value("x", [2, 6])],
        [value("y", [9], FLOAT), value("r", None)],
        [weight("to", np.array([3, -1], np.int64))],
    )
    y, r = read_model(proto).outputs
    assert (y.dtype, y.shape) == (np.int64, (2,))
    assert r.shape == (3, 4)


def test_sizes_that_nobody_knows_have_no_name():
    proto = model_of([node("NonZero", ["x"], "y")], ["x"], [value("y", None, TensorProto.INT64)])
    model = read_model(proto).reshape(["N", "N"])
    assert model.outputs[0].shape == (2, None)


# ------------------------------------------------------------------------------ cuts


def test_extract():
    model = read_model(affine())
    cut = model.extract(["product"], ["y"], "tail")
    assert (cut.name, [op.name for op in cut.ops]) == ("tail", ["bias", "relu"])
    product = np.array([[1, 1, -9]], np.float32)
    np.testing.assert_array_equal(run(cut, product=product)[0], [[2, 0, 0]])
    assert len(model.ops) == 3


def test_extract_by_nodes_brings_captured_values():
    model = read_model(if_with_capture())
    nodes = [op.node for op in model.ops]
    cut = model.extract(["flag", "x"], ["y"], "all", nodes)
    feeds = {"flag": np.array(True), "x": np.array([1, 2], np.float32)}
    np.testing.assert_array_equal(run(cut, **feeds)[0], [2, 3])


def test_extract_by_nodes_lists_what_bodies_read_from_outside():
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "outer"], ["t"]),
            helper.make_node("Mul", ["t", "w"], ["s2"]),
            helper.make_node("Identity", ["c"], ["c2"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL), value("s", [2])],
        [value("c2", [], TensorProto.BOOL), value("s2", [2])],
    )
    model = read_model(
        model_of(
            [
                node("Neg", ["x"], "outer", "neg"),
                node("Loop", ["m", "", "x"], "y", "loop", body=body),
            ],
            [value("x", [2]), value("m", [], TensorProto.INT64)],
            [value("y", [2])],
            [weight("w", np.array([2, 3], np.float32))],
        )
    )
    cut = model.extract(["m", "x"], ["y"], "loop", [model.ops[1].node])
    assert [port.name for port in cut.inputs] == ["m", "x", "outer"]
    feeds = {"m": np.array(2), "x": np.float32([1, 2]), "outer": np.float32([5, 7])}
    np.testing.assert_array_equal(run(cut, **feeds)[0], [((1 + 5) * 2 + 5) * 2, 3 * (27 + 7)])


@pytest.mark.parametrize("by_nodes", [False, True])
@pytest.mark.parametrize(("start", "end"), [("no", "y"), ("product", "no"), ("b", "y")])
def test_extract_refuses(by_nodes, start, end):
    model = read_model(affine())
    nodes = [op.node for op in model.ops] if by_nodes else None
    with pytest.raises(ModelError, match=r"Cannot cut 'part' out of model 'affine'"):
        model.extract([start], [end], "part", nodes)


def test_a_port_has_the_example_that_is_noted_as_long_as_it_takes_it():
    model = read_model(neg(["n", 3]))
    assert model.input().example is None
    note_example(model.ir.graph.inputs[0], (2, 3))
    assert model.input().example == (2, 3)
    assert model.clone().input().example == (2, 3)
    model.reshape((5, 3))
    assert model.input().example is None
    model.ir.graph.inputs[0].metadata_props["partita.example"] = "[null]"
    with pytest.raises(ModelFormatError, match="The notes on 'x' in the model's metadata"):
        model.input()
