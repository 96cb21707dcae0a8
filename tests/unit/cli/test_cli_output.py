"""Tables, JSON, notes and progress."""

import dataclasses
import enum
import json
import logging
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from partita.cli.main import main
from partita.cli.output import Output, PrintableFormatter, format_table, megabytes, plain


class Colour(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: float
    colour: Colour


def test_tables_align_words_left_and_numbers_right():
    lines = format_table(["name", "n", "why"], [["Conv", 5, "a"], ["BatchNormalization", 123, ""]])
    assert lines == [
        "name                  n  why",
        "Conv                  5  a",
        "BatchNormalization  123",
    ]


def test_logged_names_do_not_act_on_a_terminal():
    record = logging.LogRecord("partita", logging.WARNING, "", 0, "%s failed", ("a\x1b[2J",), None)
    assert PrintableFormatter("%(levelname)s: %(message)s").format(record) == (
        "WARNING: a\\x1b[2J failed"
    )


def test_an_empty_table_is_its_header():
    assert format_table(["a", "b"], []) == ["a  b"]


def test_everything_becomes_json():
    data = {
        "point": Point(float("nan"), Colour.RED),
        1: [np.float32(0.5), np.int64(3), np.bool_(True)],
        "array": np.array([[1.0, np.inf]]),
        "bfloat16": np.ones(1, ml_dtypes.bfloat16)[0],
        "path": Path("a"),
        "dtype": np.dtype("float32"),
        "nothing": None,
    }
    assert json.loads(json.dumps(plain(data), allow_nan=False)) == {
        "point": {"x": None, "colour": "red"},
        "1": [0.5, 3, True],
        "array": [[1.0, None]],
        "bfloat16": 1.0,
        "path": "a",
        "dtype": "float32",
        "nothing": None,
    }


def test_results_and_messages_go_apart(capsys):
    out = Output()
    out.text("a", "b")
    out.facts({"one": 1, "three": 3})
    out.json({"ü": 1})
    out.note("by the way")
    out.error("error: no")
    captured = capsys.readouterr()
    assert captured.out == 'a\nb\none    1\nthree  3\n{"ü": 1}\n'
    assert captured.err == "partita: note: by the way\npartita: error: no\n"


def test_json_is_indented_at_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Output().json({"ü": 1})
    assert capsys.readouterr().out == '{\n  "ü": 1\n}\n'


def test_an_error_is_json_where_that_is_asked_for(capsys):
    assert main(["query", "none.onnx", "-d", "CPU", "--json"]) == 1
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["type"] == "ModelNotFoundError"
    assert err == f"partita: error: {error['message']}\n"
    assert main(["query", "none.onnx", "-d", "CPU"]) == 1
    assert capsys.readouterr() == ("", err)


def test_a_result_is_the_only_document(capsys):
    out = Output(as_json=True)
    out.json([1])
    out.failure(MemoryError(), "MemoryError")
    captured = capsys.readouterr()
    assert json.loads(captured.out) == [1]
    assert captured.err == "partita: error: MemoryError\n"


def test_progress_is_silent_unless_a_terminal_watches(capsys):
    with Output().progress("working", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_draws_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with Output().progress("working", 10) as advance:
        advance(5)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "working" in captured.err


def test_sizes_for_people():
    assert [megabytes(n) for n in (None, 0, 10**6, 5 * 10**9)] == ["", "0.0 MB", "1.0 MB", "5.0 GB"]


@pytest.mark.parametrize("argv", [["run", "m.onnx", "--nope"], ["zoo", "list", "extra"]])
def test_what_a_command_does_not_know_is_told_with_its_own_usage(argv, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    told = capsys.readouterr().err
    name = " ".join(["partita", *(["zoo", "list"] if argv[0] == "zoo" else ["run"])])
    assert told.startswith(f"usage: {name} ")
    assert told.splitlines()[-1] == f"{name}: error: unrecognized arguments: {argv[-1]}"
