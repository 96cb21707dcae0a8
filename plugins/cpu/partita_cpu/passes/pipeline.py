"""The order of all graph passes of device CPU, and the reasons for it.

:func:`prepare` runs once for a model, before shapes are known. :data:`PASSES` run for the concrete
shapes of a request, on a copy of the graph. A pass names those that must have run before it;
`tests/device/cpu/test_pass_order.py` checks that the list keeps to that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from partita.lowering import (
    Graph,
    Target,
    fold_quantized_weights,
    fuse,
    fuse_for_shapes,
    fuse_levels,
)
from partita.lowering.fusion import Shapes
from partita.lowering.fusion.stored_weights import Reads, fold_and_fuse
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import reads_stored
from partita_cpu.passes.activated_rows import activate_rows
from partita_cpu.passes.as_images.conv1d_as_conv2d import Sequences
from partita_cpu.passes.as_images.conv3d_as_conv2d import Volumes
from partita_cpu.passes.attention_in_place import attend_in_place
from partita_cpu.passes.early_rows import take_rows_early
from partita_cpu.passes.gated_activations import join_gates
from partita_cpu.passes.indexed_rows import index_rows
from partita_cpu.passes.inplace_concat import write_in_place
from partita_cpu.passes.input_scale import fuse_input_scale
from partita_cpu.passes.merged_factors import merge_factors
from partita_cpu.passes.nhwc import channels_last
from partita_cpu.passes.precision.half_activations import keep_halves
from partita_cpu.passes.precision.rounded_matrices import round_matrices
from partita_cpu.passes.precision.widened_halves import widen_halves
from partita_cpu.passes.scaled_gates import scale_gates
from partita_cpu.passes.separable_fusion import join_bottlenecks, join_separable
from partita_cpu.passes.split_attention import add_images_apart
from partita_cpu.passes.strided_operands import read_strided
from partita_cpu.passes.tiles.gated_products import join_gated_products
from partita_cpu.passes.tiles.tiled_activations import keep_tiles
from partita_cpu.passes.tiles.tiled_normalizations import normalize_to_tiles
from partita_cpu.query import takes


class CpuPass(NamedTuple):
    """A rewrite of a graph whose shapes are known.

    Attributes:
        name: The name of the function or class that does it.
        run: Changes the graph. Returns the shapes of all values if there are new ones that later
            passes ask for, otherwise ``None``.
        reason: Why it stands where it does.
        after: The passes that must have run before it, by name.
        applies: Whether it runs under a policy.
    """

    name: str
    run: Callable[[Graph, Shapes, PrecisionPolicy], Shapes | None]
    reason: str
    after: tuple[str, ...] = ()
    applies: Callable[[PrecisionPolicy], bool] = lambda policy: policy.native


def _always(policy: PrecisionPolicy) -> bool:
    return True


def _on_tiles(policy: PrecisionPolicy) -> bool:
    return policy.native and policy.level.tiles


PASSES = (
    CpuPass(
        "fuse_for_shapes",
        lambda graph, shapes, _: fuse_for_shapes(graph, shapes, takes),
        "Residual sums become inputs of products and convolutions, which later passes look for.",
        applies=_always,
    ),
    CpuPass(
        "take_rows_early",
        lambda graph, shapes, _: take_rows_early(graph, shapes),
        "Follows rows through residual sums, whether these are nodes or products took them in; and "
        "through activations that join_gates has not joined yet.",
        applies=_always,
    ),
    CpuPass(
        "index_rows",
        lambda graph, shapes, _: index_rows(graph, shapes),
        "Needs no other pass, and no other needs it.",
        applies=_always,
    ),
    CpuPass(
        "attend_in_place",
        attend_in_place,
        "Reads the products, reshapes and transpositions as exporters write them.",
        after=("fuse_for_shapes",),
    ),
    CpuPass(
        "add_images_apart",
        lambda graph, shapes, _: add_images_apart(graph, shapes),
        "Makes images of four axes of tensors of five, for channels_last.",
    ),
    CpuPass(
        "activate_rows",
        lambda graph, shapes, _: activate_rows(graph, shapes),
        "Looks for a Transpose before a convolution: Sequences puts a view between the two.",
    ),
    CpuPass(
        "merge_factors",
        lambda graph, shapes, _: merge_factors(graph, shapes),
        "Factors and masks of attention that is spelled out are attend_in_place's.",
        after=("attend_in_place",),
    ),
    CpuPass(
        "Sequences",
        lambda graph, shapes, _: Sequences(graph, shapes).run(),
        "Puts views around convolutions: activate_rows looks for a Transpose right before one.",
        after=("activate_rows",),
    ),
    CpuPass(
        "Volumes",
        lambda graph, shapes, _: Volumes(graph, shapes).run(),
        "Needs no other pass; what it makes are images of four axes, for channels_last.",
    ),
    CpuPass(
        "channels_last",
        lambda graph, shapes, _: channels_last(graph, shapes),
        "Moves what are images by now, and gives their operators another domain.",
        after=("add_images_apart", "activate_rows", "merge_factors", "Sequences", "Volumes"),
    ),
    CpuPass(
        "fuse_input_scale",
        lambda graph, shapes, _: fuse_input_scale(graph),
        "Looks for convolutions and ScaleShift with channels last.",
        after=("channels_last",),
    ),
    CpuPass(
        "scale_gates",
        lambda graph, shapes, _: scale_gates(graph),
        "Looks for convolutions with channels last.",
        after=("channels_last",),
    ),
    CpuPass(
        "keep_halves",
        keep_halves,
        "Marks results of nodes, which must be those that are left of images and of attention.",
        after=("attend_in_place", "channels_last", "fuse_input_scale", "scale_gates"),
    ),
    CpuPass(
        "write_in_place",
        lambda graph, shapes, _: write_in_place(graph),
        "A buffer has the element type of the images in it, which keep_halves chooses; images that "
        "convolutions scale themselves need none.",
        after=("channels_last", "fuse_input_scale", "keep_halves"),
    ),
    CpuPass(
        "join_separable",
        lambda graph, shapes, _: join_separable(graph),
        "A joined node reads and writes whole images: those in buffers stay apart.",
        after=("channels_last", "fuse_input_scale", "write_in_place"),
    ),
    CpuPass(
        "join_bottlenecks",
        lambda graph, shapes, _: join_bottlenecks(graph),
        "Adds a convolution to what join_separable has made.",
        after=("join_separable",),
    ),
    CpuPass(
        "keep_tiles",
        keep_tiles,
        "The next node must read the tiles: no later pass may put one between two products.",
        after=("attend_in_place", "channels_last", "keep_halves"),
    ),
    CpuPass(
        "join_gates",
        lambda graph, shapes, _: join_gates(graph, shapes),
        "Passes before it know the activation and the product by themselves, not joined.",
        after=("take_rows_early", "channels_last"),
        applies=_always,
    ),
    CpuPass(
        "join_gated_products",
        lambda graph, shapes, _: join_gated_products(graph),
        "Adds both products to what join_gates has made.",
        after=("join_gates",),
        applies=_on_tiles,
    ),
    CpuPass(
        "normalize_to_tiles",
        lambda graph, shapes, _: normalize_to_tiles(graph),
        "The next nodes must read the tiles: two products that are joined now are one of them.",
        after=("join_gated_products",),
        applies=_on_tiles,
    ),
    CpuPass(
        "read_strided",
        lambda graph, shapes, _: read_strided(graph, shapes),
        "Takes what is left of slices and transpositions: images, attention, halves and gates know "
        "them, and the arithmetic behind them, as the model has them.",
        after=("attend_in_place", "channels_last", "keep_halves", "join_gates"),
    ),
)
"""The passes for concrete shapes, in the order in which they run."""


def prepare(graph: Graph, target: Target, policy: PrecisionPolicy) -> int:
    """Rewrites a model's graph in ways that are right for all shapes.

    Args:
        graph: As it was lowered; changed in place, with the bodies in it.
        target: The back-end; constants are folded by its kernels.
        policy: How native kernels compute.

    Returns:
        How many matrices of weights were rounded to bfloat16.
    """
    # Operators on levels are looked for where weights are constant levels that DequantizeLinear
    # reads: weights that the graph quantizes must be levels by then, and its DequantizeLinear of
    # constants must not be folded yet.
    fold_quantized_weights(graph, target)
    fuse_levels(graph, takes)
    reads = functools.partial(reads_stored, policy)
    fold_and_fuse(graph, target, lambda: _fuse(graph, reads), reads)
    # Which products are left, and read which constants, is only known now.
    return round_matrices(graph, policy) if policy.rounds_matrices else 0


def refine(policy: PrecisionPolicy, graph: Graph, shapes: Shapes) -> None:
    """Runs the passes for concrete shapes.

    Args:
        policy: How native kernels compute.
        graph: Changed in place.
        shapes: Of all values that nodes compute.
    """
    for one in PASSES:
        if one.applies(policy):
            shapes = one.run(graph, shapes, policy) or shapes


def _fuse(graph: Graph, reads: Reads) -> None:
    # Products of 16-bit floats first: fusion knows those of float32.
    widen_halves(graph, reads)
    fuse(graph, accepts=takes)
