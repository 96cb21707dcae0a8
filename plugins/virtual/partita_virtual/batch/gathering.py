"""Requests that come at the same time are gathered, run as one, and get their rows back."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.device_model import DeviceModel
from partita.contract.runner import Runner
from partita.errors import PLUGIN_FAILURES, InferCancelledError, InferError
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
        self._changed = threading.Condition()
        self._open: dict[Key, Batch] = {}
        self._idle: list[Runner] = []
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()
        self.batches = 0
        self.last_error: BaseException | None = None

    def enter(self) -> Member:
        """Makes a new request known."""
        member = Member()
        with self._changed:
            self._members.add(member)
        return member

    def begin(self, member: Member) -> None:
        """Says that a request runs."""
        with self._changed:
            member.is_busy, member.is_cancelled = True, False

    def end(self, member: Member) -> None:
        """Says that a request's run is over."""
        with self._changed:
            member.is_busy, member.last_seen = False, time.monotonic()

    def cancel(self, member: Member) -> None:
        """Lets a request wait no longer."""
        with self._changed:
            member.is_cancelled = True
            self._changed.notify_all()

    def leave(self, member: Member) -> None:
        """Forgets a request."""
        with self._changed:
            self._members.discard(member)
            self._changed.notify_all()

    def run(self, member: Member, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """Runs a request with others.

        Returns:
            Its outputs; ``None`` if it is to run by itself, since too few came or the batch failed.

        Raises:
            InferCancelledError: The request was cancelled while it waited.
        """
        key = tuple(tensor.shape for tensor in inputs)
        with self._changed:
            batch = self._open.get(key)
            if batch is None:
                batch = self._open[key] = Batch(time.monotonic() + self._timeout_s)
            row = len(batch.rows)
            batch.rows.append((member, inputs))
            is_full = len(batch.rows) == self._size
            if is_full:
                del self._open[key]
            else:
                row = self._wait(member, batch, key)
        if is_full:
            self._compute(batch)
        if batch.results is None:
            return None
        return [HostTensor(array[row : row + 1]) for array in batch.results]

    def _wait(self, member: Member, batch: Batch, key: Key) -> int:
        """Waits until a batch is over; the lock is held. Returns the request's row of it."""
        while not batch.is_over:
            is_open = self._open.get(key) is batch
            if is_open and member.is_cancelled:
                batch.rows = [one for one in batch.rows if one[0] is not member]
                if not batch.rows:
                    del self._open[key]
                raise InferCancelledError("The request was cancelled before its batch was full.")
            left = min(batch.deadline, self._latest_arrival(batch)) - time.monotonic()
            if is_open and left <= 0:
                del self._open[key]
                batch.is_over = True
                self._changed.notify_all()
            else:
                self._changed.wait(left if is_open else None)
        return [one for one, _ in batch.rows].index(member)

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
        with self._changed:
            self.batches += 1
            batch.is_over = True
            self._changed.notify_all()

    def _outputs(self, rows: Sequence[Sequence[Tensor]]) -> list[np.ndarray[Any, Any]]:
        """What a run on all rows gives, in memory that is nobody else's."""
        with self._changed:
            runner = self._idle.pop() if self._idle else None
        if runner is None:
            runner = self._compiled.create_runner()
        arrays = zip(*([tensor.numpy() for tensor in inputs] for inputs in rows), strict=True)
        stacked = [HostTensor(np.concatenate(several)) for several in arrays]
        results = [np.array(tensor.numpy(), order="C") for tensor in runner.run(stacked)]
        with self._changed:
            self._idle.append(runner)
        for array, port in zip(results, self._compiled.outputs, strict=True):
            if array.ndim == 0 or len(array) != self._size:
                raise InferError(
                    f"Output '{port.name}' of a batch of {self._size} has shape "
                    f"{list(array.shape)}."
                )
        return results
