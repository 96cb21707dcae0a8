"""Ensembles of decision trees: for several rows, or of several trees, step by step side by side.

Where a step leads depends on numbers that nobody knows, so each is a load, no jump; a row waits at
its leaf for the others. Leaves add up in the order of trees, as onnxruntime's one thread does it.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.kernel_table import refused_attribute, refused_choice
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.classical.scores import emit_scores, refused_scores
from partita_cpu.kernels.classical.tree_tables import (
    TreeTables,
    columns_for,
    entries_of,
    leaves_of,
    nodes_of,
    numbers_of,
    tables_of,
)
from partita_cpu.kernels.operator_table import FLOATS, kernel
from partita_cpu.scalar.instructions import like, ordered

DOMAIN = "ai.onnx.ml"
TOGETHER = 256
"""Rows that go through a tree while it is in the caches."""
GROUP = 16
"""Of these, rows that wait for each other's longest way."""
LANES = 16
"""Ways through trees that are followed at a time, at least."""
STEPS = 10
"""Of a way through a tree, for what a step costs."""
SUM, LEAST, MOST = 0, 1, 2
FUNCTIONS = ("AVERAGE", "SUM", "MIN", "MAX")
"""By the number that a TreeEnsemble has for it."""
AGGREGATES = {"SUM": SUM, "AVERAGE": SUM, "MIN": LEAST, "MAX": MOST}


@loop
def ordered_keys(x: Any, keys: Any, width: int, sets: int, largest: int, tid: int, nt: int) -> None:
    """Integers in the order of numbers, once or twice for each row.

    Args:
        x: Rows of floats, flat.
        keys: Output, flat; NaN is the largest integer in the first set, the smallest in the second.
        width: Numbers of a row.
        sets: 1 or 2.
        largest: Integer of the type of keys.
        tid: This thread.
        nt: All threads; they share rows.
    """
    rows = x.size // width
    most = like(keys[0], largest)
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        for i in range(width):
            value = x[row * width + i]
            key = like(keys[0], 0) if value == 0 else ordered(value)
            place = row * width * sets + i
            keys[place] = key if value == value else most
            if sets == 2:
                keys[place + width] = key if value == value else ~most


class Trees(NamedTuple):
    """The tables of `TreeTables` that a walk reads, each flat."""

    nodes: Any
    branches: Any
    roots: Any
    starts: Any
    targets: Any
    weights: Any


class WalkSizes(NamedTuple):
    """How trees are walked.

    Attributes:
        width: Keys of a row.
        lanes: Trees that are followed at a time.
        results: Of a row.
        aggregate: `SUM`, `LEAST` or `MOST`.
    """

    width: int
    lanes: int
    results: int
    aggregate: int


@loop
def follow_trees(
    keys: Any, trees: Trees, places: Any, sums: Any, sizes: WalkSizes, tid: int, nt: int
) -> None:
    """What the leaves of all trees add to each row's results.

    Args:
        keys: A row for each row of the input, flat.
        trees: The tables.
        places: Scratch: `lanes` for each row.
        sums: Output: `results` for each row, flat.
        sizes: How they are walked.
        tid: This thread.
        nt: All threads; they share rows.
    """
    nodes, branches, roots, starts, targets, weights = trees
    width, lanes, results, aggregate = sizes
    rows = keys.size // width
    begin, stop = rows * tid // nt, rows * (tid + 1) // nt
    for first in range(begin, stop, TOGETHER):
        last = min(first + TOGETHER, stop)
        for place in range(first * results, last * results):
            sums[place] = like(sums[0], 0)
            if aggregate == LEAST:
                sums[place] = like(sums[0], np.inf)
            elif aggregate == MOST:
                sums[place] = like(sums[0], -np.inf)
        for tree in range(0, roots.size, lanes):
            behind = min(tree + lanes, roots.size)
            for lane in range(tree, behind):
                for row in range(first, last):
                    places[(lane - tree) * rows + row] = roots[lane]
            for group in range(first, last, GROUP):
                end = min(group + GROUP, last)
                moving = np.uint32(1)
                while moving != np.uint32(0):
                    moving = np.uint32(0)
                    for lane in range(behind - tree):
                        for row in range(group, end):
                            own = np.uint64(lane * rows + row)
                            node = np.uint64(places[own])
                            key = keys[np.uint64(row * width + nodes[node + np.uint64(1)])]
                            step = np.uint64(1) if key > nodes[node] else np.uint64(0)
                            follower = branches[node + step]
                            moving |= np.uint32(follower) ^ np.uint32(node)
                            places[own] = follower
            for lane in range(tree, behind):
                for row in range(first, last):
                    leaf = np.uint64(places[(lane - tree) * rows + row]) >> np.uint64(1)
                    for entry in range(starts[leaf], starts[leaf + np.uint64(1)]):
                        place = row * results + targets[entry]
                        weight = weights[entry]
                        if aggregate == SUM:
                            sums[place] += weight
                        elif aggregate == LEAST:
                            sums[place] = min(sums[place], weight)
                        else:
                            sums[place] = max(sums[place], weight)


