"""Preprocessing by Partita beside OpenVINO: the same steps, the same tensors.

    python benchmarks/openvino_preprocess.py

Each case says its steps once, to `partita.preprocess` and to `openvino.preprocess`, runs both
models on CPU in float32, and prints the largest difference. Needs `pip install openvino`. Of whole
numbers a difference of one is one of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import openvino
import openvino.preprocess
from onnx import ModelProto, TensorProto, helper

import partita
import partita.preprocess

RNG = np.random.default_rng(0)
Steps = Callable[[Any, ModuleType, ModuleType], object]
"""Of a processor, the package that it is of, and that package's preprocessing."""


def main() -> None:
    """Prints a row per case."""
    print(f"OpenVINO {openvino.__version__}, Partita {partita.__version__}")
    for name, dims, steps, tensors in cases():
        print(f"{name:44} {verdict(model(dims), steps, tensors)}")


def verdict(onnx_model: ModelProto, steps: Steps, tensors: list[Any]) -> str:
    """The largest difference, or what is wrong."""
    core = openvino.Core()
    peer = core.read_model(onnx_model.SerializeToString())
    theirs = openvino.preprocess.PrePostProcessor(peer)
    steps(theirs, openvino, openvino.preprocess)
    wanted = core.compile_model(theirs.build(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(tensors)
    ours = partita.preprocess.PrePostProcessor(partita.Core().read_model(onnx_model))
    steps(ours, partita, partita.preprocess)
    found = partita.compile_model(ours.build(), "CPU")(tensors)
    one, other = np.asarray(found[0]), np.asarray(wanted[0])
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"DIFFERS: {one.dtype}{list(one.shape)} for {other.dtype}{list(other.shape)}"
    gap = np.abs(one.astype(np.float64) - other)
    return f"largest difference {gap.max():.1e}, above 1e-3 in {np.mean(gap > 1e-3):.1%}"


def model(dims: tuple[int, ...]) -> ModelProto:
    """A Relu of images."""
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)] for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", *ports)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def image(*dims: int) -> Any:
    """Noise of bytes."""
    return RNG.integers(0, 256, dims, dtype=np.uint8)


def cases() -> Iterator[tuple[str, tuple[int, ...], Steps, list[Any]]]:
    """Name, dimensions that the model takes, steps and tensors."""
    color = (1, 3, 8, 8)
    yield "layout and mean and scale", color, normalized, [image(1, 8, 8, 3)]
    for algorithm in partita.preprocess.ResizeAlgorithm:
        for first in ("u8", "f32"):
            for size in ((19, 21), (5, 6)):
                name = f"{algorithm.name} of {first} from {size[0]}x{size[1]}"
                yield name, color, resized(algorithm.name, first), [image(1, *size, 3)]
    yield "crop", color, cropped, [RNG.normal(size=(1, 3, 12, 12)).astype(np.float32)]
    for mode in partita.preprocess.PaddingMode:
        yield (
            f"pad {mode.name}",
            color,
            padded(mode.name),
            [RNG.normal(size=(1, 3, 6, 6)).astype(np.float32)],
        )
    planes = {
        "NV12_SINGLE_PLANE": [image(1, 12, 8, 1)],
        "NV12_TWO_PLANES": [image(1, 8, 8, 1), image(1, 4, 4, 2)],
        "I420_SINGLE_PLANE": [image(1, 12, 8, 1)],
        "I420_THREE_PLANES": [image(1, 8, 8, 1), image(1, 4, 4, 1), image(1, 4, 4, 1)],
        "RGB": [image(1, 8, 8, 3)],
        "RGBX": [image(1, 8, 8, 4)],
        "BGRX": [image(1, 8, 8, 4)],
    }
    for source, tensors in planes.items():
        yield f"{source} to BGR", color, converted(source, "BGR"), tensors
        if not source.endswith("X"):
            yield f"{source} to GRAY", (1, 1, 8, 8), converted(source, "GRAY"), tensors
    yield (
        "output as f16, channels last",
        color,
        afterwards,
        [RNG.normal(size=color).astype(np.float32)],
    )


def normalized(ppp: Any, ov: ModuleType, _: ModuleType) -> None:
    """Bytes, channels last, to floats, normalized by channel."""
    ppp.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    steps = ppp.input().preprocess().convert_element_type(ov.Type.f32)
    steps.mean([1.0, 2.0, 3.0]).scale(2.0).scale([1.0, 2.0, 4.0]).reverse_channels()
    ppp.input().model().set_layout(ov.Layout("NCHW"))


def resized(algorithm: str, first: str) -> Steps:
    """Any size to that of the model, before or after bytes become floats."""

    def steps(ppp: Any, ov: ModuleType, names: ModuleType) -> None:
        tensor = ppp.input().tensor().set_element_type(ov.Type.u8)
        tensor.set_layout(ov.Layout("NHWC")).set_spatial_dynamic_shape()
        given = ppp.input().preprocess()
        if first == "f32":
            given.convert_element_type(ov.Type.f32)
        given.resize(getattr(names.ResizeAlgorithm, algorithm))
        ppp.input().model().set_layout(ov.Layout("NCHW"))

    return steps


def cropped(ppp: Any, _: ModuleType, __: ModuleType) -> None:
    """A window of a larger image."""
    ppp.input().tensor().set_shape([1, 3, 12, 12])
    ppp.input().preprocess().crop([0, 0, 2, 2], [1, 3, 10, -2])


def padded(mode: str) -> Steps:
    """A border round a smaller image."""

    def steps(ppp: Any, _: ModuleType, names: ModuleType) -> None:
        ppp.input().tensor().set_shape([1, 3, 6, 6])
        kind = getattr(names.PaddingMode, mode)
        ppp.input().preprocess().pad([0, 0, 1, 1], [0, 0, 1, 1], 1.5, kind)

    return steps


def converted(source: str, target: str) -> Steps:
    """Another colour format."""

    def steps(ppp: Any, ov: ModuleType, names: ModuleType) -> None:
        tensor = ppp.input().tensor().set_element_type(ov.Type.u8)
        tensor.set_color_format(getattr(names.ColorFormat, source))
        ppp.input().preprocess().convert_color(getattr(names.ColorFormat, target))
        ppp.input().model().set_layout(ov.Layout("NCHW"))

    return steps


def afterwards(ppp: Any, ov: ModuleType, _: ModuleType) -> None:
    """An output in another type and layout."""
    ppp.output().model().set_layout(ov.Layout("NCHW"))
    ppp.output().tensor().set_layout(ov.Layout("NHWC")).set_element_type(ov.Type.f16)


if __name__ == "__main__":
    main()
