"""The registry: finds device plugins by entry point, and devices by device string."""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from partita.contract import hookspecs
from partita.contract.core_api import CoreAPI
from partita.contract.device_plugin import DevicePlugin
from partita.devices import device_string
from partita.devices.device_string import DeviceString, join
from partita.devices.entry_points import DISABLE_VARIABLE, disabled_plugins, plugin_entries
from partita.devices.module_hooks import hooks_of
from partita.devices.plugin_checks import check_plugin, describe, usable_ids
from partita.errors import (
    PLUGIN_FAILURES,
    DeviceError,
    DeviceNotFoundError,
    DeviceStringError,
    DeviceUnavailableError,
    PluginError,
    in_words,
    raised_as,
)
from partita.suggestions import guess
from partita.system.threads.fork_order import forks_wait

_log = logging.getLogger(__name__)

PRIORITIES = "MULTI_DEVICE_PRIORITIES"
"""The property that a device list behind a colon sets."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that did not load.

    Attributes:
        plugin: Entry-point name.
        distribution: The package that brings it.
        cause: What went wrong, in a sentence.
    """

    plugin: str
    distribution: str
    cause: str

    def __str__(self) -> str:
        return f"plugin '{self.plugin}' of '{self.distribution}': {self.cause}"


@dataclass(frozen=True, slots=True)
class Named:
    """What a device string names.

    Attributes:
        plugin: Who brings the devices.
        ids: The devices of it that are meant, the preferred one first; all if there is no id.
        explicit: Whether an id or an alias singles them out.
        settings: What the string itself sets.
    """

    plugin: DevicePlugin
    ids: list[str]
    explicit: bool
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """The plugin's device name."""
        return self.plugin.device_name

    @property
    def device(self) -> str:
        """The canonical name of the preferred device."""
        return join(self.name, self.ids[0])


