"""Hints: what the application wants, for devices to make of it what they can."""

from __future__ import annotations

import enum

from partita.properties.names import Property

inference_precision = Property("INFERENCE_PRECISION_HINT")
performance_mode = Property("PERFORMANCE_HINT")
execution_mode = Property("EXECUTION_MODE_HINT")
num_requests = Property("PERFORMANCE_HINT_NUM_REQUESTS")


class PerformanceMode(enum.StrEnum):
    """What to optimize for."""

    LATENCY = "LATENCY"
    THROUGHPUT = "THROUGHPUT"
    UNDEFINED = "UNDEFINED"


class ExecutionMode(enum.StrEnum):
    """What to prefer where speed and exactness differ."""

    PERFORMANCE = "PERFORMANCE"
    ACCURACY = "ACCURACY"
