"""Operators that move elements: shapes, joins, orders, borders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.operation_site import FULL
from partita.frontends.tflite.axis_order import inverse
from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("RESHAPE")
def reshape(at: Site) -> ir.Value:
    """Another shape: that of the second input, or of the options."""
    if at.has(1):
        sizes = at.constant(1)
        shape = at.indices(1) if sizes is None else at.const(sizes.reshape(-1), np.int64)
    else:
        shape = at.const(at.ints("NewShape"), np.int64)
    return at.carried(lambda values: at.emit("Reshape", values[0], shape, allowzero=1))


@translates("SQUEEZE")
def squeeze(at: Site) -> ir.Value:
    """Without axes of size one: those named, or all."""
    axes = [at.axis(axis, at.rank(0)) for axis in at.ints("SqueezeDims")]
    named = at.const(axes, np.int64) if axes else None
    return at.carried(lambda values: at.emit("Squeeze", values[0], named))


@translates("EXPAND_DIMS")
def expand_dims(at: Site) -> ir.Value:
    """With one more axis, of size one."""
    axis = at.reshaped(at.indices(1), [1])
    return at.carried(lambda values: at.emit("Unsqueeze", values[0], axis))


@translates("TRANSPOSE")
def transpose(at: Site) -> ir.Value:
    """Axes in another order, which must be a constant."""
    perm = at.numbers(1)
    if sorted(perm) != list(range(at.rank(0))):
        raise at.error(f"{perm} is not a permutation of {at.rank(0)} axes")
    return at.carried(lambda values: at.moved(values[0], tuple(perm)))


@translates("CONCATENATION")
def concatenation(at: Site) -> ir.Value:
    """Inputs one behind the other along an axis."""
    places = range(len(at.inputs))
    axis = at.axis(at.integer("Axis"), at.rank(0))
    if at.same_levels(places) and not at.integer("FusedActivationFunction", 0):
        return at.emit("Concat", *(at.value(place) for place in places), axis=axis)
    value = at.emit("Concat", *(at.floats(place) for place in places), axis=axis)
    return at.result(at.activated(value))


@translates("SPLIT")
def split(at: Site) -> list[ir.Value]:
    """As many equal parts along an axis as there are results; the axis is the first input."""
    axis = at.axis(at.numbers(0)[0], at.rank(1))
    return _parts(at, 1, axis, None)


@translates("SPLIT_V")
def split_v(at: Site) -> list[ir.Value]:
    """Parts of given sizes along an axis, one of which may be -1 for what is left."""
    axis, sizes = at.axis(at.numbers(2)[0], at.rank(0)), at.numbers(1)
    if -1 in sizes:
        size = at.dims(0)[axis]
        if size < 0 or sizes.count(-1) > 1:
            raise at.error(
                f"the size of -1 among {sizes} cannot be inferred from an axis of {size}"
            )
        sizes[sizes.index(-1)] = size - sum(sizes) - 1
    return _parts(at, 0, axis, sizes)


def _parts(at: Site, index: int, axis: int, sizes: list[int] | None) -> list[ir.Value]:
    count = len(at.operator.outputs)
    same = all(at.same_levels([index], place) for place in range(count))
    x = at.value(index) if same else at.floats(index)
    given = None if sizes is None else at.const(sizes, np.int64)
    number = count if sizes is None else None
    parts = at.emit_many("Split", count, x, given, axis=axis, num_outputs=number)
    return parts if same else [at.result(part, place) for place, part in enumerate(parts)]


@translates("PACK")
def pack(at: Site) -> ir.Value:
    """Inputs as the entries of a new axis."""
    axis = at.axis(at.integer("Axis", 0), at.rank(0) + 1)
    axes = at.const([axis], np.int64)
    return at.carried(
        lambda values: at.emit(
            "Concat", *(at.emit("Unsqueeze", value, axes) for value in values), axis=axis
        ),
        range(len(at.inputs)),
    )


@translates("UNPACK")
def unpack(at: Site) -> list[ir.Value]:
    """The entries of an axis, which vanishes."""
    axis = at.axis(at.integer("Axis", 0), at.rank(0))
    axes = at.const([axis], np.int64)
    return [at.emit("Squeeze", part, axes) for part in _parts(at, 0, axis, None)]


@translates("PAD", "PADV2", "MIRROR_PAD")
def pad(at: Site) -> ir.Value:
    """More elements around: zeros, a number, or what lies inside of the border."""
    found = at.constant(1)
    if found is None:
        pairs = at.emit("Transpose", at.indices(1), perm=[1, 0])
        pads = at.reshaped(pairs, [-1])
    else:
        if found.shape != (at.rank(0), 2):
            raise at.error(f"paddings have shape {list(found.shape)}")
        pads = at.const(found.T.reshape(-1), np.int64)
    if at.operator.code == "MIRROR_PAD":
        if at.integer("Mode"):
            return _symmetric(at)
        return at.carried(lambda values: at.emit("Pad", values[0], pads, mode="reflect"))
    if at.same_levels([0]):
        zero = at.levels(at.target())
        number = at.value(1 + 1) if at.has(2) else None
        if number is None and zero is not None:
            number = at.const(zero.zero_point[0], at.dtype(at.target()))
        if number is not None:
            number = at.reshaped(number, [])
        return at.emit("Pad", at.value(0), pads, number)
    number = at.reshaped(at.floats(2), []) if at.has(2) else None
    return at.result(at.emit("Pad", at.floats(0), pads, number))


def _symmetric(at: Site) -> ir.Value:
    """Mirrors that repeat the border, axis by axis: ONNX mirrors without it."""
    pads = at.known(1)

    def backward(value: ir.Value, axis: int, first: int, behind: int) -> ir.Value:
        """The elements along an axis from one back to before another."""
        return at.emit(
            "Slice", value, *(at.const([n], np.int64) for n in (first, behind, axis, -1))
        )

    def write(values: list[ir.Value]) -> ir.Value:
        value = values[0]
        for axis, (before, behind) in enumerate(pads.tolist()):
            size = at.dims(0)[axis]
            if not (before or behind):
                continue
            if min(before, behind) < 0 or size < max(before, behind):
                raise at.error(f"{before} and {behind} elements beside an axis of {size}")
            parts = [
                *([backward(value, axis, before - 1, -FULL)] if before else []),
                value,
                *([backward(value, axis, -1, -1 - behind)] if behind else []),
            ]
            value = at.emit("Concat", *parts, axis=axis)
        return value

    return at.carried(write)


@translates("TILE")
def tile(at: Site) -> ir.Value:
    """Copies side by side along each axis."""
    return at.carried(lambda values: at.emit("Tile", values[0], at.indices(1)))


@translates("BROADCAST_TO")
def broadcast_to(at: Site) -> ir.Value:
    """Copies along axes of size one, to a given shape."""
    return at.carried(lambda values: at.emit("Expand", values[0], at.indices(1)))


@translates("BROADCAST_ARGS")
def broadcast_shape(at: Site) -> ir.Value:
    """The shape that two shapes have together: one of two sizes unless that is 1."""
    count = max(at.dims(0)[0], at.dims(1)[0])
    if min(at.dims(0)[0], at.dims(1)[0]) < 0:
        raise at.error("the number of axes must be known")
    first, second = (
        at.emit("Concat", at.const([1] * (count - at.dims(place)[0]), np.int64), sizes, axis=0)
        if at.dims(place)[0] < count
        else sizes
        for place, sizes in enumerate((at.indices(0), at.indices(1)))
    )
    found = at.emit("Where", at.emit("Equal", first, at.const(1, np.int64)), second, first)
    return found if at.dtype(at.target()) == np.int64 else at.cast(found, 6)


@translates("GATHER")
def gather(at: Site) -> ir.Value:
    """Entries of an axis by their places; leading axes may go together in both inputs."""
    axis = at.axis(at.integer("Axis", 0), at.rank(0))
    batch = at.integer("BatchDims", 0)
    batch += at.rank(1) if batch < 0 else 0
    if batch == 0:
        return at.carried(lambda values: at.emit("Gather", values[0], at.value(1), axis=axis))
    if axis != batch:
        raise at.error(f"axis {axis} with {batch} axes that go together is not read")
    rows = at.emit("Unsqueeze", at.indices(1), at.const([at.rank(1)], np.int64))
    return at.carried(lambda values: at.emit("GatherND", values[0], rows, batch_dims=batch))


@translates("GATHER_ND")
def gather_nd(at: Site) -> ir.Value:
    """Entries whose places are rows of the second input."""
    return at.carried(lambda values: at.emit("GatherND", values[0], at.indices(1)))


@translates("SCATTER_ND")
def scatter_nd(at: Site) -> ir.Value:
    """Entries put to places of a tensor of zeros; those of one place add up."""
    zeros = at.emit("Expand", at.const(0, at.dtype(at.target())), at.indices(2))
    return at.emit("ScatterND", zeros, at.indices(0), at.value(1), reduction="add")


@translates("REVERSE_V2")
def reverse_v2(at: Site) -> ir.Value:
    """Axes the other way round."""
    axes = [at.axis(axis, at.rank(0)) for axis in at.numbers(1)]
    back = [at.const([number] * len(axes), np.int64) for number in (-1, -FULL)]
    steps = at.const([-1] * len(axes), np.int64)
    return at.carried(
        lambda values: at.emit("Slice", values[0], *back, at.const(axes, np.int64), steps)
    )


@translates("REVERSE_SEQUENCE")
def reverse_sequence(at: Site) -> ir.Value:
    """The first elements of each sequence the other way round."""
    time, batch = at.integer("SeqDim"), at.integer("BatchDim", 0)
    rank = at.rank(0)
    if time == batch or not {time, batch} <= set(range(rank)):
        raise at.error(f"there are no sequences along axis {time} of batches along {batch}")
    if {time, batch} == {0, 1}:
        axes = {"time_axis": time, "batch_axis": batch}
        return at.emit("ReverseSequence", at.value(0), at.indices(1), **axes)
    order = (batch, time, *(axis for axis in range(rank) if axis not in (batch, time)))
    front = at.moved(at.value(0), order)
    found = at.emit("ReverseSequence", front, at.indices(1), time_axis=1, batch_axis=0)
    return at.moved(found, inverse(order))


@translates("SHAPE")
def shape(at: Site) -> ir.Value:
    """The sizes."""
    number = 7 if at.dtype(at.target()) == np.int64 else 6
    if min(at.dims(0), default=0) >= 0:
        return at.const(at.dims(0), at.dtype(at.target()))
    return at.cast(at.emit("Shape", at.value(0)), number)


@translates("RANK")
def rank(at: Site) -> ir.Value:
    """The number of axes."""
    return at.const(at.rank(0), np.int32)


@translates("SPACE_TO_BATCH_ND")
def space_to_batch_nd(at: Site) -> ir.Value:
    """Every n-th pixel becomes an image of its own, in the batch."""
    blocks, pads = at.numbers(1), at.known(2)
    dims, count = at.dims(0), len(at.numbers(1))
    if min(blocks) < 1 or pads.shape != (count, 2) or min(dims[1:]) < 0 or len(dims) <= count:
        raise at.error(f"blocks {blocks} do not fit an input of {list(dims)}")
    batch, spaces, rest = dims[0], dims[1 : 1 + count], dims[1 + count :]
    around = [(0, 0), *((int(a), int(b)) for a, b in pads), *[(0, 0)] * len(rest)]
    flat = at.const(np.array(around).T.reshape(-1), np.int64)
    sizes = [size + sum(pair) for size, pair in zip(spaces, around[1:], strict=False)]
    if any(size % block for size, block in zip(sizes, blocks, strict=True)):
        raise at.error(f"blocks {blocks} do not divide {sizes}")
    split = [
        part for size, block in zip(sizes, blocks, strict=True) for part in (size // block, block)
    ]
    order = [*range(2, 2 + 2 * count, 2), 0, *range(1, 1 + 2 * count, 2)]
    order += range(1 + 2 * count, 1 + 2 * count + len(rest))
    total = -1 if batch < 0 else batch * int(np.prod(blocks))
    quarters = [size // block for size, block in zip(sizes, blocks, strict=True)]
    zero = at.levels(at.target())

    def write(values: list[ir.Value]) -> ir.Value:
        is_levels = values[0] is at.value(0) and zero is not None
        number = at.const(zero.zero_point[0], at.dtype(at.target())) if is_levels and zero else None
        padded = at.emit("Pad", values[0], flat, number) if any(map(any, around)) else values[0]
        parts = at.reshaped(padded, [batch, *split, *rest])
        return at.reshaped(at.emit("Transpose", parts, perm=order), [total, *quarters, *rest])

    return at.carried(write)


@translates("BATCH_TO_SPACE_ND")
def batch_to_space_nd(at: Site) -> ir.Value:
    """Images of the batch become every n-th pixel of larger ones, of which borders are cut."""
    blocks, crops = at.numbers(1), at.known(2)
    dims, count = at.dims(0), len(blocks)
    if min(blocks) < 1 or crops.shape != (count, 2) or min(dims[1:]) < 0 or len(dims) <= count:
        raise at.error(f"blocks {blocks} do not fit an input of {list(dims)}")
    batch, spaces, rest = dims[0], dims[1 : 1 + count], dims[1 + count :]
    if batch > 0 and batch % int(np.prod(blocks)):
        raise at.error(f"blocks {blocks} do not divide a batch of {batch}")
    batch = -1 if batch < 0 else batch // int(np.prod(blocks))
    order = [count]
    for place in range(count):
        order += [count + 1 + place, place]
    order += range(2 * count + 1, 2 * count + 1 + len(rest))
    sizes = [size * block for size, block in zip(spaces, blocks, strict=True)]
    ends = [size - int(behind) for size, (_, behind) in zip(sizes, crops, strict=True)]

    def write(values: list[ir.Value]) -> ir.Value:
        parts = at.reshaped(values[0], [*blocks, batch, *spaces, *rest])
        joined = at.reshaped(at.emit("Transpose", parts, perm=order), [batch, *sizes, *rest])
        if not crops.any():
            return joined
        bounds = [[int(begin) for begin, _ in crops], ends, range(1, 1 + count)]
        return at.emit("Slice", joined, *(at.const(list(bound), np.int64) for bound in bounds))

    return at.carried(write)


_MOST_PLACED = 1 << 24
"""Numbers that say where the rows of a block belong, whatever sizes a file claims."""


@translates("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(at: Site) -> ir.Value:
    """A block written over another tensor at a computed place, moved inside where it leaves it."""
    dims, update = at.dims(0), at.dims(1)
    if len(dims) != len(update) or min((*dims, *update), default=0) < 0:
        raise at.error(f"a block {list(update)} in {list(dims)} must have known sizes")
    room = np.array(dims, np.int64) - np.array(update, np.int64)
    if room.min(initial=0) < 0:
        raise at.error(f"a block {list(update)} does not fit {list(dims)}")
    axes = int(np.flatnonzero(room).max(initial=-1)) + 1  # axes behind have one place to begin at
    if not axes:
        return at.carried(lambda values: at.emit("Identity", values[1]), (0, 1))
    if axes * math.prod(update[:axes]) > _MOST_PLACED:
        raise at.error(f"a block {list(update)} has too many rows to be placed one by one")
    begin = at.emit("Max", at.indices(2), at.const(0, np.int64))
    begin = at.emit("Min", begin, at.const(room, np.int64))
    begin = at.emit("Slice", begin, *(at.const([end], np.int64) for end in (0, axes)))
    grid = np.stack(np.meshgrid(*map(np.arange, update[:axes]), indexing="ij"), -1)
    places = at.emit("Add", at.const(grid, np.int64), begin)
    return at.carried(lambda values: at.emit("ScatterND", values[0], places, values[1]), (0, 1))
