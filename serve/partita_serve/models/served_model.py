"""One version of a model that answers requests: checks them, runs them, describes itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from partita import Port
from partita_serve.models.admission import QueueLimit
from partita_serve.models.batching import Batcher
from partita_serve.models.instance import Finished, Instance, Job, Outputs, WaitLimit
from partita_serve.models.loading import LoadedModel
from partita_serve.models.sequences import Sequences, SequenceStep
from partita_serve.models.statistics import ModelStatistics
from partita_serve.protocol.datatypes import BYTES, datatype_of, dtype_of
from partita_serve.protocol.errors import InvalidRequest, NotSupported, ServingError
from partita_serve.protocol.observer import BatchRun, Observer
from partita_serve.protocol.records import (
    Array,
    InferenceInput,
    InferenceOutput,
    InferenceRequest,
    InferenceResponse,
)


class ServedModel:
    """A loaded model with its queue, its instances and its sequences.

    To be made, used and closed on the event loop; runs are made on threads of its own.

    Args:
        loaded: The model.
        observers: Notified of runs.

    Attributes:
        loaded: The model.
        name: Its name.
        version: Its version.
        settings: How it is served.
        statistics: What it has done.
        pending: How many requests it has.
    """

    def __init__(self, loaded: LoadedModel, observers: Sequence[Observer]) -> None:
        self.loaded = loaded
        self.statistics = ModelStatistics()
        self._observers = observers
        source, compiled = loaded.source, loaded.compiled
        self.name, self.version, self.settings = source.name, source.version, source.settings
        self._inputs = {port.name: port for port in loaded.inputs}
        self._outputs = {port.name: port for port in loaded.outputs}
        count = self.settings.instances or compiled.optimal_number_of_infer_requests
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=f"partita-serve-{self.name}")
        self._limit = QueueLimit(self.name, self.settings.max_queue_size)
        self._queue: Batcher | Sequences
        if compiled.model.variables:
            self._queue = Sequences(
                self.name,
                lambda: self._make_batcher(1),
                self.settings.max_sequences,
                self.settings.sequence_idle_s,
            )
        else:
            self._queue = self._make_batcher(count)
        self.pending = 0
        self._none_pending = asyncio.Event()
        self._none_pending.set()

    def _make_batcher(self, instances: int) -> Batcher:
        return Batcher(
            [Instance(self.loaded.compiled) for _ in range(instances)],
            self._threads,
            self._limit,
            self.settings.max_batch_size,
            self.settings.max_queue_delay_us * 1000,
            self._count,
        )

    def check_room(self) -> None:
        """Does nothing if one more request may wait.

        Raises:
            Overloaded: The queue is full.
        """
        self._limit.check()

    def holds(self, request: InferenceRequest) -> bool:
        """Whether a request goes on with a sequence that is open here."""
        step = SequenceStep.of(request.parameters)
        return (
            isinstance(self._queue, Sequences) and step is not None and self._queue.holds(step.id)
        )

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answers a request.

        Raises:
            ServingError: It is wrong, has to wait too long, or the device failed.
        """
        self.pending += 1
        self._none_pending.clear()
        try:
            job = self._job(request)
            outputs = await self._run(request, job)
            return self._response(request, outputs)
        finally:
            self.pending -= 1
            if not self.pending:
                self._none_pending.set()

    async def _run(self, request: InferenceRequest, job: Job) -> Outputs:
        step = SequenceStep.of(request.parameters)
        if isinstance(self._queue, Batcher):
            if step is not None:
                raise InvalidRequest(
                    f"Model '{self.name}' keeps no state; leave 'sequence_id' out."
                )
            return await self._queue.run(job)
        if step is None:
            raise InvalidRequest(
                f"Model '{self.name}' keeps state: give 'sequence_id', and 'sequence_start' with "
                "the first request of a sequence."
            )
        return await self._queue.run(step, job)

    def end_sequences(self) -> None:
        """Ends all sequences, once the requests that they have are answered."""
        if isinstance(self._queue, Sequences):
            self._queue.end_all()

    async def retire(self) -> None:
        """Waits for the requests and sequences that are here, and frees the threads."""
        await self._none_pending.wait()
        if isinstance(self._queue, Sequences):
            await self._queue.all_ended.wait()
        self._threads.shutdown(wait=False)
        self.loaded.files.close()

    # -------------------------------------------------------------------- requests

    def _job(self, request: InferenceRequest) -> Job:
        """A request as the model takes it."""
        given = {one.name: one for one in request.inputs}
        if len(given) != len(request.inputs) or given.keys() != self._inputs.keys():
            raise InvalidRequest(
                f"Model '{self.name}' takes {self._expected()}; the request has "
                f"{', '.join(repr(one.name) for one in request.inputs) or 'none'}."
            )
        for name, times in Counter(one.name for one in request.outputs).items():
            if times > 1:
                raise InvalidRequest(f"The request asks for output '{name}' {times} times.")
        for wanted in request.outputs:
            self._check_output(wanted.name, wanted.parameters)
        feeds = {name: _elements(port, given[name]) for name, port in self._inputs.items()}
        rows, alike = 1, None
        if self.settings.max_batch_size:
            rows, alike = self._rows(feeds)
        return Job(
            request,
            feeds,
            rows,
            alike,
            _integer_parameter(request, "priority") or self.settings.default_priority,
            self._wait_limit(request),
        )

    def _wait_limit(self, request: InferenceRequest) -> WaitLimit:
        """How long a request may wait: as it says itself or as is usual, within its deadline."""
        timeout_us = _integer_parameter(request, "timeout")
        usual = self.settings.default_timeout_us
        limit = WaitLimit(usual * 1000, "which is the model's 'default_timeout_us'")
        if timeout_us:
            limit = WaitLimit(timeout_us * 1000, "which is the request's parameter 'timeout'")
        if request.left_us is not None and not 0 < limit.ns <= request.left_us * 1000:
            limit = WaitLimit(request.left_us * 1000, "when the call's deadline was over")
        return limit

    def _check_output(self, name: str, parameters: Mapping[str, Any]) -> None:
        if name not in self._outputs:
            raise InvalidRequest(
                f"Model '{self.name}' has no output '{name}'; it has "
                f"{', '.join(map(repr, self._outputs))}."
            )
        for unsupported in ("classification", "shared_memory_region"):
            if parameters.get(unsupported):
                raise NotSupported(
                    f"Output '{name}' asks for '{unsupported}', which is not done here; ask for "
                    "the elements."
                )

    def _rows(self, feeds: Mapping[str, Array]) -> tuple[int, object]:
        """How many rows a request has, and what those have in common that it can run with."""
        counts = {len(array) for array in feeds.values()}
        most = self.settings.max_batch_size
        if len(counts) != 1 or not 1 <= max(counts) <= most:
            found = ", ".join(f"'{name}': {len(array)}" for name, array in feeds.items())
            raise InvalidRequest(
                f"Model '{self.name}' takes 1 to {most} rows (max_batch_size), as many of each "
                f"input; the request has {found}."
            )
        return counts.pop(), tuple(array.shape[1:] for array in feeds.values())

    def _response(self, request: InferenceRequest, outputs: Outputs) -> InferenceResponse:
        names = [one.name for one in request.outputs] or list(self._outputs)
        return InferenceResponse(
            self.name,
            self.version,
            request.id,
            [_output(name, outputs[name]) for name in names],
        )

    def _expected(self) -> str:
        return ", ".join(f"'{p.name}' {_described(p)}" for p in self._inputs.values())

    def _count(self, jobs: Sequence[Job], finished: Finished) -> None:
        """Reports a run to the observers."""
        run = BatchRun(
            self.name,
            self.version,
            self.loaded.compiled.execution_devices,
            [job.request for job in jobs],
            sum(job.rows for job in jobs),
            [finished.started_ns - job.arrived_ns for job in jobs],
            finished.started_ns,
            finished.infer_ns,
            finished.inferred_ns,
            finished.ended_ns,
            finished.spans,
            sum(isinstance(one, ServingError) for one in finished.outcomes),
        )
        self.statistics.add_run(run)
        for observer in self._observers:
            observer.batch_run(run)

    # ----------------------------------------------------------------- description

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """The model as the protocol describes it.

        Args:
            versions: All versions of it that are served.
        """
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": "partita",
            "inputs": [_tensor(port) for port in self._inputs.values()],
            "outputs": [_tensor(port) for port in self._outputs.values()],
        }

    def config(self) -> dict[str, Any]:
        """How the model is served, in the form of Triton's configurations."""
        own, batches = self.settings, self.settings.max_batch_size > 0
        config: dict[str, Any] = {
            "name": self.name,
            "platform": "partita",
            "backend": "partita",
            "version_policy": {"latest": {"num_versions": own.versions}},
            "max_batch_size": own.max_batch_size,
            "input": [_config(port, batches) for port in self._inputs.values()],
            "output": [_config(port, batches) for port in self._outputs.values()],
            "parameters": {"device": {"string_value": self.loaded.compiled.device}},
        }
        if batches:
            config["dynamic_batching"] = {
                "max_queue_delay_microseconds": own.max_queue_delay_us,
                "default_queue_policy": {
                    "default_timeout_microseconds": own.default_timeout_us,
                    "max_queue_size": own.max_queue_size,
                },
            }
        if isinstance(self._queue, Sequences):
            config["sequence_batching"] = {
                "max_sequence_idle_microseconds": int(own.sequence_idle_s * 1e6)
            }
        return config


