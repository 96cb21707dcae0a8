"""Loop and Scan: bodies are programs of their own, run again and again. If needs no kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from partita.errors import InputError, OperandError
from partita.lowering import Array, Builder, Graph, Node, Operand, Value
from partita.lowering.geometry.axes import axis_of
from partita_cpu.kernels.operator_table import ANY, BOOL, INT64, kernel


class Body(Protocol):
    """A body as the engine hands it to loops: :class:`partita_cpu.runtime.loop_body.LoopBody`."""

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The body's results, valid until its next run."""

    def bound(
        self, arrays: Sequence[Array], outputs: list[Array] | None = None
    ) -> tuple[Callable[[], list[Array]], list[Array]] | None:
        """A call on arrays that stay where they are until :meth:`release`, if there is one.

        Returns:
            The call, and the list of outputs that it returns; another one if a size was not as
            expected.
        """

    def release(self) -> None:
        """Holds the arrays no longer."""


_MANY_BYTES = 1 << 19
_ITERATION_BYTES = 1 << 15
"""Binding a body once more takes as long as copying the former number of bytes, or fewer; the
latter are counted for the copies of an iteration as such."""

_BYTES = operator.attrgetter("nbytes")


class _Carried:
    """Runs a body whose results are its inputs in the next iteration.

    Where much has been copied and much is left, two calls take turns: one reads what the other has
    written. Where sizes change, or results are not where they were expected, values are copied.

    Args:
        body: What is run.
        before: Its inputs before the carried ones; they stay where they are.
        initial: The carried ones, which are copied.
        after: Its inputs after them.
        first: Which of its results is the first carried one.
        rounds: How often it is run at most; ``None`` if nothing says so.
    """

    def __init__(
        self,
        body: Body,
        before: Sequence[Array],
        initial: Sequence[Array],
        after: Sequence[Array],
        first: int,
        rounds: int | None,
    ) -> None:
        self._body = body
        self._before, self._after = list(before), list(after)
        self._values = [array.copy() for array in initial]
        self._results = slice(first, first + len(self._values))
        self._calls: list[tuple[Callable[[], list[Array]], list[Array]] | None] = [None, None]
        self._turn = 0  # 1: the values are in the results of the first call
        self._binds, self._turns = True, False
        # Rounds that are copied first; no others follow, or they are too few to bind for.
        self._copies = few = _MANY_BYTES // (_ITERATION_BYTES + sum(map(_BYTES, self._values))) + 1
        if not self._values or (rounds is not None and rounds < 2 * few):
            self._copies = -1

    def iterate(self) -> list[Array]:
        """Runs the body once; returns its results, which are valid until it runs again."""
        call = self._calls[self._turn]
        if call is None and self._binds:
            call = self._bind()
        if call is None:
            results = self._body(self._given(self._values))
        else:
            results = call[0]()
            if self._turns and results is call[1]:
                self._turn = 1 - self._turn
                return results
        self._turn = 0
        carried = results[self._results]
        if not _carry(self._values, carried):
            self._binds, self._turns, self._calls = False, False, [None, None]
        elif call is not None and self._copies > 0:
            self._copies -= 1
            if not self._copies:
                self._take_turns(call[1])
        return results

    def values(self) -> list[Array]:
        """The carried values after the last iteration."""
        first = self._calls[0]
        if self._turn and first is not None:
            _carry(self._values, first[1][self._results])
        self._turn = 0
        return self._values

    def _given(self, values: Sequence[Array]) -> list[Array]:
        return [*self._before, *values, *self._after]

    def _bind(self) -> tuple[Callable[[], list[Array]], list[Array]] | None:
        call = self._calls[0] = self._body.bound(self._given(self._values))
        self._binds = call is not None
        return call

    def _take_turns(self, written: list[Array]) -> None:
        """Binds the body to read what the first call writes, and to write what that one reads."""
        outputs = list(written)
        outputs[self._results] = self._values
        if all(
            old.shape == new.shape and old.dtype == new.dtype
            for old, new in zip(self._values, written[self._results], strict=True)
        ):
            self._calls[1] = self._body.bound(self._given(written[self._results]), outputs)
            self._turns = self._calls[1] is not None


