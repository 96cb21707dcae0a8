"""What it costs to compute on nodes of a Ray cluster, and what happens when they die.

A cluster of two raylets is started on this machine. Three tables: a call of a part over a bare
actor call, a pipeline of two stages on two nodes over one, and requests while a node is killed and
another one comes for it, time and again.

    python benchmarks/ray_links.py --kills 200 --requests 2000
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.tensors.tensor import HostTensor

STORE_BYTES = 512 << 20
MARKS = {"call": 1.3, "pipeline": 1.8}
QUICK_DEATH = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
"""So that the cluster sees in two seconds, not in half a minute, that a node is gone."""


def main() -> None:
    """Starts the cluster and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="calls of each kind, in turns")
    parser.add_argument("--stage-ms", type=float, default=20.0, help="time of a stage")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--only", choices=["calls", "pipeline", "kills"])
    args = parser.parse_args()
    with two_nodes() as cluster:
        import ray

        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors")
        print(f"Python {platform.python_version()}, Ray {ray.__version__}, numpy {np.__version__}")
        if args.only in (None, "calls"):
            calls(args.rounds)
        if args.only in (None, "pipeline"):
            pipeline(args.stage_ms)
        if args.only in (None, "kills"):
            kills(cluster, args.requests, args.kills)


@contextmanager
def two_nodes() -> Iterator[Any]:
    """The head and one more node, both on this machine, each with a store of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAY_AUTH_TOKEN_PATH"] = f"{folder}/token"
        import ray
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
        head = {**node, "_system_config": QUICK_DEATH}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


# ------------------------------------------------------------------------------- calls


def model_of(nodes: list[Any], shape: list[int], weights: list[Any]) -> Any:
    """A model of one input and one output of a shape."""
    ports = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)] for n in "xy"]
    graph = helper.make_graph(nodes, "part", *ports, weights)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def calls(rounds: int) -> None:
    """A part that computes nothing, over an actor that does the same by hand."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from partita_ray.cluster import cluster

    @ray.remote(num_cpus=0)
    class Bare:
        def nothing(self) -> None:
            return None

        def negative(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return -x

    core = partita.Core()
    print(f"\n{'a call on':12} {'tensors':16} {'bare ms':>9} {'part ms':>9} {'ratio':>7}")
    for number in (0, 1):
        node = NodeAffinitySchedulingStrategy(cluster().nodes()[number].node_id, soft=False)
        bare = Bare.options(scheduling_strategy=node).remote()
        for label, shape in (("none", [1]), ("16 MB in and out", [4 << 20])):
            part = core.device_api.compile_model(
                core.read_model(model_of([helper.make_node("Neg", ["x"], ["y"])], shape, [])),
                f"RAY.{number}",
                {"RAY_DEVICE": "CPU"},
            )
            runner, x = part.create_runner(), np.zeros(shape, np.float32)
            given = () if label == "none" else (x,)
            by_hand = partial(_fetched, bare.nothing if label == "none" else bare.negative, given)
            rounded = rounds if label == "none" else max(10, rounds // 8)
            times = in_turns((by_hand, partial(_viewed, runner, HostTensor(x))), rounded)
            ratio = times[1] / times[0]
            row = f"RAY.{number:<8} {label:16} {times[0] * 1e3:9.3f} {times[1] * 1e3:9.3f}"
            print(f"{row} {ratio:7.2f}  (mark: under {MARKS['call']})")


def _fetched(call: Any, given: tuple[Any, ...]) -> Any:
    import ray

    return ray.get(call.remote(*given))


def _viewed(runner: Any, tensor: HostTensor) -> Any:
    return runner.run([tensor])[0].view()


def in_turns(tasks: tuple[Callable[[], object], ...], rounds: int) -> list[float]:
    """Median seconds of each, run one after another so that all see the same weather."""
    times: list[list[float]] = [[] for _ in tasks]
    for index in range(rounds + 5):
        for task, into in zip(tasks, times, strict=True):
            start = time.perf_counter()
            task()
            if index >= 5:
                into.append(time.perf_counter() - start)
    return [statistics.median(one) for one in times]


# ---------------------------------------------------------------------------- pipeline


def two_stages(seconds: float) -> tuple[Any, np.ndarray[Any, Any]]:
    """A model of two stages that take so long on one thread of device CPU each, and its weight."""
    width = 512
    weight = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0]
    weights = [numpy_helper.from_array(weight.astype(np.float32), "w")]

    def stages(steps: int) -> Any:
        names = ["x", *(f"v{i}" for i in range(2 * steps - 1)), "y"]
        nodes = [
            helper.make_node("MatMul", [a, "w"], [b], f"{'first' if i < steps else 'second'}{i}")
            for i, (a, b) in enumerate(pairwise(names))
        ]
        return model_of(nodes, [256, width], weights)

    x = np.ones((256, width), np.float32)
    config = {"INFERENCE_NUM_THREADS": 1}
    request = partita.Core().compile_model(stages(8), "CPU", config).create_infer_request()
    (took,) = in_turns((lambda: request.infer([x]),), 20)
    return stages(max(1, round(8 * 2 * seconds / took))), weight


def pipeline(stage_ms: float) -> None:
    """Requests per second of both stages on one node, and of each on a node of its own."""
    core = partita.Core()
    model, _ = two_stages(stage_ms * 1e-3)
    x = np.ones((256, 512), np.float32)
    inner = {"RAY_DEVICE": "CPU", "RAY_DEVICE_PROPERTIES": {"INFERENCE_NUM_THREADS": 1}}
    rates, busy = {}, {}
    for label, second in (("one node", "RAY.0"), ("two nodes", "RAY.1")):
        config = {
            "HETERO_PINS": ["re:^first=RAY.0", f"re:^second={second}"],
            "DEVICE_PROPERTIES": {"RAY": inner},
            "PERFORMANCE_HINT": "THROUGHPUT",
        }
        compiled = core.compile_model(model, "HETERO:RAY.0,RAY.1", config)
        jobs = partita.AsyncInferQueue(compiled, jobs=4)
        rate(jobs, x, 20)
        before, start = processor_seconds(), time.perf_counter()
        rates[label] = max(rate(jobs, x, 60) for _ in range(3))
        took = time.perf_counter() - start
        busy[label] = {
            who: (seconds - before.get(who, 0)) / took
            for who, seconds in processor_seconds().items()
        }
    print(f"\nstages of {stage_ms} ms: ", end="")
    print(", ".join(f"{label} {found:.1f}/s" for label, found in rates.items()), end="")
    print(f"; ratio {rates['two nodes'] / rates['one node']:.2f} (mark: {MARKS['pipeline']})")
    print(f"processors that were busy, of {len(os.sched_getaffinity(0))}:")
    for label, shares in busy.items():
        print(f"  {label}: " + ", ".join(f"{who} {share:.2f}" for who, share in shares.items()))


def processor_seconds() -> dict[str, float]:
    """What the stages' processes, this one, and Ray's have used so far."""
    used = {"stages": 0.0, "this process": 0.0, "Ray": 0.0}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = place.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        who = {"ray::NodeActor": "stages", "raylet": "Ray", "gcs_server": "Ray"}.get(name)
        if place.parent.name == str(os.getpid()):
            who = "this process"
        if who is not None:
            user, system = fields.split()[11:13]
            used[who] += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return used


def rate(jobs: Any, x: np.ndarray[Any, Any], count: int) -> float:
    """Requests per second."""
    start = time.perf_counter()
    for _ in range(count):
        jobs.start_async([x])
    jobs.wait_all()
    return count / (time.perf_counter() - start)


# ------------------------------------------------------------------------------- kills


def kills(cluster: Any, requests: int, count: int) -> None:
    """Requests from four threads while nodes are killed and replaced; each result is checked."""
    core = partita.Core()
    model, weight = two_stages(0.002)
    steps = len(model.graph.node)
    power = np.linalg.matrix_power(weight, steps)
    config = {"HETERO_PINS": ["re:^first=RAY.0?", "re:^second=RAY.1?"]}
    config["DEVICE_PROPERTIES"] = {"RAY": {"RAY_DEVICE": "CPU"}}
    compiled = core.compile_model(model, "HETERO:RAY.0,RAY.1,CPU", config)
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    outcomes = {"right": 0, "wrong": 0, "lost": 0}
    lock, due = threading.Lock(), threading.Semaphore(0)

    def serve() -> None:
        request = compiled.create_infer_request()
        while (seed := todo.get()) >= 0:
            due.acquire()
            x = np.random.default_rng(seed).standard_normal((256, 512)).astype(np.float32)
            try:
                close = np.allclose(request.infer([x])[0], x @ power, rtol=1e-3, atol=1e-3)
                outcome = "right" if close else "wrong"
            except partita.errors.PartitaError as error:
                outcome = "lost"
                print(f"lost: {error}", file=sys.stderr)
            with lock:
                outcomes[outcome] += 1

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for seed in [*range(requests), *(-1 for _ in threads)]:
        todo.put(seed)
    moved = 0
    start = time.perf_counter()
    for kill in range(count):
        due.release(requests // count)
        while sum(outcomes.values()) < (kill + 0.5) * (requests // count):
            time.sleep(0.001)
        (node,) = cluster.worker_nodes
        cluster.remove_node(node, allow_graceful=False)  # SIGKILL, with requests in flight
        while sum(outcomes.values()) < (kill + 1) * (requests // count):
            time.sleep(0.001)
        moved += bool(compiled.device_model.failures)
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        cluster.wait_for_nodes()
        compiled.device_model.enable_device("RAY.1")
        gc.collect()
    due.release(requests % count + len(threads))
    for thread in threads:
        thread.join()
    took = time.perf_counter() - start
    told = ", ".join(f"{number} {what}" for what, number in outcomes.items())
    print(f"\n{requests} requests, a node killed {count} times in {took:.0f} s: {told}")
    print(f"the part had to move {moved} times (mark: 0 lost, 0 wrong)")


if __name__ == "__main__":
    main()
