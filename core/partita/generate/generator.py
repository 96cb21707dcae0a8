"""The class that applications generate text with."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any, TypedDict, Unpack

import numpy as np

from partita.contract.device_plugin import DecoderRequest
from partita.core import Core
from partita.errors import (
    ContextLengthError,
    DeviceMemoryError,
    InfeasiblePlanError,
    InferError,
    InputError,
    PlanError,
    TokenizerError,
)
from partita.generate import model_source, weight_traffic
from partita.generate.caches.cache_types import require_known
from partita.generate.context_room import new_tokens, require_count, require_tokens, room_of
from partita.generate.continuous_batch import ContinuousBatch
from partita.generate.decoder import Decoder, prepare
from partita.generate.decoder_ports import DecoderPorts
from partita.generate.fair_lock import FairLock
from partita.generate.generation import Generation, Piece
from partita.generate.memory_needs import check_memory
from partita.generate.model_source import ModelSource
from partita.generate.request_size import with_request_size
from partita.generate.sampling import Sampler, Sampling
from partita.generate.statistics import Statistics
from partita.generate.text import packages
from partita.generate.text.chat_template import Message
from partita.generate.text.stop_words import StopWords
from partita.generate.text.tokenizer import Tokenizer
from partita.model.model import Model
from partita.model.prompt_chunk import chunk_tokens
from partita.runtime.compiled_model import CompiledModel

_log = logging.getLogger(__name__)

Prompt = str | Sequence[int]
"""A text, or its tokens."""


class SamplingOptions(TypedDict, total=False):
    """The fields of :class:`~partita.generate.Sampling`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int | None


