"""Imports onnx_ir without the algebra system that it asks only to compute with symbolic sizes."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_SELDOM_NEEDED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})
"""What is executed when it is first used: sympy takes 35 MB and a fifth of a second."""

_lock = threading.Lock()


def import_onnx_ir() -> None:
    """Imports onnx_ir, if that was not done yet; sympy follows when something asks for it."""
    with _lock:
        if "onnx_ir" in sys.modules:
            return
        finder = _Postponing()
        sys.meta_path.insert(0, finder)
        try:
            importlib.import_module("onnx_ir")
        finally:
            sys.meta_path.remove(finder)


class _Postponing(MetaPathFinder):
    """Finds the modules in question as all others are found, and lets them wait."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _SELDOM_NEEDED:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
