"""Suite ``compiled``: the compiled model has the model's face and a life of its own."""

from __future__ import annotations

import gc
import re

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

import partita
from partita.errors import ModelError, PartitaError
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, Sample, networks, parse, samples
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import (
    ConformanceError,
    NotApplicableError,
    require,
    require_raises,
)
from partita_conformance.suites.feeding import host_tensors


@check("compiled")
def has_the_ports_of_the_model(bench: Bench) -> None:
    """Inputs and outputs have the model's names, order, dtypes and shapes."""
    for kind in ("plain", "dynamic", "pair", "outputs"):
        sample = bench.sample(kind)
        model, compiled = bench.read(sample.proto), bench.compile(sample.proto)
        for side in ("inputs", "outputs"):
            due, have = getattr(model, side), getattr(compiled, side)
            require(
                [p.name for p in have] == [p.name for p in due],
                f"The {side} of '{sample.name}' are {[p.name for p in have]}, not "
                f"{[p.name for p in due]}.",
            )
            for port, want in zip(have, due, strict=True):
                require(
                    port.dtype == want.dtype and port.shape == want.shape,
                    f"'{port.name}' of '{sample.name}' is {port.describe()} for {want.describe()}.",
                )
                require(port.index == want.index, f"'{port.name}' has index {port.index}.")


@check("compiled")
def finds_its_ports(bench: Bench) -> None:
    """Ports are found by name and index; others raise ModelError."""
    compiled = bench.compile(bench.sample("outputs").proto)
    require(compiled.input("x").index == 0, "input('x') is not the first input.")
    require(compiled.output("z").index == 1, "output('z') is not the second output.")
    require_raises(ModelError, lambda: compiled.input("nobody"), "input('nobody')")
    require_raises(ModelError, lambda: compiled.output(7), "output(7)")


@check("compiled")
def tells_its_facts(bench: Bench) -> None:
    """NETWORK_NAME, EXECUTION_DEVICES and OPTIMAL_NUMBER_OF_INFER_REQUESTS are there and right."""
    compiled = bench.compile(bench.sample("plain").proto)
    name = bench.read(bench.sample("plain").proto).name
    have = compiled.get_property("NETWORK_NAME")
    require(have == name, f"NETWORK_NAME is {have!r}, not {name!r}.")
    devices = compiled.get_property("EXECUTION_DEVICES")
    require(
        isinstance(devices, list) and devices and all(isinstance(d, str) for d in devices),
        f"EXECUTION_DEVICES is {devices!r}.",
    )
    if bench.core.device_info(bench.device).kind != "virtual":
        require(
            {d.partition(".")[0] for d in devices} == {bench.plugin.device_name},
            f"EXECUTION_DEVICES is {devices!r}; the model is on '{bench.device}'.",
        )
    count = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    require(
        isinstance(count, int) and count >= 1, f"OPTIMAL_NUMBER_OF_INFER_REQUESTS is {count!r}."
    )


@check("compiled")
def explains_every_operation(bench: Bench) -> None:
    """explain() places every operation of the model."""
    for network in networks():
        if bench.refusals(network.proto):
            continue
        names = {op.name for op in bench.read(network.proto).ops}
        placed = {op.name for op in bench.compile(network.proto).explain().ops}
        require(placed == names, f"explain() of '{network.name}' lacks {sorted(names - placed)}.")


@check("compiled", values=True)
def two_of_them_do_not_meet(bench: Bench) -> None:
    """Models of the same name with other weights, both compiled, each give their own results."""
    candidates = [s for s in samples("plain") if s.proto.graph.initializer]
    usable = [s for s in candidates if not bench.refusals(s.proto)]
    sample = usable[0] if usable else bench.sample("plain")
    feeds = sample.feeds()

    def scaled(part: slice) -> onnx.ModelProto:
        other = onnx.ModelProto()
        other.CopyFrom(sample.proto)
        for tensor in other.graph.initializer:
            array = numpy_helper.to_array(tensor).copy()
            array.reshape(-1)[part] *= -1.5
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        return other

    first, models = bench.compile(sample.proto), [scaled(slice(None)), scaled(slice(-1, None))]
    others = [(proto, bench.compile(proto)) for proto in models]
    for _ in range(2):
        compare(first(feeds).to_tuple(), bench.expected(sample.proto, feeds), "the first model")
        for proto, second in others:
            compare(second(feeds).to_tuple(), bench.expected(proto, feeds), "another model")


@check("compiled", values=True)
def compiling_twice_gives_the_same(bench: Bench) -> None:
    """A model compiled twice, the first already gone, gives the same results."""
    sample = bench.sample("plain")
    feeds = sample.feeds()
    expected = bench.expected(sample.proto, feeds)
    for attempt in range(2):
        compiled = bench.compile(sample.proto)
        compare(compiled(feeds).to_tuple(), expected, f"{sample.name}, compile {attempt + 1}")
        del compiled
        gc.collect()


