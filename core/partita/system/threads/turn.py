"""Turns: one user of a thing at a time, without a lock.

Ctrl-C raises where Python looks for it: when a function begins, after each call, and in loops. A
lock that is got before a ``try`` is kept for ever if it comes in between. So who has the turn is
told by an object, which one call notes if there is none, and which is forgotten without any call::

    users, user = turn.users, object()
    try:
        if turn.take(user):
            ...
    finally:
        if NOW in users and users[NOW] is user:
            del users[NOW]

The last lines stand where the turn is used, and are no method, since Ctrl-C may come when one
begins.
"""

from __future__ import annotations

NOW = "now"
"""Where the user is noted."""


class Turn:
    """Whose turn it is. Thread-safe; whoever does not get it does not wait.

    Attributes:
        users: Who has it, as `NOW`; empty if nobody does.

    Example:
        >>> turn, first, second = Turn(), object(), object()
        >>> turn.take(first), turn.take(second)
        (True, False)
        >>> turn.leave(first)
        >>> turn.take(second)
        True
    """

    __slots__ = ("users",)

    def __init__(self) -> None:
        self.users: dict[str, object] = {}

    def take(self, user: object) -> bool:
        """Notes a user if there is none; returns whether this is the user now."""
        return self.users.setdefault(NOW, user) is user

    def leave(self, user: object) -> None:
        """Forgets a user, if it is this one."""
        if self.is_of(user):
            del self.users[NOW]

    def is_of(self, user: object) -> bool:
        """Whether this is the present user."""
        return self.users.get(NOW) is user
