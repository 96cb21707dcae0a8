"""Calls: of Python's functions, numpy's, intrinsics, and kernels and what they are made of."""

from __future__ import annotations

import ast
import builtins
import math
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from partita_cpu.jit.deferred_numba import Intrinsic, implementations
from partita_cpu.jit.kernel_definition import KernelDefinition
from partita_cpu.jit.translation import kinds
from partita_cpu.jit.translation.arithmetic import Arithmetic
from partita_cpu.jit.translation.foreign import call_apart
from partita_cpu.jit.translation.intrinsics import call_intrinsic
from partita_cpu.jit.translation.kinds import (
    Array,
    Float,
    Integer,
    Number,
    Tuple,
    UntranslatableError,
)
from partita_cpu.jit.translation.values import (
    Value,
    cast,
    integer,
    of_python,
    tuple_of,
)

_ROUNDED: dict[Any, str] = {
    np.floor: "llvm.floor",
    np.ceil: "llvm.ceil",
    np.rint: "llvm.rint",
    np.sqrt: "llvm.sqrt",
    math.sqrt: "llvm.sqrt",
}
"""What numpy computes as an instruction does."""


_WHOLE: dict[Any, str] = {math.floor: "llvm.floor", math.ceil: "llvm.ceil"}
"""What Python makes an integer of a float by."""

_OPERATORS: dict[Any, type[ast.operator]] = {
    operator.add: ast.Add,
    operator.sub: ast.Sub,
    operator.mul: ast.Mult,
    operator.truediv: ast.Div,
    operator.and_: ast.BitAnd,
    operator.or_: ast.BitOr,
    operator.xor: ast.BitXor,
}

_COMPARISONS: dict[Any, type[ast.cmpop]] = {
    operator.eq: ast.Eq,
    operator.gt: ast.Gt,
    operator.ge: ast.GtE,
    operator.lt: ast.Lt,
    operator.le: ast.LtE,
}

_OF_ONE: dict[Any, type[ast.unaryop]] = {
    operator.neg: ast.USub,
    operator.not_: ast.Not,
    operator.invert: ast.Invert,
}


class FunctionCalls(Protocol):
    """Calls functions of a module; see `partita_cpu.jit.translation.functions`."""

    def call(self, builder: Any, function: Any, given: Sequence[Value]) -> Value:
        """The result of a function."""


