"""Cache keys for what compiled models depend on besides the model: code, device, properties."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

_CODE = frozenset({".py", ".cl", ".ll", ".so", ".pyd"})


def identity_of(package: str, facts: Sequence[object]) -> str:
    """A key that changes with a package's code or any of these facts.

    Args:
        package: Import name of the package.
        facts: Values that JSON can represent.
    """
    return json.dumps([package, code_stamp(package), *facts], sort_keys=True)


@functools.cache
def code_stamp(module: str) -> str:
    """A hash that changes when a file of a package does; replaces a version kept by hand."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return ""
    path = Path(file)
    files = sorted(path.parent.rglob("*")) if path.name == "__init__.py" else [path]
    facts = [
        (str(one.relative_to(path.parent)), one.stat().st_size, one.stat().st_mtime_ns)
        for one in files
        if one.suffix in _CODE
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def stamp(identity: str) -> str:
    """A hash of an identity and the framework's own code."""
    return hashlib.sha256(f"{code_stamp('partita')} {identity}".encode()).hexdigest()
