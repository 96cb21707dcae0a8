"""Names of strangers do nothing to a terminal, a page or a graph."""

import re

import numpy as np
import pytest
from models import model_of, node, value

import partita
from partita.cli.main import main
from partita.cli.output import Output, format_table
from partita.errors import CompileError
from partita.frontends.reader import read_model
from partita.printable import html_text, printable, printable_lines

EVIL = "a\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202eb\u2028\x00"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028]")


def test_everything_that_acts_is_spelled_out():
    shown = printable(EVIL)
    assert shown == r"a\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202eb\u2028\x00"
    assert printable("conv1/Größe 名前 (x)") == "conv1/Größe 名前 (x)"
    assert printable("\ud800").encode() == rb"\ud800"
    assert printable_lines("a\tb\nc") == "a\tb\nc"
    assert not ACTS.search(printable_lines(EVIL).replace("\n", ""))
    assert html_text("<\x1b>") == r"&lt;\x1b&gt;"


def test_errors_show_names_spelled_out():
    error = CompileError(f"Value '{EVIL}' is not there.").with_lines(["another line", EVIL])
    assert str(error).count("\n") == 2
    assert not ACTS.search(str(error))
    assert "\n" not in str(CompileError(EVIL))


def test_tables_and_facts_keep_their_lines(capsys):
    assert len(format_table(["op", "n"], [[EVIL, 1], ["b", 2]])) == 3
    assert all("\n" not in line for line in format_table(["op"], [[EVIL]]))
    out = Output()
    out.facts({EVIL: EVIL})
    out.text(EVIL)
    out.note(EVIL)
    out.error(EVIL)
    out.json({"name": EVIL})
    told = capsys.readouterr()
    assert not ACTS.search(told.out + told.err)


def hostile_model():
    """Two operations, one of which has a name that acts."""
    nodes = [node("Neg", ["x"], "t", EVIL), node("Abs", ["t"], "y", "two\nlines")]
    return model_of(nodes, [value("x", [2])], ["y"], name=EVIL)


def test_operations_get_names_that_can_be_printed():
    assert [op.name for op in read_model(hostile_model()).ops] == [printable(EVIL), r"two\nlines"]


def test_two_names_that_look_alike_stay_two():
    nodes = [node("Neg", ["x"], "t", "a\n"), node("Abs", ["t"], "y", r"a\n")]
    names = [op.name for op in read_model(model_of(nodes, ["x"], ["y"])).ops]
    assert names[0] == r"a\n"
    assert len(set(names)) == 2


def test_explanations_and_counters(core):
    compiled = core.compile_model(hostile_model(), "CPU", {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    request.infer([np.ones(2, np.float32)])
    shown = f"{compiled.explain()}\n{partita.format_counters(request.get_profiling_info())}"
    assert not ACTS.search(shown)
    assert r"two\nlines" in shown


def test_dot_files(core, tmp_path, monkeypatch):
    from partita_hetero.reports.graphviz import quote

    assert quote(f"{EVIL}\nb").count("\n") == 0
    assert not ACTS.search(quote(EVIL))


@pytest.mark.parametrize("command", [["query", "-d", "CPU"], ["query", "-d", "CPU", "--json"]])
def test_the_command_line(tmp_path, capsys, command):
    path = tmp_path / "m.onnx"
    path.write_bytes(hostile_model().SerializeToString())
    assert main([command[0], str(path), *command[1:]]) == 0
    told = capsys.readouterr()
    assert "two" in told.out
    assert not ACTS.search(told.out + told.err)
