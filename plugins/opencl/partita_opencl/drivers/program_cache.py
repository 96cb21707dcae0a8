"""Compiled OpenCL programs: assembled from .cl files, built in parallel, kept on disk.

A binary on disk is found by the digest of everything that made it (source, options, device,
driver, platform). One that is damaged, was put under another name, or is refused by the driver, is
built again and replaced. The folder is kept to a bounded number of files.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from partita.errors import CompileError, DeviceMemoryError
from partita.storage.cache_folder import cache_folder, keep_sealed, prune, read_sealed
from partita.system.processors import usable_processors
from partita.system.threads import joint_work
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_opencl.drivers.builtin_functions import NAMED, UNDECLARED, with_declarations
from partita_opencl.drivers.hopper_ptx import HIDDEN, unhidden
from partita_opencl.drivers.processor_name import POCL
from partita_opencl.drivers.trial_process import end_without_memory

_log = logging.getLogger(__name__)

MARK = "/*@generated@*/"
"""Where a .cl file takes generated code."""

_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
"""How a .cl file names another one whose text belongs there."""

FILES = 2048
"""Programs kept on disk; when there are more, the half that was used longest ago is deleted."""

PROGRAMS = 256
"""Programs kept in memory per device whether a plan uses them or not: those of a few networks.

