"""Draws of operators on images, volumes and rows of a shape that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw, Rng, floats, ints, one_of

Shape = Sequence[int]
_LEAST_RANK = 3
"""Batch, channels, and one axis that windows move along."""


def _blank(shape: Shape) -> Array:
    """What stands for the value that is known, whose elements nobody reads here."""
    return np.zeros(tuple(shape), np.float32)


def _windows(rng: Rng, shape: Shape) -> dict[str, Any]:
    """Kernel, strides and pads, of which some end in other numbers than they begin with."""
    spatial = shape[2:]
    kernel = [int(rng.integers(1, min(n, 3) + 1)) for n in spatial]
    given: dict[str, Any] = {"kernel_shape": kernel}
    if rng.random() < 0.5:
        given["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    elif rng.random() < 0.3:
        given["auto_pad"] = one_of(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    if rng.random() < 0.3:
        given["strides"] = [int(n) for n in rng.integers(1, 3, len(spatial))]
    if "auto_pad" not in given and rng.random() < 0.2:
        fits = zip(kernel, spatial, strict=True)
        given["dilations"] = [2 if (k - 1) * 2 < n else 1 for k, n in fits]
    return given


def _groups(rng: Rng, channels: int) -> int:
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    between = divisors[1:-1] if rng.random() < 0.5 else []
    return int(rng.choice(between or divisors))


def conv(rng: Rng, shape: Shape) -> Draw | None:
    """Conv of any groups, each of which may give several channels."""
    if len(shape) < _LEAST_RANK:
        return None
    given = _windows(rng, shape)
    group = _groups(rng, shape[1])
    weights = floats(rng, [group * one_of(rng, 1, 2, 3), shape[1] // group, *given["kernel_shape"]])
    bias = [floats(rng, weights.shape[:1])] if rng.random() < 0.5 else []
    return Draw([_blank(shape), weights, *bias], {**given, "group": group}, [1, 2])


def conv_transpose(rng: Rng, shape: Shape) -> Draw | None:
    """ConvTranspose of any groups, of several channels each."""
    if len(shape) < _LEAST_RANK:
        return None
    group = _groups(rng, shape[1])
    kernel = [int(k) for k in rng.integers(1, 4, len(shape) - 2)]
    given: dict[str, Any] = {"kernel_shape": kernel, "group": group}
    sides = [int(n) for n in rng.integers(0, 2, 2 * len(kernel))]
    given |= one_of(
        rng,
        {},
        {"strides": [2] * len(kernel)},
        {"pads": [0 if k == 1 else side for k, side in zip(kernel * 2, sides, strict=True)]},
        {"strides": [2] * len(kernel), "output_padding": sides[: len(kernel)]},
        {"dilations": [2] * len(kernel)},
        {"auto_pad": one_of(rng, "SAME_UPPER", "SAME_LOWER"), "strides": [2] * len(kernel)},
    )
    per_group = one_of(rng, 1, 2, 3)
    weights = floats(rng, [shape[1], per_group, *kernel])
    bias = [floats(rng, [group * per_group])] if rng.random() < 0.5 else []
    return Draw([_blank(shape), weights, *bias], given, [1, 2])


def max_pool(rng: Rng, shape: Shape) -> Draw | None:
    """MaxPool."""
    if len(shape) < _LEAST_RANK:
        return None
    rounded = {"ceil_mode": 1} if rng.random() < 0.1 else {}
    return Draw([_blank(shape)], {**_windows(rng, shape), **rounded})


def average_pool(rng: Rng, shape: Shape) -> Draw | None:
    """AveragePool."""
    if len(shape) < _LEAST_RANK:
        return None
    given = {**_windows(rng, shape), "count_include_pad": int(rng.integers(2))}
    newer = "dilations" in given
    return Draw([_blank(shape)], given, opset=19 if newer else 17)


def global_pool(rng: Rng, shape: Shape) -> Draw | None:
    """GlobalAveragePool and GlobalMaxPool."""
    return Draw([_blank(shape)]) if len(shape) >= _LEAST_RANK else None


def batch_norm(rng: Rng, shape: Shape) -> Draw | None:
    """BatchNormalization of different numbers for each channel."""
    if len(shape) < 2:  # batch and channels
        return None
    numbers = [floats(rng, [shape[1]]) for _ in range(4)]
    numbers[3] = np.abs(numbers[3]) + np.float32(0.5)
    given = {"epsilon": one_of(rng, 1e-5, 0.1)}
    return Draw([_blank(shape), *numbers], given, range(1, 5))


def instance_norm(rng: Rng, shape: Shape) -> Draw | None:
    """InstanceNormalization."""
    if len(shape) < _LEAST_RANK or np.prod(shape[2:]) < 4:  # of few, noise
        return None
    numbers = [floats(rng, [shape[1]]) for _ in range(2)]
    return Draw([_blank(shape), *numbers], {"epsilon": one_of(rng, 0.01, 0.3)}, [1, 2])


def layer_norm(rng: Rng, shape: Shape) -> Draw | None:
    """LayerNormalization from an axis on."""
    if not shape:
        return None
    axis = int(rng.integers(-len(shape), len(shape)))
    if np.prod(shape[axis:]) < 3:  # of few, noise
        return None
    numbers = [floats(rng, shape[axis:]) for _ in range(one_of(rng, 1, 2))]
    return Draw(
        [_blank(shape), *numbers], {"axis": axis, "epsilon": one_of(rng, 0.01, 0.3)}, [1, 2]
    )


def prelu(rng: Rng, shape: Shape) -> Draw | None:
    """PRelu, its slopes of channels, columns or all."""
    if not shape:
        return None
    slopes = [[1], shape[-1:], shape]
    if len(shape) >= _LEAST_RANK:
        slopes.append([shape[1], *[1] * (len(shape) - 2)])
    return Draw([_blank(shape), floats(rng, one_of(rng, *slopes))], {}, [1])


def depth_to_space(rng: Rng, shape: Shape) -> Draw | None:
    """DepthToSpace of either mode."""
    if len(shape) != 4 or shape[1] % 4:  # an image, of blocks of four
        return None
    return Draw([_blank(shape)], {"blocksize": 2, "mode": one_of(rng, "DCR", "CRD")})


def space_to_depth(rng: Rng, shape: Shape) -> Draw | None:
    """SpaceToDepth."""
    if len(shape) != 4 or shape[2] % 2 or shape[3] % 2:  # an image
        return None
    return Draw([_blank(shape)], {"blocksize": 2})


def resize(rng: Rng, shape: Shape) -> Draw | None:
    """Resize of the last axes, by factors or to sizes."""
    if len(shape) != 4:  # an image
        return None
    given = one_of(
        rng,
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    )
    given = {**given, **({"nearest_mode": "floor"} if given["mode"] == "nearest" else {})}
    if rng.random() < 0.5:
        factors = np.array([1, 1, *rng.choice([1, 2, 3], 2)], np.float32)
        return Draw([_blank(shape), None, factors], given, [2])
    sizes = np.array([*shape[:2], *(n * int(rng.integers(1, 4)) for n in shape[2:])], np.int64)
    return Draw([_blank(shape), None, None, sizes], given, [3])


def pad(rng: Rng, shape: Shape) -> Draw | None:
    """Pad of each mode, also of images alone, with and without a value, and of what is cut off."""
    if not shape:
        return None
    mode = one_of(rng, "constant", "constant", "edge", "reflect", "reflect")
    most = [min(2, n - 1) if mode == "reflect" else 2 for n in shape]
    still = 2 if len(shape) >= _LEAST_RANK and rng.random() < 0.6 else 0
    wide = [0 if axis < still else m for axis, m in enumerate(most)]
    pads = ints(rng, 0, 3, 2 * len(shape)) % (np.array(wide * 2) + 1)
    if mode == "constant" and rng.random() < 0.3 and shape[-1] > 1:
        pads[int(rng.choice([-1, len(shape) - 1]))] = -1
    value = [np.array(one_of(rng, 0.0, 1.5, -2.0), np.float32)] if mode == "constant" else []
    value = value if rng.random() < 0.6 else []
    if rng.random() < 0.5:
        return Draw([_blank(shape), pads, *value], {"mode": mode}, [1, 2])
    axes = rng.permutation(len(shape))[: one_of(rng, len(shape), len(shape), 1, 2)]
    named = [_blank(shape), pads.reshape(2, -1)[:, axes].ravel(), *value, *[None] * (not value)]
    return Draw([*named, axes.astype(np.int64)], {"mode": mode}, [1, 2, 3], opset=18)
