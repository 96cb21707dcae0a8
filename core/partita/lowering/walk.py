"""One walk over a graph with concrete shapes: from nodes to a program."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from partita.errors import CompileError
from partita.lowering.builder import Builder, NeedsValue
from partita.lowering.constant_folding import computed_now, taken_branch
from partita.lowering.emission_errors import blamed_on
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.memory_plan import plan_for_sizes
from partita.lowering.program import (
    Array,
    Operand,
    OpRecord,
    Packed,
    Program,
    ProgramMaker,
    Rest,
    Spec,
    Step,
    bytes_of_calls,
    bytes_of_constants,
)
from partita.lowering.shapes.fold_allowance import FoldAllowance
from partita.lowering.shapes.result_shapes import predicted
from partita.lowering.shapes.shape_arithmetic import small_result
from partita.lowering.shapes.shape_class import KnownShapes
from partita.lowering.shapes.shape_rules import check_demands
from partita.lowering.shapes.symbolic_size import holds_sizes, same_number
from partita.lowering.shapes.type_rules import PRECISIONS
from partita.lowering.target import Target
from partita.model.model import is_static

VALUE_INPUT_ELEMENTS = 64
"""Inputs of more elements never become value inputs."""

_NATIVE = frozenset({"Identity", "If"})
"""Operators that need no emitter: a name for a value, and a choice between two graphs."""


class MoreValueInputs(Exception):  # noqa: N818 - a signal, not an error
    """Specialize again, with the elements of these inputs known."""

    def __init__(self, indices: set[int]) -> None:
        super().__init__()
        self.indices = indices


class MustFoldAll(Exception):  # noqa: N818 - a signal, not an error
    """Specialize again, and fold more: a node cannot do with what the run computes.

    Its cause is the error of that node.
    """


class OtherShapes(Exception):  # noqa: N818 - a signal, not an error
    """A value has another shape or type than it is said to have, or none known before the run."""


class Owner(Protocol):
    """Whose program a walk makes.

    Attributes:
        target: The back-end's part.
        known: Constants beyond those in the graph.
        derives: Whether more inputs may become value inputs.
        repeated: Whether the graph is run again and again with other elements, as a loop's body.
        computed: The values that the graph's own operations compute.
    """

    target: Target
    known: dict[Value, Array]
    derives: bool
    repeated: bool
    computed: frozenset[Value]

    def weight(self, value: Value) -> Operand:
        """The operand of a constant of the graph."""

    def allowance(self) -> FoldAllowance:
        """What a program may fold."""

    def nested(
        self,
        graph: Graph,
        known: Mapping[Value, Array],
        value_inputs: Sequence[int] = (),
        derive_value_inputs: bool = False,
        repeated: bool = False,
    ) -> ProgramMaker:
        """What makes the programs of a body of this graph, or of the rest of it."""


class _Scope:
    """The operands of values, by which a builder knows them.

    A builder that knew its walk would leave a cycle, and all that was walked in memory until
    cycles are looked for, which is seldom while a model is compiled.

    Args:
        owner: Whose program it becomes.

    Attributes:
        env: Operands of the values that were met.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.env: dict[Value, Operand] = {}

    def operand(self, value: Value) -> Operand:
        """The operand of a value; that of a constant is made when it is asked for."""
        operand = self.env.get(value)
        if operand is None:
            operand = self.env[value] = self._owner.weight(value)
        return operand

    def body(self, graph: Graph, captures: Sequence[Value]) -> ProgramMaker:
        """What makes the programs of a body, which takes what it captures as further inputs."""
        known = {
            value: operand.const
            for value in graph.captures()
            if (operand := self.operand(value)).const is not None
        }
        return self._owner.nested(
            Graph([*graph.inputs, *captures], graph.outputs, graph.nodes, graph.name),
            known,
            derive_value_inputs=not self._owner.target.allow_split,
            repeated=True,
        )


