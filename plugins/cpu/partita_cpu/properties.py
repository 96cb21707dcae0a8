"""The settings of device CPU."""

from __future__ import annotations

import platform
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from partita.properties import DeviceProperties, read_only
from partita.properties.hint import ExecutionMode, PerformanceMode
from partita.system.processors import usable_processors

MOST_THREADS = 4095
"""Of one compiled model: `thread_pool.MOST_SHARES`."""


def _processors() -> int:
    """Threads that compute where nobody says how many."""
    return min(usable_processors(), MOST_THREADS)


def _streams(given: Any) -> Any:
    """A number of streams; 0 for what OpenVINO calls AUTO and -1, 1 for NUMA and -2."""
    return {"AUTO": 0, "-1": 0, "NUMA": 1, "-2": 1}.get(str(given).upper(), given)


def _capabilities() -> list[str]:
    """What ``OPTIMIZATION_CAPABILITIES`` lists."""
    from partita_cpu.jit.isa import isa

    level = isa()
    able = {"FP32": True, "BF16": level.dots_bfloat16, "FP16": level.native}
    able |= {"INT8": level.dots_bytes, "WINOGRAD": level.native and not level.tiles}
    able["EXPORT_IMPORT"] = True
    return [name for name, has in able.items() if has]


class CpuProperties(DeviceProperties):
    """Properties of device CPU."""

    INFERENCE_NUM_THREADS: int = Field(
        0,
        ge=0,
        le=MOST_THREADS,
        description="Threads that compute; 0 for one per processor that this process may use: "
        "affinity masks and the quotas of containers count.",
    )
    INFERENCE_PRECISION_HINT: Literal["f32", "bf16", "f16"] = Field(
        "f32",
        description="Precision of floating-point arithmetic. bf16 rounds the factors of matrix "
        "products and convolutions to bfloat16 where the processor has instructions for it "
        "(AVX512_BF16, AMX, bf16 of 64-bit ARM), and images between them but on ARM. Where "
        "AVX512_BF16 is slower than float32, as on Intel's processors without AMX, it computes f32 "
        "and rounds only large matrices of weights that few rows are multiplied by. f16 rounds "
        "factors to float16: weights are kept so (for AMX as two bfloat16), and images between "
        "convolutions with AVX-512; numbers beyond 65504 become infinite, sums are float32. Where "
        "kernels lack it they compute f32: the compiled model's property says so (bf16 if a matrix "
        "is rounded), its INFERENCE_PRECISION_NOTE and explain() say why.",
    )
    DYNAMIC_QUANTIZATION_GROUP_SIZE: int = Field(
        0,
        ge=0,
        multiple_of=32,
        description="Terms of a row that share a scale where products of many rows with weights "
        "quantized in blocks (MatMulNBits), as prompts of language models are read, round rows to "
        "int8. 0 takes int16 instead, and each block for itself: results are then off by 1e-4 of "
        "the largest at most, with groups of 32 by 1e-2. For weights of 4 bits on AVX2 and "
        "AVX-512, and of 8 bits with VNNI; not on ARM, nor where AMX multiplies. The compiled "
        "model's property is what it comes to, its DYNAMIC_QUANTIZATION_NOTE and explain() tell.",
    )
    EXECUTION_MODE_HINT: ExecutionMode = Field(
        ExecutionMode.PERFORMANCE,
        description="What to prefer where speed and exactness differ. ACCURACY is as exact "
        "as float32: convolutions of 3 x 3 taps may be computed by Winograd's minimal filtering "
        "with tiles of 2 x 2; PERFORMANCE lets AMX compute long sums as three bfloat16 products, "
        "and other processors filter with tiles of 4 x 4, in float32 even for bf16 (error per "
        "operation at most 2e-5 of a tensor's maximum, but for rounding "
        "images to bfloat16), and rounds rows to 16 bits where weights are quantized in blocks "
        "(error at most 1e-4).",
    )
    PERFORMANCE_HINT: PerformanceMode = Field(
        PerformanceMode.LATENCY, description="Whether one request or many at once shall be fast."
    )
    PERFORMANCE_HINT_NUM_REQUESTS: int = Field(
        0,
        ge=0,
        description="Requests that the application keeps running at most; there are no more "
        "streams. 0 if it is not known.",
    )
    NUM_STREAMS: Annotated[int, BeforeValidator(_streams)] = Field(
        0,
        ge=0,
        description="Requests computed at the same time, which share the threads evenly; 0 or AUTO "
        "for 1 if PERFORMANCE_HINT asks for latency, one per thread if it asks for throughput.",
    )
    RANGE_FOR_STREAMS: tuple[int, int] = read_only(
        lambda: (1, _processors()), "The least and the largest number of streams that make sense."
    )
    RANGE_FOR_ASYNC_INFER_REQUESTS: tuple[int, int, int] = read_only(
        lambda: (1, _processors(), 1),
        "The least and the largest number of requests that make sense, and the step between.",
    )
    OPTIMIZATION_CAPABILITIES: list[str] = read_only(
        _capabilities,
        "Arithmetic that the processor has instructions for, WINOGRAD where convolutions are "
        "computed so, and EXPORT_IMPORT.",
    )
    DEVICE_ARCHITECTURE: str = read_only(platform.machine, "The processor's architecture.")
    SHAPE_CACHE_BYTES: int = Field(
        1 << 27,
        ge=0,
        description="Memory for what was made for input shapes seen before: programs, per compiled "
        "model, and as much again per request for their calls and outputs. What was used least "
        "recently goes first, the last one stays. Weights and the block of intermediate tensors "
        "are one for all shapes and do not count.",
    )
    ENABLE_CPU_PINNING: bool = Field(
        False,
        description="Keep each thread of the device on one processor. Wakes threads sooner on an "
        "idle machine; slow where another program uses that processor. The calling thread is "
        "never moved.",
    )

    @property
    def threads(self) -> int:
        """Number of threads that compute, of all streams together."""
        return self.INFERENCE_NUM_THREADS or _processors()

    @property
    def streams(self) -> int:
        """Number of requests computed at the same time."""
        if self.NUM_STREAMS:
            return min(self.NUM_STREAMS, self.threads)
        if not self.PERFORMANCE_HINT.is_throughput:
            return 1
        return min(self.threads, self.PERFORMANCE_HINT_NUM_REQUESTS or self.threads)
