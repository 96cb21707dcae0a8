"""PTX that NVIDIA's OpenCL compiler wrote, as its CUDA driver takes it.

Both assemble the same language. What OpenCL's form asks of its own launcher are read-only registers
(PTX ISA, ``%envreg``): where a launch's groups and items begin, which is zero for all of ours, and
how many groups there are, which CUDA has a register for.
"""

from __future__ import annotations

import re

_TARGET = re.compile(rb"(\.target\s+sm_\w+)\s*,\s*texmode_independent")
_REGISTER = re.compile(rb"%envreg(\d+)")
_AS_CUDA = {
    **dict.fromkeys(range(6), b"0"),
    6: b"%nctaid.x",
    7: b"%nctaid.y",
    8: b"%nctaid.z",
}


def for_cuda(binary: bytes) -> bytes | None:
    """The PTX of a program's binary, for CUDA; ``None`` if it asks for what CUDA cannot tell.

    Args:
        binary: What OpenCL gives as the program's binary; PTX in text, ended by zeros.
    """
    text = binary.rstrip(b"\0")
    asked = {int(number) for number in _REGISTER.findall(text)}
    if b".version" not in text or not asked <= _AS_CUDA.keys():
        return None
    named = _TARGET.sub(rb"\1", text)
    return _REGISTER.sub(lambda found: _AS_CUDA[int(found[1])], named)
