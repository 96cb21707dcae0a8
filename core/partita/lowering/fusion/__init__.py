"""Fusion: passes that replace patterns of nodes by fewer nodes, in place, on lowered graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita.lowering.fusion.attention import fuse_attention
from partita.lowering.fusion.cleanup import remove_idle
from partita.lowering.fusion.epilogue import fuse_epilogues
from partita.lowering.fusion.norm import fuse_batch_normalization, fuse_layer_normalization
from partita.lowering.fusion.padding import fuse_pads
from partita.lowering.fusion.pointwise import fuse_gelu, fuse_hard_activations, fuse_silu
from partita.lowering.fusion.prologue import fuse_prologues
from partita.lowering.fusion.quantized import fuse_quantized
from partita.lowering.fusion.quantized_flow import fuse_quantized_flow
from partita.lowering.fusion.rewriting import Accepts, Rewriter, Shapes
from partita.lowering.graph import Graph, Node

Pass = Callable[[Rewriter], None]

PASSES: tuple[Pass, ...] = (
    remove_idle,
    fuse_hard_activations,
    fuse_silu,
    fuse_gelu,
    fuse_layer_normalization,
    fuse_attention,
    fuse_pads,
    fuse_batch_normalization,
    fuse_epilogues,
    fuse_prologues,
)
"""All passes, in the order in which they help one another."""

__all__ = [
    "PASSES",
    "Accepts",
    "Pass",
    "Shapes",
    "fuse",
    "fuse_quantized",
    "fuse_quantized_flow",
    "fuse_residuals",
]


def fuse(graph: Graph, passes: Sequence[Pass] = PASSES, accepts: Accepts | None = None) -> None:
    """Runs passes over a graph and the bodies in it.

    A value that is an output, or that something outside the pattern reads, is never fused away.

    Args:
        graph: Changed in place.
        passes: What to run, in order.
        accepts: Whether the back-end has a kernel for a node that fusion wants to make; patterns
            whose result it refuses stay as they are. ``None`` accepts all.
    """
    for node in graph.nodes:
        for body in node.graphs():
            fuse(body, passes, accepts)
    rewriter = Rewriter(graph, accepts or _all, {})
    for run in passes:
        run(rewriter)
    rewriter.finish()


def fuse_residuals(graph: Graph, shapes: Shapes, accepts: Accepts | None = None) -> None:
    """Fuses the residual additions that only concrete shapes show to be such; no bodies.

    A :attr:`~partita.lowering.Target.refine` for models with dynamic shapes.
    """
    rewriter = Rewriter(graph, accepts or _all, shapes)
    fuse_epilogues(rewriter)
    rewriter.finish()


def _all(node: Node) -> bool:
    return True
