"""Properties: typed settings of devices and of Core, validated before anything sees them.

A plugin declares its properties once, as fields of a :class:`DeviceProperties` subclass. The
property objects here and in :mod:`partita.properties.device` and :mod:`.hint` are their names:
strings that, called with a value, give the ``(key, value)`` pair, so that code written for
OpenVINO's ``properties`` module runs. Plugins have the names of their own properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita.properties import device, hint, log, streams
from partita.properties.deferred import deferred_attributes
from partita.properties.names import Property
from partita.properties.values import Config as Config
from partita.properties.values import merge as merge
from partita.properties.values import normalize

if TYPE_CHECKING:
    from partita.properties.schema import (
        CoreProperties,
        DeviceProperties,
        read_only,
        validate,
    )
    from partita.properties.schema import is_read_only as is_read_only
    from partita.properties.schema import writable as writable

__all__ = [
    "CoreProperties",
    "DeviceProperties",
    "Property",
    "available_devices",
    "cache_dir",
    "device",
    "enable_profiling",
    "execution_devices",
    "hint",
    "inference_num_threads",
    "loaded_from_cache",
    "log",
    "model_name",
    "normalize",
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

_SCHEMA = "CoreProperties", "DeviceProperties", "is_read_only", "read_only", "validate", "writable"

if not TYPE_CHECKING:
    __getattr__ = deferred_attributes(__name__, dict.fromkeys(_SCHEMA, "partita.properties.schema"))


def __dir__() -> list[str]:
    """All names, those too that are imported when they are first used."""
    return sorted({*globals(), *_SCHEMA})