class Generator:
    """Generates text with a language model on any device.

    The model is compiled once, for ``batch`` sequences of at most ``context`` tokens. Calls of
    :meth:`generate` may overlap, from one thread or several: their texts share the rows of the
    batch, and each begins as soon as one is free. A prompt that begins like a text before it is
    read from where they differ.

    Args:
        model: The path of a GGUF file, of an ONNX decoder with a cache as onnxruntime-genai or
            optimum write it, of an OpenVINO IR with state, or of a folder with one;
            ``"zoo:NAME"``; what ``model_source.find``
            found; a ``Model``; or a ``CompiledModel`` of fixed batch and context, which several
            generators may have.
        device: E.g. ``"CPU"`` or ``"HETERO:GPU,CPU"``; by default the device for applications that
            name none. Not with a compiled model.
        context: Tokens that a prompt and its answer have together at most; by default what the
            model was made for, but no more than 4096.
        batch: Sequences that are generated at once. Keys and values take memory for
            ``batch * context`` tokens.
        chunk: Tokens of a prompt that one run reads at most; by default 512, and for small models
            256 or 128, so that the values of a run add little to the memory of weights and cache.
        cache_type: Element type of keys and values: ``"float32"``, ``"float16"``, ``"bfloat16"``,
            or ``"int8"`` with a scale for each head and token; by default the model's.
        tokenizer: Text to tokens and back; by default the one beside the model. Without any,
            prompts are tokens, pieces have no text, and no token ends a text.
        properties: What to compile with. A device that splits models is told the context, if the
            application does not set it, and then places whole layers by memory and speed.
        core: The ``Core`` that reads and compiles; by default a new one.

    Attributes:
        compiled_model: The model on its device; ``explain()`` tells where its operations run.
        context: Tokens of prompt and answer together.
        chunk: Tokens of a prompt that one run reads at most.
        longest: Tokens of the longest text that the model was made for; ``None`` if nobody says.
        weight_bytes: Bytes of the weights that one run reads, as the file stores them; all experts
            of a mixture are counted.
        statistics: Tokens and seconds so far.

    Raises:
        ModelError: The model cannot be read, or is no decoder.
        DeviceError: The device does not exist.
        PropertyError: A property is unknown, or has a wrong value.
        UnsupportedOpError: The device does not take an operation of the model.
        ContextLengthError: The model was made for a shorter context.
        DeviceMemoryError: There is no room for weights, keys and values; says what would fit.
        InfeasiblePlanError: The same, over several devices.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ModelSource | Model | CompiledModel,
        device: str | None = None,
        context: int | None = None,
        *,
        batch: int = 1,
        chunk: int | None = None,
        cache_type: str | None = None,
        tokenizer: Tokenizer | None = None,
        properties: Mapping[str, Any] | None = None,
        core: Core | None = None,
    ) -> None:
        require_known(cache_type)
        for name, value in (("batch", batch), ("chunk", chunk), ("context", context)):
            require_count(name, value)
        self._tokenizer = tokenizer
        self._make_tokenizer = None
        stored: int | None = None
        self.longest: int | None = None
        if isinstance(model, CompiledModel):
            if device is not None or properties or cache_type:
                raise InputError(
                    "The model is compiled already; give no device, type of caches and properties."
                )
            self.compiled_model = model
        else:
            core = core or Core()
            if not isinstance(model, Model):
                source = model if isinstance(model, ModelSource) else model_source.find(model)
                self._make_tokenizer = source.tokenizer
                if tokenizer is None:
                    _warn_of_packages()
                self.longest = source.longest
                self._check_length(context)
                model = source.read(core, context)
                stored = source.weight_bytes
            ports = DecoderPorts.of(model)
            room = room_of(context, ports.capacity, self.longest)
            device = device or core.default_device
            weights = stored or model.weight_bytes
            check_memory(core, device, weights, ports.cache_bytes(batch, 1, cache_type), room)
            model = prepare(model, batch, room, core, device, cache_type)
            request = DecoderRequest(room, chunk=chunk)
            self.compiled_model = _compiled(core, model, device, properties or {}, request)
        self.weight_bytes: int = stored or weight_traffic.of_model(self.compiled_model.model)
        self.statistics = Statistics()
        self._decoder = _decoder(self.compiled_model)
        self.context: int = self._room(context)
        self.chunk: int = min(chunk or self._usual_chunk(), self.context)
        self._batch = ContinuousBatch(self._decoder, self.chunk, self.statistics)
        self._lock = FairLock()
        self._decoder.warm_up()
        with suppress(TokenizerError):  # it is made now, and what is wrong told to who needs it
            _ = self.tokenizer
        self._vocabulary_size = self._logits_size()

    @property
    def place_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return DecoderPorts.of(self.compiled_model.model).cache_bytes(1, 1)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back.

        Raises:
            TokenizerError: There is none, it is damaged, or its packages are missing.
        """
        if self._tokenizer is None:
            if self._make_tokenizer is None:
                raise TokenizerError(
                    "There is no tokenizer with this model; give Generator one, or prompts as "
                    "tokens."
                )
            self._tokenizer = self._make_tokenizer()
        return self._tokenizer

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        formatted: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[Piece]:
        """Continues a text.

        Args:
            prompt: The text, or its tokens.
            max_new_tokens: How many tokens to generate at most; by default until the model ends
                the text or the context is full.
            stop: Texts at which to end; they are left out.
            formatted: The prompt has all special tokens already, as the result of
                ``tokenizer.chat_prompt`` does, and what follows is an answer, not the same text: no
                space parts it from the prompt.
            **sampling: See :class:`~partita.generate.Sampling`; by default the most probable
                token always.

        Returns:
            Tokens with their text as they come. Closing the iterator ends the generation.

        Raises:
            InputError: A token or an option is out of range; at once.
            ContextLengthError: Prompt and answer are longer than the context; at once.
            InferError: A device failed; while iterating.
        """
        prompts = [prompt]
        return self.generate_batch(
            prompts, max_new_tokens=max_new_tokens, stop=stop, formatted=formatted, **sampling
        )

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int | None = None,
        stop: Sequence[str] = (),
        formatted: bool = False,
        **sampling: Unpack[SamplingOptions],
    ) -> Iterator[Piece]:
        """Continues several texts at once, as many together as ``batch`` says.

        Args:
            prompts: The texts, or their tokens.
            max_new_tokens: How many tokens to generate at most for each; as for :meth:`generate`.
            stop: Texts at which to end each; they are left out.
            formatted: As for :meth:`generate`, of all prompts.
            **sampling: As for :meth:`generate`. A seed gives each text other random numbers, the
                same whatever texts are beside it.

        Returns:
            Tokens of all texts as they come; ``Piece.sequence`` counts the prompts from 0.

        Raises:
            InputError: The prompts are one text, or a token or an option is out of range; at once.
            ContextLengthError: A prompt and its answer are longer than the context; at once.
            InferError: A device failed; while iterating.
        """
        chosen = Sampling(**sampling)
        if isinstance(prompts, str):
            raise InputError("The prompts are one text; give a list of them, or call generate.")
        generations = [
            self._generation(number, prompt, chosen, max_new_tokens, stop, formatted)
            for number, prompt in enumerate(prompts)
        ]
        return self._pieces(generations)

    def chat_prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, up to where the model's answer begins.

        Args:
            messages: ``{"role": "user", "content": "..."}`` each.

        Raises:
            TokenizerError: The model has no chat template, or it fails on these messages.
        """
        return self.tokenizer.encode(self.tokenizer.chat_prompt(messages), formatted=True)

    # -------------------------------------------------------------------- internals

    def _pieces(self, generations: Sequence[Generation]) -> Iterator[Piece]:
        """What is generated, step by step; whoever asks next makes the next step for all."""
        going = [*generations]
        place = self._lock.place()
        try:
            with place:
                self._check_process()
                for generation in generations:
                    self._batch.submit(generation)
            while going:
                with place:
                    self._check_process()
                    if not any(one.pieces or one.has_ended for one in going):
                        self._batch.step()
                for one in going:
                    while one.pieces:
                        yield one.pieces.popleft()
                going = [one for one in going if not one.has_ended]
            for generation in generations:
                if generation.failure is not None:
                    raise generation.failure
        finally:  # without the lock: the thread that collects garbage may have it
            place.leave()
            for generation in generations:
                generation.is_given_up = True

    def _check_process(self) -> None:
        """Refuses to go on with caches that another thread wrote to when the process was forked.

        Raises:
            InferError: That was so.
        """
        if self._lock.is_lost:
            raise InferError(
                "Another thread made a step with this generator when the process was forked, and "
                "its caches may be half written here; make another Generator in this process, or "
                "fork while none makes a step."
            )

    def _generation(
        self,
        number: int,
        prompt: Prompt,
        sampling: Sampling,
        max_new_tokens: int | None,
        stop: Sequence[str],
        formatted: bool,
    ) -> Generation:
        """Checks a prompt and what is asked of it.

        Args:
            number: Of the prompt among those of the call.
            prompt: A text, or tokens.
            sampling: How tokens are chosen.
            max_new_tokens: Most tokens of the answer; ``None`` for as many as there is room for.
            stop: Texts that end the answer.
            formatted: Whether a text has all special tokens already.

        Raises:
            InputError: There are stop words and no tokenizer.
            ContextLengthError: The prompt leaves no room for an answer.
        """
        stop = [stop] if isinstance(stop, str) else stop
        tokens = self._tokens_of(prompt, formatted)
        # Before millions of them are looked at.
        limit = new_tokens(len(tokens), max_new_tokens, self.context, self.longest)
        known = self._tokenizer_if_any()
        if stop and known is None:
            raise InputError("Stop words need a tokenizer; give Generator one.")
        return Generation(
            number,
            tokens,
            Sampler(sampling, self._checked(tokens), number),
            limit,
            known.end_tokens if known else frozenset(),
            StopWords(stop),
            known.stream(() if formatted else tokens) if known else None,
        )

    def _tokenizer_if_any(self) -> Tokenizer | None:
        """The tokenizer; who gives tokens can do without one."""
        if self._tokenizer is None and self._make_tokenizer is not None:
            try:
                return self.tokenizer
            except TokenizerError as error:
                _log.warning("Pieces have no text, and no token ends a text: %s", error)
                self._make_tokenizer = None
        return self._tokenizer

    def _tokens_of(self, prompt: Prompt, formatted: bool) -> list[int]:
        """The tokens of a prompt."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, formatted)
        tokens: object = prompt  # whatever applications hand in
        is_list = isinstance(tokens, Sequence)
        if isinstance(tokens, np.ndarray):
            is_list = tokens.ndim == 1
        if not is_list or isinstance(tokens, (bytes, bytearray)):
            raise InputError(
                f"The prompt is a {type(tokens).__name__}; give a text or a list of tokens."
            )
        return [*prompt]

    def _checked(self, tokens: Sequence[int]) -> int:
        """The size of the vocabulary, in which all tokens are."""
        size = self._vocabulary_size
        require_tokens(tokens)
        for place, token in enumerate(tokens):
            if not isinstance(token, Integral) or isinstance(token, bool):
                raise InputError(
                    f"Token {token!r} at place {place} of the prompt is a {type(token).__name__}; "
                    "tokens are whole numbers. Give a text as it is, without a list."
                )
            if not 0 <= token < size:
                raise InputError(
                    f"Token {token} at place {place} of the prompt is out of range; the model "
                    f"knows 0 to {size - 1}."
                )
        return size

    def _check_length(self, context: int | None) -> None:
        """Refuses a context that the model was not made for."""
        if context is not None and self.longest is not None and context > self.longest:
            raise ContextLengthError(
                f"The model was made for texts of up to {self.longest} tokens, and a context of "
                f"{context} is asked for; ask for at most {self.longest}."
            )

    def _room(self, context: int | None) -> int:
        """The context that the compiled model has room for."""
        capacity = self._decoder.capacity
        if capacity is not None and context is not None and context > capacity:
            raise ContextLengthError(
                f"The model has room for {capacity} tokens, and a context of {context} is asked "
                f"for; ask for at most {capacity}."
            )
        return room_of(context, capacity, self.longest)

    def _usual_chunk(self) -> int:
        """As many tokens as weights and cache leave memory for."""
        model = self.compiled_model.model
        room = self._decoder.capacity or self.context
        cache = DecoderPorts.of(model).cache_bytes(self._decoder.batch, room)
        return chunk_tokens(model, model.weight_bytes + cache)

    def _logits_size(self) -> int:
        shape = self.compiled_model.output("logits").shape or (None,)
        size = shape[-1]
        return size if isinstance(size, int) else self.tokenizer.vocabulary_size


