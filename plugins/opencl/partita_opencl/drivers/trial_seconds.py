"""How long trials take, for whoever reads the log: most of a first compile are trials."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)


@dataclass
class Stages:
    """Parts of what takes its time, with the second at which each had ended.

    Attributes:
        begun: When it began, by ``time.monotonic``.
        ended: Name and seconds of each part, in order.
    """

    begun: float = field(default_factory=time.monotonic)
    ended: list[str] = field(default_factory=list)

    def end(self, name: str) -> None:
        """Notes that a part has ended."""
        self.ended.append(f"{name} at {time.monotonic() - self.begun:.2f} s")


@contextlib.contextmanager
def logged(what: str) -> Iterator[Stages]:
    """Logs at level INFO how long the block took, with its parts if it names them."""
    stages = Stages()
    try:
        yield stages
    finally:
        parts = f" ({', '.join(stages.ended)})" if stages.ended else ""
        _log.info("%s took %.2f s%s", what, time.monotonic() - stages.begun, parts)
