"""Where output cannot go, and options that do not fit each other."""

import io
import sys

from partita.cli.main import main


def test_closed_output_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["zoo", "list"]) == 0


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
