"""Fourier transforms and complex numbers of TFLite files: LiteRT says what is right."""

from __future__ import annotations

import numpy as np
import pytest
from test_tflite_operators import numbers, run
from tflite_files import File, litert

import partita
from partita.errors import ModelFormatError

COMPLEX = "complex64"
READERS = {"REAL": None, "IMAG": None, "COMPLEX_ABS": None, "CAST": "CastOptions"}


def transformed(shape, lengths, reader="COMPLEX_ABS", between=()):
    """A file that transforms images, does something with the numbers, and reads parts of them."""
    file = File()
    graph = file.main
    made = (*shape[:-2], lengths[0], abs(lengths[1]) // 2 + 1)
    place = graph.input(shape, "float32")
    lengths = graph.constant(np.array(lengths, np.int32))
    place = graph.op("RFFT2D", [place, lengths], [graph.tensor(made, COMPLEX)], "Rfft2dOptions")
    for code, after, extra, options, fields in between:
        inputs = [place, *(graph.constant(np.array(row, np.int32)) for row in extra)]
        place = graph.op(code, inputs, [graph.tensor(after, COMPLEX)], options, **fields)
        made = after
    place = graph.op(reader, [place], [graph.tensor(made, "float32")], READERS[reader])
    graph.outputs(place)
    return file.bytes()


def agrees(data, shape):
    feeds = [numbers(shape)]
    (expected,) = litert(data, feeds)[0]
    (found,) = run(data, feeds)
    model = partita.Core().compile_model(data, "CPU")
    own = np.asarray(model.create_infer_request().infer(feeds)[0])
    for answer in (found, own):
        assert (answer.dtype, answer.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("reader", sorted(READERS))
def test_parts_of_a_spectrum(reader):
    agrees(transformed((2, 3, 1, 16), (1, 16), reader), (2, 3, 1, 16))


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((8, 16), (8, 16)), ((2, 4, 8), (4, 8)), ((3, 1, 20), (1, 32)), ((2, 5, 20), (4, 16))],
)
def test_images_are_padded_and_cut_to_the_lengths(shape, lengths):
    for reader in ("REAL", "IMAG"):
        agrees(transformed(shape, lengths, reader), shape)


def test_shapes_of_spectra_change():
    """As TensorFlow's transform of short stretches of a signal is converted."""
    between = [
        ("SQUEEZE", (2, 3, 9), (), "SqueezeOptions", {"squeezeDims": [2]}),
        ("EXPAND_DIMS", (2, 3, 9, 1), ([-1],), "ExpandDimsOptions", {}),
        ("SQUEEZE", (2, 3, 9), (), "SqueezeOptions", {}),
        ("RESHAPE", (6, 9), ([6, -1],), "ReshapeOptions", {"newShape": [6, 9]}),
    ]
    for reader in ("CAST", "IMAG"):
        agrees(transformed((2, 3, 1, 16), (1, 16), reader, between), (2, 3, 1, 16))


def test_other_operators_of_complex_numbers_are_refused():
    data = transformed((2, 1, 8), (1, 8), between=[("NEG", (2, 1, 5), (), "NegOptions", {})])
    with pytest.raises(ModelFormatError, match=r"not known: operator 1 NEG .* of complex numbers"):
        partita.Core().read_model(data)


def test_complex_numbers_come_of_spectra_alone():
    file = File()
    made = file.main.tensor((2, 8), COMPLEX)
    file.main.op("CAST", [file.main.input((2, 8), "float32")], [made], "CastOptions")
    file.main.outputs(file.main.op("REAL", [made], [file.main.tensor((2, 8), "float32")]))
    with pytest.raises(ModelFormatError, match="it makes complex numbers of others"):
        partita.Core().read_model(file.bytes())


def test_a_spectrum_is_no_output():
    file = File()
    lengths = file.main.constant(np.array([1, 8], np.int32))
    made = file.main.tensor((2, 1, 5), COMPLEX)
    file.main.op(
        "RFFT2D", [file.main.input((2, 1, 8), "float32"), lengths], [made], "Rfft2dOptions"
    )
    file.main.outputs(made)
    with pytest.raises(ModelFormatError, match=r"returns .* complex numbers"):
        partita.Core().read_model(file.bytes())


@pytest.mark.parametrize("lengths", [(0, 8), (1, -8), (1, 1 << 21)])
def test_lengths_that_cannot_be_are_refused(lengths):
    with pytest.raises(ModelFormatError, match="lengths"):
        partita.Core().read_model(transformed((2, 1, 8), lengths))
