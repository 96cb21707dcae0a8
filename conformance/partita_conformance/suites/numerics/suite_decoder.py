"""Suite ``decoder``: operators of onnxruntime that language models are made of, against REFERENCE.

A device that takes none of them declines; one that takes some must have them right.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import Check
from partita_conformance.draws.decoder import DECODER
from partita_conformance.draws.draw import Draw, WideRng
from partita_conformance.suites.numerics.drawn import draw_check

_EACH = 3
"""Draws of a check."""


def decoder_checks(count: int) -> list[Check]:
    """Checks of each operator, some with sizes that no vector divides."""
    return [
        draw_check(
            f"decoder/{name}/{number}",
            op,
            functools.partial(_draws, name, number),
            f"random models {number} of {name} against the reference",
        )
        for name, (op, _) in DECODER.items()
        for number in range(count)
    ]


def _draws(name: str, number: int, bench: Bench) -> list[tuple[str, Draw]]:
    del bench  # the draws are the same for every device
    _, draw = DECODER[name]
    kind = WideRng if number % 2 else np.random.Generator
    seeds = (zlib.crc32(f"decoder/{name}/{number}/{place}".encode()) for place in range(_EACH))
    return [(f"draw {seed}", draw(kind(np.random.PCG64(seed)))) for seed in seeds]
