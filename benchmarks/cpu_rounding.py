"""Convolutions of float32 images on device CPU: in float32, or rounded to bfloat16 first.

    python benchmarks/cpu_rounding.py [--side 64] [--kernel 1] [--channels ...] [--outputs ...]

One thread, INFERENCE_PRECISION_HINT bf16. Prints the least microseconds of the step both ways, in
turns, how many times as fast bfloat16 is, and by which number `SAVED_BY_ROUNDING` of
`partita_cpu.gemm.precision_policy` would have to be smaller for it to be chosen.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from unittest import mock

import numpy as np
from onnx import numpy_helper, parser

import partita
from partita_cpu import machine_model
from partita_cpu.gemm import precision_policy

ROUNDS, CALLS = 5, 4


def main() -> None:
    """Prints a row for each convolution."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--side", type=int, default=64)
    options.add_argument("--kernel", type=int, default=1)
    options.add_argument("--channels", type=int, nargs="+", default=[16, 24, 48, 96, 256])
    options.add_argument("--outputs", type=int, nargs="+", default=[8, 16, 24, 32, 40, 48, 64, 96])
    given = options.parse_args()
    print(f"{'channels':>8} {'outputs':>8} {'f32':>8} {'bf16':>8} {'gain':>8} {'number':>8}")
    for channels in given.channels:
        for outputs in given.outputs:
            sizes = channels, outputs, given.side, given.kernel
            ways = [step(*sizes, number) for number in (math.inf, 0.0)]
            single, half = (min(times) for times in zip(*taken(ways), strict=True))
            rounded = -(-outputs // 16) * 16
            number = rounded * channels * given.kernel**2 / (54 + channels)
            print(f"{channels:8} {outputs:8} {single:8.0f} {half:8.0f} "
                  f"{single / half:8.2f} {number:8.1f}", flush=True)  # fmt: skip


def taken(ways: list[Callable[[], float]]) -> list[list[float]]:
    """Microseconds of all ways, in turns."""
    return [[min(way() for _ in range(CALLS)) for way in ways] for _ in range(ROUNDS)]


def step(channels: int, outputs: int, side: int, kernel: int, number: float) -> Callable[[], float]:
    """Runs a convolution of an image with channels last; microseconds of its step."""
    pads = [kernel // 2] * 4
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1, {side}, {side}, {channels}] x) => '
        f"(float[1, {side}, {side}, {outputs}] y) {{ t = Transpose <perm = [0, 3, 1, 2]> (x) "
        f"c = Conv <pads = {pads}> (t, w) y = Transpose <perm = [0, 2, 3, 1]> (c) }}"
    )
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((outputs, channels, kernel, kernel)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    config = {
        "INFERENCE_NUM_THREADS": 1,
        "INFERENCE_PRECISION_HINT": "bf16",
        "PERF_COUNT": True,
    }
    with (
        mock.patch.object(precision_policy, "SAVED_BY_ROUNDING", number),
        mock.patch.object(machine_model, "_halves_vectors", lambda: False),
    ):
        request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    x = rng.standard_normal((1, side, side, channels)).astype(np.float32)
    request.set_tensor("x", partita.Tensor(x))

    def run() -> float:
        request.infer()
        steps = request.get_profiling_info()
        return next(step.real_time_us for step in steps if step.node_type == "Conv")

    return run


if __name__ == "__main__":
    main()
