"""Admission control: limits of waiting requests, and of their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from partita_serve.protocol.errors import Overloaded


class QueueLimit:
    """Counts the requests that wait for a model.

    Args:
        model: Its name, for messages.
        most: How many may wait.
    """

    def __init__(self, model: str, most: int) -> None:
        self._model = model
        self._most = most
        self.waiting = 0

    def check(self) -> None:
        """Does nothing if one more may wait.

        Raises:
            Overloaded: As many wait as may.
        """
        if self.waiting >= self._most:
            raise Overloaded(
                f"{self.waiting} requests wait for model '{self._model}', which is all that its "
                "queue holds (max_queue_size); try again later."
            )


class ByteLimit:
    """Counts the bytes of requests that the server holds.

    Args:
        most: How many it may hold.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """Counts some bytes while the context is open.

        Raises:
            Overloaded: There would be too many.
        """
        if self.held + count > self._most:
            raise Overloaded(
                f"The server holds {self.held} bytes of requests, and may hold {self._most} "
                f"(max_buffered): there is no room for {count} more; try again later."
            )
        self.held += count
        try:
            yield
        finally:
            self.held -= count
