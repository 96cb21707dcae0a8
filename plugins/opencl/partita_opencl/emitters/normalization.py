"""Normalizations of rows, and across channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Node, Operand
from partita.lowering.nhwc.conversion import DOMAIN
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_opencl.emitters.elementwise import apply
from partita_opencl.emitters.movement import own_axis
from partita_opencl.emitters.operator_table import operator
from partita_opencl.launches.emitter_kit import Argument, Kit, f32, i32, i64, ints, is_half
from partita_opencl.launches.tensor_moves import expand
from partita_opencl.passes.half_precision import SINGLE, convert, narrow

_SHORT = 2048
"""Elements of a row that a warp keeps in registers."""

_LEAST_PART = 1024
"""Elements of a row for which a group is worth it."""

_WARPS = 4
"""Warps of a group, where there are more rows than compute units."""


class _ScalePlaces(NamedTuple):
    """Which scale element i of a row has: ``(row % channels) * row_step + i / element_div``."""

    channels: int
    row_step: int
    element_div: int

    def arguments(self) -> tuple[Argument, ...]:
        """The kernels' ``channels, row_step, element_div``."""
        return i32(self.channels), i32(self.row_step), i32(self.element_div)


class _Lines(NamedTuple):
    """Where the elements of rows lie, as ``normalize_parts.cl`` has it.

    Attributes:
        image: Elements from one image to the next.
        group: Elements from a row of an image to the next one.
        groups: Rows of an image.
        width: Neighbouring elements.
        pitch: Elements from one run of neighbours to the next.
        last: Whether scales belong to the places within a run of neighbours.
    """

    image: int
    group: int
    groups: int
    width: int
    pitch: int
    last: bool = False


_OF_ELEMENTS = _ScalePlaces(1, 0, 1)
"""One for each element of a row, the same in all rows."""


