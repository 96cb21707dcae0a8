"""The packages of the extra ``generate``, which only those who generate text need."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from partita.errors import TokenizerError, in_words

INSTALL = 'pip install "partita[generate]"'


_PACKAGES = ("tokenizers", "jinja2")


def missing() -> list[str]:
    """Which packages of the extra are not installed."""
    return [name for name in _PACKAGES if importlib.util.find_spec(name) is None]


def require(package: str, purpose: str) -> None:
    """Makes sure that a package is there.

    Args:
        package: Its name on import.
        purpose: What needs it, for the error.

    Raises:
        TokenizerError: It is not; says how to install it.
    """
    if importlib.util.find_spec(package) is None:
        raise TokenizerError(
            f"Package '{package}' is not installed, and {purpose} needs it: {INSTALL}"
        )


@contextlib.contextmanager
def surviving(origin: str) -> Iterator[None]:
    """Makes an error of what package ``tokenizers`` raises where its own code has given up.

    That is no Exception, so that it would end a server.

    Args:
        origin: Where the tokenizer was found.

    Raises:
        TokenizerError: It has given up.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"The tokenizer of {origin} is damaged: {in_words(error)}") from error
