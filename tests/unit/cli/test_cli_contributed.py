"""Commands that plugins bring to the command line."""

from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType

import pytest

import partita
from partita.cli.arguments import add_command
from partita.cli.main import main
from partita.devices.registry import command_modules
from partita.errors import PluginError


@pytest.fixture
def install(monkeypatch):
    """Installs modules with a hook for commands as the only entry points."""

    def install(**hooks):
        entries = []
        for name, hook in hooks.items():
            module = ModuleType(f"fake_{name}")
            if hook is not None:
                module.command_modules = partita.hookimpl(hook)
                monkeypatch.setitem(sys.modules, module.__name__, module)
            entries.append(metadata.EntryPoint(name, module.__name__, "partita"))
        monkeypatch.setattr(metadata, "entry_points", lambda group: entries)

    return install


def test_a_plugin_brings_a_command(install, monkeypatch, capsys):
    module = ModuleType("fake_greeting")
    module.add_parser = lambda commands: add_command(
        commands, "greet", lambda args, out: out.text("hello") or 0, "greets", ["partita greet"]
    )
    monkeypatch.setitem(sys.modules, "fake_greeting", module)
    install(one=lambda: ["fake_greeting"])
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_a_plugin_that_does_not_load_brings_none(install, monkeypatch):
    install(good=lambda: ["a", "b"], missing=None)
    assert command_modules() == ["a", "b"]
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "good")
    assert command_modules() == []


def test_a_hook_that_returns_no_names(install):
    install(bad=lambda: [3])
    with pytest.raises(PluginError, match="'command_modules' returned 3; module names are due"):
        command_modules()


def test_hetero_brings_plan():
    assert "partita_hetero.cli.plan" in command_modules()
