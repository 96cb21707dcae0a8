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
    for entry in sorted(pkgutil.iter_modules(package.__path__), key=lambda entry: entry.name):
        if entry.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package.__name__}.{entry.name}")
        found.append(module)
        if entry.ispkg:
            found += import_modules(module)
    return found
