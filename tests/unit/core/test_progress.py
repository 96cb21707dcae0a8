"""Progress bars: silent without a terminal, one above the other with one."""

from __future__ import annotations

import sys

import pytest

from partita.progress import progress


def test_silent_unless_a_terminal_watches(capsys):
    with progress("working", 10) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_silent_in_a_process_without_a_console(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with progress("working", 10) as advance:
        advance(3)


def pretend(monkeypatch):
    """Makes stderr a terminal; to be called in the test, since capture differs in fixtures."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_bar_in_a_bar(monkeypatch, capsys):
    pretend(monkeypatch)
    with progress("outer", None):
        with progress("inner", 4) as advance:
            advance(4)
        with progress("second", 2):
            pass
    shown = capsys.readouterr().err
    assert all(word in shown for word in ("outer", "inner", "second"))


def test_an_error_ends_the_bar(monkeypatch, capsys):
    pretend(monkeypatch)
    with pytest.raises(ValueError, match="stop"), progress("first", 1):
        raise ValueError("stop")
    with progress("next", 1):
        pass
    assert "next" in capsys.readouterr().err
