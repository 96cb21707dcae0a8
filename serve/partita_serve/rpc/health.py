"""The health service of gRPC (``grpc.health.v1.Health``), which probes and load balancers call."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from partita_serve.protocol.errors import NotFound, Unavailable
from partita_serve.rpc.messages import message_type
from partita_serve.rpc.service import SERVICE, abort
from partita_serve.server import ModelServer

HEALTH_SERVICE = "grpc.health.v1.Health"

_WATCH_SECONDS = 0.5
"""How often a watched server is looked at."""


class HealthService:
    """Says whether the server takes requests.

    Args:
        server: The server whose health it is, under ``""`` and the name of its service.
    """

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a gRPC server is given."""
        request = message_type("HealthCheckRequest").FromString
        response = message_type("HealthCheckResponse").SerializeToString
        return grpc.method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, request, response),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch, request, response),
            },
        )

    async def _check(self, message: Any, context: grpc.aio.ServicerContext) -> Any:
        status = self._status(message.service)
        if status == "SERVICE_UNKNOWN":
            await abort(context, NotFound(f"There is no service '{message.service}' here."))
        return message_type("HealthCheckResponse")(status=status)

    async def _watch(self, message: Any, context: grpc.aio.ServicerContext) -> None:
        """Writes the status whenever it is another one, until the client or the server goes."""
        written = ""
        while not self._server.closing:
            status = self._status(message.service)
            if status != written:
                await context.write(message_type("HealthCheckResponse")(status=status))
                written = status
            await asyncio.sleep(_WATCH_SECONDS)
        await abort(context, Unavailable("The server is about to stop."))

    def _status(self, service: str) -> str:
        if service not in ("", SERVICE):
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._server.is_ready() else "NOT_SERVING"
