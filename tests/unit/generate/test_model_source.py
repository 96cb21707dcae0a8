"""What a folder's configuration says is a stranger's, as its model is."""

from __future__ import annotations

import json

import pytest

from partita.errors import ModelNotFoundError, TokenizerError
from partita.generate import model_source


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret").write_bytes(b"what nobody shall see")
    path = tmp_path / "model"
    path.mkdir()
    (path / "decoder.onnx").write_bytes(b"")
    return path


def told(folder, **entries):
    """The folder, whose configuration has these entries of the model."""
    (folder / "genai_config.json").write_text(json.dumps({"model": entries}))
    return folder


def test_the_configuration_names_the_model_and_its_context(folder):
    named = told(folder, decoder={"filename": "decoder.onnx"}, context_length=48, eos_token_id=[2])
    found = model_source.find(named)
    assert (found.path, found.longest) == (folder / "decoder.onnx", 48)


@pytest.mark.parametrize("name", ["../secret", "{}/secret", ""])
def test_a_model_outside_of_its_folder_is_not_read(folder, name):
    named = told(folder, decoder={"filename": name.format(folder.parent)})
    with pytest.raises(ModelNotFoundError, match=r"outside of the folder\. Put the file beside"):
        model_source.find(named)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_names_that_no_file_can_have_are_refused(folder, name):
    with pytest.raises(ModelNotFoundError, match="names a model that cannot be"):
        model_source.find(told(folder, decoder={"filename": name}))


@pytest.mark.parametrize(
    "entries",
    [{"context_length": -5}, {"context_length": True}, {"eos_token_id": [-1]}],
    ids=repr,
)
def test_counts_that_are_none_are_refused(folder, entries):
    with pytest.raises(TokenizerError, match="both must be whole numbers of at least 0"):
        model_source.find(told(folder, decoder={"filename": "decoder.onnx"}, **entries))
