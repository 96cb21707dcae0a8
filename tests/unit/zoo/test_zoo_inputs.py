"""Natural inputs: as the manifest describes them, and judged rightly by hand-made outputs."""

import json
import re

import numpy as np
import pytest

from partita.errors import InputError, ZooError
from partita.zoo import inputs, media
from partita.zoo.drawing import PAGE_SIZE, draw_line, draw_page, to_array
from partita.zoo.inputs import SENTENCES, TEXT, make_sample
from partita.zoo.manifest import entries

CHARACTERS = "".join(sorted(set(TEXT) - {" "}))
METADATA = {
    "ppocr-rec": {"character": "\n".join(CHARACTERS)},
    "pplcnet-orientation": {"character": "0\n90\n180\n270"},
    "picodet-layout": {"character": "text\ntitle\nfigure\nfigure_caption"},
}


@pytest.fixture
def make(tmp_path):
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"target_labels_space": ["c", "python", "rust"]}))

    def make(name):
        return make_sample(name, METADATA.get(name, {}), {"labels": labels})

    return make


@pytest.mark.parametrize("name", entries())
def test_inputs_are_what_the_manifest_says(make, name):
    described = entries()["silero-vad" if name == "silero-vad-ifless" else name].input
    sample = make(name)
    assert sample.description
    assert sample.expected
    found = re.findall(r"([\w:,]+(?:, \w+)*) (float32|int32|int64)(?:\[([\d, ]*)\])?", described)
    types = {}
    for names, dtype, dims in found:
        shape = tuple(int(dim) for dim in dims.split(",") if dim)
        types |= dict.fromkeys(names.strip(", ").split(", "), (dtype, shape))
    assert {key: (str(x.dtype), x.shape) for key, x in sample.feeds.items()} == types
    fed = {key: shape for key, shape in sample.shapes.items() if key not in sample.state}
    assert fed == {key: x.shape for key, x in sample.feeds.items()}


def test_inputs_are_the_same_each_time(make):
    for name in entries():
        for key, array in make(name).feeds.items():
            np.testing.assert_array_equal(array, make(name).feeds[key])


def test_an_unknown_name_is_refused():
    with pytest.raises(ZooError, match=r"no natural input for 'x'; there is for ppocr-det"):
        make_sample("x", {}, {})


def test_recognition_is_right_if_the_text_is(make):
    sample = make("ppocr-rec")
    alphabet = [*CHARACTERS, " "]

    def reader(text):
        steps = np.zeros((1, 2 * len(text), len(alphabet) + 1), np.float32)
        for i, letter in enumerate(text):
            steps[0, 2 * i, 1 + alphabet.index(letter)] = 1
            steps[0, 2 * i + 1, 0] = 1
        return lambda feeds: {"out": steps}

    answer = sample.answer(reader(TEXT))
    assert answer.correct
    assert repr(TEXT) in answer.text
    assert not sample.answer(reader(TEXT[:-1])).correct


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("ppocr-cls", [0.1, 0.9], [0.9, 0.1]), ("pplcnet-orientation", [0, 1, 0, 0], [1, 0, 0, 0])],
)
def test_directions(make, name, right, wrong):
    sample = make(name)
    assert sample.answer(lambda feeds: {"p": np.array([right], np.float32)}).correct
    answer = sample.answer(lambda feeds: {"p": np.array([wrong], np.float32)})
    assert not answer.correct
    assert "turned by 0 degrees" in answer.text


def test_detection_counts_lines(make):
    sample = make("ppocr-det")

    def page(lines):
        probabilities = np.zeros((1, 1, 640, 640), np.float32)
        for line in range(lines):
            probabilities[0, 0, 20 + 40 * line : 30 + 40 * line, 40:600] = 1
        return lambda feeds: {"map": probabilities}

    assert sample.answer(page(8)).correct
    assert "finds 7 lines" in sample.answer(page(7)).text
    assert not sample.answer(page(0)).correct


def test_layout_counts_parts(make):
    sample = make("picodet-layout")
    scores = [np.zeros((1, n, 4), np.float32) for n in (7600, 1900, 475, 130)]
    boxes = [np.zeros((1, n, 32), np.float32) for n in (7600, 1900, 475, 130)]
    for cell, label in ((0, 1), (60, 0), (200, 2), (300, 3), (400, 0)):
        scores[2][0, cell, label] = 0.9
    outputs = dict(enumerate([*scores, *boxes]))
    answer = sample.answer(lambda feeds: outputs)
    assert answer.correct
    assert answer.text == "finds 2 text, 1 title, 1 figure, 1 figure_caption"
    assert sample.answer(lambda feeds: dict(enumerate(boxes + boxes))).text == "finds nothing"


