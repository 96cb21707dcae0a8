"""Hints: what the application wants, for devices to make of it what they can."""

from __future__ import annotations

import enum

from partita.properties.names import Property

inference_precision = Property("INFERENCE_PRECISION_HINT")
performance_mode = Property("PERFORMANCE_HINT")
execution_mode = Property("EXECUTION_MODE_HINT")
num_requests = Property("PERFORMANCE_HINT_NUM_REQUESTS")
activations_scale_factor = Property("ACTIVATIONS_SCALE_FACTOR")
allow_auto_batching = Property("ALLOW_AUTO_BATCHING")
compiled_blob = Property("COMPILED_BLOB")
dynamic_quantization_group_size = Property("DYNAMIC_QUANTIZATION_GROUP_SIZE")
enable_cpu_pinning = Property("ENABLE_CPU_PINNING")
enable_cpu_reservation = Property("ENABLE_CPU_RESERVATION")
enable_hyper_threading = Property("ENABLE_HYPER_THREADING")
kv_cache_precision = Property("KV_CACHE_PRECISION")
model = Property("MODEL_PTR")
model_distribution_policy = Property("MODEL_DISTRIBUTION_POLICY")
model_priority = Property("MODEL_PRIORITY")
scheduling_core_type = Property("SCHEDULING_CORE_TYPE")


class PerformanceMode(enum.StrEnum):
    """What to optimize for."""

    LATENCY = "LATENCY"
    THROUGHPUT = "THROUGHPUT"
    CUMULATIVE_THROUGHPUT = "CUMULATIVE_THROUGHPUT"
    UNDEFINED = "UNDEFINED"

    @property
    def is_throughput(self) -> bool:
        """Whether many requests at a time count, on one device or on several together."""
        return self in (PerformanceMode.THROUGHPUT, PerformanceMode.CUMULATIVE_THROUGHPUT)


class ExecutionMode(enum.StrEnum):
    """What to prefer where speed and exactness differ."""

    PERFORMANCE = "PERFORMANCE"
    ACCURACY = "ACCURACY"


class Priority(enum.StrEnum):
    """How much a model matters beside others."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    DEFAULT = "MEDIUM"


class SchedulingCoreType(enum.StrEnum):
    """On which processors of a mixed kind to compute."""

    ANY_CORE = "ANY_CORE"
    PCORE_ONLY = "PCORE_ONLY"
    ECORE_ONLY = "ECORE_ONLY"


class ModelDistributionPolicy(enum.StrEnum):
    """How a model is spread over devices."""

    TENSOR_PARALLEL = "TENSOR_PARALLEL"
    PIPELINE_PARALLEL = "PIPELINE_PARALLEL"
