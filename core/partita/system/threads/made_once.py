"""Things that a process has one of, whichever of its threads asks for it first.

For good (:func:`made_once`), or as long as somebody has them (:func:`made_while_held`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from partita.system.threads.fork_order import forks_wait
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

F = TypeVar("F", bound=Callable[..., Any])

_NONE = object()


def made_once(function: F) -> F:
    """Has a function called once for the same arguments; what it returns is kept.

    As ``functools.cache``, whose function several threads may call at the same time, each of which
    then has a thing of its own. Here the others wait.

    Example:
        >>> queue = made_once(lambda name: [name])
        >>> queue("a") is queue("a")
        True
    """
    return _made(function, {})


def made_while_held(function: F) -> F:
    """The same, until nobody has what was returned; who asks then has another one made.

    Example:
        >>> team = made_while_held(lambda *names: set(names))
        >>> held = team("a", "b")
        >>> team("a", "b") is held
        True
    """
    return _made(function, WeakValueDictionary())


def _made(function: F, made: MutableMapping[tuple[Any, ...], Any]) -> F:
    """A function that calls another one for arguments of which there is nothing yet."""
    lock = InterruptSafeLock()

    @functools.wraps(function)
    @forks_wait
    def make(*args: Any) -> Any:
        found = made.get(args, _NONE)
        if found is _NONE:
            with lock:
                found = made.get(args, _NONE)
                if found is _NONE:
                    found = made[args] = function(*args)
        return found

    return make  # type: ignore[return-value]  # it takes and returns the same
