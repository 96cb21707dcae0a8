"""Demands of discrete Fourier transforms."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import Demand, Shapes, first_of, holds

FOURIER_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, FOURIER_DEMANDS)


@_demand("DFT")
def _dft(node: Node, shapes: Shapes) -> Iterable[str]:
    x = first_of(shapes)
    if len(x) < 2 or x[-1] not in (1, 2):
        yield "its input ends with the parts of a number: 1 of a real one, 2 of a complex one"
    yield from holds("dft_length", shapes[1], 1)
    yield from holds("axis", shapes[2], 1)


@_demand("STFT")
def _stft(node: Node, shapes: Shapes) -> Iterable[str]:
    signal, window = first_of(shapes), shapes[2]
    if len(signal) not in (2, 3) or (len(signal) == 3 and signal[2] not in (1, 2)):
        yield "the signal is batch by samples, perhaps by the parts of a sample, 1 or 2"
    if window is not None and len(window) != 1:
        yield "the window is to have one dimension"
    yield from holds("frame_step", shapes[1], 1)
    yield from holds("frame_length", shapes[3], 1)
