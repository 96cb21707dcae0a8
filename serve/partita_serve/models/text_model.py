"""Language models that are served: prompts of many clients share the rows of one batch."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from partita import Core
from partita.generate import Generator, Message, Piece, model_source
from partita_serve.protocol.errors import InvalidRequest, NotFound, Overloaded, serving_error
from partita_serve.settings import ServerSettings

Pieces = AsyncGenerator[Piece, None]

LETTERS_OF_A_TOKEN = 256
"""More than the tokens of a text have on average, in any vocabulary."""


class TextModel:
    """A language model and the texts that it is at.

    Args:
        name: By which clients know it.
        generator: Generates; its batch says how many texts go on at once.
        rows: Sequences of its batch.
        most_waiting: Texts that may wait for a row; further ones are refused.

    Attributes:
        name: By which clients know it.
        generator: Generates.
    """

    def __init__(self, name: str, generator: Generator, rows: int, most_waiting: int) -> None:
        self.name = name
        self.generator = generator
        self._most = rows + most_waiting
        self._going = 0
        # Whichever text is first makes the next step for all, so a thread for each is enough.
        self._threads = ThreadPoolExecutor(rows, thread_name_prefix=f"partita-text-{name}")

    async def tokens_of(self, text: str) -> list[int]:
        """The tokens of a text.

        Raises:
            InvalidRequest: It is so long that it cannot fit into the context.
        """
        self._check_length(len(text))
        return await asyncio.to_thread(self.generator.tokenizer.encode, text)

    async def chat_tokens_of(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the answer begins.

        Raises:
            InvalidRequest: It is so long that it cannot fit into the context.
            TokenizerError: The model has no chat template, or it fails on these messages.
        """
        self._check_length(sum(len(message["content"]) for message in messages))
        return await asyncio.to_thread(self.generator.chat_prompt, messages)

    def _check_length(self, letters: int) -> None:
        """Refuses what would only be found too long once it is all tokens, which takes seconds."""
        most = LETTERS_OF_A_TOKEN * self.generator.context
        if letters > most:
            raise InvalidRequest(
                f"The request has {letters} letters; model '{self.name}' has a context of "
                f"{self.generator.context} tokens, for which {most} letters are read at most."
            )

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> Pieces:
        """Continues texts; raises what is wrong with them at once.

        Args:
            prompts: Their tokens.
            **options: Those of :meth:`partita.generate.Generator.generate_batch`.

        Returns:
            Tokens with their text as they come; closing it ends the generation.

        Raises:
            InvalidRequest: There are more prompts than ever fit.
            Overloaded: Too many texts wait.
            InputError: A prompt or an option is wrong.
        """
        count = len(prompts)
        self.check_room(count)
        pieces = self.generator.generate_batch(prompts, **options)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
        is_over = threading.Event()

        def put(item: Piece | Exception | None) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, item)

        # They count from now on, not from when the answer is sent: others come meanwhile.
        self._going += count
        work = loop.run_in_executor(self._threads, _iterate, pieces, put, is_over)
        work.add_done_callback(lambda _: self._end(count))
        answer = _arriving(arrived, is_over)
        # One that nobody ever begins to read, whose client has gone by then, is closed by no block.
        weakref.finalize(answer, is_over.set).atexit = False
        return answer

    def check_room(self, count: int) -> None:
        """Does nothing if so many texts may be generated; called before their prompts are read.

        Raises:
            InvalidRequest: There are more than ever fit.
            Overloaded: Too many texts wait.
        """
        if count > self._most:
            raise InvalidRequest(
                f"The request has {count} texts; model '{self.name}' takes {self._most} at most."
            )
        if self._going + count > self._most:
            raise Overloaded(
                f"Model '{self.name}' is at {self._going} texts, and takes {self._most} at most; "
                "try again later."
            )

    def _end(self, texts: int) -> None:
        self._going -= texts

    def explanation(self) -> dict[str, Any]:
        """Where every operation of the model runs, and why."""
        return self.generator.compiled_model.explain().to_dict()

    def close(self) -> None:
        """Lets the threads go, when their texts have ended."""
        self._threads.shutdown(wait=False)


class TextModels:
    """The language models of a server; none until they are loaded."""

    def __init__(self) -> None:
        self._models: dict[str, TextModel] = {}

    async def load(self, settings: ServerSettings, core: Core) -> None:
        """Loads the models that the settings name.

        Raises:
            PartitaError: One cannot be loaded.
        """
        for name in settings.language_models:
            self._models[name] = await asyncio.to_thread(_loaded, name, settings, core)

    def __getitem__(self, name: str) -> TextModel:
        """The model of a name.

        Raises:
            NotFound: There is none.
        """
        model = self._models.get(name)
        if model is None:
            known = ", ".join(map(repr, self._models)) or "none"
            raise NotFound(f"There is no language model '{name}' here; there are: {known}.")
        return model

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def close(self) -> None:
        """Lets the threads of all models go."""
        for model in self._models.values():
            model.close()


def _loaded(name: str, settings: ServerSettings, core: Core) -> TextModel:
    source = model_source.find(settings.language_models[name])
    tokenizer = source.tokenizer()  # what is missing for it is reported before the model is read
    generator = Generator(
        source,
        settings.defaults.device or None,
        settings.context,
        batch=settings.texts_at_once,
        tokenizer=tokenizer,
        properties=settings.defaults.properties,
        core=core,
    )
    return TextModel(name, generator, settings.texts_at_once, settings.max_texts_waiting)


async def _arriving(
    arrived: asyncio.Queue[Piece | Exception | None], is_over: threading.Event
) -> Pieces:
    """What a thread generates, on the event loop; closing it ends the thread."""
    try:
        while (item := await arrived.get()) is not None:
            if isinstance(item, Exception):
                raise serving_error(item) from item
            yield item
    finally:
        is_over.set()


def _iterate(
    pieces: Iterator[Piece],
    put: Callable[[Piece | Exception | None], None],
    is_over: threading.Event,
) -> None:
    """Generates on a thread, until the end or until nobody reads any more."""
    try:
        for piece in pieces:
            if is_over.is_set():
                break
            put(piece)
        put(None)
    except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
        put(error)
    finally:
        pieces.close()  # type: ignore[attr-defined]  # it is a generator, whose row is freed
