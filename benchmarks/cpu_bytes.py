"""Networks of bytes on device CPU beside onnxruntime and OpenVINO, in one process, taking turns.

    python benchmarks/cpu_bytes.py [--threads 2] [--rounds 12] [--processor] [model ...]

Models: resnet50, resnet50-operators, mobilenetv2, mobilenetv2-symmetric, encoder: those of
`cpu_networks` (random weights), quantized by onnxruntime's own tools. Networks of images get
QuantizeLinear and DequantizeLinear around every operator (one scale per channel of the weights,
calibrated on noise), with int8 whose zero point is 0 for activations, too (``-symmetric``), which
leaves bounds behind convolutions as operators, or operators on bytes (``-operators``); the encoder
finds its scales in every run. Any network may be quantized in front of products alone, as for
TensorRT (``-tensorrt``), with uint8 for weights, one scale for each (``-uint8``), or have weights
of 4 bits in blocks of 32 and floats else (``-int4``).
Other models that `cpu_peers` takes are quantized as networks of images are.
Prints medians in milliseconds (with --processor of the processors' time of the process), the ratio
of the faster peer on the same bytes to Partita, what Partita's float32 takes, and the largest
difference from onnxruntime as a part of the largest value; with --ir what Partita takes for
the IR that OpenVINO makes of the model.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cpu_networks import Feeds
from cpu_peers import (
    Call,
    Clock,
    Results,
    largest_error,
    load,
    partita_call,
    peer_calls,
    take_turns,
)

MODELS = ["resnet50", "resnet50-operators", "mobilenetv2", "mobilenetv2-symmetric", "encoder"]


FORMS = ["operators", "symmetric", "tensorrt", "uint8", "int4"]
"""How networks are quantized otherwise."""

PRODUCTS = ["Conv", "MatMul", "Gemm"]


def quantized(name: str) -> tuple[bytes, bytes, Feeds]:
    """A model in bytes, the model in floats, and an input."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    kind, _, form = name.rpartition("-")
    if form not in FORMS:
        kind, form = name, ""
    model, feeds = load(kind)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        source, ready, target = (Path(folder) / f"{n}.onnx" for n in ("floats", "ready", "bytes"))
        source.write_bytes(model)
        if form == "int4":
            return in_blocks(source, target), model, feeds
        if kind == "encoder" and not form:
            quantization.quantize_dynamic(source, target)
            return target.read_bytes(), model, feeds
        quant_pre_process(source, ready, skip_symbolic_shape=True)
        formats, types = quantization.QuantFormat, quantization.QuantType
        symmetric = form in ("symmetric", "tensorrt")
        options: dict[str, Any] = {"ActivationSymmetric": symmetric}
        if form == "tensorrt":
            options["QuantizeBias"] = False
            options["OpTypesToExcludeOutputQuantization"] = PRODUCTS
        quantization.quantize_static(
            ready,
            target,
            Noise(feeds),
            quant_format=formats.QOperator if form == "operators" else formats.QDQ,
            per_channel=form != "uint8",
            activation_type=types.QInt8 if symmetric else types.QUInt8,
            weight_type=types.QUInt8 if form == "uint8" else types.QInt8,
            op_types_to_quantize=PRODUCTS if form == "tensorrt" else None,
            extra_options=options,
        )
        return target.read_bytes(), model, feeds


def in_blocks(source: Path, target: Path) -> bytes:
    """A model whose weights of MatMul are of 4 bits, behind DequantizeLinear."""
    import onnx
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = onnx.load(source)
    for opset in model.opset_import:
        opset.version = max(opset.version, 21) if not opset.domain else opset.version
    quantizer = MatMulNBitsQuantizer(model, block_size=32, quant_format=QuantFormat.QDQ)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))
    return target.read_bytes()


class Noise:
    """What onnxruntime calibrates on: a few inputs like the given one.

    Args:
        feeds: An input.
    """

    def __init__(self, feeds: Feeds) -> None:
        rng = np.random.default_rng(1)
        self._left = [feeds] + [
            {name: rng.standard_normal(a.shape).astype(a.dtype) for name, a in feeds.items()}
            for _ in range(2)
        ]

    def get_next(self) -> Feeds | None:
        """The next input; ``None`` behind the last one."""
        return self._left.pop() if self._left else None


def call_of_ir(model: bytes, feeds: Feeds, threads: int) -> tuple[Call, Results]:
    """Partita's call of the IR that OpenVINO makes of a model, and its outputs."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        openvino.save_model(openvino.Core().read_model(model), path, compress_to_fp16=False)
        return partita_call(path, feeds, threads, {})


def measure(name: str, threads: int, rounds: int, clock: Clock, as_ir: bool) -> None:
    """Prints the line of a model, whose calls are timed by a clock."""
    model, floats, feeds = quantized(name)
    made, refused = peer_calls(model, feeds, threads)
    made["ours"] = partita_call(model, feeds, threads, {})
    made["ours f32"] = partita_call(floats, feeds, threads, {})
    if as_ir:
        made["ours ir"] = call_of_ir(model, feeds, threads)
    error = largest_error(made["ours"][1], made["ort"][1])
    taken = take_turns({label: call for label, (call, _) in made.items()}, rounds, clock)
    ratio = min(taken["ort"], taken.get("ov", math.inf)) / taken["ours"]
    columns = [f"{taken.get(label, math.nan):9.3f}" for label in ("ort", "ov", "ours", "ours f32")]
    columns += [f"{ratio:8.2f}", f"{error:9.1e}"]
    columns += [f"{taken['ours ir']:9.3f}"] if as_ir else []
    print(f"{name:24}", *columns, refused, flush=True)


def main() -> None:
    """Measures the models named on the command line, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--processor", action="store_true", help="time of the processors")
    parser.add_argument("--ir", action="store_true", help="OpenVINO's IR of each model, too")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.processor else time.perf_counter
    heads = ["ort", "ov", "ours", "ours f32", "ratio", "error"]
    widths = [9, 9, 9, 9, 8, 9]
    if arguments.ir:
        heads, widths = [*heads, "ours ir"], [*widths, 9]
    print(f"{'ms':24}", *(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)), flush=True)
    for name in arguments.models:
        measure(name, arguments.threads, arguments.rounds, clock, arguments.ir)


if __name__ == "__main__":
    main()