def _integer_parameter(request: InferenceRequest, name: str) -> int:
    """A parameter that is a whole number; 0 if it is not there."""
    value = request.parameters.get(name, 0)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)  # as some clients send numbers
    if type(value) is not int or not 0 <= value < 2**63:
        raise InvalidRequest(f"Parameter '{name}' is {value!r}; it is a whole number, or left out.")
    return value


def _elements(port: Port, given: InferenceInput) -> Array:
    """The elements of an input, as the model takes them."""
    fits = dtype_of(given.datatype) == port.dtype
    if fits and port.shape is not None:
        fits = len(port.shape) == len(given.shape) and all(
            size == dim or not isinstance(dim, int)
            for size, dim in zip(given.shape, port.shape, strict=True)
        )
    if not fits:
        raise InvalidRequest(
            f"Input '{port.name}' takes {_described(port)}; found "
            f"{given.datatype}{list(given.shape)}."
        )
    if given.datatype != BYTES:
        return given.data
    try:
        texts = [one.decode() for one in given.data.reshape(-1)]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Input '{port.name}' takes texts in UTF-8: {error}.") from error
    strings = given.data.copy()
    strings.reshape(-1)[:] = texts
    return strings


def _output(name: str, array: Array) -> InferenceOutput:
    if array.dtype.hasobject:
        texts = [str(one).encode() for one in array.reshape(-1)]
        array = array.copy()
        array.reshape(-1)[:] = texts
    return InferenceOutput(name, datatype_of(array.dtype), array.shape, array)


def _described(port: Port) -> str:
    dims = "..." if port.shape is None else ", ".join(map(str, _dims(port)))
    return f"{datatype_of(port.dtype)}[{dims}]"


def _dims(port: Port) -> list[int]:
    """The dimensions, -1 where they vary."""
    return [dim if isinstance(dim, int) else -1 for dim in port.shape or ()]


def _tensor(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": datatype_of(port.dtype), "shape": _dims(port)}


def _config(port: Port, batches: bool) -> dict[str, Any]:
    """A port; without the batch axis where requests are batched."""
    kind = datatype_of(port.dtype)
    name = "STRING" if kind == BYTES else kind
    return {
        "name": port.name,
        "data_type": f"TYPE_{name}",
        "dims": [str(dim) for dim in _dims(port)[1 if batches else 0 :]],
    }
