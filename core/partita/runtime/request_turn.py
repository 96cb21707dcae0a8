"""Mutual exclusion of a request's runs and of changes of its tensors."""

from __future__ import annotations

from partita.errors import RequestBusyError
from partita.system.threads.turn import Turn


class RequestTurn(Turn):
    """The turn of a request, or of requests that share state; see `partita.system.threads.turn`."""

    __slots__ = ()

    def take(self, user: object) -> bool:
        """Notes a user.

        Raises:
            RequestBusyError: There is another one.
        """
        if not super().take(user):
            raise RequestBusyError(
                "The request is running; wait() for it, or use another request for this call."
            )
        return True
