"""Where output cannot go, and options that do not fit each other."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import partita.errors
from partita.cli.main import main


def test_closed_output_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["zoo", "list"]) == 1
    assert "error: stdout is closed" in capsys.readouterr().err


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_process_needs_no_stream_but_stdout(closed):
    def close():
        for number in closed:
            os.close(number)

    command = [sys.executable, "-m", "partita", "zoo", "list"]
    done = subprocess.run(command, capture_output=True, preexec_fn=close, check=False)
    assert done.returncode == (1 in closed)
    assert (b"magika" in done.stdout) == (1 not in closed)
    assert (b"stdout is closed" in done.stderr) == (closed == (1,))


def test_a_removed_working_directory_is_told(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(["zoo", "list"]) == 1
    assert "error: The working directory has been removed" in capsys.readouterr().err
    with pytest.raises(partita.errors.ModelNotFoundError, match="directory has been removed"):
        partita.Core().read_model("model.onnx")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no file that is always full")
@pytest.mark.parametrize("command", ["--version", "zoo list", "run builtin:digits -d CPU -o -"])
def test_a_full_disk_behind_stdout_is_one_line(command, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is written early fails elsewhere
    with FULL.open("wb") as full:
        words = [sys.executable, "-m", "partita", *command.split()]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("partita: note")]
    assert done.returncode == 1
    assert len(errors) == 1
    assert errors[0].startswith("partita: error: stdout cannot be written: ")


def test_shapes_beyond_all_memory_are_one_line(capsys):
    shape = "1x1x1000000000x1000000000"
    assert main(["run", "builtin:digits", "-d", "CPU", "--shape", shape, "--random"]) == 1
    assert "has no room in any memory" in capsys.readouterr().err


def test_letters_that_the_output_lacks_are_written_as_escapes(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["zoo", "list"]) == 0
    stream.write("\u00fc")
    stream.flush()
    assert stream.buffer.getvalue().endswith(b"\\xfc")


def test_pins_are_for_several_devices(capsys):
    assert main(["run", "builtin:digits", "-d", "CPU", "--pin", "type:Conv=CPU"]) == 1
    error = capsys.readouterr().err
    assert "--pin is an option of device 'HETERO', but 'CPU' was named" in error
