"""Random models of operators that return sizes, or take sizes to make tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_conformance.draws.draw import Draw, Rng, floats, one_of, random_shape, scalar


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
