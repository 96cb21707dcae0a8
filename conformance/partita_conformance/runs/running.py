"""Running checks: in worker processes, so that a crash or a hang costs one check and no more."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import multiprocessing.connection
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from partita_conformance.bench.bench import Bench, Target
from partita_conformance.bench.checks import Check
from partita_conformance.expectations import Expectations
from partita_conformance.inputs.cases_file import save
from partita_conformance.inputs.node_cases import node_cases
from partita_conformance.judging.requirements import (
    ConformanceError,
    DeclinedError,
    NotApplicableError,
)
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.suites.resources.collecting import of_new_objects
from partita_conformance.suites.resources.suite_memory import resident_bytes

PASSED, FAILED, DECLINED, SKIPPED = "passed", "failed", "declined", "skipped"
CRASHED, TIMEOUT = "crashed", "timeout"
UNSUPPORTED, XFAILED, XPASSED = "unsupported", "xfailed", "xpassed"
_INTERRUPTED = 130  # as the command line's own exit code
_START_S = 300  # a worker imports, reads the cases and opens the device before its first check

MOST_RESIDENT = 1 << 30
"""A worker with more bytes in memory is replaced: compilers keep what they made for each model."""

BAD = (FAILED, CRASHED, TIMEOUT, XPASSED)
"""Statuses that make a run fail."""


@dataclass(frozen=True)
class Outcome:
    """What became of one check.

    Attributes:
        status: One of this module's statuses.
        detail: What was wrong, or why it was not made.
        seconds: How long it took.
    """

    check: Check
    status: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether it makes the run fail."""
        return self.status in BAD


def attempt(check: Check, bench: Bench) -> tuple[str, str]:
    """Makes one check in this process; returns status and detail."""
    try:
        # Collections look at what this check made: all the process has takes many times as long.
        with warnings.catch_warnings(), of_new_objects(first=False):
            warnings.simplefilter("ignore")  # of engines and of numpy, about special numbers
            check.run(bench)
    except DeclinedError as reason:
        return DECLINED, str(reason)
    except NotApplicableError as reason:
        return SKIPPED, str(reason)
    except ConformanceError as error:
        return FAILED, str(error)
    except Exception as error:  # noqa: BLE001  # whatever the device lets through is a finding
        return FAILED, f"{type(error).__name__}: {error}"
    return PASSED, ""


class InProcess:
    """Makes checks in this process: quick, and gone with the first crash.

    Args:
        target: The device.
    """

    def __init__(self, target: Target) -> None:
        self._bench = Bench(target)

    def run(self, check: Check) -> Outcome:
        """Makes one check."""
        start = time.perf_counter()
        status, detail = attempt(check, self._bench)
        return Outcome(check, status, detail, time.perf_counter() - start)

    def close(self) -> None:
        """Nothing to do."""


class Isolated:
    """Makes checks in a worker process, which is replaced when it crashes, hangs or grows.

    Args:
        target: The device.
        selection: What the worker collects; must be that of this process.
        timeout_s: How long one check may take.
    """

    def __init__(self, target: Target, selection: Selection, timeout_s: float) -> None:
        self._target, self._selection, self._timeout_s = target, selection, timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="partita-conformance-")
        self._cases = Path(self._folder.name) / "cases"
        if selection.may_take("operators"):
            save(self._cases, node_cases())
        self._worker: Any = None
        self._pipe: multiprocessing.connection.Connection | None = None

    def run(self, check: Check) -> Outcome:
        """Makes one check; a worker that ends or exceeds the limit is the check's failure."""
        start = time.perf_counter()
        try:
            pipe = self._connect()
            pipe.send_bytes(check.name.encode())
            if not pipe.poll(self._timeout_s):
                self._end()
                return Outcome(
                    check, TIMEOUT, f"no result within {self._timeout_s:.0f} s", self._timeout_s
                )
            status, detail, resident = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            code = self._end()
            what = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            return Outcome(
                check, CRASHED, f"the process ended with {what}", time.perf_counter() - start
            )
        if resident > MOST_RESIDENT:
            self._end()
        return Outcome(check, status, detail, time.perf_counter() - start)

    def close(self) -> None:
        """Ends the worker and removes its files."""
        self._end()
        self._folder.cleanup()

    def _connect(self) -> multiprocessing.connection.Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._worker = context.Process(
                target=_serve,
                args=(theirs, self._target, self._selection, self._cases),
                daemon=True,
            )
            _start_tracker()
            with _interrupts_later():
                self._worker.start()
            theirs.close()
            if self._pipe.poll(_START_S):
                self._pipe.recv_bytes()
        return self._pipe

    def _end(self) -> int | None:
        """Ends the worker; returns its exit code."""
        if self._pipe is None:
            return None
        self._pipe.close()
        self._pipe = None
        self._worker.join(2)
        if self._worker.is_alive():
            self._worker.kill()
            self._worker.join()
        code: int | None = self._worker.exitcode
        return code


