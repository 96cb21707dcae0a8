"""Classes of shapes: a graph rewritten once for all sizes for which the same decisions hold.

When an input size varies, shape inference, folding and rewriting are done once with symbolic sizes.
The outcome is the rewritten graph, with expressions for the shapes and constants in it. For other
sizes only the expressions and the guards, all decisions that depend on a size, are evaluated; if
one of the guards comes out differently, the sizes belong to another class. Emitters check the
shapes, as after a sketch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from partita.lowering.graph import Graph, Node, Value, taken_branch
from partita.lowering.program import Array, Operand, OpRecord, Spec
from partita.lowering.shapes.result_shapes import (
    TOLD_BY_ELEMENTS,
    TOLD_BY_THE_RUN,
    predicted,
)
from partita.lowering.shapes.shape_arithmetic import small_operand
from partita.lowering.shapes.shape_rules import check_demands
from partita.lowering.shapes.size_arithmetic import Evaluator, Numbers
from partita.lowering.shapes.symbolic_size import (
    NoKeyError,
    Number,
    Recording,
    Size,
    holds_sizes,
    integers,
)

_log = logging.getLogger(__name__)

Shape = tuple[int, ...]
Refine = Callable[[Graph, Mapping[Value, Shape]], None]
Axes = frozenset[tuple[int, int]]
"""Sizes of inputs: input and axis, or element of an input whose elements are known before a run."""

MOST_NUMBERS = 16
"""Elements of a constant that passes look for: a number, or what pads an image."""

_INT64 = np.dtype(np.int64)


class InputPattern(NamedTuple):
    """What an input of a class is like.

    Attributes:
        shape: Its sizes, ``None`` in the place of those that vary.
        dtype: Its element type.
        elements: The same of its elements, where they are known before a run; else ``None``.
        known: Its elements as an array, where none of them varies; it lives as long as the class,
            since kernels may read it.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    elements: tuple[int | None, ...] | None = None
    known: Array | None = None

    def varying(self) -> Iterator[int]:
        """Its axes, or elements, that vary."""
        those = self.shape if self.elements is None else self.elements
        return (place for place, number in enumerate(those) if number is None)


@dataclass(frozen=True)
class KnownShapes:
    """What is known of a graph before it is emitted.

    Attributes:
        folded: The constant values, but for those that are so in the graph.
        folded_ops: The operations that made them.
        shapes: Of values that are to be computed.
    """

    folded: Mapping[Value, Operand]
    folded_ops: Sequence[OpRecord]
    shapes: Mapping[Value, Shape]


class Weights(Protocol):
    """Whose graph it is.

    Attributes:
        known: Constants beyond those in the graph.
        evaluator: Computes arithmetic of sizes; ``None`` if Python does.
    """

    known: dict[Value, Array]
    evaluator: Evaluator | None

    def weight(self, value: Value) -> Operand:
        """The operand of a constant of the graph."""


