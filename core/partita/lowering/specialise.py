"""From a graph and concrete shapes to a flat program of steps.

Constants fold. Where an operator needs the *value* of a tensor (the shape of a Reshape, the
condition of an If), there are two ways. If the value derives from small integer inputs only, these
inputs become value inputs: their elements join the key of the program and everything folds.
Otherwise the program is split: the operators that hang on the value wait in a rest, which is
specialised when the first part has run, once for each value that occurs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.lowering.builder import Emitter
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.prepacked import Prepacked
from partita.lowering.program import Array, Operand, Program, plain
from partita.lowering.walk import MoreValueInputs, Walk

Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and element type of one input."""

PROGRAMS = 32
"""Programs kept per graph; the least recently used one goes first."""


@dataclass
class Target:
    """What a back-end brings to specialisation; shared by a graph, its rests and its bodies.

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
            stand in the place of their If. ``None``: nothing.
        options: For emitters, which find it as :attr:`Builder.options`; not looked at here.
        prepacked: Transformed weights; see :meth:`Builder.prepack`.
    """

    find: Callable[[Node, Sequence[Operand | None]], Emitter]
    allow_split: bool = True
    fold: Callable[[Node, Sequence[Array | None]], Sequence[Array]] | None = None
    refine: Callable[[Graph, Mapping[Value, tuple[int, ...]]], None] | None = None
    options: Any = None
    prepacked: Prepacked = field(default_factory=Prepacked)


class Specialiser:
    """Makes and keeps the programs of one graph. Thread-safe.

    Args:
        graph: The graph; not changed, and not to be changed while this lives.
        target: The back-end's part.
        known: Constants beyond those in the graph, for values that the graph reads.
        value_inputs: Indices of inputs whose elements belong to the key from the start.
        derive_value_inputs: Whether more inputs may become value inputs.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        *,
        known: Mapping[Value, Array] | None = None,
        value_inputs: Sequence[int] = (),
        derive_value_inputs: bool = True,
    ) -> None:
        self.graph = graph
        self.target = target
        self.known = dict(known or {})
        self.value_inputs = tuple(sorted(value_inputs))
        self._fixed_value_inputs = self.value_inputs
        self.derives = derive_value_inputs
        self._programs: OrderedDict[Any, Program] = OrderedDict()
        self._lock = threading.RLock()

    def program(self, specs: Sequence[Spec], value_of: Callable[[int], Array]) -> Program:
        """The program for inputs of these shapes and types.

        Args:
            specs: Shape and type of every graph input.
            value_of: Gives the elements of an input on the host; called for value inputs only.

        Raises:
            CompileError: The graph cannot be compiled for these inputs.
        """
        key = self.key(specs, value_of)
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
                return found
            if len(self._programs) >= PROGRAMS:
                self._make_room()
            made = self._build(specs, value_of)
            self._programs[self.key(specs, value_of)] = made
            return made

    def program_for(self, arrays: Sequence[Array]) -> Program:
        """The program for these inputs."""
        return self.program([(a.shape, a.dtype) for a in arrays], lambda index: arrays[index])

    def nested(
        self,
        graph: Graph,
        known: Mapping[Value, Array],
        value_inputs: Sequence[int] = (),
        derive_value_inputs: bool = False,
    ) -> Specialiser:
        """A specialiser for a body of this graph, or for the rest of it."""
        return Specialiser(
            graph,
            self.target,
            known=known,
            value_inputs=value_inputs,
            derive_value_inputs=derive_value_inputs,
        )

    def key(self, specs: Sequence[Spec], value_of: Callable[[int], Array]) -> Any:
        """What tells programs apart; compares equal for inputs that have the same program."""
        shapes = tuple(specs)
        if not self.value_inputs:
            return shapes
        return shapes, tuple(value_of(index).tobytes() for index in self.value_inputs)

    def _make_room(self) -> None:
        """Forgets the oldest program, or all value inputs if it is their values that flood."""
        if self.value_inputs != self._fixed_value_inputs and self.target.allow_split:
            self.value_inputs = self._fixed_value_inputs
            self.derives = False
            self._programs.clear()
        else:
            self._programs.popitem(last=False)

    def _build(self, specs: Sequence[Spec], value_of: Callable[[int], Array]) -> Program:
        while True:
            values = {index: plain(np.array(value_of(index))) for index in self.value_inputs}
            try:
                return self._refined(specs, values)
            except MoreValueInputs as more:
                self.value_inputs = tuple(sorted({*self.value_inputs, *more.indices}))

    def _refined(self, specs: Sequence[Spec], values: Mapping[int, Array]) -> Program:
        """The program; if knowing the shapes lets the graph be rewritten, that of the new one."""
        first = Walk(self, self.graph, specs, values)
        first.emit()
        refine = self.target.refine
        if refine is None:
            return first.finish()
        made = [v for node in first.walked for v in node.outputs if v is not None]
        producers = [value.producer for value in made]
        graph = Graph(self.graph.inputs, self.graph.outputs, first.walked, self.graph.name)
        refine(graph, first.shapes())
        changed = graph.nodes != first.walked
        program = Walk(self, graph, specs, values).run() if changed else first.finish()
        for value, producer in zip(made, producers, strict=True):
            value.producer = producer
        return program
