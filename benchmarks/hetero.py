"""What HETERO's boundaries, partitioner and executors cost.

    python benchmarks/hetero.py [--parts cuts chain partition pipeline parallel memory]
                                [--models light:resnet50 ...]

``cuts``: models cut into 2, 8 and 32 parts over CPU and CPU2 (the CPU plugin registered twice),
latency over uncut; OpenVINO's HETERO with its CPU plugin registered twice in the same run,
alternating. ``chain``: a chain of 100 one-op parts on tiny tensors, time per part under each
executor. ``partition``: seconds for random graphs under random affinities. ``pipeline``
and ``parallel``: devices that only sleep, so that what is measured is the
executor. ``memory``: growth over many requests.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from models import cases
from onnx import TensorProto, helper

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.properties import DeviceProperties
from partita_hetero.partition.partitioner import partition

ROUNDS = 15
CUT_MODELS = ("light:resnet50", "light:densenet121", "light:inception_v1")


class Sleeper(DevicePlugin):
    """A device whose every run takes a known time and passes its input through."""

    properties_type = DeviceProperties

    def __init__(self, name: str, seconds: float) -> None:
        self.device_name = name
        self.seconds = seconds

    def device_info(self, device_id: str) -> DeviceInfo:
        """Describes the device."""
        return DeviceInfo(self.device_name, "sleeps")

    def query_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.QueryResult:
        """Takes everything."""
        return partita.QueryResult.of(self.device_name, {op.name: None for op in model.ops})

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Keeps the time."""
        return SleeperModel(model, properties, self)


class SleeperModel(partita.DeviceModel):
    """See :class:`Sleeper`."""

    def __init__(self, model: partita.Model, properties: DeviceProperties, plugin: Sleeper) -> None:
        super().__init__(model, properties, plugin.device_name)
        self.seconds = plugin.seconds

    def create_runner(self) -> partita.Runner:
        """One request."""
        return SleeperRunner(self.seconds, len(self.outputs))


class SleeperRunner(partita.Runner):
    """See :class:`Sleeper`."""

    def __init__(self, seconds: float, outputs: int) -> None:
        self.seconds = seconds
        self.outputs = outputs

    def run(
        self,
        inputs: Sequence[partita.Tensor],
        outputs: Sequence[partita.Tensor | None] | None = None,
    ) -> Sequence[partita.Tensor]:
        """Sleeps."""
        time.sleep(self.seconds)
        return [inputs[0]] * self.outputs


def chain(count: int, op_type: str = "Relu") -> Any:
    """A chain of operations on a tiny tensor."""
    nodes = [
        helper.make_node(op_type, [f"v{i}"], [f"v{i + 1}"], name=f"op{i}") for i in range(count)
    ]
    return _model(nodes, "v0", f"v{count}")


def branches() -> Any:
    """Two independent operations and one that joins them."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="a"),
        helper.make_node("Neg", ["x"], ["b"], name="b"),
        helper.make_node("Add", ["a", "b"], ["y"], name="y"),
    ]
    return _model(nodes, "x", "y")


def _model(nodes: list[Any], source: str, target: str) -> Any:
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in (source, target)
    ]
    graph = helper.make_graph(nodes, "bench", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def alternate(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median milliseconds of each call, in turns after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(rounds + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if round_number >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) * 1e3 for name, taken in times.items()}


def assign(names: Sequence[str], parts: int, devices: Sequence[str]) -> dict[str, str]:
    """Cuts a sequence of operations into equal runs on alternating devices."""
    return {
        name: devices[index * parts // len(names) % len(devices)]
        for index, name in enumerate(names)
    }


def measure_cuts(models: Sequence[str] = CUT_MODELS) -> None:
    """Latency of cut models over the uncut ones, ours and OpenVINO's."""
    for model_name in models:
        _measure_cuts_of(model_name)


