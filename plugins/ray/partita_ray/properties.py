"""Properties of devices RAY[.n]."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, PositiveInt, field_validator

from partita.devices.device_string import parse
from partita.properties import DeviceProperties


class RayProperties(DeviceProperties):
    """What an application can set on the devices of a Ray cluster."""

    RAY_DEVICE: str = Field(
        "",
        description="The device on the node that computes, e.g. 'CPU' or 'HETERO:GPU,CPU'; empty: "
        "the one that the node takes where none is named.",
    )
    RAY_DEVICE_PROPERTIES: dict[str, Any] = Field(
        default_factory=dict,
        description="Properties for the device on the node; as text, a JSON object.",
    )
    RAY_REQUESTS: PositiveInt = Field(
        1,
        description="Requests that one submodel computes at the same time on its node, each with "
        "memory of its own. Tensors of others are sent meanwhile in any case.",
    )

    @property
    def for_node(self) -> dict[str, Any]:
        """Properties for the device on the node."""
        counted = {"PERF_COUNT": True} if self.PERF_COUNT else {}
        return {**counted, **self.RAY_DEVICE_PROPERTIES}

    @field_validator("RAY_DEVICE_PROPERTIES", mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        """As a command line gives them."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"it is no JSON ({error})") from error

    @field_validator("RAY_DEVICE")
    @classmethod
    def _not_ray(cls, value: str) -> str:
        """A node has no nodes: what computes there is a device of its own."""
        if value:
            parsed = parse(value)
            names = [parsed.name, *(one.partition(".")[0] for one in parsed.priorities or ())]
            if "RAY" in names:
                raise ValueError("it names a device of the node itself, not of the cluster")
        return value
