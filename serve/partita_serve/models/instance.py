"""Inference on a worker thread: inputs are batched, the device runs, outputs are split."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from partita import CompiledModel
from partita.contract.profiling import DeviceSpan
from partita_serve.protocol.errors import InternalError, ServingError, serving_error
from partita_serve.protocol.records import Array, InferenceRequest

Outputs = Mapping[str, Array]
"""Output name to array."""


class WaitLimit(NamedTuple):
    """How long a request may wait for its turn.

    Attributes:
        ns: Nanoseconds; 0 is for ever.
        source: What says so, for messages.
    """

    ns: int = 0
    source: str = ""


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through a model.

    Attributes:
        request: What the client sent.
        feeds: Input name to array, as the model takes them.
        rows: Rows along the batch axis; 1 where nothing is joined.
        alike: Jobs in which this is equal can be joined.
        priority: Lower numbers go first.
        limit: How long it may wait.
        resets: Whether the model's state begins anew with it.
        arrived_ns: When it came, by ``time.perf_counter_ns``.
        future: Gets its outputs.
        waits: Whether it is in a queue.
        timer: Ends its waiting.
    """

    request: InferenceRequest
    feeds: dict[str, Array]
    rows: int
    alike: Hashable
    priority: int
    limit: WaitLimit
    resets: bool = False
    arrived_ns: int = field(default_factory=time.perf_counter_ns)
    future: asyncio.Future[Outputs] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    waits: bool = False
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended.

    Attributes:
        outcomes: For each job its outputs, or why there are none.
        started_ns: When the inputs began to be joined.
        infer_ns: When inference began.
        inferred_ns: When it had ended.
        ended_ns: When the outputs were parted.
        spans: When which device was busy.
    """

    outcomes: Sequence[Outputs | ServingError]
    started_ns: int
    infer_ns: int
    inferred_ns: int
    ended_ns: int
    spans: Sequence[DeviceSpan]


class Instance:
    """One infer request of a model, on which one run at a time is made.

    Args:
        compiled: The model.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._resets_next = False

    def forget(self) -> None:
        """Has the next run begin with the model's initial state, whatever its job says."""
        self._resets_next = True

    def run(self, jobs: Sequence[Job]) -> Finished:
        """Makes one run for all jobs; if it fails, one for each, so that one fails alone."""
        started = time.perf_counter_ns()
        try:
            feeds = jobs[0].feeds if len(jobs) == 1 else _joined(jobs)
            infer = time.perf_counter_ns()
            outputs = self._infer(feeds, jobs[0].resets)
            inferred = time.perf_counter_ns()
            outcomes = [outputs] if len(jobs) == 1 else _parted(outputs, jobs)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
            infer = inferred = time.perf_counter_ns()
            return Finished(
                outcomes=[serving_error(error)] if len(jobs) == 1 else list(map(self._alone, jobs)),
                started_ns=started,
                infer_ns=infer,
                inferred_ns=inferred,
                ended_ns=time.perf_counter_ns(),
                spans=(),
            )
        return Finished(
            outcomes=outcomes,
            started_ns=started,
            infer_ns=infer,
            inferred_ns=inferred,
            ended_ns=time.perf_counter_ns(),
            spans=self._request.device_spans(),
        )

    def _alone(self, job: Job) -> Outputs | ServingError:
        try:
            return self._infer(job.feeds, job.resets)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
            return serving_error(error)

    def _infer(self, feeds: dict[str, Array], resets: bool) -> Outputs:
        if resets or self._resets_next:
            self._request.reset_state()
            self._resets_next = False
        return self._request.infer(feeds).to_dict()


def _joined(jobs: Sequence[Job]) -> dict[str, Array]:
    return {name: np.concatenate([job.feeds[name] for job in jobs]) for name in jobs[0].feeds}


def _parted(outputs: Outputs, jobs: Sequence[Job]) -> list[Outputs | ServingError]:
    """Each job's rows of the outputs."""
    rows = sum(job.rows for job in jobs)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise InternalError(
                f"Output '{name}' has shape {list(array.shape)} for {rows} rows that were joined."
            )
    parts: list[Outputs | ServingError] = []
    begin = 0
    for job in jobs:
        end = begin + job.rows
        parts.append({name: array[begin:end] for name, array in outputs.items()})
        begin = end
    return parts
