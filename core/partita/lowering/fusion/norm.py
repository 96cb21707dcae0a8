"""Normalization spelled out in several nodes becomes one node."""

from __future__ import annotations

import math

import numpy as np

from partita.lowering.fusion.rewriting import (
    Rewriter,
    fusion_pass,
    is_float,
    is_scalar,
    origins,
    other_input,
    per_channel,
    scalar_input,
)
from partita.lowering.graph import Node, Value
from partita.lowering.program import Array


@fusion_pass(50)
def fuse_layer_normalization(rewriter: Rewriter) -> None:
    """``(x - mean(x)) / sqrt(mean((x - mean(x))**2) + eps) [* scale] [+ bias]`` over an axis.

    Over the last one it is LayerNormalization, if it has a scale; over that of an image's channels
    ``partita::ChannelNormalization``, which has a scale and a bias for each and normalizes axis 1.
    Source of the spelling: how PyTorch and TensorFlow export layer normalization below opset 17,
    and how networks of images spell that of channels at any.
    """
    for node in rewriter.nodes():
        if node.kind == "Sqrt":
            _fuse(rewriter, node)


@fusion_pass(52)
def fuse_group_normalization(rewriter: Rewriter) -> None:
    """Reshape, InstanceNormalization and Reshape, [Mul, Add] per channel: GroupNormalization.

    Source of the spelling: how PyTorch exports group normalization below opset 21.
    """
    for node in rewriter.nodes():
        if node.kind == "InstanceNormalization":
            _fuse_groups(rewriter, node)


@fusion_pass(80)
def fuse_batch_normalization(rewriter: Rewriter) -> None:
    """Multiplying or adding constants per channel moves into the BatchNormalization before."""
    for node in rewriter.nodes():
        if node.kind == "BatchNormalization" and not any(node.outputs[1:]):
            _take_affine(rewriter, node)


def affine_rows(node: Node) -> tuple[Array, Array] | None:
    """What a BatchNormalization multiplies each channel by, and then adds: one float64 for each.

    ``None`` unless its statistics, factors and summands are constants.
    """
    arrays = [
        value.const.astype(np.float64)
        for value in node.inputs[1:5]
        if value is not None and value.const is not None
        if is_float(value.const) and value.const.ndim == 1
    ]
    if len(arrays) != 4 or node.attrs.get("training_mode"):
        return None
    if len({array.size for array in arrays}) != 1:
        return None
    scale, shift, mean, variance = arrays
    factor = scale / np.sqrt(variance + node.number("epsilon", 1e-5))
    return factor, shift - mean * factor


def _take_affine(rewriter: Rewriter, node: Node) -> None:
    """Takes the Mul and Add nodes that follow into scale and bias."""
    result = node.outputs[0]
    user = rewriter.only_user(result, "Mul", "Add")
    factor = None if user is None else other_input(user, result)
    scale, bias = node.inputs[1], node.inputs[2]
    if user is None or factor is None or scale is None or bias is None or result is None:
        return
    if factor.const is None or scale.const is None or bias.const is None:
        return
    row = per_channel(factor.const, scale.const.size, result)
    if row is None or not is_float(scale.const):
        return
    inputs = list(node.inputs)
    if user.kind == "Mul":
        inputs[1] = Value.constant((scale.const * row).astype(scale.const.dtype))
        inputs[2] = Value.constant((bias.const * row).astype(bias.const.dtype))
    else:
        inputs[2] = Value.constant((bias.const + row).astype(bias.const.dtype))
    group = [node, user]
    new = node.like(inputs, user.outputs, origins=origins(group))
    if rewriter.replace(group, new):
        _take_affine(rewriter, new)


