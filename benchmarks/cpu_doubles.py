"""Products of float64 rows by a constant matrix and a bias, beside onnxruntime, in turns.

    python benchmarks/cpu_doubles.py [--threads 1] [--rounds 12] [ROWSxTERMSxCOLUMNS ...]

Prints median milliseconds of a call, of one thread by the processor's time of the process, of more
by the clock; the ratio of onnxruntime's to Partita's; and the largest difference as a part of the
largest value.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from cpu_networks import Feeds
from cpu_peers import largest_error, onnxruntime_call, partita_call, take_turns
from onnx import numpy_helper, parser

SIZES = ("1x256x256", "16x100x100", "64x64x64", "128x768x768", "1024x256x256")


def product_model(rows: int, terms: int, columns: int) -> tuple[bytes, Feeds]:
    """A Gemm with random weights, and rows for it."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (double[{rows}, {terms}] x) '
        f"=> (double[{rows}, {columns}] y) {{ y = Gemm(x, w, c) }}"
    )
    weights = {"w": rng.standard_normal((terms, columns)), "c": rng.standard_normal(columns)}
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return model.SerializeToString(), {"x": rng.standard_normal((rows, terms))}


def measure(size: str, threads: int, rounds: int) -> None:
    """Prints the line of a product."""
    model, feeds = product_model(*map(int, size.split("x")))
    peer, expected = onnxruntime_call(model, feeds, threads)
    own, results = partita_call(model, feeds, threads, {})
    clock = time.process_time if threads == 1 else time.perf_counter
    taken = take_turns({"ort": peer, "own": own}, rounds, clock)
    ratio, error = taken["ort"] / taken["own"], largest_error(results, expected)
    print(f"{size:16} {taken['ort']:9.4f} {taken['own']:9.4f} {ratio:8.2f} {error:9.1e}")


def main() -> None:
    """Measures the products named on the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("sizes", nargs="*", default=SIZES)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=12)
    given = options.parse_args()
    print(f"{'ms':16} {'ort':>9} {'Partita':>9} {'ratio':>8} {'error':>9}")
    for size in given.sizes:
        measure(size, given.threads, given.rounds)


if __name__ == "__main__":
    main()
