"""Differences between operating systems: one small module each, all of them a ``System``.

A system without a module of its own is `portable`, which does without whatever may be missing.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Protocol, cast


class System(Protocol):
    """What device CPU asks of the operating system; modules of this package have it."""

    @property
    def walks_programs(self) -> bool:
        """Whether kept machine code can be loaded here, and threads can walk programs of it.

        Elsewhere numba compiles and loads all kernels, and Python walks programs.
        """

    @property
    def pins_threads(self) -> bool:
        """Whether :meth:`pin` can be called."""

    def pin(self, processor: int) -> None:
        """Keeps the calling thread on a processor.

        Raises:
            OSError: This process may not run there.
        """


_MODULES = {"linux": "linux", "darwin": "macos", "win32": "windows"}


@functools.cache
def this_system() -> System:
    """The system that this process runs on."""
    name = _MODULES.get(sys.platform, "portable")
    return cast(System, importlib.import_module(f"{__name__}.{name}"))
