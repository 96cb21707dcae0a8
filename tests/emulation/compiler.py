"""Compiles kernels for an emulated processor, on this machine's own.

An emulated Python starts this in place of `partita_cpu.runtime.compile_worker`, since an emulated
compiler
takes many times as long. What it leaves on disk the emulated Python loads as its own.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any


def describe() -> dict[str, str]:
    """What kernels for the processor that runs this are compiled for, and where they are kept."""
    from llvmlite import binding

    from partita_cpu.jit import disk_cache

    return {
        "machine": platform.machine(),
        "triple": binding.get_process_triple(),
        "cpu": binding.get_host_cpu_name(),
        "features": binding.get_host_cpu_features().flatten(),
        "folder": disk_cache.machine(),
    }


def compile_for(target: dict[str, str]) -> None:
    """Has this process compile for what :func:`describe` said, from here on."""
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = (
        target["cpu"],
        target["features"],
    )
    _replace(platform, "machine", target["machine"])

    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    _replace(binding, "get_process_triple", target["triple"])

    from partita_cpu.jit import disk_cache

    _replace(disk_cache, "machine", target["folder"])


def _replace(module: Any, name: str, answer: str) -> None:
    setattr(module, name, lambda: answer)


def main(arguments: list[str]) -> None:
    """Answers ``describe``, or works as a worker would.

    Args:
        arguments: ``describe``, or what it said and then what a worker is started with.
    """
    if arguments == ["describe"]:
        sys.stdout.write(json.dumps(describe()))
        return
    compile_for(json.loads(Path(arguments[0]).read_text()))

    from partita_cpu.runtime import compile_worker

    descriptor, copies, levels = arguments[-3:]
    compile_worker.main(int(descriptor), int(copies), json.loads(levels))


if __name__ == "__main__":
    main(sys.argv[1:])
