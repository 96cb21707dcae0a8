"""Attention on device CPU in float32 and in pairs of bfloat16, by how many queries and keys it has.

    python benchmarks/cpu_attention.py [--threads 1] [--rounds 60]

Twelve heads, as PyTorch's exporter spells them, the two arithmetics in turns. Prints the step's
microseconds by `PERF_COUNT`, of each the tenth percentile, and their ratio: where it falls below
1, `attention.PAIRED_KEYS` belongs. Needs a processor that multiplies bfloat16 by vectors.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from cpu_peers import OURS
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu.nhwc import attention

HEADS = 12
SIZES = (32, 64)
PLACES = (
    *((n, n) for n in (8, 16, 24, 25, 28, 31, 32, 48, 64, 128)),
    *((128, 16), (128, 24), (128, 31), (1, 64), (8, 64)),
)
"""Queries and keys."""


def attention_model(queries: int, keys: int, size: int) -> bytes:
    """Attention of (1, places, heads, size) as ONNX operators."""
    nodes = [
        helper.make_node("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v"], ["vt"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["qt", "kt"], ["products"]),
        helper.make_node("Mul", ["products", "factor"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "vt"], ["sums"]),
        helper.make_node("Transpose", ["sums"], ["y"], perm=[0, 2, 1, 3]),
    ]
    places = {"q": queries, "k": keys, "v": keys, "y": queries}
    q, k, v, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n, HEADS, size])
        for name, n in places.items()
    )
    factor = numpy_helper.from_array(np.array(size**-0.5, np.float32), "factor")
    graph = helper.make_graph(nodes, "attention", [q, k, v], [y], [factor])
    opsets = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return model


def request_of(
    model: bytes, shapes: Mapping[str, Sequence[int]], threads: int, mode: str
) -> partita.InferRequest:
    """A request of the model in a mode, its inputs set."""
    core = partita.Core()
    config = {"INFERENCE_NUM_THREADS": threads, "PERF_COUNT": True, **OURS[mode]}
    compiled = core.compile_model(core.read_model(model), "CPU", config)
    request = compiled.create_infer_request()
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        request.set_tensor(name, rng.standard_normal(shape).astype(np.float32))
    return request


def main() -> None:
    """Measures all sizes."""
    parser = argparse.ArgumentParser(description="Attention by arithmetic and length.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    attention.PAIRED_KEYS = 0
    print("queries  keys  size  float32 us  bfloat16 us  ratio")
    for size in SIZES:
        for queries, keys in PLACES:
            model = attention_model(queries, keys, size)
            shapes = {x: (1, queries if x == "q" else keys, HEADS, size) for x in "qkv"}
            requests = [request_of(model, shapes, args.threads, mode) for mode in ("f32", "bf16")]
            times: list[list[float]] = [[], []]
            for _ in range(args.rounds):
                for request, found in zip(requests, times, strict=True):
                    for _ in range(4):
                        request.infer()
                        found.append(sum(i.real_time_us for i in request.get_profiling_info()))
            exact, paired = (float(np.percentile(found, 10)) for found in times)
            row = f"{queries:7}  {keys:4}  {size:4}  {exact:10.1f}  {paired:11.1f}"
            print(f"{row}  {paired / exact:5.2f}", flush=True)


if __name__ == "__main__":
    main()
