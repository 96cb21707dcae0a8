"""The tree of errors."""

from __future__ import annotations

import builtins
import inspect
import re
import signal
import threading

import pytest

from partita import errors
from partita.cli import unnoticed_interrupts


def classes():
    return {
        name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and name[0] != "_"
    }


def drawn():
    """Class name to (parent in the drawing, builtin bases named beside it)."""
    found, stack = {}, []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+Error)(?:\s+\(also (\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            del stack[depth:]
            found[match[2]] = (stack[-1] if stack else "Exception", match[3])
            stack.append(match[2])
    return found


def test_the_drawing_is_the_tree():
    tree = drawn()
    assert set(tree) == set(classes())
    for name, (parent, builtin) in tree.items():
        bases = [base.__name__ for base in classes()[name].__bases__]
        assert bases == [parent, builtin] if builtin else bases == [parent]


@pytest.mark.parametrize("name", sorted(classes()))
def test_each_error_shows_its_message_and_is_caught_as_its_builtin(name):
    error = classes()[name]("what, found, do")
    assert str(error) == "what, found, do"
    assert isinstance(error, errors.PartitaError)
    builtin = drawn()[name][1]
    assert builtin is None or isinstance(error, getattr(builtins, builtin))


def test_causes_are_followed_to_the_first_one_and_never_round():
    first, last = ValueError("first"), errors.InferError("last")
    last.__cause__, first.__context__ = first, KeyError()
    assert list(errors.causes(last)) == [last, first]
    assert list(errors.causes(last, meanwhile=True)) == [last, first, first.__context__]
    for cause in (last, first):
        first.__cause__ = cause
        assert list(errors.causes(last, meanwhile=True)) == [last, first]


def test_where_no_thread_can_be_started_errors_say_what_to_do(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    unnoticed_interrupts.watch(lambda: 0, lambda: None)  # a command goes on without
    assert signal.set_wakeup_fd(-1) == -1
    with (
        pytest.raises(errors.CompileError, match=r"thread; let the process have more, by RLIMIT_"),
        errors.raised_as(errors.CompileError, "Device 'A' fails"),
    ):
        threading.Thread().start()


def test_libraries_that_do_not_fit_a_limit_of_memory(monkeypatch):
    """llvmlite says that its library cannot be found, and hides what the loader said."""
    monkeypatch.setattr(errors, "more_memory", lambda: "let it have more")
    try:
        try:
            raise OSError("libllvmlite.so: failed to map segment from shared object")
        except OSError:
            raise OSError("It could not be found.")  # noqa: B904  # as llvmlite does
    except OSError as error:
        assert errors.in_words(error) == "OSError: It could not be found; let it have more"
    assert errors.in_words(OSError("It could not be found.")) == "OSError: It could not be found."
    refused = ImportError("x.so: cannot allocate memory in static TLS block")
    assert errors.in_words(refused).endswith("; let it have more")
