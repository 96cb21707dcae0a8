"""Layouts of ports tell axes, and the size of the batch."""

from __future__ import annotations

import pytest
from models import neg

import partita as ov
from partita.errors import ModelError


def test_axes_by_their_meaning():
    axes, layout = ov.layout_helpers, ov.Layout("NCDHW")
    told = [
        (axes.has_batch, axes.batch_idx), (axes.has_channels, axes.channels_idx),
        (axes.has_depth, axes.depth_idx), (axes.has_height, axes.height_idx),
        (axes.has_width, axes.width_idx),
    ]  # fmt: skip
    assert [index(layout) for _, index in told] == [0, 1, 2, 3, 4]
    assert all(has(layout) for has, _ in told)
    assert not any(has(ov.Layout("QR")) for has, _ in told)
    with pytest.raises(ModelError, match="has no dimension 'D'"):
        axes.depth_idx(ov.Layout("NCHW"))


def test_the_batch_of_a_model():
    model = ov.Core().read_model(neg())
    with pytest.raises(ModelError, match="No input of model 'm' has a layout that names the batch"):
        ov.get_batch(model)
    ov.layout_helpers.set_layout(model.input(), "NC")
    assert ov.layout_helpers.get_layout(model.input()) == "NC"
    assert ov.get_batch(model) == 2
    ov.set_batch(model, -1)
    assert ov.get_batch(model).is_dynamic
    ov.set_batch(model, (1, 8))
    assert str(model.input().partial_shape) == "[1..8,3]"


def test_bytes_of_a_file(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"abc")
    assert bytes(ov.tensor_from_file(tmp_path / "x.bin").data) == b"abc"
    assert ov.get_version() == ov.__version__
