"""The packages of the extra ``generate``, which only those who generate text need."""

from __future__ import annotations

import importlib.util

from partita.errors import TokenizerError

INSTALL = 'pip install "partita[generate]"'


_PACKAGES = ("tokenizers", "jinja2")


def missing() -> list[str]:
    """Which packages of the extra are not installed."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name) is None]


def require(package: str, purpose: str) -> None:
    """Makes sure that a package is there.

    Raises:
        TokenizerError: It is not; says how to install it.
    """
    if importlib.util.find_spec(package) is None:
        raise TokenizerError(
            f"Package '{package}' is not installed, and {purpose} needs it: {INSTALL}"
        )
