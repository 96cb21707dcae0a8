"""Operators that cut blocks out of tensors: slices with begins, ends, steps and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.operation_site import FULL
from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("SLICE")
def slice_(at: Site) -> ir.Value:
    """A block of given begin and size; a size of -1 goes to the end."""
    rank = at.rank(0)
    axes = at.const(range(rank), np.int64)
    sizes, begins = at.constant(2), at.indices(1)
    if sizes is not None and begins.const_value is not None:
        starts = begins.const_value.numpy().reshape(-1)
        ends = np.where(sizes.reshape(-1) == -1, FULL, starts + sizes.reshape(-1))
        end = at.const(ends, np.int64)
    else:
        size = at.indices(2)
        open_end = at.emit("Equal", size, at.const(-1, np.int64))
        end = at.emit("Where", open_end, at.const(FULL, np.int64), at.emit("Add", begins, size))
    return at.carried(lambda values: at.emit("Slice", values[0], begins, end, axes))


@translates("STRIDED_SLICE")
def strided_slice(at: Site) -> ir.Value:
    """What Python's indexing with slices, numbers, ``None`` and ``...`` gives."""
    masks = {
        name: at.integer(f"{name}Mask", 0)
        for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")
    }
    count = at.dims(1)[0] if at.rank(1) == 1 else -1
    if not 0 <= count <= 16:
        raise at.error(f"the begin has shape {list(at.dims(1))}")
    rank = at.rank(0)
    given = count - (masks["NewAxis"] & ((1 << count) - 1)).bit_count()
    if masks["Ellipsis"]:
        given -= 1
    plan: list[tuple[int, int]] = []  # place in the index, axis of the input
    new, shrunk, axis, out = [], [], 0, 0
    for place in range(count):
        bit = 1 << place
        if masks["Ellipsis"] & bit:
            axis, out = axis + rank - given, out + rank - given
        elif masks["NewAxis"] & bit:
            new.append(out)
            out += 1
        else:
            plan.append((place, axis))
            if masks["ShrinkAxis"] & bit:
                shrunk.append(axis)
            else:
                out += 1
            axis += 1
    if axis > rank:
        raise at.error(f"an index of {count} entries does not fit {rank} axes")
    if not plan:
        bounds = None
    elif all(at.constant(index) is not None for index in (1, 2, 3)):
        bounds = _known_bounds(at, masks, plan)
    else:
        bounds = _computed_bounds(at, masks, plan)

    def write(values: list[ir.Value]) -> ir.Value:
        value = values[0]
        if bounds is not None:
            value = at.emit("Slice", value, *bounds)
        if shrunk:
            value = at.emit("Squeeze", value, at.const(shrunk, np.int64))
        return at.emit("Unsqueeze", value, at.const(new, np.int64)) if new else value

    return at.carried(write)


def _known_bounds(
    at: Site, masks: dict[str, int], plan: list[tuple[int, int]]
) -> list[ir.Value] | None:
    """Starts, ends, axes and steps of the axes that are cut at all."""
    begin, end, step = at.numbers(1), at.numbers(2), at.numbers(3)
    if at.flag("Offset", False):  # ends count from the begin, and may reach that of the axis
        sums = [first + length for first, length in zip(begin, end, strict=True)]
        end = [FULL if first < 0 <= last else last for first, last in zip(begin, sums, strict=True)]
    rows = []
    for place, axis in plan:
        bit, stride = 1 << place, step[place]
        if stride == 0:
            raise at.error("a step is 0")
        if masks["ShrinkAxis"] & bit:
            first = begin[place]
            rows.append((first, first + 1 if first != -1 else FULL, axis, 1))
            continue
        backward = stride < 0
        first = (FULL if backward else 0) if masks["Begin"] & bit else begin[place]
        last = (-FULL if backward else FULL) if masks["End"] & bit else end[place]
        if (first, last, stride) != (0, FULL, 1):
            rows.append((first, last, axis, stride))
    if not rows:
        return None
    return [at.const(column, np.int64) for column in zip(*rows, strict=True)]


def _computed_bounds(
    at: Site, masks: dict[str, int], plan: list[tuple[int, int]]
) -> list[ir.Value]:
    """The same where begin or end are computed; steps must be constants above zero."""
    step = at.numbers(3)
    if at.flag("Offset", False):
        raise at.error("computed ends that count from the begin are not read")
    if any(step[place] <= 0 for place, _ in plan):
        raise at.error(f"steps {step} with a computed begin or end are not read")
    places = at.const([place for place, _ in plan], np.int64)

    def ends(index: int, mask: str, open_end: int) -> ir.Value:
        value = at.emit("Gather", at.indices(index), places, axis=0)
        flags = [bool(masks[mask] & 1 << place) for place, _ in plan]
        if not any(flags):
            return value
        return at.emit("Where", at.const(flags), at.const(open_end, np.int64), value)

    begin = ends(1, "Begin", 0)
    end = ends(2, "End", FULL)
    shrinks = [bool(masks["ShrinkAxis"] & 1 << place) for place, _ in plan]
    if any(shrinks):
        one = at.const(1, np.int64)
        follow = at.emit("Add", begin, one)
        last = at.emit("Equal", begin, at.const(-1, np.int64))
        follow = at.emit("Where", last, at.const(FULL, np.int64), follow)
        end = at.emit("Where", at.const(shrinks), follow, end)
    axes = at.const([axis for _, axis in plan], np.int64)
    return [begin, end, axes, at.const([step[place] for place, _ in plan], np.int64)]
