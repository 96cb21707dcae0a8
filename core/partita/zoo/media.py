"""Pictures, recordings and texts of users, as models of the zoo take them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from partita.errors import InputError
from partita.zoo.sample import Array

if TYPE_CHECKING:
    from PIL import Image

_GREY = (127, 127, 127)
"""About 0 for models that take -1 to 1."""


def picture(path: str | Path) -> Image.Image:
    """A picture of any size and mode, as RGB.

    Raises:
        InputError: It is no picture, or cannot be read.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except FileNotFoundError as error:
        raise InputError(f"Picture '{path}' does not exist.") from error
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise InputError(f"'{path}' is not a picture that Pillow can read: {error}") from error


def line(source: Image.Image, height: int, least: int, most: int) -> Image.Image:
    """A line of text scaled to a height, with grey behind it up to the least width.

    Args:
        source: The picture.
        height: Rows of the result.
        least: Least width; what is missing is grey.
        most: Largest width; a longer line is squeezed.
    """
    from PIL import Image

    width = min(most, max(1, math.ceil(source.width * height / source.height)))
    canvas = Image.new("RGB", (max(least, width), height), _GREY)
    canvas.paste(source.resize((width, height)), (0, 0))
    return canvas


def in_steps(source: Image.Image, most: int, step: int) -> Image.Image:
    """A picture with sides that are multiples of a step, made smaller if it is too large.

    Args:
        source: The picture.
        most: Longest side.
        step: What sides are multiples of.
    """
    scale = min(1.0, most / max(source.size))
    width, height = (max(step, round(side * scale / step) * step) for side in source.size)
    return source.resize((width, height))


def recording(path: str | Path, rate: int | None = None) -> Array:
    """A WAV file as float32 from -1 to 1, in one channel.

    Args:
        path: The file.
        rate: Samples a second of the result; by default those of the file.

    Raises:
        InputError: It is no such file.
    """
    import warnings

    from scipy.io import wavfile
    from scipy.signal import resample_poly

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks of other programs
            found, samples = wavfile.read(path)
    except FileNotFoundError as error:
        raise InputError(f"WAV file '{path}' does not exist.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is not a WAV file that can be read: {error}") from error
    if samples.size == 0:
        raise InputError(f"'{path}' holds no sound.")
    kind = samples.dtype
    wave = samples.astype(np.float64)
    if kind.kind == "u":
        wave = (wave - 128) / 128
    elif kind.kind == "i":
        wave /= -float(np.iinfo(kind).min)
    if wave.ndim > 1:
        wave = wave.mean(axis=1)
    if rate is None or rate == found:
        return np.asarray(wave, np.float32)
    common = math.gcd(rate, found)
    return np.asarray(resample_poly(wave, rate // common, found // common), np.float32)


def of_length(wave: Array, samples: int) -> Array:
    """The beginning of a recording, with silence behind it if it is too short."""
    return np.pad(wave[:samples], (0, max(0, samples - len(wave))))


def text(source: str) -> str:
    """A text: what a file holds, or the words themselves.

    Raises:
        InputError: The file is no text.
    """
    try:
        return Path(source).read_text("utf-8").strip() if Path(source).is_file() else source
    except (OSError, ValueError) as error:
        raise InputError(f"'{source}' is not a text file that can be read: {error}") from error


def content(path: str | Path) -> bytes:
    """The bytes of a file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error}") from error
