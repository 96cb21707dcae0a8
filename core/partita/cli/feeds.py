"""Inputs for a model: from files, pictures and numbers, or random where nothing is given."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from partita import Model, Port
from partita.bisection.repro import read_data
from partita.errors import InputError
from partita.model.inference.guessed_shapes import guessed
from partita.model.model import Dim
from partita.model.synthetic_inputs import concrete_shape, synthetic_inputs, tensor_dtype
from partita.tensors.element_type import Type, integral_limits
from partita.zoo import media

Array = np.ndarray[Any, Any]

NORMALIZATIONS: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "raw": ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
    "unit": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""How a picture becomes numbers, ``(v / 255 - mean) / deviation``: 0 to 255, 0 to 1, -1 to 1, or
with ImageNet's mean and deviation."""

_MOST_LISTED = 3
"""Most inputs that are listed one by one."""


def reshape(model: Model, shapes: Sequence[tuple[str | None, tuple[int, ...]]]) -> Model:
    """Fixes input shapes as given on the command line, and sizes of others by their symbols.

    Raises:
        InputError: A shape without a name, for a model of several inputs.
        ModelError: No such input, or a shape that it cannot have.
    """
    if not shapes:
        return model
    named: dict[str, tuple[Dim, ...]] = {}
    for name, dims in shapes:
        if name is None and len(model.inputs) != 1:
            raise InputError(
                f"Model '{model.name}' has {len(model.inputs)} inputs; write --shape NAME=..., "
                f"with one of {_names(model)}."
            )
        named[model.input(name if name is not None else 0).name] = dims
    known_sizes: dict[Dim, Dim] = {
        symbol: size
        for name, dims in named.items()
        for symbol, size in zip(model.input(name).shape or (), dims, strict=False)
        if isinstance(symbol, str)
    }
    for port in model.inputs:
        own = port.shape or ()
        if port.name not in named and not known_sizes.keys().isdisjoint(own):
            named[port.name] = tuple(
                -1 if dim is None else known_sizes.get(dim, dim) for dim in own
            )
    return model.reshape(named)


def is_medium(model: Model, text: str) -> bool:
    """Whether a text is for the model as a whole: no array or number, and for no input by name.

    Args:
        model: The model.
        text: What was given as ``--input``.
    """
    by_name = any(text.startswith(f"{port.name}=") for port in model.inputs)
    path = Path(text)
    is_array = path.is_dir() or path.suffix.lower() in (".npy", ".npz")
    return not (by_name or is_array or re.fullmatch(r"-?[\d.]+(e-?\d+)?", text))


@dataclass(frozen=True)
class Feeds:
    """Arrays for the inputs of a model, and what was assumed for them.

    Attributes:
        arrays: Input name to array.
        guessed: Input name to shape, of the inputs whose free sizes were not given.
        notes: The assumptions, for people.
    """

    arrays: dict[str, Array]
    guessed: Mapping[str, tuple[int, ...]]
    notes: list[str]


