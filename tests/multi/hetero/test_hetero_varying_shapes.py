"""HETERO over sizes that vary: the cut stays, and each submodel keeps what it made for a size."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu.jit.isa import isa
from partita_cpu.runtime import bound_program
from partita_cpu.runtime.device_model import CpuModel

WIDTH = 8


def encoder():
    """Two dense layers and a residual sum between them, of any batch and length."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in "vw"}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Add", ["b", "x"], ["c"], name="sum"),
        helper.make_node("MatMul", ["c", "w"], ["d"], name="second"),
        helper.make_node("Tanh", ["d"], ["y"], name="tanh"),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "L", WIDTH]) for name in "xy"
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "encoder", ports[:1], ports[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def wanted(x):
        c = np.maximum(x @ weights["v"], 0) + x
        return np.tanh(c @ weights["w"])

    return model, wanted


@pytest.mark.parametrize("pinned", ["sum", "tanh"])
def test_new_sizes_keep_the_cut_and_seen_ones_what_was_made(pinned, monkeypatch):
    bound = []
    real = bound_program.BoundProgram.__init__
    monkeypatch.setattr(
        bound_program.BoundProgram,
        "__init__",
        lambda self, *args: bound.append(id(args[0])) or real(self, *args),
    )
    proto, wanted = encoder()
    core = partita.Core()
    model = core.read_model(proto)
    (op,) = (op for op in model.ops if op.name == pinned)
    op.affinity = "REFERENCE"
    compiled = core.compile_model(model, "HETERO:CPU,REFERENCE", {"STRICT": True})
    devices = compiled.explain().subgraph_devices
    assert "REFERENCE" in devices

    compiles = []
    real_compile = CpuModel.__init__
    monkeypatch.setattr(
        CpuModel, "__init__", lambda self, *args: compiles.append(args) or real_compile(self, *args)
    )
    request = compiled.create_infer_request()
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((1 + n % 3, 40 - n, WIDTH)).astype(np.float32) for n in range(30)]
    made = []
    for _ in range(3):
        bound.clear()
        for x in arrays:
            got = request.infer({"x": x})["y"]
            np.testing.assert_allclose(got, wanted(x), rtol=1e-4, atol=1e-4)
        made.append(len(bound))
    first, second, third = made
    # Of each part the first program, and its class; once more where memory has grown since.
    parts = devices.count("CPU")
    assert first <= 4 * parts and second <= parts and third == 0
    assert not compiles
    assert compiled.explain().subgraph_devices == devices


@pytest.mark.usefixtures("no_costs")
@pytest.mark.parametrize("device", ["HETERO:CPU,REFERENCE", "HETERO:CPU,OPENCL"])
def test_plans_by_measurement_are_right_at_any_size(device):
    proto, _ = encoder()
    core = partita.Core()
    model = core.read_model(proto)
    (op,) = (op for op in model.ops if op.name == "sum")
    op.affinity = device.rpartition(",")[2]
    compiled = core.compile_model(
        model,
        device,
        {"HETERO_SCHEDULE": "COST", "HETERO_SAMPLE_SHAPES": "x=1x4x8; x=2x200x8", "STRICT": True},
    )
    why = compiled.explain()
    places = "; ".join([why.planned_for, *why.near])
    assert sorted(places.split("; ")) == ["x=1x4x8", "x=2x200x8"]
    assert op.affinity in why.subgraph_devices
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    request = compiled.create_infer_request()
    rng = np.random.default_rng(2)
    for _ in range(40):
        batch, length = rng.integers(1, 4), rng.integers(1, 300)
        x = rng.standard_normal((batch, length, WIDTH)).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)


def test_programs_of_parts_that_exchange_channels_last_are_recorded():
    """A new size is filled into what another one has made; emitters are not asked again."""
    rng = np.random.default_rng(0)
    kernels = {
        "k": rng.standard_normal((32, 3, 3, 3)).astype(np.float32) * 0.3,
        "l": rng.standard_normal((32, 32, 1, 1)).astype(np.float32) * 0.2,
    }
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "l"], ["b"]),
        helper.make_node("Add", ["b", "b"], ["c"], name="pinned"),
        helper.make_node("Mul", ["c", "a"], ["d"]),
        helper.make_node("Conv", ["d", "l"], ["y"]),
    ]
    sizes = ["n", 3, "height", "width"]
    graph = helper.make_graph(
        nodes,
        "exchange",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in kernels.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    judge = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    core = partita.Core()
    core.set_property("CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    model = core.read_model(proto)
    (op,) = (op for op in model.ops if op.name == "pinned")
    op.affinity = "REFERENCE"
    compiled = core.compile_model(model, "HETERO:CPU,REFERENCE")
    request = compiled.create_infer_request()
    for batch, height, width in [(2, 20, 24), (1, 30, 26), (3, 18, 22), (1, 25, 40), (2, 33, 31)]:
        x = rng.standard_normal((batch, 3, height, width)).astype(np.float32)
        (wanted,) = judge.run(None, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    parts = [part for part in compiled.device_model.assembly.compiled if isinstance(part, CpuModel)]
    assert len(parts) == 2
    if isa().native:
        for part in parts:
            programs = part.specializer.programs.values()
            assert sum(program.made is not None for program in programs) >= 3