@kernel("Loop", dtypes={0: INT64, 1: BOOL}, folds=False)
def loop(
    b: Builder,
    node: Node,
    trips: Operand | None = None,
    condition: Operand | None = None,
    *carried: Operand,
) -> tuple[Operand, ...]:
    """Shapes of carried values may change from one iteration to the next."""
    graph: Graph = node.attrs["body"]
    body = b.graph_body(graph)
    collected = graph.outputs[1 + len(carried) :]
    stacked = dict(enumerate(node.outputs[len(carried) :]))
    return b.dynamic(
        run_loop,
        (
            body,
            trips,
            condition,
            _scalar_shapes(graph),
            len(carried),
            [_empty_scan(row, stacked.get(place)) for place, row in enumerate(collected)],
            *carried,
            *body.captures,
        ),
        [operand.dtype for operand in carried] + [value.dtype for value in collected],
        exec_type="loop",
    )


def _one_of(given: Array, what: str) -> Any:
    if not given.size:
        raise InputError(
            f"The {what} of a Loop is of shape {list(given.shape)}; it is one element."
        )
    return given.item(0)


def run_loop(
    body: Body,
    trips: Array | None,
    condition: Array | None,
    scalar_shapes: tuple[tuple[int, ...], tuple[int, ...]],
    carried: int,
    empty_scans: Sequence[Array],
    *arrays: Array,
) -> list[Array]:
    """Runs the body until the trips are over or it says stop.

    Args:
        body: Takes iteration number, condition, carried values and captures.
        trips: Most iterations; ``None`` for no limit.
        condition: Whether to start at all; ``None`` for yes.
        scalar_shapes: Shapes in which the body takes iteration number and condition.
        carried: How many of ``arrays`` are carried; the others are captures.
        empty_scans: What each collected output is if there is no iteration.
        arrays: Carried values, then captures.
    """
    limit = None if trips is None else int(_one_of(trips, "number of trips"))
    go = condition is None or bool(_one_of(condition, "condition"))
    number, flag = np.zeros(scalar_shapes[0], np.int64), np.ones(scalar_shapes[1], np.bool_)
    values = _Carried(body, (number, flag), arrays[:carried], arrays[carried:], 1, limit)
    scans: list[list[Array]] = [[] for _ in empty_scans]
    iteration = 0
    try:
        while go and (limit is None or iteration < limit):
            number[...] = iteration
            results = values.iterate()
            go = bool(_one_of(results[0], "next condition"))
            for scan, result in zip(scans, results[1 + carried :], strict=True):
                scan.append(result.copy())
            iteration += 1
    finally:
        body.release()
    return values.values() + [
        np.stack(scan) if scan else empty for scan, empty in zip(scans, empty_scans, strict=True)
    ]


@kernel("Scan", dtypes=ANY, since=9, folds=False)
def scan(b: Builder, node: Node, *operands: Operand) -> tuple[Operand, ...]:
    """Scan as it is since opset 9, without a batch axis of its own."""
    graph: Graph = node.attrs["body"]
    body = b.graph_body(graph)
    inputs = int(node.attrs["num_scan_inputs"])
    if not 1 <= inputs <= len(operands):
        raise OperandError(
            f"Operation '{node.name}' (Scan) is to scan {inputs} inputs (num_scan_inputs); it has "
            f"{len(operands)}, and scans one at least."
        )
    states = len(operands) - inputs
    outputs = len(graph.outputs) - states
    walked = _pairs(node, "scan_input_axes", "scan_input_directions", inputs)
    _require_slices(node, operands[states:], [axis for axis, _ in walked])
    return b.dynamic(
        run_scan,
        (
            body,
            states,
            walked,
            _pairs(node, "scan_output_axes", "scan_output_directions", outputs),
            [_declared_row(value) for value in graph.outputs[states:]],
            *operands,
            *body.captures,
        ),
        [operand.dtype for operand in operands[:states]]
        + [value.dtype for value in graph.outputs[states:]],
        exec_type="loop",
    )


