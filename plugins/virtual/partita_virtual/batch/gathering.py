"""Requests that come at the same time are gathered, run as one, and get their rows back."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.device_model import DeviceModel, new_runner
from partita.contract.runner import Runner
from partita.errors import PLUGIN_FAILURES, InferCancelledError, InferError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.sleepers import Sleepers
from partita.tensors.tensor import HostTensor, Tensor

Key = tuple[tuple[int, ...], ...]
"""The shapes of a request's inputs; requests of the same shapes go together."""


class Member:
    """What is known of one request.

    Attributes:
        is_busy: Whether it runs or waits now.
        last_seen: When it was made, or its last run ended.
        is_cancelled: Whether its run is to stop.
    """

    def __init__(self) -> None:
        self.is_busy = self.is_cancelled = False
        self.last_seen = time.monotonic()


class Batch:
    """Requests that run together.

    Attributes:
        rows: The inputs of each, in the order in which they came.
        deadline: When those that have come wait no longer.
        is_over: Whether it has run, or will not.
        results: Its outputs, if it has run well.
    """

    def __init__(self, deadline: float) -> None:
        self.rows: list[tuple[Member, Sequence[Tensor]]] = []
        self.deadline = deadline
        self.is_over = False
        self.results: Sequence[np.ndarray[Any, Any]] | None = None


class Gathering:
    """The requests of one model, and the batches that they make up.

    A request waits for others at most so long, and only for those that may come: none that has not
    run for that time counts.

    Args:
        compiled: The model that takes a batch.
        size: How many requests it takes.
        timeout_s: How long a request waits for others.

    Attributes:
        batches: How many have run.
        last_error: What made the last batch fail that did.
    """

    def __init__(self, compiled: DeviceModel, size: int, timeout_s: float) -> None:
        self._compiled, self._size, self._timeout_s = compiled, size, timeout_s
        self._lock = InterruptSafeLock()
        self._waiting = Sleepers()
        self._open: dict[Key, Batch] = {}
        self._idle: list[Runner] = []
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()
        self.batches = 0
        self.last_error: BaseException | None = None

    def enter(self) -> Member:
        """Makes a new request known."""
        member = Member()
        with self._lock:
            self._members.add(member)
        return member

    def begin(self, member: Member) -> None:
        """Says that a request runs."""
        member.is_busy, member.is_cancelled = True, False

    def end(self, member: Member) -> None:
        """Says that a request's run is over."""
        member.is_busy, member.last_seen = False, time.monotonic()

    def cancel(self, member: Member) -> None:
        """Lets a request wait no longer."""
        member.is_cancelled = True
        self._waiting.wake()

    def leave(self, member: Member) -> None:
        """Forgets a request."""
        with self._lock:
            self._members.discard(member)
        self._waiting.wake()

    def run(self, member: Member, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """Runs a request with others.

        Returns:
            Its outputs; ``None`` if it is to run by itself, since too few came or the batch failed.

        Raises:
            InferCancelledError: The request was cancelled while it waited.
        """
        key = tuple(tensor.shape for tensor in inputs)
        batch = None
        try:
            with self._lock:
                batch = self._open.get(key)
                if batch is None:
                    batch = self._open[key] = Batch(time.monotonic() + self._timeout_s)
                batch.rows.append((member, inputs))
                is_full = len(batch.rows) == self._size
                if is_full:
                    del self._open[key]
            if is_full:
                self._compute(batch)
            else:
                self._wait(member, batch, key)
        except BaseException:  # it was cancelled, or Ctrl-C came
            if batch is not None:
                self._break_off(member, batch, key)
            raise
        if batch.results is None:
            return None
        row = [one for one, _ in batch.rows].index(member)
        return [HostTensor(array[row : row + 1]) for array in batch.results]

    def _break_off(self, member: Member, batch: Batch, key: Key) -> None:
        """Takes a request out of a batch; one that it was to run is over, and each runs alone."""
        with self._lock:
            if self._open.get(key) is batch:
                batch.rows = [one for one in batch.rows if one[0] is not member]
                if not batch.rows:
                    del self._open[key]
            elif batch.rows[-1][0] is member:
                batch.is_over = True
        self._waiting.wake()

    def _wait(self, member: Member, batch: Batch, key: Key) -> None:
        """Waits until a batch is over.

        Raises:
            InferCancelledError: The request was cancelled before the batch was full.
        """
        while not batch.is_over:
            with self._lock:
                is_open = self._open.get(key) is batch
                if is_open and member.is_cancelled:
                    raise InferCancelledError(
                        "The request was cancelled before its batch was full."
                    )
                last = self._latest_arrival(batch) if is_open else 0.0
                left = min(batch.deadline, last) - time.monotonic()
                if is_open and left <= 0:
                    del self._open[key]
                    batch.is_over = True
            if batch.is_over:
                self._waiting.wake()
            else:
                has_news = functools.partial(_has_news, batch, member, is_open)
                self._waiting.wait(has_news, left if is_open else -1)

    def _latest_arrival(self, batch: Batch) -> float:
        """When the last request that may still come will have come."""
        inside = [member for member, _ in batch.rows]
        others = [member for member in self._members if member not in inside]
        if any(member.is_busy for member in others):
            return batch.deadline
        return max((member.last_seen + self._timeout_s for member in others), default=0.0)

    def _compute(self, batch: Batch) -> None:
        """Runs a full batch on this thread; if it fails, each of its requests runs by itself."""
        try:
            batch.results = self._outputs([inputs for _, inputs in batch.rows])
        except PLUGIN_FAILURES as error:  # each request tells by itself what is wrong
            self.last_error = error
        with self._lock:
            self.batches += 1
            batch.is_over = True
        self._waiting.wake()

    def _outputs(self, rows: Sequence[Sequence[Tensor]]) -> list[np.ndarray[Any, Any]]:
        """What a run on all rows gives, in memory that is nobody else's."""
        with self._lock:
            runner = self._idle.pop() if self._idle else None
        if runner is None:
            runner = new_runner(self._compiled)
        arrays = zip(*([tensor.numpy() for tensor in inputs] for inputs in rows), strict=True)
        stacked = [HostTensor(np.concatenate(several)) for several in arrays]
        results = [np.array(tensor.numpy(), order="C") for tensor in runner.run(stacked)]
        with self._lock:
            self._idle.append(runner)
        for array, port in zip(results, self._compiled.outputs, strict=True):
            if array.ndim == 0 or len(array) != self._size:
                raise InferError(
                    f"Output '{port.name}' of a batch of {self._size} has shape "
                    f"{list(array.shape)}."
                )
        return results


def _has_news(batch: Batch, member: Member, was_open: bool) -> bool:
    """Whether a request that waits for its batch has something to do."""
    return batch.is_over or (was_open and member.is_cancelled)
