"""Demands of operators whose windows slide over an image: convolutions and pools."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import (
    Demand,
    Shape,
    Shapes,
    first_of,
    holds,
    is_of_shape,
    pair_of,
)

WINDOW_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, WINDOW_DEMANDS)


def window_faults(node: Node, rank: int, *, kernel: bool = False) -> Iterable[str]:
    """Faults of the attributes that say how a window slides over ``rank`` dimensions."""
    sizes = {"strides": rank, "dilations": rank, "pads": 2 * rank, "output_padding": rank}
    if kernel:
        sizes["kernel_shape"] = rank
    for name, count in sizes.items():
        values = node.attrs.get(name) or ()
        if values and len(values) != count:
            yield f"{name} {list(values)} is to have {count} numbers"
        if name != "pads" and any(n < (name != "output_padding") for n in values):
            yield f"{name} {list(values)} holds a number that is too small"


def weight_faults(node: Node, x: Shape, w: Shape, transposed: bool) -> Iterable[str]:
    """Faults of weights that do not fit the channels of an input, or the number of groups.

    Args:
        node: Its number of groups is read.
        x: Shape of the input: batch, channels, then the image.
        w: Shape of the weights.
        transposed: Whether weights have the input's channels first, as those of ConvTranspose do.
    """
    groups = node.attrs.get("group", 1)
    outputs, inputs = (w[1] * groups, w[0]) if transposed else (w[0], w[1] * groups)
    if len(x) != len(w) or groups < 1 or x[1] != inputs or (inputs or outputs) % groups:
        yield f"the weights do not fit the input in {groups} groups"
    if not transposed and outputs % max(groups, 1):
        yield f"{outputs} outputs do not fall into {groups} groups"
    if 0 in w[2:]:
        yield f"a window of {list(w[2:])} holds no element"


@_demand("Conv", "partita::Conv", "com.microsoft::FusedConv")
def _conv(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = pair_of(shapes)
    yield from window_faults(node, len(x) - 2)
    yield from weight_faults(node, x, w, False)
    yield from holds("the bias", shapes[2], w[0])


@_demand("DeformConv")
def _deform_conv(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = pair_of(shapes)
    groups, kernel = node.attrs.get("offset_group", 1), node.attrs.get("kernel_shape")
    yield from window_faults(node, len(x) - 2, kernel=True)
    yield from weight_faults(node, x, w, False)
    if kernel and tuple(kernel) != tuple(w[2:]):
        yield f"kernel_shape {list(kernel)} is not that of the weights, {list(w[2:])}"
    if groups < 1 or x[1] % groups:
        yield f"{x[1]} channels do not fall into {groups} groups; offset_group must divide them"
    yield from holds("the bias", shapes[3], w[0])


@_demand("ConvTranspose", "partita::ConvTranspose")
def _conv_transpose(node: Node, shapes: Shapes) -> Iterable[str]:
    x, w = pair_of(shapes)
    yield from window_faults(node, len(x) - 2)
    yield from weight_faults(node, x, w, True)
    yield from holds("the bias", shapes[2], w[1] * node.attrs.get("group", 1))


@_demand("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
def _global_pool(node: Node, shapes: Shapes) -> Iterable[str]:
    if len(first_of(shapes)) < 2:
        yield "the input is to have 2 dimensions or more"


@_demand("MaxPool", "AveragePool", "LpPool")
def _pool(node: Node, shapes: Shapes) -> Iterable[str]:
    yield from window_faults(node, len(first_of(shapes)) - 2, kernel=True)


@_demand("Col2Im")
def _col2im(node: Node, shapes: Shapes) -> Iterable[str]:
    x, image = pair_of(shapes)
    yield from window_faults(node, image[0])
    yield from is_of_shape("block_shape", shapes[2], image)
    if len(x) != 3:
        yield "the columns are to have 3 dimensions"


@_demand("MaxUnpool")
def _max_unpool(node: Node, shapes: Shapes) -> Iterable[str]:
    yield from window_faults(node, len(first_of(shapes)) - 2, kernel=True)
    yield from is_of_shape("indices", shapes[1], first_of(shapes))
