"""Precision per device: halves pass between devices that compute in them, casts are shown."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_opencl.device.device import find_device

from .test_hetero_layouts import compile_cut, expected, residual_net

RNG = np.random.default_rng(11)
HALVES = {"DEVICE_PROPERTIES": {"OPENCL": {"INFERENCE_PRECISION_HINT": "f16"}}}


@pytest.fixture(params=["as it is", "apart"])
def memory(request, monkeypatch):
    if request.param == "apart":
        monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    return request.param


def net():
    """OPENCL a1, CPU b1, OPENCL a2 with a skip from a1: the skip stays on OPENCL."""
    weights = [
        numpy_helper.from_array(RNG.standard_normal((8, 8)).astype(np.float32) * 0.3, f"w{i}")
        for i in range(3)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a1"], name="a1"),
        helper.make_node("MatMul", ["a1", "w1"], ["b1"], name="b1"),
        helper.make_node("MatMul", ["b1", "w2"], ["m2"], name="m2"),
        helper.make_node("Add", ["m2", "a1"], ["a2"], name="a2"),
    ]
    graph = helper.make_graph(
        nodes,
        "halves",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 8])],
        [helper.make_tensor_value_info("a2", TensorProto.FLOAT, [5, 8])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def on(devices):
    return lambda index, op: devices[index]


def close(found, wanted, bound):
    assert found.dtype == wanted.dtype
    assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)


def test_casts_between_precisions_are_shown(memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    proto = net()
    config = {**HALVES, "HETERO_DUMP_GRAPH_DOT": True, "PERF_COUNT": True}
    places = on(["OPENCL", "CPU", "OPENCL", "OPENCL"])
    compiled = compile_cut(partita.Core(), proto, places, "HETERO:OPENCL,CPU", config)
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    request = compiled.create_infer_request()
    close(request.infer({"x": x})[0], expected(proto, x)[0], 2e-3)
    why = compiled.explain()
    seen = {(b.value, b.source, b.target): b.casts for b in why.boundaries}
    down, up = "float16 to float32 on OPENCL", "float32 to float16 on OPENCL"
    assert seen["x", None, 1] == (up,)
    assert seen["a1", 1, 2] == (down,)
    assert seen["b1", 2, 3] == (up,)
    assert seen["a2", 3, None] == (down,)
    assert f"shared, {down}" in text_of(tmp_path) or f"download, {down}" in text_of(tmp_path)
    assert why.summary().endswith("casts)")
    names = [info.node_name for info in request.profiling_info if info.node_type == "Permute"]
    inside = [name for name in names if "float" in name]
    assert "subgraph1: 3. permute a1 (float16 to float32)" in inside
    assert any("permute b1 (float32 to float16)" in name for name in inside)


def text_of(folder):
    return (folder / "hetero_subgraphs_halves.dot").read_text()


def two_halves(memory):
    """Two devices with one memory, both computing in halves."""
    core = partita.Core()
    core.register_plugin("partita_opencl", "TWIN")
    config = {
        "DEVICE_PROPERTIES": {
            name: {"INFERENCE_PRECISION_HINT": "f16"} for name in ("OPENCL", "TWIN")
        }
    }
    return core, config


def test_halves_stay_halves_between_devices_that_compute_in_them(memory):
    core, config = two_halves(memory)
    proto = net()
    places = on(["OPENCL", "TWIN", "OPENCL", "OPENCL"])
    compiled = compile_cut(core, proto, places, "HETERO:OPENCL,TWIN", config)
    inner = [b for b in compiled.explain().boundaries if b.source and b.target]
    assert {b.layout for b in inner} == {"01 float16"}
    assert {b.casts for b in inner} == {()}
    assert {b.how for b in inner} == {"shared"}
    assert {b.nbytes for b in inner} == {5 * 8 * 2}
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((5, 8)).astype(np.float32)
        close(compiled({"x": x})[0], expected(proto, x)[0], 2e-3)
        whole = core.compile_model(proto, "OPENCL", {"INFERENCE_PRECISION_HINT": "f16"})
        np.testing.assert_allclose(compiled({"x": x})[0], whole({"x": x})[0], rtol=2e-3, atol=1e-3)


def test_f16_on_one_device_and_f32_on_its_twin(memory):
    core, config = two_halves(memory)
    del config["DEVICE_PROPERTIES"]["TWIN"]
    proto = net()
    places = on(["OPENCL", "TWIN", "OPENCL", "OPENCL"])
    compiled = compile_cut(core, proto, places, "HETERO:OPENCL,TWIN", config)
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    close(compiled({"x": x})[0], expected(proto, x)[0], 2e-3)
    inner = {b.value: b for b in compiled.explain().boundaries if b.source and b.target}
    assert inner["b1"].layout == ""
    assert inner["b1"].casts == ("float32 to float16 on OPENCL",)


def test_halves_go_over_the_host_between_memories(monkeypatch):
    """A device that cannot reach the other one's memory: halves go down and up as halves."""
    monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    core, config = two_halves("apart")
    share = core.device_api.can_share

    def can_share(device, memory):
        return memory != "opencl:0" and share(device, memory)

    monkeypatch.setattr(core.device_api, "can_share", can_share)
    proto = net()
    compiled = compile_cut(
        core, proto, on(["OPENCL", "TWIN", "OPENCL", "OPENCL"]), "HETERO:OPENCL,TWIN", config
    )
    inner = [b for b in compiled.explain().boundaries if b.source and b.target]
    assert {b.layout for b in inner} == {"01 float16"}
    assert "shared" not in {b.how for b in inner}
    x = RNG.standard_normal((5, 8)).astype(np.float32)
    for _ in range(2):
        close(compiled({"x": x})[0], expected(proto, x)[0], 2e-3)


