"""HETERO over a GPU and CPU beside CPU alone, on models that a GPU cannot or should not take whole.

    python benchmarks/gpu_hetero.py [--device OPENCL] [--precision f16] [model ...]

Models: a detector with NonMaxSuppression (PicoDet of the zoo, whose file ends before it, with the
boxes decoded and suppressed behind it), one with If and LSTM, a text detector and a recognizer.
Columns, in milliseconds a call, inputs and outputs on the host, calls taking turns: onnxruntime on
all cores; CPU alone; HETERO:GPU,CPU with every operation pinned to CPU; the same with what the GPU
takes on the GPU (PRIORITY); the same where measurements put each operation (COST). Then how many
operations the last two give to the GPU, how many times faster than CPU alone they are, and the
largest relative error of an output beside CPU's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from gpu_peers import Call, Feeds, host_call, take_turns
from models import cases

import partita

DETECTOR = "zoo:picodet-layout"
MODELS = (DETECTOR, "zoo:silero-vad", "zoo:ppocr-det", "zoo:ppocr-rec")
PINNED = {"HETERO_PINS": ["re:.*=CPU"]}
COST = {"HETERO_SCHEDULE": "COST"}


def compiled_call(
    core: partita.Core, source: Any, feeds: Feeds, device: str, config: dict[str, Any]
) -> tuple[Call, list[np.ndarray[Any, Any]], partita.CompiledModel]:
    """A call on host tensors, its outputs, and the compiled model."""
    model = core.read_model(source)
    model.reshape({name: array.shape for name, array in feeds.items()})
    compiled = core.compile_model(model, device, config)
    request = compiled.create_infer_request()
    outputs = [np.array(x) for x in request.infer(feeds).to_tuple()]
    return lambda: request.infer(feeds), outputs, compiled


def measure(name: str, device: str, precision: str, rounds: int) -> None:
    """Prints the line of a model."""
    case = next(iter(cases([name])))
    core = partita.Core()
    calls: dict[str, Call] = {}
    model = onnx.load(str(case.path))
    if name == DETECTOR:
        model = with_suppression(model)
    calls["host"], _ = host_call(model, case.feeds)
    calls["CPU"], wanted, _ = compiled_call(core, model, case.feeds, "CPU", {})
    both = f"HETERO:{device},CPU"
    of_gpu = {"DEVICE_PROPERTIES": {device: {"INFERENCE_PRECISION_HINT": precision}}}
    taken, error = [], 0.0
    for label, config in (("pinned", PINNED), ("PRIORITY", {}), ("COST", COST)):
        calls[label], found, compiled = compiled_call(
            core, model, case.feeds, both, {**of_gpu, **config}
        )
        taken.append(_share(compiled, device))
        error = max([error, *(_error(a, b) for a, b in zip(found, wanted, strict=True))])
    times = take_turns(calls, rounds)
    columns = [f"{times[label]:9.3f}" for label in _COLUMNS]
    ratios = [times["CPU"] / times[label] for label in ("PRIORITY", "COST")]
    shares = [f"{share:>9}" for share in taken[1:]]
    print(f"{name:20}", *columns, *shares, *(f"{r:8.2f}" for r in ratios), f"{error:9.1e}")


def with_suppression(detector: onnx.ModelProto) -> onnx.ModelProto:
    """PicoDet with what its users do behind it: boxes out of distances, and the best of them.

    Each pixel of the four levels has scores, and a distribution over eight distances to each side.
    """
    model = onnx.ModelProto()
    model.CopyFrom(detector)
    graph = model.graph
    outputs = [output.name for output in graph.output]
    height, width = (d.dim_value for d in graph.input[0].type.tensor_type.shape.dim[2:])
    centres = []
    for stride in (8, 16, 32, 64):
        rows, columns = (np.arange(-(-size // stride)) for size in (height, width))
        y, x = np.meshgrid((rows + 0.5) * stride, (columns + 0.5) * stride, indexing="ij")
        sides = np.stack([x, y, x, y], -1).reshape(1, -1, 4)
        centres.append(np.concatenate([sides, np.full_like(sides, stride)], -1))
    grid = np.concatenate(centres, 1).astype(np.float32)
    signs = np.float32([-1, -1, 1, 1])
    constants: dict[str, np.ndarray[Any, Any]] = {
        "nms_parts": np.array([1, -1, 4, 8]),
        "nms_steps": np.arange(8, dtype=np.float32).reshape(8, 1),
        "nms_last": np.array([-1]),
        "nms_scale": grid[..., 4:] * signs,
        "nms_centre": grid[..., :4],
        "nms_most": np.array([100]),
        "nms_overlap": np.float32([0.5]),
        "nms_least": np.float32([0.4]),
    }
    graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in constants.items())
    node = onnx.helper.make_node
    graph.node.extend(
        [
            node("Concat", outputs[:4], ["nms_points"], axis=1),
            node("Transpose", ["nms_points"], ["nms_scores"], perm=[0, 2, 1]),
            node("Concat", outputs[4:], ["nms_levels"], axis=1),
            node("Reshape", ["nms_levels", "nms_parts"], ["nms_bins"]),
            node("Softmax", ["nms_bins"], ["nms_shares"], axis=3),
            node("MatMul", ["nms_shares", "nms_steps"], ["nms_means"]),
            node("Squeeze", ["nms_means", "nms_last"], ["nms_distances"]),
            node("Mul", ["nms_distances", "nms_scale"], ["nms_offsets"]),
            node("Add", ["nms_centre", "nms_offsets"], ["nms_boxes"]),
            node(
                "NonMaxSuppression",
                ["nms_boxes", "nms_scores", "nms_most", "nms_overlap", "nms_least"],
                ["nms_chosen"],
            ),
        ]
    )
    del graph.output[:]
    kinds = {"nms_boxes": onnx.TensorProto.FLOAT, "nms_chosen": onnx.TensorProto.INT64}
    shapes = {"nms_boxes": grid[..., :4].shape, "nms_chosen": ("chosen", 3)}
    graph.output.extend(
        onnx.helper.make_tensor_value_info(name, kind, shapes[name]) for name, kind in kinds.items()
    )
    return model


def _share(compiled: partita.CompiledModel, device: str) -> str:
    """How many of its operations the device computes."""
    placed = [op.device for op in compiled.explain().ops if op.device != "-"]
    return f"{sum(name.startswith(device) for name in placed)}/{len(placed)}"


def _error(found: Any, wanted: Any) -> float:
    if found.shape != wanted.shape:
        return float("nan")
    norm = float(np.linalg.norm(wanted.astype(np.float64)))
    return float(np.linalg.norm(found.astype(np.float64) - wanted)) / max(norm, 1e-30)


_COLUMNS = ("host", "CPU", "pinned", "PRIORITY", "COST")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the models named on the command line, or the four."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--device", default="OPENCL")
    parser.add_argument("--precision", default="f32", help="of the GPU: f32 or f16")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args(arguments)
    heads = (*_COLUMNS, "PRIORITY", "COST")
    print(f"{'ms':20}", *(f"{head:>9}" for head in heads), "PRIORITY     COST   error")
    for name in options.models:
        measure(name, options.device, options.precision, options.rounds)


if __name__ == "__main__":
    main()
