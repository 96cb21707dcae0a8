"""Commands that plugins bring to the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import metadata
from types import ModuleType

import pytest
from toy_device import ToyDevice

import partita
from partita.cli import commands
from partita.cli.arguments import add_command, add_device, add_device_options, properties_of
from partita.cli.main import main
from partita.devices.command_hooks import command_modules
from partita.errors import DeviceStringError, PluginError
from partita.plugin import CommandOption


@pytest.fixture
def install(monkeypatch):
    """Installs modules with one hook each as the only entry points."""

    def install(name_of_hook="command_modules", **hooks):
        entries = []
        for name, hook in hooks.items():
            module = ModuleType(f"fake_{name}")
            if hook is not None:
                setattr(module, name_of_hook, partita.hookimpl(hook))
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


def test_a_device_that_cannot_be_described_is_not_available(install, capsys):
    bad = ToyDevice("BAD")
    bad.device_info = lambda device_id: None
    install("device_plugins", good=lambda: [ToyDevice("GOOD")], bad=lambda: [bad])
    assert main(["devices"]) == 0
    table, _, unavailable = capsys.readouterr().out.partition("not available:")
    assert "GOOD" in table and "BAD" not in table
    assert "BAD: Device 'BAD' cannot be described: device_info returned NoneType" in unavailable


def test_a_command_of_a_plugin_may_leave_out_options_of_devices(install, monkeypatch, capsys):
    def add_parser(commands):
        add_device(add_command(commands, "show", run, "shows", ["partita show -d CPU"]))

    def run(args, out):
        out.text(str(properties_of(args)))
        return 0

    module = ModuleType("fake_showing")
    module.add_parser = add_parser
    monkeypatch.setitem(sys.modules, "fake_showing", module)
    install(one=lambda: ["fake_showing"])
    assert main(["show", "-d", "CPU", "--property", "PERF_COUNT=YES"]) == 0
    assert capsys.readouterr().out == "{'PERF_COUNT': 'YES'}\n"


def test_a_plugin_that_does_not_load_brings_none(install, monkeypatch):
    install(good=lambda: ["a", "b"], missing=None)
    assert command_modules() == ["a", "b"]
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "good")
    assert command_modules() == []


def test_a_hook_that_returns_no_names(install):
    install(bad=lambda: [3])
    with pytest.raises(PluginError, match="'command_modules' returned 3; expected a str"):
        command_modules()


def test_hetero_brings_plan():
    assert "partita_hetero.cli.plan" in command_modules()


SPEED = CommandOption("--speed", "TOY", "TOY_SPEED", "N", "how fast")
SIDES = CommandOption("--side", "TOY", "TOY_SIDES", "SIDE", "on which side", repeatable=True)


def properties(*argv):
    parser = argparse.ArgumentParser()
    add_device(parser)
    add_device_options(parser)
    return properties_of(parser.parse_args(argv))


def test_a_plugin_brings_options_for_its_properties(install):
    install("command_options", toy=lambda: [SPEED, SIDES])
    assert properties() == {}
    assert properties("--speed", "3", "-d", "TOY:A,B") == {"TOY_SPEED": "3"}
    assert properties("--side", "left", "--side", "right") == {"TOY_SIDES": ["left", "right"]}


def test_an_option_of_another_device_is_refused(install):
    install("command_options", toy=lambda: [SPEED])
    with pytest.raises(DeviceStringError, match="--speed is an option of device 'TOY', but 'CPU'"):
        properties("--speed", "3", "-d", "CPU")


def test_an_option_whose_flag_is_taken_is_left_out(install, caplog):
    taken = CommandOption("--device", "TOY", "TOY_DEVICE", "D", "which device")
    with caplog.at_level(logging.WARNING):
        install("command_options", toy=lambda: [taken, SPEED])
        assert properties("--device", "TOY", "--speed", "3") == {"TOY_SPEED": "3"}
    assert "An option of device 'TOY' is ignored" in caplog.text


def test_a_hook_that_returns_no_options(install):
    install("command_options", bad=lambda: ["--speed"])
    with pytest.raises(PluginError, match="returned '--speed'; expected a CommandOption"):
        properties()


def test_hetero_brings_pins_and_locks():
    found = properties("--pin", "a=CPU", "--pin", "b=CPU", "--lock", "plan.toml")
    assert found == {"HETERO_PINS": ["a=CPU", "b=CPU"], "HETERO_PLACEMENT_LOCK": "plan.toml"}


COMMAND = """
from partita.cli.arguments import add_command


def add_parser(commands):
    add_command(commands, "count", run, "counts", ["partita count"])


def run(args, out):
    out.text("one, two")
    return 0
"""


def test_a_file_is_enough_for_a_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "count.py").write_text(COMMAND)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    try:
        assert main(["count"]) == 0
    finally:
        sys.modules.pop("partita.cli.commands.count", None)
    assert capsys.readouterr().out == "one, two\n"
