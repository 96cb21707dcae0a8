"""A deferred import of numba, for when a kernel has to be compiled.

A process whose kernels are all on disk never imports numba nor LLVM, which take 60 MB and most of a
second. So nothing at the top of a kernel module may need them: :func:`register_jitable`,
:func:`overload` and :func:`intrinsic` do what numba's functions of these names do as soon as
:func:`compiler` brings numba in; functions are wrapped by :func:`partita_cpu.jit.kernel.jit`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

F = TypeVar("F", bound=Callable[..., Any])


class LazyModule:
    """A module that is imported when an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)  # kernels that are translated ask thousands of times
        return found


class _Types(LazyModule):
    """Numba's types, or those of another compiler that calls them by the same names."""

    def __getattr__(self, attribute: str) -> Any:
        other = _other_types.get() or importlib.import_module(self._name)
        return getattr(other, attribute)


_other_types: ContextVar[Any] = ContextVar("other types", default=None)

ir: Any = LazyModule("llvmlite.ir")
types: Any = _Types("numba.core.types")
cgutils: Any = LazyModule("numba.core.cgutils")

implementations: dict[Any, Callable[..., Any]] = {}
"""For functions that stand for compiled ones: what chooses the implementation."""

_waiting: list[Callable[[], object]] = []
_afresh: list[bool] = []
lock = InterruptSafeLock()
"""Held while numba learns what is registered, and while it makes a function."""


def compiler() -> Any:
    """The module numba, knowing all that kernel modules have registered."""
    import numba

    with lock:
        while _waiting:
            _waiting.pop(0)()
    return numba


@contextlib.contextmanager
def without_numba_cache() -> Iterator[None]:
    """Compiles without numba's cache, which does not notice when a function that is called changes.

    For one thread at a time; others wait.
    """
    with lock:
        _afresh.append(True)
        try:
            yield
        finally:
            _afresh.pop()


def bypasses_numba_cache() -> bool:
    """Whether :func:`without_numba_cache` is in force."""
    return bool(_afresh)


@contextlib.contextmanager
def types_from(module: Any) -> Iterator[None]:
    """Lets `types` be another compiler's, in this thread."""
    token = _other_types.set(module)
    try:
        yield
    finally:
        _other_types.reset(token)


def _when_compiling(act: Callable[[], object]) -> None:
    with lock:
        _waiting.append(act)
    if "numba.extending" in sys.modules:
        compiler()


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
