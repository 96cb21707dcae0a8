"""Ends a command at an interrupt that Python does not come to tell of, as in a kernel of minutes.

Python tells of a signal between two of its own instructions. A thread that computes in machine code
comes to none; but the system's part of Python's handler runs at once, and wakes another thread.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable

_SECONDS = 1.0
"""How long a command may take to notice."""


def watch(noticed: Callable[[], int], end: Callable[[], object]) -> None:
    """Ends this process when it does not notice an interrupt; to be called by the main thread.

    Where the system starts no thread, an interrupt waits until Python tells of it.

    Args:
        noticed: How many interrupts Python has told of.
        end: Ends the process.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    watcher = threading.Thread(target=_watch, args=(reader, writer, noticed, end), daemon=True)
    try:
        watcher.start()
    except RuntimeError:
        reader.close()
        writer.close()
        return
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)


def _watch(
    reader: socket.socket,
    writer: socket.socket,  # stays open as long as somebody listens
    noticed: Callable[[], int],
    end: Callable[[], object],
) -> None:
    before = noticed()
    while True:
        if signal.SIGINT not in reader.recv(4096):
            continue
        time.sleep(_SECONDS)
        if noticed() == before:
            end()
            return
        reader.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # those that came meanwhile
            reader.recv(4096)
        reader.setblocking(True)
        before = noticed()
