"""Add, Mul, Gate, nearest Resize and RoiAlign of images with channels last.

The first four read some channels of each pixel and write to a part of another image, as
convolutions do.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Builder, Node, Operand
from partita_cpu.gemm.tile_kernels import single_kernel
from partita_cpu.kernels.image.detection import check_ratio, emit_roi_align
from partita_cpu.kernels.image.resize import nearest_pixels, resized_axes
from partita_cpu.kernels.movement.index_steps import taken_pixels
from partita_cpu.kernels.nhwc.depthwise import channel_slice
from partita_cpu.kernels.nhwc.placement import DOMAIN, HALF, STORED, Place, choice_of
from partita_cpu.kernels.operator_table import ALL_FLOATS, F32, INDICES, INT64, kernel
from partita_cpu.nhwc.pixel_steps import SecondImage, combine_images, gate_images, take_pixels


@kernel("Add", "Mul", domain=DOMAIN, dtypes=STORED)
def combine(
    b: Builder, node: Node, x: Operand, other: Operand, target: Operand | None = None
) -> Operand:
    """The sum or the product of two images of one shape.

    Attribute ``second`` says which channels of the other one are read.
    """
    place = Place.of(node, x, target)
    y = place.output(b, (*x.shape[:3], place.channels), x.dtype == HALF)
    if y.size:
        first, _ = node.attrs.get("second", (0, other.shape[3]))
        verb = node.op_type.lower()
        kernels = b.constant(_single(b, x, f"{verb}_halves", f"{verb}_rows"))
        second = SecondImage(other.shape[3], first)
        flat = b.flat(x), b.flat(other), b.flat(y)
        b.call(combine_images, *flat, kernels, channel_slice(place, y), second)
    return y


@kernel("Gate", domain=DOMAIN, dtypes={0: STORED, 1: F32, 2: STORED})
def gate(
    b: Builder, node: Node, x: Operand, factor: Operand, target: Operand | None = None
) -> Operand:
    """An image times a number for each of its channels, (N, 1, 1, C)."""
    place = Place.of(node, x, target)
    y = place.output(b, (*x.shape[:3], place.channels), x.dtype == HALF)
    if y.size:
        kernels = b.constant(_single(b, x, "scale_halves", "scale"))
        zeros = b.constant(np.zeros(place.channels, np.float32))
        flat = b.flat(x), b.flat(factor), zeros, b.flat(y)
        b.call(gate_images, *flat, kernels, channel_slice(place, y))
    return y


@kernel(
    "Resize", domain=DOMAIN, dtypes={0: STORED, 1: ALL_FLOATS, 2: ALL_FLOATS, 3: INDICES, 4: STORED}
)
def resize(
    b: Builder,
    node: Node,
    x: Operand,
    roi: Operand | None = None,
    scales: Operand | None = None,
    sizes: Operand | None = None,
    target: Operand | None = None,
) -> Operand:
    """The nearest pixel of every one; batch and channels stay."""
    place = Place.of(node, x, target)
    axes = resized_axes(b, node, x, roi, scales, sizes)
    down, across = nearest_pixels(b, node, x, axes)
    shape = x.shape[0], axes[1].out, axes[2].out, place.channels
    if target is None and place.channels == x.shape[3]:
        return taken_pixels(b, x, 1, down, across)
    y = place.output(b, shape, x.dtype == HALF)
    if y.size:
        kernels = b.constant(_single(b, x, "copy_halves", "copy"))
        flat = b.flat(x), b.flat(y), down, across
        b.call(take_pixels, *flat, kernels, channel_slice(place, y), *x.shape[1:3])
    return y


@kernel("RoiAlign", domain=DOMAIN, dtypes={0: F32, 1: F32, 2: INT64}, check=check_ratio)
def roi_align(b: Builder, node: Node, x: Operand, rois: Operand, batches: Operand) -> Operand:
    """Regions of interest, sampled bilinearly to a fixed size: (regions, oh, ow, C)."""
    return emit_roi_align(b, node, x, rois, batches)


def _single(
    b: Builder, x: Operand, half: str, single: str
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The kernel for images as they are kept."""
    return single_kernel(choice_of(b).level, half if x.dtype == HALF else single)
