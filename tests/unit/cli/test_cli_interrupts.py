"""Ctrl-C at any moment of a command is one line and exit code 130, and no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


def interrupted_at(module: str, *argv: str) -> subprocess.CompletedProcess[str]:
    code = f"""
import os, signal, sys

class Interrupting:
    is_done = False

    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not self.is_done:
            self.is_done = True
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from partita_command import main
sys.exit(main())
"""
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)


def command_that_runs(code: str) -> subprocess.CompletedProcess[str]:
    """A process of a command whose ``run(args, out)`` some code defines."""
    begin = "import os, signal, sys, threading, time, types\n"
    end = """
from partita.cli import completion, main

main.build_parser = lambda *_: types.SimpleNamespace(
    parse_args=lambda argv: types.SimpleNamespace(json=False, verbose=False, run=run)
)
completion.complete = lambda parser: None
sys.exit(main.main())
"""
    program = [sys.executable, "-c", begin + code + end]
    return subprocess.run(program, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("module", "argv"),
    [
        ("argparse", ["--help"]),
        ("logging", ["--help"]),
        ("numpy", ["--help"]),
        ("partita.cli.arguments", ["devices"]),
        ("partita.core", ["--help"]),
        ("partita_hetero.cli", ["--help"]),
        ("pydantic", ["run", "builtin:digits", "-d", "CPU"]),
        ("onnx", ["run", "builtin:digits", "-d", "CPU"]),
        ("onnx_ir", ["run", "builtin:digits", "-d", "CPU"]),
        ("ml_dtypes", ["run", "builtin:digits", "-d", "CPU"]),
    ],
)
def test_an_interrupt_while_a_module_is_loaded_is_told_as_one(module, argv):
    done = interrupted_at(module, *argv)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == "partita: interrupted"
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr


@pytest.mark.parametrize("pause", [0, 0.1])
def test_an_interrupt_that_python_would_only_print_comes_again(pause):
    code = f"""
class Kept:
    def __del__(self):
        raise KeyboardInterrupt

def run(args, out):
    Kept()  # Python prints what this raises, and goes on
    time.sleep(3600)

started = threading.Thread.start
def start(thread):
    started(thread)
    time.sleep({pause})  # the interrupt may come before the main thread goes on
threading.Thread.start = start
"""
    done = command_that_runs(code)
    assert (done.returncode, done.stderr) == (130, "partita: interrupted\n")


@pytest.mark.parametrize(
    "run",
    ["compute()", "threading.Thread(target=compute).start(); time.sleep(60)"],
    ids=["main thread", "another thread"],
)
def test_an_interrupt_ends_a_command_that_computes_in_machine_code_for_minutes(run):
    code = f"""
import hashlib

def compute():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

def run(args, out):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    {run}
"""
    done = command_that_runs(code)
    assert (done.returncode, done.stderr) == (130, "partita: interrupted\n")


@pytest.mark.parametrize(
    "run",
    ['exec("raise KeyboardInterrupt")', 'type("Owner", (), {"field": Field()})'],
    ids=["in text that is run", "while a class is made"],
)
def test_an_interrupt_where_python_makes_something_else_of_it(run):
    code = f"""
class Field:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt  # up to Python 3.11, the caller gets a RuntimeError

def run(args, out):
    {run}
"""
    done = command_that_runs(code)
    assert (done.returncode, done.stderr) == (130, "partita: interrupted\n")


def test_an_interrupt_while_a_module_of_machine_code_is_loaded_comes_once_it_is_whole():
    """That of onnx crashes the process when it is freed before."""
    code = """
from importlib.machinery import ExtensionFileLoader

def run(args, out):
    create = ExtensionFileLoader.create_module
    def interrupted(loader, spec):
        module = create(loader, spec)
        if spec.name.startswith("onnx"):
            os.kill(os.getpid(), signal.SIGINT)
        return module
    ExtensionFileLoader.create_module = interrupted
    import onnx.onnx_cpp2py_export
    time.sleep(60)

import numpy, google.protobuf.message, ml_dtypes
"""
    done = command_that_runs(code)
    assert (done.returncode, done.stderr) == (130, "partita: interrupted\n")


def test_a_command_in_the_background_of_a_shell_is_not_interrupted():
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from partita.cli.main import main
try:
    code = main()
finally:
    os.kill(os.getpid(), signal.SIGINT)
"""
    argv = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["partita", "partita.cli.main"])
def test_an_interrupt_while_the_framework_is_imported_ends_the_command_without_a_word(module):
    done = interrupted_at(module, "devices")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_nothing_is_imported_before_interrupts_are_looked_after():
    code = "import sys, _signal; before = set(sys.modules); import partita_command; "
    code += "print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['partita_command']\n"