class Walk:
    """Emits the nodes of a graph one after another.

    Args:
        owner: Whose program it becomes; makes the specializers of bodies and rests.
        graph: What is walked: the owner's graph, or a simpler form of it.
        specs: Shape and type of every input.
        values: The elements of value inputs.
        as_declared: Whether values must have the shapes that they are said to have.
        before: What is known of the graph for these inputs: constants, and shapes that values
            must have.
        expected: Shapes that values are expected to have where elements known to the run alone
            decide that.

    Attributes:
        walked: The nodes in the order in which they were met; in the place of an If the nodes of
            the branch that was taken, unless its condition is not known yet.
        as_typed: Whether all values that were met have the types that they are said to have.
    """

    def __init__(
        self,
        owner: Owner,
        graph: Graph,
        specs: Sequence[Spec],
        values: Mapping[int, Array],
        as_declared: bool = False,
        before: KnownShapes | None = None,
        expected: Mapping[Value, tuple[int, ...]] | None = None,
    ) -> None:
        self._derives = owner.derives
        self._expected = expected or {}
        self._predicted = {} if before is None else before.shapes
        self._as_declared = as_declared
        self._rewritten = as_declared or before is not None
        self.as_typed = True
        self._owner = owner
        self._graph = graph
        self._target = owner.target
        self._scope = _Scope(owner)
        self._env = self._scope.env
        self._operand = self._scope.operand
        self._inputs: list[Operand] = []
        for index, (value, (shape, dtype)) in enumerate(
            zip(self._graph.inputs, specs, strict=True)
        ):
            operand = Operand(tuple(shape), dtype, values.get(index))
            self._inputs.append(operand)
            self._env[value] = operand
        self._index = {value: index for index, value in enumerate(self._graph.inputs)}
        for value, array in owner.known.items():
            self._env[value] = Operand(array.shape, array.dtype, array)
        self._builder = Builder(
            self._scope.operand,
            self._target.prepacked,
            self._scope.body,
            self._target.options,
            owner.allowance(),
        )
        if before is not None:
            self._env.update(before.folded)
            self._builder.ops += before.folded_ops
        self.walked: list[Node] = []
        self._waiting: list[Node] = []
        self._blocked: set[Value] = set()
        self._needed: set[Value] = set()
        self._unfolded: set[Node] = set()
        self._folds_all = True

    def run(self) -> Program:
        """The program; :meth:`emit`, then :meth:`finish`."""
        self.emit()
        return self.finish()

    def emit(self) -> None:
        """Finds out the shapes, and what is to be called.

        Raises:
            MoreValueInputs: It is to be walked again with the elements of more inputs.
            MustFoldAll: It is to be walked again with a wider limit to what is folded.
            CompileError: A node cannot be computed for these shapes.
        """
        work = deque(self._graph.nodes)
        while work:
            node = work.popleft()
            self.walked.append(node)
            if self._blocked and any(value in self._blocked for value in node.reads()):
                self._wait(node)
                continue
            marks = len(self._builder.steps), len(self._builder.ops)
            try:
                self._emit(node, work)
            except NeedsValue as need:
                del self._builder.steps[marks[0] :]
                del self._builder.ops[marks[1] :]
                if not self._emit_expected(node):
                    self._split_before(node, need.operand)
            except CompileError as error:
                if self._folds_all:
                    raise
                raise MustFoldAll from error

    def shapes(self) -> dict[Value, tuple[int, ...]]:
        """The shapes of all values that the program computes."""
        return {
            value: operand.shape
            for value, operand in self._env.items()
            if value not in self._blocked
        }

    def _emit(self, node: Node, work: deque[Node]) -> None:
        if node.kind in _NATIVE:
            self._builder.begin(node, False)
            source = node.inputs[0]
            if source is None:
                raise CompileError(f"Operation '{node.name}' ({node.told}) lacks its first input.")
            if node.op_type == "If":
                condition = self._builder.value(self._operand(source))
                self._inline(node, taken_branch(node, condition), work)
            else:
                self._bind(node, self._operand(source))
            return
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        small = small_result(node, operands)
        if small is not None:
            self._builder.begin(node, True)
            self._bind(node, Operand(small.shape, small.dtype, small))
            return
        if self._skips(node, operands):
            return
        with blamed_on(node):
            emitter = self._target.find(node, operands)
        check_demands(node, operands)
        folding = emitter.folds and all(o is None or o.is_constant for o in operands)
        if folding and any(o is not None and _is_symbolic(o) for o in operands):
            folding = False  # the run computes it, from numbers
            self._unfolded.add(node)
        results: Any = None
        if folding:
            results = computed_now(self._builder, node, operands, emitter, self._target)
            self._folds_all &= results is not None
        if results is None:
            self._builder.begin(node, False)
            with blamed_on(node):
                results = emitter.emit(self._builder, node, *operands)
        self._bind(node, results)

    def _emit_expected(self, node: Node) -> bool:
        """Emits a node for the shapes that its outputs are expected to have; whether it did."""
        expect = self._target.expect
        shapes = [self._expected.get(value) for value in node.outputs if value is not None]
        told = [shape for shape in shapes if shape is not None]
        if expect is None or len(told) < len(shapes):
            return False
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        self._builder.begin(node, False)
        with blamed_on(node):
            results = expect(self._builder, node, operands, told)
        if results is None:
            self._builder.ops.pop()
            return False
        self._bind(node, results)
        return True

    def _skips(self, node: Node, operands: Sequence[Operand | None]) -> bool:
        """Whether nothing is to be emitted for a node; a walk that makes a program skips none."""
        return False

    def _bind(self, node: Node, results: Any) -> None:
        given = results if isinstance(results, (tuple, list)) else (results,)
        last = self._builder.steps[-1] if self._builder.steps else None
        late = set(last.results) if last is not None else set()
        for position, value in enumerate(node.outputs):
            if value is None:
                continue
            operand = given[position] if position < len(given) else None
            if operand is None:
                raise CompileError(
                    f"Output {position} ('{value.name}') of operation '{node.name}' "
                    f"({node.kind}) is used, but this device does not compute it."
                )
            self._env[value] = operand
            if self._as_declared and value.shape != operand.shape and is_static(value.shape):
                raise OtherShapes(f"{value} of {node} has shape {operand.shape}")
            if self._predicted.get(value, operand.shape) != operand.shape:
                raise OtherShapes(f"{value} of {node} has shape {operand.shape}")
            if operand not in late:
                self._compare_type(value, operand.dtype)
            if operand in late:
                self._blocked.add(value)
            elif operand.is_constant:
                self._builder.ops[-1].exec_type = "constant"

    def _compare_type(self, value: Value, found: np.dtype[Any]) -> None:
        """Notes that a value has another type than the model says: graphs are rewritten by types.

        Raises:
            OtherShapes: It has, and the graph was rewritten by what the model says.
        """
        said = value.dtype
        if said is None or said == found or value not in self._owner.computed:
            return
        if said.hasobject or found.hasobject or {said, found} <= PRECISIONS:
            return
        self.as_typed = False
        if self._rewritten:
            raise OtherShapes(f"{value} is of type {found}")

    def _inline(self, node: Node, graph: Graph, work: deque[Node]) -> None:
        """Puts the nodes of a graph in the place of the node that chose it."""
        self.walked.pop()
        links = [
            Node.link(source, target, node)
            for source, target in zip(graph.outputs, node.outputs, strict=False)
            if target is not None
        ]
        work.extendleft(reversed([*graph.nodes, *links]))

    def _wait(self, node: Node) -> None:
        if self._as_declared:
            raise OtherShapes(f"{node} needs a value that is only known while the model runs")
        self._waiting.append(node)
        self._blocked.update(value for value in node.outputs if value is not None)

    def _split_before(self, node: Node, operand: Operand) -> None:
        if self._unfolded:
            raise CompileError(f"{node} may need constants that are computed of symbolic sizes.")
        values = [v for v in node.reads() if self._operand(v).root is operand.root]
        values = values or [v for v in node.reads() if not self._operand(v).is_constant]
        if self._derives:
            indices = self._sources(values)
            if indices:
                raise MoreValueInputs(indices)
        if not self._target.allow_split:
            names = ", ".join(f"'{value.name}'" for value in values)
            error = CompileError(
                f"Operation '{node.name}' ({node.told}) needs the value of {names}, which is only "
                "known while the model runs; this device cannot compile that."
            )
            if not self._folds_all:
                raise MustFoldAll from error
            raise error
        self._needed.update(values)
        self._wait(node)

    def _sources(self, values: Sequence[Value]) -> set[int]:
        """Small inputs that alone determine the values; empty if other things do too."""
        found: set[int] = set()
        stack = list(values)
        seen = set(stack)
        while stack:
            value = stack.pop()
            operand = self._env.get(value)
            if value.const is not None or (operand is not None and operand.is_constant):
                continue
            if value in self._index:
                if operand is None or not _may_be_value_input(operand):
                    return set()
                found.add(self._index[value])
                continue
            if value.producer is None or not self._folds(value.producer):
                return set()
            for source in value.producer.reads():
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
        return found

    def _folds(self, node: Node) -> bool:
        if node.kind in _NATIVE:
            return True
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        return self._target.find(node, operands).folds

    def finish(self) -> Program:
        """The program of all that was emitted."""
        outputs = self._outputs()
        if self._target.settle is not None:
            self._target.settle()
        steps, complete = self._builder.steps, self._target.complete
        if complete is not None:
            steps = complete(steps, {o.root for o in outputs if o is not None})
        for step in steps:
            for arg in step.args:
                if isinstance(arg, Operand):
                    arg.make_plain()
        rest = self._rest() if self._waiting else None
        crossing = rest.inputs if rest is not None else ()
        owned = _own(outputs, self._inputs)
        offsets, total = (
            _place(steps, self._inputs, owned, crossing) if self._target.arena else ({}, 0)
        )
        return Program(
            inputs=tuple(self._inputs),
            outputs=outputs,
            steps=steps,
            offsets=offsets,
            arena_bytes=total,
            owned=owned,
            ops=self._builder.ops,
            rest=rest,
            kept_bytes=bytes_of_calls(steps, self._builder.ops) + bytes_of_constants(steps),
        )

    def _outputs(self) -> tuple[Operand | None, ...]:
        """The operands of the outputs, copied where steps can do that and none owns its buffer."""
        late, copy = self._late(), self._target.copy
        outputs = [None if v in late else self._operand(v) for v in self._graph.outputs]
        if copy is None:
            return tuple(outputs)
        sized_by_run = {operand for step in self._builder.steps for operand in step.results}
        owners = _own(outputs, self._inputs)
        for index, (operand, owner) in enumerate(zip(outputs, owners, strict=True)):
            if operand is not None and owner is None and operand.root not in sized_by_run:
                value = self._graph.outputs[index]
                self._builder.begin(value.producer or Node("Identity", (), ()), False)
                outputs[index] = copy(self._builder, operand) or operand
        return tuple(outputs)

    def _late(self) -> set[Value]:
        return {value for node in self._waiting for value in node.outputs if value is not None}

    def _rest(self) -> Rest:
        late = self._late()
        known: dict[Value, Array] = {}
        inputs: dict[Value, Operand] = {}
        for node in self._waiting:
            for value in node.reads():
                if value in late or (value.const is not None and value not in self._env):
                    continue
                operand = self._operand(value)
                if operand.const is None:
                    inputs[value] = operand
                elif not operand.lasting or value.const is None:
                    known[value] = operand.const
        positions = [i for i, value in enumerate(self._graph.outputs) if value in late]
        graph = Graph(
            inputs, [self._graph.outputs[i] for i in positions], self._waiting, self._graph.name
        )
        values = [index for index, value in enumerate(inputs) if value in self._needed]
        specializer = self._owner.nested(
            graph, known, value_inputs=values, repeated=self._owner.repeated
        )
        return Rest(specializer, tuple(inputs.values()), tuple(positions))


