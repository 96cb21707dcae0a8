"""Properties about devices: which ones, in what order, with what settings."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from typing import Any

from partita.properties.names import Property


class _Priorities(Property):
    __slots__ = ()

    def __call__(self, *devices: str) -> Any:
        """``priorities("GPU", "CPU")`` is the pair for ``"GPU,CPU"``."""
        return (str(self), ",".join(devices)) if devices else str(self)


class _Properties(Property):
    __slots__ = ()

    def __call__(self, *values: Any) -> Any:
        """``properties("GPU", {...})``, with pairs too, or one dict of device to properties."""
        if not values:
            return str(self)
        device, *settings = values
        if isinstance(device, Mapping):
            return str(self), dict(device)
        pairs = (s.items() if isinstance(s, Mapping) else [s] for s in settings)
        return str(self), {device: dict(itertools.chain.from_iterable(pairs))}


priorities = _Priorities("MULTI_DEVICE_PRIORITIES")
properties = _Properties("DEVICE_PROPERTIES")
id = Property("DEVICE_ID")
full_name = Property("FULL_DEVICE_NAME")
type = Property("DEVICE_TYPE")
architecture = Property("DEVICE_ARCHITECTURE")
capabilities = Property("OPTIMIZATION_CAPABILITIES")
gops = Property("DEVICE_GOPS")
luid = Property("DEVICE_LUID")
pci_info = Property("DEVICE_PCI_INFO")
thermal = Property("DEVICE_THERMAL")
uuid = Property("DEVICE_UUID")


class Type(enum.StrEnum):
    """Where a device sits."""

    INTEGRATED = "integrated"
    DISCRETE = "discrete"


class Capability(enum.StrEnum):
    """What ``OPTIMIZATION_CAPABILITIES`` lists: what a device is made for."""

    FP32 = "FP32"
    BF16 = "BF16"
    FP16 = "FP16"
    INT8 = "INT8"
    INT16 = "INT16"
    BIN = "BIN"
    WINOGRAD = "WINOGRAD"
    EXPORT_IMPORT = "EXPORT_IMPORT"
