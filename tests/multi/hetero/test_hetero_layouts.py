"""Tensors that cross in a layout both sides have agreed on: CPU with CPU2, and devices beside."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import CompileError
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor
from partita_cpu.jit.isa import isa

from ..fakes import FakeCompiled, FakeDevice, FakeRunner
from ..graphs import CHAIN, X, run

RNG = np.random.default_rng(7)

LAST = "NHWC float32" if isa().native else ""
"""How device CPU asks for images: its portable kernels take them as models have them."""


def conv(x, y, inputs, outputs, size=3):
    weights = RNG.standard_normal((outputs, inputs, size, size)).astype(np.float32) * 0.2
    pads = [size // 2] * 4
    name = f"w_{y}"
    node = helper.make_node("Conv", [x, name], [y], name=y, kernel_shape=[size, size], pads=pads)
    return node, numpy_helper.from_array(weights, name)


def residual_net(batch=1, height=9, width=7, outputs=("y",)):
    """Convolutions, a residual, a pool, two branches joined by Concat, a head without images."""
    parts = [conv("x", "c1", 4, 8), conv("r1", "c2", 8, 8), conv("p", "c3", 8, 6, 1)]
    nodes, weights = [part[0] for part in parts], [part[1] for part in parts]
    nodes.insert(1, helper.make_node("Relu", ["c1"], ["r1"], name="r1"))
    nodes.insert(3, helper.make_node("Add", ["c2", "r1"], ["s"], name="s"))
    nodes.insert(4, helper.make_node("Relu", ["s"], ["r2"], name="r2"))
    nodes.insert(
        5,
        helper.make_node(
            "MaxPool", ["r2"], ["p"], name="p", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]
        ),
    )
    nodes += [
        helper.make_node("Sigmoid", ["c3"], ["g"], name="g"),
        helper.make_node("Concat", ["g", "p"], ["k"], name="k", axis=1),
        helper.make_node("GlobalAveragePool", ["k"], ["m"], name="m"),
        helper.make_node("Flatten", ["m"], ["y"], name="y"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4, height, width])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(proto, x):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {"x": x})


def two_processors():
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    return core


def compile_cut(core, proto, device_of, device="HETERO:CPU,CPU2", config=None):
    model = core.read_model(proto)
    for index, op in enumerate(model.ops):
        op.affinity = device_of(index, op)
    return core.compile_model(model, device, config)


def compare(compiled, proto, x):
    for _ in range(2):  # the second run takes the short way over the same arrays
        for have, want in zip(compiled({"x": x}).to_tuple(), expected(proto, x), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_a_part_for_every_operation(executor):
    proto = residual_net()
    compiled = compile_cut(
        two_processors(),
        proto,
        lambda index, op: ("CPU", "CPU2")[index % 2],
        config={"HETERO_EXECUTOR": executor},
    )
    x = RNG.standard_normal((1, 4, 9, 7)).astype(np.float32)
    compare(compiled, proto, x)
    layouts = {b.value: b.layout for b in compiled.explain().boundaries}
    images = {"c1", "r1", "c2", "s", "r2", "p", "c3", "g", "k"}
    assert {layouts[name] for name in images - {"k"}} == {LAST}
    assert layouts["x"] == layouts["y"] == ""
    assert LAST in compiled.explain().to_json()


@pytest.mark.parametrize("seed", range(12))
def test_random_cuts(seed):
    rng = np.random.default_rng(seed)
    outputs = [("y",), ("y", "s"), ("p", "y", "c2")][seed % 3]
    proto = residual_net(batch=1 + seed % 2, outputs=outputs)
    pick = rng.integers(0, 3, 32)
    core = two_processors()
    compiled = compile_cut(
        core,
        proto,
        lambda index, op: ("CPU", "CPU2", "REFERENCE")[pick[index]],
        "HETERO:CPU,CPU2,REFERENCE",
        {"STRICT": True},
    )
    compare(compiled, proto, rng.standard_normal((1 + seed % 2, 4, 9, 7)).astype(np.float32))
    seen = {b.value for b in compiled.explain().boundaries if b.target is None}
    assert seen == set(outputs)
    assert not any(b.layout for b in compiled.explain().boundaries if b.value in outputs)


def test_shapes_known_only_later():
    proto = residual_net(batch="n", height="h")
    compiled = compile_cut(two_processors(), proto, lambda index, op: ("CPU", "CPU2")[index % 2])
    layouts = [b.layout for b in compiled.explain().boundaries if b.source and b.target]
    assert layouts.count(LAST) >= 8
    for shape in ((2, 4, 8, 7), (1, 4, 5, 7), (0, 4, 6, 7), (1, 4, 5, 7)):
        compare(compiled, proto, RNG.standard_normal(shape).astype(np.float32))


def pyramid():
    """Two sizes of one image, of which the small one is enlarged and added to the large one."""
    parts = [conv("x", "large", 4, 8), conv("pooled", "small", 8, 8), conv("sum", "y", 8, 2)]
    pool = helper.make_node(
        "MaxPool", ["large"], ["pooled"], name="pooled", kernel_shape=[2, 2], strides=[2, 2]
    )
    resize = helper.make_node("Resize", ["small", "", "scales"], ["double"], name="double")
    add = helper.make_node("Add", ["large", "double"], ["sum"], name="sum")
    nodes = [parts[0][0], pool, parts[1][0], resize, add, parts[2][0]]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    graph = helper.make_graph(
        nodes,
        "pyramid",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [scales, *(weights for _, weights in parts)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_images_of_unknown_sizes_that_must_fit_each_other():
    """What one guess for all of them would not be: one is twice as large as the other."""
    proto = pyramid()
    compiled = compile_cut(
        two_processors(), proto, lambda index, op: ("CPU", "CPU2")[op.name in ("double", "sum")]
    )
    layouts = {b.value: b.layout for b in compiled.explain().boundaries}
    assert {layouts[name] for name in ("large", "small", "sum")} == {LAST}
    for shape in ((1, 4, 8, 6), (1, 4, 16, 10), (1, 4, 8, 6)):
        compare(compiled, proto, RNG.standard_normal(shape).astype(np.float32))


def test_sizes_that_a_model_does_not_take_are_no_error():
    """The size of the unknown dimension is guessed; a Reshape takes one size only."""
    node, weights = conv("x", "c", 4, 8)
    shape = numpy_helper.from_array(np.array([1, 8 * 5 * 7]), "flat")
    graph = helper.make_graph(
        [
            node,
            helper.make_node("Relu", ["c"], ["r"], name="r"),
            helper.make_node("Reshape", ["r", "flat"], ["y"], name="y"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, "h", 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weights, shape],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = compile_cut(two_processors(), proto, lambda index, op: ("CPU", "CPU2")[index >= 1])
    assert not any(b.layout for b in compiled.explain().boundaries)
    compare(compiled, proto, RNG.standard_normal((1, 4, 5, 7)).astype(np.float32))


def test_no_conversion_is_left_at_a_boundary():
    proto = residual_net()
    core = two_processors()
    compiled = compile_cut(
        core, proto, lambda index, op: ("CPU", "CPU2")[index >= 4], config={"PERF_COUNT": True}
    )
    request = compiled.create_infer_request()
    request.infer({"x": np.ones((1, 4, 9, 7), np.float32)})
    infos = request.get_profiling_info()
    permutes = [info for info in infos if info.node_type == "Permute"]
    wanted = ["subgraph1: 5. permute c1/layout"] if LAST else []
    assert [info.node_name for info in permutes] == wanted
    assert all(info.exec_type == "reorder" and info.real_time_us > 0 for info in permutes)
    assert len(compiled.explain().subgraph_devices) == 2


def test_dot_files_name_the_layout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compile_cut(
        two_processors(),
        residual_net(),
        lambda index, op: ("CPU", "CPU2")[index >= 4],
        config={"HETERO_DUMP_GRAPH_DOT": True},
    )
    label = f"shared, {LAST}" if LAST else "shared"
    assert f'\\n{label}"' in (tmp_path / "hetero_subgraphs_net.dot").read_text()


# ---------------------------------------------------------------- devices with layouts of their own

TURNED = MemoryLayout((1, 0), np.dtype(np.float64))
OTHER = MemoryLayout((0, 1), np.dtype(np.float64))


class LayoutDevice(FakeDevice):
    """A fake device that names layouts and counts the tensors it exchanged in one."""

    def __init__(self, name, layouts=(TURNED,), breaks="", **kwargs):
        super().__init__(name, **kwargs)
        self.names, self.breaks = layouts, breaks
        self.exchanged = 0

    def compile_model(self, model, properties):
        super().compile_model(model, properties)
        return LayoutCompiled(model, properties, self.device_name, self)


class LayoutCompiled(FakeCompiled):
    chosen = {}  # noqa: RUF012  # never changed

    def layouts(self):
        if self.plugin.breaks == "layouts":
            raise KeyError("lost")
        return dict.fromkeys((*self.inputs, *self.outputs), self.plugin.names)

    def with_layouts(self, layouts):
        if self.plugin.breaks == "with_layouts":
            raise KeyError("lost")
        other = LayoutCompiled(self.model, self.properties, self.device, self.plugin)
        other.chosen = dict(layouts)
        return other

    def create_runner(self):
        return LayoutRunner(self)


class LayoutRunner(FakeRunner):
    def run(self, inputs, outputs=None):
        chosen, plugin = self.compiled.chosen, self.plugin
        for port, tensor in zip(self.compiled.inputs, inputs, strict=True):
            assert tensor.layout == chosen.get(port)
            plugin.exchanged += tensor.layout is not None
        results = super().run([partita.HostTensor(t.numpy()) for t in inputs])
        return [
            LaidOutTensor(chosen[port].stored(result.numpy()), port.dtype, chosen[port])
            if port in chosen
            else result
            for port, result in zip(self.compiled.outputs, results, strict=True)
        ]

    def __init__(self, compiled):
        super().__init__(compiled)
        self.compiled = compiled


def compiled_over(*devices, config=None):
    core = partita.Core()
    for device in devices:
        core.register_plugin(device)
    names = [device.device_name for device in devices]
    pins = dict(zip("abcd", itertools.cycle(names), strict=False))
    return run(core, CHAIN, "HETERO:" + ",".join(names), pins, config)


def test_third_party_devices_agree_by_the_layout_alone():
    one, two = LayoutDevice("ONE"), LayoutDevice("TWO", layouts=(OTHER, TURNED))
    compiled = compiled_over(one, two)
    inner = [b for b in compiled.explain().boundaries if b.source and b.target]
    assert [b.layout for b in inner] == ["10 float64"] * 3
    assert [b.nbytes for b in inner] == [X.size * 8] * 3
    assert one.exchanged == 2  # runs that read c in it
    assert two.exchanged == 4


def test_a_device_without_layouts_gets_plain_tensors():
    compiled = compiled_over(LayoutDevice("ONE"), FakeDevice("PLAIN"))
    assert not any(b.layout for b in compiled.explain().boundaries)


def test_devices_that_share_no_layout_cross_plain():
    compiled = compiled_over(LayoutDevice("ONE"), LayoutDevice("TWO", layouts=(OTHER,)))
    assert not any(b.layout for b in compiled.explain().boundaries)


@pytest.mark.parametrize("step", ["layouts", "with_layouts"])
def test_a_device_that_fails_at_layouts_loses_its_part(step):
    compiled = compiled_over(LayoutDevice("ONE"), LayoutDevice("TWO", breaks=step))
    assert {op.device for op in compiled.explain().ops} == {"ONE"}
    assert "failed to lay out ports: KeyError" in " ".join(compiled.explain().notes)
    with pytest.raises(CompileError, match=r"TWO.*failed to lay out ports"):
        compiled_over(
            LayoutDevice("ONE"), LayoutDevice("TWO", breaks=step), config={"STRICT": True}
        )


def test_a_device_that_names_layouts_must_take_them():
    core = partita.Core()
    core.register_plugin(FakeDevice("A"))
    compiled = core.compile_model(CHAIN, "A")
    with pytest.raises(NotImplementedError, match="FakeCompiled names layouts and takes none"):
        compiled.device_model.with_layouts({compiled.inputs[0]: TURNED})
