"""``partita tune`` on device OPENCL, and the choices that it keeps."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from partita.cli.main import main
from partita.storage.cache_folder import CACHE_VARIABLE
from partita_opencl.device.device import find_device
from partita_opencl.tuning import command, database, product_tiles
from partita_opencl.tuning.product_tiles import Tile

from ..comparison import compiled, expected, floats, single


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A database of its own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    database.load_database.cache_clear()
    yield tmp_path
    database.load_database.cache_clear()


@dataclass(frozen=True)
class Choice:
    name: str


RANKED = [Choice("a"), Choice("b"), Choice("c")]


def test_the_first_choice_stands_unless_another_was_measured():
    assert database.choose("gpu", "op", "key", RANKED).name == "a"
    path = database.keep("gpu", {"key": "c", "gone": "x"})
    assert database.choose("gpu", "op", "key", RANKED).name == "c"
    assert database.choose("gpu", "op", "gone", RANKED).name == "a"  # there is no x any more
    assert database.choose("another driver", "op", "key", RANKED).name == "a"
    database.keep("gpu", {"more": "b"})
    assert json.loads(path.read_text())["choices"] == {"gone": "x", "key": "c", "more": "b"}


def test_a_damaged_database_is_told_and_not_used(caplog):
    path = database.keep("gpu", {"key": "c"})
    path.write_text("{]")
    database.load_database.cache_clear()
    assert database.choose("gpu", "op", "key", RANKED).name == "a"
    assert "cannot be read" in caplog.text


def test_trials_take_what_they_are_told_and_note_it():
    with database.trying(1) as trial:
        assert database.choose("gpu", "op", "key", RANKED).name == "b"
    with database.trying(9) as last:
        assert database.choose("gpu", "op", "key", RANKED).name == "c"
    assert trial.taken == {"op": ("key", "b")}
    assert last.taken == {"op": ("key", "c")}
    assert database.choose("gpu", "op", "key", RANKED).name == "a"


def test_winners_beat_the_first_choice_clearly():
    times = {"clear": {"a": 10.0, "b": 5.0}, "noise": {"a": 10.0, "b": 9.9}, "first": {"a": 1.0}}
    assert command.winning_choices(times) == ({"clear": "b"}, 21.0, 16.0)


def test_tuning_a_model_keeps_choices_that_later_models_use(monkeypatch, tmp_path, capsys):
    tiles = (Tile(16, 64, 16, (4, 4), 1.0, 1.0), Tile(32, 32, 16, (4, 4), 1.0, 1.0))
    monkeypatch.setattr(product_tiles, "CPU_TILES", tiles)
    monkeypatch.setattr(product_tiles, "TILES", tiles)
    monkeypatch.setattr(command, "GAIN", 1e9)  # any winner will do
    model, feeds = single("MatMul", [floats(40, 64), floats(64, 72, seed=1)], constant=(1,))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    arguments = ["tune", str(path), "-d", "OPENCL", "--property", "TILING=LOCAL"]
    assert main([*arguments, "--candidates", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["products"] == 1
    assert 0 < result["after_us"] <= result["before_us"]
    assert Path(result["file"]).is_file()
    [(key, name)] = result["choices"].items()
    assert database.load_database(find_device("").identity) == {key: name}
    asked = []
    monkeypatch.setattr(
        "partita_opencl.launches.emitter_kit.choose",
        lambda *a: asked.append(database.choose(*a)) or asked[-1],
    )
    request = compiled(model, TILING="LOCAL").create_infer_request()
    np.testing.assert_allclose(request.infer(feeds)[0], expected(model, feeds)[0], rtol=1e-3)
    assert {choice.name for choice in asked} == {name}


def test_other_devices_are_refused(tmp_path, capsys):
    model, _ = single("Neg", [floats(3)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert main(["tune", str(path), "-d", "CPU"]) == 1
    assert "'CPU' is CPU. Name an OPENCL device" in capsys.readouterr().err
