"""Valid spans of a cache: which places hold keys, from lengths that are checked before use.

One small step makes spans of the lengths; all operations that read the same tensors share it, as
those of a decoder's layers do. Kernels trust spans and positions that have passed it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, NoReturn

import numpy as np

from partita.errors import InputError
from partita.lowering import Array, Builder, Operand
from partita.lowering.cache_faults import CacheFault, CacheFaultKind
from partita.lowering.shapes.symbolic_size import Number, integers, same_number
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.jit.record_arguments import KernelArray

_TOTAL, _LENGTH, _POSITION = map(int, CacheFaultKind)


class Lengths(NamedTuple):
    """Tensors that say how far each row of a batch has come.

    Attributes:
        lengths: int32 of (B,): keys of each row, this run's included, minus 1.
        total: int32, one element: the most keys of a row.
        positions: int64 of (B, S): the place of each token in its sequence; ignored if the table
            says that there are none.
    """

    lengths: KernelArray
    total: KernelArray
    positions: KernelArray


@jit
def check_spans(
    given: Lengths, spans: Array, wrong: Array, table: Array, tid: int, nt: int
) -> None:
    """Writes how many keys each row has before this run and after it.

    Args:
        given: What tensors say.
        spans: int64 of (B, 2), flat: keys before, keys after.
        wrong: Receives a `CacheFault` if there is one.
        table: B, S, places of the cache, places of the rotary tables, whether positions are given.
        tid: This thread; one does all.
        nt: All threads.
    """
    if tid != 0:
        return
    batch, queries, places, rotary = table[0], table[1], table[2], table[3]
    most = np.int64(given.total[0])
    if most < queries or most > places:
        wrong[0], wrong[1], wrong[2], wrong[3], wrong[4] = _TOTAL, 0, most, queries, places
        raise ValueError("the total length does not fit")
    for row in range(batch):
        after = np.int64(given.lengths[row]) + 1
        before = 0 if most == queries else after - queries
        if after < 1 or after > most or before < 0:
            wrong[0], wrong[1], wrong[2] = _LENGTH, row, after - 1
            wrong[3], wrong[4] = 0 if most == queries else queries - 1, most - 1
            raise ValueError("a length does not fit")
        spans[2 * row], spans[2 * row + 1] = before, after
        for s in range(min(queries, after - before)):
            at = given.positions[row * queries + s] if table[4] else before + s
            if at < 0 or at >= rotary:
                wrong[0], wrong[1], wrong[2] = _POSITION, row, at
                wrong[3], wrong[4] = 0, rotary - 1
                raise ValueError("a position does not fit")


def spans_of(
    b: Builder,
    lengths: Operand,
    total: Operand,
    positions: Operand | None,
    sizes: tuple[Number, Number, Number, Number],
) -> Operand:
    """Records the check, once for all operations that ask for the same.

    Args:
        b: The builder.
        lengths: See `Lengths`.
        total: See `Lengths`.
        positions: See `Lengths`.
        sizes: B, S, places of the cache, places of the rotary tables.

    Returns:
        int64 of (B, 2): for each row its keys before the run and after it, within the cache.
    """

    def make() -> Operand:
        table = integers([*sizes, int(positions is not None)])
        spans, wrong = b.empty((sizes[0], 2), np.int64), b.empty((5,), np.int64)
        given = Lengths(
            b.flat(lengths), b.flat(total), b.flat(spans if positions is None else positions)
        )
        check = Checked(check_spans, functools.partial(_refuse, b.node.name))
        b.call(check, given, b.flat(spans), wrong, b.constant(table))
        return spans

    key = ("spans", total, positions, *map(same_number, sizes))
    return b.once(lengths, key, make)


def _refuse(name: str, *arguments: Array) -> NoReturn:
    *_, wrong, _ = arguments
    raise InputError(f"Operation '{name}': {CacheFault(*map(int, wrong)).describe()}.")