@loop
def finish_sums(sums: Any, base: Any, y: Any, divisor: float, tid: int, nt: int) -> None:
    """Sums as an operator gives them.

    Args:
        sums: Results of rows, flat; infinite where no leaf spoke of the least or the most.
        base: What is added to each result, or to all.
        y: Output, flat.
        divisor: Of sums.
        tid: This thread.
        nt: All threads; they share elements.
    """
    for place in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        value = sums[place]
        if abs(value) == like(value, np.inf):
            value = like(value, 0)
        y[place] = value / like(value, divisor) + base[place % base.size]


class Ensemble(NamedTuple):
    """Trees, and what becomes of what they add up."""

    tables: TreeTables
    base: Array
    results: int


_FOUND: weakref.WeakKeyDictionary[Node, tuple[np.dtype[Any], Ensemble]] = (
    weakref.WeakKeyDictionary()
)
"""Of operations that live what was made for which type: a compile needs it five times."""


def ensemble_of(node: Node, kind: str, results: int, dtype: np.dtype[Any]) -> Ensemble:
    """The trees of an operation, made once.

    Args:
        node: The operation.
        kind: As for `_made_ensemble`.
        results: As there.
        dtype: As there.

    Raises:
        ValueError: Attributes do not belong together.
        LookupError: One is missing, or names no node.
    """
    known = _FOUND.get(node)
    if known is None or known[0] != dtype:
        known = _FOUND[node] = dtype, _made_ensemble(node, kind, results, dtype)
    return known[1]


def _made_ensemble(node: Node, kind: str, results: int, dtype: np.dtype[Any]) -> Ensemble:
    """The trees of a TreeEnsemble, TreeEnsembleClassifier or TreeEnsembleRegressor.

    Args:
        node: The operation.
        kind: ``"class"`` or ``"target"``; ``"leaf"`` of a TreeEnsemble.
        results: How many there are.
        dtype: Of the input.

    Raises:
        ValueError: Attributes do not belong together.
        LookupError: One is missing, or names no node.
    """
    if kind == "leaf":
        nodes, roots, leaves = entries_of(node.attrs, dtype)
    else:
        nodes, roots, numbers = nodes_of(node.attrs, dtype)
        leaves = leaves_of(node.attrs, kind, numbers, dtype)
    if not 0 <= leaves.targets.min(initial=0) <= leaves.targets.max(initial=0) < results:
        raise ValueError(f"a leaf adds to result {leaves.targets.max()} of {results}")
    base = numbers_of(node.attrs, "base_values", dtype)
    return Ensemble(tables_of(nodes, roots, leaves), base, results)


def _dtype_of(node: Node) -> np.dtype[Any]:
    x = node.inputs[0]
    return np.dtype(np.float32) if x is None or x.dtype is None else x.dtype


def _refused_regressor(node: Node) -> Reason | None:
    if reason := refused_attribute(node, {"post_transform": "NONE"}):
        return reason
    if reason := refused_choice(node, "aggregate_function", *AGGREGATES):
        return reason
    results = node.attrs["n_targets"]
    base = ensemble_of(node, "target", results, _dtype_of(node)).base
    if base.size not in (0, results):
        text = f"{base.size} base values for {results} results"
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, text)
    return None