def _measure_cuts_of(model_name: str) -> None:
    case = next(iter(cases([model_name])))
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    calls: dict[str, Callable[[], object]] = {}
    parts_made: dict[str, str] = {}
    for parts in (1, 2, 8, 32):
        model = core.read_model(case.path)
        order = [op for op in model.ops if op.op_type not in ("ConstantOfShape", "Unsqueeze")]
        pins = assign([op.name for op in order], parts, ["CPU", "CPU2"])
        for op in order:
            op.affinity = pins[op.name]
        device = "CPU" if parts == 1 else "HETERO:CPU,CPU2"
        compiled = core.compile_model(model, device)
        request = compiled.create_infer_request()
        calls[f"partita {parts}"] = lambda r=request: r.infer(case.feeds, share_outputs=True)
        parts_made[f"partita {parts}"] = str(len(compiled.explain().subgraph_devices))
    calls |= _openvino_cuts(case.path, case.feeds, parts_made)
    medians = alternate(calls)
    print(f"cuts: {model_name}, median of {ROUNDS} alternating rounds, 2 CPU devices")
    for name, median in medians.items():
        engine, parts = name.split()
        base = medians[f"{engine} 1"]
        print(
            f"  {engine:<9} {parts:>2} parts asked, {parts_made[name]:>3} made: "
            f"{median:7.2f} ms, {median / base:.3f} of uncut"
        )


def _openvino_cuts(
    path: Any, feeds: dict[str, Any], parts_made: dict[str, str]
) -> dict[str, Callable[[], object]]:
    """The same cuts in OpenVINO, where it accepts them."""
    import openvino

    core = openvino.Core()
    core.register_plugin("openvino_intel_cpu_plugin", "CPU2")
    calls: dict[str, Callable[[], object]] = {}
    for parts in (1, 2, 8, 32):
        model = core.read_model(path)
        names = [op.get_friendly_name() for op in model.get_ordered_ops()]
        pins = assign(names, parts, ["CPU", "CPU2"])
        for op in model.get_ordered_ops():
            op.get_rt_info()["affinity"] = pins[op.get_friendly_name()]
        config = {"INFERENCE_PRECISION_HINT": "f32"}
        try:
            if parts == 1:
                compiled = core.compile_model(core.read_model(path), "CPU", config)
            else:
                properties = {"CPU": config, "CPU2": config}
                compiled = core.compile_model(
                    model, "HETERO:CPU,CPU2", {"DEVICE_PROPERTIES": properties}
                )
        except RuntimeError as error:
            print(f"  openvino refuses {parts} parts: {str(error).splitlines()[0][:100]}")
            continue
        request = compiled.create_infer_request()
        for name, array in feeds.items():
            request.set_tensor(name, openvino.Tensor(array))
        calls[f"openvino {parts}"] = request.infer
        made = 1 if parts == 1 else compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")
        parts_made[f"openvino {parts}"] = str(made)
    return calls


def measure_chain(count: int = 100) -> None:
    """Time per part of a chain in which every operation is a part of its own."""
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    model = core.read_model(chain(count))
    for index, op in enumerate(model.ops):
        op.affinity = ("CPU", "CPU2")[index % 2]
    feeds = {"v0": np.ones(4, np.float32)}
    calls: dict[str, Callable[[], object]] = {}
    for executor in ("LINEAR", "DATAFLOW", "PARALLEL"):
        config = {"HETERO_EXECUTOR": executor}
        compiled = core.compile_model(model, "HETERO:CPU,CPU2", config)
        request = compiled.create_infer_request()
        calls[executor] = lambda r=request: r.infer(feeds, share_outputs=True)
    whole = core.compile_model(chain(count), "CPU").create_infer_request()
    calls["whole"] = lambda: whole.infer(feeds, share_outputs=True)
    medians = alternate(calls, rounds=300)
    for name, median in medians.items():
        what = "as one part" if name == "whole" else f"in {count} one-op parts, {name}"
        print(f"chain {what}: {median * 1e3:.0f} us, {median * 1e3 / count:.2f} us an operation")