def _start_tracker() -> None:
    """Starts what else a first worker would: Python lets interrupts come again once it is there."""
    if sys.platform != "win32":
        resource_tracker.ensure_running()


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Has an interrupt wait for the end of the block; a process that is started there holds them.

    Python would print one that comes before a process has a word in what it does with it.
    """
    _set_interrupts(held=True)
    try:
        yield
    finally:
        _set_interrupts(held=False)


def _set_interrupts(*, held: bool) -> None:
    """Lets interrupts come, or wait, where the system can have them wait."""
    if sys.platform != "win32":
        how = signal.SIG_BLOCK if held else signal.SIG_UNBLOCK
        signal.pthread_sigmask(how, [signal.SIGINT])


def _serve(
    pipe: multiprocessing.connection.Connection,
    target: Target,
    selection: Selection,
    cases_file: Path,
) -> None:
    """The worker: makes the checks whose names come through the pipe, until it is closed.

    Ctrl-C at a terminal reaches it beside the run's own process, which says so; it ends quietly,
    as where the run has gone on without it.
    """
    try:
        _set_interrupts(held=False)
        _serve_checks(pipe, target, selection, cases_file)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(_INTERRUPTED)


def _serve_checks(
    pipe: multiprocessing.connection.Connection,
    target: Target,
    selection: Selection,
    cases_file: Path,
) -> None:
    logging.getLogger("onnx_ir").setLevel(logging.CRITICAL)  # of models that cannot be inferred
    checks = {check.name: check for check in collect(selection, cases_file)}
    bench = Bench(target)
    pipe.send_bytes(b"ready")
    while True:
        try:
            name = pipe.recv_bytes().decode()
        except (EOFError, OSError):
            return
        answer = *attempt(checks[name], bench), _resident_bytes()
        pipe.send_bytes(json.dumps(answer).encode())


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    try:
        return resident_bytes()
    except NotApplicableError:
        return 0


def run_expected(check: Check, runner: InProcess | Isolated, expectations: Expectations) -> Outcome:
    """Makes one check; what was expected not to pass is marked as such."""
    expected = expectations.find(check.name)
    if expected is None:
        outcome = runner.run(check)
        excuse = expectations.excuse(check.name, outcome.detail) if outcome.bad else None
        if excuse is None or outcome.status != FAILED:
            return outcome
        return Outcome(check, XFAILED, f"{excuse} [{outcome.detail}]", outcome.seconds)
    section, reason = expected
    if section == "unsupported":
        return Outcome(check, UNSUPPORTED, reason)
    outcome = runner.run(check)
    if outcome.status == PASSED:
        detail = f"expected to fail ({reason}), but passes: remove the entry"
        return Outcome(check, XPASSED, detail, outcome.seconds)
    if outcome.bad:
        return Outcome(check, XFAILED, f"{reason} [{outcome.detail}]", outcome.seconds)
    return outcome


def count(outcomes: list[Outcome]) -> Mapping[str, int]:
    """Number of outcomes per status, the frequent ones first."""
    statuses = [outcome.status for outcome in outcomes]
    return {s: statuses.count(s) for s in sorted(set(statuses), key=statuses.count, reverse=True)}
