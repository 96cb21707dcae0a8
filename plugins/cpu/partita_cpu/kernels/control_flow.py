"""Loop and Scan: bodies are programs of their own, run again and again. If needs no kernel."""

from __future__ import annotations

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

    def bound(self, arrays: Sequence[Array]) -> Callable[[], list[Array]] | None:
        """A call on arrays that stay where they are until :meth:`release`, if there is one."""

    def release(self) -> None:
        """Holds the arrays no longer."""


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
    return given.reshape(-1)[0]


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
    # Copies that stay in place, so that the body is bound to them once for all iterations.
    state = [array.copy() for array in arrays[:carried]]
    number, flag = np.zeros(scalar_shapes[0], np.int64), np.ones(scalar_shapes[1], np.bool_)
    scans: list[list[Array]] = [[] for _ in empty_scans]
    iteration, call = 0, None
    try:
        while go and (limit is None or iteration < limit):
            number[...] = iteration
            flag[...] = go
            given = [number, flag, *state, *arrays[carried:]]
            if not iteration:
                call = body.bound(given)
            results = body(given) if call is None else call()
            go = bool(_one_of(results[0], "next condition"))
            if not _carry(state, results[1 : 1 + carried]):
                call = None
            for scan, result in zip(scans, results[1 + carried :], strict=True):
                scan.append(result.copy())
            iteration += 1
    finally:
        body.release()
    return state + [
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
    state = [array.copy() for array in arrays[:states]]
    sliced = [
        np.ascontiguousarray(np.moveaxis(array, axis, 0)[:: -1 if backwards else 1])
        for array, (axis, backwards) in zip(arrays[states:], inputs, strict=False)
    ]
    captures = arrays[states + len(inputs) :]
    length = sliced[0].shape[0]
    slices = [np.zeros(array.shape[1:], array.dtype) for array in sliced]
    collected: list[Array] = []
    call = None
    try:
        for index in range(length):
            for target, array in zip(slices, sliced, strict=True):
                target[...] = array[index, ...]
            given = [*state, *slices, *captures]
            if not index:
                call = body.bound(given)
            results = body(given) if call is None else call()
            if not _carry(state, results[:states]):
                call = None
            if not collected:
                collected = [np.empty((length, *r.shape), r.dtype) for r in results[states:]]
            for target, result in zip(collected, results[states:], strict=True):
                target[index] = result
        if length == 0:
            known = [row for row in rows if row is not None]
            if len(known) < len(rows):
                known = body([*state, *slices, *captures])[states:]
            collected = [np.empty((0, *row.shape), row.dtype) for row in known]
    finally:
        body.release()
    return state + [
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
        stacked: The output; tells how many dimensions it has where the body does not.
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
