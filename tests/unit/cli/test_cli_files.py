"""Files that commands write, onto a disk that is full: the message names them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from partita.cli.main import main
from partita.system.written_file import writing
from partita_conformance.reports import report

FULL = Path("/dev/full")
full_disk = pytest.mark.skipif(not FULL.exists(), reason="only Linux has a disk that is full")


@full_disk
@pytest.mark.parametrize(
    "argv",
    [
        ["run", "builtin:digits", "-d", "CPU", "-o", "FULL"],
        ["report", "builtin:digits", "-d", "HETERO:CPU", "--output", "FULL"],
        ["report", "builtin:digits", "-d", "HETERO:CPU", "--trace", "FULL"],
        ["plan", "builtin:digits", "-d", "HETERO:CPU", "--save-costs", "FULL"],
        ["plan", "builtin:digits", "-d", "HETERO:CPU", "--gantt", "FULL"],
        ["plan", "builtin:digits", "-d", "HETERO:CPU", "--trace", "FULL"],
        ["plan", "builtin:digits", "-d", "HETERO:CPU", "--lock", "FULL"],
    ],
    ids=lambda argv: f"{argv[0]} {argv[-2]}",
)
def test_a_full_disk_is_told_with_the_file(argv, capsys):
    assert main([str(FULL) if part == "FULL" else part for part in argv]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("partita: error: ")
    assert "No space left on device" in last
    assert str(FULL) in last


def test_half_of_the_outputs_are_no_file(tmp_path, capsys, monkeypatch):
    def fill(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numpy.lib.format.write_array", fill)
    argv = ["run", "builtin:digits", "-d", "CPU", "-o", str(tmp_path / "out.npz")]
    assert main(argv) == 1
    assert "out.npz" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_half_of_a_page_is_no_file(tmp_path):
    page = tmp_path / "page.html"
    with pytest.raises(OSError, match=r"No space left on device: .*page\.html"), writing(page):
        page.write_text("<html>")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


@full_disk
def test_a_full_disk_is_told_with_the_file_of_a_report(tmp_path):
    (tmp_path / "conformance.json").symlink_to(FULL)
    with pytest.raises(OSError, match=r"No space left on device: .*conformance\.json"):
        report.write(tmp_path, {"device": "CPU"})


@full_disk
def test_a_full_disk_is_told_with_the_file_of_a_plugin(tmp_path, capsys, monkeypatch):
    (tmp_path / "partita-mine").mkdir()
    (tmp_path / "partita-mine" / "README.md").symlink_to(FULL)
    monkeypatch.setattr(Path, "exists", lambda path: False)  # as if the folder was not there yet
    assert main(["new-plugin", "mine", "--into", str(tmp_path)]) == 1
    assert f"'{tmp_path / 'partita-mine' / 'README.md'}'" in capsys.readouterr().err


def test_errors_that_name_a_file_keep_it():
    with pytest.raises(FileNotFoundError) as raised, writing(Path("b")):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "a")
    assert raised.value.filename == "a"
    with pytest.raises(OSError, match="of no number"), writing(Path("b")):
        raise OSError("of no number")
    with pytest.raises(BrokenPipeError) as broken, writing(Path("b")):
        raise OSError(errno.EPIPE, "Broken pipe")
    assert broken.value.filename == "b"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "builtin:digits", "-o", "none/out.npz"], "there is no folder 'none'"),
        (["run", "builtin:digits", "-o", "."], "is a folder; name a file in it"),
        (["run", "builtin:digits", "-o", "out.txt"], "does not end with '.npz'"),
        (["report", "builtin:digits", "--output", "page.pdf"], "'.html' or '.htm' or '.json'"),
        (["report", "builtin:digits", "--trace", "none/run.json"], "there is no folder 'none'"),
        (["plan", "builtin:digits", "--gantt", "page.pdf"], "'.html' or '.htm' or '.svg'"),
        (["plan", "builtin:digits", "--lock", "none/plan.toml"], "there is no folder 'none'"),
        (["plan", "builtin:digits", "--save-costs", "none/a.json"], "there is no folder 'none'"),
        (["plan", "builtin:digits", "--trace", "none/a.json"], "there is no folder 'none'"),
        (["bisect", "builtin:digits", "--output", "fault"], "does not end with '.onnx'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_files_that_cannot_be_written_are_refused_before_the_work(argv, said, capsys, monkeypatch):
    monkeypatch.setattr("partita.core.Core.__init__", lambda self: pytest.fail("it has begun"))
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_file_that_may_not_be_written_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(SystemExit):
        main(["run", "builtin:digits", "-o", str(tmp_path / "out.npz")])
    assert "cannot be written: permission denied" in capsys.readouterr().err
