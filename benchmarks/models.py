"""The models of the benchmarks: eleven of the zoo, nine light topologies, four more of wheels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import partita
from partita import zoo
from partita.errors import InputError
from partita.zoo import naming
from partita.zoo.manifest import parse

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A model with an input.

    Attributes:
        name: As the command line takes it.
        path: The file.
        feeds: Input name to array.
        sample: The zoo's natural input and expected answer, or ``None``.
    """

    name: str
    path: Path
    feeds: dict[str, Array]
    sample: zoo.Sample | None


def cases(only: Sequence[str] = ()) -> Iterator[Case]:
    """All models, or those of the given names; fetches zoo models that are not cached.

    A file's name may end with the sizes of its first input: ``detector.onnx@1x3x640x640``.
    """
    # onnxruntime, with which all are compared, reads ONNX alone.
    onnx_names = [n for n, entry in zoo.entries().items() if entry.model.path.endswith(".onnx")]
    names = [f"zoo:{n}" for n in onnx_names] + [f"light:{n}" for n in naming.light_names()]
    for name in only or names:
        place, _, sizes = name.partition("@")
        named = naming.resolve(place)
        path = Path(str(named.source))
        if named.sample is None:
            first = tuple(int(size) for size in sizes.split("x")) if sizes else None
            yield Case(name, path, _picture(path, first), None)
        else:
            sample = named.sample()
            yield Case(name, path, dict(sample.feeds), sample)


def wheel_cases(only: Sequence[str] = ()) -> Iterator[Case]:
    """Four more trained models of the wheels that the zoo uses, with seeded noise as input."""
    manifest = parse(Path(__file__).with_name("wheel_models.toml").read_text("utf-8"))
    store = zoo.Store(manifest=manifest)
    for name in manifest:
        if not only or f"wheel:{name}" in only:
            path = store.ensure([name])[name].model
            yield Case(f"wheel:{name}", path, _noise(path), None)


_SYMBOLS = {"batch": 1, "sequence": 64, "seq": 64, "sequence_length": 5}


def _noise(path: Path) -> dict[str, Array]:
    """Seeded numbers for every input: small floats, indices below 20, 16000 for a sampling rate."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for port in partita.Core().read_model(path).inputs:
        rate = port.name == "sr"
        samples = port.dtype == np.float32 and port.name == "input"  # Silero's frame at 16 kHz
        sizes = {**_SYMBOLS, "sequence": 576} if samples else _SYMBOLS
        shape = [sizes[n] if isinstance(n, str) else n for n in port.shape or ()]
        if port.dtype == np.float32:
            feeds[port.name] = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
        else:
            feeds[port.name] = np.array(16000) if rate else rng.integers(1, 20, shape)
    return feeds


def _picture(path: Path, first: tuple[int, ...] | None = None) -> dict[str, Array]:
    """Seeded noise for every input: normal numbers, token numbers below 1,000, and whole masks.

    Args:
        path: The model.
        first: Shape of its first input; ``None``: what the model says.

    Raises:
        InputError: An input has an open size beside its first one.
    """
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for port in partita.Core().read_model(path).inputs:
        shape = first if first and not feeds else _with_one_row(path, port)
        if port.dtype == np.float32:
            feeds[port.name] = rng.standard_normal(shape, dtype=np.float32)
        elif "mask" in port.name:
            feeds[port.name] = np.ones(shape, port.dtype)
        else:
            feeds[port.name] = rng.integers(1, 1000, shape).astype(port.dtype)
    return feeds


def _with_one_row(path: Path, port: partita.Port) -> tuple[int, ...]:
    """An input's shape; a first size that is open is a batch of one, as in the zoo's samples."""
    if port.shape is not None:
        first = [dim if isinstance(dim, int) else 1 for dim in port.shape[:1]]
        rest = [dim for dim in port.shape[1:] if isinstance(dim, int)]
        if len(first + rest) == len(port.shape):
            return (*first, *rest)
    raise InputError(
        f"Input '{port.name}' of '{path}' is {port.describe()}, and what is timed depends on its "
        "sizes; say those of the first input as in MODEL.onnx@1x3x640x640, name a model of the zoo "
        "as zoo:NAME, which has an input, or fix the sizes."
    )


def session(path: Path, optimized: bool = False, threads: int = 0) -> Any:
    """An onnxruntime session; without graph optimizations unless it is to be timed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
