"""What a command runs: a model, its inputs, and the device that it was compiled for."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita import CompiledModel, Core, InferRequest, Model
from partita.cli.arguments import properties_of
from partita.cli.feeds import is_medium, make_feeds, reshape
from partita.cli.output import Output
from partita.errors import PropertyError
from partita.shapes.sample_shapes import parse
from partita.zoo.naming import resolve
from partita.zoo.sample import Sample
from partita.zoo.store import Store

Array = np.ndarray[Any, Any]

_SAMPLE_SHAPES = "_SAMPLE_SHAPES"
"""Suffix of properties that give devices the sizes of typical requests."""


@dataclass(frozen=True)
class Workload:
    """A model with inputs.

    Attributes:
        model: Read, with input shapes fixed where they are known.
        feeds: Input name to array.
        sample: The natural input that the feeds come from, or ``None``.
        read_ms: How long reading took.
    """

    model: Model
    feeds: Mapping[str, Array]
    sample: Sample | None
    read_ms: float


def load(args: argparse.Namespace, core: Core, out: Output) -> Workload:
    """Finds and reads the model and makes its inputs, as the command line says.

    A model of the zoo and a built-in one get their natural input, unless inputs, shapes or random
    numbers are asked for; and a picture, recording, file or text is made what they take.
    """
    named = resolve(args.model, Store(notify=out.note))
    start = time.perf_counter()
    model = core.read_model(named.source)
    read_ms = milliseconds(start)
    if named.sample is not None and not (args.input or args.shapes or args.random):
        sample = named.sample()
        out.note(f"input: {sample.description} (--random for random numbers)")
        return Workload(model.reshape(sample.shapes), sample.feeds, sample, read_ms)
    if named.sample_of is not None and len(args.input) == 1 and is_medium(model, args.input[0]):
        sample = named.sample_of(args.input[0])
        return Workload(model.reshape(sample.shapes), sample.feeds, sample, read_ms)
    model = reshape(model, args.shapes)
    feeds = make_feeds(model, args.input, args.seed, args.normalize, _sample_shapes(args))
    for note in feeds.notes:
        out.note(note)
    if feeds.guessed:
        out.sizes_made_up(feeds.guessed)
    return Workload(model, feeds.arrays, None, read_ms)


def _sample_shapes(args: argparse.Namespace) -> Mapping[str, tuple[int, ...]]:
    """The first of the shapes that devices are told to measure at: what is run is like that.

    Raises:
        PropertyError: They cannot be read.
    """
    for name, value in properties_of(args).items():
        if name.endswith(_SAMPLE_SHAPES):
            try:
                return next(iter(parse(value)), {})
            except ValueError as error:
                raise PropertyError(f"{name}: {error}") from error
    return {}


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The arguments that :func:`load` reads, besides MODEL and ``--shape``."""
    from partita.cli.feeds import NORMALIZATIONS

    parser.add_argument(
        "-i",
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a .npy, .npz, picture, .wav or text for an input, or a number that fills it "
        "(repeatable); a folder in ONNX's layout, with input_0.pb, input_1.pb, ...; for a model of "
        "the zoo what it is made for: a picture or recording of any size, a file, a text",
    )
    parser.add_argument(
        "--normalize",
        choices=NORMALIZATIONS,
        default="unit",
        help="how pictures become numbers: raw 0..255, unit 0..1 (default), half -1..1, imagenet",
    )
    parser.add_argument(
        "--random", action="store_true", help="random inputs even where natural ones are known"
    )
    parser.add_argument("--seed", type=int, default=0, help="of random inputs (default: 0)")


def compile_for(
    core: Core, model: Model, device: str, properties: Mapping[str, Any], out: Output
) -> tuple[CompiledModel, float]:
    """Compiles a model, and shows meanwhile that it goes on.

    Args:
        core: Compiles it.
        model: The model.
        device: A device string.
        properties: Properties to compile with.
        out: Shows that it goes on.

    Returns:
        The compiled model, and the time that it took in milliseconds.
    """
    start = time.perf_counter()
    with out.progress(f"compiling for {device}", None):
        compiled = core.compile_model(model, device, properties)
    return compiled, milliseconds(start)


def infer(request: InferRequest, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a request once; outputs by name."""
    return request.infer(dict(feeds)).to_dict()


def milliseconds(start: float) -> float:
    """Time since ``time.perf_counter()`` gave ``start``."""
    return (time.perf_counter() - start) * 1e3
