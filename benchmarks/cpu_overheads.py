"""What surrounds the computing on device CPU: calls, compiles, memory; and products of bytes.

    python benchmarks/cpu_overheads.py [calls] [compile] [first] [memory] [bytes] [together]
        [--models mobilenetv2,zoo:ppocr-rec] [--turns 5]

All parts unless some are named; models are those that part `compile` compiles so often. Peers run
in the same process, taking turns, each by its best way; first compiles and memory are measured in
fresh processes, the former with empty caches of kernels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from cpu_networks import BUILT
from cpu_peers import load
from first_compile import write_byte_code
from onnx import TensorProto, helper, numpy_helper

import partita

THREADS = 2
NAMES = ["resnet50", "mobilenetv2", "encoder", "zoo:ppocr-rec"]


def onnxruntime_session(model: bytes) -> onnxruntime.InferenceSession:
    """A session on as many threads as the others."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options)


def median_us(calls: dict[str, Callable[[], object]], turns: int = 7, count: int = 2000) -> None:
    """Prints the median over turns of the mean time of a call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            time.sleep(0.02)
            for _ in range(count // 10):
                call()
            start = time.perf_counter()
            for _ in range(count):
                call()
            found[name].append((time.perf_counter() - start) / count * 1e6)
    for name, times in found.items():
        print(f"  {name:<44} {statistics.median(times):8.2f} us", flush=True)


def calls() -> None:
    """A model of one Add on eight numbers."""
    print("One node, per call")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in "xyz"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "y"], ["z"])], "one", ports[:2], ports[2:]
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    x, y, z = (np.ones(8, np.float32) for _ in range(3))
    feeds = [{"x": x, "y": y}, {"x": x.copy(), "y": y.copy()}]
    session = onnxruntime_session(model)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("y", y)
    binding.bind_output("z", "cpu", 0, np.float32, [8], z.ctypes.data)
    core = partita.Core()
    compiled = core.compile_model(core.read_model(model), "CPU")
    bound, same, other = (compiled.create_infer_request() for _ in range(3))
    bound.set_tensor("x", partita.Tensor(x, shared_memory=True))
    bound.set_tensor("y", partita.Tensor(y, shared_memory=True))
    number = iter(range(1 << 60))
    median_us(
        {
            "onnxruntime, io_binding": lambda: session.run_with_iobinding(binding),
            "Partita, tensors set before": lambda: bound.infer(),
            "onnxruntime, dict in, list out": lambda: session.run(None, feeds[0]),
            "Partita, dict in, dict out, the same arrays": lambda: same.infer(feeds[0]),
            "Partita, dict in, dict out, other arrays": lambda: other.infer(
                feeds[next(number) % 2]
            ),
        }
    )


def compiles(names: Sequence[str] = NAMES, turns: int = 5) -> None:
    """From bytes to something that runs, kernels on disk; least of some turns, each by itself."""
    print(f"Compile from bytes, kernels on disk, fastest of {turns} in turns", end="; ")
    print("least processor time behind")
    core, peer = partita.Core(), _openvino_core()
    for name in names:
        model, _ = load(name)
        contestants: dict[str, Callable[[], object]] = {
            "onnxruntime": lambda model=model: onnxruntime_session(model),
            "Partita": lambda model=model: core.compile_model(model, "CPU"),
        }
        if peer is not None:
            contestants["OpenVINO"] = lambda model=model: peer.compile_model(
                peer.read_model(model), "CPU"
            )
            try:
                contestants["OpenVINO"]()
            except RuntimeError as error:  # a model that it cannot read
                del contestants["OpenVINO"]
                print(f"  {name}: OpenVINO: {str(error).splitlines()[0][:60]}")
        times: dict[str, list[tuple[float, float]]] = {key: [] for key in contestants}
        for _ in range(turns):
            for key, call in contestants.items():
                times[key].append(_seconds(call))
        row = [
            f"{key} {wall * 1e3:6.0f} ms {processor * 1e3:6.0f}"
            for key, found in times.items()
            for wall, processor in [map(min, zip(*found, strict=True))]
        ]
        print(f"  {name:<20} " + "   ".join(row), flush=True)


def _openvino_core() -> Any:
    """OpenVINO, if it is installed."""
    try:
        import openvino
    except ImportError:
        return None
    return openvino.Core()


def _seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Of wall time, and of processor time of all threads."""
    start, computed = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - computed


FIRST = """
import sys, time
sys.path.insert(0, sys.argv[1])
from cpu_peers import load
import partita
model, feeds = load(sys.argv[2])
core = partita.Core()
start = time.perf_counter()
core.compile_model(core.read_model(model), "CPU")(feeds)
print(f"{time.perf_counter() - start:.1f}")
"""

MEMORY = """
import pathlib, sys
import numpy as np
_, _, engine, model, arrays = sys.argv
feeds = dict(np.load(arrays))
if engine == "onnxruntime":
    import onnxruntime
    session = onnxruntime.InferenceSession(model)
    run = lambda: session.run(None, feeds)
else:
    import partita
    compiled = partita.Core().compile_model(model, "CPU")
    run = lambda: compiled(feeds)
for _ in range(5):
    run()
peak = pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2]
print(int(peak.split()[0]) // 1024)
"""


def _in_a_process(code: str, *arguments: str, **environment: str) -> str:
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, here, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout.strip().splitlines()[-1]


def first() -> None:
    """The first compile and run on a machine: no kernel is there yet."""
    print("First compile and run ever, seconds")
    write_byte_code()
    for name in BUILT:
        with tempfile.TemporaryDirectory() as folder:
            caches = {"NUMBA_CACHE_DIR": folder, "PARTITA_CACHE_DIR": folder}
            print(f"  {name:<16} {_in_a_process(FIRST, name, **caches)}", flush=True)