def _require_slices(node: Node, scanned: Sequence[Operand], axes: Sequence[int]) -> None:
    """Raises unless scanned inputs have their axes, and as many slices along each."""
    lengths = [x.shape[axis_of(node, axis, x.ndim)] for x, axis in zip(scanned, axes, strict=True)]
    if any(length != lengths[0] for length in lengths):
        raise OperandError(
            f"Operation '{node.name}' (Scan) scans inputs of {lengths} slices; all must "
            "have the same number."
        )


def run_scan(
    body: Body,
    states: int,
    inputs: Sequence[tuple[int, bool]],
    outputs: Sequence[tuple[int, bool]],
    rows: Sequence[Array | None],
    *arrays: Array,
) -> list[Array]:
    """Runs the body once for each slice.

    Args:
        body: Takes state values, one slice of each scanned input, and captures.
        states: How many of ``arrays`` are state values.
        inputs: Axis and whether it is walked backwards, per scanned input.
        outputs: The same per collected output.
        rows: What a slice makes of each collected output, as the model declares it. Where no slice
            does, and that is not declared, the body says it of a slice of zeros.
        arrays: State values, scanned inputs, captures.
    """
    sliced = [
        np.ascontiguousarray(np.moveaxis(array, axis, 0)[:: -1 if backwards else 1])
        for array, (axis, backwards) in zip(arrays[states:], inputs, strict=False)
    ]
    captures = arrays[states + len(inputs) :]
    length = sliced[0].shape[0]
    slices = [np.zeros(array.shape[1:], array.dtype) for array in sliced]
    collected: list[Array] = []
    values = _Carried(body, (), arrays[:states], [*slices, *captures], 0, length)
    try:
        for index in range(length):
            for target, array in zip(slices, sliced, strict=True):
                target[...] = array[index, ...]
            results = values.iterate()
            if not collected:
                collected = [np.empty((length, *r.shape), r.dtype) for r in results[states:]]
            for target, result in zip(collected, results[states:], strict=True):
                target[index] = result
        if length == 0:
            known = [row for row in rows if row is not None]
            if len(known) < len(rows):
                known = body([*arrays[:states], *slices, *captures])[states:]
            collected = [np.empty((0, *row.shape), row.dtype) for row in known]
    finally:
        body.release()
    return values.values() + [
        np.moveaxis(array[:: -1 if backwards else 1], 0, axis)
        for array, (axis, backwards) in zip(collected, outputs, strict=True)
    ]


def _carry(state: list[Array], results: Sequence[Array]) -> bool:
    """Takes over new state, in place where the shape stays; whether all of it does."""
    in_place = True
    for index, result in enumerate(results):
        if result.shape == state[index].shape:
            np.copyto(state[index], result)
        else:
            state[index] = result.copy()
            in_place = False
    return in_place


def _scalar_shapes(graph: Graph) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bodies declare iteration number and condition as scalars or as tensors of one element."""
    first, second = ((1,) if value.shape == (1,) else () for value in graph.inputs[:2])
    return first, second


def _empty_scan(row: Value, stacked: Value | None) -> Array:
    """A collected output of no iterations; unknown dimensions are 0.

    Args:
        row: What an iteration would add to it.
        stacked: The output, whose rank is used where the body gives none.
    """
    dims = row.shape
    if dims is None and stacked is not None and stacked.shape is not None:
        dims = stacked.shape[1:]
    sizes = [dim if isinstance(dim, int) else 0 for dim in dims or ()]
    return np.empty((0, *sizes), row.dtype or np.float32)


def _declared_row(value: Value) -> Array | None:
    """An array as a model declares a slice's share of an output, unless it leaves sizes open."""
    if value.dtype is None or value.shape is None:
        return None
    dims = [dim for dim in value.shape if isinstance(dim, int)]
    return np.empty(dims, value.dtype) if len(dims) == len(value.shape) else None


def _pairs(node: Node, axes: str, directions: str, count: int) -> list[tuple[int, bool]]:
    """An axis and a direction for each of as many tensors."""
    along, backwards = (node.attrs.get(name) or [0] * count for name in (axes, directions))
    if not len(along) == len(backwards) == count:
        raise OperandError(
            f"Operation '{node.name}' (Scan) has {len(along)} {axes} and {len(backwards)} "
            f"{directions}; expected {count} of each."
        )
    return list(zip(along, map(bool, backwards), strict=True))
