"""What people at a terminal get: tables that fit, colours, suggestions, completion, quiet ends."""

import io
import json
import os
import re
import subprocess
import sys
import wave

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

import partita
from partita.cli import completion
from partita.cli.feeds import make_feeds
from partita.cli.main import main
from partita.cli.output import Output
from partita.errors import DeviceStringError, InputError, ModelNotFoundError, ZooError
from partita.zoo import builtin, media, naming, sound
from partita.zoo.inputs import make_sample

LONG = "a reason that is so long that no terminal has room for it in a line of its own"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Puts a terminal of 40 columns in place of stdout and stderr, when it is called."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def begin():
        found = Terminal()
        monkeypatch.setattr(sys, "stdout", found)
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return begin


def test_tables_fit_the_terminal_and_lose_nothing(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = terminal()
    Output().table(["op", "n", "why"], [["Conv\x1b", 5, LONG], ["Relu", 12, "[b]no markup[/b]"]])
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert LONG.replace(" ", "") in "".join(lines[1:-1]).replace(" ", "").replace("Conv\\x1b5", "")
    assert lines[-1].split() == ["Relu", "12", "[b]no", "markup[/b]"]
    assert "\x1b" not in terminal.getvalue()


def test_headings_and_errors_are_coloured_on_a_terminal_alone(terminal, monkeypatch):
    terminal = terminal()
    Output().table(["op"], [["Conv"]])
    Output().error("error: no")
    assert terminal.getvalue().count("\x1b[1;") == 2
    monkeypatch.setenv("NO_COLOR", "1")
    start = terminal.tell()
    Output().table(["op"], [["Conv"]])
    Output().error("error: no")
    assert terminal.getvalue()[start:].split() == ["op", "Conv", "partita:", "error:", "no"]


def test_explanations_are_tables(terminal):
    compiled = partita.Core().compile_model(builtin.model("pitch"), "REFERENCE")
    terminal = terminal()
    Output().explanation(compiled.explain())
    lines = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).splitlines()
    assert lines[0].split()[:3] == ["op", "type", "device"]
    assert max(map(len, lines[: lines.index("")])) <= 40


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["runn", "m.onnx"], "did you mean 'run'?"),
        (["completion", "bsh"], "did you mean 'bash'?"),
    ],
)
def test_commands_that_may_have_been_meant(argv, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cpu", "Did you mean 'CPU'?"),
        ("hetero:gpu,cpu", "Did you mean 'HETERO:GPU,CPU'?"),
        ("GPPU", "Did you mean 'GPU'?"),
        ("HETERO:CPV", "Did you mean 'CPU'?"),
    ],
)
def test_devices_that_may_have_been_meant(device, said, capsys):
    assert main(["query", "builtin:digits", "-d", device]) == 1
    assert said in capsys.readouterr().err


def test_models_and_properties_that_may_have_been_meant(capsys):
    for name, meant in (
        ("zoo:magica", "magika"),
        ("light:resnet5", "resnet50"),
        ("builtin:digit", "digits"),
    ):
        with pytest.raises(ZooError, match=f"Did you mean '{meant}'"):
            naming.resolve(name)
    with pytest.raises(ModelNotFoundError, match="Did you mean 'zoo:magika'"):
        naming.resolve("magika")
    assert main(["query", "builtin:digits", "--property", "HETERO_EXECUTER=LINEAR"]) == 1
    assert "Did you mean 'HETERO_EXECUTOR'?" in capsys.readouterr().err


