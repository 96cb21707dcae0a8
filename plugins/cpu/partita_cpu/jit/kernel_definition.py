"""Kernel definitions: a function before it is compiled, and the kinds of its arguments."""

from __future__ import annotations

import enum
import functools
import inspect
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.lowering import Operand
from partita.lowering.shapes.symbolic_size import present
from partita.storage.numba_cache import keep_compiled
from partita_cpu.jit.deferred_numba import (
    bypasses_numba_cache,
    compiler,
    lock,
    types,
    without_numba_cache,
)
from partita_cpu.jit.record_arguments import grouped, records_of

Kinds = tuple[str, ...]
"""What kinds the arguments are of: ``"<f4 2"`` for arrays, ``"int"``, ``"float"``, ``"single"``."""

_NUMBERS = {"int": "int64", "float": "float64", "single": "float32"}


class Effort(enum.Enum):
    """How much LLVM does for a kernel; the less, the sooner it is compiled."""

    ALL = enum.auto()
    """Its level 3."""

    LOOPS = enum.auto()
    """All functions become one, whose loops are vectorized, but not unrolled, at level 1."""

    CALLS = enum.auto()
    """The same, without vectors: for kernels whose work others do, which they call by addresses."""


kernels: weakref.WeakSet[KernelDefinition] = weakref.WeakSet()
"""All there are."""


class KernelDefinition(ABC):
    """A function, and how numba compiles it for the types that it is called with.

    numba takes a kernel that another one calls for a function of its own.

    Attributes:
        py_func: The Python function.
        options: How numba compiles it.
        counts: Whether it may hold references to arrays; see `partita_cpu.jit.loop_kernel`.
        apart: Kinds of its arguments, if it is compiled once for all kernels that call it.
        answers: Whether it then returns an int64.
        effort: How much LLVM does for it.
        home: The module that is being imported when the kernel is made: for one that a function
            makes of another function, that of who asked for it.
        entries: What is known of it for kinds of arguments; `partita_cpu.jit.dispatch` fills it.
    """

    def __init__(
        self,
        py_func: Callable[..., Any],
        options: dict[str, Any],
        counts: bool,
        apart: tuple[str, ...] = (),
        answers: bool = False,
        effort: Effort = Effort.ALL,
    ) -> None:
        functools.update_wrapper(self, py_func)
        self.__name__, self.__qualname__ = py_func.__name__, py_func.__qualname__
        self.py_func = py_func
        self.options = options
        self.counts = counts
        self.apart = apart
        self.answers = answers
        self.effort = effort
        self.home = _imported_module() or py_func.__module__
        self.entries: dict[tuple[str, ...], Any] = {}
        self._dispatchers: dict[bool, Any] = {}
        kernels.add(self)

    @property
    def dispatcher(self) -> Any:
        """Numba's function, which keeps what it compiles on disk; see :func:`without_numba_cache`.

        See :mod:`partita.storage.numba_cache`.
        """
        with lock:
            cached = not bypasses_numba_cache()
            made = self._dispatchers.get(cached)
            if made is None:
                made = compiler().njit(**self.options, no_cfunc_wrapper=True)(self.py_func)
                if cached:
                    keep_compiled(made)
                if not self.counts:
                    made.targetoptions["_nrt"] = False
                self._dispatchers[cached] = made
            return made

    @property
    def _numba_type_(self) -> Any:
        return unit_type(self) if self.apart else self.dispatcher._numba_type_

    @property
    def symbol(self) -> str:
        """What machine code calls it by if it is compiled apart."""
        return f"{self.__module__}:{self.__qualname__}"

    def overload(self, signature: tuple[Any, ...]) -> Any:
        """What numba compiles for types of arguments; ``None`` if it may not return that."""
        given: Any = signature
        if self.apart:
            given = (types.int64 if self.answers else types.none)(*signature)
        with without_numba_cache():
            self.dispatcher.compile(given)
            overload = self.dispatcher.overloads[signature]
        return overload if self.apart or overload.signature.return_type == types.none else None

    def types_for(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        """Numba's types of its parameters, from those of fields and other arguments."""
        return grouped(
            self.py_func, flat, lambda record, its: types.BaseTuple.from_types(its, record)
        )

    def arguments(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        """What the Python function takes, from fields and other arguments."""
        return grouped(self.py_func, flat, lambda record, its: record(*its))

    @property
    def takes_records(self) -> bool:
        """Whether some parameters are records."""
        return any(records_of(self.py_func))

    @abstractmethod
    def __call__(self, *args: Any) -> Any:
        """Computes; see :class:`partita_cpu.jit.kernel.Kernel`."""

    def __reduce__(self) -> Any:
        more = self.apart, self.answers, self.effort
        return type(self), (self.py_func, self.options, self.counts, *more)


def _imported_module() -> str:
    """The module of this package that is being imported; empty if there is none."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    return name if name.partition(".")[0] == __name__.partition(".")[0] else ""


def _inside(kernel: KernelDefinition) -> Any:
    return kernel.dispatcher._numba_type_


unit_type: Callable[[KernelDefinition], Any] = _inside
"""Numba's type of a kernel that can be compiled apart; `partita_cpu.jit.codegen` has another.

Here such a kernel becomes part of those that call it, as all others do.
"""


def kinds_of(args: Sequence[Any]) -> Kinds | None:
    """The kinds of arguments (without the share); ``None`` if one is of another kind."""
    kinds: list[str] = []
    for arg in args:
        kind = _KINDS.get(type(present(arg)))
        if kind is None:
            if not isinstance(arg, Operand) and not (
                isinstance(arg, np.ndarray) and arg.flags.carray
            ):
                return None
            kind = _array_kind(arg.dtype, len(arg.shape))
            if kind is None:
                return None
        kinds.append(kind)
    return tuple(kinds)


_KINDS = {
    int: "int",
    np.int64: "int",
    float: "float",
    np.float64: "float",
    np.float32: "single",
}


@functools.cache
def _array_kind(dtype: np.dtype[Any], ndim: int) -> str | None:
    taken = dtype.kind in "biuf" and dtype.isnative
    return f"{seen_as(dtype).str} {ndim}" if taken else None


def seen_as(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The element type that kernels find: bits in place of float16, which numba has not."""
    return np.dtype(np.uint16) if dtype == np.float16 else dtype


def type_of(kind: str) -> Any:
    """Numba's type of a kind of argument."""
    if kind in _NUMBERS:
        return getattr(types, _NUMBERS[kind])
    dtype, _, ndim = kind.partition(" ")
    from_dtype: Callable[..., Any] = compiler().np.numpy_support.from_dtype
    return types.Array(from_dtype(np.dtype(dtype)), int(ndim), "C")
