"""Every step of a network on device CPU, beside the same operation in OpenVINO.

    python benchmarks/cpu_steps.py [--threads 2] [--rounds 6] [--sort] [--least] MODEL [MODE ...]

Models: those of `cpu_peers`. Modes: mixed (the default, three products in bfloat16 where that
pays), f32, bf16; ov and ov-bf16 are OpenVINO in float32 and bfloat16, in turns in one process.
Prints for each step its microseconds (median; with --least the least, which other processes disturb
less) and what share of the machine's peak it reaches; the peaks are measured first, by the tile
kernels on numbers in the first-level cache, on all threads.
Steps that OpenVINO names otherwise stand by themselves; sums by kind of operation come last.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
from cpu_peers import OURS, PAUSE, load

import partita

CALLS_PER_TURN = 5
MODES = {"mixed": "mixed", "f32": "f32", "bf16": "bf16"}
PEER_MODES = {"ov": "f32", "ov-bf16": "bf16"}

Feeds = dict[str, np.ndarray[Any, Any]]
Steps = Callable[[], Iterable[tuple[str, str, str, float]]]
"""Runs once; name, type, implementation and microseconds of each step."""
Summary = Callable[[Iterable[float]], float]
"""One time for those that a step took in all runs."""


def our_steps(model: bytes, feeds: Feeds, threads: int, mode: str) -> Steps:
    """Partita in a mode."""
    core = partita.Core()
    config = {"INFERENCE_NUM_THREADS": threads, "PERF_COUNT": True, **OURS[MODES[mode]]}
    request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, partita.Tensor(array))

    def run() -> Iterable[tuple[str, str, str, float]]:
        request.infer()
        for i in request.get_profiling_info():
            yield i.node_name, i.node_type, i.exec_type, i.real_time_us

    return run


def openvino_steps(model: bytes, feeds: Feeds, threads: int, mode: str) -> Steps:
    """OpenVINO in a mode."""
    import openvino

    config = {
        "INFERENCE_PRECISION_HINT": PEER_MODES[mode],
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "PERF_COUNT": True,
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array))

    def run() -> Iterable[tuple[str, str, str, float]]:
        request.infer()
        for i in request.profiling_info:
            name = i.node_name.removesuffix("/WithoutBiases")
            yield name, i.node_type, i.exec_type, i.real_time.total_seconds() * 1e6

    return run


def products(model: bytes, feeds: Feeds) -> dict[str, tuple[int, str]]:
    """Multiplications and a short description of every convolution and matrix product."""
    proto = onnx.load_from_string(model)
    for value in proto.graph.input:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, np.shape(feeds.get(value.name, ())), strict=False
        ):
            dim.dim_value = size
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.output, *graph.input)
    }
    shapes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type not in ("Conv", "MatMul", "Gemm"):
            continue
        w, y = shapes.get(node.input[1], []), shapes.get(node.output[0], [])
        if node.op_type == "Conv" and len(w) == 4:
            text = f"{w[2]}x{w[3]} {w[1]}->{w[0]} @{y[2]}" if len(y) == 4 else ""
            count = int(np.prod(w[1:]) * np.prod(y))
        else:
            text, count = "x".join(map(str, w)), int(np.prod(y) * w[-2]) if len(w) > 1 else 0
        found[node.name or node.output[0]] = count, text
    return found


DEPTH = 256
"""Length of the sums whose speed is the peak: all numbers stay in the first-level cache."""


def peaks(threads: int) -> dict[str, float]:
    """Billions of floating-point operations per second of the tile kernels, by arithmetic."""
    from partita_cpu.jit import llvm_kernel
    from partita_cpu.jit.isa import isa
    from partita_cpu.llvm.module import product_parts

    level = isa()
    known = {} if not level.native else llvm_kernel.addresses(level)
    rows, columns = level.rows, 2 * level.lanes
    found = {}
    if known:
        floats = llvm_kernel.addresses(level, product_parts("_floats", rows)[-1])[f"fma_{rows}"]
        found["f32"] = peak(floats, 0, rows, columns, DEPTH, 4, threads)
    if level.tiles:
        found["bf16"] = peak(known["bf16_2"], known["configure"], 32, 32, DEPTH // 32, 2, threads)
    elif level.dots_bfloat16:
        pairs = llvm_kernel.addresses(level, product_parts("_pairs", rows)[-1])[f"bf16_{rows}"]
        found["bf16"] = peak(pairs, 0, rows, columns, DEPTH // 2, 2, threads)
    return found


def peak(
    kernel: int, configure: int, rows: int, columns: int, steps: int, size: int, threads: int
) -> float:
    """Of one tile kernel, on so many threads at once."""
    from partita_cpu.jit.deferred_numba import compiler
    from partita_cpu.jit.intrinsics.address_call import call_late_tile, call_plain, call_tile
    from partita_cpu.llvm.tiles.amx import tile_config

    @compiler().njit(nogil=True)
    def repeat(configure: int, config: int, count: int, sums: Any, end: Any) -> None:
        if configure:
            call_plain(configure, (config,))
        for _ in range(count):
            if configure:
                call_late_tile(kernel, (*sums, 0, sums[5], *end, 0, 0))
            else:
                call_tile(kernel, (*sums, 0, sums[5], *end))

    speeds: list[float] = []
    config = np.frombuffer(tile_config(32), np.uint8).copy()

    def work() -> None:
        a, b, tile, bias = (aligned(count) for count in (32 * DEPTH, 32 * DEPTH, 1024, 32))
        taps = np.zeros(1, np.int64)
        at = [array.ctypes.data for array in (a, taps, b, tile, bias)]
        sums = (at[0], DEPTH * size, at[1], 1, steps, at[2], 64, rows)
        end = (at[3], at[4], 0, 0, 0, columns, np.float32(-1), np.float32(1), 0)
        times = []
        for _ in range(200):
            start = time.perf_counter()
            repeat(configure, config.ctypes.data, 1000, sums, end)
            times.append(time.perf_counter() - start)
        speeds.append(2e-6 * rows * columns * DEPTH / statistics.median(times))

    work()
    speeds.clear()
    team = [threading.Thread(target=work) for _ in range(threads)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return sum(speeds)


def aligned(count: int) -> np.ndarray[Any, Any]:
    """Zeros that start at a cache line."""
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + 4 * count].view(np.float32)


def measure(
    name: str, modes: list[str], threads: int, rounds: int, sort: bool, summary: Summary
) -> None:
    """Prints the table of a model."""
    limits = peaks(threads)
    print(*(f"peak {kind}: {speed:.0f} GFLOP/s" for kind, speed in limits.items()), sep=", ")
    model, feeds = load(name)
    counts = products(model, feeds)
    runs = {
        mode: (our_steps if mode in MODES else openvino_steps)(model, feeds, threads, mode)
        for mode in modes
    }
    times: dict[str, dict[str, list[float]]] = {mode: defaultdict(list) for mode in modes}
    kinds: dict[tuple[str, str], tuple[str, str]] = {}
    for _ in range(rounds):
        for mode, run in runs.items():
            time.sleep(PAUSE)
            list(run())
            for _ in range(CALLS_PER_TURN):
                for step, kind, exec_type, taken in run():
                    times[mode][step].append(taken)
                    if taken:
                        kinds[mode, step] = kind, exec_type
    medians = {
        mode: {step: summary(taken) for step, taken in steps.items()}
        for mode, steps in times.items()
    }
    print(f"{'us, share of peak':58}", *(f"{mode:>13}" for mode in modes))
    steps = list(dict.fromkeys(step for mode in modes for step in medians[mode]))
    steps = [step for step in steps if any(medians[mode].get(step) for mode in modes)]
    if sort:
        steps.sort(key=lambda step: -max(medians[mode].get(step, 0) for mode in modes))
    for step in steps:
        count, text = counts.get(step, (0, ""))
        columns = []
        for mode in modes:
            taken = medians[mode].get(step, 0.0)
            exec_type = kinds.get((mode, step), ("", ""))[1]
            factor = 3 if "x3" in exec_type else 1
            limit = limits.get("bf16" if "bf16" in exec_type else "f32", 0.0)
            share = 2e-3 * count * factor / taken / limit if taken and limit else 0
            columns.append(f"{taken:8.0f} {share:4.0%}" if count else f"{taken:8.0f}     ")
        print(f"{step[-30:]:31}{text:20}{count / 1e6:7.1f}", *columns)
    totals: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for mode in modes:
        for step, taken in medians[mode].items():
            totals[kinds.get((mode, step), ("", ""))[0]][mode] += taken
    totals["all"] = {mode: sum(medians[mode].values()) for mode in modes}
    for kind, sums in sorted(totals.items(), key=lambda item: max(item[1].values())):
        if max(sums.values()) >= 1:
            print(f"{kind:58}", *(f"{sums.get(mode, 0):8.0f}     " for mode in modes))


def main() -> None:
    """Measures the model named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("modes", nargs="*", default=["mixed", "f32", "ov", "bf16", "ov-bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sort", action="store_true", help="the longest steps first")
    parser.add_argument("--least", action="store_true", help="the least times, not medians")
    given = parser.parse_args()
    summary = min if given.least else statistics.median
    measure(given.model, given.modes, given.threads, given.rounds, given.sort, summary)


if __name__ == "__main__":
    main()
