"""What a GGUF decoder on device OPENCL takes of the host's memory, and how long until it runs.

    python benchmarks/gpu_host_memory.py MODEL.gguf [--device OPENCL] [--precision f16]

A generator is made, reads a prompt, and makes some tokens; then a prompt of another length follows,
for which another plan is made. Printed are seconds of processor and wall time, the most that the
process had, and what it has: anonymous memory and pages of files, in MiB. PoCL's buffers are in the
same memory: there, weights are in it once where a graphics card has them for itself. Linux only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from partita.generate.generator import Generator

ROW = "{:24} {:>9} {:>9} {:>9} {:>10} {:>9}"
KEYS = ("VmHWM", "RssAnon", "RssFile")


def memory() -> list[str]:
    """The process's peak, anonymous memory, and pages of files, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return [f"{int(fields[key].split()[0]) / 1024:.0f}" for key in KEYS]


def stage(name: str, run: Callable[[], Any]) -> Any:
    """Prints a row of what a part takes; returns what it returns."""
    wall, processor = time.perf_counter(), time.process_time()
    result = run()
    times = time.perf_counter() - wall, time.process_time() - processor
    print(ROW.format(name, *(f"{seconds:.1f}" for seconds in times), *memory()), flush=True)
    return result


def main() -> None:
    """Prints a row for each part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="OPENCL")
    parser.add_argument("--precision", help="e.g. f16 (default: the device's own)")
    parser.add_argument("--context", type=int, default=256)
    options = parser.parse_args()
    config = {} if options.precision is None else {"INFERENCE_PRECISION_HINT": options.precision}
    print(f"{options.model.name}: {options.model.stat().st_size / 2**20:.0f} MiB")
    print(ROW.format("", "wall s", "cpu s", "peak MiB", "anonymous", "of files"))
    stage("before", lambda: None)
    generator = stage(
        "compile",
        lambda: Generator(options.model, options.device, options.context, properties=config),
    )
    for count in (16, 23):

        def answer(count: int = count) -> None:
            list(generator.generate(list(range(100, 100 + count)), max_new_tokens=4))

        stage(f"{count} tokens, 4 more", answer)


if __name__ == "__main__":
    main()
