"""Compiled numba kernels: how to call them from machine code and from Python, without numba.

A kernel is compiled once per machine for each kind of arguments; what is kept on disk is all that
later processes need. Where there is no image of it (it returns something, takes what is no array
nor number, or allocates), numba's own function serves, and numba is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.errors import InferError
from partita.lowering import Operand
from partita_cpu.kernels.item_sized import ItemSized
from partita_cpu.kernels.numba_jit import Kernel, afresh, compiler, types
from partita_cpu.native import store
from partita_cpu.native.fingerprint import fingerprint
from partita_cpu.native.image import Image, ImageError, image_of, load
from partita_cpu.native.invoking import invoke
from partita_cpu.native.isa import Isa, isa
from partita_cpu.native.trampoline import RETURNED, Entry, fill, trampoline

Kinds = tuple[str, ...]
"""What kinds the arguments are of: ``"<f4 2"`` for arrays, ``"int"``, ``"float"``, ``"single"``."""

_NUMBERS = {"int": "int64", "float": "float64", "single": "float32"}
_UNKNOWN = object()
_NEVER = b"no image"
_lock = threading.RLock()


def available() -> bool:
    """Whether kernels are kept and called this way; else numba does all, as on other systems."""
    return sys.platform.startswith("linux") and isa() is not Isa.PORTABLE


def kinds_of(args: Sequence[Any]) -> Kinds | None:
    """The kinds of arguments (without the share); ``None`` if one is of another kind."""
    kinds = []
    for arg in args:
        if isinstance(arg, Operand) or (isinstance(arg, np.ndarray) and arg.flags.carray):
            if arg.dtype.kind not in "iuf" or not arg.dtype.isnative:
                return None
            kinds.append(f"{arg.dtype.str} {arg.ndim}")
        elif type(arg) is int or isinstance(arg, np.int64):
            kinds.append("int")
        elif isinstance(arg, float):
            kinds.append("float")
        elif isinstance(arg, np.float32):
            kinds.append("single")
        else:
            return None
    return tuple(kinds)


def entry_of(kernel: Any, args: Sequence[Any]) -> Entry | None:
    """How to call a kernel with arguments like these; compiles it if that was never done.

    Args:
        kernel: What :func:`partita_cpu.kernels.numba_jit.jit` made; others have no entry.
        args: Its arguments, or operands like them, without the share.
    """
    if isinstance(kernel, ItemSized):
        kernel, args = kernel.kernel, kernel.seen(args)
    if not isinstance(kernel, Kernel):
        return None
    kinds = kinds_of(args)
    if kinds is None:
        return None
    found = kernel.entries.get(kinds, _UNKNOWN)
    if found is _UNKNOWN:
        with _lock:
            found = kernel.entries.get(kinds, _UNKNOWN)
            if found is _UNKNOWN:
                found = kernel.entries[kinds] = _entry(kernel, kinds)
    return found  # type: ignore[no-any-return]  # kernels do not know what it is


def call(kernel: Kernel, args: tuple[Any, ...]) -> Any:
    """Calls a kernel from Python; its last two arguments are the share."""
    if available() and len(args) > 1 and type(args[-1]) is int and type(args[-2]) is int:
        entry = entry_of(kernel, args[:-2])
        if entry is not None:
            slots = np.zeros(entry.slots, np.int64)
            fill(slots, entry, args[:-2])
            status = invoke()(entry.trampoline, slots.ctypes.data, args[-2], args[-1])
            if status not in RETURNED:
                raise InferError(f"Kernel {kernel.__name__} failed on device CPU.")
            return None
    return kernel.dispatcher(*args)


def _entry(kernel: Kernel, kinds: Kinds) -> Entry | None:
    name = kernel.__qualname__
    key = f"{fingerprint(kernel)} {kinds}"
    kept = store.read(name, key)
    if kept is None:
        kept = _compiled(kernel, kinds)
        store.write(name, key, kept)
    if kept == _NEVER:
        return None
    (address,) = load(Image.unpack(kept)).values()
    return Entry(trampoline(kinds), address, kinds)


def _compiled(kernel: Kernel, kinds: Kinds) -> bytes:
    """The image of a kernel, made by numba; or that there is none."""
    signature = (*map(_type, kinds), types.int64, types.int64)
    with afresh():
        kernel.dispatcher.compile(signature)
        overload = kernel.dispatcher.overloads[signature]
    if overload.signature.return_type != types.none:
        return _NEVER
    try:
        code = overload.library._get_compiled_object()
        return image_of(code, [overload.fndesc.llvm_func_name]).pack()
    except ImageError:
        return _NEVER


def _type(kind: str) -> Any:
    """Numba's type of a kind of argument."""
    if kind in _NUMBERS:
        return getattr(types, _NUMBERS[kind])
    dtype, _, ndim = kind.partition(" ")
    from_dtype: Callable[..., Any] = compiler().np.numpy_support.from_dtype
    return types.Array(from_dtype(np.dtype(dtype)), int(ndim), "C")
