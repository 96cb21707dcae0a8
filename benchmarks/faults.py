"""The fault campaign: devices that fail in fourteen ways; what becomes of the requests.

    python benchmarks/faults.py --runs 1000 --seed 0 [--kinds hang vanish]

Each run draws a graph, a placement, fixed or varying shapes, memories, an executor (LINEAR,
DATAFLOW, PARALLEL), a way to ask (one request, threads, asynchronous requests, a queue) and a fault
for one or two of three devices; the third one is healthy and takes everything. Every answer is
compared with onnx's reference evaluator. Without STRICT every request must be answered and right;
with STRICT it may raise instead. At the end nothing may be left: no runner, no hanging thread.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import logging
import random
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from faulty import KINDS, OPS, Array, Fault, FaultyDevice
from onnx import TensorProto, helper, numpy_helper

import partita

EXECUTORS = ("LINEAR", "DATAFLOW", "PARALLEL")
REQUESTS = 8
PATIENCE_S = 60
"""A run that takes longer counts as a deadlock."""


@dataclass
class Outcome:
    """What came of one run: request number to an array per output, or to the error."""

    kind: str
    answers: dict[int, Any] = field(default_factory=dict)
    seconds: float = 0.0
    fired: int = 0
    wrong: int = 0
    lost: int = 0
    raised: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One run of the campaign; everything follows from the seed and the number."""

    number: int
    kind: str
    executor: str
    mode: str
    proto: Any
    pins: dict[str, str]
    strict: bool
    devices: list[FaultyDevice]
    feeds: list[dict[str, Array]]

    def __str__(self) -> str:
        faults = {d.device_name: d.fault for d in self.devices}
        return f"run {self.number}: {self.kind}, {self.executor}, {self.mode}, {faults}"


def draw(seed: int, number: int, kinds: tuple[str, ...] = KINDS) -> Case:
    """Draws a run; kinds, executors and modes take turns, so that all meet."""
    rng = random.Random(f"{seed}:{number}")
    combinations = list(itertools.product(kinds, EXECUTORS, MODES))
    kind, executor, mode = combinations[number % len(combinations)]
    dynamic = rng.random() < 0.4
    proto, names = _graph(rng, dynamic)
    faulty = rng.choice([["A"], ["B"], ["A", "B"]])
    memories = {name: rng.choice(["host", name.lower()]) for name in "ABC"}
    if kind in ("upload", "download"):
        memories |= {name: name.lower() for name in faulty}
    devices = []
    for name in "ABC":
        at = 1 if kind == "first run" else rng.randint(1, 9)
        at = rng.randint(1, 2) if kind in ("query", "compile", "runner") else at
        fault = Fault(kind, at, rng.random() < 0.5) if name in faulty else Fault()
        devices.append(FaultyDevice(name, fault, memories[name]))
    values = np.random.default_rng(rng.randrange(2**32))
    feeds = [
        {"x": values.standard_normal((rng.randint(2, 5) if dynamic else 2, 3), dtype=np.float32)}
        for _ in range(REQUESTS)
    ]
    pins = {name: rng.choice("ABC") for name in names if rng.random() < 0.7}
    strict = rng.random() < 0.2
    return Case(number, kind, executor, mode, proto, pins, strict, devices, feeds)