class Sketch(Walk):
    """A walk that tells shapes and constants, and makes no program.

    Emitters are asked only where results are not as usual.

    Attributes:
        unfolded: The nodes that are left to be computed, in order.
    """

    unfolded: list[Node]

    def known(self) -> KnownShapes:
        """What it has found; to be called after :meth:`emit`."""
        folded = {
            value: operand
            for value, operand in self._env.items()
            if operand.is_constant and value.const is None
        }
        ops = []
        self.unfolded = []
        for node in self.walked:
            outputs = [value for value in node.outputs if value is not None]
            if outputs and all(value in folded for value in outputs):
                ops.append(OpRecord(node.name, node.op_type, node.origins, "constant"))
            else:
                self.unfolded.append(node)
        return KnownShapes(folded, ops, self.shapes())

    def _skips(self, node: Node, operands: Sequence[Operand | None]) -> bool:
        if all(operand is None or operand.is_constant for operand in operands):
            return False
        results = predicted(node, operands)
        if results is None:
            return False
        with blamed_on(node):
            self._target.find(node, operands)
        check_demands(node, operands)  # what the graph is rewritten by must fit
        for value, result in zip(node.outputs, results, strict=False):
            if value is not None:
                self._compare_type(value, result.dtype)
                self._env[value] = result
        return True


