"""The properties of the OPENCL devices."""

from __future__ import annotations

import enum

from pydantic import Field

from partita.properties import DeviceProperties, read_only


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
