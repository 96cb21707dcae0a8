"""Routing: which experts each token chooses, and rows sorted by expert.

A token has as many rows as it chooses experts. Sorted, those of an expert lie one behind another,
so that its weights are read once for all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Builder, Operand
from partita.lowering.shapes.symbolic_size import settled
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.math import exp_below_zero, row_maximum


class Routes(NamedTuple):
    """The rows of tokens by expert.

    Attributes:
        starts: Of each expert its first row, and of the last one behind its last row; int64.
        order: Of each row the choice that it is, counted through all tokens; int64.
        places: Of each choice its row; int64.
        shares: Of each choice its part of the token's result; float32.
        used: Choices of a token.
    """

    starts: Operand
    order: Operand
    places: Operand
    shares: Operand
    used: int

    @property
    def rows(self) -> int:
        """Rows of all tokens."""
        return self.order.size

    @property
    def experts(self) -> int:
        """How many experts there are."""
        return self.starts.size - 1


@loop
def choose_experts(
    logits: Any,
    given: Any,
    chosen: Any,
    shares: Any,
    experts: int,
    is_given: int,
    normalized: int,
    tid: int,
    nt: int,
) -> None:
    """The experts of the largest logits, and their parts of the softmax.

    Args:
        logits: A row for each token, flat.
        given: As many parts, taken instead of the softmax if `is_given`.
        chosen: The experts of each token, the likeliest first; the first of equal ones.
        shares: Their parts.
        experts: How many there are.
        is_given: 0 or 1.
        normalized: Whether parts are divided by their sum, 0 or 1.
        tid: This thread.
        nt: All threads.
    """
    tokens = logits.size // experts
    used = chosen.size // tokens
    for token in range(tokens * tid // nt, tokens * (tid + 1) // nt):
        row = logits[token * experts : (token + 1) * experts]
        parts = given[token * experts : (token + 1) * experts]
        places = chosen[token * used : (token + 1) * used]
        own = shares[token * used : (token + 1) * used]
        top, total = row_maximum(row), np.float32(0)
        for i in range(experts):
            total += exp_below_zero(row[i] - top)
        sum_of_own = np.float32(0)
        for number in range(used):
            best = -1
            for i in range(experts):
                taken = False
                for before in range(number):
                    taken = taken or places[before] == i
                if not taken and (best < 0 or row[i] > row[best]):
                    best = i
            places[number] = best
            own[number] = parts[best] if is_given else exp_below_zero(row[best] - top) / total
            sum_of_own += own[number]
        if normalized:
            for number in range(used):
                own[number] = own[number] / sum_of_own if sum_of_own else np.float32(0)


@loop
def sort_choices(chosen: Any, starts: Any, order: Any, places: Any, tid: int, nt: int) -> None:
    """Rows by expert, those of an expert in the order of tokens; see `Routes`. One thread does it.

    Args:
        chosen: The experts that tokens choose, flat.
        starts: See `Routes`.
        order: See `Routes`.
        places: See `Routes`.
        tid: This thread.
        nt: All threads.
    """
    if tid:
        return
    experts = starts.size - 1
    for expert in range(experts + 1):
        starts[expert] = 0
    for policy in range(chosen.size):
        starts[chosen[policy] + 1] += 1
    for expert in range(experts):
        starts[expert + 1] += starts[expert]
    for policy in range(chosen.size):
        row = starts[chosen[policy]]
        starts[chosen[policy]] = row + 1
        order[row], places[policy] = policy, row
    for expert in range(experts, 0, -1):
        starts[expert] = starts[expert - 1]
    starts[0] = 0


@loop
def gather_rows(x: Any, order: Any, used: int, out: Any, tid: int, nt: int) -> None:
    """The tokens of rows.

    Args:
        x: Tokens, flat.
        order: See `Routes`.
        used: Choices of a token.
        out: A row for each choice, flat.
        tid: This thread.
        nt: All threads.
    """
    terms = out.size // order.size
    for row in range(order.size * tid // nt, order.size * (tid + 1) // nt):
        token = order[row] // used
        source, target = (
            x[token * terms : (token + 1) * terms],
            out[row * terms : (row + 1) * terms],
        )
        for i in range(terms):
            target[i] = source[i]


@loop
def add_up(
    rows: Any, places: Any, shares: Any, y: Any, columns: int, used: int, tid: int, nt: int
) -> None:
    """The sum of the rows of each token, each times its share.

    Args:
        rows: One behind another.
        places: See `Routes`.
        shares: See `Routes`.
        y: Tokens, flat.
        columns: Of a row.
        used: Choices of a token.
        tid: This thread.
        nt: All threads.
    """
    first, last = columns * tid // nt, columns * (tid + 1) // nt
    for token in range(y.size // columns):
        target = y[token * columns + first : token * columns + last]
        for i in range(target.size):
            target[i] = np.float32(0)
        for policy in range(token * used, (token + 1) * used):
            start, share = places[policy] * columns, shares[policy]
            source = rows[start + first : start + last]
            for i in range(target.size):
                target[i] += source[i] * share


@loop
def add_biases(y: Any, starts: Any, biases: Any, columns: int, tid: int, nt: int) -> None:
    """Adds to each row what belongs to its expert.

    Args:
        y: Rows, flat.
        starts: See `Routes`.
        biases: A row for each expert, flat.
        columns: Of a row.
        tid: This thread.
        nt: All threads.
    """
    first, last = columns * tid // nt, columns * (tid + 1) // nt
    for expert in range(starts.size - 1):
        bias = biases[expert * columns + first : expert * columns + last]
        for row in range(starts[expert], starts[expert + 1]):
            target = y[row * columns + first : row * columns + last]
            for i in range(target.size):
                target[i] += bias[i]


def routes(b: Builder, chosen: Operand, shares: Operand, experts: int) -> Routes:
    """The rows of choices; those must be experts that there are.

    Args:
        b: The builder.
        chosen: int64 (..., choices of a token).
        shares: float32, as many.
        experts: How many there are.
    """
    starts = b.empty((experts + 1,), np.int64)
    order, places = (b.empty((chosen.size,), np.int64) for _ in range(2))
    b.call(sort_choices, b.flat(chosen), starts, order, places)
    return Routes(starts, order, places, b.flat(shares), settled(chosen.shape[-1]))


def rows_of_tokens(b: Builder, x: Operand, found: Routes) -> Operand:
    """A row for each choice (rows, terms), of tokens (..., terms)."""
    rows = b.empty((found.rows, x.shape[-1]), np.float32)
    b.call(gather_rows, b.flat(x), found.order, found.used, b.flat(rows))
    return rows


def sums_of_rows(b: Builder, rows: Operand, found: Routes, y: Operand) -> None:
    """Adds up the rows of each token into `y` (..., columns)."""
    places = found.places, found.shares
    b.call(add_up, b.flat(rows), *places, b.flat(y), y.shape[-1], found.used)
