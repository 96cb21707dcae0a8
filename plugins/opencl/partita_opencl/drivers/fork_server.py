"""A process that has imported what trials need, and forks itself for each process that tries.

To import it takes most of a second of a processor, and where many processes try kernels side by
side, each would do that. This one calls no driver, so that a fork of it may call all of them. It is
for Linux; it ends with the process that started it, or when nothing was asked of it for a while.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NoReturn

from partita.system.threads import joint_work
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_IDLE_SECONDS = 60.0
_LOOK_SECONDS = 2.0
"""How often it looks whether the process that started it is still there, once it hears no more."""

_HEARS_SECONDS = 0.1
"""How often who waits for a process looks whether that was given up."""

_HANDED = 4
"""Descriptors that a new process gets: its standard ones, and one that reports its end."""

POSSIBLE = sys.platform == "linux"
"""Whether processes are forked on this system."""


class Forked:
    """A forked process, as :class:`subprocess.Popen` has it.

    Attributes:
        pid: Its number; it leads a session of its own.
        stdin: Where it reads from.
        stdout: Where it writes to.
        returncode: How it ended, if it was seen to: its exit code, or a signal below zero.

    Args:
        pid: Its number.
        stdin: Where it reads from.
        stdout: Where it writes to.
        end: Tells how it ended, when it has.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], end: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | Any = None
        self._end = end
        self._lock = InterruptSafeLock()

    def poll(self) -> int | Any:
        """How it ended, if it has."""
        with self._lock:
            if self.returncode is None and _with_news([self._end.fileno()], 0):
                # Without a word, somebody has ended the server and all that it forked.
                self.returncode = int(self._end.readline() or -signal.SIGKILL)
                self._end.close()
            return self.returncode

    def wait(self) -> int | Any:
        """How it ended, once it has."""
        while (code := self.poll()) is None:
            with contextlib.suppress(ValueError):  # another thread has closed it
                _with_news([self._end.fileno()], 1.0)
        return code

    def kill(self) -> None:
        """Ends it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _with_news(descriptors: Sequence[int], seconds: float | None) -> list[int]:
    """Those with something to read, or from which nothing more will come; ``None`` waits for one.

    They may have any number: a process with many requests has higher ones than select takes.
    """
    news = select.poll()
    for descriptor in descriptors:
        news.register(descriptor, select.POLLIN)
    return [one for one, _ in news.poll(None if seconds is None else seconds * 1000)]


class _Server:
    """One such process, and the socket by which it is asked.

    Args:
        code: What it runs: to import, then :func:`serve_forks`.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, code: str) -> None:
        self.made_by = _circumstances(code)
        self._has_forked = False
        self._socket, other = socket.socketpair()
        self._lock = InterruptSafeLock()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-c", code, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )

    def fork(self, errors: IO[bytes]) -> Forked | None:
        """A new process that writes errors to a file; nothing if the server has ended."""
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as handed:

            def pipe() -> tuple[IO[bytes], IO[bytes]]:
                reading, writing = os.pipe()
                return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")

            (reads, asks), (answers, writes), (end, tells) = pipe(), pipe(), pipe()
            for mine in (asks, answers, end):
                kept.enter_context(mine)
            for other in (reads, writes, tells):
                handed.enter_context(other)
            files = [file.fileno() for file in (reads, writes, errors, tells)]
            try:
                with self._lock:
                    socket.send_fds(self._socket, [b"f"], files)
            except OSError:
                return None
            handed.close()
            while not _with_news([end.fileno()], _HEARS_SECONDS):  # it imports what trials need
                joint_work.check()
            pid = end.readline()
            if not pid:
                return None
            self._has_forked = True
            kept.pop_all()
            return Forked(int(pid), asks, answers, end)

    def close(self) -> subprocess.Popen[bytes]:
        """Has it end with the last process that it forked; somebody has to wait for that."""
        if not self._has_forked:
            self._process.kill()  # it may import for seconds what nobody needs
        self._socket.close()
        return self._process


