"""Whose turn a request is: one run, or one change of its tensors, at a time.

Ctrl-C raises where Python looks for it: when a function begins, after each call, and in loops. A
lock that is got before a ``try`` is kept for ever if it comes in between. So who uses a request is
told by an object, which one call notes if there is none, and which is forgotten without any call::

    users, user = turn.users, object()
    try:
        turn.take(user)
        ...
    finally:
        if NOW in users and users[NOW] is user:
            del users[NOW]
"""

from __future__ import annotations

from partita.errors import RequestBusyError

NOW = "now"
"""Where the user is noted."""


class RequestTurn:
    """The turn of a request, or of requests that share state.

    Attributes:
        users: Who uses it now, as `NOW`; empty if nobody does.
    """

    __slots__ = ("users",)

    def __init__(self) -> None:
        self.users: dict[str, object] = {}

    def take(self, user: object) -> None:
        """Notes a user.

        Raises:
            RequestBusyError: There is another one.
        """
        if self.users.setdefault(NOW, user) is not user:
            raise RequestBusyError(
                "The request is running; wait() for it, or use another request for this call."
            )

    def leave(self, user: object) -> None:
        """Forgets a user, if it is this one."""
        if self.is_of(user):
            del self.users[NOW]

    def is_of(self, user: object) -> bool:
        """Whether this is the present user."""
        return self.users.get(NOW) is user
