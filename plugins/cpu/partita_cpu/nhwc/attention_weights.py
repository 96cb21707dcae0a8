"""The softmax of attention: from scores, factors and masks to the weights of values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.intrinsics.address_array import floats_at
from partita_cpu.jit.intrinsics.address_call import address, call_weigh
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.nhwc.attention_table import (
    BECOMES_ZERO,
    COSINE,
    DEPTH,
    K_BATCH,
    K_HEAD,
    K_START,
    K_STEP,
    KEYS,
    MASK_BATCH,
    MASK_HEAD,
    MASK_KEY,
    MASK_PERIOD,
    MASK_QUERY,
    MASKS,
    OTHER_BATCH,
    OTHER_HEAD,
    OTHER_KEY,
    OTHER_PERIOD,
    OTHER_QUERY,
    PAIRS,
    Q_BATCH,
    Q_HEAD,
    Q_START,
    Q_STEP,
    SCALED,
    AttentionInputs,
)
from partita_cpu.scalar.instructions import add_in_any_order, like, maximum, sqrt, wide_vectors
from partita_cpu.scalar.math import row_maximum

MOST_FACTOR = 1e30
"""Scores times a larger factor may be no numbers where differences from the largest one are."""


class Queries(NamedTuple):
    """Some queries of a head: which batch, head, the first one, and which comes after the last."""

    batch: int
    head: int
    first: int
    stop: int


class Factors(NamedTuple):
    """What scores are multiplied by, and the least length that queries and keys are divided by."""

    scale: float
    least: float


class Weights(NamedTuple):
    """Where the weights of queries go.

    Attributes:
        at: Address of those of the first one, float32 or bfloat16; the scores' own, or other
            memory.
        step: Bytes from there to those of the next one.
    """

    at: int
    step: int


@loop
def weigh_values(
    inputs: AttentionInputs,
    p: Array,
    which: Queries,
    scores: Weights,
    weights: Weights,
    lengths: Array,
    factors: Factors,
    kernel: int,
) -> None:
    """Makes weights of the products of some queries and all keys of their head.

    Their sum is not 1: results are to be multiplied by what `lengths` has for a query then.

    Args:
        inputs: What attention reads.
        p: Its table.
        which: The queries.
        scores: The products, float32; written over.
        weights: Where weights go: elsewhere if they are bfloat16, then with a zero behind an odd
            number of them.
        lengths: What keys are multiplied by to be of length 1, then room for as many numbers as
            there are queries, which receives their shares.
        factors: Of scores.
        kernel: Address of `llvm.attention.weigh`.
    """
    keys, rows = p[KEYS], which.stop - which.first
    of_queries = lengths[keys : keys + rows]
    if p[COSINE]:
        first = p[Q_START] + which.batch * p[Q_BATCH] + which.head * p[Q_HEAD]
        first += which.first * p[Q_STEP]
        inverse_lengths(inputs.q, first, p[Q_STEP], p[DEPTH], factors.least, of_queries)
    for r in range(rows):
        line, factor = floats_at(scores.at + r * scores.step, keys), np.float32(factors.scale)
        if p[SCALED]:
            factor *= inputs.factors[which.head]
        if p[COSINE]:
            factor *= of_queries[r]
            _multiply(line, lengths)
        if p[MASKS] or not (np.float32(0) < factor < np.float32(MOST_FACTOR)):
            _mask_row(line, inputs, factor, p, which.batch, which.head, which.first + r)
            factor = np.float32(1)
        to = weights.at + r * weights.step
        if p[BECOMES_ZERO] and row_maximum(line) == np.float32(-np.inf):
            of_queries[r] = _no_weights(to, p)
            continue
        total = call_weigh(kernel, (address(line), keys, factor, to))
        if p[BECOMES_ZERO] == 2 and total != total:
            of_queries[r] = _no_weights(to, p)
            continue
        of_queries[r] = np.float32(1) / total


@loop
def _no_weights(to: int, p: Array) -> Any:
    """Makes the weights of a query zeros; yields its share."""
    zeros = floats_at(to, (p[KEYS] + 1) // 2 if p[PAIRS] else p[KEYS])
    for j in range(zeros.size):
        zeros[j] = np.float32(0)
    return np.float32(1)


@loop
def measure_keys(
    inputs: AttentionInputs, p: Array, batch: int, head: int, least: float, lengths: Array
) -> None:
    """What each key of a head is multiplied by to be of length 1.

    Args:
        inputs: Has the keys.
        p: Sizes and strides.
        batch: Of the keys.
        head: Of the keys.
        least: Lengths below it count as it.
        lengths: What is written: one factor for each key.
    """
    first = p[K_START] + batch * p[K_BATCH] + head * p[K_HEAD]
    inverse_lengths(inputs.k, first, p[K_STEP], p[DEPTH], least, lengths[: p[KEYS]])


@loop
def inverse_lengths(
    x: Array, first: int, step: int, size: int, least: float, lengths: Array
) -> None:
    """1 over the root of the sum of squares of rows, or over what is the least.

    Args:
        x: Where they lie, flat.
        first: The element that the first one begins at.
        step: Elements from one to the next.
        size: Elements of one.
        least: What is the least.
        lengths: The results, one for each row.
    """
    wide_vectors()
    for j in range(lengths.size):
        row = x[first + j * step : first + j * step + size]
        total = like(lengths[0], 0)
        for k in range(size):
            total = add_in_any_order(total, row[k] * row[k])
        lengths[j] = total
    for j in range(lengths.size):
        lengths[j] = like(lengths[0], 1) / maximum(sqrt(lengths[j]), like(lengths[0], least))


@loop
def _multiply(line: Array, factors: Array) -> None:
    """Multiplies element by element."""
    wide_vectors()
    for j in range(line.size):
        line[j] *= factors[j]


@loop
def _mask_row(
    line: Array, inputs: AttentionInputs, factor: Any, p: Array, batch: int, head: int, query: int
) -> None:
    """The scores of a query times a factor, plus what masks have for them.

    Args:
        line: The scores.
        inputs: Masks.
        factor: The factor.
        p: The table.
        batch: The sequence.
        head: The head.
        query: The query.
    """
    wide_vectors()
    if p[MASKS] == 0:
        for j in range(line.size):
            line[j] *= factor
        return
    at = batch % p[MASK_PERIOD] * p[MASK_BATCH] + head * p[MASK_HEAD] + query * p[MASK_QUERY]
    if p[MASK_KEY]:
        terms = inputs.mask[at : at + line.size]
        for j in range(line.size):
            line[j] = line[j] * factor + terms[j]
    else:
        term = inputs.mask[at]
        for j in range(line.size):
            line[j] = line[j] * factor + term
    if p[MASKS] == 1:
        return
    at = batch % p[OTHER_PERIOD] * p[OTHER_BATCH] + head * p[OTHER_HEAD] + query * p[OTHER_QUERY]
    if p[OTHER_KEY]:
        terms = inputs.other[at : at + line.size]
        for j in range(line.size):
            line[j] += terms[j]
    else:
        term = inputs.other[at]
        for j in range(line.size):
            line[j] += term
