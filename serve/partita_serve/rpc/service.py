"""The service of the protocol: each call is answered by the :class:`ModelServer`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf import json_format

from partita_serve.protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotSupported,
    ServingError,
    Unavailable,
    serving_error,
)
from partita_serve.protocol.records import InferenceRequest, InferenceResponse
from partita_serve.rpc.messages import message_type, read_message
from partita_serve.rpc.tensors import request_of, response_bytes, stream_response_bytes
from partita_serve.server import ModelServer
from partita_serve.telemetry.tracing import continuing

_log = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"

ON_THE_WAY_SECONDS = 0.2
"""How long streams are read on when the server stops: requests may be on their way."""

STREAM_WINDOW = 64
"""Requests of one stream that are under way at once; the client waits with further ones."""

_NOT_DONE = {
    **dict.fromkeys(
        [
            f"{kind}SharedMemory{call}"
            for kind in ("System", "Cuda")
            for call in ("Status", "Register", "Unregister")
        ],
        "Tensors in shared memory are not taken; send them with the request.",
    ),
    "TraceSetting": "Traces are set where the server is started, not by clients.",
    "LogSettings": "Logging is set where the server is started, not by clients.",
}
"""Calls of Triton's clients that this server does not answer, and why."""


class InferenceService:
    """The calls of ``inference.GRPCInferenceService``.

    Args:
        server: What answers them.

    Attributes:
        given_up: Calls that were not answered in the time that they had when the server stopped.
    """

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.given_up = 0

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a gRPC server is given."""
        calls: dict[str, Callable[[Any], Awaitable[Mapping[str, Any]]]] = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        handlers = {name: _described(name, answer) for name, answer in calls.items()}
        handlers |= {name: refusal(NotSupported(why)) for name, why in _NOT_DONE.items()}
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._model_infer, None, None)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._model_stream_infer, None, None
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    # ----------------------------------------------------------------- inference

    async def _model_infer(self, data: bytes, context: grpc.aio.ServicerContext) -> Any:
        try:
            request = request_of(read_message("ModelInferRequest", data))
            request = _within(context.time_remaining(), request)
            with continuing(_headers(context)), self._server.holding(len(data)):
                return response_bytes(await self._server.infer(request))
        except asyncio.CancelledError:
            self.given_up += self._server.closing
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
            return await abort(context, error)

    async def _model_stream_infer(
        self, stream: AsyncIterable[bytes], context: grpc.aio.ServicerContext
    ) -> None:
        """Computes requests side by side, and answers in their order.

        A client may keep a stream open for as long as it lives: when the server stops, the stream
        ends once it has the answers of what was sent.
        """
        answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        room = asyncio.Semaphore(STREAM_WINDOW)

        async def read() -> None:
            while True:
                await room.acquire()
                try:
                    data = await anext(requests)
                except StopAsyncIteration:
                    return
                answers.put_nowait(tasks.create_task(self._streamed(data)))

        requests = aiter(stream)
        try:
            with continuing(_headers(context)):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_write_in_order(answers, room, context))
                    reading = tasks.create_task(read())
                    is_over = await self._end_of(reading, tasks)
                    answers.put_nowait(None)
        except asyncio.CancelledError:
            self.given_up += self._server.closing
            raise
        if not is_over:
            await abort(context, Unavailable("The server is about to stop."))

    async def _end_of(self, reading: asyncio.Task[None], tasks: asyncio.TaskGroup) -> bool:
        """Waits until a stream is read, or no more of it will be; whether it is at its end."""
        closing = tasks.create_task(self._server.wait_until_closing())
        await asyncio.wait({reading, closing}, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        await asyncio.wait({reading}, timeout=ON_THE_WAY_SECONDS)
        is_over = reading.done()
        reading.cancel()
        return is_over

    async def _streamed(self, data: bytes) -> bytes:
        """The answer to one request of a stream, which an error does not end."""
        failed = message_type("ModelStreamInferResponse")()
        try:
            message = read_message("ModelInferRequest", data)
            failed.infer_response.model_name = message.model_name
            failed.infer_response.id = message.id
            request = request_of(message)
            with self._server.holding(len(data)):
                response = await self._server.infer(request)
            return stream_response_bytes(_marked_final(request, response))
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
            failed.error_message = str(_error_for_client(error))
        return _to_bytes(failed)

    # ----------------------------------------------------------------- all the rest

    async def _server_live(self, message: Any) -> Mapping[str, Any]:
        return {"live": self._server.is_live()}

    async def _server_ready(self, message: Any) -> Mapping[str, Any]:
        return {"ready": self._server.is_ready()}

    async def _model_ready(self, message: Any) -> Mapping[str, Any]:
        return {"ready": self._server.is_model_ready(message.name, message.version)}

    async def _server_metadata(self, message: Any) -> Mapping[str, Any]:
        return self._server.server_metadata()

    async def _model_metadata(self, message: Any) -> Mapping[str, Any]:
        return self._server.model_metadata(message.name, message.version)

    async def _model_config(self, message: Any) -> Mapping[str, Any]:
        return {"config": self._server.model_config(message.name, message.version)}

    async def _statistics(self, message: Any) -> Mapping[str, Any]:
        return self._server.statistics(message.name, message.version)

    async def _repository_index(self, message: Any) -> Mapping[str, Any]:
        return {"models": self._server.repository_index(message.ready)}

    async def _load(self, message: Any) -> Mapping[str, Any]:
        config = None
        for name, value in message.parameters.items():
            if name != "config":
                raise NotSupported(
                    f"Parameter {name!r} of a model to load is not taken; its files lie in the "
                    "server's repository, and 'config' is all that a client can give."
                )
            config = _json_object(value.string_param)
        await self._server.load(message.model_name, config)
        return {}

    async def _unload(self, message: Any) -> Mapping[str, Any]:
        await self._server.unload(message.model_name)
        return {}


async def abort(context: grpc.aio.ServicerContext, error: Exception) -> Any:
    """Ends a call with the code and the text of an error."""
    answer = _error_for_client(error)
    await context.abort(grpc.StatusCode[answer.grpc_code], str(answer))


def _error_for_client(error: Exception) -> ServingError:
    """An error as clients see it; the log has the rest."""
    failure = serving_error(error)
    if failure.http_status == 500:
        _log.error("A call failed: %s", failure, exc_info=error)
    return failure


def _described(
    name: str, answer: Callable[[Any], Awaitable[Mapping[str, Any]]]
) -> grpc.RpcMethodHandler:
    """A call whose answer is plain data."""
    response = message_type(f"{name}Response")

    async def handle(data: bytes, context: grpc.aio.ServicerContext) -> Any:
        try:
            answered = await answer(read_message(f"{name}Request", data))
            return json_format.ParseDict(answered, response(), ignore_unknown_fields=True)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
            return await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(handle, None, _to_bytes)


def refusal(error: ServingError) -> grpc.RpcMethodHandler:
    """The handler of a call that is refused, whatever it is."""

    async def handle(message: bytes, context: grpc.aio.ServicerContext) -> Any:
        await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(handle)


async def _write_in_order(
    answers: asyncio.Queue[asyncio.Task[bytes] | None],
    room: asyncio.Semaphore,
    context: grpc.aio.ServicerContext,
) -> None:
    while (task := await answers.get()) is not None:
        await context.write(await task)
        room.release()


def _headers(context: grpc.aio.ServicerContext) -> dict[str, str]:
    return dict(context.invocation_metadata() or ())


def _within(left_s: float | None, request: InferenceRequest) -> InferenceRequest:
    """A request that may wait no longer than its call has time.

    Raises:
        DeadlineExceeded: That is over.
    """
    if left_s is None:
        return request
    left_us = int(left_s * 1e6)
    if left_us <= 0:
        raise DeadlineExceeded("The call's deadline was over when the server read it.")
    return replace(request, left_us=left_us)


def _marked_final(request: InferenceRequest, response: InferenceResponse) -> InferenceResponse:
    """The response, marked as the only one of its request where the client asks for marks."""
    if not request.parameters.get("triton_enable_empty_final_response"):
        return response
    parameters = {**response.parameters, "triton_final_response": True}
    return replace(response, parameters=parameters)


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"Parameter 'config' is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"Parameter 'config' is {value!r}; it is a JSON object.")
    return value


def _to_bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
