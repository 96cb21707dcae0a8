"""Layers that move elements or make them up: shapes, slices, joins, pads, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates
from partita.frontends.openvino_ir.translators.blocks import blocks_from_depth, blocks_to_depth
from partita.frontends.operation_site import FULL

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("Reshape")
def reshape(at: Site) -> ir.Value:
    """Other dimensions; a zero copies one where ``special_zero`` says so."""
    return at.emit(
        "Reshape", at.inputs[0], at.indices(1), allowzero=int(not at.flag("special_zero"))
    )


@translates("Squeeze")
def squeeze(at: Site) -> ir.Value:
    """Axes of one element left out; others stay, named or not."""
    dims = at.dims(0)
    if at.has(1) and at.constant(1) is not None and min(dims, default=0) >= 0:
        axes = [axis for axis in at.axes(1, len(dims)) if dims[axis] == 1]
        if axes != at.axes(1, len(dims)):
            return at.emit("Squeeze", at.inputs[0], at.const(axes, np.int64))
    return at.emit("Squeeze", at.inputs[0], at.row(1) if at.has(1) else None)


@translates("Unsqueeze")
def unsqueeze(at: Site) -> ir.Value:
    """Axes of one element put in."""
    return at.emit("Unsqueeze", at.inputs[0], at.row(1))


@translates("Transpose")
def transpose(at: Site) -> ir.Value:
    """Axes in another order; none given reverses it."""
    order = at.axes(1)
    return at.emit("Transpose", at.inputs[0], perm=order or None)


@translates("ShapeOf")
def shape_of(at: Site) -> ir.Value:
    """The dimensions; the number of those is known whatever they are."""
    if (producer := at.inputs[0].producer()) is not None and producer.op_type == "Shape":
        return at.const(at.dims(0), at.output_type("output_type").numpy())
    return at.as_indices(at.emit("Shape", at.inputs[0]), "output_type")


@translates("Broadcast")
def broadcast(at: Site) -> ir.Value:
    """Repeated to a shape; explicit mode says which axes the input's are."""
    x = at.inputs[0]
    mode = at.one_of("mode", "numpy", ("numpy", "bidirectional", "explicit"))
    if mode == "explicit" and (rank := at.rank(0)):
        places = at.axes(2)
        target = at.dims(1)[0]
        if sorted(places) != places or target < 0 or len(places) != rank:
            raise at.error(f"axes {places} of {rank} in {target} dimensions are not read")
        missing = [axis for axis in range(target) if axis not in places]
        x = at.emit("Unsqueeze", x, at.const(missing, np.int64)) if missing else x
    return at.emit("Expand", x, at.indices(1))


@translates("Tile")
def tile(at: Site) -> ir.Value:
    """Repeated along axes; a missing leading axis counts as one on either side."""
    repeats = at.indices(1)
    count = at.dims(1)[0]
    x, rank = at.inputs[0], at.rank(0)
    if count > rank:
        x = at.emit("Unsqueeze", x, at.const(range(count - rank), np.int64))
    elif count < rank:
        ones = at.const(np.ones(rank - count), np.int64)
        repeats = at.emit("Concat", ones, repeats, axis=0)
    return at.emit("Tile", x, repeats)


@translates("Concat")
def concat(at: Site) -> ir.Value:
    """Joined along an axis."""
    return at.emit("Concat", *at.inputs, axis=at.integer("axis"))


@translates("Split")
def split(at: Site) -> Sequence[ir.Value]:
    """Equal parts along an axis."""
    count = at.integer("num_splits")
    return at.emit_many(
        "Split", count, at.inputs[0], axis=int(at.known(1).reshape(())), num_outputs=count
    )


@translates("VariadicSplit")
def variadic_split(at: Site) -> Sequence[ir.Value]:
    """Parts of given lengths along an axis; -1 stands for the rest."""
    axis = int(at.known(1).reshape(()))
    lengths, count = at.indices(2), at.dims(2)[0]
    given = at.constant(2)
    if given is None or -1 in given:
        rest = at.const(-1, np.int64)
        total = at.emit("ReduceSum", lengths, keepdims=0)  # with the -1 itself
        missing = at.emit("Sub", at.emit("Add", at.size(at.inputs[0], axis), rest), total)
        lengths = at.emit("Where", at.emit("Equal", lengths, rest), missing, lengths)
    return at.emit_many("Split", count, at.inputs[0], lengths, axis=axis)


@translates("Slice")
def slice_(at: Site) -> ir.Value:
    """From start to stop by steps, along all or given axes."""
    start, stop, step = (at.row(index) for index in (1, 2, 3))
    axes = at.row(4) if at.has(4) else at.const(range(at.dims(1)[0]), np.int64)
    return at.emit("Slice", at.inputs[0], start, stop, axes, step)


