"""Threads that are stopped at chosen lines, so that races can be provoked there.

Races of threads show once in thousands of runs. Here one thread stops at a line of the device's
code, another one does something whole, and the first goes on: at each line of the device once.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from partita_conformance.judging.requirements import require

_PATIENCE_S = 0.25
"""So long a stopped thread waits for the other, which may itself wait for a lock of the first."""
_MOST_WAITS = 3
"""After so many waits in vain the rest is left out: the device lets no two of these run at once."""
_LIMIT_S = 60


class Moment(NamedTuple):
    """A line of a task: the ``number``-th that it comes to in code of ``module``."""

    module: str
    number: int


def packages_of(*things: object) -> frozenset[str]:
    """The packages in which the classes of some objects are written, without the framework."""
    modules = {one.__module__ for thing in things for one in type(thing).__mro__}
    return frozenset({_package(name) for name in modules} - {"partita", "builtins", "abc"})


def _package(module: str) -> str:
    return module.partition(".")[0]


def at_each_moment(
    task: Callable[[], None],
    meanwhile: Callable[[], None],
    packages: frozenset[str],
    most: int = 12,
    afterwards: Callable[[], None] | None = None,
) -> None:
    """Runs a task over and over, and another one whole at each line of the first, in turn.

    Args:
        task: What is stopped; raises if it comes out wrong.
        meanwhile: What is done then, on a thread of its own; likewise.
        packages: In whose code the task is stopped.
        most: At how many lines of each module.
        afterwards: What is done behind each meeting, if anything.

    Raises:
        Exception: The first that either raised.
        ConformanceError: They do not come to an end.
    """
    lines: Counter[str] = Counter()
    _run_traced(task, packages, lambda name: lines.update((name,)))
    moments = [
        Moment(name, 1 + number * count // min(count, most))
        for name, count in sorted(lines.items())
        for number in range(min(count, most))
    ]
    random.Random(0).shuffle(moments)  # noqa: S311  # the same order in each run of the kit
    waits = 0
    for moment in moments:
        waits += not _meet(task, meanwhile, packages, moment)
        if afterwards is not None:
            afterwards()
        if waits == _MOST_WAITS:
            break


def at_a_moment(
    task: Callable[[], None],
    meanwhile: Callable[[], None],
    packages: frozenset[str],
    rng: random.Random,
) -> None:
    """Runs a task twice: to count its lines, and with another one made whole at one of them.

    Args:
        task: As for :func:`at_each_moment`.
        meanwhile: Likewise.
        packages: Likewise.
        rng: Draws the line.

    Raises:
        Exception: As :func:`at_each_moment`.
    """
    lines: Counter[str] = Counter()
    _run_traced(task, packages, lambda name: lines.update((name,)))
    if lines:
        name = rng.choice(sorted(lines))
        _meet(task, meanwhile, packages, Moment(name, 1 + rng.randrange(lines[name])))


def _meet(
    task: Callable[[], None],
    meanwhile: Callable[[], None],
    packages: frozenset[str],
    moment: Moment,
) -> bool:
    """Makes both tasks meet at a moment; whether the second got done while the first stood."""
    errors: list[BaseException] = []
    lines: Counter[str] = Counter()
    other = threading.Thread(target=_caught, args=(meanwhile, errors), daemon=True)
    done = [True]

    def stop(name: str) -> None:
        lines[name] += 1
        if Moment(name, lines[name]) == moment:
            other.start()
            other.join(_PATIENCE_S)
            done[0] = not other.is_alive()

    _run_traced(task, packages, stop)
    if other.ident is not None:
        other.join(_LIMIT_S)
        require(not other.is_alive(), "Two threads stop each other for good.")
    if errors:
        raise errors[0]
    return done[0]


def _run_traced(
    task: Callable[[], None], packages: frozenset[str], at_line: Callable[[str], None]
) -> None:
    """Runs a task on a thread that calls a function at each line of some packages."""

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        return line if _package(name) in packages else None

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        if event in ("line", "return"):
            at_line(frame.f_globals["__name__"])
        return line

    def traced() -> None:
        sys.settrace(enter)
        try:
            task()
        finally:
            sys.settrace(None)

    errors: list[BaseException] = []
    thread = threading.Thread(target=_caught, args=(traced, errors), daemon=True)
    thread.start()
    thread.join(_LIMIT_S)
    require(not thread.is_alive(), "A run does not come to an end beside others.")
    if errors:
        raise errors[0]


def _caught(task: Callable[[], None], errors: list[BaseException]) -> None:
    try:
        task()
    except BaseException as error:  # noqa: BLE001  # raised again on the caller's thread
        errors.append(error)


def on_a_thread(task: Callable[[], None]) -> Callable[[], None]:
    """Starts a task on a thread of its own; what is returned waits for it, and raises its error."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  # raised again on the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()

    def ended() -> None:
        thread.join()
        if errors:
            raise errors[0]

    return ended
