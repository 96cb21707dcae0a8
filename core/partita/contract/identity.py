"""What compiled models depend on besides the model: code, device, driver and properties."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

_CODE = frozenset({".py", ".cl", ".ll", ".so", ".pyd"})


def identity_of(package: str, facts: Sequence[object]) -> str:
    """The key of what a package's code makes where these facts hold.

    Args:
        package: Import name of the package whose source counts.
        facts: What JSON can hold.
    """
    return json.dumps([package, code_stamp(package), *facts], sort_keys=True)


@functools.cache
def code_stamp(module: str) -> str:
    """Changes when a file of a package changes, so that no version number has to be kept right."""
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
    """An identity in few letters, with the framework's code."""
    return hashlib.sha256(f"{code_stamp('partita')} {identity}".encode()).hexdigest()
