"""The settings of device REFERENCE."""

from __future__ import annotations

from pydantic import Field

from partita.properties import DeviceProperties


class ReferenceProperties(DeviceProperties):
    """Properties of device REFERENCE."""

    INFERENCE_NUM_THREADS: int = Field(
        1,
        ge=0,
        description="Threads of numpy's matrix products; 0 for as many as numpy uses. Threads of "
        "its OpenBLAS keep looking for work for some 20 ms after each product, and take "
        "processors from the devices beside this one.",
    )
