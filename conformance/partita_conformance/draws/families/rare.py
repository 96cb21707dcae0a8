"""Random models of operators with attributes or inputs that ONNX's node cases leave untested."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from partita_conformance.draws.draw import Array, Draw, Rng, floats, integers, one_of, scalar


def qlinear_conv(rng: Rng) -> Draw:
    """Draws QLinearConv, its weights sometimes with a scale per output channel.

    Quotients of the scales are exact, so that it is no matter of rounding what is a tie.
    """
    group = one_of(rng, 1, 2)
    x = integers(rng, 0, 256, 1, 2 * group, 6, 7, dtype=np.uint8)
    w = integers(rng, -128, 128, 2 * group, 2, 2, 3, dtype=np.int8)
    given: dict[str, Any] = one_of(
        rng,
        {"pads": [1, 0, 1, 2]},
        {"strides": [2, 1]},
        {"dilations": [2, 2]},
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    )
    if group > 1:
        given["group"] = group
    scale, zero = scalar(2.0**-5, np.float32), scalar(0, np.int8)
    if rng.random() < 0.5:
        scale = np.asarray(rng.integers(3, 9, 2 * group) / 128, np.float32)
        zero = one_of(
            rng, np.zeros(2 * group, np.int8), integers(rng, -9, 9, 2 * group, dtype=np.int8)
        )
    inputs = [x, scalar(2.0**-6, np.float32), scalar(113, np.uint8), w, scale, zero]
    inputs += [scalar(2.0**-3, np.float32), scalar(118, np.uint8)]
    most = one_of(rng, 0, 900, 90_000)
    if most:
        inputs.append(integers(rng, -most, most, 2 * group, dtype=np.int32))
    if most > 900:
        inputs[6] = scalar(2.0**-1, np.float32)
    elif rng.random() < 0.3:  # quotients that are whole numbers and halves, beside an odd zero
        inputs[0] = integers(rng, 110, 117, *x.shape, dtype=np.uint8)
        inputs[3] = integers(rng, -2, 3, *w.shape, dtype=np.int8)
        inputs[1], inputs[4] = scalar(0.5, np.float32), np.full_like(scale, 1)
        inputs[5] = np.zeros_like(zero)
        inputs[6:8] = scalar(1, np.float32), scalar(117, np.uint8)
        inputs[8:] = [bias // 30 for bias in inputs[8:] if bias is not None]
    return Draw(inputs, given, range(1, len(inputs)))


def deform_conv(rng: Rng) -> Draw:
    """Draws DeformConv: places that are fractions, some beyond the edge, and a mask."""
    kernel, spatial = (2, 2), (5, 4)
    given: dict[str, Any] = one_of(
        rng, {}, {"strides": [2, 1]}, {"dilations": [2, 1]}, {"pads": [1, 0, 1, 2]}
    )
    group, offset_group = one_of(rng, 1, 2), one_of(rng, 1, 2)
    given |= {"group": group} if group > 1 else {}
    given |= {"offset_group": offset_group} if offset_group > 1 else {}
    steps, gaps = given.get("strides", [1, 1]), given.get("dilations", [1, 1])
    pads = given.get("pads", [0] * 4)
    out = [
        (n + pads[i] + pads[i + 2] - (kernel[i] - 1) * gaps[i] - 1) // steps[i] + 1
        for i, n in enumerate(spatial)
    ]
    taps = offset_group * kernel[0] * kernel[1]
    x, w = floats(rng, [1, 4, *spatial]), floats(rng, [4, 4 // group, *kernel])
    inputs: list[Array | None] = [x, w, floats(rng, [1, 2 * taps, *out])]
    more = [floats(rng, [4]), np.abs(floats(rng, [1, taps, *out]))]
    return Draw([*inputs, *more[: int(rng.integers(3))]], given, [1], opset=19)


def max_roi_pool(rng: Rng) -> Draw:
    """Draws MaxRoiPool."""
    corners = rng.integers(0, 5, [3, 2])
    boxes = np.concatenate([corners, corners + rng.integers(3, 9, [3, 2])], 1)
    rois = np.concatenate([np.zeros([3, 1]), boxes], 1).astype(np.float32)
    given = {"pooled_shape": [2, 3], "spatial_scale": one_of(rng, 1.0, 0.5)}
    return Draw([floats(rng, [1, 2, 8, 8]), rois], given)


def max_unpool(rng: Rng) -> Draw:
    """Draws MaxUnpool of what a MaxPool of the same windows would give."""
    given: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    pads = one_of(rng, [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1])
    if any(pads):
        given["pads"] = pads
    rows, columns = 3, 4
    height, width = 2 * rows - pads[0] - pads[2], 2 * columns - pads[1] - pads[3]
    places = [
        rng.permutation(height * width)[: rows * columns] + c * height * width for c in (0, 1)
    ]
    indices = np.sort(np.stack(places), 1).reshape(1, 2, rows, columns).astype(np.int64)
    return Draw([floats(rng, [1, 2, rows, columns]), indices], given)


def stft(rng: Rng) -> Draw:
    """Draws STFT of real signals, sometimes with all frequencies."""
    given = {"onesided": int(rng.integers(2))}
    window = np.asarray(rng.uniform(0.2, 1, 8), np.float32) if rng.random() < 0.6 else None
    signal = floats(rng, [2, 30, 1])
    return Draw([signal, scalar(int(rng.integers(3, 6))), window, scalar(8)], given, [1, 2, 3])


def dft(rng: Rng) -> Draw:
    """Draws DFT along an axis: of real or complex numbers, cut off or filled up, either way."""
    axis = one_of(rng, None, 1, 2, -3)
    length = one_of(rng, None, scalar(4), scalar(9))
    x = floats(rng, [2, 5, 6, one_of(rng, 1, 2)])
    given = one_of(rng, {}, {"inverse": 1}, {"onesided": 1} if x.shape[-1] == 1 else {"inverse": 1})
    inputs: list[Array | None] = [x, length, None if axis is None else scalar(axis)]
    while inputs[-1] is None:
        inputs.pop()
    return Draw(inputs, given, [1, 2], opset=20)


def mel_weights(rng: Rng) -> Draw:
    """Draws MelWeightMatrix, of edges that are far from the middle between two frequencies."""
    bins, length, rate = one_of(rng, (5, 32, 8192), (8, 64, 16000), (3, 16, 1000))
    low, high = rate * np.array([one_of(rng, 0.0, 0.02), one_of(rng, 0.3, 0.5)], np.float32)
    inputs = [*map(scalar, (bins, length, rate)), scalar(low, np.float32), scalar(high, np.float32)]
    return Draw(inputs, {}, range(5))


def tensor_scatter(rng: Rng) -> Draw:
    """Draws TensorScatter: rows written to a cache, at its end or around it."""
    axis, mode = one_of(rng, -2, 1, 2, -1), one_of(rng, "linear", "circular")
    shape, written = [2, 6, 5, 6], [2, 6, 5, 6]
    written[axis] = 2
    most = shape[axis] - 1 if mode == "linear" else shape[axis]
    starts = np.asarray(rng.integers(0, most, 2), np.int64)
    given = {"axis": axis, "mode": mode}
    return Draw([floats(rng, shape), floats(rng, written), starts], given, opset=24)


def tf_idf(rng: Rng) -> Draw:
    """Draws TfIdfVectorizer: counts of words and of pairs of words, with and without gaps."""
    x = np.asarray(rng.integers(0, 5, one_of(rng, (12,), (2, 9))), np.int64)
    mode = one_of(rng, "TF", "IDF", "TFIDF")
    given: dict[str, Any] = {
        "mode": mode,
        "min_gram_length": one_of(rng, 1, 2),
        "max_gram_length": 2,
        "max_skip_count": one_of(rng, 0, 1, 3),
        "ngram_counts": [0, 3],
        "ngram_indexes": [0, 1, 2, 3, 4, 5],
        "weights": [0.5, 2.0, 1.5, 3.0, 0.25, 1.25],
    }
    pool = [1, 2, 3, 1, 2, 2, 3, 4, 0]
    if rng.random() < 0.3:
        texts = np.array([f"w{n}" for n in x.reshape(-1)], object).reshape(x.shape)
        return Draw([texts], given | {"pool_strings": [f"w{n}" for n in pool]})
    return Draw([x], given | {"pool_int64s": pool})


def scan(rng: Rng) -> Draw:
    """Draws Scan: a sum that runs along an axis of each of two inputs, either way."""
    steps, rest = 4, [2, 3]
    axes, out_axes = ([int(n) for n in rng.integers(-3, 3, 2)] for _ in range(2))
    shapes = [[*rest[: a % 3], steps, *rest[a % 3 :]] for a in axes]
    ways = [[int(n) for n in rng.integers(0, 2, 2)] for _ in range(2)]
    given: dict[str, Any] = {"body": _running_sum(rest), "num_scan_inputs": 2}
    names = ("scan_input_axes", "scan_output_axes", "scan_input_directions")
    options = dict(zip(names, (axes, out_axes, ways[0]), strict=True))
    options["scan_output_directions"] = ways[1]
    options = {name: value for name, value in options.items() if any(value)}
    return Draw([floats(rng, rest), *(floats(rng, s) for s in shapes)], given | options, (), 3)


def _running_sum(shape: list[int]) -> onnx.GraphProto:
    """A body: the state and its double after the difference of both inputs was added."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "sabtuv"]
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["d"]),
        helper.make_node("Add", ["s", "d"], ["t"]),
        helper.make_node("Add", ["t", "t"], ["u"]),
        helper.make_node("Identity", ["a"], ["v"]),
    ]
    return helper.make_graph(nodes, "running_sum", values[:3], values[3:])


