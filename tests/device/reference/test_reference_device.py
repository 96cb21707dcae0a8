"""REFERENCE as a device: what it takes, what it says, whose memory it uses."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import onnxruntime
import pytest
from models import FLOAT, affine, if_with_capture, model_of, neg, node, value, weight
from onnx import TensorProto, helper, parser

import partita
from partita.errors import CompileError, InferError, InputError, UnsupportedOpError
from partita.tensors.sequence_values import boxed, unboxed
from partita_conformance.draws.cover import nth
from partita_conformance.draws.operators import GENERATORS
from partita_conformance.draws.operators import model_of as drawn_model
from partita_conformance.suites.numerics.suite_operators import kinds_taken

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def foreign(name="magic", inputs=("x",), output="y"):
    return helper.make_node("Magic", inputs, [output], name=name, domain="their.own")


def test_what_it_is(core):
    info = core.device_info("REFERENCE")
    assert (info.device, info.kind, info.memory) == ("REFERENCE", "reference", "host")
    assert info.driver.startswith("onnx 1.")


def test_it_agrees_with_onnxruntime(core):
    (expected,) = onnxruntime.InferenceSession(affine().SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(core.compile_model(affine(), "REFERENCE")(X)["y"], expected)


@pytest.mark.parametrize(("flag", "expected"), [(True, [2, 3]), (False, [3, 8])])
def test_bodies_that_read_from_outside(core, flag, expected):
    compiled = core.compile_model(if_with_capture(), "REFERENCE")
    result = compiled({"flag": np.array(flag), "x": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(result[0], expected)


def test_it_refuses_operators_that_it_does_not_have(core):
    model = model_of([node("Neg", ["x"], "n", "neg"), foreign(inputs=["n"])], ["x"], ["y"])
    answer = core.query_model(model, "REFERENCE")
    assert answer == {"neg": "REFERENCE"}
    assert str(answer.reasons["magic"]) == (
        "UNSUPPORTED_OP: onnx.reference has no 'their.own::Magic' of opset 1"
    )
    with pytest.raises(UnsupportedOpError) as caught:
        core.compile_model(model, "REFERENCE")
    assert str(caught.value).startswith(
        "Device 'REFERENCE' does not take 1 of 2 operations of model 'm': 'magic' (Magic): UNSUP"
    )


def test_it_looks_into_bodies(core):
    proto = if_with_capture()
    body = proto.graph.node[0].attribute[0].g
    body.node[0].CopyFrom(foreign(output=body.output[0].name))
    answer = core.query_model(proto, "REFERENCE")
    assert answer == {}
    assert "'their.own::Magic'" in answer.reasons["choose"].detail


def test_operators_of_versions_that_do_not_exist_yet(core):
    model = model_of([node("Gelu", ["x"], "y", "gelu")], ["x"], ["y"], opset=17)  # came with 20
    assert core.query_model(model, "REFERENCE").reasons["gelu"].code == "UNSUPPORTED_OP"


def test_a_model_that_the_evaluator_refuses(core, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise RuntimeError("no")

    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.__init__", refuse)
    with pytest.raises(CompileError, match=r"The reference evaluator refuses 'm': no"):
        core.compile_model(neg(), "REFERENCE")


def test_what_fails_while_it_runs(core):
    model = model_of([node("Add", ["a", "b"], "y")], ["a", "b"], ["y"])
    compiled = core.compile_model(model, "REFERENCE")
    with pytest.raises(InputError, match=r"evaluator cannot compute these inputs: \w+Error: "):
        compiled([np.ones(2, np.float32), np.ones(3, np.float32)])
    np.testing.assert_array_equal(compiled([X, X])[0], 2 * X)


MISFITS = {
    "Add": ({}, [[3], [4]]),
    "MatMul": ({}, [[3, 4], [5, 4]]),
    "Gemm": ({}, [[3, 4], [5, 4]]),
    "Concat": ({"axis": 0}, [[3, 2], [5, 4]]),
    "Conv": ({}, [[1, 2, 5, 5], [2, 3, 3, 3]]),
    "LayerNormalization": ({}, [[3, 5], [4]]),
    "Einsum": ({"equation": "ij,jk->ik"}, [[3, 4], [5, 4]]),
}


@pytest.mark.parametrize("op_type", MISFITS)
def test_shapes_that_do_not_fit_each_other_are_the_requests_fault(core, op_type):
    attributes, shapes = MISFITS[op_type]
    model = model_of([node(op_type, ["a", "b"], "y", **attributes)], ["a", "b"], ["y"])
    for device in ("REFERENCE", "CPU"):
        with pytest.raises(InputError):
            core.compile_model(model, device)([np.ones(shape, np.float32) for shape in shapes])


def test_what_the_evaluator_raises_for_inputs_of_the_only_shape_is_its_own_fault(core, monkeypatch):
    def fail(self, *args, **kwargs):
        raise ValueError("out of order")

    compiled = core.compile_model(neg([2, 3]), "REFERENCE")
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", fail)
    with pytest.raises(InferError, match=r"The reference evaluator failed: ValueError: out of or"):
        compiled(np.ones((2, 3), np.float32))


def test_inputs_are_not_written_and_outputs_are_its_own(core):
    shared = model_of([node("Identity", ["x"], "y")], ["x"], ["y", "x", "w"], [weight("w", X)])
    compiled = core.compile_model(shared, "REFERENCE")
    request = compiled.create_infer_request()
    x = X.copy()
    y, same, w = request.infer(x, share_outputs=True).to_tuple()
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(w, X)
    for output in (y, same):
        output += 1
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize(
    "dtype", ["FLOAT16", "DOUBLE", "INT8", "UINT64", "BOOL", "STRING", "BFLOAT16"]
)
def test_element_types(core, dtype):
    number = getattr(TensorProto, dtype)
    proto = model_of(
        [node("Identity", ["x"], "y")], [value("x", [2], number)], [value("y", [2], number)]
    )
    compiled = core.compile_model(proto, "REFERENCE")
    port = compiled.input()
    x = np.array(["a", "ä"] if dtype == "STRING" else [0, 1]).astype(port.dtype)
    (result,) = compiled(x).to_tuple()
    assert result.dtype == port.dtype
    assert result.tolist() == x.tolist()


def test_scalars_and_empty_tensors(core):
    compiled = core.compile_model(neg(None), "REFERENCE")
    for shape in ((), (0,), (2, 0, 3)):
        assert compiled(np.zeros(shape, np.float32))[0].shape == shape


def test_counters(core):
    compiled = core.compile_model(affine(), "REFERENCE", {"PERF_COUNT": "YES"})
    request = compiled.create_infer_request()
    assert list(request.profiling_info) == []
    request.infer(X)
    assert sum(info.real_time_us for info in request.profiling_info) > 0
    assert isinstance(request.runner.profiling_info(), tuple)  # which no caller can clear


def test_weights_in_a_file_are_not_copied(core, tmp_path):
    big = np.ones((1024, 1024), np.float32)
    (tmp_path / "m.onnx").write_bytes(
        model_of(
            [node("MatMul", ["x", "w"], "y")], [value("x", (1, 1024))], ["y"], [weight("w", big)]
        ).SerializeToString()
    )
    core.compile_model(affine(), "REFERENCE")  # imports what it needs
    tracemalloc.start()
    try:
        compiled = core.compile_model(tmp_path / "m.onnx", "REFERENCE")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < big.nbytes / 2
    np.testing.assert_array_equal(compiled(big[:1])["y"], big[:1] * 1024)


def test_strings_among_weights(core):
    words = helper.make_tensor("w", TensorProto.STRING, [2], ["ä", "b"])
    model = model_of(
        [node("Equal", ["x", "w"], "y")], [value("x", (2,), TensorProto.STRING)], ["y"], [words]
    )
    given = np.array(["ä", "c"], object)
    assert core.compile_model(model, "REFERENCE")(given)["y"].tolist() == [True, False]


def test_export_and_import(core):
    compiled = core.compile_model(affine(), "REFERENCE", {"PERF_COUNT": True})
    again = core.import_model(compiled.export_model(), "REFERENCE")
    assert again.get_property("PERF_COUNT") is True
    np.testing.assert_array_equal(again(X)[0], compiled(X)[0])


def test_sequences_are_computed_inside(core):
    nodes = [
        node("SplitToSequence", ["x"], "s", axis=0, keepdims=1),
        node("ConcatFromSequence", ["s"], "y", axis=1),
    ]
    proto = model_of(nodes, [value("x", [2, 4])], [value("y", None, FLOAT)])
    np.testing.assert_array_equal(core.compile_model(proto, "REFERENCE")(X)[0], X.reshape(1, 8))


@pytest.mark.parametrize("lengths", [(2, 1), (2, 2), (3,), ()], ids=str)
@pytest.mark.parametrize("kind", [list, tuple])
def test_sequences_are_given_as_lists_of_arrays(core, lengths, kind):
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (seq(float[N]) s) => (seq(float[N]) t, int64 n)
    <float[2] w = {1, 2}> { t = SequenceInsert(s, w) n = SequenceLength(s) }""")
    request = core.compile_model(proto, "REFERENCE").create_infer_request()
    arrays = [np.full(length, length, np.float32) for length in lengths]
    result = request.infer({"s": kind(arrays)})
    assert result["n"] == len(lengths)
    for found, due in zip(unboxed(result["t"]), [*arrays, [1, 2]], strict=True):
        np.testing.assert_array_equal(found, due)


