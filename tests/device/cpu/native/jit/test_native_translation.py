"""Kernels translated without numba compute what numba's own machine code does."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import os
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba.core.registry import cpu_target

from partita.errors import InferError
from partita.lowering import Array
from partita_cpu.gemm.macrokernel import product_loop
from partita_cpu.gemm.packed_lhs import product
from partita_cpu.gemm.packing import kernels as packing
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_definition import Effort, kinds_of, type_of
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.arithmetic import Arithmetic
from partita_cpu.jit.translation.kinds import UntranslatableError
from partita_cpu.jit.translation.object_code import object_of, text_of
from partita_cpu.jit.translation.values import Value, register_type
from partita_cpu.scalar.instructions import like, muladd
from partita_cpu.scalar.math import exp
from partita_cpu.threads import call_queue, thread_pool

LEAST, MOST = -(2**63), 2**63 - 1
WHOLE = np.array([LEAST, LEAST + 1, -17, -4, -3, -1, 0, 1, 2, 5, 8, 64, MOST], np.int64)
REAL = np.array([-np.inf, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, np.inf, np.nan], np.float32)


class Bounds(NamedTuple):
    low: int
    high: int


class Inner(NamedTuple):
    bounds: Bounds
    weights: Any


@loop
def whole_numbers(a: Array, b: Array, y: Array, tid: int, nt: int) -> None:
    for i in range(a.size):
        p, q = a[i], b[i]
        shift = q & 63
        y[i, 0], y[i, 1], y[i, 2] = p + q, p - q, p * q
        y[i, 3], y[i, 4] = p // q, p % q
        y[i, 5], y[i, 6], y[i, 7] = p // 8, p % 8, p // -3
        y[i, 8], y[i, 9], y[i, 10] = p & q, p | q, p ^ q
        y[i, 11], y[i, 12], y[i, 13] = p << shift, p >> shift, -p
        y[i, 14], y[i, 15], y[i, 16] = ~p, min(p, q, 3), max(p, q, -3)
        y[i, 17], y[i, 18] = divmod(p, q)
        y[i, 19], y[i, 20] = abs(p), p % -8
        y[i, 21] = (
            np.int64(np.int32(p)) + np.int64(np.uint8(q)) + np.int64(np.int16(p) * np.int32(3))
        )
        y[i, 22] = np.int64(np.uint64(p) // np.uint64(q)) + np.int64(np.uint64(p) >> np.uint64(3))
        y[i, 23] = 7 if p < q else 11 - (2 if p <= 0 else 1)
        y[i, 24] = operator.neg(p) + operator.invert(q)
        y[i, 25] = 5 if operator.not_(p) else 3 if operator.le(p, q) else 4


@loop
def floats(a: Array, b: Array, y: Array, tid: int, nt: int) -> None:
    for i in range(a.size):
        p, q = a[i], b[i]
        y[i, 0], y[i, 1], y[i, 2], y[i, 3] = p + q, p - q, p * q, p / q
        y[i, 4], y[i, 5], y[i, 6] = max(p, q), min(p, q), max(p, q, np.float32(0.25))
        y[i, 7], y[i, 8], y[i, 9] = abs(p), -p, muladd(p, q, p)
        y[i, 10] = 1.0 if p < q else 0.0
        y[i, 11] = 1.0 if p != q else 0.0
        y[i, 12] = 1.0 if not p >= q else 0.0
        y[i, 13] = p + 0.1 * i
        y[i, 14] = i / 3 + np.float64(q)
        y[i, 15] = exp(p)
        y[i, 16] = math.floor(p) if abs(p) < np.float32(9) else -1
        y[i, 17], y[i, 18] = np.floor(p), np.ceil(q)
        y[i, 19] = np.float32(np.int32(p)) if abs(p) < np.float32(9) else like(p, 7)
        y[i, 20] = operator.mul(p, q)
        y[i, 21], y[i, 22] = operator.neg(p), q * np.float32(2.0**112)
        y[i, 23] = 1.0 if operator.eq(p, q) else 2.0 if operator.gt(p, q) else 0.0


@loop
def pieces(x: Array, starts: Array, y: Array, tid: int, nt: int) -> None:
    for i in range(starts.size):
        for j in range(starts.size):
            first, last = starts[i], starts[j]
            piece = x[1, -1, first:last]
            total = piece.size
            for k in range(piece.size):
                total += 3 * (k + 1) * piece[k]
            plane = x[-1]
            row = plane[0]
            rest, head = row[first:], row[:last]
            total += 1000 * rest.size + 100000 * head.size + len(plane) * row.itemsize
            total += x.shape[2] * x.ndim + plane.shape[0] + row[np.uint64(3)] + row[-2]
            y[i, j] = total


@loop
def filled(x: Array, y: Array, tid: int, nt: int) -> None:
    y[:] = 7
    y[2:5] = x[0]
    y[-1] += 5
    y[1] *= 3


@loop
def loops(a: Array, y: Array, tid: int, nt: int) -> None:
    n = 0
    for i in range(10, 0, -3):
        n = 10 * n + i
    for step in range(-2, 3):
        if step == 0:
            continue
        for i in range(3 * step, -4 * step, -step):
            n += i * i
            if n > 10000:
                break
    left = 20
    while True:
        left -= 3
        if left % 4 == 1:
            continue
        n += left
        if left < 3:
            break
    while left < 9 and a[left] < np.float32(100):
        left += 1
    value = a[0]
    y[0] = np.float64(value)
    value = 3
    y[1] = n + value
    y[2] = left
    for i in range(3):
        value = a[i : i + 2]
        y[3 + i] = np.float64(value[1]) + i
    y[6] = i
    for kind in (2, 4, 8):
        if kind == 4:
            continue
        y[7] = 100 * y[7] + kind
        if y[7] > left and kind > 2:
            break
        y[8] += kind


@loop
def choices(a: Array, y: Array, tid: int, nt: int) -> None:
    for i in range(a.size):
        p = a[i]
        inside = 0 <= p < 6
        some = inside and p
        other = p > 2 or i
        y[i, 0] = some
        y[i, 1] = other
        y[i, 2] = 1 if p in (1, 5, -3) and p not in (5, 8) else 0
        y[i, 3] = (p, i, 4)[1] if not inside else (p if p > i else i)
        if p < 0 or (i > 3 and p != 5):
            y[i, 4] = 1
        elif inside:
            y[i, 4] = 2
        else:
            y[i, 4] = 3
        y[i, 5] = bool(p) == (i > 2)


@register_jitable
def _scaled(p: int, factor: int = 3, plus: int = 1) -> Any:
    if p > 100:
        return p, 0
    return p * factor + plus, 1


@loop(inline=True)
def _of_record(inner: Inner, i: int) -> Any:
    low, high = inner.bounds
    return inner.weights[i] + low * 10 + inner.bounds.high, Bounds(high, high=low)


def _adder(more: int) -> Any:
    def add(p: int) -> int:
        return p + more

    return loop(add)


add_seven = _adder(7)


@jit
def functions(inner: Inner, a: Array, y: Array, tid: int, nt: int) -> None:
    for i in range(a.size):
        scaled, small = _scaled(a[i], plus=2)
        found, turned = _of_record(inner, i)
        both = (scaled, small)
        y[i] = found + 100 * turned.low + 1000 * turned.high + add_seven(scaled) * small
        y[i] += _sum_of(*both, 3)


@loop
def _sum_of(a: int, b: int, c: int) -> int:
    return a + b + c


@loop
def truths(a: Array, y: Array, flags: Array, tid: int, nt: int) -> None:
    for i in range(a.size):
        flags[i] = a[i] > 1
        if flags[i]:
            y[i] = a[i]
        y[i] = y[i] + (1 if flags[i] == (i > 4) else 0)


def pairs(values: Array) -> tuple[Array, Array]:
    first, second = (
        np.ascontiguousarray(part) for part in zip(*itertools.product(values, values), strict=True)
    )
    return first, second


def compare(kernel: Any, make: Any) -> None:
    """Runs a kernel as it is translated, and by numba."""
    args = make()
    flat = [item for arg in args for item in _flat(arg)]
    given = kinds_of(flat)
    assert given is not None
    assert "define" in text_of(kernel, given)
    kernel(*flat, 0, 1)
    with np.errstate(all="ignore"):
        twin = make()
        numba.njit(**kernel.options)(kernel.py_func)(*twin, 0, 1)
    for ours, theirs in zip(flat, (item for arg in twin for item in _flat(arg)), strict=True):
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)


def _flat(arg: Any) -> list[Any]:
    return [item for part in arg for item in _flat(part)] if isinstance(arg, tuple) else [arg]


CASES = {
    "whole numbers": (
        whole_numbers,
        lambda: (*pairs(WHOLE), np.zeros((WHOLE.size**2, 26), np.int64)),
    ),
    "floats": (floats, lambda: (*pairs(REAL), np.zeros((REAL.size**2, 24)))),
    "pieces": (
        pieces,
        lambda: (
            np.arange(60, dtype=np.int32).reshape(3, 4, 5),
            np.arange(-12, 13),
            np.zeros((25, 25), np.int64),
        ),
    ),
    "filled": (filled, lambda: (np.full(1, 4, np.float32), np.zeros(9))),
    "loops": (loops, lambda: (np.arange(16, dtype=np.float32), np.zeros(9))),
    "choices": (choices, lambda: (np.array([-3, 0, 1, 5, 6, 8]), np.zeros((6, 6), np.int64))),
    "functions": (
        functions,
        lambda: (
            Inner(Bounds(2, 5), np.arange(4)),
            np.array([1, -5, 101, 7]),
            np.zeros(4, np.int64),
        ),
    ),
    "truths": (
        truths,
        lambda: (np.arange(6, dtype=np.uint8), np.ones(6, np.uint16), np.zeros(6, bool)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_numba(case):
    compare(*CASES[case])


OPERATORS = {
    "Add": operator.add,
    "Mult": operator.mul,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Div": operator.truediv,
    "BitAnd": operator.and_,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
}
NUMBERS = [kind for kind in vars(kinds).values() if isinstance(kind, kinds.Number)]


@pytest.mark.parametrize("name", OPERATORS)
def test_results_are_of_the_kind_that_numba_says(name):
    typing, taken = cpu_target.typing_context, 0
    typing.refresh()
    function = typing.resolve_value_type(OPERATORS[name])
    block = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), []), "f").append_basic_block()
    for a, b in itertools.product(NUMBERS, NUMBERS):
        builder = ir.IRBuilder(block)
        places = [builder.alloca(register_type(kind)) for kind in (a, b)]
        values = [
            Value(kind, (builder.load(place),)) for kind, place in zip((a, b), places, strict=True)
        ]
        try:
            made = Arithmetic(builder, ()).binary(getattr(ast, name), *values)
        except UntranslatableError:
            continue
        theirs = [getattr(numba.types, "boolean" if k.name == "bool" else k.name) for k in (a, b)]
        signature = typing.resolve_function_type(function, tuple(theirs), {})
        assert str(signature.return_type) == made.kind.name, (a, b)
        taken += 1
    assert taken >= 9


def running_sums(x: Array, y: Array, tid: int, nt: int) -> None:
    total = np.float32(0)
    for i in range(y.size):
        total += x[i]
        y[i] = total


def test_loops_are_unrolled_with_all_effort_alone():
    x, sizes = np.arange(60, dtype=np.float32), {}
    for effort in Effort:
        kernel, y = loop(effort=effort)(running_sums), np.zeros(60, np.float32)
        kernel(x, y, 0, 1)
        np.testing.assert_array_equal(y, np.cumsum(x))
        sizes[effort] = len(object_of(kernel, kinds_of((x, y))))
    assert sizes[Effort.LOOPS] < sizes[Effort.ALL]


def test_what_every_program_needs_is_translated():
    products = (*packing.CALLS, *product_loop.CALLS, *product.CALLS)
    for kernel, args in (*thread_pool.CALLS, *call_queue.CALLS, *products):
        assert "define" in text_of(kernel, kinds_of(args))


def test_numba_is_not_imported_for_what_is_translated(tmp_path):
    code = """
        import sys
        from partita_cpu.gemm.packing import kernels as packing
        from partita_cpu.jit import disk_cache, dispatch
        from partita_cpu.jit.kernel_definition import kinds_of
        from partita_cpu.kernels.operator_table import TABLE
        from partita_cpu.scalar.activations import activate_floats

        TABLE.load()
        pack, args = packing.CALLS[0]
        for kernel, kinds in (pack, kinds_of(args)), (activate_floats, activate_floats.apart):
            file = disk_cache.file_name(*dispatch.file_and_entry(kernel, kinds))
            dispatch.make_for(file, kernel.__module__, kernel.__qualname__, kinds)
            assert disk_cache.is_stored(file)
        print("numba" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PARTITA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "False\n", done.stderr


@loop
def _calls_itself(n: int, tid: int, nt: int) -> int:
    return 1 if n < 2 else n * _calls_itself(n - 1, tid, nt)


@loop
def _refuses_threads(nt: int) -> None:
    if nt > 1:
        raise ValueError("no")


def _raises(y: Array, tid: int, nt: int) -> None:
    _refuses_threads(nt)


def _loop_with_else(y: Array, tid: int, nt: int) -> None:
    for i in range(3):
        y[i] = 1
    else:
        y[0] = 2


def _steps(y: Array, tid: int, nt: int) -> None:
    z = y[::2]
    z[0] = 1


def _kinds_in_a_loop(y: Array, tid: int, nt: int) -> None:
    n = 0
    for i in range(3):
        n = n + y[i]
    y[0] = n


def _kinds_of_two_ways(y: Array, tid: int, nt: int) -> None:
    n = 1
    if tid:
        n = y[0]
    y[0] = n


def _two_results(y: Array, tid: int, nt: int) -> Any:
    if tid:
        return None
    return nt


def _two_kinds(y: Array, tid: int, nt: int) -> None:
    y[0] = y[0] if tid else nt


def _signs(y: Array, tid: int, nt: int) -> None:
    y[0] = np.uint64(tid) + nt


def _of_numpy(y: Array, tid: int, nt: int) -> None:
    y[0] = np.exp(y[0])


def _copies(y: Array, tid: int, nt: int) -> None:
    y[1:3] = y[0:2]


def _unknown(y: Array, tid: int, nt: int) -> None:
    y[0] = nobody(y)  # type: ignore[name-defined]  # noqa: F821


def _short_range(y: Array, tid: int, nt: int) -> None:
    for i in range(np.int32(3)):
        y[i] = 1


REFUSED = {
    "in a function that a kernel calls": _raises,
    "a loop with 'else'": _loop_with_else,
    "a slice with a step": _steps,
    "name 'n' of several kinds in a loop": _kinds_in_a_loop,
    "name 'n' where its kind is not known": _kinds_of_two_ways,
    "a result that is": _two_results,
    "a value that is": _two_kinds,
    "arithmetic on": _signs,
    "a call of": _of_numpy,
    "as Float": _copies,
    "name 'nobody', which is not defined": _unknown,
    "a range of integers that are not of 64 bits": _short_range,
}


@loop
def _below_four(x: Array, y: Array, tid: int, nt: int) -> None:
    for i in range(x.size):
        if x[i] > 3:
            raise ValueError("more than three")
        y[i] = x[i]


def test_a_kernel_that_raises_an_error_says_so():
    x, y = np.arange(6), np.zeros(6, np.int64)
    assert "define" in text_of(_below_four, kinds_of((x, y)))
    with pytest.raises(InferError, match="_below_four"):
        _below_four(x, y, 0, 1)
    assert y.tolist() == [0, 1, 2, 3, 0, 0]
    _below_four(x[:4], y, 0, 1)


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_left_to_numba(message):
    """Refused before anything is compiled, with what was found."""
    with pytest.raises(UntranslatableError) as error:
        text_of(loop(REFUSED[message]), ("<f4 1",))
    assert message in str(error.value)


@loop(apart=("int", "int", "<i8 1"))
def _left_to_numba(bounds: Bounds, y: Array) -> None:
    for i in range(y.size):
        y[i] = bounds.low + (y[i] < bounds.high)


@loop
def _calls_apart(y: Array, tid: int, nt: int) -> None:
    _left_to_numba(Bounds(10, 2), y)


def test_translated_kernels_call_those_apart_that_are_left_to_numba():
    with pytest.raises(UntranslatableError, match="arithmetic on"):
        text_of(_left_to_numba, _left_to_numba.apart)
    y = np.arange(4)
    assert "define" in text_of(_calls_apart, kinds_of((y,)))
    _calls_apart(y, 0, 1)
    assert y.tolist() == [11, 11, 10, 10]


def test_functions_that_call_themselves_are_left_to_numba():
    with pytest.raises(UntranslatableError, match="calls itself"):
        text_of(_calls_itself, ("int",))


def test_kinds_of_arguments_are_numbas():
    for kind in ("int", "float", "single"):
        assert str(type_of(kind)) == kinds.of_argument(kind).name
    for kind in ("<f4 1", "|b1 2", "<u2 3", "|i1 0", "<i8 4"):
        theirs, ours = type_of(kind), kinds.of_argument(kind)
        assert (str(theirs.dtype), theirs.ndim) == (ours.dtype.name, ours.ndim)
