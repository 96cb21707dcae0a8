"""Bisection finds the fault of a device that is made faulty, and its files show it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.bisection import bisect
from partita.bisection.finding import Kind
from partita.cli.main import main
from partita.errors import CompileError, InputError

from ..fakes import FakeDevice, core_with, evaluate
from ..faulty import FaultyDevice
from ..graphs import CHAIN, X, model_of, node
from ..lossy import LossyDevice


def long_chain(count, odd=None):
    """Tanh(x + 0.1) again and again, with another operator at some place."""
    nodes, previous = [], "x"
    for i in range(count):
        op_type, inputs = ("Tanh", [previous]) if i % 2 else ("Add", [previous, "b"])
        if i == odd:
            op_type, inputs = "Sigmoid", [previous]
        nodes.append(node(op_type, inputs, f"v{i}"))
        previous = f"v{i}"
    return model_of(nodes, [previous], initializers=[("b", np.full(3, 0.1, np.float32))])


def reproduces(core, finding, device, rtol=1e-3):
    """The files alone, read by onnx itself, show the fault on the device and not elsewhere."""
    proto = onnx.load(finding.model)
    onnx.checker.check_model(proto, full_check=True)
    feeds, expected = {}, []
    for kind, infos, found in (
        ("input", proto.graph.input, feeds),
        ("output", proto.graph.output, {}),
    ):
        for index, info in enumerate(infos):
            tensor = onnx.load_tensor(finding.data / f"{kind}_{index}.pb")
            found[info.name] = numpy_helper.to_array(tensor)
        expected = list(found.values())
    for want, right in zip(expected, evaluate(proto, feeds), strict=True):
        np.testing.assert_allclose(want, right, rtol=1e-5)
    got = core.compile_model(proto, device)(feeds).to_tuple()
    return not all(
        np.allclose(a, b, rtol=rtol, atol=1e-4) for a, b in zip(got, expected, strict=True)
    )


def test_a_right_device_has_no_fault(tmp_path):
    core = core_with(FakeDevice("A"))
    result = bisect(CHAIN, "HETERO:A", {"x": X}, core=core, output=tmp_path / "r.onnx")
    assert result.ok
    assert result.finding is None
    assert [v.value for v in result.values] == ["a", "b", "c", "d"]
    assert str(result).endswith("nothing to find")
    assert not list(tmp_path.iterdir())


def test_the_first_wrong_operation_is_found_and_shown_alone(tmp_path):
    core = core_with(FaultyDevice("BAD", wrong={"Exp": 1.01, "Abs": 3.0}))
    path = tmp_path / "repro.onnx"
    result = bisect(CHAIN, "BAD", {"x": X}, core=core, output=path)
    finding = result.finding
    assert (finding.kind, list(finding.ops), list(finding.devices)) == (
        Kind.OPERATION,
        ["b"],
        ["BAD"],
    )
    assert "'b' (Exp on BAD) is wrong by itself" in str(finding)
    assert [v.difference.ok for v in result.values] == [True, False, False, False]
    assert finding.difference.max_abs == pytest.approx(0.01 * np.exp(5), rel=1e-4)
    assert finding.verified
    assert [n.op_type for n in onnx.load(path).graph.node] == ["Exp"]
    assert reproduces(core, finding, "BAD")
    assert not reproduces(core, finding, "REFERENCE")


def test_of_two_devices_the_faulty_one_is_named_and_the_file_pins_it(tmp_path):
    core = core_with(FakeDevice("A", refuses=["Neg"]), FaultyDevice("BAD", wrong={"Neg": 1.5}))
    path = tmp_path / "repro.onnx"
    result = bisect(CHAIN, "HETERO:A,BAD", {"x": X}, core=core, output=path)
    assert list(result.finding.devices) == ["BAD"]
    assert list(result.finding.ops) == ["c"]
    assert result.finding.verified
    assert core.read_model(path).ops[0].affinity == "BAD"
    assert [v.device for v in result.values] == ["A", "A", "BAD", "A"]


def test_an_operation_that_only_passes_errors_on_is_not_blamed():
    core = core_with(FaultyDevice("BAD", wrong={"Sigmoid": 1.2}))
    result = bisect(long_chain(1000, odd=613), "BAD", {"x": X}, core=core)
    assert list(result.finding.ops) == ["v613"]
    assert result.finding.kind is Kind.OPERATION
    assert sum(not v.difference.ok for v in result.values) > 1


def test_operations_that_are_wrong_only_together(tmp_path):
    device = FaultyDevice("BAD", fused={("Sigmoid", "Tanh"): 1.3})
    core = core_with(device)
    path = tmp_path / "repro.onnx"
    proto = long_chain(126, odd=122)
    result = bisect(proto, "BAD", {"x": X}, core=core, output=path)
    assert all(v.difference.ok for v in result.values)
    assert not all(v.difference.ok for v in result.outputs)
    assert result.finding.kind is Kind.FUSED
    assert list(result.finding.ops) == ["v122", "v123"]
    assert result.finding.verified
    assert "right one by one and wrong together" in str(result)
    assert any("keeps operations from being fused" in note for note in result.notes)
    assert reproduces(core, result.finding, "BAD")
    assert len(device.compiled) < 60  # halving, not one piece after the other


def test_errors_that_add_up_are_told_from_a_wrong_operation():
    core = core_with(FaultyDevice("BAD", wrong={"Relu": 1.0004}))
    nodes = [node("Relu", ["x" if i == 0 else f"v{i - 1}"], f"v{i}") for i in range(6)]
    result = bisect(model_of(nodes, ["v5"]), "BAD", {"x": np.abs(X) * 50}, core=core)
    assert result.finding.kind is Kind.ACCUMULATED
    assert list(result.finding.ops) == ["v0", "v1", "v2"]
    assert "no operation is wrong by itself" in str(result)


def test_a_side_branch_that_plays_no_part_is_left_out():
    core = core_with(FaultyDevice("BAD", fused={("Exp", "Neg"): 2.0}))
    nodes = [
        node("Exp", ["x"], "e"),
        node("Abs", ["x"], "side"),
        node("Sqrt", ["side"], "root"),
        node("Neg", ["e"], "n"),
        node("Add", ["n", "root"], "y"),
    ]
    result = bisect(model_of(nodes, ["y"]), "BAD", {"x": X}, core=core)
    assert list(result.finding.ops) == ["e", "n"]


def test_a_device_that_fails_is_bisected_too(tmp_path):
    core = core_with(FaultyDevice("BAD", dies_on=["Sigmoid"]))
    path = tmp_path / "repro.onnx"
    result = bisect(long_chain(40, odd=17), "BAD", {"x": X}, core=core, output=path)
    assert list(result.finding.ops) == ["v17"]
    assert "the driver gave up" in result.finding.difference.what
    assert result.finding.verified
    assert result.values == []


def test_nan_and_wrong_integers():
    index = helper.make_node("ArgMax", ["e"], ["k"], name="k", axis=1)
    proto = model_of([node("Exp", ["x"], "e"), index], ["e", "k"])
    proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    core = core_with(FaultyDevice("BAD", wrong={"Exp": float("nan")}))
    result = bisect(proto, "BAD", {"x": X}, core=core)
    assert list(result.finding.ops) == ["e"]
    assert "nan instead of" in str(result.finding)
    values = {v.value: v.difference for v in result.values}
    assert values["k"].max_abs == 2  # NaN is the largest, and comes first
    assert not values["k"].ok


def test_a_free_batch_dimension():
    proto = model_of([node("Exp", ["x"], "e"), node("Neg", ["e"], "y")], ["y"], shape=("n", 3))
    core = core_with(FaultyDevice("BAD", wrong={"Neg": 2.0}))
    for rows in (1, 5):
        result = bisect(proto, "BAD", {"x": np.ones((rows, 3), np.float32)}, core=core)
        assert list(result.finding.ops) == ["y"]


def loop_model():
    """y = x; three times: y = Exp(Tanh(y)) + w"""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"], name="keep"),
            node("Tanh", ["y_in"], "t"),
            node("Exp", ["t"], "e"),
            node("Add", ["e", "w"], "y_out"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y_in", TensorProto.FLOAT, [2, 3]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y_out", TensorProto.FLOAT, [2, 3]),
        ],
    )
    nodes = [
        node("Abs", ["x"], "a"),
        helper.make_node("Loop", ["times", "", "a"], ["y"], name="loop", body=body),
    ]
    weights = [("times", np.array(3, np.int64)), ("w", np.array([1, -2, 0.5], np.float32))]
    return model_of(nodes, ["y"], initializers=weights)


def test_the_body_of_a_loop_is_looked_into(tmp_path):
    core = core_with(FaultyDevice("BAD", wrong={"Exp": 1.1}))
    path = tmp_path / "repro.onnx"
    result = bisect(loop_model(), "HETERO:BAD", {"x": X}, core=core, output=path)
    assert list(result.finding.inside) == ["Loop 'loop', iteration 0"]
    assert list(result.finding.ops) == ["e"]
    assert result.finding.verified
    assert [n.op_type for n in onnx.load(path).graph.node] == ["Exp"]
    assert "in Loop 'loop', iteration 0: value 'e'" in str(result)


def test_the_branch_of_an_if_that_is_taken_is_looked_into():
    def branch(op_type, name):
        return helper.make_graph(
            [node(op_type, ["x"], name)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )

    choose = helper.make_node(
        "If",
        ["c"],
        ["y"],
        name="if",
        then_branch=branch("Exp", "p"),
        else_branch=branch("Neg", "q"),
    )
    cut = [node("ReduceSum", ["x"], "s", keepdims=0), node("Less", ["s", "zero"], "c"), choose]
    proto = model_of(cut, ["y"], initializers=[("zero", np.float32(0))])
    core = core_with(FaultyDevice("BAD", wrong={"Exp": 1.5, "Neg": 1.5}))
    below = bisect(proto, "BAD", {"x": -np.abs(X)}, core=core).finding
    above = bisect(proto, "BAD", {"x": np.abs(X)}, core=core).finding
    assert (list(below.ops), list(below.inside)) == (["p"], ["then_branch of If 'if'"])
    assert (list(above.ops), list(above.inside)) == (["q"], ["else_branch of If 'if'"])


def test_random_numbers_are_taken_from_the_reference():
    noise = helper.make_node("RandomNormalLike", ["x"], ["r"], name="r")
    proto = model_of([noise, node("Add", ["x", "r"], "s"), node("Neg", ["s"], "y")], ["y"])
    core = core_with(FaultyDevice("BAD", wrong={"Neg": 1.5}))
    assert bisect(proto, "REFERENCE", {"x": X}, core=core).ok
    assert list(bisect(proto, "BAD", {"x": X}, core=core).finding.ops) == ["y"]


def test_sequences_are_compared_and_stored(tmp_path):
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], name="parts", axis=1),
        helper.make_node("ConcatFromSequence", ["parts"], ["j"], name="j", axis=0),
        node("Neg", ["j"], "y"),
    ]
    core = core_with(FaultyDevice("BAD", wrong={"ConcatFromSequence": 2.0}))
    path = tmp_path / "repro.onnx"
    result = bisect(model_of(nodes, ["y"]), "BAD", {"x": X}, core=core, output=path)
    assert list(result.finding.ops) == ["j"]
    assert result.finding.verified


def test_a_reference_that_cannot_run_the_model_is_an_error():
    core = core_with(FakeDevice("A"), FakeDevice("B", refuses=["Exp"]))
    with pytest.raises(CompileError, match="'B' cannot run the model as the reference"):
        bisect(CHAIN, "A", {"x": X}, against="B", core=core)


def test_wrong_inputs_are_told_as_such():
    core = core_with(FakeDevice("A"))
    with pytest.raises(InputError, match="Input 'x' takes float32"):
        bisect(CHAIN, "A", {"x": X[:, :1]}, core=core)


def test_pieces_are_placed_as_the_whole_was_and_nothing_is_decided_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    core = core_with(FaultyDevice("BAD", wrong={"Neg": 2.0}), FakeDevice("B"))
    config = {
        "HETERO_PINS": ["type:Neg=BAD", "re:^[abd]$=B"],
        "HETERO_SCHEDULE": "COST",
        "HETERO_ACCURACY_BUDGET": 10.0,
    }
    path = tmp_path / "repro.onnx"
    result = bisect(CHAIN, "HETERO:B,BAD", {"x": X}, core=core, config=config, output=path)
    assert list(result.finding.ops) == ["c"]
    assert list(result.finding.devices) == ["BAD"]
    assert result.finding.verified
    assert [v.device for v in result.values] == ["B", "B", "BAD", "B"]


def test_a_raised_precision_stays_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    core = core_with(LossyDevice("A", {"Exp": 0.1}, precise=True))
    assert not bisect(CHAIN, "HETERO:A", {"x": X}, core=core).ok
    budget = {"HETERO_ACCURACY_BUDGET": 1e-3}
    assert bisect(CHAIN, "HETERO:A", {"x": X}, core=core, config=budget).ok


def test_it_is_part_of_the_package():
    assert partita.bisect is bisect


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs ``partita bisect`` on a model file with a faulty device; returns exit code and text."""
    model = tmp_path / "model.onnx"
    onnx.save(CHAIN, model)
    core = core_with(FaultyDevice("BAD", wrong={"Neg": 2.0}), FakeDevice("A"))
    monkeypatch.setattr("partita.cli.commands.bisect.Core", lambda: core)
    monkeypatch.setattr("partita.cli.commands.run.Core", lambda: core)

    def run(command, *argv, on=model):
        code = main([command, str(on), *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_command_writes_files_that_the_run_command_takes(command, tmp_path):
    repro = tmp_path / "repro.onnx"
    code, out, _ = command("bisect", "-d", "BAD", "--output", repro)
    assert code == 1
    assert "'c' (Neg on BAD) is wrong by itself" in out
    assert "it shows the fault" in out
    line = next(line for line in out.splitlines() if line.startswith("  partita run"))
    argv = line.split()[3:]
    code, out, err = command("run", *argv, on=repro)
    assert code == 1
    assert "differ from REFERENCE" in err
    assert "DIFFERS" in out


def test_the_command_as_json_and_on_a_right_device(command):
    code, out, _ = command("bisect", "-d", "HETERO:A", "--json")
    data = json.loads(out)
    assert (code, data["ok"], data["finding"]) == (0, True, None)
    code, out, _ = command("bisect", "-d", "BAD", "--against", "A", "--json")
    data = json.loads(out)
    assert (code, data["against"]) == (1, "A")
    assert data["finding"]["kind"] == "OPERATION"
    assert data["finding"]["ops"] == ["c"]
    assert data["values"][0]["difference"]["error"] == 0


def test_the_folder_of_inputs_goes_without_a_name(command, tmp_path):
    code, _, err = command("run", "-d", "A", "-i", f"x={tmp_path}")
    assert code == 1
    assert "is a folder with all inputs; write it without a name" in err
    code, _, err = command("run", "-d", "A", "-i", "x=")
    assert (code, "'x=' names no file and no number" in err) == (1, True)
    code, _, err = command("run", "-d", "A", "-i", tmp_path)
    assert code == 1
    assert "input_0.pb' cannot be read as the value of 'x'" in err
    (tmp_path / "input_0.pb").write_bytes(b"\xff\xff\xff")
    code, _, err = command("run", "-d", "A", "-i", tmp_path)
    assert "it is not a protobuf of that type" in err