def make_feeds(
    model: Model,
    given: Sequence[str],
    seed: int,
    normalize: str = "unit",
    samples: Mapping[str, tuple[int, ...]] | None = None,
) -> Feeds:
    """Makes an array for every input.

    What files hold has its own sizes. Other inputs take theirs from the model, from sample shapes,
    by symbols from the inputs that are given, and what is left is guessed.

    Args:
        model: The model; its shapes are fixed already where the user fixed them.
        given: ``NAME=FILE``, ``NAME=NUMBER``, ``FILE``, or a folder of ``input_0.pb``, ...
        seed: Of the random inputs.
        normalize: For pictures, a key of :data:`NORMALIZATIONS`.
        samples: Shapes of typical requests, by input name.

    Raises:
        InputError: A file cannot be used for its input.
        ModelError: A sample shape does not fit its input, or there is no such input.
    """
    read: dict[str, Any] = {}
    for text in given:
        for name, found in _read(model, text, normalize).items():
            if name in read:
                raise InputError(f"Input '{name}' is given twice.")
            read[name] = found
    arrays = {name: found for name, found in read.items() if not isinstance(found, float)}
    made = [port for port in model.inputs if port.name not in arrays]
    free = [port for port in made if not port.is_static]
    shapes: Mapping[str, tuple[int, ...]] = {}
    fixed = dict(samples or {})
    sized = model
    if free:
        held = {
            name: array.shape for name, array in arrays.items() if isinstance(array, np.ndarray)
        }
        sized, shapes = guessed(model, fixed | held)
    arrays |= {
        name: _filled(sized.input(name), found)
        for name, found in read.items()
        if isinstance(found, float)
    }
    missing = [sized.input(port.name) for port in made if port.name not in read]
    guesses = {
        port.name: shapes[port.name]
        for port in free
        if port.name in shapes and port.name not in fixed
    }
    notes = guess_notes(model, guesses)
    if missing:
        arrays |= synthetic_inputs(sized, np.random.default_rng(seed), missing)
        names = ", ".join(f"'{port.name}'" for port in missing)
        notes.append(f"random input (seed {seed}) for {names}")
    return Feeds({port.name: arrays[port.name] for port in model.inputs}, guesses, notes)


def _names(model: Model) -> str:
    return ", ".join(f"'{port.name}'" for port in model.inputs)


def _split(model: Model, text: str) -> tuple[Port | None, str]:
    """The input that a text names (longest name first, since names may hold '='), and the rest."""
    for port in sorted(model.inputs, key=lambda port: -len(port.name)):
        if text.startswith(f"{port.name}="):
            return port, text[len(port.name) + 1 :]
    if "=" in text and not Path(text).exists():
        name = text.partition("=")[0]
        raise InputError(
            f"Model '{model.name}' has no input '{name}'; it has {_names(model)}."
            f"{model.constant_hint(name)}"
        )
    return None, text


def _read(model: Model, text: str, normalize: str) -> dict[str, Any]:
    """What a text gives inputs: an array, or a number for an input of whatever size."""
    port, source = _split(model, text)
    if not source and (port is None or port.dtype is None or port.dtype.kind != "O"):
        raise InputError(f"--input '{text}' names no file and no number; write NAME=FILE.")
    path = Path(source)
    if path.is_dir():
        if port is not None:
            raise InputError(f"'{path}' is a folder with all inputs; write it without a name.")
        return read_data(path, model)
    if path.suffix.lower() == ".npz":
        return _from_npz(model, port, path)
    if port is None:
        if len(model.inputs) != 1:
            raise InputError(
                f"Model '{model.name}' has {len(model.inputs)} inputs; write --input NAME={text} "
                f"with one of {_names(model)}."
            )
        port = model.inputs[0]
    if port.dtype is not None and port.dtype.kind == "O":
        return {port.name: np.full(concrete_shape(port), media.text(source), object)}
    if not path.exists():
        return {port.name: _number(port, source)}
    if path.suffix.lower() == ".npy":
        return {port.name: _load(path)}
    if path.suffix.lower() == ".wav":
        return {port.name: _from_recording(port, path)}
    return {port.name: _from_picture(port, path, normalize)}


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            if not file.read(8).startswith((b"\x93NUMPY", b"PK")):
                raise ValueError("it does not begin like one")
        return np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"'{path}' does not exist (looked in '{Path.cwd()}').") from error
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"'{path}' is not a numpy file that can be read: {error}") from error


def _from_npz(model: Model, port: Port | None, path: Path) -> dict[str, Array]:
    archive = _load(path)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InputError(f"'{path}' is no .npz archive.")
    with archive:
        held = list(archive.files)
        if port is not None:
            if port.name not in held and len(held) != 1:
                raise InputError(f"'{path}' holds no '{port.name}'; it holds {', '.join(held)}.")
            return {port.name: archive[port.name if port.name in held else held[0]]}
        found = {p.name: archive[p.name] for p in model.inputs if p.name in held}
    if not found:
        raise InputError(
            f"'{path}' holds no input of model '{model.name}'; it holds {', '.join(held)}, and "
            f"the inputs are {_names(model)}."
        )
    return found


