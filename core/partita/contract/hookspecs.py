"""The hooks of Partita. They register objects and do nothing else.

A package provides devices with four lines and an entry point of group ``partita``::

    import partita

    @partita.hookimpl
    def device_plugins():
        return [MyDevice()]
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from partita.contract.command_option import CommandOption
from partita.contract.core_api import CoreAPI
from partita.contract.device_plugin import DevicePlugin

PROJECT = "partita"
"""The pluggy project name and the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin's entry module as one of the hooks below."""


@hookspec
def device_plugins(core: CoreAPI) -> Iterable[DevicePlugin]:  # type: ignore[empty-body]  # a spec
    """Returns the device plugins of this package; those that need no core omit the argument."""


@hookspec
def command_modules() -> Iterable[str]:  # type: ignore[empty-body]  # a spec
    """(optional) Returns names of modules with commands for ``partita``: add_parser and run."""


@hookspec
def command_options() -> Iterable[CommandOption]:  # type: ignore[empty-body]  # a spec
    """(optional) Returns options for commands that compile a model: run, benchmark, bisect."""
