"""Networks whose inputs change their shapes from call to call, beside onnxruntime and OpenVINO.

    python benchmarks/varying_shapes.py [--threads 2] [--rounds 3] [--shapes 40] [--visits 3]
        [--pin] [--json F] [--opencl]
        [sequence] [batch] [lines] [pictures] [encoder] [detector] [speech]
        [FILE.onnx@axis=first-last[/step],...]

A turn of a contestant is a fresh compile, calls on one shape, then `--shapes` shapes in random
order that it has not seen (`new`), the same in other orders (`seen`) until each was visited
`--visits` times, and each again and again (`fixed`). Contestants take turns in one process, with
pauses between, in which threads that still spin come to rest; all get the same arrays. Printed are
medians over all calls of all
rounds, wall milliseconds and the process's CPU milliseconds, and our wall time over the faster
peer's: for new and seen shapes, the same of CPU time, and seen shapes of ours over fixed ones of
ours; below, ours by visit. All compute
float32 (OpenVINO by INFERENCE_PRECISION_HINT, Partita by its default settings and by
EXECUTION_MODE_HINT=ACCURACY); the largest difference to onnxruntime is printed in parts of an
output's largest value. With --pin another contestant is HETERO, with one operation in the middle
of the network (a sum if it has any) pinned to device REFERENCE; with --opencl it is device OPENCL.
A peer that is not installed is left out. Networks come from the zoo, but for ``encoder``,
``detector`` and ``front_end``. Those of files get noise in sizes drawn from a range for each axis
that varies:
``net.onnx@batch=1-4,height=64-320/32,width=64-320/32``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import json
import math
import operator
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from audio_networks import RATE, front_end
from cpu_networks import detector, encoder
from cpu_peers import largest_error
from models import cases

import partita
from partita.system.processors import usable_processors

Feeds = dict[str, np.ndarray[Any, Any]]
Call = Callable[[Feeds], list[np.ndarray[Any, Any]]]

PAUSE = 0.05
WARM_UP = 5
FIXED = 2
"""Calls of each shape again and again that count, behind those of the warm-up."""


@dataclass
class Times:
    """Calls of one contestant: wall and CPU milliseconds, by kind of shape."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    error: float = 0.0

    def call(self, kind: str, call: Call, feeds: Feeds) -> list[np.ndarray[Any, Any]]:
        """Times a call."""
        cpu, wall = time.process_time(), time.perf_counter()
        results = call(feeds)
        self.wall.setdefault(kind, []).append((time.perf_counter() - wall) * 1e3)
        self.cpu.setdefault(kind, []).append((time.process_time() - cpu) * 1e3)
        return results