class ShapeClass:
    """One class of shapes of a graph.

    Args:
        pattern: The inputs that it was made for.
        recording: How sizes, shapes and constants follow from those that vary.
        graph: The rewritten graph.
        symbolic: What is known before it is emitted, with symbolic sizes.
    """

    def __init__(
        self,
        pattern: Sequence[InputPattern],
        recording: Recording,
        graph: Graph,
        symbolic: KnownShapes,
    ) -> None:
        self._pattern = list(pattern)
        self._dtypes = [one.dtype for one in pattern]
        self._by_elements = [n for n, one in enumerate(pattern) if one.elements is not None]
        rows = [(one.shape, one.elements) for one in pattern]
        self._form = _Form([row for row in itertools.chain(*rows) if row is not None])
        self._recording = recording
        self._graph = graph
        self._sized = {node for node in graph.nodes if holds_sizes(node.attrs)}
        self._ops = symbolic.folded_ops
        self._shapes = dict(symbolic.shapes)
        self._fixed: dict[Value, Operand] = {}
        self._varying: list[tuple[Value, Operand, list[Any]]] = []
        for value, operand in symbolic.folded.items():
            elements: list[Any] = operand.const.reshape(-1).tolist()  # type: ignore[union-attr]
            if any(type(element) is Size for element in elements):
                self._varying.append((value, operand, elements))
            else:
                array = operand.const.astype(operand.dtype)  # type: ignore[union-attr]
                self._fixed[value] = Operand(array.shape, array.dtype, array)

    def numbers(self, specs: Sequence[Spec], values: Mapping[int, Array]) -> Numbers | None:
        """What sizes come to for inputs of these shapes; ``None`` if they are of another class.

        Args:
            specs: Shape and type of every input.
            values: The elements of those that are known before a run.
        """
        if [*values] != self._by_elements or [dtype for _, dtype in specs] != self._dtypes:
            return None
        rows: list[Sequence[int]] = [shape for shape, _ in specs]
        for index in reversed(self._by_elements):
            rows.insert(index + 1, values[index].reshape(-1).tolist())
        sizes = self._form.varying(rows)
        return None if sizes is None else self._recording.repeat(sizes)

    def settled(self, recording: Recording | None = None) -> Axes:
        """The sizes that are one number in the whole class, though they were to vary in it.

        Args:
            recording: One that goes on from that of the class; ``None`` for what is so before.
        """
        recording = recording or self._recording
        places = [(index, at) for index, one in enumerate(self._pattern) for at in one.varying()]
        return frozenset(places[number] for number in recording.settled_inputs())

    def graph(self, numbers: Sequence[Any]) -> Graph:
        """The rewritten graph, with numbers in the places of sizes in attributes.

        Args:
            numbers: As :meth:`known` takes them.
        """
        if not self._sized:
            return self._graph
        nodes = [
            node.like(attrs={name: _put(value, numbers) for name, value in node.attrs.items()})
            if node in self._sized
            else node
            for node in self._graph.nodes
        ]
        return Graph(self._graph.inputs, self._graph.outputs, nodes, self._graph.name)

    def known(self, numbers: Sequence[Any]) -> KnownShapes:
        """What is known of the graph.

        Args:
            numbers: From :meth:`numbers`, or the sizes of a fork in their places.
        """
        folded = dict(self._fixed)
        for value, operand, elements in self._varying:
            filled = _filled(elements, numbers)
            kind = object if holds_sizes(filled) else operand.dtype
            array = np.array(filled, kind).reshape(operand.shape)
            folded[value] = Operand(operand.shape, operand.dtype, array)
        shapes = {value: tuple(_filled(dims, numbers)) for value, dims in self._shapes.items()}
        return KnownShapes(folded, self._ops, shapes)

    def fork(self, before: Numbers) -> tuple[Recording, list[Size], list[Spec], dict[int, Array]]:
        """A recording that goes on from this class, its sizes so far, and the inputs with them.

        Args:
            before: From :meth:`numbers`.

        Returns:
            The recording, all its sizes, the inputs' shapes and types, and elements that are known.
        """
        recording = self._recording.fork(before)
        sizes = recording.sizes()
        given = iter(recording.inputs(sizes))
        specs: list[Spec] = []
        values: dict[int, Array] = {}
        for index, (wanted, dtype, elements, known) in enumerate(self._pattern):
            shape: Any = tuple(next(given) if n is None else n for n in wanted)
            specs.append((shape, dtype))
            if known is not None:
                values[index] = known
            elif elements is not None:
                numbers = [next(given) if n is None else n for n in elements]
                values[index] = _array_of(numbers, shape)
        return recording, sizes, specs, values


class _Form:
    """Which numbers of shapes, and of elements, are the same in a class, and which vary.

    Args:
        rows: The numbers of each shape, or of elements; ``None`` in the place of those that vary.
    """

    def __init__(self, rows: Sequence[Sequence[int | None]]) -> None:
        self._lengths = [*map(len, rows)]
        flat = [*itertools.chain(*rows)]
        self._same = [number for number in flat if number is not None]
        self._where_same = [number is not None for number in flat]
        self._where_varying = [number is None for number in flat]

    def varying(self, rows: Sequence[Sequence[int]]) -> list[int] | None:
        """Those that vary; ``None`` if others are not as they are to be."""
        if [*map(len, rows)] != self._lengths:
            return None
        flat = [*itertools.chain(*rows)]
        if [*itertools.compress(flat, self._where_same)] != self._same:
            return None
        return [*itertools.compress(flat, self._where_varying)]


def is_condition(array: Array) -> bool:
    """Whether an array is one truth, which decides what a graph computes, and is no size."""
    return array.dtype == np.bool_ and array.size == 1


def _array_of(numbers: Sequence[Number], shape: Shape) -> Array:
    return integers(numbers).reshape(shape)


