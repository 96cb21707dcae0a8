"""Random models of operators beside the frequent ones, a few lines each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita_conformance.draws.casts import one_to_eight_bits
from partita_conformance.draws.draw import (
    Array,
    Draw,
    Rng,
    bools,
    floats,
    ints,
    random_axis,
    random_shape,
)


def one_of(rng: Rng, *values: Any) -> Any:
    """One of the values."""
    return values[int(rng.integers(len(values)))]


def scalar(value: float, dtype: Any = np.int64) -> Array:
    """A tensor without dimensions."""
    return np.array(value, dtype)


def integers(rng: Rng, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    """Whole numbers of ``[low, high)`` in any type."""
    return np.asarray(rng.integers(low, high, shape), dtype)


def bit_shift(rng: Rng) -> Draw:
    """Draws BitShift."""
    shape = random_shape(rng)
    x, by = (np.asarray(rng.integers(0, n, shape), np.uint32) for n in (2**20, 12))
    return Draw([x, by], {"direction": one_of(rng, "LEFT", "RIGHT")})


def bitwise(rng: Rng) -> Draw:
    """Draws a bitwise operator of two inputs."""
    shape = random_shape(rng)
    a, b = (np.asarray(rng.integers(-90, 90, s), np.int32) for s in (shape, shape[-1:]))
    return Draw([a, b], opset=18)


def bitwise_not(rng: Rng) -> Draw:
    """Draws BitwiseNot."""
    return Draw([np.asarray(rng.integers(-90, 90, random_shape(rng)), np.int32)], opset=18)


def power(rng: Rng) -> Draw:
    """Draws Pow."""
    shape = random_shape(rng)
    x = np.asarray(rng.uniform(0.2, 3, shape), np.float32)
    return Draw([x, np.asarray(rng.uniform(-2, 3, shape[-1:]), np.float32)])


def modulo(rng: Rng) -> Draw:
    """Draws Mod: of integers of either sign, or of floats with ``fmod``."""
    shape = random_shape(rng)
    if rng.random() < 0.5:
        x, y = ints(rng, -20, 20, tuple(shape)), ints(rng, 1, 7, shape[-1])
        y = y * one_of(rng, 1, -1)
        return Draw([x, y], {"fmod": int(rng.integers(2))})
    x = np.asarray(rng.uniform(-9, 9, shape), np.float32)
    return Draw([x, np.asarray(rng.uniform(1, 4, shape[-1:]), np.float32)], {"fmod": 1})


def is_inf(rng: Rng) -> Draw:
    """Draws IsInf."""
    x = np.asarray(rng.choice([1, np.inf, -np.inf, np.nan], random_shape(rng, 2)), np.float32)
    sides = one_of(rng, {"detect_negative": 0}, {"detect_positive": 0}, {})
    return Draw([x], sides)


def is_nan(rng: Rng) -> Draw:
    """Draws IsNaN."""
    x = rng.choice([1, np.inf, np.nan], random_shape(rng, 2))
    return Draw([np.asarray(x, np.float32)])


def newer(opset: int, **choices: Sequence[Any]) -> Any:
    """An element-wise operator of an opset, attributes drawn from choices."""

    def generate(rng: Rng) -> Draw:
        x = np.asarray(rng.uniform(-3, 3, random_shape(rng)), np.float32)
        given = {name: one_of(rng, *values) for name, values in choices.items()}
        return Draw([x], {k: v for k, v in given.items() if v is not None}, opset=opset)

    return generate


def eye_like(rng: Rng) -> Draw:
    """Draws EyeLike."""
    x = floats(rng, random_shape(rng, 2, 2))
    given: dict[str, Any] = {"k": int(rng.integers(-1, 2))}
    if rng.random() < 0.5:
        given["dtype"] = one_of(rng, 1, 7, 11)
    return Draw([x], given)


def range_(rng: Rng) -> Draw:
    """Draws Range, up or down, of floats or integers."""
    dtype = one_of(rng, np.float32, np.int64, np.int32)
    up = one_of(rng, 1, -1)
    limits = (scalar(int(rng.integers(-5, 5)), dtype), scalar(up * 17, dtype))
    return Draw([*limits, scalar(up * int(rng.integers(1, 4)), dtype)])


def shape(rng: Rng) -> Draw:
    """Draws Shape."""
    x = floats(rng, random_shape(rng, 3, 4))
    return Draw([x], one_of(rng, {}, {"start": 1}, {"start": -2, "end": -1}, {"end": 2}))


def plain(low: int = 1, high: int = 4) -> Any:
    """An operator of one input and no attributes."""
    return lambda rng: Draw([floats(rng, random_shape(rng, low, high))])


def non_zero(rng: Rng) -> Draw:
    """Draws NonZero."""
    return Draw([np.asarray(rng.integers(0, 2, random_shape(rng, 1, 3)), np.float32)])


def compress(rng: Rng) -> Draw:
    """Draws Compress, of an axis or of all elements, its condition sometimes too short."""
    x = floats(rng, random_shape(rng, 2, 3))
    axis = one_of(rng, None, random_axis(rng, x.ndim))
    count = x.size if axis is None else x.shape[axis]
    condition = bools(rng, [max(1, count - int(rng.integers(2)))])
    condition[0] = True
    return Draw([x, condition], {} if axis is None else {"axis": axis})


def gather_nd(rng: Rng) -> Draw:
    """Draws GatherND."""
    x = floats(rng, [2, 3, 4, 5])
    batch = int(rng.integers(2))
    tail = [integers(rng, -n, n, 2, 3, 1) for n in x.shape[batch : batch + int(rng.integers(1, 3))]]
    return Draw([x, np.concatenate(tail, -1)], {"batch_dims": batch})


def scatter_elements(rng: Rng) -> Draw:
    """Draws ScatterElements, with repeated places where they add up."""
    given: dict[str, Any]
    how = one_of(rng, "none", "add", "mul", "max", "min")
    if how != "none" and rng.random() < 0.4:  # of one dimension, or of three
        x = floats(rng, one_of(rng, [5], [2, 3, 4]))
        indices = integers(rng, -2, 2, *(min(n, 3) for n in x.shape))
        given = {"axis": one_of(rng, 0, -1), "reduction": how}
        return Draw([x, indices, floats(rng, indices.shape)], given, opset=18)
    x = floats(rng, [3, 4])
    axis = int(rng.integers(-2, 2))
    if how == "none":  # which of several writes to one place wins is not said
        order = np.stack([rng.permutation(x.shape[axis]) for _ in range(x.shape[1 - axis % 2])])
        indices = np.asarray(order if axis % 2 else order.T, np.int64)
        indices = np.where(rng.random(indices.shape) < 0.5, indices, indices - x.shape[axis])
    else:
        indices = integers(rng, -x.shape[axis], x.shape[axis], 2, 3)
    given = {"axis": axis, "reduction": how}
    return Draw([x, indices, floats(rng, indices.shape)], given, opset=18)


def scatter_nd(rng: Rng) -> Draw:
    """Draws ScatterND."""
    x = floats(rng, [5, 4])
    how = one_of(rng, "none", "add", "mul", "max", "min")
    if rng.random() < 0.3:  # places of single elements, and slices of higher rank
        places = rng.permutation(20)[:6] if how == "none" else rng.integers(0, 20, 6)
        indices = np.asarray(np.stack([places // 4, places % 4 - 4], -1), np.int64)
        x = x if rng.random() < 0.5 else floats(rng, [5, 4, 3])
        updates = floats(rng, [6, *x.shape[2:]])
        return Draw([x, indices, updates], {"reduction": how}, opset=18)
    rows = rng.permutation(5)[:3] if how == "none" else rng.integers(0, 5, 3)
    rows = np.asarray(rows - 5 * (rng.random(3) < 0.4), np.int64)
    return Draw([x, rows[:, None], floats(rng, [3, 4])], {"reduction": how}, opset=18)


def scatter(rng: Rng) -> Draw:
    """Draws Scatter of opset 10."""
    axis = int(rng.integers(2))
    indices = np.array([[0, 2, 1], [1, 0, 2]] if axis else [[0, 2], [1, 0], [2, 1]], np.int64)
    return Draw(
        [floats(rng, [3, 3]), indices, floats(rng, indices.shape)], {"axis": axis}, opset=10
    )


def reverse_sequence(rng: Rng) -> Draw:
    """Draws ReverseSequence."""
    time = int(rng.integers(2))
    x = floats(rng, [4, 4, 3])
    return Draw([x, ints(rng, 1, 5, 4)], {"time_axis": time, "batch_axis": 1 - time})


def recurrent(gates: int, functions: Sequence[str], **choices: Sequence[Any]) -> Any:
    """GRU or RNN; ``functions`` are activations of which the first takes alpha and beta."""

    def generate(rng: Rng) -> Draw:
        direction = one_of(rng, "forward", "reverse", "bidirectional")
        d = 2 if direction == "bidirectional" else 1
        steps, batch, size, hidden = 3, 2, int(rng.integers(2, 5)), int(rng.integers(2, 5))
        given = {name: one_of(rng, *values) for name, values in choices.items()}
        given = {k: v for k, v in given.items() if v is not None}
        rare = int(rng.integers(4))
        if rare == 0:
            given["clip"] = 0.2
        elif rare == 1:
            given["activations"] = [*functions, *("Sigmoid", "Tanh")[-len(functions) :]][
                : len(functions) * d
            ]
            given["activation_alpha"] = [0.3, 0.1][: len(functions)] * d
            given["activation_beta"] = [0.4] * d
        elif rare == 2:
            given["layout"] = 1
        x = floats(rng, [batch, steps, size] if rare == 2 else [steps, batch, size])
        w = floats(rng, [d, gates * hidden, size])
        r, b = floats(rng, [d, gates * hidden, hidden]), floats(rng, [d, 2 * gates * hidden])
        given |= {"hidden_size": hidden, "direction": direction}
        inputs: list[Array | None] = [x, w, r, b]
        if rare != 2 and rng.random() < 0.5:
            lengths = np.asarray(rng.integers(1, steps + 1, batch), np.int32)
            inputs += [lengths, floats(rng, [d, batch, hidden])][: int(rng.integers(1, 3))]
        return Draw(inputs, given, [1, 2, 3], 2)

    return generate


def lp_normalization(rng: Rng) -> Draw:
    """Draws LpNormalization."""
    x = floats(rng, random_shape(rng, 2, 3))
    return Draw([x], {"axis": random_axis(rng, x.ndim), "p": int(rng.integers(1, 3))})


def lp_pool(rng: Rng) -> Draw:
    """Draws LpPool."""
    given = {"kernel_shape": [2, 3], "p": one_of(rng, 1, 2, 3)}
    more = one_of(
        rng,
        {"strides": [2, 1]},
        {"pads": [1, 0, 0, 2]},
        {"dilations": [2, 1]},
        {"ceil_mode": 1, "strides": [2, 2]},
        {"ceil_mode": 1, "strides": [3, 3], "pads": [1, 1, 0, 0]},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": one_of(rng, "VALID", "SAME_UPPER"), "dilations": [2, 2]},
    )
    return Draw([floats(rng, [1, 2, 5, 8])], {**given, **more}, opset=18)


def global_lp_pool(rng: Rng) -> Draw:
    """Draws GlobalLpPool."""
    return Draw([floats(rng, [2, 3, *random_shape(rng, 1, 3)])], {"p": one_of(rng, 1, 2, 3)})


def mean_variance(rng: Rng) -> Draw:
    """Draws MeanVarianceNormalization."""
    return Draw([floats(rng, [2, 3, 4, 5])], {"axes": one_of(rng, [0, 2, 3], [1, 2], [2, 3], [3])})


def group_norm(rng: Rng) -> Draw:
    """Draws GroupNormalization."""
    given = {"num_groups": one_of(rng, 1, 2, 3), "epsilon": one_of(rng, 1e-5, 0.3)}
    scales = [floats(rng, [6]) for _ in range(2)]
    return Draw([floats(rng, [2, 6, 3, 2]), *scales], given, [1, 2], opset=21)


def rms_norm(rng: Rng) -> Draw:
    """Draws RMSNormalization."""
    axis = one_of(rng, -1, 1, -2)
    x = floats(rng, [2, 3, 5])
    given = {"axis": axis, "epsilon": one_of(rng, 1e-5, 0.3)}
    return Draw([x, floats(rng, x.shape[axis:])], given, [1], opset=23)


def grid_sample(rng: Rng) -> Draw:
    """Draws GridSample."""
    grid = np.asarray(rng.uniform(-1.6, 1.6, [2, 3, 4, 2]), np.float32)
    given = {
        "mode": one_of(rng, "linear", "nearest", "cubic"),
        "padding_mode": one_of(rng, "zeros", "border", "reflection"),
        "align_corners": int(rng.integers(2)),
    }
    return Draw([floats(rng, [2, 2, 4, 5]), grid], given, opset=20)


def affine_grid(rng: Rng) -> Draw:
    """Draws AffineGrid."""
    size = np.array([2, 3, 4, 5], np.int64)
    return Draw(
        [floats(rng, [2, 2, 3]), size], {"align_corners": int(rng.integers(2))}, [1], opset=20
    )


def roi_align(rng: Rng) -> Draw:
    """Draws RoiAlign."""
    corners = np.asarray(rng.uniform(0, 3, [3, 2]), np.float32)
    boxes = np.concatenate([corners, corners + rng.uniform(2, 5, [3, 2])], 1).astype(np.float32)
    given = {
        "output_height": 2,
        "output_width": 3,
        "mode": one_of(rng, "avg", "max"),
        "sampling_ratio": one_of(rng, 0, 1, 3),
        "spatial_scale": one_of(rng, 1.0, 0.5),
        "coordinate_transformation_mode": one_of(rng, "half_pixel", "output_half_pixel"),
    }
    return Draw([floats(rng, [2, 2, 8, 8]), boxes, np.array([0, 1, 0], np.int64)], given)


def suppression(rng: Rng) -> Draw:
    """Draws NonMaxSuppression."""
    batch = int(rng.integers(1, 3))
    a = np.asarray(rng.uniform(0, 3, [batch, 8, 2]), np.float32)
    boxes = np.concatenate([a, a + rng.uniform(1, 3, [batch, 8, 2])], 2).astype(np.float32)
    limits = [scalar(7), scalar(0.3, np.float32), scalar(0.2, np.float32)]
    scores = np.asarray(rng.random([batch, 2, 8]), np.float32)
    scores[..., ::2] = limits[2]  # which is not above the threshold
    given = {"center_point_box": int(rng.integers(2))}
    count = one_of(rng, 3, 3, 2, 1, 0)  # boxes per class are none unless a limit is given
    if rng.random() < 0.3:
        boxes = np.stack([rng.permutation(_OVERLAPPING) for _ in range(batch)])
        limits[1] = scalar(0.5, np.float32)
        if given["center_point_box"]:
            low, high = (
                np.minimum(boxes[..., :2], boxes[..., 2:]),
                np.maximum(*np.split(boxes, 2, 2)),
            )
            boxes = np.concatenate([(low + high) / 2, high - low], 2)[..., [1, 0, 3, 2]]
    return Draw([boxes, scores, *limits[:count]], given, [2, 3, 4])


_OVERLAPPING = np.array(
    [
        *([0, 0, 2, 2], [0, 0, 2, 1], [2, 1, 0, 2], [0, 2, 1, 0]),
        *([4, 0, 6, 2], [6, 2, 5, 0], [4, 0, 6, 2], [7, 7, 7, 9]),
    ],
    np.float32,
)
"""Boxes by any two opposite corners, some of which share half their area, or all of it."""


def matmul_integer(rng: Rng) -> Draw:
    """Draws MatMulInteger."""
    a, b = (
        integers(rng, 0, 256, 3, 7, dtype=np.uint8),
        integers(rng, -128, 128, 7, 5, dtype=np.int8),
    )
    zeros = [scalar(int(rng.integers(0, 256)), np.uint8), scalar(int(rng.integers(-9, 9)), np.int8)]
    if rng.random() < 0.4:  # one of each row, one of each column
        zeros = [integers(rng, 0, 256, 3, dtype=np.uint8), integers(rng, -9, 9, 5, dtype=np.int8)]
    return Draw([a, b, *zeros[: int(rng.integers(1, 3))]], constant=[1, 2, 3])


def conv_integer(rng: Rng) -> Draw:
    """Draws ConvInteger."""
    group = one_of(rng, 1, 2)
    x = integers(rng, 0, 256, 1, 2 * group, 5, 6, dtype=np.uint8)
    w = integers(rng, -128, 128, 4, 2, 2, 3, dtype=np.int8)
    given = one_of(
        rng,
        {"pads": [1, 0, 1, 2]},
        {"strides": [2, 1]},
        {"dilations": [2, 2]},
        {"auto_pad": "SAME_UPPER"},
    )
    inputs = [x, w, scalar(3, np.uint8), scalar(-5, np.int8)]
    given |= {"group": 2} if group > 1 else {}
    return Draw(inputs[: int(rng.integers(2, 5))], given, range(1, 4))


def qlinear_matmul(rng: Rng) -> Draw:
    """Draws QLinearMatMul."""
    a, b = (integers(rng, 0, 256, *s, dtype=np.uint8) for s in ((3, 7), (7, 5)))
    f, u = np.float32, np.uint8
    one, two = [scalar(0.02, f), scalar(113, u)], [scalar(0.03, f), scalar(90, u)]
    if rng.random() < 0.3:  # of each column
        two = [np.array([1, 2, 3, 4, 5], f) / 128, integers(rng, 80, 99, 5, dtype=u)]
    elif rng.random() < 0.4:  # quotients that are whole numbers and halves, beside an odd zero
        a, b = integers(rng, 110, 117, 3, 7, dtype=u), integers(rng, 88, 93, 7, 5, dtype=u)
        one[0], two[0] = scalar(0.25, f), scalar(2, f)
        inputs = [a, *one, b, *two, scalar(1, f), scalar(117, u)]
        return Draw(inputs, constant=[1, 2, 3, 4, 5, 6, 7])
    return Draw([a, *one, b, *two, scalar(0.05, f), scalar(118, u)], constant=[1, 2, 3, 4, 5, 6, 7])


def dynamic_quantize(rng: Rng) -> Draw:
    """Draws DynamicQuantizeLinear."""
    x = floats(rng, random_shape(rng)) * 3
    halves = np.arange(-75, 436) / np.float32(4)  # of a scale of a half, and an odd zero
    return Draw([one_of(rng, x, np.abs(x) + 1, -np.abs(x) - 1, halves)], outputs=3)


def unique(rng: Rng) -> Draw:
    """Draws Unique, of an axis or of all elements."""
    x = np.asarray(rng.integers(0, 4, [4, 3]), np.float32)
    given = one_of(rng, {}, {"sorted": 0}, {"axis": 0}, {"axis": 1}, {"axis": -1, "sorted": 1})
    return Draw([x], given, outputs=4)


def center_crop_pad(rng: Rng) -> Draw:
    """Draws CenterCropPad."""
    axes = one_of(rng, [0, 1], [1, 0], [-1, 0], [1, 2])
    sizes = np.asarray(rng.integers(2, 9, 2), np.int64)
    return Draw([floats(rng, [4, 5, 6]), sizes], {"axes": axes}, [1], opset=18)


def attention(rng: Rng) -> Draw:
    """Draws Attention: heads that share keys, masks of truth values or numbers, a cache."""
    heads = one_of(rng, 2, 4)
    q, k, v = (floats(rng, [2, h, n, 4]) for h, n in ((heads, 3), (2, 5), (2, 5)))
    given = {
        "is_causal": int(rng.integers(2)),
        "softcap": one_of(rng, 0.0, 0.7),
        "scale": one_of(rng, 0.4, 1.5),
    }
    if rng.random() < 0.3:  # heads side by side in the last dimension
        q, k, v = (
            np.ascontiguousarray(a.swapaxes(1, 2)).reshape(2, a.shape[2], -1) for a in (q, k, v)
        )
        given |= {"q_num_heads": heads, "kv_num_heads": 2}
    inputs: list[Array | None] = [q, k, v]
    if rng.random() < 0.4:
        shape, total = one_of(rng, (), (heads,), (2, 1)), one_of(rng, 5, 7)
        mask = rng.random([*shape, 3, total]) < 0.7
        mask[..., 0] = True  # no row is masked out altogether
        inputs.append(mask if rng.random() < 0.5 else floats(rng, mask.shape))
        if total == 7:
            inputs += [floats(rng, [2, 2, 2, 4]) for _ in range(2)]
            return Draw(inputs, given, outputs=3, opset=23)
    return Draw(inputs, given, opset=23)


def rotary(rng: Rng) -> Draw:
    """Draws RotaryEmbedding."""
    x, given = floats(rng, [2, 3, 4, 8]), {"interleaved": int(rng.integers(2))}
    turned = one_of(rng, 8, 4)
    if turned == 4:
        given["rotary_embedding_dim"] = 4
    if rng.random() < 0.3:
        x, given["num_heads"] = floats(rng, [2, 4, 24]), 3
    if rng.random() < 0.4:  # rows of the tables by the position of each token
        tables = [floats(rng, [9, turned // 2]) for _ in range(2)]
        given["rotary_embedding_dim"] = turned
        return Draw([x, *tables, integers(rng, 0, 9, 2, 4)], given, opset=23)
    tables = [floats(rng, [2, 4, turned // 2]) for _ in range(2)]
    return Draw([x, *tables], given, opset=23)


def upsample(rng: Rng) -> Draw:
    """Draws Upsample of opset 9."""
    scales = np.array([1, 1, 2, 3], np.float32)
    mode = {"mode": one_of(rng, "nearest", "linear")}
    return Draw([floats(rng, [1, 2, 3, 4]), scales], mode, [1], opset=9)


def nll_loss(rng: Rng) -> Draw:
    """Draws NegativeLogLikelihoodLoss."""
    target = integers(rng, 0, 4, 3, 2)
    given = {"reduction": one_of(rng, "none", "sum", "mean"), "ignore_index": int(target[0, 0])}
    return Draw([floats(rng, [3, 4, 2]), target, np.abs(floats(rng, [4])) + 1], given)


def shrink(rng: Rng) -> Draw:
    """Draws Shrink."""
    given = {"lambd": one_of(rng, 0.5, 1.0), "bias": one_of(rng, 0.0, 0.3)}
    return Draw([floats(rng, random_shape(rng))], given)


def constant_of_shape(rng: Rng) -> Draw:
    """Draws ConstantOfShape."""
    from onnx import numpy_helper

    value = numpy_helper.from_array(np.array([int(rng.integers(1, 9))], one_of(rng, "f4", "i8")))
    return Draw([np.asarray(rng.integers(1, 4, 3), np.int64)], {"value": value}, [])


def hann_window(rng: Rng) -> Draw:
    """Draws a window of signal processing."""
    return Draw(
        [scalar(int(rng.integers(5, 12)))],
        {"periodic": int(rng.integers(2))},
        [0],
    )


def col2im(rng: Rng) -> Draw:
    """Draws Col2Im."""
    size, block = np.array([5, 5], np.int64), np.array([2, 2], np.int64)
    more, count = one_of(
        rng,
        ({}, 16),
        ({"dilations": [2, 2]}, 9),
        ({"pads": [1, 0, 1, 0]}, 24),
        ({"strides": [2, 2]}, 4),
    )
    return Draw([floats(rng, [1, 8, count]), size, block], more, [1, 2], opset=18)


def dropout(rng: Rng) -> Draw:
    """Draws Dropout, which does nothing but in training."""
    return Draw([floats(rng, random_shape(rng))])


def cast_like(rng: Rng) -> Draw:
    """Draws CastLike."""
    if rng.random() < 0.25:
        return one_to_eight_bits(rng, "CastLike")
    x = np.asarray(rng.uniform(0, 90, random_shape(rng)), np.float32)
    return Draw([x, np.zeros(1, one_of(rng, np.int64, np.uint8, np.float64, np.bool_))])