def _fuse_groups(rewriter: Rewriter, node: Node) -> None:
    """Makes one node of a normalization and what brings groups of channels to one axis for it."""
    rows, back = rewriter.maker(node.inputs[0], "Reshape"), node.outputs[0]
    last = rewriter.only_user(back, "Reshape")
    x = None if rows is None else rows.inputs[0]
    if rows is None or last is None or last.inputs[0] is not back or x is None:
        return
    result = last.outputs[0]
    given = [value.const for value in node.inputs[1:3] if value is not None]
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 2 else None
    if result is None or type(channels) is not int or not _has_shape_of(rewriter, last, x):
        return
    parts = [part.astype(np.float64) for part in given if part is not None and is_float(part)]
    groups = _groups_of(rows, x, channels)
    if groups is None or len(parts) != 2 or any(part.shape != (groups,) for part in parts):
        return
    scale, bias = (np.repeat(part, channels // groups) for part in parts)
    group = [rows, node, last]
    for kind in ("Mul", "Add"):
        user = rewriter.only_user(group[-1].outputs[0], kind)
        other = None if user is None else other_input(user, group[-1].outputs[0])
        if user is None or other is None or other.const is None:
            continue
        row = per_channel(other.const, channels, x)
        if row is None:
            break
        scale, bias = (scale * row, bias * row) if kind == "Mul" else (scale, bias + row)
        group.append(user)
    dtype = given[0].dtype if given[0] is not None else np.dtype(np.float32)
    if not rewriter.inner(group[1:], group[-1].outputs[0] or result):
        return
    most = np.finfo(dtype).max
    if any(not (np.abs(part) <= most).all() for part in (scale, bias)):
        return  # one by one, factors may make no number infinite
    inputs = [x, *(Value.constant(part.astype(dtype)) for part in (scale, bias))]
    shared = not rewriter.inner(group, group[-1].outputs[0] or result)
    fused = Node(
        "GroupNormalization",
        inputs,
        group[-1].outputs[:1],
        {"num_groups": groups, "epsilon": node.number("epsilon", 1e-5)},
        version=21,
        name=node.name,
        origins=origins(group),
    )
    rewriter.replace(group[1:] if shared else group, fused)


def _has_shape_of(rewriter: Rewriter, node: Node, x: Value) -> bool:
    """Whether the result of a Reshape surely has the shape of ``x``."""
    result, wanted = node.outputs[0], node.input(1)
    asked = rewriter.maker(wanted, "Shape")
    if asked is not None and asked.inputs[0] is x:
        return not asked.attrs.get("start") and "end" not in asked.attrs
    return result is not None and rewriter.same_shape(x, result)


def _groups_of(rows: Node, x: Value, channels: int) -> int | None:
    """How many groups of channels a Reshape to (batch, groups, elements) makes, if it does."""
    wanted = rows.inputs[1] if rows.version >= 5 else None
    if wanted is None or wanted.const is None or wanted.const.shape != (3,) or x.shape is None:
        return None
    batch, groups, rest = (int(size) for size in wanted.const)
    if batch != x.shape[0] and (batch != 0 or rows.attrs.get("allowzero")):
        return None
    within = x.shape[1:]
    if rest != -1:
        sizes = [size for size in within if type(size) is int]
        if len(sizes) != len(within) or rest * groups != math.prod(sizes):
            return None
    return groups if groups > 0 and channels % groups == 0 else None


def _fuse(rewriter: Rewriter, root: Node) -> None:
    plus = rewriter.maker(root.inputs[0], "Add")
    epsilon = None if plus is None else scalar_input(plus)
    variance = None if epsilon is None else rewriter.maker(epsilon[0], "ReduceMean")
    square = None if variance is None else rewriter.maker(variance.inputs[0], "Pow", "Mul")
    if plus is None or epsilon is None or variance is None or square is None:
        return
    difference = rewriter.maker(_squared(square), "Sub")
    mean = None if difference is None else rewriter.maker(difference.inputs[1], "ReduceMean")
    if difference is None or mean is None or mean.inputs[0] is not difference.inputs[0]:
        return
    x = difference.inputs[0]
    quotient = _quotient(rewriter, root, mean, x)
    if quotient is None or x is None:
        return
    group = [mean, difference, square, variance, plus, root, *quotient]
    if _is_over(-1, mean, x) and _is_over(-1, variance, x):
        _fuse_rows(rewriter, group, x, epsilon[1])
    elif _is_over(1, mean, x) and _is_over(1, variance, x):
        _fuse_channels(rewriter, group, x, epsilon[1])


def _fuse_rows(rewriter: Rewriter, group: list[Node], x: Value, epsilon: float) -> None:
    """Makes one node of what normalizes rows, and of the scale and the bias behind it."""
    result = group[-1]
    scaled = rewriter.only_user(result.outputs[0], "Mul")
    scale = None if scaled is None else _row(other_input(scaled, result.outputs[0]))
    if scaled is None or scale is None or not _is_row_of(scale, x):
        return
    group.append(scaled)
    inputs: list[Value | None] = [x, scale]
    last = scaled
    shifted = rewriter.only_user(scaled.outputs[0], "Add")
    bias = None if shifted is None else _row(other_input(shifted, scaled.outputs[0]))
    if shifted is not None and bias is not None and bias.shape == scale.shape:
        group.append(shifted)
        inputs.append(bias)
        last = shifted
    if last.outputs[0] is None or not rewriter.inner(group, last.outputs[0]):
        return
    fused = Node(
        "LayerNormalization",
        inputs,
        [last.outputs[0]],
        {"axis": -1, "epsilon": epsilon},
        version=17,
        name=result.name,
        origins=origins(group),
    )
    rewriter.replace(group, fused)


def _fuse_channels(rewriter: Rewriter, group: list[Node], x: Value, epsilon: float) -> None:
    """The same for channels of an image."""
    result = group[-1]
    count = None if x.shape is None or len(x.shape) < 3 else x.shape[1]
    if type(count) is not int or x.dtype != np.float32:
        return
    rows, taken = {"Mul": np.ones(count), "Add": np.zeros(count)}, []
    last = result
    for kind in rows:
        user = rewriter.only_user(last.outputs[0], kind)
        other = None if user is None else other_input(user, last.outputs[0])
        const = None if other is None else other.const
        row = None if const is None else per_channel(const, count, x)
        if user is not None and row is not None:
            rows[kind], last = row, user
            taken.append(user)
    output = last.outputs[0]
    if output is None or not rewriter.inner([*group, *taken], output):
        return
    fused = Node(
        "ChannelNormalization",
        [x, *(Value.constant(row.astype(np.float32)) for row in rows.values())],
        [output],
        {"epsilon": epsilon},
        domain="partita",
        name=result.name,
        origins=origins([*group, *taken]),
    )
    rewriter.replace([*group, *taken], fused)


def _squared(node: Node) -> Value | None:
    """What the node squares."""
    if node.kind == "Pow":
        return node.inputs[0] if is_scalar(node.inputs[1], 2.0) else None
    return node.inputs[0] if node.inputs[0] is node.inputs[1] else None


def _quotient(rewriter: Rewriter, root: Node, mean: Node, x: Value | None) -> list[Node] | None:
    """The nodes that divide ``x - mean`` by the root, as a division or by its reciprocal."""
    user = rewriter.only_user(root.outputs[0], "Div", "Reciprocal")
    if user is None:
        return None
    if user.kind == "Div" and user.inputs[1] is root.outputs[0]:
        found = _difference(rewriter, user.inputs[0], mean, x)
        if found is not None:
            return [found, user]
        if not is_scalar(user.inputs[0], 1.0):
            return None
    product = rewriter.only_user(user.outputs[0], "Mul")
    if product is None:
        return None
    found = _difference(rewriter, other_input(product, user.outputs[0]), mean, x)
    return None if found is None else [found, user, product]


def _difference(
    rewriter: Rewriter, value: Value | None, mean: Node, x: Value | None
) -> Node | None:
    """The maker of ``x - mean``; models may compute the difference twice."""
    node = rewriter.maker(value, "Sub")
    if node is not None and node.inputs[0] is x and node.inputs[1] is mean.outputs[0]:
        return node
    return None


def _is_over(axis: int, node: Node, x: Value) -> bool:
    """Whether a ReduceMean goes over that axis alone, the last one if it is -1, and keeps it."""
    axes = node.attrs.get("axes")
    given = node.input(1)
    if given is not None:
        axes = None if given.const is None else given.const.tolist()
    if not axes or len(axes) != 1 or not node.attrs.get("keepdims", 1):
        return False
    if x.shape is None:
        return bool(axes[0] == axis)
    return bool(axes[0] % len(x.shape) == axis % len(x.shape))


def _is_row_of(scale: Value, x: Value) -> bool:
    """Whether a scale surely has as many elements as the last axis of ``x``.

    A product with a longer one would repeat the elements of an axis of size 1.
    """
    return scale.const is not None and x.shape is not None and x.shape[-1:] == scale.const.shape


def _row(value: Value | None) -> Value | None:
    """A constant of one dimension, of a type that kernels take as scale or bias."""
    if value is None or value.const is None or value.const.ndim != 1 or value.const.size < 2:
        return None
    return value if is_float(value.const) else None