def test_tensors_of_halves_know_what_they_are(memory):
    from partita.errors import InferError
    from partita.tensors.layout import MemoryLayout
    from partita.tensors.layout_tensor import LaidOutTensor

    core, _ = two_halves(memory)
    layout = MemoryLayout((0, 1), np.dtype(np.float16))
    plain = RNG.standard_normal((3, 4)).astype(np.float32)
    tensor = LaidOutTensor(layout.stored(plain), plain.dtype, layout)
    there = core.device_api.transfer_to("OPENCL", tensor)
    assert (there.dtype, there.layout, there.shape) == (plain.dtype, layout, plain.shape)
    np.testing.assert_array_equal(there.numpy(), plain.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(there.stored(), plain.astype(np.float16))
    compiled = core.compile_model(net(), "OPENCL", {"INFERENCE_PRECISION_HINT": "f16"})
    port = compiled.inputs[0]
    assert list(compiled.device_model.layouts()[port]) == [
        MemoryLayout((0, 1), np.dtype(np.float16))
    ]
    runner = compiled.device_model.with_layouts({port: layout}).create_runner()
    with pytest.raises(InferError, match="came plain; in layout 01 float16 was agreed"):
        runner.run([partita.HostTensor(np.zeros((5, 8), np.float32))])
    with pytest.raises(InferError, match="came in layout 01 float16; plain was agreed"):
        compiled.device_model.with_layouts({compiled.outputs[0]: layout}).create_runner().run(
            [there]
        )
    plain_model = core.compile_model(net(), "OPENCL")
    assert plain_model.device_model.layouts() == {}


@pytest.mark.parametrize("every", [1, 2, 3])
def test_images_in_halves(memory, every):
    """Convolutions, a residual and a Concat over two devices of halves, and with CPU between."""
    core, config = two_halves(memory)
    proto = residual_net()
    x = RNG.standard_normal((1, 4, 9, 7)).astype(np.float32)
    for devices in (("OPENCL", "TWIN"), ("OPENCL", "CPU", "TWIN")):
        compiled = compile_cut(
            core,
            proto,
            lambda index, op, names=devices: names[index // every % len(names)],
            "HETERO:OPENCL,TWIN,CPU",
            config,
        )
        for _ in range(2):
            close(compiled({"x": x})[0], expected(proto, x)[0], 4e-3)
        layouts = {b.layout for b in compiled.explain().boundaries if b.source and b.target}
        assert ("NCHW float16" in layouts) or "CPU" in devices