def measure_partition() -> None:
    """Seconds to partition random graphs of two edges an operation, three devices."""
    for count in (1_000, 10_000, 100_000):
        rng = random.Random(0)
        preds: list[list[int]] = [[] for _ in range(count)]
        succs: list[list[int]] = [[] for _ in range(count)]
        for target in range(1, count):
            for source in {rng.randrange(max(0, target - 50), target) for _ in range(2)}:
                preds[target].append(source)
                succs[source].append(target)
        affinity = [rng.choice("ABC") for _ in range(count)]
        start = time.perf_counter()
        parts = partition(preds, succs, affinity)
        print(
            f"partition: {count:>7} operations into {len(parts)} parts in "
            f"{time.perf_counter() - start:.4f} s"
        )


def measure_pipeline(seconds: float = 0.01, requests: int = 60) -> None:
    """Throughput over three equal parts: requests in a queue over requests one by one."""
    core = partita.Core()
    for name in "ABC":
        core.register_plugin(Sleeper(name, seconds))
    model = core.read_model(chain(3))
    for op, device in zip(model.ops, "ABC", strict=True):
        op.affinity = device
    compiled = core.compile_model(model, "HETERO:A,B,C")
    feeds = {"v0": np.ones(4, np.float32)}
    start = time.perf_counter()
    for _ in range(requests):
        compiled(feeds)
    one_by_one = time.perf_counter() - start
    queue = partita.AsyncInferQueue(compiled)
    start = time.perf_counter()
    for _ in range(requests):
        queue.start_async(feeds)
    queue.wait_all()
    piped = time.perf_counter() - start
    print(
        f"pipeline: {len(queue)} requests in flight, {one_by_one / piped:.2f} times the throughput "
        "of one by one"
    )


def measure_parallel(seconds: float = 0.02) -> None:
    """Latency of two independent branches, PARALLEL over LINEAR."""
    core = partita.Core()
    for name in "AB":
        core.register_plugin(Sleeper(name, seconds))
    core.register_plugin(Sleeper("C", 0))
    calls = {}
    for executor in ("LINEAR", "PARALLEL"):
        model = core.read_model(branches())
        for op, device in zip(model.ops, "ABC", strict=True):
            op.affinity = device
        config = {"HETERO_EXECUTOR": executor}
        request = core.compile_model(model, "HETERO:A,B,C", config).create_infer_request()
        calls[executor] = lambda r=request: r.infer({"x": np.ones(4, np.float32)})
    medians = alternate(calls)
    print(f"parallel: {medians['LINEAR'] / medians['PARALLEL']:.2f} times as fast as LINEAR")


def measure_memory(requests: int = 100_000) -> None:
    """Growth of the process over many requests of a model in two parts."""
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    model = core.read_model(chain(4))
    for index, op in enumerate(model.ops):
        op.affinity = ("CPU", "CPU2")[index // 2]
    request = core.compile_model(model, "HETERO:CPU,CPU2").create_infer_request()
    feeds = {"v0": np.ones(4, np.float32)}
    for _ in range(2_000):
        request.infer(feeds)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(requests):
        request.infer(feeds)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory: {requests} requests, the peak grew by {after - before} KiB")


PARTS: dict[str, Callable[[], None]] = {
    "partition": measure_partition,
    "chain": measure_chain,
    "pipeline": measure_pipeline,
    "parallel": measure_parallel,
    "memory": measure_memory,
    "cuts": measure_cuts,
}


def main() -> None:
    """Runs the chosen measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--models", nargs="*", default=CUT_MODELS, help="for cuts")
    args = parser.parse_args()
    for name in args.parts:
        if name == "cuts":
            measure_cuts(args.models)
        else:
            PARTS[name]()


if __name__ == "__main__":
    main()