def memory() -> None:
    """Peak resident memory of a process that compiles and runs one model."""
    print("Peak memory, MB")
    for name in BUILT:
        model, feeds = load(name)
        with tempfile.TemporaryDirectory() as folder:
            path, arrays = f"{folder}/model.onnx", f"{folder}/feeds.npz"
            onnx.save(onnx.load_from_string(model), path)
            np.savez(arrays, **feeds)
            found = {
                engine: int(_in_a_process(MEMORY, engine, path, arrays))
                for engine in ("onnxruntime", "partita")
            }
        ratio = found["partita"] / found["onnxruntime"]
        print(f"  {name:<16} {found}, {ratio:.2f} times onnxruntime's", flush=True)


def products_of_bytes() -> None:
    """Quantized products and convolutions."""
    print("Products of bytes, median")
    rng = np.random.default_rng(0)
    core = partita.Core()
    cases = {
        f"MatMulInteger {m} x {k} x {n}": _product(rng, m, k, n)
        for m, k, n in ((1, 768, 3072), (32, 384, 384), (128, 768, 3072))
    }
    for channels, outputs, taps, side in ((64, 64, 3, 56), (256, 256, 3, 14), (256, 64, 1, 56)):
        name = f"QLinearConv {channels} to {outputs}, {taps} x {taps}, {side} x {side}"
        cases[name] = _convolution(rng, channels, outputs, taps, side)
    for name, (model, feeds) in cases.items():
        session = onnxruntime_session(model)
        request = core.compile_model(core.read_model(model), "CPU").create_infer_request()
        wanted = session.run(None, feeds)[0]
        same = np.array_equal(request.infer(feeds)[0], wanted)
        print(f" {name}: {'the same numbers' if same else 'OTHER NUMBERS'}")
        median_us(
            {
                "onnxruntime": lambda s=session, f=feeds: s.run(None, f),
                "Partita": lambda r=request, f=feeds: r.infer(f, share_outputs=True),
            },
            count=50,
        )


def _model(node: onnx.NodeProto, x: list[int], y: list[int], kinds: tuple, **weights) -> bytes:
    graph = helper.make_graph(
        [node],
        "bytes",
        [helper.make_tensor_value_info("x", kinds[0], x)],
        [helper.make_tensor_value_info("y", kinds[1], y)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def _product(rng: np.random.Generator, m: int, k: int, n: int) -> tuple[bytes, dict]:
    node = helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])
    weights = {"w": rng.integers(-127, 128, (k, n)).astype(np.int8), "zero": np.uint8(120)}
    kinds = (TensorProto.UINT8, TensorProto.INT32)
    return _model(node, [m, k], [m, n], kinds, **weights), {"x": _levels(rng, m, k)}


def _convolution(
    rng: np.random.Generator, channels: int, outputs: int, taps: int, side: int
) -> tuple[bytes, dict]:
    weights = {
        "xs": np.float32(0.02),
        "xz": np.uint8(128),
        "w": rng.integers(-127, 128, (outputs, channels, taps, taps)).astype(np.int8),
        "ws": (rng.random(outputs) * 0.01 + 0.001).astype(np.float32),
        "wz": np.zeros(outputs, np.int8),
        "ys": np.float32(0.5),
        "yz": np.uint8(128),
        "b": rng.integers(-1000, 1000, outputs).astype(np.int32),
    }
    node = helper.make_node("QLinearConv", ["x", *weights], ["y"], pads=[taps // 2] * 4)
    kinds = (TensorProto.UINT8, TensorProto.UINT8)
    shape = [1, channels, side, side]
    model = _model(node, shape, [1, outputs, side, side], kinds, **weights)
    return model, {"x": _levels(rng, *shape)}


def _levels(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape).astype(np.uint8)


def together() -> None:
    """Two models at once, each on a thread of its own, in one process."""
    print("Two models at once (ResNet-50 and the encoder), calls of both in 3 seconds")
    core = partita.Core()
    loaded = [load(name) for name in ("resnet50", "encoder")]
    sessions = [onnxruntime_session(model) for model, _ in loaded]
    requests = [
        core.compile_model(core.read_model(model), "CPU").create_infer_request()
        for model, _ in loaded
    ]
    contestants = {
        "onnxruntime": [
            lambda s=s, f=f: s.run(None, f) for s, (_, f) in zip(sessions, loaded, strict=True)
        ],
        "Partita": [
            lambda r=r, f=f: r.infer(f) for r, (_, f) in zip(requests, loaded, strict=True)
        ],
    }
    for engine, runs in contestants.items():
        for run in runs:
            run()
        end = time.perf_counter() + 3
        with ThreadPoolExecutor(2) as pool:
            counts = list(pool.map(lambda run, end=end: _count(run, end), runs))
        print(f"  {engine:<16} {counts}", flush=True)


def _count(call: Callable[[], object], end: float) -> int:
    done = 0
    while time.perf_counter() < end:
        call()
        done += 1
    return done


PARTS = {
    "calls": calls,
    "compile": compiles,
    "first": first,
    "memory": memory,
    "bytes": products_of_bytes,
    "together": together,
}


def main() -> None:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--models", default=",".join(NAMES), help="what part `compile` compiles")
    parser.add_argument("--turns", type=int, default=5, help="how often part `compile` does so")
    options = parser.parse_args()
    models = options.models.split(",")
    parts = {**PARTS, "compile": lambda: compiles(models, options.turns)}
    for part in options.parts or parts:
        parts[part]()


if __name__ == "__main__":
    main()
