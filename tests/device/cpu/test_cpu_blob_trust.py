"""Blobs whose checksum is right and whose packed weights are not what they are said to be."""

import math

import numpy as np
import pytest

import partita
from partita.errors import BlobError
from partita_cpu.jit.isa import isa
from tests.campaign import blobs


@pytest.mark.parametrize("name", ["matmul", "conv", "lstm", "half"])
def test_packed_weights_are_kept_and_restored(name):
    data, feeds = blobs.exported()[name]
    content, _ = blobs.taken_apart(data)
    packed_by_tiles = name in ("matmul", "conv")
    assert bool(content["arrays"]) == (isa().native or not packed_by_tiles)
    core = partita.Core()
    assert np.isfinite(core.import_model(data, "CPU")(feeds)[0]).all()


@pytest.mark.parametrize("name", ["matmul", "conv", "lstm", "half"])
@pytest.mark.parametrize("how", ["half", "flat", "other type", "one less", "none"])
def test_packed_weights_of_another_form_are_refused_or_packed_anew(core, name, how):
    """Their sizes decide how far kernels read; those that do not fill their places are refused."""
    data, feeds = blobs.exported()[name]
    expected = core.import_model(data, "CPU")(feeds)[0]
    content, body = blobs.taken_apart(data)
    before = places_taken(content)
    for entry in content["arrays"]:
        shape = entry[2]
        if how == "half":
            entry[2] = [shape[0] // 2, *shape[1:]]
        elif how == "flat":
            entry[2] = [1, int(np.prod(shape))]
        elif how == "other type":
            entry[1] = "int8"
        elif how == "one less":
            entry[2] = [*shape[:-1], shape[-1] - 1]
        elif how == "none":
            entry[2] = [0, *[0] * len(shape)]
    changed = blobs.put_together(content, body)
    if places_taken(content) != before:
        with pytest.raises(BlobError, match="header is damaged"):
            core.import_model(changed, "CPU")
    else:
        np.testing.assert_array_equal(core.import_model(changed, "CPU")(feeds)[0], expected)


def places_taken(content):
    """Of each array so many lines of 64 bytes."""
    return [-(-np.dtype(x[1]).itemsize * math.prod(x[2]) // 64) for x in content["arrays"]]
