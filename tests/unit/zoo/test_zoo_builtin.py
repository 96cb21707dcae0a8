"""Built-in models give checkable answers in another engine, and the names find all models."""

import numpy as np
import onnx
import onnxruntime
import pytest

import partita
from partita import zoo
from partita.errors import ZooError
from partita.zoo import builtin, naming

from .wheelhouse import FakePip, entry_for


def engine(proto):
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


@pytest.mark.parametrize("name", builtin.names())
def test_the_answer_is_right_in_onnxruntime(name):
    proto = builtin.model(name)
    onnx.checker.check_model(proto, full_check=True)
    sample = builtin.sample(name)
    answer = sample.answer(engine(proto))
    assert answer.correct, answer
    assert builtin.task(name)


def test_digits_reads_nothing_from_noise():
    sample = builtin.sample("digits")
    infer = engine(builtin.model("digits"))
    noise = np.random.default_rng(1).normal(0, 0.15, (1, 1, 40, 200)).astype(np.float32)
    answer = sample.answer(lambda feeds: infer({"image": noise}))
    assert not answer.correct
    assert answer.text.startswith("reads nothing")


def test_pitch_hears_another_note():
    sample = builtin.sample("pitch")
    infer = engine(builtin.model("pitch"))
    wave = np.sin(2 * np.pi * 220 * np.arange(8000) / 8000).astype(np.float32)[None, None]
    answer = sample.answer(lambda feeds: infer({"sound": wave}))
    assert not answer.correct
    assert answer.text == "hears A3 (amplitude 1.00)"


def test_an_unknown_builtin_is_answered_with_the_known_ones():
    for find in (builtin.model, builtin.sample, builtin.task):
        with pytest.raises(ZooError, match=r"no built-in model 'x'. There are digits, pitch"):
            find("x")


def test_names_without_a_known_prefix_are_paths():
    for name in ("model.onnx", "folder/model.onnx", "C:\\models\\m.onnx"):
        found = naming.resolve(name)
        assert str(found.source) == name
        assert found.sample is None


def test_builtin_names_bring_a_sample():
    found = naming.resolve("builtin:digits")
    assert found.sample is not None
    assert found.sample().answer(engine(found.source)).correct


def test_light_topologies_are_found():
    assert "resnet50" in naming.light_names()
    path = naming.resolve("light:squeezenet").source
    assert len(partita.Core().read_model(path).ops) > 50
    with pytest.raises(ZooError, match=r"no topology 'lenet'. .*It has alexnet, "):
        naming.resolve("light:lenet")


def test_zoo_names_fetch_the_model_and_read_its_metadata(tmp_path):
    proto = builtin.model("digits")
    onnx.helper.set_model_props(proto, {"character": "0\n90\n180\n270"})
    content = proto.SerializeToString()
    manifest = {"pplcnet-orientation": entry_for("pplcnet-orientation", content)}
    store = zoo.Store(tmp_path, manifest, FakePip({"thing/model.onnx": content}))
    found = naming.resolve("zoo:pplcnet-orientation", store)
    assert found.source == tmp_path / "pplcnet-orientation.onnx"
    assert found.sample().expected == "90 degrees"
    assert zoo.path("pplcnet-orientation", store) == found.source


def test_the_zoo_lists_its_names():
    assert zoo.names()[0] == "ppocr-det"
    assert zoo.entry("magika").files["labels"].path.endswith("config.min.json")
