"""Inputs for the zoo's models: drawn pictures, made sounds, real bytes and words, or a user's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from partita.errors import InputError, ZooError
from partita.zoo import drawing, media, sound
from partita.zoo.decoding import ctc_text, layout_boxes, stretches, text_boxes
from partita.zoo.sample import Answer, Array, Infer, Sample

Metadata = Mapping[str, str]
Files = Mapping[str, Path]


Given = str | None
"""A picture, recording, file or text of the user's; ``None`` for the natural input."""


def make_sample(name: str, metadata: Metadata, files: Files, given: Given = None) -> Sample:
    """An input of a zoo model.

    Args:
        name: The model's name in the zoo.
        metadata: The ONNX model's metadata, which holds the labels of some.
        files: Further files by role, as the manifest names them.
        given: What the user wants it to be; nobody knows the answer to it beforehand.

    Raises:
        ZooError: There is no such model.
        InputError: What is given cannot be read, or made an input of the model.
    """
    if name not in _MAKERS:
        raise ZooError(
            f"There is no natural input for '{name}'; there is for {', '.join(_MAKERS)}."
        )
    sample = _MAKERS[name](metadata, files, given)
    return sample if given is None else replace(sample, description=f"'{given}'", expected="")


def _simple(
    description: str, expected: str, feeds: Mapping[str, Array], judge: Callable[..., Answer]
) -> Sample:
    """A sample of one run, judged by the outputs in the model's order."""

    def answer(infer: Infer) -> Answer:
        return judge(*infer(feeds).values())

    return Sample(description, expected, feeds, answer)


# ------------------------------------------------------------------------------- pictures

TEXT = "One model, many devices"


def _recognition(metadata: Metadata, files: Files, given: Given) -> Sample:
    characters = [*metadata["character"].split("\n"), " "]

    def judge(probabilities: Array) -> Answer:
        text, score = ctc_text(probabilities[0], characters)
        return Answer(f"reads {text!r} (confidence {score:.2f})", text == TEXT)

    picture = drawing.draw_line(TEXT, 320, 48)
    if given is not None:
        picture = media.line(media.picture(given), 48, least=320, most=3200)
    return _simple(
        f"the words {TEXT!r} drawn as a picture of 320 x 48 pixels",
        repr(TEXT),
        {"x": drawing.to_array(picture, bgr=True)},
        judge,
    )


def _detection(metadata: Metadata, files: Files, given: Given) -> Sample:
    lines = len(drawing.PAGE_LINES) + 1  # and the title

    def judge(probabilities: Array) -> Answer:
        boxes = text_boxes(probabilities[0, 0])
        widest = max((box.right - box.left for box in boxes), default=0.0)
        return Answer(
            f"finds {len(boxes)} lines of text, the widest {widest:.0f} pixels", len(boxes) == lines
        )

    page = drawing.draw_page(figure=False).resize((640, 640))  # bars can be taken for letters
    if given is not None:
        page = media.in_steps(media.picture(given), most=960, step=32)
    array = drawing.to_array(page, drawing.IMAGENET_MEAN, drawing.IMAGENET_DEVIATION, bgr=True)
    return _simple(
        f"a drawn page with {lines} lines of text", f"{lines} lines", {"x": array}, judge
    )


def _direction(metadata: Metadata, files: Files, given: Given) -> Sample:
    def judge(probabilities: Array) -> Answer:
        turned = int(probabilities[0].argmax())
        return Answer(
            f"turned by {180 * turned} degrees (probability {probabilities[0, turned]:.3f})",
            turned == 1,
        )

    picture = drawing.draw_line("Partita 2026", 192, 48).rotate(180)
    if given is not None:
        picture = media.line(media.picture(given), 48, least=192, most=192)
    return _simple(
        "the words 'Partita 2026' upside down",
        "turned by 180 degrees",
        {"x": drawing.to_array(picture, bgr=True)},
        judge,
    )


def _orientation(metadata: Metadata, files: Files, given: Given) -> Sample:
    labels = metadata["character"].split("\n")

    def judge(probabilities: Array) -> Answer:
        best = int(probabilities[0].argmax())
        return Answer(
            f"turned by {labels[best]} degrees (probability {probabilities[0, best]:.2f})",
            labels[best] == "90",
        )

    page = drawing.draw_page().rotate(-90, expand=True)
    if given is not None:
        page = media.picture(given)
    scale = 256 / min(page.size)
    page = page.resize((round(page.width * scale), round(page.height * scale)))
    left, upper = (page.width - 224) // 2, (page.height - 224) // 2
    middle = page.crop((left, upper, left + 224, upper + 224))
    array = drawing.to_array(middle, drawing.IMAGENET_MEAN, drawing.IMAGENET_DEVIATION, bgr=True)
    return _simple("a drawn page turned clockwise by 90 degrees", "90 degrees", {"x": array}, judge)


