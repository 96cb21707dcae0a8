"""8-bit convolutions in groups: groups of few channels share the columns of a panel."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from partita.errors import CompileError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.reached_taps import without_padding
from partita.lowering.geometry.windows import resolve
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.kernels.int8.convolution_lines import emit_line_product, has_runs, runs_first
from partita_cpu.kernels.int8.line_table import ChannelGroups
from partita_cpu.kernels.int8.product import ByteOperands, Result
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD, byte_panels
from partita_cpu.llvm.tiles.dot_int8 import PART


def has_known_levels(node: Node) -> bool:
    """Whether scales, zero points and the bias of a QLinearConv are constants."""
    values = [node.input(position) for position in (1, 2, 4, 5, 6, 7)]
    bias = node.input(8)
    known = all(value is not None and value.const is not None for value in values)
    return known and (bias is None or bias.const is not None)


def fits_groups(node: Node, shape: tuple[int, ...]) -> bool:
    """Whether a QLinearConv in groups can be computed from the lines of an image.

    Args:
        node: The convolution, in two dimensions.
        shape: Of its input, with channels second.
    """
    w, bias, groups = node.inputs[3], node.input(8), int(node.attrs.get("group", 1))
    if w is None or w.const is None or w.const.dtype != np.int8 or not has_known_levels(node):
        return False
    outputs, of_group = w.const.shape[:2]
    if of_group * groups != shape[1] or outputs % groups:
        return False
    x_scale, x_zero, w_scale, w_zero = (_constant(node, place) for place in (1, 2, 4, 5))
    if w_zero.any() or (bias is not None and _constant(node, 8).size != outputs):
        return False
    if x_scale.size != 1 or x_zero.size != 1 or w_scale.size not in (1, outputs):
        return False
    try:
        window = resolve(node, shape[2:], w.const.shape[2:])
    except CompileError:  # said where the node is compiled as it is
        return False
    return has_runs(window.trimmed)


def _constant(node: Node, place: int) -> Array:
    """An input that `has_known_levels` found to be a constant."""
    value = node.inputs[place]
    if value is None or value.const is None:
        raise CompileError(f"Operation '{node.name}': input {place} is not a constant.")
    return value.const


def emit_groups(
    b: Builder, node: Node, operands: ByteOperands, result: Result, groups: int
) -> Operand:
    """Records a convolution that `fits_groups`, where kernels are native.

    Args:
        b: Records it.
        node: Has the window.
        operands: Images (n, height, width, channels) and weights (outputs, channels / groups, ...).
        result: What sums become.
        groups: How many.
    """
    x, policy = operands.x, native_policy(b.options)
    if policy is None:
        raise CompileError(f"Operation '{node.name}' (QLinearConv) needs native kernels.")
    window, w = without_padding(b, resolve(node, x.shape[1:3], operands.w.shape[2:]), operands.w)
    y_shape = (x.shape[0], *window.out_shape, w.shape[0])
    if not math.prod(y_shape):
        return b.empty(y_shape, result.dtype)
    merged = merged_groups(groups, w.shape[0] // groups, w.shape[1], w.shape[-1])
    parts = ChannelGroups(groups // merged, merged * w.shape[1], merged * w.shape[0] // groups)
    packed = packed_groups(b, w, groups, parts)
    return emit_line_product(
        b, policy, window, ByteOperands(x, w, operands.x_zero), packed, result, parts
    )


def merged_groups(groups: int, outputs: int, channels: int, across: int) -> int:
    """How many groups are best computed as one, with zeros for what they do not share.

    Args:
        groups: There are.
        outputs: Of each.
        channels: That each reads.
        across: Taps of a row of the kernel.
    """

    def cost(count: int) -> float:
        """Instructions for a pixel and a row of the kernel, by group."""
        return -(-across * count * channels // QUAD) * -(-count * outputs // PART) / count

    fitting = [n for n in range(1, groups + 1) if groups % n == 0 and n * outputs <= PANEL]
    return min(fitting or [1], key=lambda count: (cost(count), -count))


def packed_groups(
    b: Builder, w: Operand, groups: int, parts: ChannelGroups
) -> tuple[Operand, Operand]:
    """Weights of all groups by panels, and the sums of their columns."""
    terms = w.shape[2] * -(-w.shape[3] * parts.channels // QUAD) * QUAD
    form = Form(np.int8, (parts.panels * terms * PANEL,))
    pack = partial(group_panels, groups=groups, parts=parts)
    panels = b.prepack(w, ("panels of groups", groups, parts.number), pack, form=form)
    return panels, b.prepack(w, "sums of outputs", _sums, form=Form(np.int32, (w.shape[0],)))


def group_panels(w: Array, groups: int, parts: ChannelGroups) -> Array:
    """Weights (outputs, channels of a group, down, across) by panels, merged group by group."""
    merged = groups // parts.number
    each = w.reshape(parts.number, merged, -1, *w.shape[1:])
    panels = []
    for group in each:
        full = np.zeros((parts.outputs, parts.channels, *w.shape[2:]), w.dtype)
        outputs, channels = group.shape[1:3]
        for i, weights in enumerate(group):
            rows, columns = slice(i * outputs, None), slice(i * channels, None)
            full[rows, columns][:outputs, :channels] = weights
        panels.append(byte_panels(runs_first(full)))
    return np.concatenate(panels)


def _sums(w: Array) -> Array:
    return np.asarray(w.sum((1, 2, 3), dtype=np.int32))