def test_names_of_models_where_paths_are_taken():
    core = partita.Core()
    assert core.read_model("builtin:digits").name == "digits"
    assert core.compile_model("builtin:digits", "REFERENCE").model.name == "digits"
    with pytest.raises(ZooError, match="has no model 'nothing'"):
        core.read_model("zoo:nothing")
    with pytest.raises(DeviceStringError):
        core.compile_model("builtin:digits", "cpu")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_scripts_for_shells(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_ARGCOMPLETE" in script
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["script"] in script


def test_models_and_devices_are_completed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoom.onnx").touch()
    found = completion.models("zoo")
    assert {"zoo:magika", "zoom.onnx"} <= set(found)
    assert completion.models("light:res") == ["light:resnet50"]
    assert "HETERO:GPU,CPU" in completion.devices("HETERO:GPU,C")
    assert "OPENCL" in completion.devices("OP")


def test_a_shell_is_answered():
    line = "partita devices --det"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    code = (
        "import os, argcomplete; from partita.cli.main import build_parser; "
        "argcomplete.autocomplete(build_parser(), output_stream=os.fdopen(1, 'w'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, check=False
    )
    assert done.stdout.split() == [b"--details"], done.stderr


# ------------------------------------------------------------------------- inputs of users


@pytest.fixture
def number(tmp_path):
    """A picture of the number, five times as large, dark on light, in colour."""
    image = builtin.sample("digits").feeds["image"][0, 0]
    grey = Image.fromarray(np.uint8(np.clip(1 - image, 0, 1) * 255))
    grey.resize((1000, 200)).convert("RGB").save(tmp_path / "number.png")
    return tmp_path / "number.png"


@pytest.fixture
def note(tmp_path):
    """Two seconds of E4 (329.6 Hz), stereo, 44,100 samples a second."""
    samples = np.int16(sound.tone(329.628, 44100, 88200) * 32767)
    with wave.open(str(tmp_path / "note.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(np.stack([samples, samples], axis=1).tobytes())
    return tmp_path / "note.wav"


def test_a_picture_of_any_size_is_answered(number, capsys):
    assert main(["run", "builtin:digits", "-d", "CPU", "-i", str(number)]) == 0
    assert "answer: reads 27182818" in capsys.readouterr().out


def test_a_recording_of_any_rate_is_answered(note, capsys):
    assert main(["run", "builtin:pitch", "-d", "CPU", "-i", str(note), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["answer"]["text"].startswith("hears E4")
    assert result["answer"]["correct"] is result["expected_answer"] is None


def test_what_is_no_picture_or_recording_is_an_error(tmp_path, capsys):
    (tmp_path / "x.txt").write_text("no")
    for model, wrong in (("digits", "is not a picture"), ("pitch", "is not a WAV file")):
        for name, said in (("x.txt", wrong), ("missing", "does not exist")):
            assert main(["run", f"builtin:{model}", "-d", "CPU", "-i", str(tmp_path / name)]) == 1
            assert said in capsys.readouterr().err


def test_inputs_that_models_of_the_zoo_are_made_for(tmp_path, number):
    metadata = {"character": "0\n90\n180\n270"}
    turned = make_sample("pplcnet-orientation", metadata, {}, str(number))
    assert turned.feeds["x"].shape == (1, 3, 224, 224)
    assert make_sample("ppocr-rec", metadata, {}, str(number)).feeds["x"].shape == (1, 3, 48, 320)
    assert make_sample("ppocr-det", metadata, {}, str(number)).feeds["x"].shape == (1, 3, 192, 960)
    words = make_sample("tashkeel-int8", {}, {}, "سلام")
    assert words.feeds["input_ids"].shape == (1, 4)
    assert (words.description, words.expected) == ("'سلام'", "")
    for name, given, said in (
        ("tashkeel-int8", "hello", "Arabic letters"),
        ("minilm-l3", "hello", "no vocabulary"),
        ("smollm2", "hello", "partita generate"),
    ):
        with pytest.raises(InputError, match=said):
            make_sample(name, {}, {}, given)


def test_recordings_are_read_as_they_are_meant(tmp_path, note):
    assert media.recording(note).shape == (88200,)
    same = media.recording(note, 22050)
    np.testing.assert_allclose(same[2000:3000], sound.tone(329.628, 22050, 3000)[2000:], atol=2e-3)
    assert media.of_length(same, 50000)[44100:].max() == 0


def test_models_of_sounds_and_texts(tmp_path, note, core):
    def model(kind, shape, op):
        ports = [[helper.make_tensor_value_info(name, kind, shape)] for name in "xy"]
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], name="n")], "g", *ports)
        opset = [helper.make_opsetid("", 18)]
        return core.read_model(helper.make_model(graph, opset_imports=opset, ir_version=8))

    sounds = model(TensorProto.FLOAT, [1, "samples"], "Neg")
    assert make_feeds(sounds, [str(note)], 0).arrays["x"].shape == (1, 88200)
    fixed = model(TensorProto.FLOAT, [1, 1, 100], "Neg")
    assert make_feeds(fixed, [f"x={note}"], 0).arrays["x"].shape == (1, 1, 100)
    with pytest.raises(InputError, match="which is not a recording"):
        make_feeds(model(TensorProto.FLOAT, [3, 4], "Neg"), [str(note)], 0)
    texts = model(TensorProto.STRING, [1], "Identity")
    (tmp_path / "text.txt").write_text("from a file\n")
    assert make_feeds(texts, ["a few words"], 0).arrays["x"].tolist() == ["a few words"]
    assert make_feeds(texts, [str(tmp_path / "text.txt")], 0).arrays["x"].tolist() == [
        "from a file"
    ]
