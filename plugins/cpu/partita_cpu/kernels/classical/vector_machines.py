"""Support vector machines of ai.onnx.ml: one for numbers, or one for each two classes.

Of two classes a machine tells by its sign which one a row is of, and the class that most machines
vote for is the answer. Where a model has what makes probabilities of these scores, shares of all
classes are those that agree best with all pairs: Wu, Lin and Weng, "Probability Estimates for
Multi-class Classification by Pairwise Coupling", Journal of Machine Learning Research 5 (2004),
algorithm 2, ended where libsvm ends it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Array, Builder, Node, Operand
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.classical.kernel_functions import (
    LINEAR,
    STEPS,
    KernelFunction,
    checked_rows,
    compare_row,
    function_of,
    multiplied_rows,
    refused_function,
    scratch_of,
    vectors_of,
    work_of,
)
from partita_cpu.kernels.classical.linear_models import sum_rows
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.scalar.instructions import like

DOMAIN = "ai.onnx.ml"
LEAST = 1e-7
"""The share of one of two classes is between this and the rest of 1."""
CLOSE = 0.005
"""Times the share of one of all classes: how far from the best shares may be."""
MOST_ROUNDS = 100
"""Or as many as there are classes."""


class Machines(NamedTuple):
    """What the machines of a classifier are made of, each flat.

    Attributes:
        vectors: Support vectors side by side, of one class after another.
        factors: Rows of one number for each support vector: row j - 1 for vectors of class i < j,
            row i for those of class j.
        rho: Of each pair of classes what is added.
        starts: Of each class its first support vector, and one more; int64.
    """

    vectors: Any
    factors: Any
    rho: Any
    starts: Any


@jit(reassociate=True)
def add_up_vectors(
    x: Any,
    vectors: Any,
    factors: Any,
    scratch: Any,
    y: Any,
    function: KernelFunction,
    rho: float,
    sign: int,
    tid: int,
    nt: int,
) -> None:
    """The sum of what all support vectors say of each row.

    Args:
        x: Rows, flat.
        vectors: Support vectors side by side.
        factors: Of each support vector.
        scratch: A number for each support vector and thread.
        y: Output: a number for each row.
        function: What compares a row with a support vector.
        rho: What is added.
        sign: Whether the result is 1 or -1 only.
        tid: This thread.
        nt: All threads; they share rows.
    """
    width, count = function.width, function.vectors
    values = scratch[tid * count : (tid + 1) * count]
    for row in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        compare_row(x[row * width : (row + 1) * width], vectors, values, function)
        total = like(x[0], 0)
        for v in range(count):
            total += values[v] * factors[v]
        total += like(x[0], rho)
        y[row] = (like(total, 1) if total > 0 else like(total, -1)) if sign else total


@jit(reassociate=True)
def score_pairs(
    x: Any,
    machines: Machines,
    scratch: Any,
    scores: Any,
    function: KernelFunction,
    tid: int,
    nt: int,
) -> None:
    """Of each row the score of each two classes.

    Args:
        x: Rows, flat.
        machines: What they are made of.
        scratch: A number for each support vector and thread.
        scores: Output: for each row a number for each pair of classes, flat.
        function: What compares a row with a support vector.
        tid: This thread.
        nt: All threads; they share rows.
    """
    vectors, factors, rho, starts = machines
    width, count, classes = function.width, function.vectors, starts.size - 1
    values = scratch[tid * count : (tid + 1) * count]
    rows = scores.size // rho.size
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        compare_row(x[row * width : (row + 1) * width], vectors, values, function)
        pair = 0
        for i in range(classes):
            for j in range(i + 1, classes):
                total = like(x[0], 0)
                for v in range(starts[i], starts[i + 1]):
                    total += factors[(j - 1) * count + v] * values[v]
                for v in range(starts[j], starts[j + 1]):
                    total += factors[i * count + v] * values[v]
                scores[row * rho.size + pair] = total + rho[pair]
                pair += 1


@loop
def count_votes(scores: Any, labels: Any, votes: Any, y: Any, tid: int, nt: int) -> None:
    """The label of the class that most pairs vote for; of equally many the first.

    Args:
        scores: For each row a number for each pair of classes, flat; above 0 for the first one.
        labels: Of classes.
        votes: Scratch: a number for each class and thread.
        y: Output: a label for each row.
        tid: This thread.
        nt: All threads; they share rows.
    """
    classes = labels.size
    pair = y.size * tid // nt * (classes * (classes - 1) // 2)
    own = votes[tid * classes : (tid + 1) * classes]
    for row in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        own[:] = 0
        for i in range(classes):
            for j in range(i + 1, classes):
                own[i if scores[pair] > 0 else j] += 1
                pair += 1
        best = 0
        for i in range(1, classes):
            if own[i] > own[best]:
                best = i
        y[row] = labels[best]


@loop
def both_signs(scores: Any, y: Any, tid: int, nt: int) -> None:
    """Of each number its negative, and itself.

    Args:
        scores: Numbers.
        y: Output: twice as many.
        tid: This thread.
        nt: All threads; they share numbers.
    """
    for row in range(scores.size * tid // nt, scores.size * (tid + 1) // nt):
        y[2 * row] = -scores[row]
        y[2 * row + 1] = scores[row]


class Sigmoids(NamedTuple):
    """What makes the share of the first of two classes of a score, for each pair; float64."""

    slopes: Any
    offsets: Any


@loop
def couple_pairs(
    scores: Any, sigmoids: Sigmoids, scratch: Any, y: Any, classes: int, tid: int, nt: int
) -> None:
    """Shares of all classes, which add up to 1, by what is known of each two.

    Args:
        scores: For each row a number for each pair of classes, flat.
        sigmoids: What makes shares of them.
        scratch: For each thread `classes` times (`classes` + 2) float64.
        y: Output: a share for each row and class, flat.
        classes: How many there are.
        tid: This thread.
        nt: All threads; they share rows.
    """
    slopes, offsets = sigmoids
    rows, pairs = y.size // classes, slopes.size
    own = scratch[tid * classes * (classes + 2) : (tid + 1) * classes * (classes + 2)]
    factors, shares = own[: classes * classes], own[classes * classes : classes * (classes + 1)]
    errors = own[classes * (classes + 1) :]
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        factors[:] = 0.0
        pair = row * pairs
        for i in range(classes):
            for j in range(i + 1, classes):
                place = pair - row * pairs
                power = np.exp(np.float64(scores[pair]) * slopes[place] + offsets[place])
                first = min(max(1.0 / (1.0 + power), LEAST), 1.0 - LEAST)
                factors[i * classes + i] += (1.0 - first) * (1.0 - first)
                factors[j * classes + j] += first * first
                factors[i * classes + j] = factors[j * classes + i] = -first * (1.0 - first)
                pair += 1
        for i in range(classes):
            shares[i] = 1.0 / classes
        for _ in range(max(MOST_ROUNDS, classes)):
            level, furthest = 0.0, 0.0
            for i in range(classes):
                errors[i] = 0.0
                for j in range(classes):
                    errors[i] += factors[i * classes + j] * shares[j]
                level += shares[i] * errors[i]
            for i in range(classes):
                furthest = max(furthest, abs(errors[i] - level))
            if furthest < CLOSE / classes:
                break
            for i in range(classes):
                step = (level - errors[i]) / factors[i * classes + i]
                scale = 1.0 / (1.0 + step)
                level += step * (step * factors[i * classes + i] + 2.0 * errors[i])
                level *= scale * scale
                shares[i] += step
                for j in range(classes):
                    errors[j] = (errors[j] + step * factors[i * classes + j]) * scale
                    shares[j] *= scale
        for i in range(classes):
            y[row * classes + i] = shares[i]


def _refused_regressor(node: Node) -> Reason | None:
    if reason := refused_function(node):
        return reason
    count = node.attrs.get("n_supports", 0)
    if count < 1 or len(node.attrs["coefficients"]) != count or not node.attrs.get("rho"):
        text = f"{len(node.attrs['coefficients'])} coefficients for {count} support vectors"
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, text)
    vectors_of(node, count)
    return None


@kernel("SVMRegressor", domain=DOMAIN, dtypes=F32, check=_refused_regressor)
def vector_regressor(b: Builder, node: Node, x: Operand) -> Operand:
    """A number for each row, or for one class whether a row is of it: 1 or -1."""
    vectors = vectors_of(node, node.attrs["n_supports"])
    function = function_of(node, vectors)
    rows = checked_rows(node, x, function.width)
    factors, rho = (np.array(node.attrs[name], np.float32) for name in ("coefficients", "rho"))
    y = b.empty((rows, 1), np.float32)
    one_class = int(node.attrs.get("one_class", 0))
    if rows and function.kind == LINEAR and not one_class:
        _emit_linear(b, x, vectors.astype(np.float64) @ factors[:, None], rho[:1], y)
    elif rows:
        given, columns, compared = multiplied_rows(b, x, vectors, function)
        b.call(
            add_up_vectors,
            given,
            columns,
            b.constant(factors),
            scratch_of(b, function.vectors),
            b.flat(y),
            compared,
            float(rho[0]),
            one_class,
            work=work_of(function, rows),
        )
    return y


def _emit_linear(b: Builder, x: Operand, weights: Array, added: Array, y: Operand) -> None:
    """Sums of the inputs by one weight each: what linear machines come to, whatever they hold.

    Args:
        b: Records the step.
        x: Rows of `width` numbers.
        weights: (width, results) in float64.
        added: To each result.
        y: Output, (rows, results).
    """
    constants = b.constant(weights.T.astype(np.float32).ravel()), b.constant(added)
    width = len(weights)
    b.call(sum_rows, b.flat(x), *constants, b.flat(y), width, work=y.size * width)


def _refused_classifier(node: Node) -> Reason | None:
    if reason := refused_function(node):
        return reason
    attrs = node.attrs
    classes, counts = len(attrs.get("classlabels_ints") or ()), attrs.get("vectors_per_class") or ()
    pairs, count = classes * (classes - 1) // 2, sum(counts)
    shares = [len(attrs.get(name) or ()) for name in ("prob_a", "prob_b")]
    if classes < 2 or len(counts) != classes or min(counts) < 0 or count < 1:
        text = f"{classes} classes are labelled by integers, {len(counts)} have support vectors"
    elif len(attrs["coefficients"]) != (classes - 1) * count or len(attrs["rho"]) != pairs:
        text = f"{len(attrs['coefficients'])} coefficients and {len(attrs['rho'])} numbers rho"
    elif shares not in ([0, 0], [pairs, pairs]):
        text = f"{shares} numbers for the probabilities of {pairs} pairs"
    elif classes == 2 and not any(shares) and min(attrs["coefficients"]) >= 0:
        text = "no coefficient is negative, of which engines make other labels"
    else:
        vectors_of(node, count)
        return None
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, text)


@kernel("SVMClassifier", domain=DOMAIN, dtypes=F32, check=_refused_classifier)
def vector_classifier(b: Builder, node: Node, x: Operand) -> tuple[Operand, Operand]:
    """Labels of most votes; shares of classes, or scores of pairs, or of one pair both signs."""
    attrs = node.attrs
    classes = len(attrs["vectors_per_class"])
    pairs = _emit_pairs(b, node, x)
    rows = pairs.shape[0]
    y = b.empty((rows,), np.int64)
    if rows:
        labels, votes = (
            np.array(attrs["classlabels_ints"], np.int64),
            scratch_of(b, classes, np.int64),
        )
        b.call(count_votes, b.flat(pairs), b.constant(labels), votes, y)
    if attrs.get("prob_a"):
        shares = b.empty((rows, classes), np.float32)
        sigmoids = (b.constant(np.array(attrs[n], np.float64)) for n in ("prob_a", "prob_b"))
        scratch = scratch_of(b, classes * (classes + 2), np.float64)
        if rows:
            flat = b.flat(pairs), Sigmoids(*sigmoids), scratch, b.flat(shares)
            b.call(couple_pairs, *flat, classes, work=STEPS * rows * classes * classes)
        return y, shares
    if classes > 2:
        return y, pairs
    both = b.empty((rows, 2), np.float32)
    if rows:
        b.call(both_signs, b.flat(pairs), b.flat(both))
    return y, both


def _emit_pairs(b: Builder, node: Node, x: Operand) -> Operand:
    """Scores of each two classes, (rows, pairs) in float32."""
    counts: Sequence[int] = node.attrs["vectors_per_class"]
    vectors = vectors_of(node, sum(counts))
    function = function_of(node, vectors)
    rows = checked_rows(node, x, function.width)
    factors, rho = (np.array(node.attrs[name], np.float32) for name in ("coefficients", "rho"))
    starts = np.cumsum([0, *counts], dtype=np.int64)
    scores = b.empty((rows, rho.size), np.float32)
    if rows and function.kind == LINEAR:
        weights = vectors.astype(np.float64) @ _factors_of_pairs(factors, starts)
        _emit_linear(b, x, weights, rho, scores)
    elif rows:
        given, columns, compared = multiplied_rows(b, x, vectors, function)
        b.call(
            score_pairs,
            given,
            Machines(columns, *map(b.constant, (factors, rho, starts))),
            scratch_of(b, function.vectors),
            b.flat(scores),
            compared,
            work=work_of(function, rows),
        )
    return scores


def _factors_of_pairs(factors: Array, starts: Array) -> Array:
    """Of each support vector and pair of classes the factor, (vectors, pairs) in float64."""
    classes, count = len(starts) - 1, starts[-1]
    by_row = factors.reshape(classes - 1, count)
    found = np.zeros((count, classes * (classes - 1) // 2))
    for pair, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        for row, own in ((j - 1, i), (i, j)):
            place = slice(starts[own], starts[own + 1])
            found[place, pair] = by_row[row, place]
    return found
