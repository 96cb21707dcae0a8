"""A system of which nothing is known but what Python tells everywhere."""

from __future__ import annotations

import sys

walks_programs = False
pins_threads = False


def pin(processor: int) -> None:
    """Says that it cannot be done.

    Raises:
        OSError: Always.
    """
    raise OSError(f"{sys.platform} cannot keep a thread on processor {processor}")
