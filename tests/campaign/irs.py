"""OpenVINO IRs that were changed: numbers, names, tags and weights."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import numpy as np

from . import numbers
from .cores import guarded_core

sys.path.append(str(Path(__file__).parents[1] / "unit" / "openvino_ir"))

_NUMBER = re.compile(r"-?\d+")
_WORDS = (
    *("f32", "i64", "boolean", "dynamic", "u1", "opset1", "opset15", "same_upper", "floor", ""),
    *("Parameter", "Const", "Result", "MatMul", "ReLU", "If", "Loop", "TensorIterator", "NaN"),
    *("MaxPool", "Convolution", "Reshape", "Gather", "StridedSlice", "Split", "TopK", "?", "-1"),
)


def case(seed):
    """Reads one IR, and compiles it for device CPU."""
    rng = np.random.default_rng(seed)
    text, weights = nets()[rng.integers(len(nets()))]
    for _ in range(rng.integers(1, 5)):
        text = changed(rng, text)
    weights = bytearray(weights)
    if weights and rng.random() < 0.2:
        weights[rng.integers(len(weights))] = rng.integers(256)
        del weights[rng.integers(len(weights)) :]
    yield f"{len(text)} letters"
    model = guarded_core().read_model(text.encode(), weights=bytes(weights))
    yield "read"
    guarded_core().compile_model(model, "CPU")


def changed(rng, text):
    """The text with a number, a word, a tag or a run of letters changed."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    match rng.integers(5):
        case 0 | 1:
            number = found[rng.integers(len(found))]
            return text[: number.start()] + str(numbers.hostile_integer(rng)) + text[number.end() :]
        case 2:
            words = list(re.finditer(r'"[^"]*"', text))
            word = words[rng.integers(len(words))]
            return (
                text[: word.start() + 1]
                + _WORDS[rng.integers(len(_WORDS))]
                + text[word.end() - 1 :]
            )
        case 3:
            tags = list(re.finditer(r"<(layer|edge|port|dim|data)\b[^>]*?>", text))
            if not tags:
                return text
            tag = tags[rng.integers(len(tags))]
            again = "" if rng.random() < 0.5 else tag[0] * int(rng.integers(2, 800))
            return text[: tag.start()] + again + text[tag.end() :]
        case _:
            place = int(rng.integers(len(text)))
            return text[:place] + text[place + int(rng.integers(1, 40)) :]


@functools.cache
def nets():
    """Text and weights of whole IRs."""
    from irs import Net

    made = []
    net = Net()
    x = net.parameter("x", "f32", (2, 4))
    w = net.const(np.arange(12, dtype=np.float32).reshape(4, 3))
    product = net.op(
        "MatMul", x, w, out=[("f32", (2, 3))], transpose_a="false", transpose_b="false"
    )
    net.result(net.op("ReLU", product))
    made.append((net.xml(), bytes(net.weights)))
    net = Net()
    x = net.parameter("x", "f32", (1, 3, 8, 8))
    w = net.const(np.ones((4, 3, 3, 3), np.float32))
    moved = {"strides": "1,1", "pads_begin": "1,1", "pads_end": "1,1", "auto_pad": "explicit"}
    y = net.op("Convolution", x, w, out=[("f32", (1, 4, 8, 8))], dilations="1,1", **moved)
    pool = {"kernel": "2,2", "rounding_type": "floor", **moved, "strides": "2,2"}
    y = net.op("MaxPool", y, out=[("f32", (1, 4, 5, 5))], **pool)
    shape = net.const(np.array([1, -1], np.int64))
    y = net.op("Reshape", y, shape, out=[("f32", (1, 100))], special_zero="true")
    axis = net.const(np.array(1, np.int64))
    net.result(net.op("Concat", y, y, out=[("f32", (1, 200))], axis="1"))
    index = net.const(np.array([0, 5], np.int64))
    gathered = net.op("Gather", y, index, axis, out=[("f32", (1, 2))], version="opset8")
    net.result(gathered)
    made.append((net.xml(), bytes(net.weights)))
    net = Net()
    x = net.parameter("x", "f32", (1, 2, 4, 4, 6))
    axes, few = net.const(np.array([2, 3], np.int64)), net.const(np.array([1, -1], np.int64))
    y = net.op("Roll", x, few, axes, version="opset7")
    y = net.op("SpaceToDepth", y, out=[("f32", (1, 16, 2, 2, 3))], mode="depth_first", block_size=2)
    sizes = net.const(np.array([3, 2, 2], np.int64))
    y = net.op("AdaptiveAvgPool", y, sizes, out=[("f32", (1, 16, 3, 2, 2))], version="opset8")
    y = net.op("DFT", y, axes, out=[("f32", (1, 16, 3, 2, 2))], version="opset7")
    pads = net.const(np.array([0, 0, 1, 1, 0], np.int64))
    y = net.op("Pad", y, pads, pads, out=[("f32", (1, 16, 5, 4, 2))], pad_mode="symmetric")
    net.result(net.op("NormalizeL2", y, axes, eps="0.1", eps_mode="add"))
    made.append((net.xml(), bytes(net.weights)))
    made.append(_segments_and_labels(Net()))
    return made


def _segments_and_labels(net):
    """Layers that are several operations here, which trust the constants beside them."""
    x = net.parameter("x", "f32", (6, 3, 5))
    rows, starts = net.const(np.array([0, 2, 5, 1], np.int32)), net.const(np.array([0, 2, 2]))
    more = {"version": "opset15", "reduction": "mean"}
    net.result(net.op("EmbeddingBagOffsets", x, rows, starts, out=[("f32", (3, 3, 5))], **more))
    segments = net.const(np.array([0, 0, 2, 2, 3, 3]))
    data = {"version": "opset16", "fill_mode": "LOWEST"}
    net.result(net.op("SegmentMax", x, segments, out=[("f32", (4, 3, 5))], **data))
    mask = net.const(np.ones((6, 3), np.float32))
    out = [("f32", (3, 6, 1, 1))]
    net.result(net.op("CTCGreedyDecoder", x, mask, out=out, ctc_merge_repeated="true"))
    signal = net.op("Reshape", x, net.const(np.array([2, 45])), out=[("f32", (2, 45))])
    window, size, step = (net.const(v) for v in (np.ones(7, np.float32), np.int64(8), np.int64(3)))
    out = [("f32", (2, 13, 5, 2))]
    net.result(
        net.op("STFT", signal, window, size, step, out=out, version="opset15", transpose_frames="0")
    )
    image = net.op("Reshape", x, net.const(np.array([1, 1, 9, 10])), out=[("f32", (1, 1, 9, 10))])
    data = {"sizes": "2,3", "strides": "2,1", "rates": "1,2", "auto_pad": "same_upper"}
    net.result(net.op("ExtractImagePatches", image, out=[("f32", (1, 6, 5, 10))], **data))
    return net.xml(), bytes(net.weights)
