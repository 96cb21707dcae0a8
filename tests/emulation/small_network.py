"""Says what an emulated Python finds, and compares a small network on device CPU with REFERENCE."""

from __future__ import annotations

import os
import platform
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu.jit import isa

TOLERANCE = 1e-5
"""Of probabilities: sums of at most 72 products of 24 bits, in any order."""


def network():
    """An image classifier of two convolutions, one of them by channel."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) / 5,
        "b1": rng.standard_normal(8),
        "w2": rng.standard_normal((8, 1, 3, 3)) / 3,
        "w3": rng.standard_normal((10, 8)),
        "b3": rng.standard_normal(10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["m1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=8),
        helper.make_node("Add", ["c2", "m1"], ["a2"]),
        helper.make_node("GlobalAveragePool", ["a2"], ["g2"]),
        helper.make_node("Flatten", ["g2"], ["f2"]),
        helper.make_node("Gemm", ["f2", "w3", "b3"], ["h3"], transB=1),
        helper.make_node("Softmax", ["h3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def main() -> int:
    say = sys.stdout.write
    core = partita.Core()
    say(f"Python {platform.python_version()} for {platform.machine()}: {sys.executable}\n")
    say(f"kernels of level {isa.isa()} on {len(os.sched_getaffinity(0))} processors\n")
    say(f"devices: {', '.join(core.available_devices)}\n")
    model = core.read_model(network().SerializeToString())
    x = np.random.default_rng(1).standard_normal((2, 3, 16, 16)).astype(np.float32)
    wanted = np.asarray(core.compile_model(model, "REFERENCE")({"x": x})[0])
    failed = 0
    for device in ("CPU", "HETERO:CPU,REFERENCE"):
        found = np.asarray(core.compile_model(model, device)({"x": x})[0])
        difference = float(np.abs(found - wanted).max())
        good = found.shape == wanted.shape and difference <= TOLERANCE
        failed += not good
        say(f"{device}: {'agrees' if good else 'DIFFERS'}, by {difference:.1e} at most\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
