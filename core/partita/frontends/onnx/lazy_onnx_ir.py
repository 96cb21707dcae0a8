"""Imports onnx_ir without the algebra system that it asks only to compute with symbolic sizes."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_SELDOM_NEEDED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
"""What is executed when it is first used: sympy takes 35 MB and a fifth of a second."""

_lock = InterruptSafeLock()
_executing = InterruptSafeLock()
_begun: dict[str, int] = {}
"""The thread of each module that is being executed, which asks itself for what it lacks so far."""


def import_onnx_ir() -> None:
    """Imports onnx_ir, if that was not done yet; sympy follows when something asks for it."""
    with _lock:
        if "onnx_ir" in sys.modules:
            return
        finder = _LazyFinder()
        sys.meta_path.insert(0, finder)
        try:
            importlib.import_module("onnx_ir")
        finally:
            sys.meta_path.remove(finder)


class _LazyFinder(MetaPathFinder):
    """Finds the modules in question as all others are found, and lets them wait."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _SELDOM_NEEDED:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


class _LazyLoader(Loader):
    """Leaves the execution of a module to the first who asks it for something of its own."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is None:
            raise ImportError(f"module {module.__name__} was made without a specification")
        spec.loader = module.__loader__ = self._loader
        module.__dict__.pop("__path__", None)  # the first of its submodules executes a package
        module.__class__ = _LazyModule


class _LazyModule(ModuleType):
    """A module that is executed when it is asked for what it does not have yet.

    What the import system knows of it (`__file__`, say) it tells as it is, unlike modules of
    `importlib.util.LazyLoader`: `inspect` and test tools ask that of all modules that there are.
    """

    def __getattribute__(self, name: str) -> Any:
        # Other threads wait until the module is whole, also for what it has by now.
        if _begun and name[:2] != "__" and threading.get_ident() not in _begun.values():
            with _executing:
                pass
        return ModuleType.__getattribute__(self, name)  # of another class by now, perhaps

    def __getattr__(self, name: str) -> Any:
        with _executing:
            if self.__class__ is _LazyModule and self.__name__ not in _begun:
                _execute(self)
                return getattr(self, name)
            return ModuleType.__getattribute__(self, name)  # of another class by now, perhaps


def _execute(module: ModuleType) -> None:
    """Executes a module that waited; if it raises, it waits on for the next who asks."""
    spec = module.__spec__
    if spec is None or spec.loader is None:
        raise ImportError(f"module {module.__name__} has lost its loader; leave __spec__ as it is")
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    _begun[module.__name__] = threading.get_ident()
    try:
        spec.loader.exec_module(module)
        module.__class__ = ModuleType
    finally:
        del _begun[module.__name__]
