"""The one way in which numba kernels are defined; numba itself comes when one is compiled.

A process whose kernels are all on disk never imports numba nor LLVM, which take 60 MB and most of
a second. So nothing at the top of a kernel module may need them: functions are wrapped by
:func:`jit`, and :func:`register_jitable`, :func:`overload` and :func:`intrinsic` do what numba's
functions of these names do as soon as :func:`compiler` brings numba in.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from typing import overload as _typing_overload

from partita.storage.numba_cache import keep_compiled

F = TypeVar("F", bound=Callable[..., Any])

REASSOCIATE = frozenset({"reassoc", "contract", "nsz", "arcp"})
"""Fast-math flags that let sums be vectorized and still keep NaN and infinity as IEEE has them."""


class Later:
    """A module that is imported when an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


ir: Any = Later("llvmlite.ir")
types: Any = Later("numba.core.types")
cgutils: Any = Later("numba.core.cgutils")

implementations: dict[Any, Callable[..., Any]] = {}
"""For functions that stand for compiled ones: what chooses the implementation."""

_waiting: list[Callable[[], object]] = []
_afresh: list[bool] = []
_lock = threading.RLock()


def compiler() -> Any:
    """The module numba, knowing all that kernel modules have registered."""
    import numba

    with _lock:
        while _waiting:
            _waiting.pop(0)()
    return numba


@contextlib.contextmanager
def afresh() -> Iterator[None]:
    """Compiles without numba's cache, which does not notice when a function that is called changes.

    For one thread at a time; others wait.
    """
    with _lock:
        _afresh.append(True)
        try:
            yield
        finally:
            _afresh.pop()


def _when_compiling(act: Callable[[], object]) -> None:
    with _lock:
        _waiting.append(act)
    if "numba.extending" in sys.modules:
        compiler()


kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()
"""All there are."""


class Kernel:
    """A function that is compiled for the types it is called with.

    Compiled functions are taken from disk if they are there (:mod:`partita_cpu.jit.dispatch`), else
    numba makes them. numba takes a kernel that another one calls for a function of its own.

    Attributes:
        py_func: The Python function.
        options: How numba compiles it.
        counts: Whether it may hold references to arrays; see `partita_cpu.jit.loop_kernel`.
        apart: Kinds of its arguments, if it is compiled once for all kernels that call it.
        answers: Whether it then returns an int64.
        entries: What is known of it for kinds of arguments; `partita_cpu.jit.dispatch` fills it.
    """

    def __init__(
        self,
        py_func: Callable[..., Any],
        options: dict[str, Any],
        counts: bool,
        apart: tuple[str, ...] = (),
        answers: bool = False,
    ) -> None:
        functools.update_wrapper(self, py_func)
        self.__name__, self.__qualname__ = py_func.__name__, py_func.__qualname__
        self.py_func = py_func
        self.options = options
        self.counts = counts
        self.apart = apart
        self.answers = answers
        self.entries: dict[tuple[str, ...], Any] = {}
        self._dispatchers: dict[bool, Any] = {}
        kernels.add(self)

    @property
    def dispatcher(self) -> Any:
        """Numba's function, which keeps what it compiles on disk; :func:`afresh` says when not.

        See :mod:`partita.storage.numba_cache`.
        """
        with _lock:
            cached = not _afresh
            made = self._dispatchers.get(cached)
            if made is None:
                made = compiler().njit(**self.options)(self.py_func)
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

    def __call__(self, *args: Any) -> Any:
        """Computes; what the function returns is lost unless numba runs it."""
        from partita_cpu.jit.dispatch import call

        return call(self, args)

    def __reduce__(self) -> Any:
        return Kernel, (self.py_func, self.options, self.counts, self.apart, self.answers)


def _inside(kernel: Kernel) -> Any:
    return kernel.dispatcher._numba_type_


unit_type: Callable[[Kernel], Any] = _inside
"""Numba's type of a kernel that can be compiled apart; `partita_cpu.jit.codegen` has another.

Here such a kernel becomes part of those that call it, as all others do.
"""


@_typing_overload
def jit(fn: F) -> F: ...
@_typing_overload
def jit(
    *,
    reassociate: bool = ...,
    inline: bool = ...,
    counts: bool = ...,
    apart: tuple[str, ...] = ...,
    answers: bool = ...,
) -> Callable[[F], F]: ...
def jit(
    fn: F | None = None,
    *,
    reassociate: bool = False,
    inline: bool = False,
    counts: bool = True,
    apart: tuple[str, ...] = (),
    answers: bool = False,
) -> Any:
    """Compiles a kernel: kept on disk, without the GIL, numpy's rules for division by zero.

    Args:
        fn: The function; ``@jit`` and ``@jit(reassociate=True)`` both work.
        reassociate: Lets the compiler reorder sums and contract to fused multiply-add, which
            vectorized reductions need. NaN, infinity and comparisons stay exact.
        inline: For small functions called in inner loops: inlined by LLVM wherever they are used.
        counts: Whether it may hold references to arrays; see `partita_cpu.jit.loop_kernel`.
        apart: For large functions that several kernels call, and seldom: compiled once for all of
            them. Kinds of its arguments; see `partita_cpu.jit.dispatch`.
        answers: Whether such a function returns an int64; else it returns nothing.
    """

    def compile_(function: F) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        if reassociate:
            options["fastmath"] = set(REASSOCIATE)
        if inline:
            options["forceinline"] = True
        return Kernel(function, options, counts, apart, answers)

    return compile_ if fn is None else compile_(fn)


def register_jitable(fn: F) -> F:
    """Lets compiled functions call a Python function; it stays one for everyone else."""

    def act() -> None:
        from numba import extending

        extending.register_jitable(fn)

    _when_compiling(act)
    return fn


def overload(target: Callable[..., Any], **options: Any) -> Callable[[F], F]:
    """Names what chooses, by the types of arguments, how compiled code computes `target`."""

    def name(choose: F) -> F:
        implementations[target] = choose

        def act() -> None:
            from numba import extending

            extending.overload(target, **options)(choose)

        _when_compiling(act)
        return choose

    return name


class Intrinsic:
    """A function whose LLVM code `make` writes; for use inside compiled functions only."""

    def __init__(self, make: Callable[..., Any]) -> None:
        functools.update_wrapper(self, make)
        self.make = make
        _when_compiling(self._register)

    def _register(self) -> None:
        templates: Any = importlib.import_module("numba.core.typing.templates")
        template = templates.make_intrinsic_template(self, self.make, self.make.__name__)
        templates.infer(template)
        templates.infer_global(self, types.Function(template))

    def __call__(self, *args: Any) -> Any:
        """Is for compiled functions to be called by; Python cannot."""
        raise NotImplementedError(f"{self.make.__name__} is for compiled functions only")

    def __deepcopy__(self, memo: object) -> Intrinsic:
        return self  # numba copies the code that names it


intrinsic: Callable[[Callable[..., Any]], Any] = Intrinsic
"""Makes a function of one that writes its LLVM code, as ``numba.extending.intrinsic`` does."""
