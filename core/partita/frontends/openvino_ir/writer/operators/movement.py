"""Operators that move elements or make them up: shapes, slices, joins, pads, ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.frontends.openvino_ir.writer.document import Output
from partita.frontends.openvino_ir.writer.writing_context import Site, writes


@writes("Reshape")
def reshape(at: Site) -> Output:
    """Other dimensions; a zero copies one."""
    return at.emit("Reshape", at.read(0), at.read(1), special_zero=not at.integer("allowzero"))


@writes("Flatten")
def flatten(at: Site) -> Output:
    """Two dimensions, parted at an axis."""
    x, rank = at.read(0), at.rank()
    axis = at.integer("axis", 1)
    axis += rank if axis < 0 else 0
    dims = x.dims or ()
    if axis <= 1:
        shape = [1, -1] if axis == 0 else [0, -1]
    elif min(dims[:axis]) >= 0:
        shape = [int(np.prod(dims[:axis])), -1]
    elif min(dims[axis:], default=0) >= 0:
        shape = [-1, int(np.prod(dims[axis:]))]
    else:
        raise at.error("neither side of the axis has known dimensions")
    return at.emit("Reshape", x, at.const(shape, np.int64), special_zero=True)


@writes("Squeeze", "Unsqueeze")
def squeeze(at: Site) -> Output:
    """Axes of one element left out, or put in."""
    axes = at.axes(1)
    return at.emit(at.node.op_type, at.read(0), *([] if axes is None else [axes]))


@writes("Transpose")
def transpose(at: Site) -> Output:
    """Axes in another order."""
    order = at.ints("perm") or list(reversed(range(at.rank())))
    return at.emit("Transpose", at.read(0), at.const(order, np.int64))


@writes("Shape")
def shape(at: Site) -> Output:
    """The dimensions, or those of a range of axes."""
    start, end = at.integer("start"), at.node.attributes.get("end")
    made = at.result()
    if not start and end is None:
        return at.emit("ShapeOf", at.read(0), version="opset3", output_type="i64")
    rank = at.rank()
    whole = at.emit(
        "ShapeOf", at.read(0), version="opset3", made=(made[0], (rank,)), output_type="i64"
    )
    stop = rank if end is None else end.as_int()
    ends = (at.const([number], np.int64) for number in (start, stop, 1, 0))
    return at.emit("Slice", whole, *ends, version="opset8")


@writes("Size")
def size(at: Site) -> Output:
    """The number of elements."""
    dtype, _ = at.result()
    dims = at.emit(
        "ShapeOf", at.read(0), version="opset3", made=(dtype, (at.rank(),)), output_type="i64"
    )
    return at.emit("ReduceProd", dims, at.const([0], np.int64), keep_dims=False)


@writes("Expand")
def expand(at: Site) -> Output:
    """Repeated to a shape; a one in either becomes what the other has."""
    return at.emit("Broadcast", at.read(0), at.read(1), version="opset3", mode="bidirectional")


@writes("ConstantOfShape")
def constant_of_shape(at: Site) -> Output:
    """One number everywhere."""
    value = at.node.attributes.get("value")
    number = np.zeros((), np.float32) if value is None else value.as_tensor().numpy().reshape(())
    return at.emit("Broadcast", at.const(number), at.read(0), version="opset3", mode="numpy")


@writes("Tile")
def tile(at: Site) -> Output:
    """Repeated along axes."""
    return at.emit("Tile", at.read(0), at.read(1))


@writes("Concat")
def concat(at: Site) -> Output:
    """Joined along an axis."""
    given = (at.read(index) for index in range(len(at.inputs)))
    return at.emit("Concat", *given, axis=at.integer("axis"))


@writes("Split")
def split(at: Site) -> Sequence[Output]:
    """Parts along an axis: of given lengths, or as equal as can be."""
    axis = at.const(at.integer("axis"), np.int64)
    count = len(at.node.outputs)
    made = [at.result(place) for place in range(count)]
    if at.has(1):
        lengths = at.read(1)
    else:
        size = (at.read(0).dims or ())[at.integer("axis")]
        if size < 0:
            return at.emit_many("Split", made, at.read(0), axis, num_splits=count)
        part = -(-size // count)
        lengths = at.const([part] * (count - 1) + [size - part * (count - 1)], np.int64)
    return at.emit_many("VariadicSplit", made, at.read(0), axis, lengths)


@writes("Slice")
def slice_(at: Site) -> Output:
    """From start to end by steps, along some axes."""
    starts, ends = at.read(1), at.read(2)
    count = (starts.dims or (-1,))[0]
    if count < 0:
        raise at.error("the number of axes is not known")
    axes = at.read(3) if at.has(3) else at.const(range(count), starts.dtype.numpy())
    steps = at.read(4) if at.has(4) else at.const(np.ones(count), starts.dtype.numpy())
    return at.emit("Slice", at.read(0), starts, ends, steps, axes, version="opset8")


@writes("Pad")
def pad(at: Site) -> Output:
    """Elements added, or taken away, at both ends of axes."""
    mode = at.text("mode", "constant")
    if mode == "wrap":
        raise at.error("mode 'wrap'")
    rank = at.rank()
    if at.has(3):
        given, axes = at.known(1), at.known(3) % rank
        pads = np.zeros((2, rank), np.int64)
        pads[:, axes] = given.reshape(2, -1)
        begin, end = (at.const(row) for row in pads)
    elif at.read(1).constant is not None:
        begin, end = (at.const(row) for row in at.known(1).reshape(2, -1))
    else:
        half = [(at.read(1).dtype, (rank,))] * 2
        axis = at.const(0, np.int64)
        begin, end = at.emit_many("Split", half, at.read(1), axis, num_splits=2)
    filling = []
    if mode == "constant":
        filling = [at.read(2) if at.has(2) else at.like(0, at.read(0))]
    return at.emit("Pad", at.read(0), begin, end, *filling, version="opset12", pad_mode=mode)


@writes("Range")
def range_(at: Site) -> Output:
    """From start to stop by steps."""
    given = [at.read(index) for index in range(3)]
    scalars = [value if value.rank == 0 else at.reshape(value, []) for value in given]
    name = at.type_name(at.result()[0])
    return at.emit("Range", *scalars, version="opset4", output_type=name)


@writes("DepthToSpace")
def depth_to_space(at: Site) -> Output:
    """Channels laid out as blocks."""
    mode = "blocks_first" if at.text("mode", "DCR") == "DCR" else "depth_first"
    return at.emit("DepthToSpace", at.read(0), mode=mode, block_size=at.integer("blocksize"))


@writes("SpaceToDepth")
def space_to_depth(at: Site) -> Output:
    """Blocks laid out as channels."""
    size = at.integer("blocksize")
    if at.text("mode", "DCR") != "DCR":
        raise at.error(f"mode '{at.text('mode')}'")
    return at.emit("SpaceToDepth", at.read(0), mode="blocks_first", block_size=size)


@writes("ReverseSequence")
def reverse_sequence(at: Site) -> Output:
    """The first elements of every sequence the other way round."""
    axes: dict[str, Any] = {
        "batch_axis": at.integer("batch_axis", 1),
        "seq_axis": at.integer("time_axis", 0),
    }
    return at.emit("ReverseSequence", at.read(0), at.read(1), **axes)


@writes("Identity", "Dropout")
def passing(at: Site) -> Output:
    """What is read, as it is."""
    if at.is_used(1):
        raise at.error("the mask as an output")
    if at.has(2) and at.known(2).any():
        raise at.error("training_mode")
    return at.read(0)