def _graph(rng: random.Random, dynamic: bool) -> tuple[Any, list[str]]:
    """A random graph of elementwise operations; its operations' names."""
    values, nodes = ["x", "w"], []
    for index in range(rng.randint(2, 12)):
        op_type = rng.choice(list(OPS))
        count = 2 if op_type in ("Add", "Sub", "Mul", "Max") else 1
        inputs = [rng.choice(values[-6:]) for _ in range(count)]
        name = f"v{index}"
        nodes.append(helper.make_node(op_type, inputs, [name], name=name))
        values.append(name)
    outputs = {values[-1], *rng.sample(values[2:], 1)}

    def info(name: str, dims: list[Any] | None) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    graph = helper.make_graph(
        nodes,
        "m",
        [info("x", ["N" if dynamic else 2, 3])],
        [info(name, None) for name in sorted(outputs)],
        [numpy_helper.from_array(np.array([0.5, -1.5, 2.0], np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, [node.name for node in nodes]


def _keep(case: Case, outcome: Outcome, number: int, ask: Callable[[], Any]) -> None:
    """Notes one request's answer or error; a second one for the same request is a problem."""
    try:
        answer = ask()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        answer = error
    if number in outcome.answers:
        outcome.problems.append(f"request {number} was answered twice")
    outcome.answers[number] = answer


def _one_request(case: Case, compiled: Any, outcome: Outcome) -> None:
    request = compiled.create_infer_request()
    for number, feeds in enumerate(case.feeds):
        _keep(case, outcome, number, lambda f=feeds: request.infer(f).to_tuple())


def _threads(case: Case, compiled: Any, outcome: Outcome) -> None:
    def work(start: int) -> None:
        for number in range(start, REQUESTS, 3):
            feeds = case.feeds[number]
            _keep(case, outcome, number, lambda f=feeds: compiled(f).to_tuple())

    threads = [threading.Thread(target=work, args=(start,)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _asynchronous(case: Case, compiled: Any, outcome: Outcome) -> None:
    requests = [compiled.create_infer_request() for _ in range(4)]
    for first in range(0, REQUESTS, 4):
        for index, request in enumerate(requests):
            request.start_async(case.feeds[first + index])
        for index, request in enumerate(requests):

            def ask(request: Any = request) -> Any:
                request.wait()
                return [np.array(tensor.numpy()) for tensor in request.output_tensors]

            _keep(case, outcome, first + index, ask)


def _queue(case: Case, compiled: Any, outcome: Outcome) -> None:
    jobs = partita.AsyncInferQueue(compiled, 3)

    def ended(request: Any, number: int) -> None:
        arrays = [np.array(tensor.numpy()) for tensor in request.output_tensors]
        _keep(case, outcome, number, lambda: arrays)

    jobs.set_callback(ended)
    for number, feeds in enumerate(case.feeds):
        jobs.start_async(feeds, number)
    try:
        jobs.wait_all()
    except partita.PartitaError as error:  # a queue tells the first error, and calls back for none
        for number in range(REQUESTS):
            outcome.answers.setdefault(number, error)


MODES: dict[str, Callable[[Case, Any, Outcome], None]] = {
    "one request": _one_request,
    "threads": _threads,
    "asynchronous": _asynchronous,
    "queue": _queue,
}


def play(case: Case) -> Outcome:
    """Compiles and infers, then judges."""
    outcome = Outcome(case.kind)
    core = partita.Core()
    for device in case.devices:
        core.register_plugin(device)
    model = core.read_model(case.proto)
    for op in model.ops:
        op.affinity = case.pins.get(op.name)
    config: dict[str, Any] = {
        "HETERO_EXECUTOR": case.executor,
        "PERF_COUNT": case.kind == "upload",  # uploads are steps of their own then
        "STRICT": case.strict,
        "REJECT_NAN": case.kind == "NaN",
        "HETERO_TIMEOUT_MS": 250 if case.kind == "hang" else 0,
    }
    start = time.perf_counter()
    compiled = None
    try:
        compiled = core.compile_model(model, "HETERO:A,B,C", config)
        MODES[case.mode](case, compiled, outcome)
    except partita.PartitaError as error:
        for number in range(REQUESTS):
            outcome.answers.setdefault(number, error)
    outcome.seconds = time.perf_counter() - start
    for device in case.devices:
        outcome.fired += device.fired
        device.release.set()
    _judge(case, compiled, outcome)
    return outcome


def _judge(case: Case, compiled: Any, outcome: Outcome) -> None:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(case.proto)
    for number, feeds in enumerate(case.feeds):
        answer = outcome.answers.get(number)
        if answer is None:
            outcome.lost += 1
            outcome.problems.append(f"request {number} was not answered")
        elif isinstance(answer, Exception):
            outcome.raised += 1
            if not case.strict or not isinstance(answer, partita.PartitaError):
                outcome.lost += 1
                outcome.problems.append(f"request {number}: {type(answer).__name__}: {answer}")
        else:
            for have, want in zip(answer, evaluator.run(None, feeds), strict=True):
                if have.shape != want.shape or not np.allclose(have, want, rtol=1e-5, atol=1e-6):
                    outcome.wrong += 1
                    outcome.problems.append(f"request {number} is wrong")
                    break
    blamed = [device.device_name for device in case.devices if device.fired]
    if compiled is not None and not case.strict:
        said = str(compiled.explain())
        for name in blamed:
            if f"not {name}: " not in said and f"{name} claimed" not in said:
                outcome.problems.append(f"explain() does not say that {name} failed")


def guarded(case: Case) -> Outcome:
    """Plays a case, but not forever: after a minute it counts as a deadlock and all ends."""
    box: list[Outcome] = []
    thread = threading.Thread(target=lambda: box.append(play(case)), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if thread.is_alive():
        faulthandler.dump_traceback(all_threads=True)
        raise SystemExit(f"DEADLOCK in {case}")
    if not box:
        raise SystemExit(f"the campaign itself failed in {case}")
    return box[0]


def campaign(
    runs: int, seed: int, kinds: tuple[str, ...] = KINDS
) -> Iterator[tuple[Case, Outcome]]:
    """Plays runs one after another."""
    for number in range(runs):
        case = draw(seed, number, kinds)
        yield case, guarded(case)


def left_behind() -> dict[str, int]:
    """What runs that are over should have freed."""
    for _ in range(3000):
        hanging = [t for t in threading.enumerate() if t.name == "partita-hetero-timeout"]
        if not hanging:
            break
        time.sleep(0.02)
    gc.collect()
    return {"runners": len(FaultyDevice.runners), "hanging threads": len(hanging)}


def main() -> int:
    """Prints a line per kind of fault; the exit code is 1 if anything is lost, wrong or left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # failures are what this is about
    by_kind: dict[str, list[Outcome]] = {kind: [] for kind in options.kinds}
    memory: list[int] = []
    for case, outcome in campaign(options.runs, options.seed, tuple(options.kinds)):
        by_kind[case.kind].append(outcome)
        for problem in outcome.problems:
            print(f"  {case}: {problem}", flush=True)
        outcome.answers = {}
        if case.number % 100 == 99:
            gc.collect()
            memory.append(_resident_kib())
    left = left_behind()
    print(f"{'fault':<12} runs  requests  faults  right  raised  lost  wrong  median ms")
    total: Counter[str] = Counter()
    for kind, outcomes in by_kind.items():
        asked = len(outcomes) * REQUESTS
        counts = {
            name: sum(getattr(o, name) for o in outcomes)
            for name in ("fired", "raised", "lost", "wrong")
        }
        total.update(counts, runs=len(outcomes), asked=asked)
        right = asked - counts["raised"] - counts["wrong"]
        middle = statistics.median(o.seconds for o in outcomes) * 1e3 if outcomes else 0
        print(
            f"{kind:<12} {len(outcomes):>4}  {asked:>8}  {counts['fired']:>6}  {right:>5}  "
            f"{counts['raised']:>6}  {counts['lost']:>4}  {counts['wrong']:>5}  {middle:>9.1f}"
        )
    print(
        f"{total['runs']} runs, {total['asked']} requests, {total['fired']} faults: "
        f"{total['lost']} lost, {total['wrong']} wrong, 0 deadlocks; left behind: "
        f"{left['runners']} runners, {left['hanging threads']} hanging threads; "
        f"{threading.active_count()} threads at the end"
    )
    if memory:
        print(f"memory after each 100 runs, MiB: {', '.join(f'{m / 1024:.1f}' for m in memory)}")
    problems = sum(len(o.problems) for outcomes in by_kind.values() for o in outcomes)
    return int(bool(problems) or any(left.values()))


def _resident_kib() -> int:
    """Memory of this process now (Linux), or its peak elsewhere."""
    try:
        with open("/proc/self/statm") as stream:  # noqa: PTH123  # no path to build
            return int(stream.read().split()[1]) * resource.getpagesize() // 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main())
