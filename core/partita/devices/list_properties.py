"""Properties of devices that are made of others."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from partita.devices.device_string import parse_list
from partita.properties import DeviceProperties


class ListProperties(DeviceProperties):
    """Base of the properties of a device that takes a list of devices.

    Keys that it does not have itself are passed to every device of the list that has them.
    """

    MULTI_DEVICE_PRIORITIES: str = Field(
        "", description="Devices, preferred ones first; empty: all, accelerators first."
    )
    DEVICE_PROPERTIES: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Device name to the properties that it gets."
    )

    @field_validator("MULTI_DEVICE_PRIORITIES", mode="before")
    @classmethod
    def _join(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value

    @field_validator("MULTI_DEVICE_PRIORITIES")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        return ",".join(parse_list(value)) if value else value