@translates("StridedSlice")
def strided_slice(at: Site) -> ir.Value:
    """A slice with masks, one entry per axis of input or output."""
    count = at.dims(1)[0]
    if count < 0:
        raise at.error("the number of axes is not known")
    masks = {
        name: np.resize(np.array([*at.ints(f"{name}_mask"), *[0] * count])[:count], count) != 0
        for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis")
    }
    steps = at.known(3).reshape(-1) if at.has(3) else np.ones(count, np.int64)
    sliced = count - int((masks["new_axis"] | masks["ellipsis"]).sum())
    starts, ends, axes, kept, squeezed, fresh = [], [], [], [], [], []
    axis = place = 0
    for i in range(count):
        if masks["ellipsis"][i]:
            axis += at.rank(0) - sliced
            place += at.rank(0) - sliced
            continue
        if masks["new_axis"][i]:
            fresh.append(place)
            place += 1
            continue
        forward = steps[i] > 0
        starts.append((i, (0 if forward else FULL) if masks["begin"][i] else None))
        shrink = bool(masks["shrink_axis"][i])
        ends.append((i, (FULL if forward else -FULL) if masks["end"][i] else None, shrink))
        axes.append(axis)
        kept.append(int(steps[i]))
        if shrink:
            squeezed.append(axis)
        else:
            place += 1
        axis += 1
    x = at.inputs[0]
    if axes:
        begin = _picked(at, 1, [(i, None if shrink else s) for (i, s), (_, _, shrink)
                                in zip(starts, ends, strict=True)])  # fmt: skip
        if squeezed:
            end = _after(at, begin, [shrink for _, _, shrink in ends],
                         _picked(at, 2, [(i, e) for i, e, _ in ends]))  # fmt: skip
        else:
            end = _picked(at, 2, [(i, e) for i, e, _ in ends])
        kept = [1 if shrink else step for step, (_, _, shrink) in zip(kept, ends, strict=True)]
        x = at.emit("Slice", x, begin, end, at.const(axes, np.int64), at.const(kept, np.int64))
    if squeezed:
        x = at.emit("Squeeze", x, at.const(squeezed, np.int64))
    return at.emit("Unsqueeze", x, at.const(fresh, np.int64)) if fresh else x


def _picked(at: Site, index: int, entries: Sequence[tuple[int, int | None]]) -> ir.Value:
    """Entries of an input, with those that are given put in their place."""
    array = at.constant(index)
    if array is not None:
        row = array.reshape(-1)
        return at.const([row[i] if fixed is None else fixed for i, fixed in entries], np.int64)
    places = at.const([i for i, _ in entries], np.int64)
    found = at.emit("Gather", at.indices(index), places, axis=0)
    fixed = [value for _, value in entries]
    if all(value is None for value in fixed):
        return found
    mask = at.const([value is not None for value in fixed])
    return at.emit("Where", mask, at.const([value or 0 for value in fixed], np.int64), found)


def _after(at: Site, begin: ir.Value, shrink: list[bool], end: ir.Value) -> ir.Value:
    """Ends of slices, those of one element just behind their beginnings."""
    following = at.emit("Add", begin, at.const([1], np.int64))
    wrapped = at.emit("Equal", following, at.const([0], np.int64))  # -1 is the last element
    following = at.emit("Where", wrapped, at.const([FULL], np.int64), following)
    return at.emit("Where", at.const(shrink), following, end)


@translates("Pad")
def pad(at: Site) -> ir.Value:
    """Elements added, or taken away, at both ends of every axis."""
    mode = at.one_of("pad_mode", "constant", ("constant", "edge", "reflect", "symmetric"))
    if mode == "symmetric":
        return _mirrored(at)
    begin, end = at.constant(1), at.constant(2)
    if begin is not None and end is not None:
        pads = at.const([*begin, *end], np.int64)
    else:
        pads = at.emit("Concat", at.indices(1), at.indices(2), axis=0)
    filling = at.inputs[3] if at.has(3) and mode == "constant" else None
    return at.emit("Pad", at.inputs[0], pads, filling, mode=mode)


def _mirrored(at: Site) -> ir.Value:
    """Pads that mirror the edge too: elements by index, which runs forth and back."""
    x, one = at.inputs[0], at.const(1, np.int64)
    for axis, (before, after) in enumerate(zip(at.axes(1), at.axes(2), strict=True)):
        if not before and not after:
            continue
        size = at.emit("Squeeze", at.size(x, axis))
        end = at.emit("Add", size, at.const(after, np.int64))
        twice = at.emit("Add", size, size)
        place = at.emit("Mod", at.emit("Range", at.const(-before, np.int64), end, one), twice)
        back = at.emit("Sub", at.emit("Sub", twice, one), place)
        x = at.emit("Gather", x, at.emit("Min", place, back), axis=axis)
    return x


