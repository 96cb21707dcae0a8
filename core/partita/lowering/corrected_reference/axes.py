"""Axes that a tensor does not have, which ``onnx.reference`` takes by a remainder or ignores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx.defs
from onnx.reference.op_run import OpRun


class NamedAxes(NamedTuple):
    """Where an operator names axes of its first input.

    Attributes:
        attribute: The attribute that holds one or several.
        place: The input that does so instead; 0 if there is none.
        ends: Whether the rank itself is allowed, as the end of all axes.
    """

    attribute: str
    place: int = 0
    ends: bool = False


NAMED_AXES = {
    "CenterCropPad": NamedAxes("axes"),
    "Concat": NamedAxes("axis"),
    "DFT": NamedAxes("axis", 2),
    "Flatten": NamedAxes("axis", ends=True),
    "Gather": NamedAxes("axis"),
    "GatherElements": NamedAxes("axis"),
    "LayerNormalization": NamedAxes("axis"),
    "LpNormalization": NamedAxes("axis"),
    "Pad": NamedAxes("axes", 3),
    "RMSNormalization": NamedAxes("axis"),
    "Scatter": NamedAxes("axis"),
    "ScatterElements": NamedAxes("axis"),
    "Slice": NamedAxes("axes", 3),
    "TensorScatter": NamedAxes("axis"),
    "TopK": NamedAxes("axis"),
    "Unique": NamedAxes("axis"),
}
"""Operators whose originals do not look; the others index by what they are given, and fail."""


def with_checked_axes(base: type[OpRun], op_type: str) -> type[OpRun]:
    """The operator, which refuses axes that its first input does not have as an IndexError."""
    where = NAMED_AXES[op_type]

    class Checked(base):  # type: ignore[valid-type,misc]  # made for each operator
        op_schema = schema_of(base, op_type)  # decides which defaults there are

        def _run(self, *inputs: Any, **given: Any) -> tuple[Any, ...]:
            axes = given.get(where.attribute)
            if axes is None and 0 < where.place < len(inputs):
                axes = inputs[where.place]
            rank = np.ndim(inputs[0])
            for axis in [] if axes is None else np.ravel(axes).tolist():
                if not where.ends or axis != rank:
                    axis_of(rank, axis)
            return tuple(super()._run(*inputs, **given))

    Checked.__name__ = op_type
    return Checked


def with_reduced_axes(base: type[OpRun], op_type: str) -> type[OpRun]:
    """The reduction, which takes an axis that is named twice, and any axis of a scalar.

    ``partita.lowering.geometry.axes.reduced_axes`` says the same for kernels.
    """

    class Reducing(base):  # type: ignore[valid-type,misc]  # made for each operator
        op_schema = schema_of(base, op_type)

        def _run(self, x: Any, *others: Any, **given: Any) -> tuple[Any, ...]:
            named = others[0] if others else given.get("axes")
            axes = [] if named is None else np.ravel(named).tolist()
            if not axes:
                return tuple(super()._run(x, *others, **given))
            rank = np.ndim(x)
            along = sorted({axis_of(rank, axis) for axis in axes}) if rank else [0]
            if others:
                others = (np.array(along, np.int64), *others[1:])
            else:
                given["axes"] = tuple(along)
            (y,) = super()._run(x if rank else np.reshape(x, 1), *others, **given)
            return (y if rank else np.reshape(y, ()),)

    Reducing.__name__ = op_type
    return Reducing


def axis_of(rank: int, axis: int) -> int:
    """The axis counted from the front.

    Raises:
        IndexError: A tensor of this rank has no such axis.
    """
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} is out of range for {rank} dimensions")
    return axis % rank


def schema_of(base: type[OpRun], op_type: str) -> onnx.defs.OpSchema:
    """Of the version that a class is named after, or of the last, as the evaluator finds it."""
    found: onnx.defs.OpSchema | None = getattr(base, "op_schema", None)
    if found is not None:
        return found
    version = base.__name__.rpartition("_")[2]
    return onnx.defs.get_schema(op_type, *((int(version), "") if version.isdigit() else ()))
