"""Finding the modules of a package, so that what stands in one takes part by being there."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def import_modules(package: ModuleType) -> list[ModuleType]:
    """Imports the modules of a package, by name; what they register is registered then.

    Packages inside it are gone through too. Modules whose names begin with an underscore are left
    out.
    """
    found = []
    for name in module_names(package):
        module = importlib.import_module(f"{package.__name__}.{name}")
        found.append(module)
        if hasattr(module, "__path__"):
            found += import_modules(module)
    return found


def module_names(package: ModuleType) -> list[str]:
    """Names of a package's modules in order, those left out that begin with an underscore."""
    names = (entry.name for entry in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if not name.startswith("_"))
