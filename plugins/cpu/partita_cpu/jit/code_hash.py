"""Hashes of compiled functions: their code, and that of everything they name."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from partita_cpu import llvm
from partita_cpu.jit import translation
from partita_cpu.jit.deferred_numba import Intrinsic, LazyModule, implementations
from partita_cpu.jit.kernel_definition import KernelDefinition
from partita_cpu.jit.record_arguments import described

_OURS = "partita_cpu"
_LOAD_GLOBAL, _EXTENDED_ARG = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
_WITH_CODE = (KernelDefinition, Intrinsic, types.FunctionType, type)


def fingerprint(function: Any) -> str:
    """A digest that is the same in all processes as long as the code is.

    It covers constants, and all functions of this package that the function names, those that it
    names by what it calls included. Lines and file names do not count.
    """
    return read_code(function).digest()


def translator_digest() -> str:
    """A digest of what makes machine code of kernels, which is not imported for that."""
    return _sources_digest(translation.__path__[0])


def generators_digest() -> str:
    """A digest of what writes kernels as LLVM IR, which is not imported for that either."""
    return _sources_digest(llvm.__path__[0])


@functools.cache
def _sources_digest(folder: str) -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(folder).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def extent(function: Any) -> int:
    """How much code that is: about how long it takes to compile."""
    return read_code(function).size


def units_of(function: Any) -> list[KernelDefinition]:
    """The kernels it calls that are compiled apart."""
    return read_code(function).units


def is_ours(function: Any) -> bool:
    """Whether a function is of this package, so that other processes find it."""
    return _package(function) == _OURS


@functools.cache
def read_code(function: Any) -> _Reader:
    """What a function consists of, read once."""
    reader = _Reader(_package(function))
    reader.add(function)
    return reader


class _Reader:
    """Goes through functions, each of them once."""

    def __init__(self, package: str) -> None:
        self._packages = {_OURS, package}
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []
        self.size = 0
        self.units: list[KernelDefinition] = []

    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, thing: Any) -> None:
        """Notes a value: by its content if that can matter, else by its name."""
        if isinstance(thing, _WITH_CODE) and self._is_ours(thing):
            number = self._seen.get(id(thing))
            if number is not None:
                self._note(f"again {number}")
                return
            self._seen[id(thing)] = len(self._seen)
            self._alive.append(thing)
        if isinstance(thing, KernelDefinition):
            records = described(thing.py_func)
            self._note(
                f"kernel {sorted(thing.options)} {thing.counts} {thing.effort.name} {records}"
            )
            if thing.apart and len(self._seen) > 1:
                # Its place counts too: images on disk name what they call by module and name.
                place = f"{thing.__module__}:{thing.__qualname__}"
                self._note(f"{place} {thing.apart} {thing.answers} {fingerprint(thing)}")
                self.units += [thing, *units_of(thing)]
            else:
                self.add(thing.py_func)
        elif isinstance(thing, Intrinsic):
            self._note("intrinsic")
            self.add(thing.make)
        elif isinstance(thing, types.FunctionType) and self._is_ours(thing):
            self._function(thing)
        elif isinstance(thing, types.CodeType):
            self._code(thing)
        elif isinstance(thing, type) and self._is_ours(thing):
            self._note(f"class {thing.__qualname__} {getattr(thing, '_fields', ())}")
            for name, member in vars(thing).items():
                if isinstance(member, types.FunctionType) and self._is_ours(member):
                    self._note(name)
                    self._function(member)
        elif isinstance(thing, (tuple, list)):
            self._note(f"{type(thing).__name__} {len(thing)}")
            for item in thing:
                self.add(item)
        elif isinstance(thing, dict):
            self.add([*thing.items()])
        elif isinstance(thing, (set, frozenset)):
            self._note(repr(sorted(map(repr, thing))))
        elif isinstance(thing, np.ndarray):
            self._note(f"{thing.dtype} {thing.shape}")
            self._hash.update(thing.tobytes())
        else:
            self._note(_named(thing))

    def _function(self, function: types.FunctionType) -> None:
        self._note(f"function {function.__qualname__}")
        self._code(function.__code__)
        self.add(function.__defaults__)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents)
        codes = [*_codes(function.__code__)]
        attributes = sorted({name for code in codes for name in code.co_names})
        for name in sorted({name for code in codes for name in _globals_of(code)}):
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            self._note(name)
            if isinstance(value, types.ModuleType) and value.__name__.startswith(_OURS):
                for attribute in attributes:
                    if attribute in vars(value):
                        self.add(vars(value)[attribute])
            else:
                self.add(value)
        if function in implementations:
            self.add(implementations[function])

    def _code(self, code: types.CodeType) -> None:
        self._note(f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_flags}")
        self._hash.update(code.co_code)
        self.size += len(code.co_code)
        for constant in code.co_consts:
            self.add(constant)

    def _is_ours(self, thing: Any) -> bool:
        return _package(thing) in self._packages

    def _note(self, text: str) -> None:
        self._hash.update(text.encode() + b"\0")


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _globals_of(code: types.CodeType) -> set[str]:
    """What code takes from its module.

    `co_names` holds attributes as well: a kernel that calls ``scalar.clip`` does not depend on what
    its own module calls ``clip``.
    """
    words = code.co_code
    instructions, found = words[::2], set()
    place = instructions.find(_LOAD_GLOBAL)
    while place >= 0:
        argument, before = words[2 * place + 1], place
        while before > 0 and instructions[before - 1] == _EXTENDED_ARG:
            before -= 1
            argument += words[2 * before + 1] << 8 * (place - before)
        found.add(code.co_names[argument >> 1])  # the lowest bit tells what is pushed beside it
        place = instructions.find(_LOAD_GLOBAL, place + 1)
    return found


def _named(thing: Any) -> str:
    if isinstance(thing, LazyModule):
        return "later"
    if isinstance(thing, (bool, int, float, complex, str, bytes, np.generic, type(None))):
        return f"{type(thing).__name__} {thing!r}"
    module = getattr(thing, "__module__", "")
    name = getattr(thing, "__qualname__", getattr(thing, "__name__", ""))
    return f"{type(thing).__name__} {module} {name}"