@check("compiled", values=True)
def edits_of_the_model_come_too_late(bench: Bench) -> None:
    """Reshaping or pinning the model after compiling does not change what was compiled."""
    sample = bench.sample("dynamic")
    model = bench.read(sample.proto)
    compiled = bench.plugin.compile_model(model, bench.properties())
    feeds = sample.feeds()
    model.reshape({0: [7, *(model.input(0).shape or ())[1:]]})
    for op in model.ops:
        op.affinity = "SOMEWHERE"
    compare(
        partita.CompiledModel(compiled)(feeds).to_tuple(),
        bench.expected(sample.proto, feeds),
        sample.name,
    )


@check("compiled", values=True)
def edits_of_weights_come_too_late(bench: Bench) -> None:
    """Weights, attributes and names that the caller changes after compiling do not count."""
    weights = {"w": np.arange(1, 7, dtype=np.float32).reshape(2, 3)}
    tried = 0
    for text in (
        "g (float[2,3] x) => (float[2,3] y) { a = Mul(x, w) y = LeakyRelu <alpha = 0.5> (a) }",
        "g (float[2,3] x) => (float[2,3] y) { a = Add(x, w) y = Softmax <axis = 0> (a) }",
        "g (float[2,3] x) => (float[2,3] y) { y = Sub(x, w) }",
        "g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }",
    ):
        proto = parse(text, weights)
        if bench.refusals(proto):
            continue
        tried += 1
        model = bench.read(proto)
        compiled = bench.plugin.compile_model(model, bench.properties())
        for value in model.ir.graph.initializers.values():
            value.const_value = ir.tensor(np.full((2, 3), -9, np.float32))
        for node in model.ir.graph:
            for name in [*node.attributes]:
                del node.attributes[name]
            node.name = "somebody else"
        feeds = Sample("", proto).feeds(9)
        for turn in range(2):
            have = partita.CompiledModel(compiled)(feeds).to_tuple()
            what = f"{text.rpartition('{')[2]} after its model was changed, run {turn + 1}"
            compare(have, bench.expected(proto, feeds), what)
    if not tried:
        raise NotApplicableError("the device takes none of the models")


_ALIKE = (
    "g (float[3,3] x) => (float[3,3] y) {{ y = LeakyRelu <alpha = {}> (x) }}",
    "g (float[3,3] x) => (float[3,3] y) {{ y = Softmax <axis = {:.0f}> (x) }}",
    "g (float[3,3] x) => (float[3,3] y) {{ y = Elu <alpha = {}> (x) }}",
    "g (float[3,3] x) => (float[3,3] y) {{ y = CumSum <reverse = {:.0f}> (x, axis) }}",
    "g (float[3,3] x) => (float[3,3] y) {{ y = HardSigmoid <alpha = {}> (x) }}",
)


@check("compiled", values=True)
def models_differ_by_their_attributes(bench: Bench) -> None:
    """Of models that have all but one attribute in common, each computes with its own."""
    tried = 0
    for text in _ALIKE:
        weights = {"axis": np.array(1)} if "axis)" in text else None
        protos = [parse(text.format(value), weights) for value in (1.0, 0.0)]
        if any(bench.refusals(proto) for proto in protos):
            continue
        tried += 1
        feeds = Sample("", protos[0]).feeds(5)
        models = [bench.compile(proto) for proto in protos]
        for proto, compiled in zip(protos, models, strict=True):
            what = f"{text.rpartition('{{')[2]} beside another attribute"
            compare(compiled(feeds).to_tuple(), bench.expected(proto, feeds), what)
    if not tried:
        raise NotApplicableError("the device takes none of the models")


_OF_OPSETS = (
    ("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", 11, 13),
    ("g (float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax <axis = 1> (x) }", 11, 13),
    ("g (float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax(x) }", 11, 13),
    (
        "g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y = AveragePool"
        " <kernel_shape = [3,3], strides = [2,2], pads = [0,0,1,1], ceil_mode = 1> (x) }",
        11,
        19,
    ),
    (
        "g (float[1,3,4,4] x) => (float[3,1,2,2] y) { y = RoiAlign"
        " <output_height = 2, output_width = 2> (x, boxes, images) }",
        10,
        16,
    ),
)
"""Models, and two opsets in which they compute something else."""


@check("compiled", values=True)
def models_differ_by_their_opset(bench: Bench) -> None:
    """Of models that have all but the opset in common, each computes what its own one says."""
    boxes = np.array([[0, 0, 3, 3], [1, 0, 2, 3], [0, 1, 3, 2]], np.float32)
    weights: dict[str, Array] = {"boxes": boxes, "images": np.zeros(3, np.int64)}
    tried = 0
    for text, *opsets in _OF_OPSETS:
        protos = []
        for opset in opsets:
            proto = parse(text, weights if "boxes" in text else None)
            proto.opset_import[0].version = opset
            protos.append(proto)
        if any(bench.refusals(proto) for proto in protos):
            continue
        tried += 1
        feeds = Sample("", protos[0]).feeds(8)
        for order in (protos, protos[::-1]):
            core = bench.new_core()  # whose plugin has seen neither
            models = [bench.compile(proto, core=core) for proto in order]
            for proto, compiled in zip(order, models, strict=True):
                opset = proto.opset_import[0].version
                what = f"{text.rpartition('{')[2]} of opset {opset} beside another one"
                compare(compiled(feeds).to_tuple(), bench.expected(proto, feeds), what)
    if not tried:
        raise NotApplicableError("the device takes none of the models in both opsets")


