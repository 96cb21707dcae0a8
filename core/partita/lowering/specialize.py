"""Specialization: from a graph and concrete shapes to a flat program of steps.

Constants are folded. Where an operator needs the *value* of a tensor (the shape of a Reshape, the
condition of an If), there are two ways:

- The value depends on small integer inputs only (for a target that cannot split, also on a few
  floats): these become value inputs, whose elements are part of the program's key, and everything
  is folded.
- Otherwise the program is split: operators that depend on the value form a rest, which is
  specialized after the first part has run, once for each value that occurs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from partita.errors import CompileError
from partita.lowering.emission.owner import Sizes
from partita.lowering.emission.signals import MoreValueInputs, MustFoldAll, OtherShapes
from partita.lowering.emission.sketch import PartialSketch, Sketch
from partita.lowering.emission.walk import Walk
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array, Operand, Program, Spec, may_wait, plain
from partita.lowering.recently_used import RecentlyUsed
from partita.lowering.recording.class_programs import ClassPrograms
from partita.lowering.shapes.fold_allowance import FoldAllowance
from partita.lowering.shapes.shape_class import Refine, is_condition, learn, with_known_numbers
from partita.lowering.shapes.shape_rules import check_demands
from partita.lowering.target import Target
from partita.model.model import Port, is_static
from partita.system.gc_pause import few_collections
from partita.system.threads.fork_order import forks_wait
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.tensors.layout import MemoryLayout

_log = logging.getLogger(__name__)

T = TypeVar("T")

FLOOD = 32
"""Programs for the same shapes, told apart by elements of inputs, before these are left to the run.
"""

_MOST_COUNTED = 1 << 10
"""Shapes whose programs are counted; then the count begins anew."""

MOST_EXPECTED = 8
"""Programs of a body for sizes that are expected; one that has more has sizes that vary instead.