def onnxruntime_call(path: Path, threads: int) -> Call:
    """A session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def openvino_call(path: Path, threads: int) -> Call:
    """A request of OpenVINO."""
    import openvino

    config = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(path), "CPU", config).create_infer_request()

    def call(feeds: Feeds) -> list[np.ndarray[Any, Any]]:
        request.infer(feeds, share_inputs=True)
        return [tensor.data for tensor in request.output_tensors]

    return call


def partita_call(path: Path, threads: int, config: dict[str, Any], pin: bool = False) -> Call:
    """A request of Partita; on HETERO with one operation elsewhere if `pin`."""
    core = partita.Core()
    model = core.read_model(path)
    settings = {"INFERENCE_NUM_THREADS": threads, **config}
    if pin:
        core.set_property("CPU", settings)
        device = "HETERO:CPU,REFERENCE"
        sums = [op for op in model.ops if op.op_type == "Add"] or list(model.ops)
        sums[len(sums) // 2].affinity = "REFERENCE"
        compiled = core.compile_model(model, device)
    else:
        compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    return lambda feeds: list(request.infer(feeds, share_outputs=True).to_tuple())


def opencl_call(path: Path) -> Call:
    """A request of device OPENCL, on as many threads as its driver takes."""
    request = partita.Core().compile_model(path, "OPENCL").create_infer_request()
    return lambda feeds: list(request.infer(feeds, share_outputs=True).to_tuple())


def contestants(path: Path, threads: int, pin: bool, opencl: bool) -> dict[str, Callable[[], Call]]:
    """How each is compiled, by name."""
    exact = {"EXECUTION_MODE_HINT": "ACCURACY"}
    peers = {"onnxruntime": onnxruntime_call, "OpenVINO": openvino_call}
    found: dict[str, Callable[[], Call]] = {
        **{
            name: functools.partial(call, path, threads)
            for name, call in peers.items()
            if importlib.util.find_spec(name.lower())
        },
        "Partita": lambda: partita_call(path, threads, {}),
        "Partita, exact": lambda: partita_call(path, threads, exact),
    }
    if pin:
        found["Partita, HETERO"] = lambda: partita_call(path, threads, {}, pin=True)
    if opencl:
        found["Partita, OPENCL"] = lambda: opencl_call(path)
    return found


def sequences(count: int, rng: np.random.Generator) -> Iterator[Feeds]:
    """One sentence of so many words."""
    for length in rng.permutation(np.linspace(8, 128, count, dtype=int)):
        yield _sentences(1, int(length), rng)


def batches(count: int, rng: np.random.Generator) -> Iterator[Feeds]:
    """Sentences of 16 words, 1 to so many."""
    for size in rng.permutation(np.arange(1, count + 1)):
        yield _sentences(int(size), 16, rng)


def _sentences(size: int, length: int, rng: np.random.Generator) -> Feeds:
    shape = (size, length)
    return {
        "input_ids": rng.integers(1000, 30000, shape),
        "attention_mask": np.ones(shape, np.int64),
    }


def lines(count: int, rng: np.random.Generator) -> Iterator[Feeds]:
    """A line of text as a picture, as wide as it has to be."""
    for width in rng.permutation(np.arange(count) * 16 + 96):
        yield {"x": rng.standard_normal((1, 3, 48, int(width)), dtype=np.float32)}


def pictures(count: int, rng: np.random.Generator) -> Iterator[Feeds]:
    """A page of 192 to 640 points each way, in steps of 32."""
    sides = range(192, 641, 32)
    sizes = rng.permutation([(height, width) for height in sides for width in sides])
    for height, width in sizes[:count]:
        yield {"x": rng.standard_normal((1, 3, int(height), int(width)), dtype=np.float32)}


def embeddings(count: int, rng: np.random.Generator) -> Iterator[Feeds]:
    """The words of one sentence, as the first layer of a transformer takes them."""
    for length in rng.permutation(np.linspace(8, 128, count, dtype=int)):
        yield {"x": rng.standard_normal((1, int(length), 768), dtype=np.float32)}


def utterances(count: int, rng: np.random.Generator) -> Iterator[Feeds]:
    """One to 30 seconds of audio."""
    for length in rng.permutation(np.linspace(RATE, 30 * RATE, count, dtype=int)):
        yield {"x": rng.standard_normal((1, int(length)), dtype=np.float32)}


WORK: dict[str, tuple[str, Callable[[int, np.random.Generator], Iterator[Feeds]]]] = {
    "sequence": ("zoo:minilm-l3", sequences),
    "batch": ("zoo:minilm-l3", batches),
    "lines": ("zoo:ppocr-rec", lines),
    "pictures": ("zoo:ppocr-det", pictures),
    "encoder": ("encoder", embeddings),
    "detector": ("detector", pictures),
    "speech": ("front_end", utterances),
}
BUILT: dict[str, Callable[[], tuple[bytes, Feeds]]] = {
    "encoder": functools.partial(encoder, symbol="tokens"),
    "detector": functools.partial(detector, symbols=("height", "width")),
    "front_end": front_end,
}


@contextlib.contextmanager
def model_file(model: str) -> Iterator[Path]:
    """The file of a network of the zoo, or of one that is built."""
    if model.endswith(".onnx"):
        yield Path(model)
        return
    if model not in BUILT:
        yield next(iter(cases([model]))).path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.onnx"
        path.write_bytes(BUILT[model]()[0])
        yield path


def of_file(work: str) -> tuple[str, Callable[[int, np.random.Generator], Iterator[Feeds]]]:
    """The file of ``FILE.onnx@axis=first-last/step,...``, and what makes inputs for it."""
    place, _, axes = work.partition("@")
    ranges = {}
    for axis in axes.split(","):
        name, _, bounds = axis.partition("=")
        bounds, _, step = bounds.partition("/")
        first, _, last = bounds.partition("-")
        ranges[name] = range(int(first), int(last or first) + 1, int(step or 1))
    return place, functools.partial(noise, place, ranges)


def noise(
    place: str, ranges: Mapping[str, range], count: int, rng: np.random.Generator
) -> Iterator[Feeds]:
    """Inputs of a file in different sizes: floats, small indices, and ones for masks."""
    ports = partita.Core().read_model(place).inputs
    many = math.prod(map(len, ranges.values()))
    for number in rng.choice(many, min(count, many), replace=False):
        sizes = {}
        for name, sides in ranges.items():
            number, which = divmod(number, len(sides))
            sizes[name] = sides[which]
        feeds = {}
        for port in ports:
            shape = [sizes[n] if isinstance(n, str) else n for n in port.shape or ()]
            if port.dtype.kind == "f":
                feeds[port.name] = rng.standard_normal(shape).astype(port.dtype)
            else:
                most = 2 if "mask" in port.name or port.dtype == bool else 200
                feeds[port.name] = rng.integers(1, most, shape).astype(port.dtype)
        yield feeds


def turn(call: Call, feeds: list[Feeds], orders: list[Any], times: Times, wanted: Any) -> Any:
    """Calls on all shapes; returns the results of the first calls, in order of the shapes."""
    for _ in range(WARM_UP):
        call(feeds[0])
    results = {}
    for index in orders[0]:
        results[index] = [np.array(x) for x in times.call("new", call, feeds[index])]
    for number, order in enumerate(orders[1:], 2):
        for index in order:
            times.call(f"visit {number}", call, feeds[index])
    for kept in (times.wall, times.cpu):
        visits = (kept[f"visit {number}"] for number in range(2, len(orders) + 1))
        kept["seen"] = [*itertools.chain(*visits)]
    for index in orders[0]:
        for _ in range(WARM_UP):
            call(feeds[index])
        for _ in range(FIXED):
            times.call("fixed", call, feeds[index])
    for index in wanted or ():
        times.error = max(times.error, largest_error(results[index], wanted[index]))
    return results


def measure(name: str, given: argparse.Namespace) -> dict[str, Times]:
    """Lets all contestants take turns at one kind of work, as the command line says."""
    model, make = WORK[name] if name in WORK else of_file(name)
    with model_file(model) as path:
        made = contestants(path, given.threads, given.pin, given.opencl)
        return take_turns(made, make, given.rounds, given.shapes, given.visits)


def take_turns(
    made: dict[str, Callable[[], Call]],
    make: Callable[[int, np.random.Generator], Iterator[Feeds]],
    rounds: int,
    count: int,
    visits: int = 3,
) -> dict[str, Times]:
    """The times of each contestant at requests that are made anew in each round."""
    times = {label: Times() for label in made}
    for number in range(rounds):
        rng = np.random.default_rng(number)
        feeds = list(make(count + 1, rng))
        orders = [rng.permutation(np.arange(1, len(feeds))) for _ in range(visits)]
        wanted = None
        for label, compile_it in made.items():
            time.sleep(PAUSE)
            results = turn(compile_it(), feeds, orders, times[label], wanted)
            wanted = wanted or results
    return times


def ratios(times: dict[str, Times]) -> dict[str, dict[str, float]]:
    """Our medians over the faster peer's, and of seen shapes over fixed ones of ours."""
    peers = [taken for label, taken in times.items() if not label.startswith("Partita")]
    clocks = {"": operator.attrgetter("wall"), "CPU ": operator.attrgetter("cpu")}
    found = {}
    for label, taken in times.items():
        if label.startswith("Partita"):
            found[label] = {
                clock + kind: statistics.median(of(taken)[kind])
                / min(statistics.median(of(peer)[kind]) for peer in peers)
                for clock, of in clocks.items()
                for kind in ("new", "seen")
                if peers
            }
            seen, fixed = (statistics.median(taken.wall[kind]) for kind in ("seen", "fixed"))
            found[label]["seen / fixed"] = seen / fixed
    return found


