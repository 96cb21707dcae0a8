"""What a back-end brings to the making of programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.lowering.builder import Builder, Emitted, Emitter
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array, Operand, Program, Step
from partita.lowering.shapes.fold_allowance import (
    MUST_FOLD_FACTOR,
    FoldAllowance,
    allowed_bytes,
    allowed_operations,
)
from partita.lowering.transformed_weights import Prepacked

Shape = tuple[int, ...]

MOST_KEPT_BYTES = 1 << 27
"""What programs of shapes seen before may take, unless a back-end says otherwise."""


@dataclass
class Target:
    """What a back-end brings to specialization; shared by a graph, its rests and its bodies.

    Attributes:
        find: The emitter of a node for operands of these types.
            Raises :class:`~partita.errors.CompileError` where there is none.
        allow_split: Whether programs may be split at values only known at run time. Back-ends
            that cannot read back values in the middle set it to false; then such models do not
            compile.
        fold: Computes a node whose inputs are all constants, for back-ends whose steps cannot
            run on numpy arrays at compile time. ``None``: its own kernels compute it.
        refine: Rewrites a copy of the graph that knows all concrete shapes, before its program
            is made; for fusion that is only right for certain shapes. Called with the graph,
            whose node list it may change, and the shapes of its values. Branches that are taken
            stand in the place of their If; nodes that fold may be missing. ``None``: nothing.
        options: For emitters, which find it as :attr:`Builder.options`; not looked at here.
        prepacked: Transformed weights; see :meth:`Builder.prepack`.
        most_kept_bytes: What the programs of a graph may take together before those used least
            recently are forgotten, without transformed weights, which all programs share.
        arrange: Whose emitters compute with sizes that stand for others
            (:mod:`partita.lowering.shapes.symbolic_size`): programs are then recorded once for a
            class of shapes. Called with such a program; what it returns, with expressions in
            the places of numbers, every program of the class has as :attr:`Program.recorded`.
            ``None``: every program is emitted for its sizes.
        copy: Records a copy of an operand, so that outputs that are inputs, constants or repeated
            are made by steps like others; returns the copy, or ``None`` for a type that it does not
            take. ``None``: whoever runs the program copies them.
        complete: Makes the steps of a program final, such as by fusing them; called with them and
            the operands that outputs lie in. ``None``: they are.
        settle: Called when all steps of a program are there, before it is handed out: does what
            transformations of weights have put off. ``None``: they put off nothing.
        expect: Records a node of a body, whose sizes follow from values that only the run tells,
            for the sizes that they had in the first iteration: called with these, by output. Its
            steps raise :class:`~partita.lowering.OtherSizes` where a run has others. Returns the
            outputs, or ``None`` for an operator that it does not know. ``None``: programs are
            always split at such nodes, and the rest is made anew for each value.
        fold_bytes: What folding may make before shapes are known, and what is left of that for each
            program; more is computed by the run. ``None``: by the weights of the graph that is
            compiled first, see :func:`~partita.lowering.shapes.fold_allowance.allowed_bytes`.
        must_fold_bytes: What a program may fold where a node cannot do with what the run computes;
            a model that needs more is refused. ``None``: by the same weights.
        fold_operations: As ``fold_bytes``, how many operations folding may take, see
            :func:`~partita.lowering.shapes.fold_allowance.allowed_operations`.
        must_fold_operations: As ``must_fold_bytes``, how many a program may take.
        arena: Whether intermediate tensors lie in one arena. If not, the back-end places them, and
            :attr:`Program.offsets` is empty.
    """

    find: Callable[[Node, Sequence[Operand | None]], Emitter]
    allow_split: bool = True
    fold: Callable[[Node, Sequence[Array | None]], Sequence[Array]] | None = None
    refine: Callable[[Graph, Mapping[Value, tuple[int, ...]]], None] | None = None
    options: Any = None
    prepacked: Prepacked = field(default_factory=Prepacked)
    most_kept_bytes: int = MOST_KEPT_BYTES
    arrange: Callable[[Program], Any] | None = None
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
        """What may be folded of a graph that this compiles.

        Args:
            graph: The graph.
            widely: Whether nodes need what is folded, and cannot have it of the run.
        """
        if self.must_fold_bytes is None:  # once, before weights are joined by what is made of them
            self.must_fold_bytes = MUST_FOLD_FACTOR * allowed_bytes(graph)
        if self.fold_bytes is None:
            self.fold_bytes = allowed_bytes(graph)
        if self.must_fold_operations is None:
            self.must_fold_operations = MUST_FOLD_FACTOR * allowed_operations(graph)
        if self.fold_operations is None:
            self.fold_operations = allowed_operations(graph)
        return FoldAllowance(
            self.must_fold_bytes if widely else self.fold_bytes,
            self.must_fold_operations if widely else self.fold_operations,
            interpreted=self.fold is not None,
        )
