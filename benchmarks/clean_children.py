"""Work in child processes that start as a plain process does: one thread, nothing half done.

A child that is forked takes over what its parent is at, for good. From a thread beside others that
is more than it seems: memory comes from the thread's arena, locks of others stay taken, and if one
of them is within a collection of garbage, the child never collects any. So children are forked by
the only thread there is, which looks after all of them, behind a collection of its own. What the
parent has imported and made, they have.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import connection
from typing import Any

_GRACE_S = 2
"""So long may a child take to end that has answered."""
_TURN_S = 1
"""So often is looked whether a child has ended whose own children keep its pipes open."""
ENDED = ["(ends the process)"]
"""The answer of a child that ends without one."""


class Child:
    """A process that does one piece of work, and answers.

    Args:
        work: What is done in it.
        asked: Its argument.
        limit_s: After so many seconds it is killed, and its answer is an empty list.

    Raises:
        RuntimeError: There are other threads than the caller's.
    """

    def __init__(self, work: Callable[[Any], Any], asked: Any, limit_s: float) -> None:
        count = threading.active_count()
        if count > 1:
            raise RuntimeError(
                f"A child would be forked beside {count - 1} other threads, and take over what "
                "they are at: start it before them, or when they have ended."
            )
        context = multiprocessing.get_context("fork")
        self.answer: Any = None
        self._pipe, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_answer, args=(work, asked, theirs))
        self._process.start()
        theirs.close()
        self._end = time.monotonic() + limit_s

    @property
    def handles(self) -> list[Any]:
        """What becomes ready when there is something to look at."""
        return [self._process.sentinel, *([self._pipe] if self.answer is None else [])]

    def over(self) -> bool:
        """Takes its answer if there is one; whether the process has ended, too, or been ended."""
        alive = self._process.is_alive()  # before its pipe, into which it may write as its last
        if self.answer is None:
            self._take(alive)
        late = time.monotonic() >= self._end
        if late and alive:
            self.answer = self.answer or []
            self._process.kill()
        if late or not alive:
            self._process.join()
            self._pipe.close()
        return late or not alive

    def _take(self, alive: bool) -> None:
        try:
            if self._pipe.poll():
                self.answer = self._pipe.recv()
            elif not alive:
                self.answer = ENDED
        except EOFError:
            self.answer = ENDED
        if self.answer is not None:
            self._end = time.monotonic() + _GRACE_S


def _answer(work: Callable[[Any], Any], asked: Any, pipe: connection.Connection) -> None:
    pipe.send(work(asked))


def results_of(
    work: Callable[[Any], Any],
    tasks: Sequence[Generator[Any, Any, Any]],
    jobs: int,
    limit_s: float,
) -> Iterator[tuple[int, Any, float]]:
    """Lets tasks ask for pieces of work, each of which is done in a child of its own.

    Args:
        work: What a child does; it gets what a task yields, and answers with what the task is sent.
        tasks: They yield what they ask for, one after another but one at least, and return their
            result.
        jobs: How many children there are at a time.
        limit_s: How many seconds a piece of work may take.

    Yields:
        The number of a task that is done, its result, and the seconds since it was begun.
    """
    gc.collect()
    gc.freeze()  # so that collections of children leave alone what all of them have
    waiting = iter(enumerate(tasks))
    running: dict[int, tuple[Child, float]] = {}
    while True:
        while len(running) < jobs and (following := next(waiting, None)) is not None:
            number, task = following
            running[number] = Child(work, next(task), limit_s), time.monotonic()
        if not running:
            return
        handles = [handle for child, _ in running.values() for handle in child.handles]
        connection.wait(handles, _TURN_S)
        for number, (child, start) in list(running.items()):
            if not child.over():
                continue
            try:
                asked = tasks[number].send(child.answer)
            except StopIteration as done:
                del running[number]
                yield number, done.value, time.monotonic() - start
            else:
                running[number] = Child(work, asked, limit_s), start