def _put(thing: Any, numbers: Sequence[Any]) -> Any:
    """An attribute with numbers in the places of sizes: a number, or a sequence or named tuple."""
    if type(thing) is Size:
        return numbers[thing.place]
    if not isinstance(thing, (tuple, list)):
        return thing
    filled = [_put(one, numbers) for one in thing]
    is_record = hasattr(thing, "_fields")
    return type(thing)(*filled) if is_record else type(thing)(filled)


def _filled(sizes: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    return [numbers[size.place] if type(size) is Size else size for size in sizes]


def learn(
    owner: Weights,
    graph: Graph,
    refine: Refine,
    specs: Sequence[Spec],
    varying: Axes,
    values: Mapping[int, Array],
    varied: bool = False,
) -> ShapeClass | None:
    """The class of these shapes; ``None`` if results of some operators cannot be predicted.

    What rewriting keeps of sizes must be shapes of values, constants of int64, or attributes that
    are numbers, or sequences or named tuples of them.

    Args:
        owner: Whose graph it is.
        graph: The graph; its nodes have the producers of their outputs afterwards that `refine`
            gives them.
        refine: Rewrites a graph that knows its shapes; see :class:`partita.lowering.Target`.
        specs: Shape and type of every input.
        varying: The sizes and elements that other inputs of the class may have otherwise.
        values: The elements of inputs that are known before a run: integers of 64 bits, or
            conditions, which are the same in the whole class.
        varied: Whether the graph has a class already, which these sizes are not of.
    """
    recording = Recording()
    recording.evaluator = owner.evaluator
    recording.varied = varied
    pattern, inputs = [], {}
    for index, (value, (shape, dtype)) in enumerate(zip(graph.inputs, specs, strict=True)):
        given = values.get(index)
        numbers = shape if given is None else given.reshape(-1).tolist()
        free = [(index, place) in varying for place in range(len(numbers))]
        fixed = tuple(None if varies else n for n, varies in zip(numbers, free, strict=True))
        given_as = recording.size if given is None else recording.integer
        sizes: list[Any] = [given_as(n) if v else n for n, v in zip(numbers, free, strict=True)]
        if given is None:
            inputs[value] = Operand(tuple(sizes), dtype)
            pattern.append(InputPattern(fixed, dtype))
        else:
            elements = given if is_condition(given) else _array_of(sizes, shape)
            inputs[value] = Operand(shape, dtype, elements)
            known = None if any(free) else elements
            pattern.append(InputPattern(shape, dtype, fixed, known))
    sketch = _Sketch(owner, inputs)
    untold = next((node for node in graph.nodes if not sketch.take(node)), None)
    if untold is not None:
        _log.debug(
            "'%s' has no classes of shapes: shapes that %s makes are not known",
            graph.name,
            untold,
        )
        return None
    outputs = [value for value in graph.outputs if value in sketch.folded]
    nodes = with_known_numbers(sketch.unfolded, sketch.folded)
    rewritten = Graph(graph.inputs, graph.outputs, nodes, graph.name)
    try:
        refine(rewritten, sketch.shapes())
    except NoKeyError:  # of a table that a pass keeps: it is refined with numbers
        _log.debug("'%s' has no classes of shapes: a pass looks sizes up in a table", graph.name)
        return None
    finally:
        recording.close()
    if not all(_can_be_put(value) for node in rewritten.nodes for value in node.attrs.values()):
        return None
    for other in {value for node in rewritten.nodes for value in [*node.inputs, *node.outputs]}:
        if other is not None and other not in sketch.operands and holds_sizes(other.shape):
            other.shape = None  # of a value that rewriting made; it is found out anew each time
    left = [value for node in rewritten.nodes for value in node.outputs if value is not None]
    read = [*outputs, *itertools.chain(*(node.reads() for node in rewritten.nodes))]
    made = {value: value.const for value in read if value.const is not None}  # by rewriting, too
    symbolic = KnownShapes(
        {
            **{value: sketch.folded[value] for value in read if value in sketch.folded},
            **{v: Operand(a.shape, _INT64, a) for v, a in made.items() if holds_sizes(a)},
        },
        sketch.folded_ops,
        {value: sketch.operands[value].shape for value in left if value in sketch.operands},
    )
    return ShapeClass(pattern, recording, rewritten, symbolic)


def with_known_numbers(nodes: Sequence[Node], folded: Mapping[Value, Operand]) -> list[Node]:
    """The nodes, which read a few numbers that were found as constants; passes look for such.

    Args:
        nodes: Of the graph.
        folded: What is constant by the shapes that are known; objects hold sizes.
    """
    numbers = {
        value: Value.constant(operand.const, value.name)
        for value, operand in folded.items()
        if operand.const is not None
        and operand.size <= MOST_NUMBERS
        and operand.const.dtype != object
    }
    return [
        node.like([value if value is None else numbers.get(value, value) for value in node.inputs])
        if any(value in numbers for value in node.inputs)
        else node
        for node in nodes
    ]


def _can_be_put(thing: Any) -> bool:
    """Whether all sizes in an attribute are where :meth:`ShapeClass.graph` looks for them."""
    if isinstance(thing, (tuple, list)):
        return all(map(_can_be_put, thing))
    if isinstance(thing, Node):
        return not holds_sizes(thing.attrs)
    return type(thing) is Size or not holds_sizes(thing)


class _Sketch:
    """Shapes and constants of a graph with symbolic sizes.

    Args:
        owner: Whose graph it is.
        operands: Of the inputs.
    """

    def __init__(self, owner: Weights, operands: dict[Value, Operand]) -> None:
        self._owner = owner
        self.operands = operands
        for value, array in owner.known.items():
            operands[value] = Operand(array.shape, array.dtype, array)
        self.folded: dict[Value, Operand] = {}
        self.folded_ops: list[OpRecord] = []
        self.unfolded: list[Node] = []
        self._untold: set[Value] = set()
        self._data = {value for value, operand in operands.items() if operand.const is None}

    def take(self, node: Node) -> bool:
        """Adds the results of a node; ``False`` if they are unknown without emitting it."""
        if node.op_type in TOLD_BY_THE_RUN or not self._untold.isdisjoint(node.reads()):
            return self._leave(node)
        if any(True for _ in node.graphs()):
            return self._take_branch(node)
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        result = small_operand(node, operands)
        if result is not None:
            self._fold(node, result)
            return True
        if node.kind == "Identity" and operands[0] is not None:
            if node.inputs[0] in self.folded:
                self._fold(node, operands[0])
                return True
            found: Sequence[Operand] | None = [Operand(operands[0].shape, operands[0].dtype)]
        else:
            found = predicted(node, operands)
        if found is None:
            return self._is_told_by_the_run(node, operands) and self._leave(node)
        check_demands(node, operands)  # what the graph is rewritten by must fit
        self.unfolded.append(node)
        for value, operand in zip(node.outputs, found, strict=False):
            if value is not None:
                self.operands[value] = operand
        if not self._data.isdisjoint(node.reads()):
            self._data.update(value for value in node.outputs if value is not None)
        return True

    def _leave(self, node: Node) -> bool:
        """Leaves a node, and all that depends on it, to what is made while the program runs."""
        self._untold.update(value for value in node.outputs if value is not None)
        self.unfolded.append(node)
        return True

    def _is_told_by_the_run(self, node: Node, operands: Sequence[Operand | None]) -> bool:
        """Whether shapes of a node follow from elements that the run alone has: it is split there.

        Not from constants that only an emitter makes: these are known before the run.
        """
        told_by = TOLD_BY_ELEMENTS.get(node.kind, range(0))
        unknown = [
            node.inputs[place]
            for place, operand in enumerate(operands)
            if place in told_by and operand is not None and operand.const is None
        ]
        return bool(unknown) and self._data.issuperset(unknown)

    def _take_branch(self, node: Node) -> bool:
        """The same of an If whose condition sizes decide, by the branch that is taken."""
        source = node.inputs[0] if node.kind == "If" and node.inputs else None
        condition = None if source is None else self._operand(source).const
        if condition is None:
            return source in self._data and self._leave(node)
        branch = taken_branch(node, condition)
        links = [
            Node.link(made, target, node)
            for made, target in zip(branch.outputs, node.outputs, strict=False)
            if target is not None
        ]
        return all(self.take(inner) for inner in [*branch.nodes, *links])

    def _fold(self, node: Node, result: Operand) -> None:
        (output,) = node.outputs
        if output is None:
            return
        self.folded[output] = self.operands[output] = result
        self.folded_ops.append(OpRecord(node.name, node.op_type, node.origins, "constant"))

    def shapes(self) -> dict[Value, Shape]:
        """Of all values."""
        return {value: operand.shape for value, operand in self.operands.items()}

    def _operand(self, value: Value) -> Operand:
        found = self.operands.get(value)
        if found is None:
            found = self.operands[value] = self._owner.weight(value)
        return found
