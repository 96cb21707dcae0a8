"""Heads of new tokens: where they are, and their normalization, scaling and rotation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.intrinsics.address_call import address, prefetch
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.scalar.instructions import add_in_any_order, like

(
    OF_BATCH,
    OF_GROUP,
    OF_HEAD,
    OF_TOKEN,
    START,
    ROTATED,
    INTERLEAVED,
    POSITIONED,
    NORMALIZED,
) = range(9)
"""What `NewHeads.table` holds. OF_BATCH, OF_GROUP, OF_HEAD, OF_TOKEN: elements from a batch to the
next, from a head of keys to the next, from a head of queries that shares it to the next, and from a
token to the next; START: element of the first head; ROTATED: elements of a head that are rotated,
in pairs; INTERLEAVED: whether pairs are neighbours; POSITIONED: whether positions are given;
NORMALIZED: whether there are weights of a norm.
"""

_AHEAD = 8
"""Tokens from one to the one whose same head is asked for meanwhile.

Heads of neighbouring tokens lie too far apart for a processor to foresee them.
"""

_LINE = 16
"""Floats of a line of the cache."""


class NewHeads(NamedTuple):
    """Queries or keys of new tokens.

    Attributes:
        rows: What holds them, flat.
        cosines: (positions, ROTATED / 2), flat; not read if nothing is rotated, as what follows.
        sines: The same.
        positions: Of the tokens, (B, S), flat; not read unless the table says so.
        weights: Of the norm of a head, not read unless the table says so.
        table: As above.
        epsilon: What is added under the root of the norm.
        scale: Factor of each element.
    """

    rows: KernelArray
    cosines: KernelArray
    sines: KernelArray
    positions: KernelArray
    weights: KernelArray
    table: KernelArray
    epsilon: float
    scale: float


@loop(inline=True)
def head_place(table: Any, batch: Any, group: Any, member: Any, s: Any) -> Any:
    """The first element of one head of a token."""
    place = batch * table[OF_BATCH] + group * table[OF_GROUP] + member * table[OF_HEAD]
    return place + s * table[OF_TOKEN] + table[START]


@loop
def rotate_head(given: NewHeads, place: int, position: int, target: Array) -> None:
    """Normalizes, scales and rotates one head of a token.

    Args:
        given: Heads as they are given.
        place: The head's first element.
        position: Of the token, unless positions are given: its place among all of these then.
        target: Receives the head.
    """
    table = given.table
    source = given.rows[place : place + target.size]
    ahead = address(given.rows) + 4 * (place + _AHEAD * table[OF_TOKEN])
    for i in range(0, target.size, _LINE):
        prefetch(ahead + 4 * i)
    factor = like(target[0], given.scale)
    if table[NORMALIZED]:
        factor *= _inverse_root(source, given.epsilon)
        for i in range(target.size):
            target[i] = source[i] * factor * given.weights[i]
    else:
        for i in range(target.size):
            target[i] = source[i] * factor
    at = given.positions[position] if table[POSITIONED] else position
    rotate_row(target, given.cosines, given.sines, at, table[ROTATED], table[INTERLEAVED])


@loop(inline=True)
def _inverse_root(row: Any, epsilon: Any) -> Any:
    """1 / the root of the mean square."""
    square = like(row[0], 0)
    for i in range(row.size):
        square = add_in_any_order(square, row[i] * row[i])
    return like(square, 1 / np.sqrt(np.float64(square) / row.size + epsilon))


@loop(inline=True)
def rotate_row(row: Any, cosines: Any, sines: Any, at: Any, rotated: Any, interleaved: Any) -> None:
    """Rotates pairs of elements by the angles of a position.

    Args:
        row: A head of a token.
        cosines: (positions, pairs), flat.
        sines: As cosines.
        at: The position.
        rotated: Elements that belong to pairs; those behind them stay.
        interleaved: Whether pairs are neighbours; else all second elements follow all first ones.
    """
    half = rotated // 2
    # Slices, since an index that might be negative is looked at one by one.
    near, far = cosines[at * half : (at + 1) * half], sines[at * half : (at + 1) * half]
    if interleaved:
        for i in range(half):
            a, b = row[2 * i], row[2 * i + 1]
            row[2 * i] = a * near[i] - b * far[i]
            row[2 * i + 1] = b * near[i] + a * far[i]
    else:
        first, second = row[:half], row[half : 2 * half]
        for i in range(half):
            a, b = first[i], second[i]
            first[i] = a * near[i] - b * far[i]
            second[i] = b * near[i] + a * far[i]
