"""A system of which nothing is known but what Python tells everywhere."""

from __future__ import annotations

import platform
import sys

walks_programs = False
pins_threads = False


def pin(processor: int) -> None:
    """Says that it cannot be done.

    Raises:
        OSError: Always.
    """
    raise OSError(f"{sys.platform} cannot keep a thread on processor {processor}")


def processor_name() -> str:
    """What Python was told when it was built, or asks a program of the system for."""
    return platform.processor() or platform.machine()


def processor_identity() -> str:
    """Nothing: a name does not say what a processor can do."""
    return ""
