"""The pydantic side of properties: what a plugin declares, and what checks the values of users.

Nothing imports this before a property is looked at, since pydantic takes as long as numpy to
import: :mod:`partita.properties` brings these names when they are asked for.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from partita.errors import PropertyError
from partita.printable import shown
from partita.properties.values import merge
from partita.suggestions import guess

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def read_only(default: Any, description: str) -> Any:
    """A field that ``get_property`` shows and nobody can set.

    A default that is a function is called when a value is asked for.
    """
    given: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    return Field(description=description, json_schema_extra={"read_only": True}, **given)


class DeviceProperties(BaseModel):
    """Base of every device's properties: fields in upper case, each with type, default and text.

    Instances are frozen. Unknown keys, wrong types and read-only keys are refused before a plugin
    sees them; values given as text (``"YES"``, ``"4"``) are converted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    DEVICE_ID: str = Field("", description="Which device of this plugin, as in NAME.ID.")
    PERF_COUNT: bool = Field(False, description="Measure every operation while inferring.")
    CACHE_DIR: str = Field(
        "",
        description="Folder for compiled models, instead of Core's; empty: they are not kept. "
        "Other caches lie in the folder that environment variable PARTITA_CACHE_DIR names.",
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


PropertiesT = TypeVar("PropertiesT", bound=BaseModel)


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
            raise PropertyError(
                f"{owner} has no property {shown(key)}.{guess(key, fields)} "
                f"It accepts {_accepted(schema)}."
            )
        if is_read_only(schema, key):
            raise PropertyError(
                f"Property '{key}' of {_within(owner)} is read-only. "
                f"It accepts {_accepted(schema)}."
            )
    merged = merge(base.model_dump(exclude_unset=True) if base else {}, values)
    try:
        return schema.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else "?"
        raise PropertyError(
            f"Property '{key}' of {_within(owner)} cannot be {shown(first['input'])}: "
            f"{_cause(first, schema, key)}."
        ) from error
    except (TypeError, UnicodeError) as error:  # of a validator; pydantic lets them pass
        raise PropertyError(f"{owner} cannot take {shown(dict(values))}: {error}.") from error


def is_read_only(schema: type[BaseModel], key: str) -> bool:
    """Whether a field was declared with :func:`read_only`."""
    extra = schema.model_fields[key].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("read_only"))


def writable(schema: type[BaseModel]) -> list[str]:
    """The names that can be set, in the order of declaration."""
    return [key for key in schema.model_fields if not is_read_only(schema, key)]


def _within(owner: str) -> str:
    """An owner's name inside a sentence: ``"device 'CPU'"``."""
    return f"device{owner[6:]}" if owner.startswith("Device ") else owner


def _cause(error: ErrorDetails, schema: type[BaseModel], key: str) -> str:
    """Why a value was refused: by a validator's own words, or by pydantic's and the type."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"]).removesuffix(".")
    return f"{error['msg']}. It takes {_describe(schema, key)}"


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
