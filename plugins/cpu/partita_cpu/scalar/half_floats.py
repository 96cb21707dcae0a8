"""16-bit floats as the bits of integers: to float32, and rounded to the nearest, ties to even."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_cpu.jit.loop_kernel import loop
from partita_cpu.scalar.instructions import bits


@loop(inline=True)
def float16_to_float32(pattern: Any) -> Any:
    """The float32 of a float16's bits, as int32 arithmetic that vectorizes."""
    wide = np.int32(pattern)
    magnitude = bits(np.int32((wide & np.int32(0x7FFF)) << np.int32(13)))
    # The product moves the exponent's bias and makes subnormals normal.
    shifted = bits(magnitude * np.float32(2.0**112))
    special = np.int32(shifted | np.int32(0x7F800000))
    result = special if (wide & np.int32(0x7C00)) == np.int32(0x7C00) else shifted
    sign = np.int32((wide & np.int32(0x8000)) << np.int32(16))
    return bits(np.int32(np.int32(result) | sign))


@loop(inline=True)
def float32_to_float16(value: Any) -> Any:
    """The bits of the nearest float16, ties to even."""
    pattern = bits(value)
    magnitude = np.int32(pattern & np.int32(0x7FFFFFFF))
    odd = np.int32((magnitude >> np.int32(13)) & np.int32(1))
    normal = np.int32(np.int32(magnitude - np.int32(0x38000000) + np.int32(0xFFF) + odd) >> 13)
    # Adding 0.5 aligns a subnormal's bits with the end of the mantissa, rounding on the way.
    small = np.int32(bits(bits(magnitude) + np.float32(0.5)) - np.int32(0x3F000000))
    result = small if magnitude < np.int32(0x38800000) else normal
    result = np.int32(0x7C00) if magnitude >= np.int32(0x477FF000) else result
    result = np.int32(0x7E00) if magnitude > np.int32(0x7F800000) else result
    sign = np.int32((pattern >> np.int32(16)) & np.int32(0x8000))
    return np.uint16(np.int32(np.int32(result) | sign))


@loop(inline=True)
def float32_to_bfloat16(value: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even."""
    pattern = bits(value)
    odd = np.int32((pattern >> np.int32(16)) & np.int32(1))
    rounded = np.int32(np.int32(pattern + np.int32(0x7FFF) + odd) >> np.int32(16))
    quiet = np.int32((pattern >> np.int32(16)) | np.int32(0x40))
    return np.uint16(quiet if value != value else rounded)


@loop(inline=True)
def bfloat16_to_float32(pattern: Any) -> Any:
    """The float32 of a bfloat16's bits."""
    return bits(np.int32(np.int32(pattern) << np.int32(16)))
