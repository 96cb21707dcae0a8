"""The hooks that a plugin's module implements, looked for again when it holds other functions."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import ModuleType

import pluggy

from partita.contract import hookspecs
from partita.errors import PluginError


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was found, and where.

    Attributes:
        module: The module.
        functions: What pluggy looked at: everything of the module that may be a hook.
        manager: What pluggy made of it.
    """

    module: ModuleType
    functions: tuple[object, ...]
    manager: pluggy.PluginManager


_readings: dict[str, _Reading] = {}


def hooks_of(module: object, name: str) -> pluggy.PluginManager:
    """A manager with one plugin, by which its hooks are called.

    pluggy inspects each name of the module, 0.2 ms, and each `Core` asks for all plugins.

    Args:
        module: What the plugin's entry point loads; what is no module is looked at each time.
        name: Of the entry point.

    Raises:
        PluginError: A hook has a wrong signature.
    """
    if not isinstance(module, ModuleType):
        return _registered(module, name)
    functions = tuple(filter(inspect.isroutine, vars(module).values()))
    last = _readings.get(name)
    if last is None or last.module is not module or last.functions != functions:
        last = _readings[name] = _Reading(module, functions, _registered(module, name))
    return last.manager


def _registered(module: object, name: str) -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name=name)
    except pluggy.PluginValidationError as error:
        raise PluginError(f"'{name}' has a hook with a wrong signature: {error}") from error
    return manager
