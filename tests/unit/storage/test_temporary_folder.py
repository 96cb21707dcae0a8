"""Temporary folders go with their processes, however these end, and never under one that lives."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from partita.storage.temporary_folder import TemporaryFolder

PREFIX = "partita-here-"


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """The system's temporary folder, of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_this_users_alone_and_goes_with_its_object(place):
    folder = TemporaryFolder(PREFIX)
    (folder.path / "within").mkdir()
    assert folder.path.parent == place
    assert folder.path.stat().st_mode & 0o777 == 0o700
    path = folder.path
    del folder
    assert not path.exists()


def test_it_can_be_removed_twice():
    folder = TemporaryFolder(PREFIX)
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


START = f"""
import os, signal, sys, time
from partita.storage.temporary_folder import TemporaryFolder
folder = TemporaryFolder({PREFIX!r})
(folder.path / "file").touch()
print(folder.path, flush=True)
"""

ENDS = {
    "returns": "",
    "raises": "1 / 0",
    "leaves": "os._exit(0)",
    "is interrupted": "signal.raise_signal(signal.SIGINT)",
    "is told to end": "os.kill(os.getpid(), signal.SIGTERM)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "crashes": "os.abort()",
    "forks": "sys.exit(0) if os.fork() else (time.sleep(1), sys.exit(0))",
    "forks and is killed": "os.fork() and os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="locks of folders and forks are POSIX's")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_whatever_ends_a_process_the_next_one_removes_what_it_left(place, end):
    done = subprocess.run([sys.executable, "-c", START + end], capture_output=True, text=True)
    left = Path(done.stdout.splitlines()[0])
    assert left.parent == place, done.stderr
    folder = TemporaryFolder(PREFIX)
    assert [*place.iterdir()] == [folder.path]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="locks of folders are POSIX's")
@pytest.mark.parametrize("fork", [False, True])
def test_what_a_process_or_its_fork_uses_stays(place, fork):
    wait = "sys.stdin.readline()"
    forked = f"({wait}, os._exit(0)) if not os.fork() else os.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-c", START + (forked if fork else wait)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        used = Path(process.stdout.readline().strip())
        if fork:
            assert process.wait() == -signal.SIGKILL
        TemporaryFolder(PREFIX).remove()
        assert (used / "file").exists()
        process.stdin.close()
        process.stdout.read()  # until the last one has ended
    TemporaryFolder(PREFIX).remove()
    assert not used.exists()


def test_other_things_of_that_name_stay(place):
    (place / f"{PREFIX}file").touch()
    (place / "elsewhere").mkdir()
    (place / f"{PREFIX}link").symlink_to(place / "elsewhere")
    (place / "partita-others").mkdir()
    before = {*place.iterdir()}
    TemporaryFolder(PREFIX).remove()
    assert {*place.iterdir()} == before


def test_one_that_was_taken_for_a_folder_that_was_left_is_made_again(place, monkeypatch):
    real, removed = tempfile.mkdtemp, []

    def made_and_removed(*arguments, **named):
        path = real(*arguments, **named)
        if not removed:
            removed.append(path)
            Path(path).rmdir()
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_removed)
    folder = TemporaryFolder(PREFIX)
    assert folder.path.exists()
    assert str(folder.path) not in removed


def test_where_none_stays_it_is_said(monkeypatch):
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: f"/nowhere/{prefix}")
    with pytest.raises(OSError, match="other processes remove each 'partita-here-"):
        TemporaryFolder(PREFIX)


def refuse_locks(descriptor, operation):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("missing", ["module", "of files"])
def test_without_locks_nothing_else_than_own_folders_goes(place, monkeypatch, missing):
    if missing == "module":
        monkeypatch.setitem(sys.modules, "fcntl", None)
    else:
        monkeypatch.setattr("fcntl.flock", refuse_locks)
    (place / f"{PREFIX}left").mkdir()
    TemporaryFolder(PREFIX).remove()
    assert [*place.iterdir()] == [place / f"{PREFIX}left"]
