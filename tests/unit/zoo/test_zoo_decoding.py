"""Decoders against cases made by hand."""

import numpy as np
import pytest

from partita.zoo.decoding import (
    Box,
    ctc_text,
    layout_boxes,
    stretches,
    text_boxes,
    top,
    without_doubles,
)
from partita.zoo.inputs import file_bytes
from partita.zoo.sound import note_name, tone


def one_hot(classes, count, sure=0.9):
    rows = np.full((len(classes), count), (1 - sure) / (count - 1), np.float32)
    rows[np.arange(len(classes)), classes] = sure
    return rows


def test_ctc_merges_repeats_and_drops_blanks():
    text, score = ctc_text(one_hot([1, 1, 0, 1, 2, 2, 0, 0, 3], 4), "abc")
    assert text == "aabc"
    assert score == pytest.approx(0.9)


def test_ctc_of_blanks_is_empty():
    assert ctc_text(one_hot([0, 0, 0], 4), "abc") == ("", 0.0)


def test_top_sorts_and_keeps_the_first_of_equals():
    assert top(np.array([[0.1, 0.7, 0.2, 0.7]]), 3) == [(1, 0.7), (3, 0.7), (2, 0.2)]


def test_text_boxes_finds_regions_whatever_their_form():
    probabilities = np.zeros((40, 60), np.float32)
    probabilities[5:10, 5:30] = 0.9
    probabilities[20:30, 10:15] = 0.9  # a U: two legs that only meet in the last row
    probabilities[20:30, 25:30] = 0.9
    probabilities[29, 10:30] = 0.9
    probabilities[35, 50] = 1.0  # a speck
    probabilities[0:4, 50:58] = 0.4  # not sure enough
    first, second = text_boxes(probabilities)
    assert (first.left, first.right) == pytest.approx((5 - 25 * 5 / 30, 30 + 25 * 5 / 30))
    assert first.score == pytest.approx(0.9)
    assert second.top == pytest.approx(20 - 20 * 10 / 30)
    assert second.bottom == pytest.approx(30 + 20 * 10 / 30)


def test_regions_that_touch_at_a_corner_are_one():
    probabilities = np.zeros((20, 20), np.float32)
    probabilities[2:8, 2:8] = 1
    probabilities[8:14, 8:14] = 1
    assert len(text_boxes(probabilities)) == 1


def test_text_boxes_of_an_empty_page():
    assert text_boxes(np.zeros((8, 8), np.float32)) == []


def test_layout_boxes_decode_distances_from_the_cells_centre():
    """One grid of stride 8 over 16 x 24 pixels; the distribution is certain, so is the distance."""
    scores = np.zeros((6, 2), np.float32)
    scores[4] = (0.1, 0.8)  # row 1, column 1: centre (12, 12)
    scores[5] = (0.0, 0.6)  # the neighbour finds the same thing
    logits = np.zeros((6, 4, 8), np.float32)
    for cell, bins in ((4, (1, 1, 1, 0)), (5, (2, 1, 0, 0))):
        for side, distance in enumerate(bins):
            logits[cell, side, distance] = 50
    (box,) = layout_boxes([scores], [logits.reshape(6, 32)], ["a", "b"], (16, 24))
    assert box.label == "b"
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx((4, 4, 20, 12))


def test_doubles_of_one_label_are_dropped():
    boxes = [
        Box("a", 0.6, 0, 0, 10, 10),
        Box("a", 0.9, 1, 1, 11, 11),
        Box("b", 0.5, 0, 0, 10, 10),
        Box("a", 0.4, 20, 20, 30, 30),
    ]
    assert [box.score for box in without_doubles(boxes)] == [0.9, 0.5, 0.4]


def test_overlap_is_intersection_over_union():
    box = Box("a", 1, 0, 0, 10, 10)
    assert box.overlap(box) == 1
    assert box.overlap(Box("a", 1, 5, 0, 15, 10)) == pytest.approx(50 / 150)
    assert box.overlap(Box("a", 1, 10, 0, 20, 10)) == 0
    assert box.scaled(2, 3) == Box("a", 1, 0, 0, 20, 30)


def test_stretches_bridges_short_pauses():
    active = [True, False, True, False, False, True]
    assert stretches(active, 1.0) == [(0, 1), (2, 3), (5, 6)]
    assert stretches(active, 1.0, bridge=1.0) == [(0, 3), (5, 6)]
    assert stretches([], 1.0) == []


@pytest.mark.parametrize(("key", "name"), [(0, "A0"), (3, "C1"), (39, "C4"), (87, "C8")])
def test_note_names(key, name):
    assert note_name(key) == name


def test_a_tone_has_its_frequency():
    spectrum = np.abs(np.fft.rfft(tone(440, 8000, 8000)))
    assert spectrum.argmax() == 440


def test_file_bytes_strips_and_pads():
    values = file_bytes(b"  ab\n" + b" " * 10)[0]
    assert values.dtype == np.int32
    assert values[:3].tolist() == [ord("a"), ord("b"), ord("\n")]
    assert values[1023] == 256
    assert values[-4:].tolist() == [ord(" "), ord(" "), ord("a"), ord("b")]


def test_file_bytes_of_a_long_file():
    content = bytes(range(1, 9)) * 1000
    values = file_bytes(b"x" + content)[0]
    assert values[0] == ord("x")
    assert values[-1] == 8
    assert values.max() < 256
