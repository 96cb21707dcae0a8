"""``partita generate``: continues a text, or holds a conversation, with a language model."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from partita import Core
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    device_of,
    positive_int,
    properties_of,
)
from partita.cli.output import Output, megabytes
from partita.contract.device_plugin import DecoderRequest
from partita.contract.explanation import QUIET
from partita.errors import InputError, PartitaError, in_words
from partita.generate import model_source
from partita.generate.caches.cache_types import CACHE_TYPES
from partita.generate.context_room import new_tokens, require_tokens, room_of
from partita.generate.decoder_ports import DecoderPorts
from partita.generate.generation import Piece
from partita.generate.generator import Generator, SamplingOptions
from partita.generate.memory_bandwidth import MemoryBandwidth, measure
from partita.generate.model_source import ModelSource
from partita.generate.request_size import with_request_size
from partita.generate.sampling import Sampling
from partita.generate.text import packages
from partita.generate.text.stop_words import StopWords
from partita.generate.text.tokenizer import Tokenizer
from partita.model.model import Model
from partita.zoo.store import Store


@dataclass
class Answer:
    """What was generated behind one prompt.

    Attributes:
        prompt: What was asked, as the user wrote it.
        text: The text so far.
        tokens: Its tokens.
        finish: Why it ended; ``"interrupted"`` until it does, ``"error"`` if it could not.
        error: What kept it from ending.
    """

    prompt: str
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: str = "interrupted"
    error: str | None = None


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "generate",
        run,
        "continues a text with a language model, or talks with one, and says how fast",
        [
            "partita generate zoo:smollm2 -d CPU --prompt 'The capital of France is'",
            "partita generate model.gguf -d HETERO:GPU,CPU --chat --prompt 'Why is the sky blue?'",
            "partita generate folder/ -d CPU --chat              # a conversation, a line a turn",
            "partita generate model.gguf --temperature 0.7 --top-p 0.9 --seed 1 < prompt.txt",
        ],
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a GGUF file; an ONNX decoder as onnxruntime-genai or optimum write it, or its "
        "folder, with tokenizer.json; such a folder with openvino_model.xml; or zoo:NAME",
    )
    add_device(parser)
    add_device_options(parser)
    parser.add_argument(
        "--prompt", metavar="TEXT", help="what to continue (default: all that stdin has)"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="format what is asked by the model's chat template; without --prompt, every line of "
        "stdin is a turn of a conversation",
    )
    parser.add_argument(
        "--system", metavar="TEXT", help="what the model is told before a conversation"
    )
    _add_choices(parser)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """How long the text may be, and how its tokens are chosen."""
    parser.add_argument(
        "--max-new-tokens",
        type=positive_int,
        metavar="N",
        help="tokens to generate at most (default: until the model ends or the context is full)",
    )
    parser.add_argument(
        "--context",
        type=positive_int,
        metavar="N",
        help="tokens of prompt and answer together, which the cache has room for (default: the "
        "model's, at most 4096)",
    )
    parser.add_argument(
        "--chunk",
        type=positive_int,
        metavar="N",
        help="tokens of a prompt that one run reads at most (default: 512; for small models 256 or "
        "128, so that a run's values add little to the memory of weights and cache)",
    )
    parser.add_argument(
        "--cache-type",
        choices=CACHE_TYPES,
        help="of keys and values; int8 has a scale for each head and token (default: the model's)",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before it (repeatable)"
    )
    for option, kind, default, text in (
        ("--temperature", float, 0.0, "0 takes the most probable token (default); 1 draws"),
        ("--top-k", int, 0, "draw from so many most probable tokens only (default: all)"),
        ("--top-p", float, 1.0, "draw from the fewest tokens with this probability together"),
        ("--min-p", float, 0.0, "draw from tokens with this share of the largest probability"),
        ("--repetition-penalty", float, 1.0, "above 1, tokens that occurred become less probable"),
        ("--seed", int, None, "of the random numbers (default: another one each time)"),
    ):
        parser.add_argument(option, type=kind, default=default, metavar="X", help=text)


def run(args: argparse.Namespace, out: Output) -> int:
    """Generates and prints."""
    if args.system is not None and not args.chat:
        raise InputError("--system is for conversations; add --chat.")
    core = Core()
    device = device_of(args, core)
    choices = _choices(args)
    packages.require("tokenizers", "a tokenizer")  # before a model is fetched
    source = model_source.find(args.model, Store(notify=out.note))
    tokenizer = source.tokenizer()  # what is missing for it is told before the model is read
    answers: list[Answer] = []
    prompts = _prompts(args, tokenizer, answers)
    if args.chat and args.prompt is None:
        first = []
        _ = tokenizer.chat_template, _input()
    else:
        first = [next(prompts)]
        source = _with_room(source, first[0][1], args.max_new_tokens)
    length = len(first[0][1]) if first else None
    request = DecoderRequest(prompt=length, new=args.max_new_tokens)
    properties = with_request_size(core, device, properties_of(args), request)
    with out.progress(f"compiling for {device}", None):
        generator = Generator(
            source,
            device,
            args.context,
            chunk=args.chunk,
            cache_type=args.cache_type,
            tokenizer=tokenizer,
            properties=properties,
            core=core,
        )
    try:
        for asked, prompt in itertools.chain(first, prompts):
            answers.append(Answer(asked))
            try:
                pieces = generator.generate(prompt, formatted=args.chat, **choices)
                _answer(pieces, answers[-1], out, args.json)
            except PartitaError as error:
                answers[-1].finish, answers[-1].error = "error", in_words(error)
                raise
    finally:  # one who interrupts it wants to know what came so far, too
        summary = _summary(core, generator)
        if args.json:
            out.json({"model": args.model, "device": device, "answers": answers, **summary})
        else:
            for line in _lines(summary):
                out.note(line)
    return 0


def _choices(args: argparse.Namespace) -> dict[str, Any]:
    """How tokens are chosen and texts end; raises what is wrong before a model is read."""
    sampling = {name: getattr(args, name) for name in SamplingOptions.__annotations__}
    Sampling(**sampling)
    StopWords(args.stop)
    return {"max_new_tokens": args.max_new_tokens, "stop": args.stop, **sampling}


def _with_room(source: ModelSource, prompt: Sequence[int], new: int | None) -> ModelSource:
    """The model, refused once it is read if a prompt has no room: before it is compiled.

    Raises:
        InputError: The prompt has no tokens.
    """
    require_tokens(prompt)

    def read(core: Core, context: int | None) -> Model:
        model = source.read(core, context)
        room = room_of(context, DecoderPorts.of(model).capacity, source.longest)
        new_tokens(len(prompt), new, room, source.longest)
        return model

    return replace(source, read=read)


def _prompts(
    args: argparse.Namespace, tokenizer: Tokenizer, answers: list[Answer]
) -> Iterator[tuple[str, list[int]]]:
    """What is asked, and the tokens of the prompt that it makes."""
    if not args.chat:
        text = _input().read() if args.prompt is None else args.prompt
        yield text, tokenizer.encode(text)
        return
    messages = [{"role": "system", "content": args.system}] if args.system is not None else []
    turns = [args.prompt] if args.prompt is not None else _typed()
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        yield turn, tokenizer.encode(tokenizer.chat_prompt(messages), formatted=True)
        messages.append({"role": "assistant", "content": answers[-1].text})


def _input() -> TextIO:
    """Standard input, which programs that start others may have closed."""
    if sys.stdin is None:
        raise InputError("Standard input is closed, and there is no prompt; give --prompt.")
    return sys.stdin


def _typed() -> Iterator[str]:
    """Lines of stdin, asked for by a sign where a person types them."""
    lines = _input()
    while True:
        if lines.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = lines.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _answer(pieces: Iterator[Piece], answer: Answer, out: Output, as_json: bool) -> None:
    """Generates one answer, shown as it comes."""
    try:
        for piece in pieces:
            answer.text += piece.text
            answer.tokens.append(piece.token)
            answer.finish = piece.finish or answer.finish
            if not as_json:
                out.piece(piece.text)
    finally:
        if not as_json:
            out.piece("\n")


def _summary(core: Core, generator: Generator) -> dict[str, Any]:
    """How fast it was, and what ran where."""
    done = generator.statistics
    decoded = done.decode_bytes(generator.weight_bytes, generator.place_bytes)
    devices = generator.compiled_model.execution_devices
    on_processors = all(core.device_info(device).kind == "cpu" for device in devices)
    bandwidth = measure() if done.decode_runs and on_processors else None
    rate = decoded / done.decode_seconds if done.decode_runs else None
    return {
        "prefill": {
            "tokens": done.prefill_tokens,
            "seconds": done.prefill_seconds,
            "runs": done.prefill_runs,
            "tokens_per_second": done.prefill_rate,
            "first_run_seconds": done.first_run_seconds,
        },
        "decode": {
            "tokens": done.decode_tokens,
            "seconds": done.decode_seconds,
            "tokens_per_second": done.decode_rate,
            "bytes": decoded,
            "bytes_per_second": rate,
        },
        "memory_bandwidth": bandwidth,
        "predicted": _predicted(generator),
        "placement": generator.compiled_model.explain().summary(),
    }


def _predicted(generator: Generator) -> dict[str, float] | None:
    """Tokens a second by the plan, for runs and texts as long as those that there were."""
    decision = generator.compiled_model.explain().decision
    if decision is None or decision.rates is None:
        return None
    done = generator.statistics
    tokens = done.decode_places / max(1, done.decode_runs)
    rates = decision.rates
    run = done.prefill_tokens / done.prefill_runs if done.prefill_runs else rates.chunk
    return {
        "prefill": rates.prefill_in_runs_of(run),
        "prefill_run": run,
        "decode": rates.decode_behind(tokens),
        "busy": rates.busy,
    }


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """The summary for people."""
    phases = []
    for phase, what in (("prefill", "prompt"), ("decode", "generated")):
        facts = summary[phase]
        if facts["tokens"]:
            phases.append(
                f"{what}: {facts['tokens']} tokens, {facts['tokens_per_second']:.1f} tokens/s"
            )
    if phases:
        first = summary["prefill"]["first_run_seconds"]
        yield f"{'; '.join(phases)} ({first:.2f} s of it in first runs, which prepare programs)"
    decode = summary["decode"]
    if decode["tokens"]:
        each, rate = round(decode["bytes"] / decode["tokens"]), decode["bytes_per_second"]
        text = f"decode read {megabytes(each)} per token, {rate / 1e9:.2f} GB/s"
        bandwidth: MemoryBandwidth | None = summary["memory_bandwidth"]
        if bandwidth is not None:
            text += (
                f": {rate / bandwidth.bytes_per_second:.0%} of the "
                f"{bandwidth.bytes_per_second / 1e9:.1f} GB/s at which {bandwidth.threads} "
                "threads read this machine's memory (measured just now, by reading 256 MB)"
            )
        yield text
    predicted = summary["predicted"]
    if predicted is None:
        yield summary["placement"]
        return
    of_prompts = f"of prompts in runs of {predicted['prefill_run']:.3g} tokens"
    rates = []
    for phase, what in (("prefill", of_prompts), ("decode", "generated")):
        measured = summary[phase]["tokens_per_second"]
        suffix = "" if measured is None else f", {measured:.1f} measured"
        rates.append(f"{predicted[phase]:.1f} {what} predicted{suffix}")
    if predicted["busy"] > QUIET:
        rates.append(
            f"devices were measured while other processes used {predicted['busy']:.0%} of the "
            "processors"
        )
    yield f"{summary['placement']}; tokens/s: {'; '.join(rates)}"
