"""IR text to machine code: compiled once per machine, kept on disk, loaded into the process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from partita.errors import CompileError
from partita_cpu.native.ir import module
from partita_cpu.native.isa import REQUIRED, Isa, detected, host_features

CACHE_VARIABLE = "PARTITA_CACHE_DIR"

_PROCESSOR = {Isa.AVX2: "haswell", Isa.AVX512: "sapphirerapids", Isa.AMX: "sapphirerapids"}
"""What instructions are scheduled for; `_features` takes away what a level does not use.

With the scheduling models of older processors LLVM spills a third of the sums of the largest tile.
"""

_DIGEST_BYTES = 32
_lock = threading.Lock()
_kept: list[Any] = []


def cache_folder() -> Path:
    """Where compiled kernels are kept: below PARTITA_CACHE_DIR, or in the user's cache folder."""
    root = os.environ.get(CACHE_VARIABLE)
    if root:
        return Path(root).expanduser() / "cpu"
    from platformdirs import user_cache_path

    return user_cache_path("partita", appauthor=False) / "cpu"


def addresses(level: Isa) -> dict[str, int]:
    """Entry points of all kernels of a level, by name; they stay valid while the process lives.

    Raises:
        CompileError: This machine does not have the level.
    """
    with _lock:
        return _addresses(level)


@functools.cache
def _addresses(level: Isa) -> dict[str, int]:
    if level is Isa.PORTABLE or level > detected():
        raise CompileError(
            f"There are no native kernels of level {level.label}: this machine has "
            f"{detected().label}."
        )
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = _machine(binding, level)
    code = object_code(level, machine)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _kept.append(engine)
    names = [function.name for function in module.functions(level)]
    return {name: engine.get_function_address(name) for name in names}


def object_code(level: Isa, machine: Any, folder: Path | None = None) -> bytes:
    """The object file of a level: the one on disk if it is there and whole, else a new one.

    A file is its content behind the content's SHA-256. It is written beside its place and moved
    there, so that processes that come at the same time never see half of one.
    """
    from llvmlite import binding

    text = module.text(level)
    path = (folder or cache_folder()) / f"{level.label}-{_key(text, level)}.o"
    found = _read(path)
    if found is not None:
        return found
    parsed = binding.parse_assembly(text)
    parsed.verify()
    code: bytes = machine.emit_object(parsed)
    # Kernels that cannot be kept are still good for this process.
    with contextlib.suppress(OSError):
        _write(path, code)
    return code


def _machine(binding: Any, level: Isa) -> Any:
    return binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=_PROCESSOR[level],
        features=_features(level),
        opt=3,
        codemodel="jitdefault",
        jit=True,
    )


def _features(level: Isa) -> str:
    """What a level needs, whole vectors, and nothing that the processor lacks."""
    from llvmlite import binding

    wanted = REQUIRED[level]
    names = sorted(binding.get_host_cpu_features())
    vectors = ("amx", "avx", "sha", "vaes", "vpclmul", "gfni")
    unwanted = [
        name
        for name in names
        if name not in host_features() or (name.startswith(vectors) and name not in wanted)
    ]
    signed = [*(f"-{name}" for name in unwanted), *(f"+{name}" for name in sorted(wanted))]
    return ",".join([*signed, "-prefer-256-bit"])


def _key(text: str, level: Isa) -> str:
    import llvmlite

    parts = (text, _PROCESSOR[level], _features(level), llvmlite.__version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
