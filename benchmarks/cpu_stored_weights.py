"""Products of float32 rows on device CPU: by weights in float32, in bfloat16, or all in bfloat16.

    python benchmarks/cpu_stored_weights.py [--rows 1 8 ...] [--depth 768] [--columns 3072]

One thread, a chain of products there and back, more weights than the second-level cache holds.
Prints how many products of bfloat16 the processor makes beside those of float32
(`partita_cpu.pair_rate`), then for each number of rows the least milliseconds of processor time in
turns: weights and products in float32; weights rounded to bfloat16 and products in float32; both in
bfloat16 by vectors. And what the latter take in parts of the first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from onnx import numpy_helper, parser

import partita
from partita_cpu.gemm import precision_policy
from partita_cpu.jit.isa import isa
from partita_cpu.pair_rate import multiplies_pairs, pair_rate
from partita_cpu.passes.precision import rounded_matrices
from partita_cpu.runtime import device_model

ROUNDS, CALLS, PRODUCTS = 9, 2, 8
BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}


def main() -> None:
    """Prints a row for each number of rows."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 512])
    options.add_argument("--depth", type=int, default=768)
    options.add_argument("--columns", type=int, default=3072)
    given = options.parse_args()
    level = isa()
    if not level.dots_bfloat16 or level.tiles or level.lanes != 16:
        raise SystemExit(f"Level {level.name} has no products of bfloat16 by vectors of x86-64.")
    taken = "bfloat16" if multiplies_pairs(level) else "float32"
    print(f"{pair_rate(level):.2f} products of bfloat16 beside one of float32: bf16 is {taken}")
    heads = ("rows", "f32", "rounded", "bf16", "rounded/f32", "bf16/f32")
    print(*(f"{head:>12}" for head in heads))
    for rows in given.rows:
        model = chain(rows, given.depth, given.columns)
        calls = [call(model, config, fast) for config, fast in (({}, True), (BF16, False))]
        calls.append(call(model, BF16, True))
        turns = [[least(one) for one in calls] for _ in range(ROUNDS)]
        single, rounded, pairs = (min(times) for times in zip(*turns, strict=True))
        figures = (single, rounded, pairs, rounded / single, pairs / single)
        print(f"{rows:12}", *(f"{figure:12.3f}" for figure in figures), flush=True)


def chain(rows: int, depth: int, columns: int) -> Any:
    """So many rows multiplied by matrices of depth x columns and columns x depth in turns."""
    rng = np.random.default_rng(0)
    lines, sizes = [], [(depth, columns), (columns, depth)] * (PRODUCTS // 2)
    weights = [rng.standard_normal(size).astype(np.float32) / size[0] ** 0.5 for size in sizes]
    for number in range(PRODUCTS):
        source = "x" if number == 0 else f"y{number - 1}"
        lines.append(f"y{number} = MatMul ({source}, w{number})")
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{rows}, {depth}] x) => '
        f"(float[{rows}, {depth}] y{PRODUCTS - 1}) {{ {' '.join(lines)} }}"
    )
    for number, array in enumerate(weights):
        model.graph.initializer.append(numpy_helper.from_array(array, f"w{number}"))
    return model


def call(model: Any, config: dict[str, str], fast: bool) -> Callable[[], object]:
    """A call of the model, compiled as if bfloat16 were fast, or slow and all matrices rounded."""
    with (
        mock.patch.object(precision_policy, "multiplies_pairs", lambda level: fast),
        mock.patch.object(rounded_matrices, "MANY_ROWS", 1 << 40),
        mock.patch.object(device_model, "stored_elements", lambda policy, graph: 1),
    ):
        compiled = partita.Core().compile_model(
            model, "CPU", {"INFERENCE_NUM_THREADS": 1, **config}
        )
    request = compiled.create_infer_request()
    shape = compiled.inputs[0].shape
    x = np.random.default_rng(1).standard_normal(tuple(shape)).astype(np.float32)
    request.set_tensor("x", partita.Tensor(x))
    return request.infer


def least(run: Callable[[], object]) -> float:
    """Milliseconds of processor time of the faster of a few calls."""
    run()
    times = []
    for _ in range(CALLS):
        start = time.process_time_ns()
        run()
        times.append(time.process_time_ns() - start)
    return min(times) / 1e6


if __name__ == "__main__":
    main()
