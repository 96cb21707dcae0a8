"""The model server, independent of a transport: REST, gRPC and tests call it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import partita
from partita import Core
from partita_serve.models.admission import ByteLimit
from partita_serve.models.repository import Repository
from partita_serve.models.served_model import ServedModel
from partita_serve.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    NotSupported,
    Overloaded,
    ServingError,
    Unavailable,
    serving_error,
)
from partita_serve.protocol.observer import Observer
from partita_serve.protocol.records import InferenceRequest, InferenceResponse
from partita_serve.settings import ServerSettings

EXTENSIONS = (
    *("binary_tensor_data", "model_configuration", "model_repository", "schedule_policy"),
    *("sequence", "statistics"),
)
"""What is done beyond the protocol's core, by the names that clients know."""


class ModelServer:
    """Answers requests for models; everything but inference happens on the event loop.

    Args:
        settings: What it serves, and how.
        observers: Notified of requests and runs.
        core: Compiles the models; by default a new one.

    Attributes:
        settings: What it was made with.
        repository: The models.
    """

    def __init__(
        self,
        settings: ServerSettings,
        observers: Sequence[Observer] = (),
        core: Core | None = None,
    ) -> None:
        self.settings = settings
        self._observers = observers
        self.repository = Repository(core or Core(), settings, observers)
        self._bytes = ByteLimit(settings.max_buffered)
        self._watch: asyncio.Task[None] | None = None
        self._ready = False
        self._closing = asyncio.Event()

    # ------------------------------------------------------------------- life

    async def start(self) -> None:
        """Loads the models; from then on the server is ready.

        Raises:
            PartitaError: A model that was named cannot be loaded.
        """
        await self.repository.load_all()
        if self.settings.repository is not None and self.settings.reload_seconds:
            self._watch = asyncio.create_task(self.repository.watch())
        self._ready = True

    def drain(self) -> None:
        """Says that the server is not ready any more; requests are answered all the same."""
        self._ready = False
        if self._watch is not None:
            self._watch.cancel()

    def close_connections(self) -> None:
        """Lets each answer from now on say that its connection ends with it, and streams end."""
        self._closing.set()

    @property
    def closing(self) -> bool:
        """Whether answers are to say that their connections end."""
        return self._closing.is_set()

    async def wait_until_closing(self) -> None:
        """Waits until connections are to end."""
        await self._closing.wait()

    async def stop(self) -> None:
        """Waits for the requests that are there, and lets the models go."""
        self.drain()
        await self.repository.close()

    def is_live(self) -> bool:
        """Whether it runs."""
        return True

    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        return self._ready

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether a model answers requests.

        Raises:
            NotFound: There is no such model or version.
        """
        try:
            self.repository.find(name, version)
        except Unavailable:
            return False
        return True

    # -------------------------------------------------------------- inference

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answers a request.

        Raises:
            ServingError: Why there is no answer.
        """
        start = time.perf_counter_ns()
        for observer in self._observers:
            observer.request_started(request)
        failure: ServingError | None = None
        served = None
        try:
            served = self.repository.find_for(request)
            return await served.infer(request)
        except asyncio.CancelledError:
            failure = Cancelled("The client has gone before its answer.")
            raise
        except Exception as error:
            failure = serving_error(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            elapsed = time.perf_counter_ns() - start
            # When the task that answers has sent its answer, and after its run is reported.
            asyncio.get_running_loop().call_soon(self._tell, request, served, elapsed, failure)

    def _tell(
        self,
        request: InferenceRequest,
        served: ServedModel | None,
        elapsed_ns: int,
        failure: ServingError | None,
    ) -> None:
        """Counts a request that was answered."""
        if served is not None:
            served.statistics.add_request(elapsed_ns, failure is not None)
        for observer in self._observers:
            if isinstance(failure, Overloaded | DeadlineExceeded):
                observer.refused(request.model, failure)
            observer.request_finished(request, elapsed_ns, failure)

    def check_room(self, name: str, version: str = "") -> None:
        """Does nothing if a request could wait; called before its body is read.

        Raises:
            NotFound: There is no such model or version.
            Unavailable: It is not ready.
            Overloaded: Its queue is full.
        """
        try:
            self.repository.find(name, version).check_room()
        except Overloaded as error:
            for observer in self._observers:
                observer.refused(name, error)
            raise

    def holding(self, count: int) -> AbstractContextManager[None]:
        """Counts the bytes of a request while the context is open.

        Raises:
            Overloaded: Those of all requests would be too many.
        """
        return self._bytes.holding(count)

    # ------------------------------------------------------------ description

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and what is done beyond the protocol's core."""
        return {
            "name": "partita",
            "version": partita.__version__,
            "extensions": list(EXTENSIONS),
        }

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's inputs and outputs, in the protocol's form.

        Raises:
            NotFound: There is no such model or version.
            Unavailable: It is not ready.
        """
        served = self.repository.find(name, version)
        return served.metadata(self.repository.versions(name))

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """How a model is served, in the form of Triton's configurations.

        Raises:
            NotFound: There is no such model or version.
            Unavailable: It is not ready.
        """
        return self.repository.find(name, version).config()

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Counts and times of a model, or of all of them.

        Raises:
            NotFound: There is no such model or version.
            Unavailable: It is not ready.
        """
        found = self.repository
        several = [found.find(name, version)] if name else found.all_served()
        return {"model_stats": [one.statistics.to_dict(one.name, one.version) for one in several]}

    def explanation(self, name: str, version: str = "") -> dict[str, Any]:
        """Where every operation of a model runs, and why.

        Raises:
            NotFound: There is no such model or version.
            Unavailable: It is not ready.
        """
        return self.repository.find(name, version).loaded.compiled.explain().to_dict()

    # ------------------------------------------------------------- repository

    def repository_index(self, ready: bool = False) -> list[dict[str, Any]]:
        """All models with their states; with ``ready`` those that answer requests."""
        return self.repository.index(ready)

    async def load(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """Loads a model, or loads it anew; no request is lost by that.

        Raises:
            NotSupported: The server's settings do not let clients do this.
            ServingError: It cannot be loaded.
        """
        self._check_control()
        await self.repository.load(name, config)

    async def unload(self, name: str) -> None:
        """Takes a model out; its requests are answered first.

        Raises:
            NotSupported: The server's settings do not let clients do this.
            NotFound: There is no such model.
        """
        self._check_control()
        await self.repository.unload(name)

    def _check_control(self) -> None:
        if not self.settings.allow_control:
            raise NotSupported("This server does not let clients load and unload models.")