def test_voice_carries_state_and_tells_when(make):
    sample = make("silero-vad")
    count = 0

    def infer(feeds):
        nonlocal count
        assert feeds["state"].max() == count
        count += 1
        time = count * 512 / 16000
        spoken = 3.1 < time < 4.9 and count % 8 != 0  # with short pauses
        return {
            "output": np.array([[0.9 if spoken else 0.1]], np.float32),
            "stateN": np.full((2, 1, 128), count, np.float32),
        }

    answer = sample.answer(infer)
    assert answer.correct
    assert re.fullmatch(r"hears speech from 3.1 s to 4.9 s", answer.text)

    def deaf(feeds):
        return {"output": np.zeros((1, 1)), "stateN": feeds["state"]}

    assert sample.answer(deaf).text == "hears no speech"
    assert not sample.answer(deaf).correct


def test_voice_windows_overlap_by_64_samples(make):
    pieces = []

    def infer(feeds):
        pieces.append(feeds["input"][0])
        return {"output": np.zeros((1, 1)), "stateN": feeds["state"]}

    make("silero-vad").answer(infer)
    np.testing.assert_array_equal(pieces[40][-64:], pieces[41][:64])
    assert pieces[40].any()


def test_pitch_is_the_bin_with_most_activity(make):
    sample = make("basic-pitch")
    notes = np.zeros((1, 172, 88), np.float32)
    notes[0, :, 36] = 0.5
    assert sample.answer(lambda feeds: {"StatefulPartitionedCall:1": notes}).correct
    notes[0, :, 48] = 0.6
    answer = sample.answer(lambda feeds: {"StatefulPartitionedCall:1": notes})
    assert not answer.correct
    assert answer.text.startswith("hears A4")


def test_file_type_reads_labels_from_the_file(make):
    sample = make("magika")
    answer = sample.answer(lambda feeds: {"p": np.array([[0, 0.99, 0.01]], np.float32)})
    assert answer.correct
    assert answer.text == "python (probability 0.99)"
    assert not sample.answer(lambda feeds: {"p": np.array([[1, 0, 0]], np.float32)}).correct


def test_sentences_compare_the_last_output(make):
    sample = make("minilm-l3")
    ids, mask = sample.feeds["input_ids"], sample.feeds["attention_mask"]
    assert [row[0] for row in ids.tolist()] == [101] * 3
    assert mask.sum(axis=1).tolist() == [len(words) + 2 for words in SENTENCES.values()]
    near = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    assert sample.answer(lambda feeds: {"ids": ids, "vectors": near}).correct
    assert not sample.answer(lambda feeds: {"vectors": near[::-1]}).correct


def test_diacritics_are_put_on_the_letters(make):
    sample = make("tashkeel-int8")
    logits = np.zeros((1, 22, 15), np.float32)
    plain = sample.answer(lambda feeds: {"logits": logits})
    assert plain.text == f"writes {inputs.PHRASE}"
    assert not plain.correct
    logits[0, inputs.PHRASE.index("الله") + 2, 9] = 1
    marked = sample.answer(lambda feeds: {"logits": logits})
    assert marked.correct
    assert "ل\u0651\u064e" in marked.text


def test_pictures_become_numbers():
    picture = draw_line("Hi", 64, 32)
    assert picture.size == (64, 32)
    assert min(picture.convert("L").tobytes()) < 50
    array = to_array(picture)
    assert (array.shape, array.dtype) == ((1, 3, 32, 64), np.float32)
    assert array.max() == 1
    assert array.flags.c_contiguous
    red = draw_line("", 8, 8)
    red.paste((255, 0, 0), (0, 0, 8, 8))
    assert to_array(red, bgr=True)[0, :, 0, 0].tolist() == [-1, -1, 1]


def test_the_page_has_a_figure_if_wanted():
    assert draw_page().size == PAGE_SIZE
    assert draw_page().getpixel((150, 260)) != (255, 255, 255)
    assert draw_page(figure=False).getpixel((150, 260)) == (255, 255, 255)


def test_the_capital_is_right_if_the_most_probable_token_is(make):
    sample = make("smollm2")
    logits = np.zeros((1, 1, 49152), np.float32)
    logits[0, 0, 7042] = 1
    assert sample.answer(lambda feeds: {"logits": logits}).text == "goes on with ' Paris'"
    assert sample.answer(lambda feeds: {"logits": logits}).correct
    assert not sample.answer(lambda feeds: {"logits": -logits}).correct


def test_what_a_request_keeps_has_shapes_and_is_not_fed(make):
    sample = make("smollm2")
    assert sample.shapes["past_key_values.29.value"] == (1, 3, 64, 64)
    assert len(sample.shapes) == len(sample.feeds) + 2 * 30


def test_a_picture_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"Picture '.*absent\.jpg' does not exist"):
        media.picture(tmp_path / "absent.jpg")