def test_listing_it_imports_no_evaluator():
    code = (
        "import sys, partita; partita.Core().device_info('REFERENCE')\n"
        "print('onnx' in sys.modules, 'onnx_ir' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("op_type", "given"),
    [
        ("LpPool", {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
        ("LpPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Upsample", {"mode": "linear", "scales": [1.0, 1.0, 2.0, 2.0]}),
        ("Upsample", {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 2.0]}),
        ("GridSample", {"mode": "cubic", "padding_mode": "border"}),
        ("GridSample", {"mode": "linear", "padding_mode": "border"}),
    ],
)
def test_what_the_evaluator_misreads_is_corrected_and_taken(op_type, given):
    shapes = {"x": [1, 1, 5, 5], "grid": [1, 2, 2, 2]}
    names = ["x", "grid"] if op_type == "GridSample" else ["x"]
    opset = 7 if op_type == "Upsample" else 20
    one = helper.make_node(op_type, names, ["y"], name="one", **given)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in names]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([one], "one", inputs, [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    core = partita.Core()
    assert "one" in core.query_model(core.read_model(proto), "REFERENCE")


def test_it_judges_each_random_model_of_the_kit(core):
    """Where onnxruntime is not installed, nothing else does."""
    refused = []
    for op in GENERATORS:
        for number in range(kinds_taken(op, 4)):
            model = core.read_model(drawn_model(op, nth(op, number))[0])
            answer = core.query_model(model, "REFERENCE")
            refused += [(op, number) for one in model.ops if one.name not in answer]
    assert refused == []


@pytest.mark.parametrize(
    ("attribute", "value", "taken"),
    [
        ("clip", 0.5, True),
        ("input_forget", 1, True),
        ("activations", ["Sigmoid", "Relu", "Tanh"], True),
        ("activations", ["Sigmoid", "Frelu", "Tanh"], False),
    ],
)
def test_unknown_activations_are_refused(attribute, value, taken):
    node = helper.make_node(
        "LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=3, **{attribute: value}
    )
    shapes = {"x": [4, 2, 5], "w": [1, 12, 5], "r": [1, 12, 3]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 1, 2, 3])
    graph = helper.make_graph([node], "recurrent", inputs, [output])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    core = partita.Core()
    answer = core.query_model(core.read_model(proto), "REFERENCE")
    assert ("lstm" in answer) == taken
    if not taken:
        assert answer.reasons["lstm"].code == partita.ReasonCode.UNSUPPORTED_ATTRIBUTE
        assert attribute in answer.reasons["lstm"].detail


def test_an_output_that_is_left_out_is_no_input_that_is_left_out(core):
    rng = np.random.default_rng(0)
    weights = [
        weight("w", rng.normal(size=(1, 12, 2)).astype(np.float32)),
        weight("r", rng.normal(size=(1, 12, 3)).astype(np.float32)),
        weight("most", np.float32(0.1)),
    ]
    nodes = [
        node("LSTM", ["x", "w", "r"], ["", "h"], "lstm", hidden_size=3),
        node("Clip", ["h", "", "most"], "y", "clip"),
    ]
    model = model_of(nodes, [value("x", (4, 1, 2))], ["y"], weights)
    x = rng.normal(size=(4, 1, 2)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = core.compile_model(model, "REFERENCE")(x)["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_outputs_lie_in_no_constant(core):
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] w, float[2] c, float[2] v) <float[2] w = {1, 2}> {
      c = Constant <value_floats = [3.0, 4.0]> ()
      v = Identity(w)
    }""")
    compiled = core.compile_model(proto, "REFERENCE").device_model
    runners = [compiled.create_runner() for _ in range(2)]
    tensor = partita.HostTensor(np.zeros(2, np.float32))
    first, second = ([t.numpy() for t in runner.run([tensor])] for runner in runners)
    for array in first:
        array[...] = 9
    for array, due in zip(second, ([1, 2], [3, 4], [1, 2]), strict=True):
        np.testing.assert_array_equal(array, due)
    np.testing.assert_array_equal(runners[0].run([tensor])[1].numpy(), [3, 4])


def test_sequences_hold_tensors_of_their_own(core):
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (seq(float[2]) s) <float[2] w = {1, 2}> { s = SequenceConstruct(w, x) }""")
    runner = core.compile_model(proto, "REFERENCE").device_model.create_runner()
    tensor = partita.HostTensor(np.zeros(2, np.float32))
    for _ in range(2):
        (box,) = (t.numpy() for t in runner.run([tensor]))
        constant, given = unboxed(box)
        np.testing.assert_array_equal(constant, [1, 2])
        constant[...] = given[...] = 9
    np.testing.assert_array_equal(tensor.numpy(), 0)


def test_identity_hands_on_an_optional_without_a_value(core):
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (optional(float[2]) o) => (optional(float[2]) p) { p = Identity(o) }""")
    request = core.compile_model(proto, "REFERENCE").create_infer_request()
    for given in (None, np.ones(2, np.float32), None):
        (box,) = request.infer({"o": boxed(given)}).to_tuple()
        np.testing.assert_equal(unboxed(box), given)
