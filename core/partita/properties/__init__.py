"""Properties: typed settings of devices and of Core, validated before anything sees them.

A plugin declares its properties once, as fields of a :class:`DeviceProperties` subclass. The
property objects here and in :mod:`partita.properties.device` and :mod:`.hint` are their names:
strings that, called with a value, give the ``(key, value)`` pair, so that code written for
OpenVINO's ``properties`` module runs. A device accepts those that it has, and refuses the others
by name. Plugins have the names of their own properties.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from partita.deferred import deferred_attributes
from partita.properties import device, hint, intel_auto, intel_cpu, log, streams
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
    "CacheMode",
    "CoreProperties",
    "DeviceProperties",
    "Property",
    "WorkloadType",
    "auto_batch_timeout",
    "available_devices",
    "cache_dir",
    "cache_mode",
    "compatibility_check",
    "compilation_num_threads",
    "device",
    "enable_mmap",
    "enable_profiling",
    "enable_weightless",
    "execution_devices",
    "force_tbb_terminate",
    "hint",
    "inference_num_threads",
    "intel_auto",
    "intel_cpu",
    "key_cache_group_size",
    "key_cache_precision",
    "loaded_from_cache",
    "log",
    "max_batch_size",
    "model_name",
    "normalize",
    "num_streams",
    "optimal_batch_size",
    "optimal_number_of_infer_requests",
    "range_for_async_infer_requests",
    "range_for_streams",
    "read_only",
    "runtime_requirements",
    "streams",
    "supported_properties",
    "validate",
    "value_cache_group_size",
    "value_cache_precision",
    "weights_path",
    "workload_type",
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
auto_batch_timeout = Property("AUTO_BATCH_TIMEOUT")
cache_mode = Property("CACHE_MODE")
compatibility_check = Property("COMPATIBILITY_CHECK")
compilation_num_threads = Property("COMPILATION_NUM_THREADS")
enable_mmap = Property("ENABLE_MMAP")
enable_weightless = Property("ENABLE_WEIGHTLESS")
force_tbb_terminate = Property("FORCE_TBB_TERMINATE")
key_cache_group_size = Property("KEY_CACHE_GROUP_SIZE")
key_cache_precision = Property("KEY_CACHE_PRECISION")
max_batch_size = Property("MAX_BATCH_SIZE")
optimal_batch_size = Property("OPTIMAL_BATCH_SIZE")
range_for_async_infer_requests = Property("RANGE_FOR_ASYNC_INFER_REQUESTS")
range_for_streams = Property("RANGE_FOR_STREAMS")
runtime_requirements = Property("RUNTIME_REQUIREMENTS")
value_cache_group_size = Property("VALUE_CACHE_GROUP_SIZE")
value_cache_precision = Property("VALUE_CACHE_PRECISION")
weights_path = Property("WEIGHTS_PATH")
workload_type = Property("WORKLOAD_TYPE")


class CacheMode(enum.StrEnum):
    """What ``CACHE_DIR`` is to save."""

    OPTIMIZE_SIZE = "OPTIMIZE_SIZE"
    OPTIMIZE_SPEED = "OPTIMIZE_SPEED"


class WorkloadType(enum.StrEnum):
    """How urgent a model's runs are."""

    DEFAULT = "DEFAULT"
    EFFICIENT = "EFFICIENT"


_SCHEMA = "CoreProperties", "DeviceProperties", "is_read_only", "read_only", "validate", "writable"

if not TYPE_CHECKING:
    __getattr__ = deferred_attributes(__name__, dict.fromkeys(_SCHEMA, "partita.properties.schema"))


def __dir__() -> list[str]:
    """All names, those too that are imported when they are first used."""
    return sorted({*globals(), *_SCHEMA})