_SQUARES = (
    "g (float[3,3] x) => (float[3,3] y) { y = MatMul(x, w) }",
    "g (float[3,3] x) => (float[3,3] y) { y = MatMul(w, x) }",
    "g (float[3,3] x) => (float[3,3] y) { y = Gemm <transB = 1> (x, w) }",
    "g (float[1,3,3,3] x) => (float[1,3,3,3] y) { y = Conv <pads = [1,1,1,1]> (x, v) }",
    "g (float[1,3,3,3] x) => (float[1,3,3,3] y) { y = ConvTranspose <pads = [1,1,1,1]> (x, v) }",
    "g (float[3,3] x) => (float[3,3] y) { y = Add(x, w) }",
    "g (float[3,3] x) => (float[3,3] y) { y = Sub(w, x) }",
)
"""Models of weights that fit however they are turned."""


@check("compiled", values=True)
def requests_of_a_model_compute_alike(bench: Bench) -> None:
    """What is done to weights when a request is made is done once, and not again for the next."""
    numbers = np.arange(81, dtype=np.float32) * 5 % 17 - 8
    weights = {"w": numbers[:9].reshape(3, 3), "v": numbers.reshape(3, 3, 3, 3)}
    models = (
        (text, parse(text, {n: weights[n] for n in weights if re.search(rf"\b{n}[,)]", text)}))
        for text in _SQUARES
    )
    for text, proto in bench.taken(models):
        compiled, requests = bench.compile(proto), []
        feeds = Sample("", proto).feeds(7)
        expected = bench.expected(proto, feeds)
        for number in range(3):
            requests.append(compiled.create_infer_request())
            for which in (number, 0):
                what = f"{text.rpartition('{')[2]}, request {which + 1} of {number + 1}"
                compare(requests[which].infer(feeds).to_tuple(), expected, what)


@check("compiled", values=True)
def requests_end_alone(bench: Bench) -> None:
    """A request that is closed, or dropped, takes nothing away from the others."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto)
    device_model = compiled.device_model
    runners = [device_model.create_runner() for _ in range(3)]
    feeds = sample.feeds(6)
    inputs = host_tensors(compiled, feeds)
    expected = bench.expected(sample.proto, feeds)
    for runner in list(runners):
        results = [tensor.numpy() for tensor in runner.run(inputs)]
        compare(results, expected, f"{sample.name}, after another request ended")
        if runners.index(runner) == 0:
            runner.close()
        runners.remove(runner)
        del runner
        gc.collect()
    compare(compiled(feeds).to_tuple(), expected, f"{sample.name}, after all requests ended")


@check("compiled", values=True)
def requests_outlive_what_made_them(bench: Bench) -> None:
    """A request computes on when its compiled model, the model and their core are gone."""
    sample = bench.sample("plain")
    compiled = bench.compile(sample.proto, core=bench.new_core())
    requests = [compiled.create_infer_request() for _ in range(2)]
    del compiled
    gc.collect()
    for seed, request in enumerate(requests):
        feeds = sample.feeds(seed)
        expected = bench.expected(sample.proto, feeds)
        what = f"{sample.name}, after its model was dropped"
        compare(request.infer(feeds).to_tuple(), expected, what)
        requests[0] = request  # of which the first is gone then


@check("compiled")
def a_model_that_is_not_taken_raises(bench: Bench) -> None:
    """Compiling what the device does not take raises a PartitaError; afterwards others compile."""
    proto = type(bench.sample("plain").proto)()
    proto.CopyFrom(bench.sample("plain").proto)
    proto.graph.node[0].op_type = "Transmogrify"
    proto.graph.node[0].domain = "com.nobody"
    entry = proto.opset_import.add()
    entry.domain, entry.version = "com.nobody", 1
    plugin = bench.plugin
    model = bench.read(proto)
    require_raises(
        PartitaError,
        lambda: plugin.compile_model(model, bench.properties()),
        "compile_model of the plugin, given com.nobody::Transmogrify,",
    )
    sample = bench.sample("plain")
    bench.compile(sample.proto)(sample.feeds())


@check("compiled")
def it_is_a_device_model(bench: Bench) -> None:
    """compile_model of a plugin returns a partita.DeviceModel whose runners are partita.Runner."""
    model = bench.read(bench.sample("plain").proto)
    compiled = bench.plugin.compile_model(model, bench.properties())
    if not isinstance(compiled, partita.DeviceModel):
        raise ConformanceError(f"compile_model gives {type(compiled).__name__}.")
    first, second = compiled.create_runner(), compiled.create_runner()
    for runner in (first, second):
        require(isinstance(runner, partita.Runner), f"create_runner gives {type(runner).__name__}.")
    require(first is not second, "create_runner gives the same runner twice.")
    for runner in (first, second):
        runner.close()
        runner.close()
