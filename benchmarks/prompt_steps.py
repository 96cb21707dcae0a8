"""Steps of a prompt of a GGUF decoder on device CPU in two checkouts of Partita, in turns.

    python benchmarks/prompt_steps.py CHECKOUT MODEL.gguf [--prompt 512] [--rounds 30]
        [--threads 1] [--mode bf16] [--group 32]

Each checkout runs in a process of its own, with caches of its own. Prints for each kind of step the
least milliseconds that each of its steps took, summed over all layers: what other processes do
between two steps is not in it. Then comes the sum of all steps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "plugins/cpu", "plugins/reference", "")

WORKER = """
import json, sys
import numpy as np
import partita
path, count, config = json.loads(sys.stdin.readline())
core = partita.Core()
model = core.read_model(path, decoder=partita.DecoderOptions(context=2 * count))
shapes = {port.name: port.shape for port in model.inputs if port.shape}
model = model.reshape({name: (1, *shape[1:]) for name, shape in shapes.items()})
request = core.compile_model(model, "CPU", config).create_infer_request()
prompt = np.random.default_rng(0).integers(100, 1000, (1, count))
feeds = {
    "input_ids": prompt,
    "seqlens_k": np.array([count - 1], np.int32),
    "total_sequence_length": np.array(count, np.int32),
}
for line in sys.stdin:
    request.infer(feeds, share_outputs=True)
    steps = request.get_profiling_info()
    print(json.dumps([(step.node_name, step.real_time_us) for step in steps]), flush=True)
"""


def started(root: Path, caches: Path, task: str) -> subprocess.Popen[str]:
    """A process that reads a prompt by the code of a checkout for each line that it gets."""
    path = os.pathsep.join(str(root / folder) for folder in FOLDERS)
    kept = {"PARTITA_CACHE_DIR": str(caches), "NUMBA_CACHE_DIR": str(caches / "numba")}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env={**os.environ, **kept, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _write(process, task)
    return process


def _write(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is None:
        raise RuntimeError("the process has no pipe")
    process.stdin.write(line + "\n")
    process.stdin.flush()


def turn(process: subprocess.Popen[str]) -> list[tuple[str, float]]:
    """Names and microseconds of all steps of a prompt."""
    _write(process, "again")
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        raise RuntimeError("a checkout's process has ended; its message is above")
    return [(name, us) for name, us in json.loads(line)]


def main() -> None:
    """Reads the arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", choices=("bf16", "mixed"), default="bf16")
    parser.add_argument("--group", type=int, default=0, help="numbers of a row that share a scale")
    args = parser.parse_args()
    config = {"INFERENCE_NUM_THREADS": args.threads, "PERF_COUNT": True}
    config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = args.group
    if args.mode == "bf16":
        config["INFERENCE_PRECISION_HINT"] = args.mode
    task = json.dumps([str(args.model.resolve()), args.prompt, config])
    with tempfile.TemporaryDirectory() as folder:
        roots = {"before": args.checkout.resolve(), "after": HERE}
        caches = {name: Path(folder, name) for name in roots}
        for cache in caches.values():
            cache.mkdir(mode=0o700)
        processes = [started(root, caches[name], task) for name, root in roots.items()]
        least: list[dict[tuple[int, str], float]] = [{} for _ in processes]
        for number in range(args.rounds + 2):
            for process, found in zip(processes, least, strict=True):
                for place, (name, us) in enumerate(turn(process)):
                    if number > 1:  # the first ones load kernels and touch memory
                        found[place, name] = min(us, found.get((place, name), us))
        for process in processes:
            process.terminate()
            process.wait()
    sums = [defaultdict[str, float](float), defaultdict[str, float](float)]
    for total, found in zip(sums, least, strict=True):
        for (_, name), us in found.items():
            total[re.sub(r"\d+", "#", name)] += us / 1e3
    print("| step | before, ms | after, ms |\n| --- | --- | --- |")
    for name, ms in sorted(sums[0].items(), key=lambda item: -item[1]):
        print(f"| {name} | {ms:.2f} | {sums[1][name]:.2f} |")
    print(f"| all | {sum(sums[0].values()):.2f} | {sum(sums[1].values()):.2f} |")


if __name__ == "__main__":
    main()
