"""Servers for tests, on a thread and at free ports."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import httpx

from partita_serve import lifecycle
from partita_serve.settings import ServerSettings


class Running:
    """A server that runs."""

    def __init__(self, settings):
        self.settings = settings
        self.address = self.grpc_address = ""
        self.server = None
        self.loop = None
        self.stop = None
        self.failure = None
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    @property
    def netloc(self):
        """Host and port."""
        return self.address.partition("://")[2]

    def _run(self):
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.failure = error
        finally:
            self.ready.set()

    async def _serve(self):
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        await lifecycle.serve(self.settings, self._is_ready, self.stop)

    def _is_ready(self, addresses, server):
        self.address, self.grpc_address = addresses.http, addresses.grpc
        self.server = server
        self.ready.set()

    def call(self, coroutine):
        """What a coroutine returns that runs on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def end(self):
        """Tells it to stop, and waits."""
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(60)
        assert not self.thread.is_alive()


@contextmanager
def running_server(**settings):
    """A server with such settings, at free ports and without a time to drain."""
    values = {"http_port": 0, "grpc_port": 0, "drain_seconds": 0, **settings}
    running = Running(ServerSettings.model_validate(values))
    running.thread.start()
    assert running.ready.wait(60)
    if running.failure is not None:
        raise running.failure
    try:
        yield running
    finally:
        running.end()
        assert running.failure is None


def client_of(running, **options):
    """A client of plain HTTP."""
    return httpx.Client(base_url=running.address, timeout=30, **options)
