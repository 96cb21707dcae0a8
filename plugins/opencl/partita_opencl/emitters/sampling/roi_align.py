"""RoiAlign: regions of images, sampled to a fixed size."""

from __future__ import annotations

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Node, Operand
from partita.lowering.kernel_table import refused_choice
from partita_opencl.emitters.operator_table import FLOATS, INDICES, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, f32, i32, i64, ints, is_half
from partita_opencl.launches.steps import FAULT

MOST_SAMPLES = 1024
"""Samples of a cell along an axis; as in the kernel."""


def _known(node: Node) -> Reason | None:
    ratio = node.attrs.get("sampling_ratio", 0)
    if not 0 <= ratio <= MOST_SAMPLES:
        what = f"sampling_ratio is {ratio}; takes 0 to {MOST_SAMPLES}"
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, what)
    return refused_choice(node, "mode", "avg", "max")


@operator("RoiAlign", types={0: FLOATS, 1: FLOATS, 2: INDICES}, check=_known, since=10, folds=False)
def roi_align(k: Kit, node: Node, x: Operand, regions: Operand, images: Operand) -> Operand:
    """The mean, or the largest term, of samples in each cell of each region."""
    attrs = node.attrs
    high, wide = attrs.get("output_height", 1), attrs.get("output_width", 1)
    count, channels = regions.shape[0], x.shape[1]
    y = k.empty((count, channels, high, wide), x.dtype)
    mode = attrs.get("coordinate_transformation_mode", "half_pixel")
    flags = {
        "LARGEST": attrs.get("mode", "avg") == "max",
        "X_HALF": is_half(x.dtype),
        "REGIONS_HALF": is_half(regions.dtype),
    }
    k.launch(
        "roi_align.cl",
        "roi_align",
        k.tuning.grid(high * wide, channels, count),
        x,
        regions,
        images,
        y,
        FAULT,
        ints(x.shape[3], x.shape[2], wide, high),
        i32(channels),
        i32(count),
        i64(x.shape[0]),
        f32(attrs.get("spatial_scale", 1.0)),
        f32(0.5 if node.version >= 16 and mode == "half_pixel" else 0.0),
        i32(attrs.get("sampling_ratio", 0)),
        i32(len(k.builder.ops)),
        I=ctype_of(images.dtype),
        **{name: None for name, on in flags.items() if on},
    )
    return y
