"""The walk over a graph with concrete shapes that calls emitters and makes a program."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError
from partita.lowering.constant_folding import computed_now
from partita.lowering.emission.buffers import owned_buffers, place_buffers
from partita.lowering.emission.builder import Builder
from partita.lowering.emission.errors import blamed_on
from partita.lowering.emission.owner import OperandScope, Owner
from partita.lowering.emission.signals import MoreValueInputs, MustFoldAll, OtherShapes
from partita.lowering.emitter import NeedsValue
from partita.lowering.graph import Graph, Node, Value, taken_branch
from partita.lowering.program import (
    Array,
    Continuation,
    EmittedProgram,
    Operand,
    Program,
    Spec,
    bytes_of_calls,
    bytes_of_constants,
)
from partita.lowering.shapes.shape_arithmetic import small_operand
from partita.lowering.shapes.shape_class import KnownShapes
from partita.lowering.shapes.shape_rules import check_demands
from partita.lowering.shapes.symbolic_elements import is_symbolic, is_table_of_sizes
from partita.lowering.shapes.type_rules import PRECISIONS
from partita.model.model import is_static

_VALUE_INPUT_ELEMENTS = 64
"""Inputs of more elements never become value inputs."""

_VALUE_INPUT_FLOATS = 8
"""As many as Resize may have scales. Floats become value inputs where a target cannot split."""

_NATIVE = frozenset({"Identity", "If"})
"""Operators that need no emitter: a name for a value, and a choice between two graphs."""


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
        self._scope = OperandScope(owner)
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
                raise CompileError(
                    f"Operation '{node.name}' ({node.model_kind}) lacks its first input."
                )
            if node.op_type == "If":
                condition = self._builder.value(self._operand(source))
                self._inline(node, taken_branch(node, condition), work)
            else:
                self._bind(node, self._operand(source))
            return
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        small = small_operand(node, operands)
        if small is not None:
            self._builder.begin(node, True)
            self._bind(node, small)
            return
        if self._skips(node, operands):
            return
        with blamed_on(node):
            emitter = self._target.find(node, operands)
        check_demands(node, operands)
        folding = emitter.folds and all(o is None or o.is_constant for o in operands)
        if folding and any(o is not None and is_symbolic(o) for o in operands):
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
        known = [shape for shape in shapes if shape is not None]
        if expect is None or len(known) < len(shapes):
            return False
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        self._builder.begin(node, False)
        with blamed_on(node):
            results = expect(self._builder, node, operands, known)
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
        values = [v for v in node.reads() if self._operand(v).root is operand.root]
        values = values or [v for v in node.reads() if not self._operand(v).is_constant]
        if self._unfolded and any(map(self._is_unfolded, values)):
            raise CompileError(f"{node} may need constants that are computed of symbolic sizes.")
        if self._derives:
            indices = self._sources(values)
            if indices:
                raise MoreValueInputs(indices)
        if not self._target.allow_split:
            names = ", ".join(f"'{value.name}'" for value in values)
            error = CompileError(
                f"Operation '{node.name}' ({node.model_kind}) needs the value of {names}, which is "
                "only known while the model runs; this device cannot compile that."
            )
            if not self._folds_all:
                raise MustFoldAll from error
            raise error
        self._needed.update(values)
        self._wait(node)

    def _is_unfolded(self, value: Value) -> bool:
        """Whether a value would be a constant, were not sizes among what it is computed of."""
        stack, seen = [value], {value}
        while stack:
            value = stack.pop()
            operand, producer = self._env.get(value), value.producer
            if operand is not None and operand.is_constant:
                continue
            if value in self._index or value in self._blocked or producer is None:
                return False
            read = [source for source in producer.reads() if source not in seen]
            stack += read
            seen.update(read)
        return True

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
                if operand is None:
                    return set()
                if operand.size > most_value_elements(operand.dtype, self._target.allow_split):
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
                    self._builder.make_plain(arg)
        rest = self._rest() if self._waiting else None
        crossing = rest.inputs if rest is not None else ()
        owned = owned_buffers(outputs, self._inputs)
        offsets, total = (
            place_buffers(steps, self._inputs, owned, crossing) if self._target.arena else ({}, 0)
        )
        return EmittedProgram(
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
        owners = owned_buffers(outputs, self._inputs)
        for index, (operand, owner) in enumerate(zip(outputs, owners, strict=True)):
            if operand is not None and owner is None and operand.root not in sized_by_run:
                value = self._graph.outputs[index]
                self._builder.begin(value.producer or Node("Identity", (), ()), False)
                outputs[index] = copy(self._builder, operand) or operand
        return tuple(outputs)

    def _late(self) -> set[Value]:
        return {value for node in self._waiting for value in node.outputs if value is not None}

    def _rest(self) -> Continuation:
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
                elif is_symbolic(operand):
                    inputs[value] = operand
                    if is_table_of_sizes(operand):
                        self._needed.add(value)  # as those who read a constant may
                elif not operand.lasting or value.const is None:
                    known[value] = operand.const
        positions = [i for i, value in enumerate(self._graph.outputs) if value in late]
        graph = Graph(
            inputs, [self._graph.outputs[i] for i in positions], self._waiting, self._graph.name
        )
        values = [index for index, value in enumerate(inputs) if value in self._needed]
        results = {operand for step in self._builder.steps for operand in step.results}
        specializer = self._owner.nested(
            graph,
            known,
            value_inputs=values,
            repeated=self._owner.repeated,
            sizes=[v.shape if o in results else o.shape for v, o in inputs.items()],
        )
        return Continuation(specializer, tuple(inputs.values()), tuple(positions))


def most_value_elements(dtype: np.dtype[Any], allow_split: bool) -> int:
    """How many elements an input may have to become a value input; -1 if it never does.

    Args:
        dtype: The input's element type.
        allow_split: Whether the target may split programs instead; see `Target`.
    """
    if dtype.kind == "f":
        return -1 if allow_split else _VALUE_INPUT_FLOATS
    return _VALUE_INPUT_ELEMENTS if dtype.kind in "iub" else -1
