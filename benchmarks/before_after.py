"""Device speed of two checkouts of Partita, in turns: what a change of the code costs or gains.

    python benchmarks/before_after.py [--rounds 6] [--seconds 0.25] [--threads 2] [--mode f32]
        [--processor] [--onnxruntime] CHECKOUT [model ...]

Models are named as for `cpu_peers`; MODEL@DEVICE names another device than CPU. Of CPU one of the
modes of `cpu_peers` is asked for: f32 (strict), mixed (the default, which is f32 without AMX) or
bf16. With --processor the processors' time of the process is measured, which on one thread can be
compared where others compute too. Each checkout runs in a process of its own with caches of its
own, on so many threads and with its inputs set once. Prints medians and least times in
milliseconds, and this checkout's over the other's. With --onnxruntime it takes turns with both, in
float32, and its times are printed, and over this checkout's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cpu_peers import OURS, load

HERE = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "plugins/cpu", "plugins/opencl", "plugins/hetero", "plugins/reference", "")
MODELS = (
    *("resnet50", "inception_v3", "densenet121", "squeezenet", "mobilenetv2", "pp_lcnet"),
    *("encoder", "unet", "zoo:minilm-l3", "zoo:ppocr-rec", "resnet50@HETERO:CPU,REFERENCE"),
)
PAUSE = 0.03

WORKER = """
import partita
model, feeds, device, config, processor = json.loads(sys.stdin.readline())
clock = time.process_time if processor else time.perf_counter
core = partita.Core()
request = core.compile_model(core.read_model(model), device, config).create_infer_request()
for name, array in np.load(feeds).items():
    request.set_tensor(name, partita.Tensor(np.asarray(array, order="C")))
call = request.infer
"""

PEER = """
import onnxruntime
model, feeds, device, config, processor = json.loads(sys.stdin.readline())
clock = time.process_time if processor else time.perf_counter
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = config["INFERENCE_NUM_THREADS"]
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
binding = session.io_binding()
for name, array in np.load(feeds).items():
    given = onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
    binding.bind_ortvalue_input(name, given)
for output in session.get_outputs():
    binding.bind_output(output.name)
call = lambda: session.run_with_iobinding(binding)
"""

TURNS = """
for _ in range(5):
    call()
print("[]", flush=True)
for line in sys.stdin:
    times, end = [], time.perf_counter() + float(line)
    while time.perf_counter() < end or len(times) < 3:
        began = clock()
        call()
        times.append(clock() - began)
    print(json.dumps(times), flush=True)
"""


class Checkout:
    """A process that runs a model by the code of one checkout, or by onnxruntime."""

    def __init__(self, root: Path, caches: Path, task: list[Any], engine: str = WORKER) -> None:
        path = os.pathsep.join(str(root / folder) for folder in FOLDERS)
        kept = {"PARTITA_CACHE_DIR": str(caches), "NUMBA_CACHE_DIR": str(caches / "numba")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import json, sys, time\nimport numpy as np{engine}{TURNS}"],
            env={**os.environ, **kept, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.times: list[float] = []
        self.ask(json.dumps(task))

    def ask(self, line: str) -> None:
        """Sends a line, and adds the times that are answered."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the process ended; what it wrote stands above")
        self.times += json.loads(answer)


def compare(name: str, roots: dict[str, Path], folder: Path, args: argparse.Namespace) -> str:
    """Runs a model by both checkouts; a row of the table."""
    network, _, device = name.partition("@")
    model, feeds = load(network)
    (folder / "model.onnx").write_bytes(model)
    np.savez(folder / "feeds.npz", **feeds)
    config = {} if device else {"INFERENCE_NUM_THREADS": args.threads, **OURS[args.mode]}
    files = [str(folder / "model.onnx"), str(folder / "feeds.npz")]
    task = [*files, device or "CPU", config, args.processor]
    both = {which: Checkout(root, folder / which, task) for which, root in roots.items()}
    if args.onnxruntime:
        task = [*files, "", {"INFERENCE_NUM_THREADS": args.threads}, args.processor]
        both["onnxruntime"] = Checkout(HERE, folder / "this", task, PEER)
    for _ in range(args.rounds):
        for one in both.values():
            one.ask(str(args.seconds))
            time.sleep(PAUSE)
    for one in both.values():
        one.process.kill()
        one.process.wait()
    cells = []
    for measure in (statistics.median, min):
        old, new = (measure(both[which].times) * 1e3 for which in ("other", "this"))
        cells += [f"{old:.3f}", f"{new:.3f}", f"{new / old:.3f}"]
        if args.onnxruntime:
            peer = measure(both["onnxruntime"].times) * 1e3
            cells += [f"{peer:.3f}", f"{peer / new:.2f}"]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="the other checkout's folder")
    parser.add_argument("models", nargs="*", default=MODELS, metavar="model")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.25, help="of a turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mode", choices=OURS, default="f32")
    parser.add_argument("--processor", action="store_true", help="time of the processors")
    parser.add_argument("--onnxruntime", action="store_true", help="takes turns too")
    args = parser.parse_args()
    roots = {"other": args.other.resolve(), "this": HERE}
    peer = ["onnxruntime", "over this"] if args.onnxruntime else []
    cells = ["network", "other", "this", "over it", *peer]
    cells += ["least: other", "this", "over it", *peer]
    print(f"| {' | '.join(cells)} |")
    print(f"| {' | '.join('---' for _ in cells)} |")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for kind in roots:
            (Path(folder) / kind).mkdir(mode=0o700)
        for name in args.models:
            print(compare(name, roots, Path(folder), args), flush=True)


if __name__ == "__main__":
    main()