_server: _Server | None = None
_left: list[subprocess.Popen[bytes]] = []
"""Servers that were ended and that nobody waits for."""

_lock = InterruptSafeLock()


def prepare(code: str) -> None:
    """Starts the server, if it is not there: soon there will be something to try.

    Args:
        code: What it runs, as for :func:`fork`.
    """
    if POSSIBLE:
        with contextlib.suppress(OSError):  # whoever needs a process is told
            _current(code)


def fork(code: str, errors: IO[bytes]) -> Forked | None:
    """A process that answers requests; nothing if it must be started another way.

    Args:
        code: What the server runs: it imports, then calls :func:`serve_forks`.
        errors: Where the process writes errors.

    Raises:
        OSError: The server cannot be started.
    """
    if not POSSIBLE:
        return None
    return _current(code).fork(errors) or _current(code, anew=True).fork(errors)


def _current(code: str, *, anew: bool = False) -> _Server:
    global _server
    with _lock:
        if anew or _server is None or _server.made_by != _circumstances(code):
            if _server is not None and _server.made_by[0] == os.getpid():
                _wait_beside(_server.close())
            _server = _Server(code)
        return _server


@atexit.register
def end() -> None:
    """Ends the server, once its processes have ended."""
    ending = _begin_to_end()
    for process in (*_left, *([] if ending is None else [ending])):
        process.wait()  # here, since Python from 3.12 on starts no thread while it ends


@contextlib.contextmanager
def ended_if_interrupted() -> Iterator[None]:
    """Ends the server if the block is interrupted, without waiting for its processes."""
    try:
        yield
    except KeyboardInterrupt:
        ending = _begin_to_end()
        if ending is not None:
            _wait_beside(ending)
        raise


def _wait_beside(process: subprocess.Popen[bytes]) -> None:
    """Lets a thread wait, so that no process is left that has ended; if none starts, the end."""
    try:
        threading.Thread(target=process.wait, daemon=True).start()
    except RuntimeError:
        _left.append(process)


def _begin_to_end() -> subprocess.Popen[bytes] | None:
    global _server
    with _lock:
        server, _server = _server, None
        return server.close() if server and server.made_by[0] == os.getpid() else None


def _circumstances(code: str) -> tuple[object, ...]:
    """What a process that is started now would find."""
    return os.getpid(), code, dict(os.environ)


# ------------------------------------------------------------------------- the server


def serve_forks(connection: int, run: Callable[[], None]) -> None:
    """The server's side: forks for each message, and tells the starts and ends of its processes.

    Args:
        connection: The descriptor of its socket.
        run: What each process does, with standard descriptors of its own.
    """
    parent, listens = os.getppid(), True
    with socket.socket(fileno=connection) as asked:
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes)
        ends: dict[int, int] = {}
        while (listens or ends) and os.getppid() == parent:
            heard = [asked.fileno(), woken] if listens else [woken]
            patience = _IDLE_SECONDS if listens else _LOOK_SECONDS
            ready = _with_news(heard, patience)
            if woken in ready:
                os.read(woken, 4096)
                _tell_ends(ends)
            if asked.fileno() in ready:
                message, files, *_ = socket.recv_fds(asked, 1, _HANDED)
                if message:
                    pid = os.fork()
                    if pid == 0:
                        _become(files, [asked.detach(), woken, wakes, *ends.values()], run)
                    *others, ends[pid] = files
                    os.write(ends[pid], b"%d\n" % pid)
                    for file in others:
                        os.close(file)
                else:
                    listens = False
            elif not ready and not ends:
                return


def _tell_ends(ends: dict[int, int]) -> None:
    """Writes how processes ended to whoever waits for it."""
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(ends[pid], b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(ends.pop(pid))


def _become(files: list[int], others: list[int], run: Callable[[], None]) -> NoReturn:
    """Makes a fork of the server a process like one that was started by itself."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for other in (*others, files.pop()):
        os.close(other)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    status = 1
    try:
        run()
        status = 0
    finally:
        os._exit(status)  # at once: drivers may abort at an ordinary exit