def _layout(metadata: Metadata, files: Files, given: Given) -> Sample:
    labels = metadata["character"].split("\n")
    expected = {"title": 1, "text": 2, "figure": 1, "figure_caption": 1}

    def judge(*outputs: Array) -> Answer:
        heads = [output[0] for output in outputs]
        boxes = layout_boxes(heads[:4], heads[4:], labels, (800, 608))
        found = {label: sum(box.label == label for box in boxes) for label in labels}
        words = ", ".join(f"{count} {label}" for label, count in found.items() if count)
        right = {label: count for label, count in found.items() if count} == expected
        return Answer(f"finds {words or 'nothing'}", right)

    page = drawing.draw_page() if given is None else media.picture(given)
    page = page.resize((608, 800))
    array = drawing.to_array(page, drawing.IMAGENET_MEAN, drawing.IMAGENET_DEVIATION, bgr=True)
    return _simple(
        "a drawn page with a title, two paragraphs and a figure",
        ", ".join(f"{count} {label}" for label, count in expected.items()),
        {"image": array},
        judge,
    )


# ---------------------------------------------------------------------------------- sound

_VOICE_RATE = 16000
_VOICE_FROM, _VOICE_TO = 3.0, 5.0


def _voice(metadata: Metadata, files: Files, given: Given) -> Sample:
    second = _VOICE_RATE
    recording = np.concatenate(
        [
            np.zeros(second, np.float32),
            sound.tone(440, second, second, 0.3),
            sound.noise(second),
            sound.vowels(second, int((_VOICE_TO - _VOICE_FROM) * second)),
            np.zeros(second, np.float32),
        ]
    )
    if given is not None:
        recording = media.recording(given, _VOICE_RATE)
        recording = media.of_length(recording, max(512, len(recording)))
    rate = np.array(_VOICE_RATE, np.int64)
    padded = np.concatenate([np.zeros(64, np.float32), recording])
    pieces = [padded[i : i + 576][None] for i in range(0, len(recording) - 511, 512)]
    rest = np.zeros((2, 1, 128), np.float32)

    def answer(infer: Infer) -> Answer:
        state, active = rest, []
        for piece in pieces:
            outputs = infer({"input": piece, "state": state, "sr": rate})
            state = np.array(outputs["stateN"])
            active.append(bool(outputs["output"][0, 0] > 0.5))
        spoken = [s for s in stretches(active, 512 / _VOICE_RATE, 0.3) if s[1] - s[0] > 0.25]
        words = " and ".join(f"from {start:.1f} s to {end:.1f} s" for start, end in spoken)
        right = len(spoken) == 1 and all(
            abs(heard - made) < 0.4
            for heard, made in zip(spoken[0], (_VOICE_FROM, _VOICE_TO), strict=True)
        )
        return Answer(f"hears speech {words}" if words else "hears no speech", right)

    return Sample(
        "six seconds: silence, a tone, noise, then from 3.0 s to 5.0 s synthetic vowels, silence",
        f"speech from {_VOICE_FROM} s to {_VOICE_TO} s",
        {"input": pieces[len(pieces) // 2], "state": rest, "sr": rate},
        answer,
    )


def _pitch(metadata: Metadata, files: Files, given: Given) -> Sample:
    # Perfect silence beside the tone would make the logarithm of nothing: every engine's rounding
    # errors, and no two engines have the same, would become large.
    wave = sound.tone(220, 22050, 43844) + sound.noise(43844, 0.005)
    if given is not None:
        wave = media.of_length(media.recording(given, 22050), 43844)
    wave = wave[None, :, None]

    def answer(infer: Infer) -> Answer:
        notes = infer({"serving_default_input_2:0": wave})["StatefulPartitionedCall:1"]
        activity = notes[0].mean(axis=0)
        best = int(activity.argmax())
        return Answer(
            f"hears {sound.note_name(best)} (bin {best}, mean activity {activity[best]:.2f})",
            best == 36,
        )

    return Sample(
        "two seconds of a 220 Hz tone in a room that is not quite silent",
        "A3 (bin 36)",
        {"serving_default_input_2:0": wave},
        answer,
    )


# --------------------------------------------------------------------------- bytes, words


def file_bytes(content: bytes) -> Array:
    """The first and last 1024 bytes of a file as Magika wants them: stripped, padded with 256."""
    first = content[:4096].lstrip()[:1024]
    last = content[-4096:].rstrip()[-1024:]
    values = np.full(2048, 256, np.int32)
    values[: len(first)] = np.frombuffer(first, np.uint8)
    values[2048 - len(last) :] = np.frombuffer(last, np.uint8)
    return values[None]


def _file_type(metadata: Metadata, files: Files, given: Given) -> Sample:
    labels = json.loads(files["labels"].read_text("utf-8"))["target_labels_space"]

    def judge(probabilities: Array) -> Answer:
        best = int(probabilities[0].argmax())
        return Answer(
            f"{labels[best]} (probability {probabilities[0, best]:.2f})", labels[best] == "python"
        )

    source = Path(__file__).read_bytes() if given is None else media.content(given)
    return _simple(
        "the bytes of this Python file, partita/zoo/inputs.py",
        "python",
        {"bytes": file_bytes(source)},
        judge,
    )


SENTENCES = {
    "a man is playing a guitar": (1037, 2158, 2003, 2652, 1037, 2858),
    "someone plays music": (2619, 3248, 2189),
    "the stock market fell today": (1996, 4518, 3006, 3062, 2651),
}
"""Sentences with their WordPiece ids in BERT's uncased English vocabulary."""


def _sentences(metadata: Metadata, files: Files, given: Given) -> Sample:
    if given is not None:
        raise InputError(
            "The package of 'minilm-l3' has no vocabulary, so text cannot be tokenized; give "
            "tokens as --input input_ids=FILE.npy and --input attention_mask=FILE.npy."
        )
    ids = np.zeros((3, 8), np.int64)
    for row, words in enumerate(SENTENCES.values()):
        ids[row, : len(words) + 2] = (101, *words, 102)
    mask = (ids != 0).astype(np.int64)

    def judge(*outputs: Array) -> Answer:
        vectors = outputs[-1].astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
        first, second, third = SENTENCES
        return Answer(
            f"{first!r} is like {second!r} by {near:.2f}, like {third!r} by {far:.2f}",
            near > far + 0.2,
        )

    return _simple(
        "three English sentences, two of them about music",
        "the two about music are closer",
        {"input_ids": ids, "attention_mask": mask},
        judge,
    )


PHRASE = "بسم الله الرحمن الرحيم"
_LETTERS = "ءآأؤإئابةتثجحخدذرزسشصضطظعغـفقكلمنهوي .,،؛:؟!()-\"'\n"
_FATHA, _DAMMA, _KASRA, _SUKUN, _SHADDA = "\u064e", "\u064f", "\u0650", "\u0652", "\u0651"
_DOUBLED = ("\u064b", "\u064c", "\u064d")
_MARKS = (
    *("", _FATHA, _DAMMA, _KASRA, _SUKUN, _SHADDA, *_DOUBLED),
    *(_SHADDA + vowel for vowel in (_FATHA, _DAMMA, _KASRA, *_DOUBLED)),
)
"""The classes of the model, in order: vowels, their doubled forms, each with a doubled letter."""


def _diacritics(metadata: Metadata, files: Files, given: Given) -> Sample:
    phrase = PHRASE if given is None else media.text(given)
    strange = sorted(set(phrase) - set(_LETTERS))
    if strange or not phrase:
        found = ", ".join(map(repr, strange)) or "none"
        raise InputError(f"'tashkeel-int8' takes Arabic letters without marks; found {found}.")
    ids = np.array([[4 + _LETTERS.index(letter) for letter in phrase]], np.int64)

    def judge(logits: Array) -> Answer:
        marks = [_MARKS[best] for best in logits[0].argmax(axis=1)]
        text = "".join(letter + mark for letter, mark in zip(phrase, marks, strict=True))
        doubled = marks[phrase.find("الله") + 2 : phrase.find("الله") + 3]
        return Answer(f"writes {text}", doubled == [_SHADDA + _FATHA])

    return _simple(
        f"the phrase {PHRASE}",
        "vowel marks, a doubled l in the word for God among them",
        {"input_ids": ids},
        judge,
    )


CAPITAL = {"The": 504, " capital": 3575, " of": 282, " France": 4649, " is": 314}
"""The beginning of a sentence with SmolLM2's tokens."""

_PARIS = 7042
_LAYERS, _KEY_HEADS, _HEAD_SIZE, _CONTEXT = 30, 3, 64, 64


def _capital(metadata: Metadata, files: Files, given: Given) -> Sample:
    if given is not None:
        raise InputError(
            "A language model goes on with a text by 'partita generate zoo:smollm2 --prompt TEXT'."
        )
    ids = np.array([[*CAPITAL.values()]], np.int64)

    def judge(logits: Array, *caches: Array) -> Answer:
        best = int(logits[0, -1].argmax())
        said = "' Paris'" if best == _PARIS else f"token {best}"
        return Answer(f"goes on with {said}", best == _PARIS)

    feeds: dict[str, Array] = {
        "input_ids": ids,
        "seqlens_k": np.array([ids.size - 1], np.int32),
        "total_sequence_length": np.array(ids.size, np.int32),
    }
    cache = (1, _KEY_HEADS, _CONTEXT, _HEAD_SIZE)
    parts = [f"{layer}.{part}" for layer in range(_LAYERS) for part in ("key", "value")]
    return replace(
        _simple("'The capital of France is' as tokens", "goes on with ' Paris'", feeds, judge),
        state={f"past_key_values.{part}": cache for part in parts},
    )


_MAKERS: Mapping[str, Callable[[Metadata, Files, Given], Sample]] = {
    "ppocr-det": _detection,
    "ppocr-rec": _recognition,
    "ppocr-cls": _direction,
    "pplcnet-orientation": _orientation,
    "picodet-layout": _layout,
    "silero-vad": _voice,
    "silero-vad-ifless": _voice,
    "magika": _file_type,
    "minilm-l3": _sentences,
    "basic-pitch": _pitch,
    "tashkeel-int8": _diacritics,
    "smollm2": _capital,
}
