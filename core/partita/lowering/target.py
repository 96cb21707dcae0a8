"""Targets: the hooks and options by which a back-end controls specialization."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.lowering.emission.builder import Builder
from partita.lowering.emitter import Emitted, Emitter
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array, Operand, Program, Step
from partita.lowering.shapes.fold_allowance import (
    MUST_FOLD_FACTOR,
    FoldAllowance,
    foldable,
)
from partita.lowering.shapes.size_arithmetic import Evaluator
from partita.lowering.transformed_weights import Prepacked

Shape = tuple[int, ...]

MOST_KEPT_BYTES = 1 << 27
"""Default limit, in bytes, for the programs that are kept for shapes seen before."""


@dataclass
class Target:
    """The hooks and options of a back-end; shared by a graph, its rests and its bodies.

    Only ``find`` is required. A hook that is ``None`` is not called.

    Attributes:
        find: Returns the emitter of a node for operands of these types; raises
            :class:`~partita.errors.CompileError` if there is none.
        allow_split: Whether programs may be split at values only known at run time. If not, models
            that need it do not compile; for back-ends that cannot read back values in the middle.
        fold: Computes a node whose inputs are all constants, for back-ends whose steps cannot
            run on numpy arrays at compile time. ``None``: the back-end's own kernels compute it.
        refine: Rewrites a copy of the graph that has all concrete shapes before its program is
            made, for fusion that is only valid for certain shapes. Called with the graph, whose
            node list it may change, and the shapes of its values. Branches that are taken replace
            their If; nodes that fold may be missing.
        options: Passed to emitters as :attr:`Builder.options`.
        prepacked: Transformed weights; see :meth:`Builder.prepack`.
        most_kept_bytes: Limit for all programs of a graph together, without transformed weights,
            which they share; the least recently used ones are dropped.
        arrange: For back-ends whose emitters compute with symbolic sizes
            (:mod:`partita.lowering.shapes.symbolic_size`): programs are then recorded once for a
            class of shapes. Called with such a program; its result, with numbers in place of
            expressions, becomes :attr:`Program.made` of every program of the class.
            ``None``: every program is emitted for its sizes.
        evaluator: Computes arithmetic of sizes, for programs that are recorded
            (:mod:`partita.lowering.shapes.size_arithmetic`). ``None``: Python does.
        copy: Records a copy of an operand, so that steps also write outputs that are inputs,
            constants or repeated; returns the copy, or ``None`` for an unsupported type. ``None``:
            the engine that runs the program copies them.
        complete: Transforms the steps of a complete program, for instance by fusing them; called
            with the steps and the operands that hold outputs.
        settle: Called when a program has all its steps, before it is returned; runs deferred
            transformations of weights.
        expect: Records a node of a body whose sizes depend on values only known at run time, for
            the sizes of the first iteration, with which it is called by output. Its steps raise
            :class:`~partita.lowering.OtherSizes` if a run has others. Returns the outputs, or
            ``None`` for an unsupported operator. ``None``: programs are always split at such nodes,
            and the rest is made for each value.
        fold_bytes: Bytes that folding may make before shapes are known; what is left of them is for
            each program. The run computes what exceeds them. ``None``: by the weights of the graph
            that is compiled first, see
            :func:`~partita.lowering.shapes.fold_allowance.foldable`.
        must_fold_bytes: Bytes that a program may fold for nodes that need constants; a model that
            exceeds them is refused. ``None``: by the same weights.
        fold_operations: Like ``fold_bytes``, for the number of operations, see
            :func:`~partita.lowering.shapes.fold_allowance.foldable`.
        must_fold_operations: Like ``must_fold_bytes``, for the number of operations.
        arena: Whether intermediate tensors are planned in one arena. If not, the back-end places
            them, and :attr:`Program.offsets` is empty.
    """

    find: Callable[[Node, Sequence[Operand | None]], Emitter]
    allow_split: bool = True
    fold: Callable[[Node, Sequence[Array | None]], Sequence[Array]] | None = None
    refine: Callable[[Graph, Mapping[Value, tuple[int, ...]]], None] | None = None
    options: Any = None
    prepacked: Prepacked = field(default_factory=Prepacked)
    most_kept_bytes: int = MOST_KEPT_BYTES
    arrange: Callable[[Program], Any] | None = None
    evaluator: Evaluator | None = None
    copy: Callable[[Builder, Operand], Operand | None] | None = None
    complete: Callable[[Sequence[Step], Collection[Operand]], list[Step]] | None = None
    settle: Callable[[], None] | None = None
    fold_bytes: float | None = None
    must_fold_bytes: float | None = None
    fold_operations: float | None = None
    must_fold_operations: float | None = None
    arena: bool = True
    expect: Callable[[Builder, Node, Sequence[Operand | None], Sequence[Shape]], Emitted] | None = (
        None
    )

    def allowance(self, graph: Graph, widely: bool = False) -> FoldAllowance:
        """The limits for folding constants of a graph.

        Args:
            graph: The graph.
            widely: Whether it is for nodes that need constants, and cannot compute at run time.
        """
        of_graph = functools.cache(lambda: foldable(graph))
        if self.must_fold_bytes is None:  # once, before transformed weights are added
            self.must_fold_bytes = MUST_FOLD_FACTOR * of_graph()[0]
        if self.fold_bytes is None:
            self.fold_bytes = of_graph()[0]
        if self.must_fold_operations is None:
            self.must_fold_operations = MUST_FOLD_FACTOR * of_graph()[1]
        if self.fold_operations is None:
            self.fold_operations = of_graph()[1]
        return FoldAllowance(
            self.must_fold_bytes if widely else self.fold_bytes,
            self.must_fold_operations if widely else self.fold_operations,
            interpreted=self.fold is not None,
        )
