"""Dispatch of compiled numba kernels, from machine code and from Python, without importing numba.

A kernel is compiled once per machine for each kind of arguments; what is kept on disk is all that
later processes need. Where there is no image of it (it returns something, takes what is no array
nor number, or allocates), numba's own function serves, and numba is imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from partita.errors import InferError
from partita.lowering.program import flattened
from partita.system.threads.fork_order import forks_wait
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_cpu.jit import compile_pool, disk_cache
from partita_cpu.jit.code_hash import (
    extent,
    fingerprint,
    is_ours,
    translator_digest,
    units_of,
)
from partita_cpu.jit.compile_pool import Job
from partita_cpu.jit.deferred_numba import types
from partita_cpu.jit.foreign_call import invoke, keep_invoke
from partita_cpu.jit.isa import isa
from partita_cpu.jit.kernel_definition import (
    KernelDefinition,
    Kinds,
    kernels,
    kinds_of,
    type_of,
)
from partita_cpu.jit.kernel_wrappers import ItemSized
from partita_cpu.jit.loader.elf_image import FORMAT, Image, ImageError, image_of, load
from partita_cpu.jit.trampoline import RETURNED, Entry, fill, keep_trampoline, trampoline
from partita_cpu.system import this_system

_UNKNOWN = object()
_NEVER = b"no image"
_OPERATORS = "partita_cpu.kernels.operator_table"
_lock = InterruptSafeLock()


def available() -> bool:
    """Whether kernels are kept and called this way; else numba does all, as on other systems."""
    return this_system().walks_programs and isa().native


def entry_of(kernel: Any, args: Sequence[Any]) -> Entry | None:
    """How to call a kernel with arguments like these; compiles it if that was never done.

    Args:
        kernel: What :func:`partita_cpu.jit.kernel.jit` made; others have no entry.
        args: Its arguments, or operands like them, without the share.
    """
    if isinstance(kernel, ItemSized):
        kernel, args = kernel.kernel, kernel.seen(args)
    if not isinstance(kernel, KernelDefinition):
        return None
    kinds = kinds_of(args)
    if kinds is None:
        return None
    found = kernel.entries.get(kinds, _UNKNOWN)
    return _load_entry(kernel, kinds) if found is _UNKNOWN else found


@forks_wait
def _load_entry(kernel: KernelDefinition, kinds: Kinds) -> Entry | None:
    with _lock:
        found = kernel.entries.get(kinds, _UNKNOWN)
        if found is _UNKNOWN:
            found = kernel.entries[kinds] = _entry(kernel, kinds)
    return found  # type: ignore[no-any-return]  # kernels do not know what it is


def known_entry(kernel: Any, args: Sequence[Any]) -> tuple[bool, Entry | None]:
    """Whether it is known how to call a kernel with arguments like these, and how, if it is."""
    if isinstance(kernel, ItemSized):
        kernel, args = kernel.kernel, kernel.seen(args)
    kinds = kinds_of(args) if isinstance(kernel, KernelDefinition) else None
    if kinds is None:
        return True, None
    found = kernel.entries.get(kinds, _UNKNOWN)
    return found is not _UNKNOWN, None if found is _UNKNOWN else found


def call(kernel: KernelDefinition, args: tuple[Any, ...]) -> Any:
    """Calls a kernel from Python; its last two arguments are the share.

    Records may be given as such, or field by field.

    Raises:
        InferError: The kernel raised an error, whoever compiled it.
    """
    args = flattened(args)
    if available() and len(args) > 1 and type(args[-1]) is int and type(args[-2]) is int:
        entry = entry_of(kernel, args[:-2])
        if entry is not None:
            slots = np.zeros(entry.slots, np.int64)
            fill(slots, entry, args[:-2])
            status = invoke()(entry.trampoline, slots.ctypes.data, args[-2], args[-1])
            if status not in RETURNED:
                raise InferError(f"Kernel {kernel.__name__} failed on device CPU.")
            return None
    dispatcher = kernel.dispatcher
    try:
        return dispatcher(*kernel.arguments(args))
    except ValueError as error:  # what kernels raise
        raise InferError(f"Kernel {kernel.__name__} failed on device CPU: {error}") from error


def order(calls: Iterable[tuple[Any, Sequence[Any]]]) -> list[str]:
    """Has kernels compiled by other processes at once, if they were never compiled for such calls.

    Args:
        calls: Kernels and arguments, as :func:`entry_of` takes them.

    Returns:
        The files that will be there; see :func:`partita_cpu.jit.compile_pool.wait`.
    """
    wanted: list[tuple[KernelDefinition, Kinds]] = []
    for kernel, args in calls:
        if isinstance(kernel, ItemSized):
            kernel, args = kernel.kernel, kernel.seen(args)
        kinds = kinds_of(args) if isinstance(kernel, KernelDefinition) else None
        if kinds is not None and kinds not in kernel.entries:
            wanted.append((kernel, kinds))
    return compile_order(wanted)


def compile_order(wanted: Iterable[tuple[KernelDefinition, Kinds]]) -> list[str]:
    """Orders kernels, and those compiled apart that they call, the largest first."""
    jobs: dict[str, tuple[int, Job]] = {}
    for kernel, kinds in wanted:
        for part, its in ((kernel, kinds), *((unit, unit.apart) for unit in units_of(kernel))):
            file = disk_cache.file_name(*file_and_entry(part, its))
            if is_ours(part) and file not in jobs and not disk_cache.is_stored(file):
                what = {"module": part.home, "kernel": part.__qualname__, "kinds": its}
                job = Job(file, what)
                jobs[file] = extent(part), job
    longest_first = sorted(jobs.values(), key=lambda found: -found[0])
    compile_pool.order([job for _, job in longest_first])
    return [*jobs]


def make_for(file: str, module: str, kernel_name: str, kinds: Kinds) -> None:
    """Compiles a kernel in a process that does nothing else; keeps it and what calls it on disk.

    Args:
        file: The name of the file; if that of no kernel here fits, nothing is done.
        module: The module whose import makes the kernel.
        kernel_name: The kernel's qualified name.
        kinds: Kinds of its arguments.
    """
    importlib.import_module(module)
    kernel = _kernel_for(file, kernel_name, kinds)
    if kernel is None:  # one that is made later than its module is imported
        importlib.import_module(_OPERATORS).TABLE.load()
        kernel = _kernel_for(file, kernel_name, kinds)
    if kernel is not None:
        made = _made(kernel, kinds, _object_alone)
        if made != _NEVER and not kernel.apart:
            keep_invoke()
            keep_trampoline(kinds)
        disk_cache.write(*file_and_entry(kernel, kinds), made)


def _kernel_for(file: str, kernel_name: str, kinds: Kinds) -> KernelDefinition | None:
    """The kernel whose machine code for kinds of arguments is kept in a file."""
    for kernel in list(kernels):
        if kernel.__qualname__ != kernel_name:
            continue
        if disk_cache.file_name(*file_and_entry(kernel, kinds)) == file:
            return kernel
    return None


def _entry(kernel: KernelDefinition, kinds: Kinds) -> Entry | None:
    address = _address(kernel, kinds)
    return None if address is None else Entry(trampoline(kinds), address, kinds)


def _address(kernel: KernelDefinition, kinds: Kinds) -> int | None:
    """Where a kernel is in memory: from disk, if need be after it was put there."""
    place = file_and_entry(kernel, kinds)
    kept = disk_cache.read(*place)
    if kept is None:
        compile_pool.wait(compile_order([(kernel, kinds)]))
        kept = disk_cache.read(*place)
    if kept is None:
        kept = _made(kernel, kinds, _object_of)
        disk_cache.write(*place, kept)
    if kept == _NEVER:
        return None
    (address,) = load(Image.unpack(kept), _unit).values()
    return address


@forks_wait
def unit_address(kernel: Any) -> int:
    """Where a kernel is that is compiled apart, for calls by address; compiles it if need be."""
    with _lock:
        return _unit(kernel.symbol)


@functools.cache
def _unit(symbol: str) -> int:
    """Where a kernel is that is compiled apart."""
    module, _, name = symbol.partition(":")
    kernel = getattr(importlib.import_module(module), name)
    return _address(kernel, kernel.apart) or 0


def file_and_entry(kernel: KernelDefinition, kinds: Kinds) -> tuple[str, str]:
    """Name and key of a compiled kernel on disk."""
    key = f"{FORMAT} {translator_digest()} {fingerprint(kernel)} {kinds}"
    return kernel.__qualname__, key


def _made(kernel: KernelDefinition, kinds: Kinds, object_of: Callable[..., Any]) -> bytes:
    """The image of a kernel, or that there is none; numba makes what is not translated."""
    from partita_cpu.jit.translation import object_code

    with contextlib.suppress(object_code.UntranslatableError):
        return image_of(object_code.object_of(kernel, kinds), [object_code.ENTRY]).pack()
    share = () if kernel.apart else (types.int64, types.int64)
    made = object_of(kernel, kernel.types_for((*map(type_of, kinds), *share)))
    if made is None:
        return _NEVER
    code, name = made
    try:
        return image_of(code, [name]).pack()
    except ImageError:
        return _NEVER


def _object_alone(kernel: KernelDefinition, signature: tuple[Any, ...]) -> Any:
    """As :func:`partita_cpu.jit.codegen.object_of`, whose module imports numba."""
    from partita_cpu.jit.codegen import object_of

    return object_of(kernel, signature)


def _object_of(kernel: KernelDefinition, signature: tuple[Any, ...]) -> tuple[bytes, str] | None:
    """As :func:`partita_cpu.jit.codegen.object_of`, in a process where numba serves others."""
    overload = kernel.overload(signature)
    if overload is None:
        return None
    return overload.library._get_compiled_object(), overload.fndesc.llvm_func_name
