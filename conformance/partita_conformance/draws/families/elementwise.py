"""Random models of operators that work on each element, and of reductions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita_conformance.draws.casts import one_to_eight_bits
from partita_conformance.draws.draw import (
    Array,
    Draw,
    Generator,
    Rng,
    bools,
    floats,
    ints,
    one_of,
    random_axis,
    random_shape,
)


def unary(low: float = -3, high: float = 3, **choices: Sequence[Any]) -> Generator:
    """Draws a model of unary."""

    def generate(rng: Rng) -> Draw:
        x = np.asarray(rng.uniform(low, high, random_shape(rng)), np.float32)
        attributes = {
            name: values[int(rng.integers(len(values)))] for name, values in choices.items()
        }
        return Draw([x], {k: v for k, v in attributes.items() if v is not None})

    return generate


def binary(kind: Callable[[Rng, Sequence[int]], Array] = floats, away: float = 0) -> Generator:
    """Two inputs of shapes that broadcast, in either direction."""

    def generate(rng: Rng) -> Draw:
        full = random_shape(rng)
        shapes = []
        for _ in range(2):
            kept = [n if rng.random() < 0.7 else 1 for n in full]
            shapes.append(
                kept[int(rng.integers(0, len(kept) + 1)) :] if rng.random() < 0.3 else kept
            )
        shapes[int(rng.integers(2))] = full
        a, b = (kind(rng, shape) for shape in shapes)
        if away:
            b = np.asarray(np.sign(b) * (np.abs(b) + away), b.dtype)
        return Draw([a, b], constant=[int(rng.integers(2))] if rng.random() < 0.3 else [])

    return generate


def small_ints(rng: Rng, shape: Sequence[int]) -> Array:
    """Draws a model of small ints."""
    return ints(rng, -3, 4, tuple(shape))


def reduction(rng: Rng) -> Draw:
    """Draws a model of reduction."""
    x = floats(rng, random_shape(rng, 2)) + np.float32(0.1)
    chosen = [i for i in range(x.ndim) if rng.random() < 0.5]
    attributes: dict[str, Any] = {"keepdims": int(rng.integers(2))}
    axes = [i - x.ndim if rng.random() < 0.3 else i for i in chosen]
    if rng.random() < 0.3:  # since opset 18 axes are an input
        if not axes or rng.random() < 0.3:
            return Draw([x], {**attributes, "noop_with_empty_axes": 1}, opset=18)
        return Draw([x, np.array(axes, np.int64)], attributes, [1], opset=18)
    if axes:
        attributes["axes"] = axes
    return Draw([x], attributes)


def reduction_of_positives(rng: Rng) -> Draw:
    """Draws a model of reduction of positives."""
    result = reduction(rng)
    assert result.inputs[0] is not None  # noqa: S101  # drawn above
    positive = np.abs(result.inputs[0]) + np.float32(0.1)
    return dataclasses.replace(result, inputs=[positive, *result.inputs[1:]])


def reduce_sum(rng: Rng) -> Draw:
    """Draws a model of reduce sum."""
    result = reduction(rng)
    if result.opset == 18:
        return dataclasses.replace(result, opset=17)
    axes = result.attributes.pop("axes", None)
    if not axes and rng.random() < 0.5:
        result.attributes["noop_with_empty_axes"] = 1
    inputs = [result.inputs[0]] + ([np.array(axes, np.int64)] if axes else [])
    return Draw(inputs, result.attributes, constant=[1])


def arg(rng: Rng) -> Draw:
    """Draws a model of arg, of numbers of which many are equal."""
    x = np.round(floats(rng, random_shape(rng, 2)) * 2) / 2
    given = {"axis": random_axis(rng, x.ndim), "keepdims": int(rng.integers(2))}
    return Draw([x], {**given, "select_last_index": int(rng.integers(2))})


def along_axis(rng: Rng) -> Draw:
    """Draws a model of along axis."""
    x = floats(rng, random_shape(rng, 2))
    return Draw([x], {"axis": random_axis(rng, x.ndim)})


def clip(rng: Rng) -> Draw:
    """Draws a model of clip."""
    low, high = np.array(-0.5, np.float32), np.array(0.8, np.float32)
    x = floats(rng, random_shape(rng))
    return Draw(([x, low, high], [x, None, high], [x, low])[int(rng.integers(3))], constant=[1, 2])


def where(rng: Rng) -> Draw:
    """Draws a model of where."""
    both = binary()(rng)
    shape = list(np.broadcast_shapes(*(a.shape for a in both.inputs if a is not None)))
    kept = [n if rng.random() < 0.7 else 1 for n in shape]
    return Draw([bools(rng, kept[int(rng.integers(0, 2)) :]), *both.inputs])


def cast(rng: Rng) -> Draw:
    """Draws a model of cast."""
    if rng.random() < 0.15:
        return one_to_eight_bits(rng, "Cast")
    signed = (7, 6, 9, 11, 10, 1, 16, 3, 5)  # into unsigned types only what is not below zero
    to = int(rng.choice((*signed, 2, 4, 12, 13)))
    x = np.asarray(rng.uniform(-90 if to in signed else 0, 90, random_shape(rng)), np.float32)
    x[rng.random(x.shape) < 0.2] *= 0.005  # below one, and not nothing
    return Draw([x], {"to": to})


def several(rng: Rng) -> Draw:
    """Draws a model of several inputs of one shape."""
    shape = random_shape(rng)
    count = int(rng.choice((1, 2, 3, 4, 5, 9)))
    return Draw([floats(rng, shape) for _ in range(count)])


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


def shrink(rng: Rng) -> Draw:
    """Draws Shrink."""
    given = {"lambd": one_of(rng, 0.5, 1.0), "bias": one_of(rng, 0.0, 0.3)}
    return Draw([floats(rng, random_shape(rng))], given)


def dropout(rng: Rng) -> Draw:
    """Draws Dropout, which does nothing but in training."""
    return Draw([floats(rng, random_shape(rng))])


def cast_like(rng: Rng) -> Draw:
    """Draws CastLike."""
    if rng.random() < 0.25:
        return one_to_eight_bits(rng, "CastLike")
    x = np.asarray(rng.uniform(0, 90, random_shape(rng)), np.float32)
    return Draw([x, np.zeros(1, one_of(rng, np.int64, np.uint8, np.float64, np.bool_))])
