"""What an accuracy budget does to a real model whose first device computes in bfloat16.

    python benchmarks/accuracy_budget.py [MODEL] [-d HETERO:CPU,OPENCL]

Prints, for each budget, how long compiling took, the error of the outputs against REFERENCE, the
median time of an inference, and what was done.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import partita
from partita.cli.output import format_table
from partita.errors import InfeasiblePlanError
from partita.model.compare import relative_error
from partita.zoo.naming import resolve
from partita.zoo.store import Store

BUDGETS = (0.0, 3e-2, 1e-3, 1e-4, 1e-7)
RUNS = 15


def row(core, model, device: str, budget: float, feeds: dict, truth, samples: Path) -> list:
    """One budget."""
    first = device.partition(":")[2].partition(",")[0]
    config = {
        "DEVICE_PROPERTIES": {first: {"INFERENCE_PRECISION_HINT": "bf16"}},
        "HETERO_ACCURACY_BUDGET": budget,
        "HETERO_SAMPLE_INPUTS": samples,
    }
    start = time.perf_counter()
    try:
        compiled = core.compile_model(model, device, config)
    except InfeasiblePlanError as error:
        return [budget, f"{time.perf_counter() - start:.1f}", "", "", str(error)]
    seconds = time.perf_counter() - start
    request = compiled.create_infer_request()
    error = max(map(relative_error, request.infer(feeds).to_tuple(), truth))
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        request.infer(feeds, share_outputs=True)
        times.append(time.perf_counter() - start)
    what = "; ".join(compiled.explain().notes[1:]) or compiled.explain().summary()
    return [budget, f"{seconds:.1f}", f"{error:.1e}", f"{statistics.median(times) * 1e3:.2f}", what]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="zoo:ppocr-rec")
    parser.add_argument("-d", "--device", default="HETERO:CPU,OPENCL")
    args = parser.parse_args()
    core = partita.Core()
    named = resolve(args.model, Store())
    if named.sample is None:
        parser.error(f"{args.model} has no natural input")
    sample = named.sample()
    feeds = dict(sample.feeds)
    model = core.read_model(named.source).reshape(sample.shapes)
    truth = core.compile_model(model, "REFERENCE")(feeds).to_tuple()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PARTITA_CACHE_DIR"] = folder  # nothing is known from earlier runs
        samples = Path(folder) / "samples.npz"
        np.savez(samples, **feeds)
        rows = [row(core, model, args.device, b, feeds, truth, samples) for b in BUDGETS]
    columns = ["budget", "compile s", "error", "median ms", "what was done"]
    print("\n".join(format_table(columns, rows)))


if __name__ == "__main__":
    main()
