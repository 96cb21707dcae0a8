"""Small models made on the spot, whose answers can be checked: no download, no training.

``digits`` reads a number from a noisy picture by normalized cross-correlation with ten templates
(Lewis, Fast normalized cross-correlation, 1995), written as convolutions. ``pitch`` names the key
of a piano that sounds, by a Fourier transform at the keys' frequencies, written as a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from partita.errors import ZooError
from partita.suggestions import guess
from partita.zoo import media, sound
from partita.zoo.drawing import font
from partita.zoo.sample import Answer, Array, Infer, Sample

if TYPE_CHECKING:
    import onnx

OPSET = 18

# ---------------------------------------------------------------------------------- digits

NUMBER = "27182818"
_HEIGHT, _WIDTH = 40, 200
_GLYPH_HEIGHT, _GLYPH_WIDTH = 28, 18
_PITCH = 22
_NEAR = _PITCH - 3  # odd: of so many neighbouring columns only the best is a digit


def _glyph(digit: str) -> Array:
    """A digit in white on black, values 0 to 1."""
    from PIL import Image, ImageDraw

    picture = Image.new("L", (_GLYPH_WIDTH, _GLYPH_HEIGHT))
    middle = (_GLYPH_WIDTH // 2, _GLYPH_HEIGHT // 2)
    ImageDraw.Draw(picture).text(middle, digit, 255, font(28), anchor="mm")
    return np.asarray(picture, np.float32) / 255


def _digits_model() -> onnx.ModelProto:
    from onnx import TensorProto, helper, numpy_helper

    templates = np.stack([_glyph(str(digit)) for digit in range(10)])[:, None]
    templates -= templates.mean(axis=(2, 3), keepdims=True)
    templates /= np.sqrt((templates**2).sum(axis=(2, 3), keepdims=True))
    window = np.ones((1, 1, _GLYPH_HEIGHT, _GLYPH_WIDTH), np.float32)
    constants: dict[str, Array] = {
        "templates": templates,
        "window": window,
        "one_by_area": np.array(1 / window.size, np.float32),
        "least_variance": np.array(4.0, np.float32),
        "sure": np.array(0.7, np.float32),
        "margins": np.array([0, 0, 0, _NEAR // 2] * 2, np.int64),
        "digit_axis": np.array([1], np.int64),
        "row_axis": np.array([2], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["image", "templates"], ["matches"], name="correlate"),
        node("Conv", ["image", "window"], ["sums"], name="local_sum"),
        node("Mul", ["image", "image"], ["squares"], name="square"),
        node("Conv", ["squares", "window"], ["square_sums"], name="local_square_sum"),
        node("Mul", ["sums", "sums"], ["sums_squared"], name="square_of_sum"),
        node("Mul", ["sums_squared", "one_by_area"], ["mean_part"], name="mean_part"),
        node("Sub", ["square_sums", "mean_part"], ["variance"], name="variance"),
        node("Max", ["variance", "least_variance"], ["safe_variance"], name="avoid_zero"),
        node("Sqrt", ["safe_variance"], ["deviation"], name="deviation"),
        node("Div", ["matches", "deviation"], ["normalized"], name="normalize"),
        node("Relu", ["normalized"], ["positive"], name="keep_positive"),
        node("ReduceMax", ["positive", "row_axis"], ["by_column"], name="best_row", keepdims=1),
        node("ReduceMax", ["by_column", "digit_axis"], ["score"], name="best_score", keepdims=1),
        node("ArgMax", ["by_column"], ["digit"], name="best_digit", axis=1, keepdims=1),
        node("Pad", ["score", "margins"], ["padded"], name="pad"),
        node("MaxPool", ["padded"], ["highest"], name="neighbourhood", kernel_shape=[1, _NEAR]),
        node("Equal", ["score", "highest"], ["is_highest"], name="is_highest"),
        node("Greater", ["score", "sure"], ["is_sure"], name="is_sure"),
        node("And", ["is_highest", "is_sure"], ["peak"], name="peaks"),
    ]
    columns = _WIDTH - _GLYPH_WIDTH + 1
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, _HEIGHT, _WIDTH])],
        [
            helper.make_tensor_value_info("digit", TensorProto.INT64, [1, 1, 1, columns]),
            helper.make_tensor_value_info("score", TensorProto.FLOAT, [1, 1, 1, columns]),
            helper.make_tensor_value_info("peak", TensorProto.BOOL, [1, 1, 1, columns]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return _model(graph)


def _digits_sample(given: str | None = None) -> Sample:
    image = _drawn_number() if given is None else _light_on_dark(given)

    def answer(infer: Infer) -> Answer:
        outputs = infer({"image": image})
        peaks = np.flatnonzero(outputs["peak"][0, 0, 0])
        text = "".join(str(digit) for digit in outputs["digit"][0, 0, 0, peaks])
        least = float(outputs["score"][0, 0, 0, peaks].min()) if len(peaks) else 0.0
        return Answer(f"reads {text or 'nothing'} (least correlation {least:.2f})", text == NUMBER)

    return Sample(
        f"the number {NUMBER} drawn as a noisy picture of {_WIDTH} x {_HEIGHT} pixels",
        NUMBER,
        {"image": image},
        answer,
    )


def _light_on_dark(path: str) -> Array:
    """A picture of any size, in grey; dark digits on light become light ones on dark."""
    grey = media.picture(path).convert("L").resize((_WIDTH, _HEIGHT))
    image = np.asarray(grey, np.float32)[None, None] / 255
    return 1 - image if float(np.median(image)) > 0.5 else image


def _drawn_number() -> Array:
    image = np.zeros((1, 1, _HEIGHT, _WIDTH), np.float32)
    for place, digit in enumerate(NUMBER):
        left, top = 12 + _PITCH * place, 4 + place % 5
        image[0, 0, top : top + _GLYPH_HEIGHT, left : left + _GLYPH_WIDTH] += _glyph(digit)
    noise = np.random.default_rng(0).normal(0, 0.15, image.shape)
    return image + noise.astype(np.float32)


# ----------------------------------------------------------------------------------- pitch

_RATE = 8000
_WINDOW, _STEP = 2048, 512
_LOWEST, _KEYS = 24, 49
"""Keys from A2 to A6, counted from the lowest key of a piano."""


def _frequency(key: int) -> float:
    return float(27.5 * 2 ** (key / 12))


def _pitch_model() -> onnx.ModelProto:
    from onnx import TensorProto, helper, numpy_helper

    time = np.arange(_WINDOW) / _RATE
    frequencies = np.array([_frequency(_LOWEST + key) for key in range(_KEYS)])
    phases = 2 * math.pi * frequencies[:, None] * time
    window = np.hanning(_WINDOW) * 4 / _WINDOW
    waves = np.concatenate([np.cos(phases), np.sin(phases)]) * window
    constants: dict[str, Array] = {
        "waves": waves[:, None].astype(np.float32),
        "time_axis": np.array([2], np.int64),
        "zero": np.array([0], np.int64),
        "middle": np.array([_KEYS], np.int64),
        "end": np.array([2 * _KEYS], np.int64),
        "channel": np.array([1], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["sound", "waves"], ["amplitudes"], name="fourier", strides=[_STEP]),
        node("Mul", ["amplitudes", "amplitudes"], ["squares"], name="square"),
        node("Slice", ["squares", "zero", "middle", "channel"], ["real"], name="cosine_part"),
        node("Slice", ["squares", "middle", "end", "channel"], ["imaginary"], name="sine_part"),
        node("Add", ["real", "imaginary"], ["power"], name="power"),
        node("ReduceMean", ["power", "time_axis"], ["mean"], name="mean_over_time", keepdims=0),
        node("Sqrt", ["mean"], ["strength"], name="strength"),
        node("ArgMax", ["strength"], ["key"], name="strongest", axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "pitch",
        [helper.make_tensor_value_info("sound", TensorProto.FLOAT, [1, 1, _RATE])],
        [
            helper.make_tensor_value_info("key", TensorProto.INT64, [1]),
            helper.make_tensor_value_info("strength", TensorProto.FLOAT, [1, _KEYS]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return _model(graph)


def _pitch_sample(given: str | None = None) -> Sample:
    key = 43
    wave = sound.tone(_frequency(key), _RATE, _RATE) + sound.noise(_RATE, 0.2)
    if given is not None:
        wave = media.of_length(media.recording(given, _RATE), _RATE)
    expected = sound.note_name(key)

    def answer(infer: Infer) -> Answer:
        outputs = infer({"sound": wave[None, None]})
        heard = int(outputs["key"][0])
        strength = float(outputs["strength"][0, heard])
        name = sound.note_name(_LOWEST + heard)
        return Answer(f"hears {name} (amplitude {strength:.2f})", name == expected)

    return Sample(
        f"one second of a {_frequency(key):.1f} Hz tone in noise",
        f"{expected} (amplitude 0.50)",
        {"sound": wave[None, None]},
        answer,
    )


# ------------------------------------------------------------------------------------------

MODELS: Mapping[str, tuple[str, Callable[[], onnx.ModelProto], Callable[..., Sample]]] = {
    "digits": ("reads a number from a noisy picture", _digits_model, _digits_sample),
    "pitch": ("names the note that sounds", _pitch_model, _pitch_sample),
}


def names() -> list[str]:
    """The names of the built-in models."""
    return list(MODELS)


def task(name: str) -> str:
    """What a built-in model does."""
    return _find(name)[0]


def model(name: str) -> onnx.ModelProto:
    """Builds a model.

    Raises:
        ZooError: There is none of that name.
    """
    return _find(name)[1]()


def sample(name: str, given: str | None = None) -> Sample:
    """The natural input of a built-in model, or one made of a picture or recording.

    Raises:
        ZooError: There is none of that name.
        InputError: What is given cannot be read.
    """
    make = _find(name)[2]
    if given is None:
        return make()
    return replace(make(given), description=f"'{given}'", expected="")


def _find(
    name: str,
) -> tuple[str, Callable[[], onnx.ModelProto], Callable[..., Sample]]:
    if name not in MODELS:
        raise ZooError(
            f"There is no built-in model '{name}'.{guess(name, MODELS)} "
            f"There are {', '.join(MODELS)}."
        )
    return MODELS[name]


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    from onnx import helper

    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8, producer_name="partita"
    )
