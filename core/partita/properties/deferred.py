"""Classes of properties that are imported when they are first asked for."""

from __future__ import annotations

import importlib
from typing import Any

from partita.errors import PluginError, raised_as


def deferred_properties(place: str) -> Any:
    """What a plugin may give as ``properties_type``: the class is imported when first asked for.

    Example:
        >>> class Device:
        ...     properties_type = deferred_properties("partita.properties.schema:DeviceProperties")
        >>> Device.properties_type.__name__
        'DeviceProperties'

    Args:
        place: Module and class, as in ``"partita_mydev.properties:MyProperties"``.
    """
    return DeferredProperties(place)


class DeferredProperties:
    """A class attribute that stands for the class of properties at a place."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._found: type | None = None

    def __get__(self, instance: object, owner: type) -> type:
        """The class.

        Raises:
            PluginError: It cannot be imported, or is no subclass of ``DeviceProperties``.
        """
        if self._found is None:
            from partita.properties.schema import DeviceProperties

            module, _, name = self._place.partition(":")
            what = f"The properties of '{owner.__name__}' at '{self._place}' did not load"
            with raised_as(PluginError, what, PluginError):
                found = getattr(importlib.import_module(module), name)
            if not (isinstance(found, type) and issubclass(found, DeviceProperties)):
                raise PluginError(
                    f"'{owner.__name__}' names '{self._place}' as its 'properties_type', which "
                    f"needs to be a subclass of partita.DeviceProperties; found {found!r}."
                )
            self._found = found
        return self._found
