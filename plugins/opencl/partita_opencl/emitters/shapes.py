"""Views, and operators whose results the host knows when the shapes are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Node, Operand, reference_fold
from partita.lowering.geometry.axes import axis_of, distinct_axes, rest_of_reshape
from partita.lowering.geometry.ranges import count_of_range
from partita.lowering.kernel_table import ALL_FLOATS, BOOL
from partita.lowering.shapes.symbolic_size import holds_sizes, integer, integers
from partita_opencl.emitters.operator_table import COMPUTED, INDICES, MOVED, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, f32, i64
from partita_opencl.launches.tensor_moves import expand


@operator("Reshape", types={0: MOVED, 1: INDICES}, values=(1,), since=5)
def reshape(k: Kit, node: Node, x: Operand, shape: Operand) -> Operand:
    """The same elements with other dimensions."""
    wanted = [integer(n) for n in k.value(shape).reshape(-1)]
    if not node.attrs.get("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return k.view(x, _resolved(wanted, x.shape))


@operator("Reshape", types=MOVED, until=4)
def reshape_by_attribute(k: Kit, node: Node, x: Operand) -> Operand:
    """The same elements with dimensions given by an attribute."""
    wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(node.attrs["shape"])]
    return k.view(x, _resolved(wanted, x.shape))


def _resolved(wanted: list[int], shape: Sequence[int]) -> list[int]:
    """The dimensions that are wanted, with what remains of a shape for -1."""
    if -1 in wanted:
        rest = rest_of_reshape(wanted, shape)
        wanted[wanted.index(-1)] = 0 if rest is None else rest
    return wanted


@operator("Flatten", types=MOVED)
def flatten(k: Kit, node: Node, x: Operand) -> Operand:
    """Two dimensions: those before the axis, and the rest."""
    axis = int(node.attrs.get("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return k.view(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Squeeze", types={0: MOVED, 1: INDICES}, values=(1,))
def squeeze(k: Kit, node: Node, x: Operand, axes: Operand | None = None) -> Operand:
    """Drops dimensions of one."""
    given = node.attrs.get("axes") if axes is None else k.value(axes).reshape(-1).tolist()
    if given is None:
        return k.view(x, [size for size in x.shape if size != 1])
    dropped = {axis_of(node, axis, x.ndim) for axis in given}
    return k.view(x, [size for i, size in enumerate(x.shape) if i not in dropped])


@operator("Unsqueeze", types={0: MOVED, 1: INDICES}, values=(1,))
def unsqueeze(k: Kit, node: Node, x: Operand, axes: Operand | None = None) -> Operand:
    """Inserts dimensions of one."""
    given = node.attrs["axes"] if axes is None else k.value(axes).reshape(-1).tolist()
    rank = x.ndim + len(given)
    inserted = distinct_axes(node, given, rank)
    sizes = iter(x.shape)
    return k.view(x, [1 if i in inserted else next(sizes) for i in range(rank)])


@operator("Identity", types=MOVED)
def identity(k: Kit, node: Node, x: Operand) -> Operand:
    """The tensor itself."""
    return x


def _inference(node: Node) -> Reason | None:
    mode = node.input(2)
    if node.version < 7 and not node.attrs.get("is_test", 0):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "is_test 0; takes inference only")
    if mode is not None and (mode.const is None or bool(mode.const.reshape(-1)[0])):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "training_mode; takes inference only")
    return None


@operator("Dropout", types={0: MOVED, 1: ALL_FLOATS, 2: BOOL}, check=_inference)
def dropout(
    k: Kit, node: Node, x: Operand, ratio: Operand | None = None, mode: Operand | None = None
) -> Operand:
    """Nothing, in inference."""
    return x


@operator("Shape", types=MOVED)
def shape_of(k: Kit, node: Node, x: Operand) -> Operand:
    """The dimensions, known with the shapes."""
    start, end = node.attrs.get("start", 0), node.attrs.get("end")
    return k.constant(integers(x.shape[start:end]))


@operator("Size", types=MOVED)
def size_of(k: Kit, node: Node, x: Operand) -> Operand:
    """The number of elements, known with the shapes."""
    return k.view(k.constant(integers([x.size])), ())


@operator("ConstantOfShape", types=COMPUTED, values=(0,))
def constant_of_shape(k: Kit, node: Node, shape: Operand) -> Operand:
    """One value everywhere; the host makes it if it is small enough to be folded."""
    dims = [integer(n) for n in k.value(shape).reshape(-1)]
    value = np.asarray(node.attrs.get("value", np.float32(0))).reshape(-1)[:1]
    return expand(k, k.constant(value.reshape((1,) * len(dims))), dims)


@operator("Range", types=COMPUTED, values=(0, 1, 2))
def range_of(k: Kit, node: Node, start: Operand, limit: Operand, delta: Operand) -> Operand:
    """Numbers from the first to before the last; the host makes them if they are few."""
    first, last, step = (k.value(x).item() for x in (start, limit, delta))
    kind = start.dtype
    if any(holds_sizes(x.const) for x in (start, limit, delta)):
        count = count_of_range(first, last, step)
        return k.builder.computed((count,), kind, np.arange, first, last, step)
    count = count_of_range(first, last, step)
    y, whole_numbers = k.empty((count,), kind), kind.kind in "iu"
    of_wide = i64 if whole_numbers else f32
    k.launch(
        "range.cl",
        "count_up",
        k.tuning.flat(count),
        y,
        of_wide(first),
        of_wide(step),
        i64(count),
        T=ctype_of(kind),
        WIDE="long" if whole_numbers else "float",
    )
    return y


@operator("EyeLike", types={})
def eye_like(k: Kit, node: Node, x: Operand) -> Operand:
    """Ones on a diagonal, in the shape of the input."""
    return k.constant(reference_fold(node, [np.zeros(x.shape, x.dtype)])[0])