class Outlook(Sketch):
    """A sketch for present elements of inputs, whichever are asked for.

    Raises :class:`MoreValueInputs` until it is given all of them.
    """

    def __init__(
        self, owner: Owner, graph: Graph, specs: Sequence[Spec], values: Mapping[int, Array]
    ) -> None:
        super().__init__(owner, graph, specs, values)
        self._derives = True


def _is_symbolic(operand: Operand) -> bool:
    """Whether there are sizes among the elements of a constant."""
    if isinstance(operand, Packed):
        return False
    const = operand.const
    return const is not None and const.dtype == object and holds_sizes(const)


def _may_be_value_input(operand: Operand) -> bool:
    return operand.size <= VALUE_INPUT_ELEMENTS and operand.dtype.kind in "iub"


def _own(
    outputs: Sequence[Operand | None], inputs: Sequence[Operand]
) -> tuple[Operand | None, ...]:
    """For each output the buffer it owns: a computed one that no earlier output owns."""
    taken = {operand.root for operand in inputs}
    owned: list[Operand | None] = []
    for operand in outputs:
        root = None if operand is None or operand.is_constant else operand.root
        if root is not None and root in taken:
            root = None
        if root is not None:
            taken.add(root)
        owned.append(root)
    return tuple(owned)


def _place(
    steps: Sequence[Step],
    inputs: Sequence[Operand],
    owned: Sequence[Operand | None],
    crossing: Sequence[Operand],
) -> tuple[dict[Operand, int], int]:
    """Arena offsets of the intermediate buffers, by liveness."""
    external = {*inputs, *(operand for operand in owned if operand is not None)}
    kept = {operand.root for operand in crossing}
    lives: dict[Operand, list[int]] = {}
    made: set[Operand] = set()
    for number, step in enumerate(steps):
        made.update(step.results)
        for arg in step.args:
            if isinstance(arg, Operand) and not arg.is_constant and arg.root not in external:
                life = lives.setdefault(arg.root, [arg.root.nbytes, number, number])
                life[2] = len(steps) if arg.root in kept else number
    for operand in made:
        lives.pop(operand, None)
    over = _joined(steps, lives)
    operands = list(lives)
    intervals = [(size, first, last) for size, first, last in lives.values()]
    places, total = plan_for_sizes(intervals)
    offsets = dict(zip(operands, places, strict=True))
    for operand, before in over.items():
        offsets[operand] = offsets[before]
    return offsets, total


def _joined(steps: Sequence[Step], lives: dict[Operand, list[int]]) -> dict[Operand, Operand]:
    """Buffers that are made in the memory of others (:attr:`Step.over`), and those others.

    Args:
        steps: The program's.
        lives: Bytes, first and last step of each buffer. Of those that share memory the first one
            is left, with the life of all.
    """
    joined: dict[Operand, Operand] = {}
    for number, step in enumerate(steps):
        if step.over is None:
            continue
        made, read = (operand.root for operand in step.over)
        place = joined.get(read, read)
        if made is read or made not in lives or place not in lives:
            continue
        (size, first, last), (room, _, end) = lives[made], lives[place]
        uses = sum(isinstance(arg, Operand) and arg.root is read for arg in step.args)
        if first == end == number and uses == 1 and same_number(size) == same_number(room):
            joined[made] = place
            lives[place][2] = last
            del lives[made]
    return joined