PoCL takes one to several MB for each. Those that plans use are shared, however many they are.
"""


_pocl_turn, _has_pocl_failed = InterruptSafeLock(), threading.Event()
"""Whose turn it is to build with PoCL, and whether its compiler ran out of memory."""


@dataclass(frozen=True)
class ProgramKey:
    """What a program is made of; equal keys share one program.

    Attributes:
        file: The .cl file in this package's ``cl`` folder.
        options: Macro names with values; ``None`` defines a macro without value.
        generated: Code that replaces the file's mark.
    """

    file: str
    options: tuple[tuple[str, str | int | None], ...] = ()
    generated: str = ""

    def __post_init__(self) -> None:
        """Computes the hash once: a plan looks for the programs of all its launches."""
        object.__setattr__(self, "_hash", hash((self.file, self.options, self.generated)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]  # a frozen class has it

    def source(self) -> str:
        """The whole OpenCL C source."""
        text = _file("prelude.cl") + _with_includes(self.file)
        return text.replace(MARK, self.generated) if self.generated else text

    def build_options(self) -> list[str]:
        """Compiler options; -w, since warnings about unused helpers help nobody."""
        macros = [f"-D{name}" if v is None else f"-D{name}={v}" for name, v in self.options]
        return ["-cl-std=CL1.2", "-w", *macros]


def _with_includes(name: str) -> str:
    """The text of a .cl file, with that of the files that it names."""
    return _INCLUDE.sub(lambda m: _with_includes(m[1]), _file(name))


class ProgramCache:
    """The programs of one device, in memory and on disk. Thread-safe.

    Args:
        context: The device's context.
        handle: The ``pyopencl.Device``.
        identity: Device, driver and platform with versions.
        on_disk: Whether to keep programs on disk.
        header: The driver's declarations of built-in functions, of which programs then bring those
            they need; empty if the driver is to see to that.

    Attributes:
        programs: Those that were asked for last, which stay without a plan that uses them.
    """

    def __init__(
        self, context: Any, handle: Any, identity: str, *, on_disk: bool = True, header: str = ""
    ) -> None:
        self._on_disk = on_disk
        self._header = header
        self._context = context
        self._handle = handle
        self._identity = identity
        self.programs: OrderedDict[ProgramKey, Any] = OrderedDict()
        self._in_use: weakref.WeakValueDictionary[ProgramKey, Any] = weakref.WeakValueDictionary()
        self._lock = InterruptSafeLock()

    def get(self, keys: Iterable[ProgramKey]) -> dict[ProgramKey, Any]:
        """The built programs; those that are missing are built side by side.

        Raises:
            CompileError: The driver refuses a program; the message holds its log.
            DeviceMemoryError: PoCL's compiler ran out of memory.
        """
        wanted = dict.fromkeys(keys)
        with self._lock:
            found = {key: self._in_use.get(key) for key in wanted}
        missing = [key for key, program in found.items() if program is None]
        if len(missing) > 1:
            with joint_work.workers(min(len(missing), usable_processors())) as pool:
                built = list(pool.map(self._make, missing))
        else:
            built = [self._make(key) for key in missing]
        with self._lock:
            for key, program in zip(missing, built, strict=True):
                found[key] = self._in_use.setdefault(key, program)  # or what was built meanwhile
            for key, program in found.items():
                self.programs[key] = program
                self.programs.move_to_end(key)
            while len(self.programs) > PROGRAMS:
                self.programs.popitem(last=False)
            return found

    def _make(self, key: ProgramKey) -> Any:
        source, options = key.source(), key.build_options()
        path = self._path(source, options)
        program = None if path is None else self._load(path)
        if program is None:
            program = self.build(key.file, source, options)
            if path is not None:
                self._store(path, program)
        return program

    def build(self, file: str, source: str, options: list[str]) -> Any:
        """Has the driver compile a source.

        Raises:
            CompileError: It refuses; the message holds its log.
        """
        import pyopencl as cl

        try:
            if self._header:
                source, options = with_declarations(self._header, source, options)
            program = cl._cl._Program(self._context, source)
        except (cl.Error, OSError) as error:
            raise self._refused(file, options, str(error)) from error
        try:
            built = built_program(program, " ".join(options), self._handle)
            if HIDDEN in source and "-DNVIDIA" in options:
                binary = unhidden(built.get_info(cl.program_info.BINARIES)[0])
                program = cl._cl._Program(self._context, [self._handle], [binary])
                built = built_program(program, "", self._handle)
            return built
        except cl.Error as error:
            log = str(program.get_build_info(self._handle, cl.program_build_info.LOG))
            refused = self._refused(file, options, str(error))
            advice = [NAMED] * (bool(self._header) and UNDECLARED in log)
            raise refused.with_lines([*log.splitlines(), *advice]) from error

    def _refused(self, file: str, options: list[str], why: str) -> CompileError:
        return CompileError(
            f"The OpenCL driver of '{self._handle.name}' cannot build '{file}' with "
            f"{' '.join(options)}: {why}"
        )

    def _path(self, source: str, options: list[str]) -> Path | None:
        folder = program_folder() if self._on_disk else None
        if folder is None:
            return None
        parts = (self._identity, *options, source)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return folder / f"{digest}.clbin"

    def _load(self, path: Path) -> Any:
        """The program of a cached binary, or ``None`` if there is none or it is not sound."""
        import pyopencl as cl

        binary = read_sealed(path)
        if binary is None:
            return None
        if not binary:
            _log.warning("The cached OpenCL program '%s' is damaged; it is built again.", path)
            return None
        try:
            path.touch()  # used now: among the last to be deleted
            program = cl._cl._Program(self._context, [self._handle], [binary])
            return built_program(program, "", self._handle)
        except (OSError, cl.Error) as error:
            _log.warning("The driver refuses the cached OpenCL program '%s': %s", path, error)
            return None

    def _store(self, path: Path, program: Any) -> None:
        import pyopencl as cl

        try:
            binary = program.get_info(cl.program_info.BINARIES)[0]
            if keep_sealed(path, binary):
                prune(path.parent, FILES)
        except (OSError, cl.Error) as error:
            _log.info("The OpenCL program cache cannot be written: %s", error)


def built_program(program: Any, options: str, handle: Any) -> Any:
    """The program, built without what pyopencl does beside.

    Its own ``build`` warns whenever a driver writes a log, as NVIDIA's always does, and keeps a
    second cache on disk.

    Raises:
        DeviceMemoryError: PoCL's compiler had no memory, now or before in this process.
    """
    import pyopencl as cl

    if handle is not None and handle.platform.name == POCL:
        _build_with_pocl(program, options, handle)
    else:
        try:
            program._build(options.encode(), [handle])
        except MemoryError:
            end_without_memory()
            raise
    return cl.Program(program)


def _build_with_pocl(program: Any, options: str, handle: Any) -> None:
    """Builds one program at a time, as PoCL does.

    Without memory its compiler stays locked: what came to it then would wait for ever.
    """
    with _pocl_turn:
        if not _has_pocl_failed.is_set():
            try:
                program._build(options.encode(), [handle])
                return
            except MemoryError:
                end_without_memory()
                _has_pocl_failed.set()
    raise DeviceMemoryError(
        f"The OpenCL driver of '{handle.name}' ran out of memory while it built a program, and "
        "builds no further ones in this process, since its compiler stays locked. Start the "
        "process anew with more memory (`ulimit -v` shows its limit)."
    )


def set_argument(kernel: Any, position: int, value: Any) -> None:
    """Sets one argument of a kernel.

    Args:
        kernel: pyopencl's kernel.
        position: Which argument.
        value: The bytes of a number, a buffer, or ``None`` for a pointer to nothing.

    Raises:
        pyopencl.Error: The driver refuses it.
    """
    if value is None:  # which set_arg of pyopencl 2024 and 2025 does not take
        kernel._set_arg_null(position)
    elif isinstance(value, bytes):  # in a hundredth of the time that set_arg takes for them
        kernel._set_arg_buf(position, value)
    else:
        kernel.set_arg(position, value)


def program_folder() -> Path | None:
    """Where compiled programs are kept; see :func:`partita.storage.cache_folder.cache_folder`."""
    return cache_folder("opencl")


@functools.cache
def _file(name: str) -> str:
    return resources.files("partita_opencl").joinpath("cl", name).read_text(encoding="utf-8")
