"""Kernels written as LLVM IR: compiled once per machine, kept on disk, loaded into the process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from partita.errors import CompileError
from partita_cpu.native import store, workers
from partita_cpu.native.fingerprint import fingerprint
from partita_cpu.native.image import Image, image_of, load
from partita_cpu.native.ir import module
from partita_cpu.native.isa import REQUIRED, Isa, detected, host_features
from partita_cpu.native.workers import Job

_PROCESSOR = {Isa.AVX2: "haswell", Isa.AVX512: "sapphirerapids", Isa.AMX: "sapphirerapids"}
"""What instructions are scheduled for; `_features` takes away what a level does not use.

With the scheduling models of older processors LLVM spills a third of the sums of the largest tile.
"""

_lock = threading.Lock()


def addresses(level: Isa, part: str = "") -> dict[str, int]:
    """Entry points of the kernels of a level, by name; they stay valid while the process lives.

    Args:
        level: Instruction sets.
        part: One of `module.PARTS`.

    Raises:
        CompileError: This machine does not have the level.
    """
    with _lock:
        return _addresses(level, part)


@functools.cache
def _addresses(level: Isa, part: str) -> dict[str, int]:
    if level is Isa.PORTABLE or level > detected():
        raise CompileError(
            f"There are no native kernels of level {level.label}: this machine has "
            f"{detected().label}."
        )
    return load(level_image(level, part))


def level_image(level: Isa, part: str = "") -> Image:
    """The kernels of a level: those on disk if they are there and whole, else new ones."""
    name, key = _file(level, part)
    found = store.read(name, key)
    if found is None:
        job = level_job(level, part)
        workers.order([job])
        workers.wait([job.file])
        found = store.read(name, key)
    return make_level(level, part) if found is None else Image.unpack(found)


def make_level(level: Isa, part: str) -> Image:
    """Compiles the kernels of a level, and keeps them on disk."""
    names = [function.name for function in module.functions(level, part)]
    image = image_of(_object(module.text(level, part), level_machine(level)), names)
    store.write(*_file(level, part), image.pack())
    return image


def level_job(level: Isa, part: str = "") -> Job:
    """What another process is told to let it make them."""
    return Job(store.file_name(*_file(level, part)), {"level": int(level), "part": part})


def _file(level: Isa, part: str) -> tuple[str, str]:
    """Name and key of a level's kernels on disk."""
    key = f"{fingerprint(module.text)} {_PROCESSOR[level]} {sorted(REQUIRED[level])}"
    return f"{level.label}{part}", key


def function_address(name: str, text: str) -> int:
    """The address of a function written as LLVM IR that any processor understands."""
    found = store.read(name, text)
    if found is None:
        image = image_of(_object(text, _plain_machine()), [name])
        store.write(name, text, image.pack())
    else:
        image = Image.unpack(found)
    return load(image)[name]


def _object(text: str, machine: Any) -> bytes:
    from llvmlite import binding

    parsed = binding.parse_assembly(text)
    parsed.verify()
    code: bytes = machine.emit_object(parsed)
    return code


def level_machine(level: Isa) -> Any:
    """LLVM's target for a level."""
    return _target(cpu=_PROCESSOR[level], features=_features(level), opt=3)


def _plain_machine() -> Any:
    return _target()


def _target(**options: Any) -> Any:
    """A target whose code calls and reads by whole addresses, as images need it."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    return target.create_target_machine(codemodel="jitdefault", jit=True, **options)


def _features(level: Isa) -> str:
    """What a level needs, whole vectors, and nothing that the processor lacks."""
    from llvmlite import binding

    wanted = REQUIRED[level]
    names: Sequence[str] = sorted(binding.get_host_cpu_features())
    vectors = ("amx", "avx", "sha", "vaes", "vpclmul", "gfni")
    unwanted = [
        name
        for name in names
        if name not in host_features() or (name.startswith(vectors) and name not in wanted)
    ]
    signed = [*(f"-{name}" for name in unwanted), *(f"+{name}" for name in sorted(wanted))]
    return ",".join([*signed, "-prefer-256-bit"])