class Registry:
    """The devices that plugins provide, by name.

    Args:
        core: Handed to plugins that ask for it.
    """

    def __init__(self, core: CoreAPI) -> None:
        self._core = core
        self._plugins: dict[str, DevicePlugin] = {}
        self._origin: dict[str, str] = {}
        self._release: dict[str, str] = {}
        self._clashes: dict[str, str] = {}
        self._ids: dict[str, list[str]] = {}
        self._named: dict[str, Named] = {}
        self.failures: list[Failure] = []
        self._discover()

    @property
    def names(self) -> list[str]:
        """All device names, sorted; those that clash are left out."""
        return sorted(self._plugins)

    def plugin(self, name: str) -> DevicePlugin:
        """The plugin of a device name.

        Raises:
            PluginError: Two plugins claim the name.
            DeviceNotFoundError: None provides it; says what there is and what failed to load.
        """
        if name in self._clashes:
            raise PluginError(self._clashes[name])
        if name in self._plugins:
            return self._plugins[name]
        usable, unusable = self._by_use()
        message = f"There is no device '{name}'; there are {', '.join(usable) or 'none'}."
        message += guess(name, [*self.names, *self._aliases()])
        for other, cause in unusable.items():
            message += f" {other} cannot be used: {cause}"
        for failure in self.failures:
            message += f" Not loaded: {failure}."
        raise DeviceNotFoundError(message)

    def _present(self) -> list[DevicePlugin]:
        """The plugins; other threads may add some meanwhile."""
        return list(self._plugins.values())

    def _aliases(self) -> list[str]:
        """Other names that plugins have for their devices."""
        return [alias for plugin in self._present() for alias in plugin.aliases]

    @property
    def default(self) -> str:
        """The default device: the first one whose plugin is ``is_default``.

        Raises:
            DeviceNotFoundError: No plugin is.
        """
        found = self._first(lambda plugin: plugin.is_default)
        if found is None:
            raise DeviceNotFoundError(f"There is no default device; {self._choice()}.")
        return found

    @property
    def reference(self) -> str:
        """The device that others are compared with: the first whose plugin is ``is_reference``.

        Raises:
            DeviceNotFoundError: No plugin is.
        """
        found = self._first(lambda plugin: plugin.is_reference)
        if found is None:
            raise DeviceNotFoundError(f"There is no reference device; {self._choice()}.")
        return found

    def _first(self, offers: Callable[[DevicePlugin], bool]) -> str | None:
        """The first device whose plugin offers something, if there is one."""
        return next((name for name in self.names if offers(self._plugins[name])), None)

    def _choice(self) -> str:
        usable, _ = self._by_use()
        return f"name one of {', '.join(usable) or 'none'}"

    def _by_use(self) -> tuple[list[str], dict[str, str]]:
        """Names of devices that can be used, and what others need, in a sentence; asks plugins."""
        usable, unusable = [], {}
        for name in self.names:
            try:
                self.ids(name)
                usable.append(name)
            except DeviceError as error:
                unusable[name] = f"{str(error).rstrip('.')}."
        return usable, unusable

    def over(self, devices: Iterable[str]) -> str:
        """A device string that splits models over devices; empty if no plugin does that."""
        splitter = self._first(lambda plugin: plugin.splits_models)
        return "" if splitter is None else f"{splitter}:{','.join(devices)}"

    def with_fallback(self, device: str) -> str:
        """A device string that gives others what a device does not take; empty if none can.

        Behind the device come those that are on every machine, as their plugins look for no driver,
        and the reference last. A device made of others has its own list, and behind the reference
        there is nothing.
        """
        name = self.resolve(device).name
        if self._plugins[name].is_reference or self.takes_list(name):
            return ""
        behind = sorted(
            (other for other in self.names if other != name and self._is_everywhere(other)),
            key=lambda other: self._plugins[other].is_reference,
        )
        return self.over([device, *behind]) if behind else ""

    def _is_everywhere(self, name: str) -> bool:
        """Whether a device is on every machine: its plugin looks for none, and needs no others."""
        asks = type(self._plugins[name]).device_ids is not DevicePlugin.device_ids
        return not asks and not self.takes_list(name)

    def takes_list(self, name: str) -> bool:
        """Whether a device is made of others; one whose properties do not load is not."""
        try:
            return PRIORITIES in self.plugin(name).properties_type.model_fields
        except PluginError as error:
            _log.info("%s", error)
            return False

    def release(self, name: str) -> str:
        """Distribution and version that a device's plugin comes from; empty if it is none's."""
        return self._release.get(name, "")

    def property_names(self) -> set[str]:
        """Names of all properties that some plugin has; of one whose class does not load, none."""
        names: set[str] = set()
        for plugin in self._present():
            try:
                names.update(plugin.properties_type.model_fields)
            except PluginError as error:
                _log.info("%s", error)
        return names

    def _owner_of_alias(self, alias: str) -> tuple[DevicePlugin, str] | None:
        """The plugin that declares an alias, and the kind of device that the alias means.

        A device of that very name hides the alias.
        """
        if alias in self._plugins:
            return None
        for name in self.names:
            plugin = self._plugins[name]
            if alias in plugin.aliases:
                return plugin, plugin.aliases[alias]
        return None

    def add(
        self, plugin: DevicePlugin, origin: str, device_name: str | None = None, release: str = ""
    ) -> None:
        """Registers a plugin object, or a renamed copy of it.

        Args:
            plugin: The object; a renamed one is copied, and shares all but its name with it.
            origin: Where it comes from, an entry point or a module, for messages.
            device_name: Its new name; ``None`` for its own.
            release: Name and version of the package that it comes from; empty where there is none.

        Raises:
            PluginError: It breaks the contract, or its device name is taken.
        """
        if device_name is not None and isinstance(plugin, DevicePlugin):
            plugin = copy.copy(plugin)
            plugin.device_name = device_name  # type: ignore[misc]  # of this instance alone
        check_plugin(plugin, origin)
        name = plugin.device_name
        if name in self._plugins or name in self._clashes:
            raise PluginError(
                f"Device name '{name}' is claimed by '{self._origin[name]}' and by '{origin}'; "
                f"uninstall one, or disable one by {DISABLE_VARIABLE}=<entry point>."
            )
        self._origin[name] = origin
        self._release[name] = release
        self._plugins[name] = plugin
        self._named.clear()  # the new name may hide an alias

    def add_again(self, source: str, device_name: str) -> None:
        """Registers the plugin of an entry point or module once more, under another device name.

        Raises:
            PluginError: The source provides no plugin, or several; or the name is taken or bad.
        """
        with raised_as(PluginError, f"Plugin '{source}' did not load", PluginError):
            module, release = self._find_module(source)
            plugins = self._provided(module, source)
        if len(plugins) != 1:
            raise PluginError(
                f"'{source}' provides {len(plugins)} device plugins; only a module that provides "
                "one can be registered under another device name."
            )
        self.add(plugins[0], source, device_name, release)

    def ids(self, name: str) -> list[str]:
        """The ids of a plugin's devices; asked of the plugin until it has an answer.

        Raises:
            DeviceError: It has no usable device, or does not exist.
        """
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = usable_ids(self.plugin(name))
        return found

    def forget(self, name: str) -> None:
        """Forgets which devices a plugin has, so that it is asked again."""
        self._ids.pop(name, None)
        self._named.clear()

    def resolve(self, device: str) -> Named:
        """Finds what a device string names; remembers it, as HETERO asks in every request.

        Raises:
            DeviceError: There is no such device, or it cannot be used.
        """
        named = self._named.get(device) if isinstance(device, str) else None
        if named is None:
            named = self._named[device] = self._find(device_string.parse(device))
        return named

    def _find(self, parsed: DeviceString) -> Named:
        alias = self._owner_of_alias(parsed.name)
        if alias is not None:
            plugin, kind = alias
            ids = self._ids_of_kind(parsed, plugin, kind)
        else:
            plugin = self.plugin(parsed.name)
            ids = self.ids(plugin.device_name)
            if parsed.device_id and parsed.device_id not in ids:
                shown = ", ".join(join(plugin.device_name, known) for known in ids)
                raise DeviceNotFoundError(
                    f"There is no device '{parsed.device}'; '{plugin.device_name}' has {shown}."
                )
            ids = [parsed.device_id] if parsed.device_id else ids
        settings = {}
        if parsed.priorities is not None:
            if PRIORITIES not in plugin.properties_type.model_fields:
                several = self.over((parsed.device, *parsed.priorities))
                advice = f"; write '{several}' for several devices" if several else ""
                raise DeviceStringError(
                    f"Device '{plugin.device_name}' takes no device list{advice}."
                )
            settings[PRIORITIES] = ",".join(parsed.priorities)
        return Named(plugin, ids, bool(parsed.device_id) or alias is not None, settings)

    def _ids_of_kind(self, parsed: DeviceString, plugin: DevicePlugin, kind: str) -> list[str]:
        """The devices that an alias stands for: the n-th of the kind, or all of it."""
        try:
            infos = {i: describe(plugin, i) for i in self.ids(plugin.device_name)}
        except DeviceError as error:
            raise DeviceUnavailableError(
                f"Device '{parsed.name}' is unavailable: {error}"
            ) from error
        fitting = [i for i, info in infos.items() if info.kind == kind]
        if not parsed.device_id and fitting:
            return fitting
        if parsed.device_id in map(str, range(len(fitting))):
            return [fitting[int(parsed.device_id)]]
        shown = ", ".join(
            f"{join(plugin.device_name, i)} ({info.kind}, {info.full_name})"
            for i, info in infos.items()
        )
        raise DeviceNotFoundError(
            f"There is no device '{parsed.device}': '{plugin.device_name}' has {len(fitting)} of "
            f"kind '{kind}'. It has {shown}."
        )

    # ------------------------------------------------------------------- discovery

    @forks_wait
    def _discover(self) -> None:
        disabled = disabled_plugins()
        for found in plugin_entries():
            name = found.entry.name
            if name in disabled:
                cause = f"disabled by {DISABLE_VARIABLE}"
                self.failures.append(Failure(name, found.distribution, cause))
            else:
                self._load(name, found.distribution, found.entry.load, found.release)

    def _load(
        self, name: str, distribution: str, load: Callable[[], object], release: str = ""
    ) -> None:
        """Loads one entry point; whatever it raises is recorded, so that it costs only itself."""
        try:
            plugins = self._provided(load(), name)
            for plugin in plugins:
                check_plugin(plugin, distribution)
        except PLUGIN_FAILURES as error:  # some leave if they lack a driver
            self._fail(name, distribution, in_words(error))
            return
        for plugin in plugins:
            try:
                self.add(plugin, f"{distribution}:{name}", release=release)
            except PluginError as error:  # neither gets the name: which one is meant is not known
                self._clashes.setdefault(plugin.device_name, str(error))
                self._plugins.pop(plugin.device_name, None)
                self._fail(name, distribution, str(error))

    def _fail(self, name: str, distribution: str, cause: str) -> None:
        _log.warning("Plugin '%s' of '%s' did not load: %s", name, distribution, cause)
        self.failures.append(Failure(name, distribution, cause))

    def _provided(self, module: object, name: str) -> list[DevicePlugin]:
        """Calls a module's hook through pluggy, which checks its signature."""
        manager = hooks_of(module, name)
        if not manager.hook.device_plugins.get_hookimpls():
            if any(hook.has_spec() for hook in manager.get_hookcallers(module) or ()):
                return []  # a plugin of commands
            raise PluginError(
                f"'{name}' implements no hook; it needs a function 'device_plugins' decorated with "
                "@partita.hookimpl"
            )
        provided = manager.hook.device_plugins(core=self._core)
        if not provided or not isinstance(provided[0], Iterable):
            found = type(provided[0]).__name__ if provided else "None"
            raise PluginError(
                f"The hook 'device_plugins' of '{name}' returned {found}; expected a list of "
                "device plugins"
            )
        return list(provided[0])

    def _find_module(self, source: str) -> tuple[object, str]:
        for found in plugin_entries():
            entry = found.entry
            if source in (entry.name, entry.module, entry.module.partition(".")[0]):
                return entry.load(), found.release
        try:
            return importlib.import_module(source), ""
        except ModuleNotFoundError as error:
            raise PluginError(
                f"'{source}' is neither an entry point of group '{hookspecs.PROJECT}' nor a module "
                f"that can be imported: {error}"
            ) from error
