"""Computes the arithmetic of sizes of recorded programs by machine code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from partita.lowering import Array
from partita.lowering.shapes.size_arithmetic import TOLD, Code, Outcome
from partita.tensors.array_state import data_address
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.foreign_call import invoke
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.trampoline import append_call

_LARGE = float(1 << 62)
_ADD, _SUB, _MUL, _DIV, _MOD, _MAX, _MIN, _LT, _LE, _GT, _GE, _EQ, _NE, _WITHIN = map(int, Code)
_TOLD = int(TOLD)
_OTHERWISE, _TOO_LARGE = int(Outcome.OTHERWISE), int(Outcome.TOO_LARGE)


@jit
def _evaluate(steps: Array, values: Array, tid: int, nt: int) -> None:
    """Takes all steps, in order.

    Args:
        steps: int64 [4 n].
        values: int64, by place; changed. The last one becomes how the steps came out.
        tid: Not used: one thread calls it.
        nt: The same.
    """
    for at in range(0, steps.size, 4):
        code, target, left, right = steps[at], steps[at + 1], steps[at + 2], steps[at + 3]
        x, z = values[left], values[right]
        is_told = code >= _TOLD
        if is_told:
            code -= _TOLD
        if code < _LT:
            if code <= _SUB:
                large = abs(float(x)) + abs(float(z)) >= _LARGE
                found = x + z if code == _ADD else x - z
            elif code == _MUL:
                large = abs(float(x) * float(z)) >= _LARGE
                found = x * z
            elif code <= _MOD:
                if z == 0:
                    values[-1] = _OTHERWISE
                    return
                large = abs(float(x)) >= _LARGE
                found = x // z if code == _DIV else x % z
            else:
                large = False
                found = max(x, z) if code == _MAX else min(x, z)
            if large:
                values[-1] = _TOO_LARGE
                return
            values[target] = found
            continue
        if code == _LT:
            is_so = x < z
        elif code == _LE:
            is_so = x <= z
        elif code == _GT:
            is_so = x > z
        elif code == _GE:
            is_so = x >= z
        elif code == _EQ:
            is_so = x == z
        elif code == _NE:
            is_so = x != z
        else:
            is_so = z <= x <= values[right + 1]
        if is_told:
            values[target] = 1 if is_so else 0
        elif is_so != (target == 1):
            values[-1] = _OTHERWISE
            return
    values[-1] = 0


CALLS = ((_evaluate, (np.zeros(4, np.int64), np.zeros(1, np.int64))),)
"""What is compiled here, and arguments like those that it is called with."""


def evaluator_of(steps: Array, count: int) -> Callable[[Array], int] | None:
    """What computes a table of steps, as ``size_arithmetic.Evaluator`` says.

    Args:
        steps: int64, four words a step.
        count: How many integers they are computed on.
    """
    like = np.zeros(count, np.int64)
    entry = entry_of(_evaluate, (steps, like))
    if entry is None:
        return None
    words: list[int] = []
    first, second = append_call(words, entry, (steps, like))
    template = np.array(words, np.int64)
    template[first] = data_address(steps)
    call, trampoline = invoke(), entry.trampoline

    def evaluate(integers: Array, steps: Array = steps) -> int:
        slots = template.copy()
        slots[second] = data_address(integers)
        call(trampoline, data_address(slots), 0, 1)
        outcome: int = integers.item(-1)
        return outcome

    return evaluate
