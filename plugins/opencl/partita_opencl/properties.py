"""The properties of the OPENCL devices."""

from __future__ import annotations

import enum

from pydantic import Field

from partita.properties import DeviceProperties, read_only
from partita.properties.hint import ExecutionMode, PerformanceMode


class Precision(enum.StrEnum):
    """What to compute in."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    BF16X3 = "bf16x3"


class Tiling(enum.StrEnum):
    """What kernels are cut for."""

    AUTO = "AUTO"
    LOCAL = "LOCAL"
    REGISTERS = "REGISTERS"


class OpenClProperties(DeviceProperties):
    """What can be set on an OPENCL device."""

    INFERENCE_PRECISION_HINT: Precision = Field(
        Precision.F32,
        description="Element type that float32 models are computed in. f16 and bf16 keep halves in "
        "memory and sums in float32; inputs and outputs keep their types. Models with tensors of "
        "float16 are computed in f16 instead of bf16. bf16x3 keeps float32, and multiplies by "
        "constant matrices as three products of bf16 where there are matrix units.",
    )
    EXECUTION_MODE_HINT: ExecutionMode = Field(
        ExecutionMode.PERFORMANCE,
        description="What to prefer where speed and exactness differ. Both modes compute as "
        "exactly as INFERENCE_PRECISION_HINT says, which is f32 unless it is set.",
    )
    PERFORMANCE_HINT: PerformanceMode = Field(
        PerformanceMode.UNDEFINED,
        description="Whether one request or many at once shall be fast. LATENCY recommends one "
        "request at a time (OPTIMAL_NUMBER_OF_INFER_REQUESTS), all else as many as keep host and "
        "GPU busy beside each other. Kernels are the same.",
    )
    PERFORMANCE_HINT_NUM_REQUESTS: int = Field(
        0,
        ge=0,
        description="Requests that the application keeps running at most; no more are recommended. "
        "0 if it is not known.",
    )
    TILING: Tiling = Field(
        Tiling.AUTO,
        description="LOCAL cuts work for many small processors and stages tiles in local memory "
        "(GPUs), REGISTERS for a few large ones (CPUs); AUTO goes by the device's type.",
    )
    FUSE_ELEMENTWISE: bool = Field(
        True, description="Compute chains of element-wise operations by one generated kernel."
    )
    SHAPE_CACHE_BYTES: int = Field(
        1 << 27,
        ge=0,
        description="Memory for what was made for input shapes seen before: programs, and as much "
        "for plans with their constants, per compiled model; as much again per request for "
        "launches, and for the smaller buffers that those keep when larger shapes come. What was "
        "used least recently goes first, the last one stays. Weights, and a request's other "
        "buffers for tensors, are one for all shapes and do not count.",
    )
    NUM_STREAMS: int = read_only(1, "In-order queues per request.")

    def recommended_requests(self, most: int) -> int:
        """How many requests at a time are recommended, of so many that a device has use for."""
        if self.PERFORMANCE_HINT is PerformanceMode.LATENCY:
            return 1
        return min(most, self.PERFORMANCE_HINT_NUM_REQUESTS or most)
