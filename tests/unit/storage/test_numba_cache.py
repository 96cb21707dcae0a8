"""What numba keeps on disk: in the private folder, and never unpickled from others' files."""

import os
import pickle
import runpy
import subprocess
import sys

import pytest

from partita.storage.cache_folder import keep_sealed

CODE = """
import sys, numba
from partita.storage.numba_cache import keep_compiled

def twice(x):
    return x + x

made = numba.njit(twice)
keep_compiled(made)
assert made(2) == 4 and made(2.5) == 5.0
hits = sum(made.stats.cache_hits.values())
print("hits", hits)
"""


class Evil:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def run_here(program, tmp_path, monkeypatch, capsys):
    """Runs the program in this process, which spares it numba's import: what it compiles is new."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))

    def start():
        runpy.run_path(str(program))
        return capsys.readouterr().out.split()[-1]

    return start


@pytest.fixture
def run(program, tmp_path):
    """Runs the program in a process of its own."""

    def start(**environment):
        done = subprocess.run(
            [sys.executable, program],
            env={**os.environ, "PARTITA_CACHE_DIR": str(tmp_path / "cache"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    return start


def test_what_is_compiled_comes_back(run, tmp_path):
    assert run() == "0"
    assert run() == "2"
    kept = list((tmp_path / "cache" / "numba").iterdir())
    assert len(kept) == 3  # an index and two types
    assert not (tmp_path / "__pycache__").exists()


def test_nothing_is_kept_where_nothing_may_be(run, tmp_path):
    assert run(PARTITA_CACHE_DIR="") == "0"
    assert run(PARTITA_CACHE_DIR="", NUMBA_CACHE_DIR=str(tmp_path / "other")) == "0"
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_new_source_is_compiled_again(run_here, program):
    assert run_here() == "0"
    program.write_text(program.read_text() + "\n# changed\n")
    assert run_here() == "0"


@pytest.mark.parametrize("harm", ["mode", "content", "link"])
def test_pickles_that_others_could_have_written_are_not_loaded(run_here, tmp_path, harm):
    run_here()
    trace = tmp_path / "trace"
    for path in (tmp_path / "cache" / "numba").iterdir():
        evil = pickle.dumps(Evil(trace))
        if harm == "content":
            path.write_bytes(evil)
            continue
        keep_sealed(path, evil)
        if harm == "link":
            path.symlink_to(path.rename(tmp_path / f"other-{path.name}"))
        else:
            path.chmod(0o666)
    assert run_here() == "0"
    assert not trace.exists()
    assert run_here() == "2"  # what was there has been replaced