@kernel("TreeEnsembleRegressor", domain=DOMAIN, dtypes=FLOATS, check=_refused_regressor)
def tree_regressor(b: Builder, node: Node, x: Operand) -> Operand:
    """Sums, means or extremes of what trees say of rows."""
    ensemble = ensemble_of(node, "target", node.attrs["n_targets"], x.dtype)
    return _emit_results(b, x, ensemble, node.attrs.get("aggregate_function", "SUM"), np.float32)


def _refused_ensemble(node: Node) -> Reason | None:
    if reason := refused_attribute(node, {"post_transform": 0}):
        return reason
    if reason := refused_choice(node, "aggregate_function", 1, *range(len(FUNCTIONS))):
        return reason
    ensemble_of(node, "leaf", node.attrs["n_targets"], _dtype_of(node))
    return None


@kernel("TreeEnsemble", domain=DOMAIN, dtypes=FLOATS, check=_refused_ensemble)
def tree_ensemble(b: Builder, node: Node, x: Operand) -> Operand:
    """As a TreeEnsembleRegressor, in the type of the input."""
    ensemble = ensemble_of(node, "leaf", node.attrs["n_targets"], x.dtype)
    return _emit_results(
        b, x, ensemble, FUNCTIONS[node.attrs.get("aggregate_function", 1)], x.dtype
    )


def _emit_results(b: Builder, x: Operand, ensemble: Ensemble, function: str, dtype: Any) -> Operand:
    """What trees say of rows, (rows, results) in `dtype`."""
    divisor = ensemble.tables.roots.size if function == "AVERAGE" else 1
    sums = _emit_sums(b, x, ensemble, AGGREGATES[function])
    y = b.empty(sums.shape, dtype)
    base = ensemble.base if ensemble.base.size else np.zeros(1, x.dtype)
    if y.size:
        flat = b.flat(sums), b.constant(base), b.flat(y)
        b.call(finish_sums, *flat, max(divisor, 1))
    return y


def _refused_classifier(node: Node) -> Reason | None:
    labels = node.attrs.get("classlabels_int64s") or ()
    ensemble = ensemble_of(node, "class", len(labels), _dtype_of(node))
    weights = ensemble.tables.weights
    spoken = set(np.unique(ensemble.tables.targets).tolist())
    return refused_scores(node, labels, spoken, weights, ensemble.base)


@kernel("TreeEnsembleClassifier", domain=DOMAIN, dtypes=FLOATS, check=_refused_classifier)
def tree_classifier(b: Builder, node: Node, x: Operand) -> tuple[Operand, Operand]:
    """Labels that trees vote for, and the votes."""
    labels = node.attrs["classlabels_int64s"]
    ensemble = ensemble_of(node, "class", len(labels), x.dtype)
    sums = _emit_sums(b, x, ensemble, SUM)
    one_sided = len(labels) == 2 and not ensemble.tables.targets.any()
    return emit_scores(b, node, sums, ensemble.base, labels, one_sided)


def _emit_sums(b: Builder, x: Operand, ensemble: Ensemble, aggregate: int) -> Operand:
    """What leaves add to the results of each row, in the type of the input."""
    tables = ensemble.tables
    if x.ndim not in (1, 2) or x.shape[-1] < tables.features:
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}) reads {tables.features} columns; its "
            f"input has shape {list(x.shape)}."
        )
    rows, width = (1, *x.shape)[-2:]
    sums = b.empty((rows, ensemble.results), x.dtype)
    if not sums.size:
        return sums
    nodes = columns_for(tables, width)
    sets = 1 + tables.two_sets
    keys = b.empty((rows * width * sets,), nodes.dtype)
    b.call(ordered_keys, b.flat(x), keys, width, sets, int(np.iinfo(nodes.dtype).max))
    lanes = LANES if rows < LANES else 1
    places = b.empty((rows * lanes,), np.uint32)
    flat = (nodes.ravel(), tables.branches.ravel(), *tables[2:6])
    b.call(
        follow_trees,
        keys,
        Trees(*map(b.constant, flat)),
        places,
        b.flat(sums),
        WalkSizes(width * sets, lanes, ensemble.results, aggregate),
        work=STEPS * rows * tables.roots.size,
    )
    return sums