_WORDS = ("Monday", "monday", "a", "A", "", "b c", "\u00e9t\u00e9", "d,e,,f", ",", "aa1", "1")
_ELSEWHERE = ("\u00c9cu", "\u0436\u0443k", "\u0416", "\u03c9")
"""Words of letters beside those of English, of either case."""


def words(rng: Rng, *shape: int) -> Array:
    """Texts that differ in case, length, spaces and commas."""
    return np.asarray(rng.choice(np.array(_WORDS, object), shape), object)


def normalizer(rng: Rng) -> Draw:
    """Draws StringNormalizer; texts that are all stopped would leave one empty text."""
    given: dict[str, Any] = {
        "is_case_sensitive": int(rng.integers(2)),
        "case_change_action": one_of(rng, "LOWER", "UPPER", "NONE"),
    }
    if rng.random() < 0.8:
        given["stopwords"] = ["monday", "A"]
    x = np.append(words(rng, 5), np.array(["Monday", "kept", "A", *_ELSEWHERE], object))
    return Draw([x if rng.random() < 0.7 else x[None]], given)


def full_match(rng: Rng) -> Draw:
    """Draws RegexFullMatch of patterns that match some texts in part."""
    pattern = one_of(rng, "a", "[a-z]+", "[A-Z].*", "[[:lower:]]*", "aa", r"[a-z,]+", r"\w+")
    return Draw([words(rng, 3, 4)], {"pattern": pattern}, opset=20)


def split_text(rng: Rng) -> Draw:
    """Draws StringSplit by spaces or by a text, sometimes into few parts at most."""
    given = one_of(rng, {}, {"delimiter": ","}, {"delimiter": ",", "maxsplit": 1}, {"maxsplit": 1})
    x = words(rng, 6)
    x[x == ""] = "e"  # of how many parts no text is, ONNX does not say
    return Draw([x], given, outputs=2, opset=20)


def join_text(rng: Rng) -> Draw:
    """Draws StringConcat of shapes that broadcast."""
    return Draw([words(rng, 2, 3), words(rng, *one_of(rng, (3,), (2, 1), (2, 3)))], opset=20)
