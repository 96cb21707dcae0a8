"""Names that are imported when they are first used, so that ``import partita`` stays quick."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_FORK_ORDER = "partita.system.threads.fork_order"


def deferred_attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package some of whose names come from modules imported on demand.

    Args:
        package: The package's own name.
        modules: For each such name the module that defines it; behind a colon what it is called
            there, if not so, or ``*`` for the module itself.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        importlib.import_module(_FORK_ORDER)  # first: forks wait for what follows
        place, _, original = modules[name].partition(":")
        module = importlib.import_module(place)
        value = module if original == "*" else getattr(module, original or name)
        setattr(sys.modules[package], name, value)
        return value

    return find
