"""Results of discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.lowering.geometry.fourier import dft_axis, resolve_dft, resolve_stft
from partita.lowering.graph import Node
from partita.lowering.shapes.results.rule import ResultRules, any_unknown, number_of

FOURIER_RESULTS = ResultRules()


@FOURIER_RESULTS.shape("DFT")
def _dft(node: Node, operands: Any) -> Sequence[int] | None:
    x, length, axis = [*operands, None, None][:3]
    if any_unknown(length, axis):
        return None
    return resolve_dft(node, x.shape, number_of(length), dft_axis(node, number_of(axis))).shape


@FOURIER_RESULTS.shape("STFT")
def _stft(node: Node, operands: Any) -> Sequence[int] | None:
    signal, step, window, length = [*operands, None, None][:4]
    if any_unknown(step, length):
        return None
    size = None if window is None else window.size
    return resolve_stft(node, signal.shape, step.const.item(), size, number_of(length)).shape
