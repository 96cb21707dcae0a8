"""A process of our own in which a driver may abort, hang or crash, and how that ended.

It runs ``main`` of one of this package's modules for each request that it gets. Requests and
answers are JSON, an object per line. What drivers write to its standard output is no answer.

What is no driver's doing is told apart from what is: that the process cannot start, as in a damaged
environment, and errors of Python. A driver ends a process, hangs, or raises pyopencl's errors,
which ``main`` answers with.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn, TextIO

from partita.system.memory_limits import memory_limits, more_memory
from partita.system.processor_time import group_seconds
from partita.system.threads import joint_work
from partita.system.threads.thread_limit import is_thread_refused, more_threads
from partita_opencl.drivers import fork_server
from partita_opencl.drivers.fork_server import Forked
from partita_opencl.drivers.trial_seconds import SilenceTimer

_log = logging.getLogger(__name__)

Json = dict[str, Any]
Answer = Callable[[Json], None]
"""Tells the parent something; it has it even if this process dies next."""

WORKER = "partita_opencl.trials.trial_worker"
"""The module of lasting processes, which try kernels and launches."""

PROCESSOR_SECONDS = 3600
"""Processor time that a process may use for one request, where the system can limit it: whoever
asked gives it up long before, but may have been killed itself."""

_LOOK_SECONDS = 2.0
"""How often a process looks whether the one that started it is still there."""

_OWN_ERROR = 75
"""The process's exit code if Python raised what ``main`` does not catch; EX_TEMPFAIL of BSD."""

_STARTED: Json = {"started": True}
"""What the process says first: it could be started, and no driver was touched so far."""

_BY_CHANCE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Signals that other processes send, as the system does when there is no memory."""

_PATIENCE_WITHOUT_MEMORY = 0.25
"""The part of its time that a process may stand still where memory is limited: drivers fail at that
by never coming back, as PoCL, whose compiler stays locked."""

TELLS_SECONDS = 10.0
"""How long nothing is said of a process that is silent."""

_NO_MEMORY = "MemoryError", "bad_alloc", os.strerror(errno.ENOMEM)
_NO_THREAD = "can't start new thread", os.strerror(errno.EAGAIN)
"""What is in the last words of a process that the system refused something."""

_LOOKS = 20
"""How often a process that says nothing is looked at until it may be taken to hang."""

_MESSAGE = 300
"""Letters of a process's last output that are reported."""

_serves = False
"""Whether this process is one of trials."""


