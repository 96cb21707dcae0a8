"""The one call from Python into machine code: a C function that releases the GIL."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from partita_cpu.jit.llvm_kernel import function_address, function_image
from partita_cpu.llvm.function import Function

_NAME = "invoke"
_TAKES_A_ROW = 0x80  # METH_FASTCALL: arguments come as an array


class _Definition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def invoke() -> Callable[[int, int, int, int], int]:
    """A function that calls a trampoline: its address, that of its slots, share, shares.

    It returns what the trampoline returns. It looks at nothing: a wrong address ends the process.
    """
    function: Callable[[int, int, int, int], int]
    function = c_function(_NAME, function_address(_NAME, _text()))
    return function


def keep_invoke() -> None:
    """Compiles :func:`invoke` if it is not on disk; does not load it."""
    function_image(_NAME, _text())


def c_function(name: str, address: int) -> Any:
    """A Python function of machine code that takes a row of arguments by CPython's rules.

    Args:
        name: What tracebacks call it.
        address: Where the code is; it must stay there.
    """
    definition = _Definition(name.encode(), address, _TAKES_A_ROW, None)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    # Python looks at it when a function is freed, too, so it is what the function is bound to: at
    # the end of a process, when modules are emptied, nothing else would keep it for as long.
    return make(ctypes.addressof(definition), definition, None)


def _text() -> str:
    """The function in LLVM IR."""
    f = Function(_NAME, "ptr %self, ptr %args, i64 %count", "ptr")
    numbers = []
    for index in range(4):
        number = f.load("ptr", f.at("%args", 8 * index), 8)
        numbers.append(f.let(f"call i64 @PyLong_AsLongLong(ptr {number})"))
    trampoline, slots, tid, nt = numbers
    address = f.let(f"inttoptr i64 {trampoline} to ptr")
    state = f.let("call ptr @PyEval_SaveThread()")
    status = f.let(f"call i32 {address}(i64 {slots}, i64 {tid}, i64 {nt})")
    f.do(f"call void @PyEval_RestoreThread(ptr {state})")
    wide = f.let(f"sext i32 {status} to i64")
    f.do(f"ret ptr {f.let(f'call ptr @PyLong_FromLong(i64 {wide})')}")
    return f.text() + _DECLARATIONS


_DECLARATIONS = """
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
"""
