"""How long Fourier transforms are, how many there are, and the shape of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.errors import OperandError
from partita.lowering.graph import Node


@dataclass(frozen=True)
class Transforms:
    """The transforms of a DFT.

    Attributes:
        axis: The dimension that they run along, counted from 0.
        length: Points of each: numbers that are beyond it are left out, missing ones are zero.
        shape: Of the result.
    """

    axis: int
    length: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Frames:
    """The frames of an STFT, which are transformed each by itself.

    Attributes:
        step: From the begin of one to that of the next; at least 1.
        length: Of each, which is also that of its transform; at least 1.
        shape: Of the result: batch, frames, frequencies, 2.
    """

    step: int
    length: int
    shape: tuple[int, ...]


def dft_axis(node: Node, given: int | None) -> int:
    """The axis of a DFT as the model has it; ``given`` is that of its input, if it has one."""
    if node.version < 20:
        return int(node.attrs.get("axis", 1))
    return -2 if given is None else given


def resolve_dft(node: Node, shape: Sequence[int], length: int | None, axis: int) -> Transforms:
    """What a DFT transforms.

    Args:
        node: The operation.
        shape: Of its input; the last dimension is 1 for real numbers, 2 for complex ones.
        length: Its ``dft_length``, or ``None``.
        axis: Its axis, which may be negative.

    Raises:
        OperandError: There is no such axis, or a transform of no points is to have results.
    """
    rank = len(shape)
    if not -rank <= axis < rank - 1 or axis == -1:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has axis {axis}; its input of shape "
            f"{list(shape)} takes {-rank} to {rank - 2}, but for -1: its last dimension holds the "
            "parts of a number."
        )
    axis %= rank
    half, inverse = bool(node.attrs.get("onesided", 0)), bool(node.attrs.get("inverse", 0))
    points = shape[axis]
    if length is not None:
        points = length
    elif half and inverse:
        points = 2 * (points - 1)
    if (half or length is not None) and points < 1:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) transforms {points} points of an input "
            f"of shape {list(shape)} along dimension {axis}; dft_length is to be at least 1."
        )
    bins = points // 2 + 1 if half and not inverse else points
    parts = 1 if half and inverse else 2
    return Transforms(axis, points, (*shape[:axis], bins, *shape[axis + 1 : -1], parts))


def resolve_stft(
    node: Node, signal: Sequence[int], step: int, window: int | None, length: int | None
) -> Frames:
    """Which frames an STFT takes of its signal.

    Args:
        node: The operation.
        signal: Shape of the signal: batch, samples, and perhaps the parts of a sample.
        step: Its ``frame_step``.
        window: How many elements its window has, or ``None``.
        length: Its ``frame_length``, or ``None``.

    Raises:
        OperandError: Step, length, window and signal do not fit.
    """
    batch, samples = signal[:2]
    if length is None:
        length = samples if window is None else window
    if window is not None and window != length:
        raise OperandError(
            f"Operation '{node.name}' (STFT) has a window of {window} elements for frames of "
            f"{length} samples; the two must be equal."
        )
    if step < 1 or length < 1:
        raise OperandError(
            f"Operation '{node.name}' (STFT) takes frames of {length} samples in steps of {step}; "
            "both must be at least 1."
        )
    if samples < length:
        raise OperandError(
            f"Operation '{node.name}' (STFT) takes frames of {length} samples of a signal of "
            f"{samples}; pad the signal to one frame at least."
        )
    bins = length // 2 + 1 if node.attrs.get("onesided", 1) else length
    return Frames(step, length, (batch, (samples - length) // step + 1, bins, 2))
