"""Instructions of NVIDIA's Hopper that its OpenCL compiler refuses: multiplication by warpgroups.

The driver compiles OpenCL C to PTX for ``sm_90``, where wgmma is an error, though it assembles PTX
for ``sm_90a``. A kernel hides such instructions behind a mark that makes them comments; the binary,
which is PTX text, gets the target named and the marks removed, and is handed to the driver again.
"""

from __future__ import annotations

import functools
import re

HIDDEN = "//@@{"
"""What the source of a kernel with hidden instructions in force holds."""


@functools.cache
def multiplier(columns: int, kind: str = "f16") -> str:
    """The macro that adds the product of 64 x 16 by 16 x ``columns`` halves in local memory.

    ``kind`` is their type: ``"f16"`` or ``"bf16"``.
    """
    count = columns // 2
    sums = ",".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"((sums)[{i}])' for i in range(count))
    return (
        "#define WGMMA(sums, a, b) asm volatile("
        '"//@@{ .reg .pred p; setp.eq.u32 p, 1, 1; '
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
        f'{{{sums}}}, %{count}, %{count + 1}, p, 1, 1, 0, 0; }}" '
        f': {operands} : "l"(a), "l"(b) : "memory")'
    )


def unhidden(binary: bytes) -> bytes:
    """The binary with its hidden instructions in force."""
    named = re.sub(rb"\.target\s+sm_90\b", b".target sm_90a", binary)
    return named.replace(b"//@@", b"")
