"""How long bisection takes: real models on CPU in bfloat16 and in float32, and long chains.

    python benchmarks/bisection.py [MODEL ...]

Prints, for each model, its operations, the seconds and compilations that the search took, whether
the written file shows the fault when it is read again, and what was found.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import partita
from partita.cli.output import format_table
from partita.zoo.naming import resolve
from partita.zoo.store import Store

MODELS = ("zoo:magika", "zoo:ppocr-rec", "zoo:ppocr-cls")
BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}


def chain(count: int) -> tuple:
    """A chain of small matrix products, each with a Relu."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i in range(count // 2):
        array = (rng.standard_normal((64, 64)) / 8).astype(np.float32) * np.float32(1.4)
        weights.append(helper.make_tensor(f"w{i}", TensorProto.FLOAT, (64, 64), array.ravel()))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"product{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], name=f"relu{i}"))
        last = f"r{i}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (16, 64))]
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, (16, 64))]
    graph = helper.make_graph(nodes, f"chain of {count}", inputs, outputs, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"x": rng.standard_normal((16, 64)).astype(np.float32)}


class CountingCore(partita.Core):
    """Counts what is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled = 0

    def compile_model(self, *args, **options):
        self.compiled += 1
        return super().compile_model(*args, **options)


def measure(name: str, model, feeds, config: dict, rtol: float) -> list:
    """One row."""
    core = CountingCore()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = partita.bisect(
            model,
            "CPU",
            feeds,
            rtol=rtol,
            atol=rtol / 10,
            config=config,
            core=core,
            output=Path(folder) / "fault.onnx",
        )
        seconds = time.perf_counter() - start
    finding = result.finding
    if finding is None:
        return [name, len(core.read_model(model).ops), f"{seconds:.1f}", core.compiled, "", "none"]
    what = f"{finding.kind} {', '.join(finding.ops[:3])}"
    count = len(core.read_model(model).ops)
    return [name, count, f"{seconds:.1f}", core.compiled, finding.verified, what]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS)
    rows = []
    for name in parser.parse_args().models:
        named = resolve(name, Store())
        if named.sample is None:
            parser.error(f"{name} has no natural input")
        sample = named.sample()
        model = partita.Core().read_model(named.source).reshape(sample.shapes)
        for config, rtol in ((BF16, 1e-3), ({}, 1e-7)):
            label = f"{name}, {'bf16' if config else 'f32'}, rtol {rtol:g}"
            rows.append(measure(label, model, sample.feeds, config, rtol))
    for count in (100, 1000):
        proto, feeds = chain(count)
        rows.append(measure(f"chain of {count}, bf16", proto, feeds, BF16, 3e-2))
    print("\n".join(format_table(["model", "ops", "s", "compiled", "shown", "found"], rows)))


if __name__ == "__main__":
    main()