def show(name: str, times: dict[str, Times]) -> dict[str, Any]:
    """Prints the table of one kind of work, and returns it."""
    kinds = ("new", "seen", "fixed")
    print(f"{name}, {WORK[name][0] if name in WORK else 'noise'}: medians in ms, wall (CPU)")
    found = ratios(times)
    rows = {}
    for label, taken in times.items():
        wall = {kind: statistics.median(taken.wall[kind]) for kind in kinds}
        cpu = {kind: statistics.median(taken.cpu[kind]) for kind in kinds}
        rows[label] = {"wall_ms": wall, "cpu_ms": cpu, "error": taken.error}
        rows[label]["ratios"] = found.get(label)
        columns = "  ".join(f"{kind} {wall[kind]:8.2f} ({cpu[kind]:8.2f})" for kind in kinds)
        compared = found.get(label, {})
        over = "  ".join(f"{kind} {value:.2f}" for kind, value in compared.items())
        print(f"  {label:<16} {columns}  error {taken.error:.0e}  {over}", flush=True)
        if label in found:
            visits = {k: statistics.median(v) for k, v in taken.wall.items() if k[:5] == "visit"}
            rows[label]["visits_ms"] = visits
            print(" " * 19 + "  ".join(f"{k} {v:.2f}" for k, v in visits.items()), flush=True)
    return rows


def machine() -> str:
    """The processor's name, and how many of them this process may use."""
    text = Path("/proc/cpuinfo")
    names = [line for line in text.read_text().splitlines() if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.processor()
    return f"{name}, {usable_processors()} processors"


@dataclass(frozen=True)
class Report:
    """What --json writes."""

    machine: str
    arithmetic: str
    threads: int
    rounds: int
    shapes: int
    work: dict[str, Any]


def main() -> None:
    """Measures what is named on the command line, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", nargs="*", metavar="work", help=f"{', '.join(WORK)}, or a file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--visits", type=int, default=3, help="of each shape, at least 2")
    parser.add_argument("--pin", action="store_true", help="HETERO with one operation elsewhere")
    parser.add_argument("--opencl", action="store_true", help="device OPENCL too")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    print(f"{machine()}; {given.threads} threads, float32")
    tables = {}
    for name in given.work or WORK:
        times = measure(name, given)
        tables[name] = show(name, times)
    if given.json is not None:
        report = Report(machine(), "float32", given.threads, given.rounds, given.shapes, tables)
        given.json.write_text(json.dumps(asdict(report), indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