def _rows(
    k: Kit,
    x: Operand,
    depth: int,
    scale: Operand,
    bias: Operand | None,
    epsilon: float,
    places: _ScalePlaces = _OF_ELEMENTS,
    more: Sequence[Argument] = (),
    **options: None,
) -> Operand:
    """Records the normalization of rows.

    Args:
        k: Records the launch.
        x: The rows, one behind the other.
        depth: Elements of a row.
        scale: Factors of normalized elements.
        bias: Terms, which lie as the factors do.
        epsilon: Added to a row's variance.
        places: Which factor and term belong to which element.
        more: Further arguments of the kernel.
        options: Its macros.

    Returns:
        A tensor like x.
    """
    y = k.empty(x.shape, x.dtype)
    if not x.size:
        return y
    part = settled(evaluated(_part, x.size // depth, depth, k.tuning.limits.compute_units))
    if part and not more and not options:
        lines = _Lines(depth, 0, 1, depth, depth)
        _parts(k, x, y, (depth, part), lines, (scale, bias), places, epsilon)
        return y
    k.launch(
        "normalize.cl",
        "normalize_rows",
        k.tuning.groups(x.size // depth, k.tuning.row_items),
        x,
        scale,
        bias or scale,
        y,
        i32(depth),
        *places.arguments(),
        i32(bias is not None),
        f32(epsilon),
        *more,
        ITEMS=k.tuning.row_items,
        **options,
    )
    return y


def _part(rows: int, depth: int, units: int) -> int:
    """Elements of a row for a group, where several share it; 0 if each row is for one."""
    if rows >= units or depth < 2 * _LEAST_PART:
        return 0
    wanted = max(depth * rows // (2 * units), _LEAST_PART)
    return -(-wanted // _LEAST_PART) * _LEAST_PART


def _parts(
    k: Kit,
    x: Operand,
    y: Operand,
    sizes: tuple[int, int],
    lines: _Lines,
    weights: tuple[Operand, Operand | None],
    places: _ScalePlaces,
    epsilon: float,
) -> None:
    """Records the normalization of rows that groups share.

    Args:
        k: Records the launches.
        x: The elements.
        y: What is written, like x.
        sizes: Elements of a row, and of a part of it.
        lines: Where they lie.
        weights: Factors and terms.
        places: Which of these belong to which element.
        epsilon: Added to a row's variance.
    """
    (depth, part), (scale, bias) = sizes, weights
    count = -(-depth // part)
    rows = x.size // depth
    statistics = k.empty((rows * count, 2), np.float32)
    groups = k.tuning.groups(rows * count, k.tuning.row_items)
    cut = i32(depth), i32(part), i32(count)
    lie = ints(lines.image, lines.group, lines.groups, 0), ints(lines.width, lines.pitch)
    options: dict[str, int | None] = {"ITEMS": k.tuning.row_items}
    file = "normalize_parts.cl"
    k.launch(file, "part_statistics", groups, x, statistics, *cut, *lie, **options)
    k.launch(
        file,
        "normalize_parts",
        groups,
        x,
        statistics,
        scale,
        bias or scale,
        y,
        *cut,
        *lie,
        *places.arguments(),
        i32(bias is not None),
        f32(epsilon),
        **options,
        **({"LAST": None} if lines.last else {}),
    )


def _single_precision(node: Node) -> Reason | None:
    """The second phase may ask for another type than that of the first."""
    if node.attrs.get("stash_type", 1) == 1:
        return None
    found = f"stash_type {node.attrs['stash_type']}"
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"{found}; takes 1")


def _weights_of_rows(node: Node) -> Reason | None:
    """Rows are weighed as they are normalized: each by the same numbers."""
    x = node.input(0)
    rank = None if x is None or x.shape is None else len(x.shape)
    axis = node.attrs.get("axis", -1)
    most = -axis if axis < 0 else None if rank is None else rank - axis
    for weights in node.inputs[1:]:
        shape = None if weights is None else weights.shape
        if most is not None and shape is not None and len(shape) > most:
            found = f"weights of {len(shape)} dimensions; takes the {most} of a row"
            return Reason(ReasonCode.UNSUPPORTED_SHAPE, found)
    return _single_precision(node)


@operator("LayerNormalization", check=_weights_of_rows)
def layer_normalization(
    k: Kit, node: Node, x: Operand, scale: Operand, bias: Operand | None = None
) -> Operand:
    """Rows are the dimensions from the axis on; attribute ``single`` asks for float32."""
    in_single = bool(node.attrs.get("single", False))
    axis = own_axis(node, x.ndim, -1)
    tail = x.shape[axis:]
    epsilon = node.number("epsilon", 1e-5)
    if _is_short(k, x, tail, scale, bias):
        return short_rows(k, x, scale, bias, epsilon, SINGLE if in_single else x.dtype)
    scale = expand(k, _as(k, scale, x), tail)
    if bias is not None:
        bias = expand(k, _as(k, bias, x), tail)
    y = _rows(k, x, math.prod(tail), scale, bias, epsilon)
    return convert(k, y, SINGLE) if in_single else y


def _as(k: Kit, row: Operand, x: Operand) -> Operand:
    """Elements in the type of others."""
    if is_half(x.dtype) == is_half(row.dtype):
        return row
    return narrow(k, row) if is_half(x.dtype) else convert(k, row, SINGLE)


def _repeated(k: Kit, v: Operand, x: Operand, shape: tuple[int, ...]) -> Operand:
    """Weights in the type of what they weigh, of a shape that theirs broadcasts to.

    Raises:
        OperandError: It does not.
    """
    own = (1,) * (len(shape) - v.ndim) + v.shape
    fits = len(own) == len(shape) and all(
        size in (1, full) for size, full in zip(own, shape, strict=True)
    )
    if not fits:
        node = k.builder.node
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot broadcast shape {list(v.shape)} "
            f"to {list(shape)}."
        )
    return expand(k, _as(k, v, x), shape)


def _is_short(
    k: Kit, x: Operand, tail: tuple[int, ...], scale: Operand, bias: Operand | None
) -> bool:
    """Whether a warp keeps a row in registers, and reads its constants by fours."""
    columns = math.prod(tail)
    constant = all(v is None or (v.const is not None and v.size == columns) for v in (scale, bias))
    return k.tuning.local_tiles and constant and columns % 8 == 0 and 0 < columns <= _SHORT


def short_rows(
    k: Kit,
    x: Operand,
    scale: Operand,
    bias: Operand | None,
    epsilon: float,
    dtype: np.dtype[Any] | None = None,
    wide: Operand | None = None,
) -> Operand:
    """Layer normalization of rows of a multiple of eight elements, at most 2048, by constants.

    Args:
        k: Records it.
        x: The rows.
        scale: A constant factor for each element of a row.
        bias: A constant term for each, or ``None``.
        epsilon: What is added to variances.
        dtype: Of the result; ``None``: that of x.
        wide: A tensor of float32 that the result is written to, too, if it is given.
    """
    columns = scale.size
    rows = x.size // columns
    warps = settled(evaluated(_warps, rows, k.tuning.limits.compute_units))
    y = k.empty(x.shape, dtype or x.dtype)
    flags = {"SINGLE": not is_half(y.dtype), "SINGLE_ROWS": not is_half(x.dtype)}
    flags["BOTH"] = wide is not None
    zeros = k.builder.prepack(scale, "zeros", _zeros)
    shift = zeros if bias is None else single(k, bias)
    k.launch(
        "normalize_short.cl",
        "normalize_short",
        k.tuning.groups(-(-rows // warps), warps * 32),
        x,
        single(k, scale),
        shift,
        y,
        wide or y,
        i32(rows),
        i32(columns),
        f32(epsilon),
        WARPS=warps,
        NORMALIZE=math.ceil(columns / 256),
        **{name: None for name, on in flags.items() if on},
    )
    return y


def _warps(rows: int, units: int) -> int:
    """Warps of a group for so many rows and compute units."""
    return min(_WARPS, 1 << (rows // units).bit_length())


def single(k: Kit, x: Operand) -> Operand:
    """A constant as a row of float32."""
    if k.tuning.bfloat and is_half(x.dtype):
        return k.builder.prepack(x, "row of bfloat16", _widened)
    return k.builder.prepack(x, "row", _single)


def _single(array: Array) -> Array:
    return array.reshape(-1).astype(np.float32)


def _widened(array: Array) -> Array:
    """Elements of bfloat16, which all that is not a kernel takes for float16."""
    bits = array.reshape(-1).view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32)


def _zeros(array: Array) -> Array:
    return np.zeros(array.size, np.float32)


@operator("RMSNormalization", "SimplifiedLayerNormalization", check=_weights_of_rows)
@operator("SimplifiedLayerNormalization", domain="com.microsoft", check=_weights_of_rows)
def rms_normalization(k: Kit, node: Node, x: Operand, scale: Operand) -> Operand:
    """Rows divided by the root of their mean square; the result has the type of the scale."""
    axis = own_axis(node, x.ndim, -1)
    tail = x.shape[axis:]
    epsilon = node.number("epsilon", 1e-5)
    rows, factor = node.inputs[:2]
    is_mixed = rows is not None and factor is not None and rows.dtype != factor.dtype
    if is_mixed and not is_half(scale.dtype):
        x = _as(k, x, scale)
    factors = _repeated(k, scale, x, tail)
    y = _rows(k, x, math.prod(tail), factors, None, epsilon, ROOT_MEAN_SQUARE=None)
    return _as(k, y, scale) if is_mixed else y


def rms_rows(k: Kit, x: Operand, scale: Operand, epsilon: float) -> Operand:
    """Rows along the last axis divided by the root of their mean square, times a constant row."""
    scale = _repeated(k, scale, x, x.shape[-1:])
    return _rows(k, x, x.shape[-1], scale, None, epsilon, ROOT_MEAN_SQUARE=None)


def _no_statistics(node: Node) -> Reason | None:
    if any(value is not None for value in node.outputs[1:3]):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "statistics are used; computes none")
    return None


@operator(
    "SkipSimplifiedLayerNormalization", domain="com.microsoft", check=_no_statistics, outputs=4
)
def skip_rms_normalization(
    k: Kit, node: Node, x: Operand, skip: Operand, scale: Operand, bias: Operand | None = None
) -> tuple[Operand, None, None, Operand]:
    """Rows of a sum divided by the root of their mean square, and the sum."""
    tail = x.shape[-1:]
    skip, scale = _repeated(k, skip, x, x.shape), _repeated(k, scale, x, tail)
    addends = None if bias is None else _repeated(k, bias, x, tail)
    total = k.empty(x.shape, x.dtype)
    y = _rows(
        k,
        x,
        x.shape[-1],
        scale,
        None,
        node.number("epsilon", 1e-12),
        more=(skip, addends or scale, total, i32(addends is not None)),
        ROOT_MEAN_SQUARE=None,
        SKIP=None,
    )
    return y, None, None, total


@operator("SkipLayerNormalization", domain="com.microsoft", check=_no_statistics, outputs=4)
def skip_layer_normalization(
    k: Kit,
    node: Node,
    x: Operand,
    skip: Operand,
    scale: Operand,
    shift: Operand | None = None,
    bias: Operand | None = None,
) -> tuple[Operand, None, None, Operand]:
    """Rows of a sum, normalized, and the sum."""
    total = apply(k, "{0} + {1}", x.dtype, x, _repeated(k, skip, x, x.shape))
    if bias is not None:
        total = apply(k, "{0} + {1}", x.dtype, total, _as(k, bias, x))
    y = normalized_rows(k, total, scale, shift, node.number("epsilon", 1e-12))
    return y, None, None, total


def normalized_rows(
    k: Kit, x: Operand, scale: Operand, shift: Operand | None, epsilon: float
) -> Operand:
    """Layer normalization along the last axis.

    Args:
        k: Records it.
        x: The rows.
        scale: A factor for each element of a row.
        shift: A term for each, or ``None``.
        epsilon: What is added to variances.
    """
    tail = x.shape[-1:]
    scale = _repeated(k, scale, x, tail)
    return _rows(
        k, x, x.shape[-1], scale, None if shift is None else _repeated(k, shift, x, tail), epsilon
    )


@operator("InstanceNormalization", since=6)
def instance_normalization(
    k: Kit, node: Node, x: Operand, scale: Operand, bias: Operand
) -> Operand:
    """A row is one channel of one image."""
    depth = math.prod(x.shape[2:])
    places = _ScalePlaces(x.shape[1], 1, depth)
    return _rows(k, x, depth, scale, bias, node.number("epsilon", 1e-5), places)


@operator("GroupNormalization", since=21, check=_single_precision)
def group_normalization(k: Kit, node: Node, x: Operand, scale: Operand, bias: Operand) -> Operand:
    """A row is a group of channels of one image."""
    groups = int(node.attrs["num_groups"])
    pixels = math.prod(x.shape[2:])
    per_group = x.shape[1] // groups
    places = _ScalePlaces(groups, per_group, pixels)
    return _rows(k, x, per_group * pixels, scale, bias, node.number("epsilon", 1e-5), places)


@operator("GroupNormalization", domain=DOMAIN)
def group_normalization_last(
    k: Kit, node: Node, x: Operand, scale: Operand, bias: Operand
) -> Operand:
    """Of images with channels last, none of them filled up; a number for each channel."""
    n, high, wide, channels = x.shape
    groups = int(node.attrs["groups"])
    width, depth = channels // groups, channels // groups * high * wide
    y = k.empty(x.shape, x.dtype)
    if not x.size:
        return y
    units = k.tuning.limits.compute_units
    part = settled(evaluated(_part, n * groups, depth, units)) or depth
    lines = _Lines(high * wide * channels, width, groups, width, channels, last=True)
    places = _ScalePlaces(groups, width, depth)
    weights = _as(k, scale, x), _as(k, bias, x)
    _parts(k, x, y, (depth, part), lines, weights, places, node.number("epsilon", 1e-5))
    return y


@operator("LRN")
def local_response(k: Kit, node: Node, x: Operand) -> Operand:
    """Each element divided by a power of the squares of its neighbours in other channels."""
    size = int(node.attrs["size"])
    y = k.empty(x.shape, x.dtype)
    k.launch(
        "lrn.cl",
        "local_response",
        k.tuning.flat(x.size),
        x,
        y,
        i64(x.size),
        i32(x.shape[1]),
        i64(math.prod(x.shape[2:])),
        i32((size - 1) // 2),
        i32(size - 1 - (size - 1) // 2),
        f32(node.number("alpha", 1e-4) / size),
        f32(node.number("beta", 0.75)),
        f32(node.number("bias", 1.0)),
    )
    return y
