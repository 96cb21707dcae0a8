"""Device CPU beside onnxruntime and OpenVINO, in one process, taking turns.

    python benchmarks/cpu_peers.py [--threads 2] [--rounds 12] [model ...]

Models: resnet50, mobilenetv2, encoder (built here, random weights), and all names that
`partita benchmark` takes (zoo:magika, light:squeezenet). Every contestant gets its best way
in and out: onnxruntime an io_binding, OpenVINO and Partita a request whose tensors are set once.
A turn is a few calls after a pause, so that threads that still spin do not disturb the next one.
Prints the median of all calls in milliseconds, and for Partita the ratio to the peer of its class:
f32 (strict, and fast as EXECUTION_MODE_HINT=PERFORMANCE allows) against the faster of both peers
in f32, bf16 against OpenVINO in bf16.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import partita

Feeds = dict[str, np.ndarray[Any, Any]]
PAUSE = 0.02
CALLS_PER_TURN = 6


class Builder:
    """Convolutional networks with random weights that keep the scale of what passes through."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: Any) -> str:
        """The name of a new constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """A node's output."""
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attrs))
        return name

    def normal(self, *shape: int, fan: int) -> str:
        """Random weights for sums of `fan` products."""
        return self.weight(self.rng.standard_normal(shape).astype(np.float32) * fan**-0.5)

    def conv(self, x: str, c: int, o: int, k: int = 1, s: int = 1, group: int = 1) -> str:
        """A convolution of c to o channels, kernel k, stride s."""
        w = self.normal(o, c // group, k, k, fan=c // group * k * k)
        bias = self.weight(np.full(o, 0.01, np.float32))
        pads = [k // 2] * 4
        return self.add("Conv", x, w, bias, pads=pads, strides=[s, s], group=group)

    def dense(self, x: str, c: int, o: int) -> str:
        """A product with a bias."""
        product = self.add("MatMul", x, self.normal(c, o, fan=c))
        return self.add("Add", product, self.weight(np.full(o, 0.01, np.float32)))

    def model(self, shape: Sequence[int], result: str) -> tuple[bytes, Feeds]:
        """The model, and an input for it."""
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        x = self.rng.standard_normal(shape).astype(np.float32)
        return model.SerializeToString(), {"x": x}


def resnet50() -> tuple[bytes, Feeds]:
    """Version 1.5, batch 1, batch normalisation folded."""
    b = Builder()
    x = b.add("Relu", b.conv("x", 3, 64, 7, 2))
    x = b.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            side = x if block else b.conv(x, channels, 4 * width, 1, stride)
            y = b.add("Relu", b.conv(x, channels, width))
            y = b.add("Relu", b.conv(y, width, width, 3, stride))
            x = b.add("Relu", b.add("Add", b.conv(y, width, 4 * width), side))
            channels = 4 * width
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    return b.model((1, 3, 224, 224), b.dense(x, 2048, 1000))


def mobilenetv2() -> tuple[bytes, Feeds]:
    """Width 1, batch 1, batch normalisation folded."""
    b = Builder()
    bounds = (b.weight(np.float32(0)), b.weight(np.float32(6)))

    def relu6(y: str) -> str:
        return b.add("Clip", y, *bounds)

    x, channels = relu6(b.conv("x", 3, 32, 3, 2)), 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    for expand, out, repeat, first in (*table, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for number in range(repeat):
            stride, wide, y = (1 if number else first), channels * expand, x
            if expand > 1:
                y = relu6(b.conv(y, channels, wide))
            y = relu6(b.conv(y, wide, wide, 3, stride, wide))
            y = b.conv(y, wide, out)
            x = b.add("Add", y, x) if stride == 1 and channels == out else y
            channels = out
    x = b.add("Flatten", b.add("GlobalAveragePool", relu6(b.conv(x, 320, 1280))))
    return b.model((1, 3, 224, 224), b.dense(x, 1280, 1000))


def encoder(layers: int = 4, tokens: int = 128, width: int = 768, heads: int = 12) -> Any:
    """Layers of a transformer encoder of BERT-base's sizes; takes embeddings."""
    b = Builder()
    split = b.weight(np.array([1, tokens, heads, width // heads], np.int64))
    join = b.weight(np.array([1, tokens, width], np.int64))
    factor = b.weight(np.float32((width // heads) ** -0.5))
    half, one = b.weight(np.float32(0.5)), b.weight(np.float32(1))
    root = b.weight(np.float32(2**0.5))

    def norm(y: str) -> str:
        scale = b.weight(np.ones(width, np.float32))
        return b.add("LayerNormalization", y, scale, b.weight(np.zeros(width, np.float32)))

    x = "x"
    for _ in range(layers):
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            part = b.add("Reshape", b.dense(x, width, width), split)
            parts.append(b.add("Transpose", part, perm=perm))
        scores = b.add("Softmax", b.add("Mul", b.add("MatMul", *parts[:2]), factor), axis=-1)
        mixed = b.add("Transpose", b.add("MatMul", scores, parts[2]), perm=[0, 2, 1, 3])
        x = norm(b.add("Add", b.dense(b.add("Reshape", mixed, join), width, width), x))
        y = b.dense(x, width, 4 * width)
        gate = b.add("Add", b.add("Erf", b.add("Div", y, root)), one)
        y = b.add("Mul", b.add("Mul", y, gate), half)
        x = norm(b.add("Add", b.dense(y, 4 * width, width), x))
    return b.model((1, tokens, width), x)


BUILT: dict[str, Callable[[], tuple[bytes, Feeds]]] = {
    "resnet50": resnet50,
    "mobilenetv2": mobilenetv2,
    "encoder": encoder,
}


def load(name: str) -> tuple[bytes, Feeds]:
    """The model and an input."""
    if name in BUILT:
        return BUILT[name]()
    from models import cases

    case = next(iter(cases([name])))
    return case.path.read_bytes(), case.feeds


def onnxruntime_call(model: bytes, feeds: Feeds, threads: int) -> tuple[Callable[[], None], Any]:
    """A call of onnxruntime, and its first output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    result = session.run(None, feeds)[0]
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding), result


def openvino_call(
    model: bytes, feeds: Feeds, threads: int, precision: str
) -> tuple[Callable[[], None], Any]:
    """A call of OpenVINO, and its first output."""
    import openvino

    config = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array))
    request.infer()
    return request.infer, np.array(request.get_output_tensor(0).data)


def partita_call(
    model: bytes, feeds: Feeds, threads: int, config: dict[str, Any]
) -> tuple[Callable[[], None], Any]:
    """A call of Partita, and its first output."""
    core = partita.Core()
    config = {"INFERENCE_NUM_THREADS": threads, **config}
    request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, partita.Tensor(array))
    request.infer()
    return request.infer, np.array(request.get_output_tensor(0).data)


def take_turns(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median milliseconds of a call of each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE)
            call()
            for _ in range(CALLS_PER_TURN):
                start = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) * 1e3 for name, taken in times.items()}


PEERS = ("ort", "ov", "ov bf16")
OURS: dict[str, dict[str, Any]] = {
    "fast f32": {"EXECUTION_MODE_HINT": "PERFORMANCE"},
    "f32": {"EXECUTION_MODE_HINT": "ACCURACY"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
}


def measure(name: str, threads: int, rounds: int) -> None:
    """Prints the line of a model."""
    model, feeds = load(name)
    made = {"ort": onnxruntime_call(model, feeds, threads)}
    failed = []
    for label, precision in (("ov", "f32"), ("ov bf16", "bf16")):
        try:
            made[label] = openvino_call(model, feeds, threads, precision)
        except RuntimeError as error:
            failed.append(f"{label}: {str(error).splitlines()[0][:60]}")
    for label, config in OURS.items():
        made[label] = partita_call(model, feeds, threads, config)
    reference = made["ort"][1]
    errors = [
        float(np.abs(np.asarray(made[label][1], np.float64) - reference).max(initial=0))
        / max(float(np.abs(reference).max(initial=0)), 1e-30)
        for label in OURS
    ]
    taken = take_turns({label: call for label, (call, _) in made.items()}, rounds)
    best = min(taken["ort"], taken.get("ov", taken["ort"]))
    ratios = [best / taken["fast f32"], best / taken["f32"], taken.get("ov bf16", best)]
    ratios[2] /= taken["bf16"]
    columns = [f"{taken.get(label, float('nan')):9.3f}" for label in (*PEERS, *OURS)]
    columns += [f"{ratio:8.2f}" for ratio in ratios] + [f"{error:9.1e}" for error in errors]
    print(f"{name:28}", *columns, *failed, flush=True)


def main() -> None:
    """Measures the models named on the command line, or those built here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(BUILT))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    heads = [*PEERS, *OURS, "x fast", "x f32", "x bf16", "e fast", "e f32", "e bf16"]
    widths = [9] * 6 + [8] * 3 + [9] * 3
    print(f"{'ms':28}", *(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)), flush=True)
    for name in arguments.models:
        measure(name, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
