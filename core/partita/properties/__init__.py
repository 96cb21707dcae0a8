"""Properties: typed settings of devices and of Core, validated before anything sees them.

A plugin declares its properties once, as fields of a :class:`DeviceProperties` subclass. The
property objects here and in :mod:`partita.properties.device`, :mod:`.hint` and :mod:`.hetero` are
their names: strings that, called with a value, give the ``(key, value)`` pair, so that code
written for OpenVINO's ``properties`` module runs.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partita.errors import PropertyError
from partita.properties import device, hetero, hint, log, streams
from partita.properties.names import Property

__all__ = [
    "CoreProperties",
    "DeviceProperties",
    "Property",
    "available_devices",
    "cache_dir",
    "device",
    "enable_profiling",
    "execution_devices",
    "hetero",
    "hint",
    "inference_num_threads",
    "loaded_from_cache",
    "log",
    "model_name",
    "normalise",
    "num_streams",
    "optimal_number_of_infer_requests",
    "read_only",
    "streams",
    "supported_properties",
    "validate",
]

enable_profiling = Property("PERF_COUNT")
inference_num_threads = Property("INFERENCE_NUM_THREADS")
num_streams = Property("NUM_STREAMS")
available_devices = Property("AVAILABLE_DEVICES")
cache_dir = Property("CACHE_DIR")
execution_devices = Property("EXECUTION_DEVICES")
loaded_from_cache = Property("LOADED_FROM_CACHE")
model_name = Property("NETWORK_NAME")
optimal_number_of_infer_requests = Property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
supported_properties = Property("SUPPORTED_PROPERTIES")


def read_only(default: Any, description: str) -> Any:
    """A field that ``get_property`` shows and nobody can set."""
    return Field(default, description=description, json_schema_extra={"read_only": True})


class DeviceProperties(BaseModel):
    """Base of every device's properties: fields in upper case, each with type, default and text.

    Instances are frozen. Unknown keys, wrong types and read-only keys are refused before a plugin
    sees them; values given as text (``"YES"``, ``"4"``) are converted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    DEVICE_ID: str = Field("", description="Which device of this plugin, as in NAME.ID.")
    PERF_COUNT: bool = Field(False, description="Measure every operation while inferring.")
    CACHE_DIR: str = Field(
        "", description="Folder for compiled models, instead of Core's; empty: they are not kept."
    )


class CoreProperties(BaseModel):
    """Properties of Core itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    LOG_LEVEL: str = Field(
        "WARNING",
        pattern="^(DEBUG|INFO|WARNING|ERROR|CRITICAL)$",
        description="Level of the 'partita' logger.",
    )
    CACHE_DIR: str = Field("", description="Folder for compiled models; empty: they are not kept.")


PropertiesT = TypeVar("PropertiesT", DeviceProperties, CoreProperties)

Config = Mapping[str, Any] | tuple[str, Any] | Iterable[tuple[str, Any]] | None
"""What is accepted as a set of properties: a dict, one pair, or pairs."""


def normalise(config: Config) -> dict[str, Any]:
    """Turns a dict, a pair, or pairs into a dict of plain keys and values.

    Raises:
        PropertyError: It is none of these.
    """
    if config is None:
        return {}
    if isinstance(config, tuple) and len(config) == 2 and isinstance(config[0], str):
        config = [(config[0], config[1])]
    pairs = config.items() if isinstance(config, Mapping) else config
    result: dict[str, Any] = {}
    try:
        for key, value in pairs:
            if not isinstance(key, str):
                raise PropertyError(f"Property names are strings; found {key!r}.")
            plain = value.value if isinstance(value, enum.Enum) else value
            result = merge(result, {str(key): plain})  # a key may come twice: one dict per device
    except (TypeError, ValueError) as error:
        if isinstance(error, PropertyError):
            raise
        raise PropertyError(
            f"Properties are a dict of name to value; found {type(config).__name__}."
        ) from error
    return result


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lays settings over one another, later ones on top; values that are dicts merge key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            both = isinstance(below, Mapping) and isinstance(value, Mapping)
            result[key] = merge(below, value) if both else value  # type: ignore[arg-type]  # both
    return result


def validate(
    schema: type[PropertiesT],
    values: Mapping[str, Any],
    owner: str,
    base: PropertiesT | None = None,
) -> PropertiesT:
    """Makes a properties object, or says precisely what is wrong.

    Args:
        schema: The pydantic model.
        values: What the user set.
        owner: Whom to name in messages, e.g. ``"Device 'CPU'"``.
        base: Already valid settings that ``values`` override.

    Raises:
        PropertyError: Unknown or read-only key, wrong type or value; lists what is accepted.
    """
    fields = schema.model_fields
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(key.upper(), fields, n=1)
            guess = f" Did you mean '{close[0]}'?" if close else ""
            raise PropertyError(
                f"{owner} has no property '{key}'.{guess} It accepts {_accepted(schema)}."
            )
        if is_read_only(schema, key):
            raise PropertyError(
                f"Property '{key}' of {owner} is read-only. It accepts {_accepted(schema)}."
            )
    merged = merge(base.model_dump(exclude_unset=True) if base else {}, values)
    try:
        return schema.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else "?"
        raise PropertyError(
            f"Property '{key}' of {owner} cannot be {first['input']!r}: {first['msg']}. "
            f"It takes {_describe(schema, key)}."
        ) from error


def is_read_only(schema: type[BaseModel], key: str) -> bool:
    """Whether a field was declared with :func:`read_only`."""
    extra = schema.model_fields[key].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("read_only"))


def writable(schema: type[BaseModel]) -> list[str]:
    """The names that can be set, in the order of declaration."""
    return [key for key in schema.model_fields if not is_read_only(schema, key)]


def _accepted(schema: type[BaseModel]) -> str:
    return ", ".join(f"{key} ({_describe(schema, key)})" for key in writable(schema))


def _describe(schema: type[BaseModel], key: str) -> str:
    """The type of a field in words: its allowed values where it has a few."""
    field = schema.model_fields.get(key)
    if field is None:
        return "nothing"
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " | ".join(str(member.value) for member in annotation)
    choices = getattr(annotation, "__args__", None)
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(choices)
    return getattr(annotation, "__name__", str(annotation))
