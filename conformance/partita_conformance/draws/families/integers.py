"""Random models of products of whole numbers, and of what quantizes them."""

from __future__ import annotations

import numpy as np

from partita_conformance.draws.draw import Draw, Rng, floats, integers, one_of, random_shape, scalar


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