class Calls:
    """Translates the calls of one function.

    Args:
        functions: Those of the module.
        builder: LLVM's builder.
        arithmetic: Writes arithmetic in that function.
    """

    def __init__(self, functions: FunctionCalls, builder: Any, arithmetic: Arithmetic) -> None:
        self._functions = functions
        self._builder = builder
        self._arithmetic = arithmetic

    def call(self, called: Any, given: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """The result of calling something.

        Args:
            called: What is called, as Python has it.
            given: Arguments in order.
            named: Those given by name.

        Raises:
            UntranslatableError: It cannot be called in translated code.
        """
        if isinstance(called, type) and hasattr(called, "_fields"):
            return tuple_of(_ordered(called.__new__, given, named, skip=1), called)
        if isinstance(called, KernelDefinition):
            given = _ordered(called.py_func, given, named)
            if called.apart:
                return call_apart(self._builder, called, given)
            return self._functions.call(self._builder, called, given)
        if called in implementations:
            choose = implementations[called]
            chosen = choose(*(value.kind for value in _ordered(called, given, named)))
            return self._functions.call(self._builder, chosen, _ordered(chosen, given, named))
        if isinstance(called, types.FunctionType):
            return self._functions.call(self._builder, called, _ordered(called, given, named))
        if named:
            raise UntranslatableError(f"arguments by name of {called!r}")
        if isinstance(called, Intrinsic):
            return call_intrinsic(self._builder, called, given)
        return self._of_python(called, given)

    def _of_python(self, called: Any, given: Sequence[Value]) -> Value:
        if called in _BUILTINS:
            return _BUILTINS[called](self, given)
        if called in _ROUNDED and len(given) == 1:
            return self._arithmetic.of_llvm(_ROUNDED[called], given)
        if called in _WHOLE and len(given) == 1:
            whole = self._arithmetic.of_llvm(_WHOLE[called], given)
            return cast(self._builder, whole, kinds.int64)
        if called in _OPERATORS and len(given) == 2:
            return self._arithmetic.binary(_OPERATORS[called], *given)
        if called in _COMPARISONS and len(given) == 2:
            found = self._arithmetic.compared(_COMPARISONS[called], *given)
            return Value(kinds.boolean, (found,))
        if called in _OF_ONE and len(given) == 1:
            return self._arithmetic.unary(_OF_ONE[called], *given)
        kind = called if isinstance(called, Number) else None
        if isinstance(called, type) and issubclass(called, np.number):
            kind = kinds.number_of(called)
        if kind is None or len(given) != 1 or not isinstance(given[0].kind, Number):
            raise UntranslatableError(f"a call of {called!r}")
        return cast(self._builder, given[0], kind)

    def _int(self, given: Sequence[Value]) -> Value:
        kind = given[0].kind
        if isinstance(kind, Integer) and not kind.signed:
            raise UntranslatableError(f"int of {kind}")
        return cast(self._builder, given[0], kinds.int64)

    def _float(self, given: Sequence[Value]) -> Value:
        # numba keeps a float32 as it is.
        kind = given[0].kind
        return given[0] if isinstance(kind, Float) else cast(self._builder, given[0], kinds.float64)

    def _bool(self, given: Sequence[Value]) -> Value:
        return Value(kinds.boolean, (self._arithmetic.truth(given[0]),))

    def _largest(self, given: Sequence[Value]) -> Value:
        return self._arithmetic.extreme(ast.Gt, given)

    def _smallest(self, given: Sequence[Value]) -> Value:
        return self._arithmetic.extreme(ast.Lt, given)

    def _absolute(self, given: Sequence[Value]) -> Value:
        return self._arithmetic.absolute(given[0])

    def _length(self, given: Sequence[Value]) -> Value:
        kind = given[0].kind
        if isinstance(kind, Tuple):
            return integer(len(kind.items))
        if not isinstance(kind, Array):
            raise UntranslatableError(f"len of {kind}")
        return Value(kinds.int64, (given[0].parts[1],))

    def _divided(self, given: Sequence[Value]) -> Value:
        return tuple_of(self._arithmetic.divided(*given))


_BUILTINS: dict[Any, Callable[[Calls, Sequence[Value]], Value]] = {
    builtins.int: Calls._int,
    builtins.float: Calls._float,
    builtins.bool: Calls._bool,
    builtins.max: Calls._largest,
    builtins.min: Calls._smallest,
    builtins.abs: Calls._absolute,
    builtins.len: Calls._length,
    builtins.divmod: Calls._divided,
}


def _ordered(
    function: Any, given: Sequence[Value], named: Mapping[str, Value], skip: int = 0
) -> list[Value]:
    """All arguments of a function in order, those that it has values for itself included."""
    if not isinstance(function, types.FunctionType):
        raise UntranslatableError(f"a call of {function!r}")
    code = function.__code__
    names = code.co_varnames[skip : code.co_argcount]
    own = function.__defaults__ or ()
    defaults = dict(zip(names[len(names) - len(own) :], map(of_python, own), strict=True))
    left = names[len(given) :]
    if len(given) > len(names) or any(name not in left for name in named):
        raise UntranslatableError(f"the arguments of function {function.__qualname__}")
    missing = [name for name in left if name not in named and name not in defaults]
    if missing:
        raise UntranslatableError(f"arguments {missing} of function {function.__qualname__}")
    return [*given, *(named.get(name, defaults.get(name)) for name in left)]  # type: ignore[list-item]