def _number(port: Port, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(
            f"Input '{port.name}': '{text}' is neither a file (looked in '{Path.cwd()}') nor a "
            "number."
        ) from error


def _filled(port: Port, value: float) -> Array:
    """A number fills the whole input.

    Raises:
        InputError: It is not finite, has a part behind the point or is too large, and the input
            takes whole numbers or truth values.
    """
    dtype = tensor_dtype(port)
    kind = Type(dtype)
    if kind.integral:
        lowest, highest = integral_limits(kind)
        if not (value == np.floor(value) and lowest <= value <= highest):
            raise InputError(
                f"Input '{port.name}' takes {port.describe()}, and {value:g} is no {dtype}."
            )
    return np.full(concrete_shape(port), value, dtype)


def _from_recording(port: Port, path: Path) -> Array:
    """The samples in the input's last dimension that is not 1; the rate is left as it is."""
    shape = port.shape or ()
    long = [axis for axis, dim in enumerate(shape) if dim != 1]
    if len(long) != 1:
        raise InputError(f"Input '{port.name}' takes {port.describe()}, which is not a recording.")
    wave = media.recording(path)
    size = shape[long[0]]
    samples = media.of_length(wave, size) if isinstance(size, int) else wave
    dims = [1] * len(shape)
    dims[long[0]] = len(samples)
    kind = tensor_dtype(port)
    return samples.reshape(dims).astype(kind if Type(kind).real else samples.dtype)


def _from_picture(port: Port, path: Path, normalize: str) -> Array:
    from PIL import Image, UnidentifiedImageError

    try:
        picture = Image.open(path)
        picture.load()
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise InputError(
            f"'{path}' is neither .npy, .npz nor a picture that Pillow can read: {error}"
        ) from error
    shape = port.shape
    if shape is None or len(shape) not in (3, 4):
        raise InputError(f"Input '{port.name}' takes {port.describe()}, which is not a picture.")
    dims = shape[-3:]
    first = dims[0] in (1, 3) or dims[2] not in (1, 3)
    channels = dims[0] if first else dims[2]
    if channels not in (1, 3) and isinstance(channels, int):
        raise InputError(
            f"Input '{port.name}' takes {port.describe()}; a picture needs 1 or 3 channels."
        )
    rows, columns = (dims[1], dims[2]) if first else (dims[0], dims[1])
    width = columns if isinstance(columns, int) else picture.width
    height = rows if isinstance(rows, int) else picture.height
    resized = picture.convert("L" if channels == 1 else "RGB").resize((width, height))
    pixels = np.asarray(resized, np.float32).reshape(height, width, -1)
    dtype = tensor_dtype(port)
    if Type(dtype).integral:
        dtype = np.dtype(np.uint8)  # the input takes those that fit its own type
    else:
        mean, deviation = (np.asarray(v[: pixels.shape[2]]) for v in NORMALIZATIONS[normalize])
        pixels = (pixels / 255 - mean) / deviation
    array = pixels.transpose(2, 0, 1) if first else pixels
    if len(shape) == 4:
        array = array[None]
    return np.ascontiguousarray(array, dtype)


def guess_notes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Notes on inputs whose free sizes are assumed; on a few of them if they are many.

    Args:
        model: The model.
        shapes: Input name to the shape that it is given.
    """
    notes = [
        f"input '{name}' is {model.input(name).describe()}; its free sizes are assumed: "
        f"{'x'.join(map(str, shape))} (set them with --shape {name}=...)"
        for name, shape in itertools.islice(shapes.items(), _MOST_LISTED)
    ]
    if len(shapes) > _MOST_LISTED:
        notes.append(f"so are those of {len(shapes) - _MOST_LISTED} more inputs")
    return notes