A loop that adds to a tensor in each iteration would be compiled in each.
"""

CLASSES = 16
"""Classes of shapes that are learned per graph; what is of none of them is sketched each time."""


class Specializer:
    """Makes and keeps the programs of one graph. Thread-safe.

    Args:
        graph: The graph; not changed, and not to be changed while this lives.
        target: The back-end's part.
        known: Constants beyond those in the graph, for values that the graph reads.
        value_inputs: Indices of inputs whose elements belong to the key from the start.
        derive_value_inputs: Whether more inputs may become value inputs.
        repeated: Whether it is run again and again with other elements, as the body of a loop:
            shapes that depend on them are then expected to stay as they first were, unless there
            are many.
        sizes: Of the rest of a recorded program, by input the sizes that are numbers in all of
            its programs, ``None`` for each other one: these are going to vary.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        *,
        known: Mapping[Value, Array] | None = None,
        value_inputs: Sequence[int] = (),
        derive_value_inputs: bool = True,
        repeated: bool = False,
        sizes: Sequence[Sizes] = (),
    ) -> None:
        self.graph = graph
        self.target = target
        self.evaluator = target.evaluator
        self.known = dict(known or {})
        self.value_inputs = tuple(sorted(value_inputs))
        self._fixed_value_inputs = self.value_inputs
        self._folds_all = False
        self.derives = derive_value_inputs
        self._sizes = sizes
        self._expects = repeated and target.expect is not None and target.allow_split
        self.repeated = self._expects
        self._plain: Specializer | None = None
        self.computed = frozenset(v for node in graph.nodes for v in node.outputs if v is not None)
        self.programs: RecentlyUsed[Any, Program] = RecentlyUsed(
            target.most_kept_bytes, lambda program: program.kept_bytes
        )
        self._made_for: dict[tuple[Spec, ...], set[int]] = {}  # hashes of elements, by shapes
        self._forget_classes()
        self._lock = InterruptSafeLock()
        self._weights: dict[Value, Operand | None] = {
            value: None
            for node in graph.nodes
            for value in node.inputs
            if value is not None and value.const is not None
        }

    @property
    def plain(self) -> Specializer | None:
        """For the same graph one that expects no shapes; ``None`` if this one does not either."""
        if not self._expects:
            return None
        with self._lock:
            if self._plain is None:
                self._plain = Specializer(
                    self.graph,
                    self.target,
                    known=self.known,
                    value_inputs=self._fixed_value_inputs,
                    derive_value_inputs=self.derives,
                )
            return self._plain

    @forks_wait
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
            found = self.programs.get(key)
            if found is not None:
                return found
            if self._stop_a_flood(key):
                key = self.key(specs, value_of)
            told_by = self.value_inputs
            made = self._build(specs, value_of)
            if self.value_inputs != told_by:
                key = self.key(specs, value_of)
            self.programs.add(key, made)
            return made

    def program_for(self, arrays: Sequence[Array]) -> Program:
        """The program for these inputs."""
        return self.program([(a.shape, a.dtype) for a in arrays], lambda index: arrays[index])

    def weight(self, value: Value) -> Operand:
        """The operand of a constant; of one that the graph's own nodes read the same each time.

        Not of one that may be copied later: what is made of it is known by where it lies now.

        Raises:
            CompileError: The value is no constant.
        """
        if value.const is None:
            raise CompileError(f"Value '{value.name}' is used before it is computed.")
        found = self._weights.get(value)
        if found is None:
            waits = may_wait(value.const)
            array = value.const if waits else plain(value.const)
            found = Operand(array.shape, array.dtype, array, lasting=True)
            if value in self._weights and not waits:
                self._weights[value] = found
        return found

    def allowance(self) -> FoldAllowance:
        """What each program may fold."""
        return self.target.allowance(self.graph, self._folds_all)

    def nested(
        self,
        graph: Graph,
        known: Mapping[Value, Array],
        value_inputs: Sequence[int] = (),
        derive_value_inputs: bool = False,
        repeated: bool = False,
        sizes: Sequence[Sizes] = (),
    ) -> Specializer:
        """A specializer for a body of this graph, or for the rest of it; see :class:`Specializer`.

        Args:
            graph: The body.
            known: Constants beyond those in the graph, for values that it reads.
            value_inputs: Indices of inputs whose elements belong to the key from the start.
            derive_value_inputs: Whether more inputs may become value inputs.
            repeated: Whether it runs again and again with other elements, as a loop's body.
            sizes: Of the rest of a recorded program, the sizes that are the same in all of its
                programs; see :class:`Specializer`.
        """
        return Specializer(
            graph,
            self.target,
            known=known,
            value_inputs=value_inputs,
            derive_value_inputs=derive_value_inputs,
            repeated=repeated,
            sizes=sizes,
        )

    def key(self, specs: Sequence[Spec], value_of: Callable[[int], Array]) -> Any:
        """What tells programs apart; compares equal for inputs that have the same program."""
        shapes = tuple(specs)
        if not self.value_inputs:
            return shapes
        return shapes, tuple(value_of(index).tobytes() for index in self.value_inputs)

    def _stop_a_flood(self, key: Any) -> bool:
        """Lets the run find out elements of inputs if they are others again and again."""
        if self.value_inputs == self._fixed_value_inputs or not self.target.allow_split:
            return False
        if len(self._made_for) >= _MOST_COUNTED:
            self._made_for.clear()
        shapes, elements = key
        known = self._made_for.setdefault(shapes, set())
        known.add(hash(elements))
        if len(known) <= FLOOD:
            return False
        self.value_inputs = self._fixed_value_inputs
        self.derives = False
        self.programs.clear()
        self._made_for.clear()
        return True

    def _build(self, specs: Sequence[Spec], value_of: Callable[[int], Array]) -> Program:
        if len(self.programs) >= MOST_EXPECTED:
            self.repeated = False
        while True:
            values = {index: plain(np.array(value_of(index))) for index in self.value_inputs}
            try:
                made = self._recorded(specs, values)
                if made is not None:
                    return made
                with few_collections():
                    if self.repeated:
                        made = self._as_expected(specs, values, value_of)
                    return made or self._refined(specs, values)
            except MoreValueInputs as more:
                self.value_inputs = tuple(sorted({*self.value_inputs, *more.indices}))
                self._forget_classes()  # of fewer elements
            except MustFoldAll as signal:
                if self._folds_all:
                    allowed = self.allowance()
                    raise CompileError(
                        f"{signal.__cause__} What the model computes of its constants would be "
                        f"more than {allowed.operations:.2g} operations or "
                        f"{allowed.left / 2**30:.1f} GiB, which compiling does not make; store the "
                        "results in the model, or check the shapes."
                    ) from signal
                self._folds_all = True

    def _as_expected(
        self,
        specs: Sequence[Spec],
        values: Mapping[int, Array],
        value_of: Callable[[int], Array],
    ) -> Program | None:
        """A program for the shapes that follow from the present elements of small inputs.

        ``None`` if no shape does.
        """
        given = dict(values)
        try:
            while True:
                sketch = PartialSketch(self, self.graph, specs, given)
                try:
                    sketch.emit()
                    break
                except MoreValueInputs as more:
                    given |= {index: plain(np.array(value_of(index))) for index in more.indices}
            if len(given) == len(values):
                return None
            return self._sketched(self.target.refine or _as_it_is, specs, values, sketch.shapes())
        except (OtherShapes, CompileError) as error:
            _log.debug("no sizes are predicted for '%s': %s", self.graph.name, error)
            return None

    def _refined(self, specs: Sequence[Spec], values: Mapping[int, Array]) -> Program:
        """The program; if knowing the shapes lets the graph be rewritten, that of the new one."""
        refine = self.target.refine
        declared = None if refine is None else self._declared(specs)
        if refine is not None and declared is not None:
            try:
                with _producers_kept(self.graph.nodes):
                    graph = self._graph_of(self.graph.nodes)
                    _check_as_declared(graph, declared)
                    refine(graph, declared)
                    return Walk(self, graph, specs, values, as_declared=True).run()
            except (OtherShapes, CompileError) as error:
                _log.debug("the shapes of '%s' are found by a walk: %s", self.graph.name, error)
        ways = [self._by_class] if refine is None else [self._by_class, self._sketched]
        for way in ways:
            try:
                made = way(refine or _as_it_is, specs, values)
            except (OtherShapes, CompileError) as error:
                _log.debug(
                    "the shapes of '%s' are not as declared: %s",
                    self.graph.name,
                    error,
                )
            else:
                if made is not None:
                    return made
        first = Walk(self, self.graph, specs, values)
        if refine is None:
            return first.run()
        first.emit()
        if not first.as_typed:
            return first.finish()
        with _producers_kept(first.walked):
            graph = self._graph_of(first.walked)
            refine(graph, first.shapes())
            changed = graph.nodes != first.walked
            return Walk(self, graph, specs, values).run() if changed else first.finish()

    def _sketched(
        self,
        refine: Refine,
        specs: Sequence[Spec],
        values: Mapping[int, Array],
        expected: Mapping[Value, tuple[int, ...]] | None = None,
    ) -> Program:
        """The program of the graph without what folds, rewritten by the shapes of a sketch.

        Raises:
            OtherShapes: Emitters make other shapes than the sketch has.
        """
        sketch = Sketch(self, self.graph, specs, values, expected=expected)
        sketch.emit()
        if not sketch.as_typed:
            raise OtherShapes("types are not as the model says")
        known = sketch.known()
        with _producers_kept(sketch.walked):
            graph = self._graph_of(with_known_numbers(sketch.unfolded, known.folded))
            refine(graph, known.shapes)
            return Walk(self, graph, specs, values, before=known, expected=expected).run()

    def _recorded(self, specs: Sequence[Spec], values: Mapping[int, Array]) -> Program | None:
        """The program by what was recorded with other sizes; ``None`` if there is nothing."""
        if self._may_have_class(values):
            for known_class in self._classes:
                made = known_class.recorded(specs, values)
                if made is not None:
                    return made
        return None

    def _by_class(
        self, refine: Refine, specs: Sequence[Spec], values: Mapping[int, Array]
    ) -> Program | None:
        """The program by what was learned from other sizes; ``None`` if there is no such class.

        Raises:
            OtherShapes: Emitters make other shapes than were predicted.
        """
        if not self._may_have_class(values):
            return None
        for known_class in self._classes:
            made = known_class.program(specs, values)
            if made is not None:
                return made
        if self._have_varied(specs, values):
            return self._learned(refine, specs, values)
        return None

    def _may_have_class(self, values: Mapping[int, Array]) -> bool:
        return not self.repeated and all(
            array.dtype == np.int64 or is_condition(array) for array in values.values()
        )

    def _forget_classes(self) -> None:
        self._classes: list[ClassPrograms] = []
        self._classes_left = CLASSES
        self._before: tuple[list[Spec], Mapping[int, Array]] | None = None
        self._varying: set[tuple[int, int]] = set()
        self._settled: set[tuple[int, int]] = set()

    def _have_varied(self, specs: Sequence[Spec], values: Mapping[int, Array]) -> bool:
        """Notes which sizes are others than before; whether these differ in sizes alone."""
        before, self._before = self._before, (list(specs), values)
        if before is None and self._sizes:
            return True
        if before is None or any(
            len(x) != len(z) for (x, _), (z, _) in zip(before[0], specs, strict=True)
        ):
            return False
        pairs = zip(_numbers_of(*before), _numbers_of(specs, values), strict=True)
        self._varying |= {
            (index, place)
            for index, (old, new) in enumerate(pairs)
            if index not in values or not is_condition(values[index])
            for place, (one, other) in enumerate(zip(old, new, strict=False))
            if one != other
        }
        return True

    def _said_to_vary(
        self, specs: Sequence[Spec], values: Mapping[int, Array]
    ) -> set[tuple[int, int]]:
        """The sizes that vary by the model's own account, and elements that tell sizes."""
        said = set()
        for index, value in enumerate(self.graph.inputs):
            if index in values:
                array = values[index]
                if not is_condition(array):
                    said |= {(index, element) for element in range(array.size)}
                continue
            dims: Sequence[Any] = value.shape or ()
            if self._sizes:
                known = self._sizes[index]
                dims = [None] * len(specs[index][0]) if known is None else known
            said |= {(index, axis) for axis, dim in enumerate(dims) if not isinstance(dim, int)}
        return said

    def _learned(
        self, refine: Refine, specs: Sequence[Spec], values: Mapping[int, Array]
    ) -> Program | None:
        """The program by a new class of shapes; ``None`` if there can be none.

        All sizes that vary by the model's own account vary in it, so that one class serves when
        another of them does. Those that turn out to be one number for the whole class, as channels
        do that must be those of weights, are that number from the start in another class, which
        takes its place: weights are packed, and emitters choose, by numbers alone. Where all that
        asks too much, those vary that have.

        Raises:
            OtherShapes: Emitters make other shapes than were predicted.
        """
        while self._classes_left:
            self._classes_left -= 1
            may_vary = self._said_to_vary(specs, values) - self._settled - self._varying
            with _producers_kept([*self.graph.all_nodes()]):
                axes = frozenset(self._varying | may_vary)
                found = learn(self, self.graph, refine, specs, axes, values, bool(self._classes))
            if found is None:
                if not may_vary:
                    self._classes_left = 0
                self._settled |= may_vary
                continue
            if settled := found.settled() & may_vary:
                self._settled |= settled
                continue
            programs = ClassPrograms(self, found)
            self._classes.insert(0, programs)
            made = programs.program(specs, values)
            if not may_vary or not programs.needs_numbers:
                return made
            self._classes.remove(programs)
            self._settled |= (programs.settled & may_vary) or may_vary
        return None

    def _graph_of(self, nodes: Sequence[Node]) -> Graph:
        return Graph(self.graph.inputs, self.graph.outputs, nodes, self.graph.name)

    def _declared(self, specs: Sequence[Spec]) -> dict[Value, tuple[int, ...]] | None:
        """The shapes that the graph's values have by its own account, if it tells all of them.

        They save the walk that finds them out; the walk that makes the program checks them. Where
        the graph computes with shapes, a sketch finds what it makes of them, too.
        """
        if any(v.shape != shape for v, (shape, _) in zip(self.graph.inputs, specs, strict=True)):
            return None
        nodes = self.graph.nodes
        if self.known or any(node.kind in ("If", "Shape", "Size") for node in nodes):
            return None
        values = (value for node in nodes for value in (*node.inputs, *node.outputs))
        shapes: dict[Value, tuple[int, ...]] = {}
        for value in [*self.graph.inputs, *values]:
            if value is None or value in shapes:
                continue
            shape = value.shape if value.const is None else value.const.shape
            if not is_static(shape):
                return None
            shapes[value] = shape
        return shapes