@translates("Range")
def range_(at: Site) -> ir.Value:
    """From start to stop by steps."""
    kind = at.output_type("output_type", at.precision(0).lower().replace("fp", "f"))
    start, stop, step = (at.emit("Cast", value, to=kind) for value in at.inputs)
    return at.emit("Range", start, stop, step)


@translates("DepthToSpace")
def depth_to_space(at: Site) -> ir.Value:
    """Channels laid out as blocks."""
    mode = at.one_of("mode", "blocks_first", {"blocks_first": "DCR", "depth_first": "CRD"})
    if at.rank(0) != 4:
        return blocks_from_depth(at, at.integer("block_size", 1), blocks_first=mode == "DCR")
    return at.emit("DepthToSpace", at.inputs[0], blocksize=at.integer("block_size", 1), mode=mode)


@translates("SpaceToDepth")
def space_to_depth(at: Site) -> ir.Value:
    """Blocks laid out as channels."""
    first = at.one_of("mode", "blocks_first", {"blocks_first": True, "depth_first": False})
    if at.rank(0) != 4 or not first:
        return blocks_to_depth(at, at.integer("block_size", 1), blocks_first=first)
    return at.emit("SpaceToDepth", at.inputs[0], blocksize=at.integer("block_size", 1))


@translates("ShuffleChannels")
def shuffle_channels(at: Site) -> ir.Value:
    """Channels of groups taken by turns."""
    axis, group, rank = at.integer("axis", 1) % at.rank(0), at.integer("group", 1), at.rank(0)
    x = at.inputs[0]
    shape = at.emit("Shape", x)
    sizes = [at.const([0], np.int64)] * axis + [at.const([group, -1], np.int64)]
    if axis + 1 < rank:
        sizes.append(at.emit("Shape", x, start=axis + 1))
    parted = at.emit("Reshape", x, at.emit("Concat", *sizes, axis=0))
    order = list(range(rank + 1))
    order[axis], order[axis + 1] = order[axis + 1], order[axis]
    return at.emit("Reshape", at.emit("Transpose", parted, perm=order), shape)


@translates("Reverse")
def reverse(at: Site) -> ir.Value:
    """Axes the other way round."""
    axes = at.known(1).reshape(-1)
    if at.text("mode", "index") == "mask":
        axes = np.flatnonzero(axes)
    x = at.inputs[0]
    for axis in axes:
        x = at.reversed(x, int(axis))
    return x


@translates("ReverseSequence")
def reverse_sequence(at: Site) -> ir.Value:
    """The first elements of every sequence the other way round."""
    rank = at.rank(0)
    batch, time = at.integer("batch_axis", 0) % rank, at.integer("seq_axis", 1) % rank
    if sorted((batch, time)) == [0, 1]:
        axes = {"batch_axis": batch, "time_axis": time}
        return at.emit("ReverseSequence", at.inputs[0], at.indices(1), **axes)
    order = [batch, time, *(axis for axis in range(rank) if axis not in (batch, time))]
    front = at.emit("Transpose", at.inputs[0], perm=order)
    found = at.emit("ReverseSequence", front, at.indices(1), batch_axis=0, time_axis=1)
    return at.emit("Transpose", found, perm=[int(place) for place in np.argsort(order)])


@translates("Roll")
def roll(at: Site) -> ir.Value:
    """Elements moved along axes; those that leave at one end come in at the other."""
    x, shifts = at.inputs[0], at.row(1)
    axes = at.axes(2, at.rank(0))
    count = at.constant(1)
    for place, axis in enumerate(axes):
        one = place if count is None or count.size == len(axes) else 0  # one for all axes
        picked = [at.const([number], np.int64) for number in (one, one + 1)]
        shift = at.emit("Slice", shifts, *picked)
        start = at.emit("Mod", at.emit("Neg", shift), at.size(x, axis))
        along, end = at.const([axis], np.int64), at.const([FULL], np.int64)
        tail = at.emit("Slice", x, start, end, along)
        head = at.emit("Slice", x, at.const([0], np.int64), start, along)
        x = at.emit("Concat", tail, head, axis=axis)
    return x


@translates("Eye")
def eye(at: Site) -> ir.Value:
    """Ones on a diagonal, in a matrix or in each of a batch of them."""
    zero, one = at.const(0, np.int64), at.const(1, np.int64)
    scalar = at.const([], np.int64)
    rows, columns, shift = (at.emit("Reshape", at.indices(i), scalar) for i in range(3))
    down = at.emit("Unsqueeze", at.emit("Range", zero, rows, one), at.const([1], np.int64))
    across = at.emit("Range", zero, columns, one)
    on = at.emit("Equal", at.emit("Sub", across, down), shift)
    found = at.emit("Cast", on, to=at.output_type("output_type"))
    if not at.has(3):
        return found
    each = at.emit("Concat", at.row(3), at.emit("Shape", found), axis=0)
    return at.emit("Expand", found, each)
