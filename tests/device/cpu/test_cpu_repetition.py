"""Runs on tensors that stay the same: what run computes, again and again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

import partita
from partita.errors import BoundCallEndedError, InferError
from partita_cpu.jit.dispatch import available

F32 = np.float32

WALKED = available()
"""Whether steps are compiled so that their arguments lie in a table, where they can be changed."""


def model(nodes, inputs, outputs, shape=(3, 5), kinds=None):
    def info(name):
        kind = (kinds or {}).get(name, TensorProto.FLOAT)
        return helper.make_tensor_value_info(name, kind, shape)

    made = [helper.make_node(op, reads, [out], name=out, **a) for op, reads, out, a in nodes]
    graph = helper.make_graph(made, "m", [info(n) for n in inputs], [info(n) for n in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def runner_of(proto, config=None):
    return partita.Core().compile_model(proto, "CPU", config).device_model.create_runner()


def tensor(shape=(3, 5), dtype=F32):
    return partita.HostTensor(np.zeros(shape, dtype))


@pytest.mark.parametrize("isa", ["", "portable"])
def test_it_computes_what_the_inputs_hold_at_the_time(isa, monkeypatch):
    if isa:
        monkeypatch.setenv("PARTITA_CPU_ISA", isa)
    proto = model([("Exp", ["x"], "e", {}), ("Add", ["e", "y"], "z", {})], ["x", "y"], ["z"])
    runner = runner_of(proto)
    x, y, z = tensor(), tensor(), tensor()
    bound_call = runner.bind([x, y], [z])
    rng = np.random.default_rng(0)
    for _ in range(3):
        x.numpy()[:] = rng.standard_normal((3, 5))
        y.numpy()[:] = rng.standard_normal((3, 5))
        bound_call()
        np.testing.assert_allclose(z.numpy(), np.exp(x.numpy()) + y.numpy(), rtol=1e-6)


def test_run_and_bound_call_take_turns():
    runner = runner_of(model([("Neg", ["x"], "y", {})], ["x"], ["y"]))
    x, y = tensor(), tensor()
    bound_call = runner.bind([x], [y])
    other = np.full((3, 5), 7, F32)
    for value in (1, 2, 3):
        x.numpy()[:] = value
        bound_call()
        assert (runner.run([partita.HostTensor(other)])[0].numpy() == -7).all()
        assert (y.numpy() == -value).all()


def test_models_that_run_one_after_another_work_in_the_same_memory():
    proto = model(
        [("Softmax", ["x"], "s", {}), ("Softmax", ["s"], "t", {}), ("Neg", ["t"], "y", {})],
        ["x"],
        ["y"],
    )
    compiled = partita.Core().compile_model(proto, "CPU")
    scratch = np.empty(compiled.device_model.scratch_bytes, np.uint8)
    tensors = [tensor() for _ in range(3)]
    calls = [
        compiled.device_model.create_runner().bind([source], [target], scratch)
        for source, target in itertools.pairwise(tensors)
    ]
    x = np.random.default_rng(2).standard_normal((3, 5)).astype(F32)
    tensors[0].numpy()[:] = x
    for _ in range(2):
        scratch[:] = 255
        for call in calls:
            call()
        for source, target in itertools.pairwise(tensors):
            want = -softmax(softmax(source.numpy().astype(np.float64)))
            np.testing.assert_allclose(target.numpy(), want, rtol=1e-5)
    assert (scratch != 255).any()
    small = np.empty(1, np.uint8)
    alone = compiled.device_model.create_runner().bind(tensors[:1], tensors[1:2], small)
    alone()
    np.testing.assert_allclose(tensors[1].numpy(), -softmax(softmax(x.astype(float))), rtol=1e-5)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_steps_of_python_between_compiled_ones():
    """Einsum multiplies in numpy; its neighbours are compiled."""
    square = {"equation": "ij,ij->ij"}
    proto = model(
        [("Exp", ["x"], "e", {}), ("Einsum", ["e", "e"], "s", square), ("Neg", ["s"], "y", {})],
        ["x"],
        ["y"],
    )
    runner = runner_of(proto)
    x, y = tensor(), tensor()
    bound_call = runner.bind([x], [y])
    for value in (2, 3):
        x.numpy()[:] = value
        bound_call()
        np.testing.assert_allclose(y.numpy(), np.full((3, 5), -np.exp(2.0 * value)), rtol=1e-6)


def test_inputs_may_be_swapped():
    proto = model([("Sub", ["x", "y"], "z", {})], ["x", "y"], ["z"])
    runner = runner_of(proto)
    (x, y, z), (other, swapped) = [tensor() for _ in range(3)], [tensor() for _ in range(2)]
    bound_call = runner.bind([x, y], [z])
    other.numpy()[:], swapped.numpy()[:] = 7, 2
    assert bound_call.rebind([other, swapped]) == WALKED
    assert not bound_call.rebind([tensor((5, 3)), y])
    assert not bound_call.rebind([tensor(dtype=np.int32), y])
    assert not bound_call.rebind([z, y])  # its elements are written while they are read
    for value in (1, 2):
        swapped.numpy()[:] = value
        bound_call()
        assert (z.numpy() == (7 - value if WALKED else 0)).all()


def test_declined_where_a_run_is_more_than_calls():
    found = model([("NonZero", ["x"], "i", {})], ["x"], ["i"])
    found.graph.output[0].CopyFrom(helper.make_tensor_value_info("i", TensorProto.INT64, [2, "n"]))
    indices = partita.HostTensor(np.zeros((2, 15), np.int64))
    assert runner_of(found).bind([tensor()], [indices]) is None
    plain = model([("Neg", ["x"], "y", {})], ["x"], ["y"])
    counting = runner_of(plain, {"PERF_COUNT": True})
    assert counting.bind([tensor()], [tensor()]) is None
    runner = runner_of(plain)
    assert runner.bind([tensor()], [tensor((5, 3))]) is None
    skewed = partita.HostTensor(np.zeros((5, 3), F32).T)
    assert runner.bind([tensor()], [skewed]) is None


@pytest.mark.parametrize("isa", ["", "portable"])
def test_outputs_that_are_inputs_constants_or_repeated_are_made_by_calls_too(isa, monkeypatch):
    if isa:
        monkeypatch.setenv("PARTITA_CPU_ISA", isa)
    nodes = [
        ("Identity", ["x"], "a", {}),
        ("Neg", ["x"], "b", {}),
        ("Identity", ["b"], "c", {}),
        ("Constant", [], "d", {"value": from_array(np.full((3, 5), 4, F32))}),
    ]
    runner = runner_of(model(nodes, ["x", "n"], [*"abcdn"], kinds={"n": TensorProto.INT64}))
    x, n = tensor(), tensor(dtype=np.int64)
    outputs = [*(tensor() for _ in "abcd"), tensor(dtype=np.int64)]
    bound_call = runner.bind([x, n], outputs)
    rng = np.random.default_rng(3)
    for _ in range(3):
        x.numpy()[:] = rng.standard_normal((3, 5))
        n.numpy()[:] = rng.integers(-(1 << 62), 1 << 62, (3, 5))
        bound_call()
        wanted = [x.numpy(), -x.numpy(), -x.numpy(), np.full((3, 5), 4, F32), n.numpy()]
        for made in (outputs, runner.run([x, n])):
            for out, values in zip(made, wanted, strict=True):
                np.testing.assert_array_equal(out.numpy(), values)
                assert not any(np.shares_memory(out.numpy(), given.numpy()) for given in (x, n))


def test_what_python_raises_names_the_device(monkeypatch):
    from partita_cpu.runtime.bound_call import CpuBoundCall

    def broken():
        raise ZeroDivisionError("no")

    with pytest.raises(InferError, match="Device CPU failed: ZeroDivisionError: no"):
        CpuBoundCall([broken], 1)()


def test_another_value_of_what_decides_the_program_is_run_by_itself():
    proto = model(
        [("Reshape", ["x", "s"], "r", {}), ("ReduceMax", ["r"], "y", {"axes": [0], "keepdims": 0})],
        ["x", "s"],
        ["y"],
        kinds={"s": TensorProto.INT64},
    )
    proto.graph.input[1].CopyFrom(helper.make_tensor_value_info("s", TensorProto.INT64, [2]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"]))
    runner = runner_of(proto)
    x, y = tensor((4, 9)), tensor((6,))
    shape = partita.HostTensor(np.array([6, 6], np.int64))
    bound_call = runner.bind([x, shape], [y])
    rng = np.random.default_rng(3)
    for rows in (6, 6, -1, 6):  # -1 means the same shape, by other elements
        x.numpy()[:] = rng.standard_normal((4, 9))
        shape.numpy()[:] = rows, 6
        bound_call()
        np.testing.assert_array_equal(y.numpy(), x.numpy().reshape(6, 6).max(axis=0))


def test_a_request_runs_anew_where_a_value_gives_an_output_another_shape():
    proto = model([("Expand", ["x", "s"], "y", {})], ["x", "s"], ["y"], shape=(1, 5))
    proto.graph.input[1].CopyFrom(helper.make_tensor_value_info("s", TensorProto.INT64, [2]))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    x, shape = np.arange(5, dtype=F32).reshape(1, 5), np.array([3, 5])
    runner = runner_of(proto)
    inputs = [partita.HostTensor(x), partita.HostTensor(shape)]
    bound_call = runner.bind(inputs, [tensor()])
    bound_call()
    shape[0] = 2
    with pytest.raises(BoundCallEndedError, match=r"shape \[2, 5\] now; it was bound as \[3, 5\]"):
        bound_call()
    for device in ("CPU", "HETERO:CPU"):
        request = partita.Core().compile_model(proto, device).create_infer_request()
        for rows in (3, 3, 3, 3, 2, 2, 2, 2, 2, 4, 1, 1, 1):
            shape[0] = rows
            x += 1
            got = request.infer({"x": x, "s": shape})
            np.testing.assert_array_equal(got[0], np.broadcast_to(x, (rows, 5)))


def test_a_flag_decides_anew_in_every_call():
    def branch(op, name):
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 5])
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [out])

    proto = model([("Identity", ["x"], "y", {})], ["x", "flag"], ["y"])
    proto.graph.input[1].CopyFrom(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    choice = helper.make_node(
        "If", ["flag"], ["y"], then_branch=branch("Neg", "n"), else_branch=branch("Exp", "e")
    )
    proto.graph.node[0].CopyFrom(choice)
    runner = runner_of(proto)
    x, y, flag = tensor(), tensor(), partita.HostTensor(np.array(True))
    bound_call = runner.bind([x, flag], [y])
    for number, value in enumerate((True, False, True, True)):
        x.numpy()[:] = number
        flag.numpy()[...] = value
        bound_call()
        want = -x.numpy() if value else np.exp(x.numpy())
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-6)