def _numbers_of(specs: Sequence[Spec], values: Mapping[int, Array]) -> Iterator[Sequence[int]]:
    """The sizes of each input, or its elements where these are known before a run."""
    for index, (shape, _) in enumerate(specs):
        yield values[index].reshape(-1).tolist() if index in values else shape


def _check_as_declared(graph: Graph, shapes: Mapping[Value, tuple[int, ...]]) -> None:
    """Refuses operations that do not fit the shapes by which they are to be rewritten.

    Raises:
        CompileError: One does not, or a type is not declared.
    """
    for node in graph.nodes:
        operands = [None if v is None else _stand_in(v, shapes[v]) for v in node.inputs]
        check_demands(node, operands)


def _stand_in(value: Value, shape: tuple[int, ...]) -> Operand:
    kind = value.dtype if value.const is None else value.const.dtype
    if kind is None:
        raise CompileError(f"The type of '{value.name}' is not declared.")
    return Operand(shape, kind)


def _as_it_is(graph: Graph, shapes: Mapping[Value, tuple[int, ...]]) -> None:
    """Rewrites nothing: of a class, what folds and the shapes are known all the same."""


@contextlib.contextmanager
def _producers_kept(nodes: Sequence[Node]) -> Iterator[None]:
    """Nodes that take the places of these for a while leave values their producers."""
    made = [value for node in nodes for value in node.outputs if value is not None]
    producers = [value.producer for value in made]
    try:
        yield
    finally:
        for value, producer in zip(made, producers, strict=True):
            value.producer = producer


class _InputNeededError(Exception):
    """What is made depends on the elements of an input."""


def _not_yet(index: int) -> Array:
    raise _InputNeededError


def made_ahead(
    ports: Sequence[Port],
    layouts: Mapping[Port, MemoryLayout],
    make: Callable[[Sequence[Spec], Callable[[int], Array]], T],
    sizes: Mapping[str, int] | None = None,
) -> T | None:
    """What a compiled model makes before its first run, such as a program.

    Args:
        ports: Its inputs.
        layouts: Those of ports whose tensors lie in memory otherwise than they say.
        make: Called as :meth:`Specializer.program`.
        sizes: Of dimensions that vary, by symbol.

    Returns:
        What was made; ``None`` if that depends on a shape or on elements that only a run has.
    """
    specs: list[Spec] = []
    for port in ports:
        shape = port.shape
        if sizes is not None and shape is not None:
            shape = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)
        if not is_static(shape) or port.dtype is None:
            return None
        layout = layouts.get(port)
        if layout is None:
            specs.append((shape, port.dtype))
        else:
            specs.append((layout.shape_in_memory(shape), layout.dtype))
    try:
        return make(specs, _not_yet)
    except _InputNeededError:
        return None
