"""Fusion: passes that replace patterns of nodes by fewer nodes, in place, on lowered graphs.

A pass is a function with :func:`~partita.lowering.fusion.rewriting.fusion_pass`, in a module of
this package: it is found there, and needs no further entry.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from partita.lowering.fusion.epilogue import fuse_epilogues
from partita.lowering.fusion.padding import fuse_pads
from partita.lowering.fusion.quantized.block_weights import fuse_block_weights
from partita.lowering.fusion.quantized.blocks import put_blocks
from partita.lowering.fusion.quantized.bounds import put_bounds_behind
from partita.lowering.fusion.quantized.flow import fuse_quantized_flow
from partita.lowering.fusion.quantized.joined import join_levels
from partita.lowering.fusion.quantized.products import fuse_quantized
from partita.lowering.fusion.quantized.spelled import name_dequantizations
from partita.lowering.fusion.quantized.tables import tabulate_levels
from partita.lowering.fusion.quantized.unsigned import make_unsigned
from partita.lowering.fusion.rewriting import PASSES, Accepts, Pass, Rewriter, Shapes
from partita.lowering.graph import Graph, Node
from partita.system.modules import import_modules

__all__ = [
    "Accepts",
    "Pass",
    "Shapes",
    "all_passes",
    "fuse",
    "fuse_for_shapes",
    "fuse_levels",
]


@functools.cache
def all_passes() -> Sequence[Pass]:
    """All passes, in the order in which they help one another; looked for once."""
    import_modules(sys.modules[__name__])
    return tuple(sorted(PASSES, key=PASSES.__getitem__))


def fuse(
    graph: Graph, passes: Sequence[Pass] | None = None, accepts: Accepts | None = None
) -> None:
    """Runs passes over a graph and the bodies in it.

    A value that is an output, or that something outside the pattern reads, is never fused away.

    Args:
        graph: Changed in place.
        passes: What to run, in order; ``None`` stands for all.
        accepts: Whether the back-end has a kernel for a node that fusion wants to make; patterns
            whose result it refuses stay as they are. ``None`` accepts all.
    """
    passes = all_passes() if passes is None else passes
    for node in graph.nodes:
        for body in node.graphs():
            fuse(body, passes, accepts)
    rewriter = Rewriter(graph, accepts or _all, {})
    for run in passes:
        run(rewriter)
    rewriter.finish()


def fuse_levels(graph: Graph, accepts: Accepts | None = None) -> None:
    """Fuses what computes with levels between DequantizeLinear and QuantizeLinear, if any does.

    To be run before constants are folded, since dequantized weights are constants.
    """
    name_dequantizations(graph)
    make_unsigned(graph)
    put_blocks(graph, accepts or _all)
    join_levels(graph, accepts or _all)
    put_bounds_behind(graph, accepts or _all)
    tabulate_levels(graph, accepts or _all)
    if any(node.op_type == "DequantizeLinear" for node in graph.all_nodes()):
        fuse(graph, (fuse_quantized, fuse_quantized_flow), accepts)
    fuse(graph, (fuse_block_weights,), accepts)


def fuse_for_shapes(graph: Graph, shapes: Shapes, accepts: Accepts | None = None) -> None:
    """Fuses what only concrete shapes show to be a residual addition or padding; no bodies.

    A :attr:`~partita.lowering.Target.refine` for models whose shapes are dynamic or computed.

    Args:
        graph: The graph, which is changed.
        shapes: Shapes of its values.
        accepts: Says of a fused node whether the device takes it; all are taken where it is
            ``None``.
    """
    rewriter = Rewriter(graph, accepts or _all, shapes)
    fuse_pads(rewriter)
    fuse_epilogues(rewriter)
    rewriter.finish()


def _all(node: Node) -> bool:
    return True
