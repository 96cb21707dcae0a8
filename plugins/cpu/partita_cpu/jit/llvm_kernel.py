"""Kernels written as LLVM IR: compiled once per machine, kept on disk, loaded into the process."""

from __future__ import annotations

import functools
from typing import Any

from partita.errors import CompileError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_cpu.jit import compile_pool, disk_cache
from partita_cpu.jit.code_hash import generators_digest
from partita_cpu.jit.compile_pool import Job
from partita_cpu.jit.isa import available
from partita_cpu.jit.loader.elf_image import FORMAT, Image, image_of, load
from partita_cpu.llvm.levels import AARCH64, X86_64, Level

_lock = InterruptSafeLock()


def addresses(level: Level, part: str = "") -> dict[str, int]:
    """Entry points of the kernels of a level, by name; they stay valid while the process lives.

    Args:
        level: Instruction sets.
        part: One of `partita_cpu.llvm.module.PARTS`.

    Raises:
        CompileError: This machine does not have the level.
    """
    with _lock:
        return code_addresses(level, part)


@functools.cache
def code_addresses(level: Level, part: str) -> dict[str, int]:
    """The addresses of the functions of one part of the kernels, compiled for a level.

    Raises:
        CompileError: This machine does not have the level.
    """
    if not level.native or level not in available():
        raise CompileError(
            f"There are no native kernels of level {level.name}: this machine has "
            f"{', '.join(found.name for found in available())}."
        )
    return load(level_image(level, part))


def level_image(level: Level, part: str = "") -> Image:
    """The kernels of a level: those on disk if they are there and whole, else new ones."""
    name, key = object_file(level, part)
    found = disk_cache.read(name, key)
    if found is None:
        job = level_job(level, part)
        compile_pool.order([job])
        compile_pool.wait([job.file])
        found = disk_cache.read(name, key)
    return make_level(level, part) if found is None else Image.unpack(found)


def make_level(level: Level, part: str) -> Image:
    """Compiles the kernels of a level, and keeps them on disk."""
    from partita_cpu.llvm import module

    names = [function.name for function in module.functions(level, part)]
    image = image_of(object_code(module.text(level, part), level_machine(level)), names)
    disk_cache.write(*object_file(level, part), image.pack())
    return image


def level_job(level: Level, part: str = "") -> Job:
    """What another process needs to make them."""
    return Job(disk_cache.file_name(*object_file(level, part)), {"level": level.name, "part": part})


def object_file(level: Level, part: str) -> tuple[str, str]:
    """Name and key of a level's kernels on disk."""
    key = f"{FORMAT} {generators_digest()} {level} {level.processor} {sorted(level.features)}"
    return f"{level.name}{part}", key


def function_address(name: str, text: str) -> int:
    """The address of a function written as LLVM IR that any processor understands."""
    return load(function_image(name, text))[name]


def function_image(name: str, text: str) -> Image:
    """Such a function: the one on disk if it is there and whole, else a new one."""
    key = f"{FORMAT} {text}"
    found = disk_cache.read(name, key)
    if found is not None:
        return Image.unpack(found)
    image = image_of(object_code(text, target_machine()), [name])
    disk_cache.write(name, key, image.pack())
    return image


def object_code(text: str, machine: Any) -> bytes:
    """The machine code of LLVM's text, as an object file."""
    from llvmlite import binding

    parsed = binding.parse_assembly(text)
    parsed.verify()
    code: bytes = machine.emit_object(parsed)
    return code


def level_machine(level: Level, triple: str = "") -> Any:
    """LLVM's target for a level.

    It has the level's features and no others, whatever this machine has: what is compiled for a
    level is the same everywhere. What instructions are scheduled for, functions say themselves;
    see `module.text`.

    Args:
        level: One with kernels.
        triple: Another target than this process; what is compiled for it cannot be loaded.
    """
    features = [
        *(f"+{name}" for name in sorted(level.features)),
        *_WHOLE_VECTORS[level.architecture],
    ]
    return target_machine(triple, cpu=_BASE[level.architecture], features=",".join(features), opt=3)


_BASE = {X86_64: "x86-64", AARCH64: "generic"}
"""Processors that have what all of an architecture have."""

_WHOLE_VECTORS = {X86_64: ("-prefer-256-bit", "+fast-dpwssd"), AARCH64: ()}
"""Undoes what comes with the processor that is scheduled for: shorter vectors, and two instructions
in the place of one that multiplies and adds up."""


def target_machine(triple: str = "", **options: Any) -> Any:
    """A target whose code calls and reads by whole addresses, as images need it."""
    from llvmlite import binding

    if triple:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
    else:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    return target.create_target_machine(codemodel="jitdefault", jit=True, **options)
