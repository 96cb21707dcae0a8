"""Products with weights quantized in blocks (MatMulNBits) on device CPU, beside onnxruntime.

    python benchmarks/quantized_weights.py                       # one row, and 512
    python benchmarks/quantized_weights.py --rows 1 8 --threads 1 --shapes 2048x2048x4
    python benchmarks/quantized_weights.py --rows 512 --threads 1 --zeros --group 32

Weights are columns x terms x bits, in blocks of 32 with float16 scales. For one row there are as
many of them as no cache of a core holds, and GB/s counts their bytes, beside a plain read of as
many; for more rows GFLOP/s counts multiplications and additions. onnxruntime computes in float32
(accuracy_level 0) and with rows of 8 bits (4); so does device CPU where rows are cut in groups
(DYNAMIC_QUANTIZATION_GROUP_SIZE). Zero points are all the same, or each block has its own. With one
thread figures are processor time, which other processes disturb less; all are the least of rounds
in which engines take turns.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import partita

SHAPES = ("576x1536x4", "1536x576x4", "49152x576x8", "2048x2048x4", "8192x2048x4")
BLOCK = 32
COLD_BYTES = 56 << 20
ROUNDS = 40
LONG_NS = 500_000_000
"""Calls that take longer are repeated less."""


def main() -> None:
    """Prints a line for each shape and number of rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 512])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", type=int, default=[0, 4], help="accuracy levels")
    parser.add_argument("--zeros", action="store_true", help="zero points that differ")
    parser.add_argument("--group", type=int, default=0, help="numbers of a row that share a scale")
    args = parser.parse_args()
    config = {"INFERENCE_NUM_THREADS": args.threads, "DYNAMIC_QUANTIZATION_GROUP_SIZE": args.group}
    numba.set_num_threads(args.threads)
    print(f"{args.threads} threads; load of the machine {os.getloadavg()[0]:.1f}")
    for shape in args.shapes:
        for rows in args.rows:
            columns, terms, bits = map(int, shape.split("x"))
            sizes = Sizes(columns, terms, bits, args.zeros)
            print(line(sizes, rows, config, args.peers), flush=True)


class Sizes(NamedTuple):
    """Of one product.

    Attributes:
        columns: Of the weights.
        terms: Of a column.
        bits: Of a weight.
        zeros: Whether each block has a zero point.
    """

    columns: int
    terms: int
    bits: int
    zeros: bool


def line(sizes: Sizes, rows: int, config: dict[str, int], peers: list[int]) -> str:
    """What one shape takes."""
    columns, terms, bits, _ = sizes
    threads = config["INFERENCE_NUM_THREADS"]
    weight_bytes = columns * terms * bits // 8 + columns * math.ceil(terms / BLOCK) * 2
    count = max(1, COLD_BYTES // weight_bytes) if rows == 1 else 1
    x = np.random.default_rng(0).standard_normal((rows, terms)).astype(np.float32)
    runs = {"Partita": ours(model(sizes, count), x, config)}
    for level in peers:
        made = model(sizes, count, accuracy_level=level)
        runs[f"onnxruntime {level}"] = theirs(made, x, threads)
    if rows == 1:
        memory = np.ones(count * weight_bytes // 8, np.int64)
        runs["read"] = lambda: total(memory)
    parts = []
    for name, ns in least(runs, threads).items():
        each = ns / count
        gigabytes, gigaflops = weight_bytes / each, 2 * columns * terms * rows / each
        rate = f"{gigabytes:.1f} GB/s" if rows == 1 else f"{gigaflops:.0f} GFLOP/s"
        parts.append(f"{name} {each / 1000:.1f} us {rate}")
    return f"{columns}x{terms}, {bits} bits, {rows} rows, {count} of them: {'; '.join(parts)}"


def model(of: Sizes, count: int, **attributes: int) -> bytes:
    """So many products of one input."""
    columns, terms, bits, zeros = of
    rng, blocks = np.random.default_rng(1), math.ceil(terms / BLOCK)
    nodes, weights, results = [], [], []
    sizes = {"K": terms, "N": columns, "bits": bits, "block_size": BLOCK}
    for i in range(count):
        packed = rng.integers(0, 256, (columns, blocks, BLOCK * bits // 8)).astype(np.uint8)
        scales = (rng.random((columns, blocks)) / 10).astype(np.float16).astype(np.float32)
        weights += [
            numpy_helper.from_array(packed, f"w{i}"),
            numpy_helper.from_array(scales, f"s{i}"),
        ]
        names = ["x", f"w{i}", f"s{i}"]
        if zeros:
            points = rng.integers(0, 256, (columns, math.ceil(blocks * bits / 8))).astype(np.uint8)
            weights.append(numpy_helper.from_array(points, f"z{i}"))
            names.append(f"z{i}")
        more = sizes | attributes
        nodes.append(
            helper.make_node("MatMulNBits", names, [f"y{i}"], domain="com.microsoft", **more)
        )
        results.append(helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", terms])
    graph = helper.make_graph(nodes, "products", [x], results, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return made.SerializeToString()


def ours(content: bytes, x: np.ndarray, config: dict[str, int]) -> Callable[[], object]:
    """A call of device CPU."""
    core = partita.Core()
    request = core.compile_model(core.read_model(content), "CPU", config).create_infer_request()
    return lambda: request.infer({"x": x})


def theirs(content: bytes, x: np.ndarray, threads: int) -> Callable[[], object]:
    """A call of onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


@numba.njit(parallel=True, fastmath=True)
def total(numbers: np.ndarray) -> int:
    """Reads memory."""
    found = 0
    for i in numba.prange(numbers.size):
        found += numbers[i]
    return found


def least(runs: dict[str, Callable[[], object]], threads: int) -> dict[str, int]:
    """The least time of each, in ns."""
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    best: dict[str, int] = {}
    for number in range(ROUNDS):
        for name, run in runs.items():
            if number > 4 and best[name] > LONG_NS:
                continue
            start = clock()
            run()
            best[name] = min(clock() - start, best.get(name, 1 << 62))
    return best


if __name__ == "__main__":
    main()