class TrialProcess:
    """One such process; leaving the block, or :meth:`close`, ends it.

    Args:
        module: The module's whole name.
        request: What its ``main`` gets.
        seconds: How long it may be silent until it is taken to hang, as `silence` counts it.
        lasting: Whether there will be more requests, by :meth:`ask`. Such are many, side by side:
            they are forked from one that has imported the module and called its ``get_ready``,
            where the system can do so.
        doing: What the request is, for whoever waits long.

    Raises:
        OSError: It cannot be started.

    Attributes:
        hangs: Whether it was ended since it had been silent for too long.
    """

    def __init__(
        self,
        module: str,
        request: Json,
        seconds: float,
        *,
        lasting: bool = False,
        doing: str = "a trial of an OpenCL driver",
    ) -> None:
        self._seconds = seconds
        self._standing = seconds * (_PATIENCE_WITHOUT_MEMORY if memory_limits() else 1.0)
        self._doing = ""
        self._started = False
        self.hangs = False
        self._last_words = ""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        self.process: subprocess.Popen[bytes] | Forked
        try:
            forked = fork_server.fork(_server_code(module), self._errors) if lasting else None
            self.process = forked or subprocess.Popen(
                [*_python(), _code(module, _SERVE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=os.name == "posix",
            )
        except BaseException:
            self._errors.close()
            raise
        self.ask(request, doing, last=not lasting)

    def ask(self, request: Json, doing: str = "", *, last: bool = False) -> None:
        """Sends a request; no other may be under way.

        Args:
            request: What its ``main`` gets.
            doing: What that is, for whoever waits long.
            last: Whether it ends once it has answered.
        """
        self._doing = doing or self._doing
        stream = self.process.stdin
        if stream is None:
            raise ValueError("the process has no standard input")
        with contextlib.suppress(BrokenPipeError):  # it has died: its end says why
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
        if last:
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def answers(self) -> Iterator[Json]:
        """What it tells, as it tells it; ends when it has ended, or has been silent too long.

        Raises:
            KeyboardInterrupt: What it was asked for was given up; it is ended.
            OSError: The system starts no thread to wait for it.
        """
        stream = self.process.stdout
        if stream is None:
            raise ValueError("the process has no standard output")
        while True:
            with joint_work.ended_by(self._kill), self._watched():
                line = stream.readline()
            if not line:
                self.process.wait()
                joint_work.check()
                return
            try:
                answer = json.loads(line)
            except ValueError:
                continue  # half a line, of a process that died
            if answer == _STARTED:
                self._started = True
            else:
                yield answer

    def close(self) -> None:
        """Ends it, if it has not ended; may be called again."""
        if self._errors.closed:
            return
        self._kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._last_words = self._read_last_words()
        self._errors.close()

    @property
    def fault(self) -> str:
        """How it failed, in words, once it is closed; empty if it ended as it should."""
        code = self.process.returncode
        if self.hangs:
            return f"it said nothing for {self._standing:.0f} s"
        if code == 0:
            return ""
        if code == _OWN_ERROR:
            return f"it could not be tried ({self._last_words})"
        how = _signal_name(code) if code < 0 else f"exit code {code}"
        last = f" ({self._last_words})" if self._last_words else ""
        return f"the process that tried it ended by {how}{last}"

    @property
    def advice(self) -> str:
        """What to do about limits of this system that it may have failed by; empty for others."""
        if not self.fault:
            return ""
        return more_memory() or (more_threads() if self._is_refused(_NO_THREAD) else "")

    def _is_refused(self, words: Sequence[str]) -> bool:
        return any(word in self._last_words for word in words)

    @property
    def is_transient(self) -> bool:
        """Whether the same trial may go well another time."""
        if self.hangs or not self._started:
            return not self._started  # no driver was touched
        if self._is_refused((*_NO_MEMORY, *_NO_THREAD)):
            return True
        code = self.process.returncode
        return code == _OWN_ERROR or _signal_name(code) in _BY_CHANCE

    def _read_last_words(self) -> str:
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 10_000))
        text = self._errors.read().decode(errors="replace").strip()
        return text.splitlines()[-1].strip()[:_MESSAGE] if text else ""

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Ends the process if it hangs while the block runs."""
        answered = threading.Event()
        watch = threading.Thread(target=self._end_if_it_hangs, args=(answered,), daemon=True)
        try:
            watch.start()
        except RuntimeError as error:
            if not is_thread_refused(error):
                raise
            raise BlockingIOError(errno.EAGAIN, str(error)) from error
        try:
            yield
        finally:
            answered.set()

    def _end_if_it_hangs(self, answered: threading.Event) -> None:
        began, silence, warned = time.monotonic(), None, False
        while not answered.wait(self._standing / _LOOKS):
            computed = group_seconds(self.process.pid)
            if silence is None:
                silence = SilenceTimer(self._seconds, began, computed, self._standing)
                continue  # by the next look it may have computed something
            hangs = silence.is_too_long(time.monotonic(), computed)
            if not warned and silence.stood_still(time.monotonic()) > TELLS_SECONDS:
                warned = True
                _log.warning(
                    "Waiting for %s, which makes no progress; giving up after %.0f s%s",
                    self._doing,
                    self._standing,
                    f". {limit[0].upper()}{limit[1:]}" if (limit := more_memory()) else "",
                )
            if hangs and not answered.is_set():
                self.hangs = True
                self._kill()
                return

    def _kill(self) -> None:
        if self.process.poll() is not None:
            return
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # with linkers that it started
        else:
            self.process.kill()

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def serve(main: Callable[[Json, Answer], None]) -> None:
    """The process's side: reads requests, and sends answers past what drivers print.

    It ends with the process that started it, also while a driver computes without end.
    """
    global _serves
    _serves = True
    if os.name == "posix":
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with _own_output() as stream:

        def answer(found: Json) -> None:
            stream.write(json.dumps(found) + "\n")
            stream.flush()

        answer(_STARTED)
        for line in sys.stdin:
            _limit_processor_time()
            try:
                main(json.loads(line), answer)
            except Exception:  # noqa: BLE001  # whatever it is, no driver did it
                _end_by_error()


def _end_by_error() -> NoReturn:
    """Tells what was raised, and ends this process at once: drivers may abort at another exit."""
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(_OWN_ERROR)


def end_without_memory() -> None:
    """To be called where a driver raises MemoryError: ends this process, if it is one of trials.

    PoCL's compiler stays locked, and other threads that build something wait for it for ever.
    """
    if _serves:
        _end_by_error()


def _end_with(parent: int) -> None:
    """Ends this process when another process has adopted it."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _limit_processor_time() -> None:
    """Has the system end this process if it computes without end from here on.

    A driver may keep all threads of Python from running, also the one that looks for the parent.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has it
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        allowed = int(time.process_time()) + PROCESSOR_SECONDS
        if most == resource.RLIM_INFINITY or allowed < most:
            resource.setrlimit(resource.RLIMIT_CPU, (allowed, most))


@contextlib.contextmanager
def _own_output() -> Iterator[TextIO]:
    """The standard output, which everything else that writes to it loses to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stream:
        os.dup2(2, 1)
        yield stream


START = """\
import sys
sys.path[:] = {path!r}
from partita_opencl.drivers import fork_server, trial_process
import {module}
{then}
"""
_SERVE = "trial_process.serve({module}.main)"
_SERVE_FORKS = (
    "{module}.get_ready()\nfork_server.serve_forks(int(sys.argv[1]), lambda: " + _SERVE + ")"
)


def prepare(module: str) -> None:
    """Begins to import what lasting processes of a module need, since some will be started soon."""
    fork_server.prepare(_server_code(module))


def _code(module: str, then: str) -> str:
    return START.format(path=sys.path, module=module, then=then.format(module=module))


def _server_code(module: str) -> str:
    return _code(module, _SERVE_FORKS)


def _python() -> list[str]:
    """The interpreter, which imports nothing from the folder that it is started in."""
    return [sys.executable, "-P", "-c"]


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