def _warn_of_packages() -> None:
    """Says early what will be missing, to those who may still do with tokens alone."""
    lacking = packages.missing()
    if lacking:
        _log.warning(
            "Prompts must be tokens, since %s not installed: %s",
            " and ".join(f"'{name}'" for name in lacking) + (" are", " is")[len(lacking) == 1],
            packages.INSTALL,
        )


def _compiled(
    core: Core, model: Model, device: str, properties: Mapping[str, Any], request: DecoderRequest
) -> CompiledModel:
    """A model on its device; layers are placed by memory where that is possible."""
    sized = with_request_size(core, device, properties, request)
    try:
        return core.compile_model(model, device, sized)
    except InfeasiblePlanError:
        raise
    except PlanError as error:
        if sized == properties:
            raise
        compiled = core.compile_model(model, device, dict(properties))
        _log.warning("Layers are not placed by memory: %s", error)
        return compiled


def _decoder(compiled: CompiledModel) -> Decoder:
    """A decoder with its own cache."""
    try:
        return Decoder(compiled)
    except DeviceMemoryError as error:
        ports = DecoderPorts.of(compiled.model)
        batch, context = ports.batch or 1, ports.capacity or 0
        raise DeviceMemoryError(
            f"There is no room for the keys and values of {batch} sequences of {context} tokens, "
            f"{ports.cache_bytes(batch, context) / 1e6:.1f} MB: {error} Each token takes "
            f"{ports.cache_bytes(batch, 1) / 1e3:.1f} kB; ask for a smaller context."
        ) from error
