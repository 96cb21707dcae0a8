"""Commands and options that plugins contribute to the command line."""

from __future__ import annotations

import logging
from typing import TypeVar

import pluggy

from partita.contract import hookspecs
from partita.contract.command_option import CommandOption
from partita.devices.entry_points import disabled_plugins, plugin_entries
from partita.errors import PLUGIN_FAILURES, PluginError, in_words

_log = logging.getLogger(__name__)

T = TypeVar("T")


def command_modules() -> list[str]:
    """Modules with commands that plugins bring; Core says which plugins do not load.

    Raises:
        PluginError: A hook returns something else than names.
    """
    return _contributed("command_modules", str)


def command_options() -> list[CommandOption]:
    """Options that plugins bring for commands that compile a model.

    Raises:
        PluginError: A hook returns something else than options.
    """
    return _contributed("command_options", CommandOption)


def _contributed(hook: str, due: type[T]) -> list[T]:
    """What the plugins that load return from a hook without arguments, in one list."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for found in plugin_entries():
        name = found.entry.name
        if name in disabled_plugins():
            continue
        try:
            manager.register(found.entry.load(), name=name)
        except PLUGIN_FAILURES as error:  # Core says why it does not load
            _log.info("Plugin '%s' adds no commands: %s", name, in_words(error))
    brought = [one for several in getattr(manager.hook, hook)() for one in several]
    strays = [one for one in brought if not isinstance(one, due)]
    if strays:
        raise PluginError(f"A hook '{hook}' returned {strays[0]!r}; expected a {due.__name__}.")
    return brought
