"""Routes of OpenAI's API: ``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from partita.errors import TokenizerError
from partita_serve.models.text_model import Pieces, TextModel, TextModels
from partita_serve.protocol.errors import Cancelled, InvalidRequest, ServingError, serving_error
from partita_serve.protocol.observer import Observer
from partita_serve.protocol.records import InferenceRequest
from partita_serve.rest.body import Body
from partita_serve.rest.openai_answers import Answer, error_body, model_entry
from partita_serve.rest.openai_requests import (
    AnyRequest,
    ChatRequest,
    CompletionRequest,
    TextRequest,
    parsed,
)
from partita_serve.server import ModelServer

_log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


def chat_routes(
    server: ModelServer, texts: TextModels, observers: Sequence[Observer] = ()
) -> list[Route]:
    """The routes.

    Args:
        server: Counts and limits what requests hold.
        texts: The language models.
        observers: Notified of requests.
    """
    calls = _Calls(server, texts, observers)
    return [
        Route("/v1/models", _telling_errors(calls.models)),
        Route("/v1/models/{model:path}", _telling_errors(calls.model)),
        Route("/v1/chat/completions", _telling_errors(calls.chat), methods=["POST"]),
        Route("/v1/completions", _telling_errors(calls.completions), methods=["POST"]),
    ]


class _Calls:
    """What the routes do."""

    def __init__(
        self, server: ModelServer, texts: TextModels, observers: Sequence[Observer]
    ) -> None:
        self._server = server
        self._texts = texts
        self._observers = observers
        self._created = int(time.time())

    async def models(self, request: Request) -> Response:
        """All language models."""
        entries = [model_entry(name, self._created) for name in self._texts]
        return _json({"object": "list", "data": entries})

    async def model(self, request: Request) -> Response:
        """One of them."""
        return _json(model_entry(self._texts[request.path_params["model"]].name, self._created))

    async def chat(self, request: Request) -> Response:
        """The next message of a conversation."""
        body = await self._parsed(ChatRequest, request)
        model = self._texts[body.model]
        model.check_room(body.n)
        messages = [message.for_template() for message in body.messages]
        return await self._answer(request, body, model, [await model.chat_tokens_of(messages)])

    async def completions(self, request: Request) -> Response:
        """Texts that go on."""
        body = await self._parsed(CompletionRequest, request)
        model = self._texts[body.model]
        model.check_room(len(body.prompt) * body.n)
        prompts = [
            await model.tokens_of(prompt) if isinstance(prompt, str) else prompt
            for prompt in body.prompt
        ]
        return await self._answer(request, body, model, prompts)

    async def _parsed(self, kind: type[AnyRequest], request: Request) -> AnyRequest:
        with Body(self._server, request) as body:
            return parsed(kind, await body.read())

    async def _answer(
        self,
        request: Request,
        body: TextRequest,
        model: TextModel,
        prompts: Sequence[Sequence[int]],
    ) -> Response:
        several = [prompt for prompt in prompts for _ in range(body.n)]
        is_chat = isinstance(body, ChatRequest)
        pieces = model.generate(
            several,
            max_new_tokens=body.new_tokens,
            stop=body.stop_words,
            formatted=is_chat,
            **body.sampling,
        )
        answer = Answer(model.name, is_chat, len(several), sum(map(len, prompts)))
        if body.stream:
            events = self._events(answer, pieces, body.stream_options.include_usage)
            headers = {"cache-control": "no-cache"}
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        with self._observed(model.name):
            async with aclosing(pieces):
                async for piece in pieces:
                    if await request.is_disconnected():
                        raise Cancelled("The client has gone before its answer.")
                    answer.add(piece)
        return _json(answer.whole())

    async def _events(
        self, answer: Answer, pieces: Pieces, with_usage: bool
    ) -> AsyncIterator[bytes]:
        """An answer as server-sent events."""
        try:
            with self._observed(answer.model):
                async with aclosing(pieces):
                    for event in answer.begin():
                        yield _event(event)
                    async for piece in pieces:
                        answer.add(piece)
                        yield _event(answer.event(piece))
            if with_usage:
                yield _event(answer.last_event())
        except ServingError as error:
            yield _event(error_body(error))
        yield b"data: [DONE]\n\n"

    @contextmanager
    def _observed(self, model: str) -> Iterator[None]:
        """Reports a request to the observers while the context is open."""
        request = InferenceRequest(model, "", "", ())
        start, failure = time.perf_counter_ns(), None
        for observer in self._observers:
            observer.request_started(request)
        try:
            yield
        except ServingError as error:
            failure = error
            raise
        except (asyncio.CancelledError, GeneratorExit):
            failure = Cancelled("The client has gone before its answer.")
            raise
        finally:
            elapsed = time.perf_counter_ns() - start
            for observer in self._observers:
                observer.request_finished(request, elapsed, failure)


def _telling_errors(handler: Handler) -> Handler:
    """A handler whose errors have OpenAI's form."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:  # nobody is there to answer
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
            failure = _error_for_client(error)
            if failure.http_status == 500:
                _log.error("A request failed: %s", failure, exc_info=error)
            return _json(error_body(failure), failure.http_status)

    return handle


def _error_for_client(error: Exception) -> ServingError:
    """An error as clients see it; what a tokenizer does not take came from them."""
    if isinstance(error, TokenizerError):
        return InvalidRequest(str(error))
    return serving_error(error)


def _json(data: object, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")


def _event(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
