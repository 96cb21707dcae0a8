"""Random models of convolutions, pools, products, normalizations and quantization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from partita_conformance.draws.casts import BEYOND_EIGHTS, EIGHTS
from partita_conformance.draws.draw import (
    Array,
    Draw,
    Rng,
    floats,
    integers,
    one_of,
    random_axis,
    random_shape,
    size,
)


def _windows(rng: Rng, spatial: Sequence[int]) -> dict[str, Any]:
    """Kernel, strides, dilations and uneven padding that leave something of the input."""
    rank = len(spatial)
    kernel = [int(k) for k in rng.integers(1, 4, rank)]
    if max(kernel) == 1 and rng.random() < 0.7:
        kernel[-1] = 2  # dilations of a single tap say nothing
    attributes: dict[str, Any] = {"strides": [int(s) for s in rng.integers(1, 3, rank)]}
    if rng.random() < 0.4:
        fits = [
            d if (k - 1) * d < n else 1
            for k, d, n in zip(kernel, rng.integers(1, 3, rank), spatial, strict=True)
        ]
        attributes["dilations"] = [int(d) for d in fits]
    if rng.random() < 0.3:
        attributes["auto_pad"] = ("SAME_UPPER", "SAME_LOWER", "VALID")[int(rng.integers(3))]
        attributes.pop("dilations", None)
    else:
        attributes["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    return {"kernel_shape": kernel, **attributes}


def conv(rng: Rng) -> Draw:
    """Draws a model of conv."""
    spatial = [int(n) for n in rng.integers(4, 9, rng.integers(1, 4))]
    groups = int(rng.choice([1, 1, 2, 3]))
    per_in, per_out = size(rng, 1, 4), size(rng, 1, 4)
    if rng.random() < 0.2:  # a kernel for each channel
        groups, per_in, per_out = 3, 1, int(rng.integers(1, 3))
    attributes = _windows(rng, spatial)
    if rng.random() < 0.15:  # a product of matrices, of some pixels
        attributes = {"kernel_shape": [1] * len(spatial), "strides": [2] * len(spatial)}
    x = floats(rng, [int(rng.choice((1, 2, 3))), groups * per_in, *spatial])
    w = floats(rng, [groups * per_out, per_in, *attributes["kernel_shape"]])
    b = floats(rng, [groups * per_out]) if rng.random() < 0.5 else None
    inputs = [x, w] + ([b] if b is not None else [])
    return Draw(
        inputs, {**attributes, "group": groups}, constant=[1, 2] if rng.random() < 0.8 else []
    )


def conv_transpose(rng: Rng) -> Draw:
    """Draws a model of conv transpose."""
    spatial = [int(n) for n in rng.integers(3, 7, rng.integers(1, 3))]
    groups, per_in, per_out = int(rng.integers(1, 3)), 2, int(rng.integers(1, 4))
    kernel = [int(k) for k in rng.integers(2, 4, len(spatial))]
    strides = [int(s) for s in rng.integers(1, 3, len(spatial))]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": strides,
        "pads": [int(n) for n in rng.integers(0, 2, 2 * len(spatial))],
        "group": groups,
    }
    if rng.random() < 0.4:
        attributes["output_padding"] = [s - 1 for s in strides]
    if rng.random() < 0.4:
        attributes["dilations"] = [int(d) for d in rng.integers(1, 3, len(spatial))]
    elif rng.random() < 0.3:
        attributes["auto_pad"] = ("SAME_UPPER", "SAME_LOWER", "VALID")[int(rng.integers(3))]
        del attributes["pads"]
        attributes.pop("output_padding", None)
    elif rng.random() < 0.3:
        attributes["output_shape"] = [n * s for n, s in zip(spatial, strides, strict=True)]
        del attributes["pads"]
        attributes.pop("output_padding", None)
    x = floats(rng, [1, groups * per_in, *spatial])
    w = floats(rng, [groups * per_in, per_out, *kernel])
    return Draw([x, w, floats(rng, [groups * per_out])], attributes, constant=[1, 2])


def max_pool(rng: Rng) -> Draw:
    """Draws a model of max pool."""
    spatial = [int(n) for n in rng.integers(4, 9, rng.integers(1, 4))]
    attributes = _windows(rng, spatial)
    if "pads" in attributes and rng.random() < 0.5:
        attributes["ceil_mode"] = 1
    if rng.random() < 0.5:
        attributes["storage_order"] = 1
    batch = int(rng.integers(1, 3))
    return Draw([floats(rng, [batch, 3, *spatial])], attributes, outputs=int(rng.integers(1, 3)))


def average_pool(rng: Rng) -> Draw:
    """Draws a model of average pool."""
    spatial = [int(n) for n in rng.integers(4, 9, rng.integers(1, 4))]
    attributes = _windows(rng, spatial)
    attributes.pop("dilations", None)
    attributes["count_include_pad"] = int(rng.integers(2))
    if "pads" in attributes and rng.random() < 0.4:
        attributes["ceil_mode"] = 1
    return Draw([floats(rng, [1, 3, *spatial])], attributes)


def global_pool(rng: Rng) -> Draw:
    """Draws a model of global pool."""
    return Draw([floats(rng, [2, 3, *(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))])])


def matmul(rng: Rng) -> Draw:
    """Draws a model of matmul."""
    m, k, n = (size(rng, 1, 9) for _ in range(3))
    batch = random_shape(rng, 0, 2, 4)
    left = [d if rng.random() < 0.7 else 1 for d in batch]
    a, b = floats(rng, [*left, m, k]), floats(rng, [*batch[int(rng.integers(0, 2)) :], k, n])
    return Draw([a, b], constant=[1] if rng.random() < 0.5 else [])


def gemm(rng: Rng) -> Draw:
    """Draws a model of gemm."""
    m, k, n = (size(rng, 1, 9) for _ in range(3))
    ta, tb = int(rng.integers(2)), int(rng.integers(2))
    a = floats(rng, [k, m] if ta else [m, k])
    b = floats(rng, [n, k] if tb else [k, n])
    c = floats(rng, ([n], [m, 1], [m, n], [1, n])[int(rng.integers(4))])
    attributes = {"transA": ta, "transB": tb, "alpha": 0.5, "beta": float(rng.choice([1.0, 0.25]))}
    inputs = [a, b, c] if rng.random() < 0.8 else [a, b]
    return Draw(inputs, attributes, constant=[1, 2] if rng.random() < 0.5 else [])


def batch_norm(rng: Rng) -> Draw:
    """Draws a model of batch norm."""
    x = floats(rng, [2, int(rng.integers(1, 6)), *random_shape(rng, 0, 3)])
    c = [x.shape[1]]
    stats = [floats(rng, c), floats(rng, c), floats(rng, c), np.abs(floats(rng, c)) + 1]
    return Draw([x, *stats], {"epsilon": float(rng.choice([1e-5, 0.1]))}, constant=[1, 2, 3, 4])


def instance_norm(rng: Rng) -> Draw:
    """Draws a model of instance norm."""
    x = floats(rng, [2, 3, *random_shape(rng, 1, 3, 6), 4])
    return Draw([x, floats(rng, [3]), floats(rng, [3])], {"epsilon": 1e-3}, constant=[1, 2])


def layer_norm(rng: Rng) -> Draw:
    """Draws a model of layer norm."""
    x = floats(rng, [*random_shape(rng, 1, 3), size(rng, 5, 6)])
    axis = int(rng.integers(1, x.ndim + 1)) - 1 if rng.random() < 0.5 else -1
    shape = x.shape[axis:]
    return Draw(
        [x, floats(rng, shape), floats(rng, shape)], {"axis": axis, "epsilon": 1e-3}, [1, 2]
    )


def lrn(rng: Rng) -> Draw:
    """Draws a model of lrn."""
    x = floats(rng, [1, int(rng.integers(2, 8)), 3, 4])
    return Draw([x], {"size": int(rng.integers(1, 7)), "alpha": 0.3, "beta": 0.6, "bias": 1.5})


def prelu(rng: Rng) -> Draw:
    """Draws a model of prelu."""
    x = floats(rng, [2, 3, *random_shape(rng, 1, 2)])
    shapes = [3, *[1] * (x.ndim - 2)], [1], x.shape[-1:], x.shape[1:]
    slope = floats(rng, shapes[int(rng.choice([0, 0, 1, 2, 3]))])
    return Draw([x, slope], constant=[1] if rng.random() < 0.6 else [])


def quantize(rng: Rng) -> Draw:
    """Draws a model of quantize."""
    x = np.asarray(rng.uniform(-4, 4, [2, 3, 4]), np.float32)
    if rng.random() < 0.25:  # beyond the range of floats of eight bits, too
        zero = np.zeros((), EIGHTS[int(rng.integers(len(EIGHTS)))])
        wide = np.resize(np.array(BEYOND_EIGHTS, np.float32), x.shape) / 8
        given = {"saturate": int(rng.integers(2))}
        return Draw([wide, np.array(0.125, np.float32), zero], given, [1, 2], opset=19)
    if rng.random() < 0.5:
        return Draw([x, np.array(0.037, np.float32), np.array(101, np.uint8)], {}, [1, 2])
    scale = np.asarray(rng.uniform(0.02, 0.06, 3), np.float32)
    axis = int(rng.integers(-3, 3))
    x = np.moveaxis(x, 1, axis).copy()
    if rng.random() < 0.3:  # as long along each axis
        x = np.asarray(rng.uniform(-4, 4, [3, 3, 3]), np.float32)
    return Draw([x, scale, np.array([3, -7, 0], np.int8)], {"axis": axis}, [1, 2])


def dequantize(rng: Rng) -> Draw:
    """Draws a model of dequantize."""
    if rng.random() < 0.15:
        kind = (ml_dtypes.int4, ml_dtypes.uint4)[int(rng.integers(2))]
        nibbles = np.asarray(rng.integers(0, 8, [2, 3, 4])).astype(kind)
        return Draw([nibbles, np.array(0.25, np.float32)], {}, [1], opset=21)
    if rng.random() < 0.15:
        whole = np.asarray(rng.integers(-128, 128, [2, 6]), np.int8)
        scales = np.asarray(rng.uniform(0.02, 0.06, [2, 2]), np.float32)
        return Draw([whole, scales], {"axis": 1, "block_size": 3}, [1], opset=21)
    axis = int(rng.integers(-3, 3))
    x = np.moveaxis(np.asarray(rng.integers(-128, 128, [2, 3, 4]), np.int8), 1, axis).copy()
    scale = np.asarray(rng.uniform(0.02, 0.06, 3), np.float32)
    inputs: list[Array | None] = [x, scale, np.array([3, -7, 0], np.int8)]
    if rng.random() < 0.2:
        given = {"axis": axis, "output_dtype": TensorProto.FLOAT16}
        return Draw(inputs, given, [1, 2], opset=23)
    return Draw(inputs, {"axis": axis}, [1, 2])


def einsum(rng: Rng) -> Draw:
    """Draws a model of einsum."""
    i, j, k = (int(n) for n in rng.integers(2, 6, 3))  # of one element, a diagonal is its sum
    equation, shapes = (
        ("ij,jk->ik", ([i, j], [j, k])),
        ("bij,bjk->bik", ([2, i, j], [2, j, k])),
        ("ij,ij->i", ([i, j], [i, j])),
        ("ij->ji", ([i, j],)),
        ("bj,ai", ([i, j], [k, i])),  # letters of the result in the order of the alphabet
        ("jk,ij", ([j, k], [i, j])),
        ("ii->i", ([i, i],)),
        ("ij,jk,kl->il", ([i, j], [j, k], [k, 2])),
        ("ij,ij->", ([i, j], [i, j])),
        ("...ij,jk->...ik", ([2, i, j], [j, k])),
        ("...i->...", ([2, i, j],)),
    )[int(rng.integers(11))]
    return Draw([floats(rng, shape) for shape in shapes], {"equation": equation})


def lstm(rng: Rng) -> Draw:
    """Draws a model of lstm."""
    directions = ("forward", "reverse", "bidirectional")[int(rng.integers(3))]
    d = 2 if directions == "bidirectional" else 1
    steps, batch, width, hidden = (int(n) for n in rng.integers(1, 5, 4))
    x = floats(rng, [steps, batch, width])
    w, r = floats(rng, [d, 4 * hidden, width]) / 2, floats(rng, [d, 4 * hidden, hidden]) / 2
    b = floats(rng, [d, 8 * hidden])
    given: dict[str, Any] = {"hidden_size": hidden, "direction": directions}
    rare = int(rng.integers(6))
    if rare == 0:
        given["clip"] = 0.2
    elif rare == 1:
        given["input_forget"] = 1
    elif rare == 2:
        given["activations"] = ["Sigmoid", "Relu", "Tanh"] * d
    elif rare == 3:
        given["activations"] = ["HardSigmoid", "LeakyRelu", "Tanh"] * d
        given["activation_alpha"], given["activation_beta"] = [0.3, 0.2] * d, [0.4] * d
    inputs: list[Array | None] = [x, w, r, b]
    if rng.random() < 0.5:
        lengths = np.asarray(rng.integers(1, steps + 1, batch), np.int32)
        state = floats(rng, [d, batch, hidden])
        peepholes = floats(rng, [d, 3 * hidden])
        inputs += [lengths, state, floats(rng, state.shape), peepholes][: int(rng.integers(1, 5))]
    return Draw(inputs, given, [1, 2, 3], 3)


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


def nll_loss(rng: Rng) -> Draw:
    """Draws NegativeLogLikelihoodLoss or SoftmaxCrossEntropyLoss."""
    target = integers(rng, 0, 4, 3, 2)
    given = {"reduction": one_of(rng, "none", "sum", "mean"), "ignore_index": int(target[0, 0])}
    return Draw([floats(rng, [3, 4, 2]), target, np.abs(floats(rng, [4])) + 1], given)


def determinant(rng: Rng) -> Draw:
    """Draws Det of matrices of one size."""
    size = int(rng.integers(1, 5))
    return Draw([floats(rng, [*random_shape(rng, 0, 2, 4), size, size])])
