"""Numba as a compiler of object files: nothing is optimized or emitted but what is asked for.

By itself numba makes machine code of every function that a kernel calls, and of what Python would
call it by, although the kernel holds all of them. This takes most of its time. Here the functions
that a kernel calls are only translated to LLVM's language; they are put together, optimized and
emitted once. What was compiled so cannot be called, so this is for processes that do nothing else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from llvmlite import binding
from numba.core.codegen import CPUCodeLibrary
from numba.core.registry import cpu_target
from numba.core.typing.templates import make_intrinsic_template

from partita_cpu.jit import kernel_definition
from partita_cpu.jit.deferred_numba import cgutils, compiler, types
from partita_cpu.jit.kernel_definition import KernelDefinition, type_of


class _Parts(CPUCodeLibrary):
    """A function, not optimized, and the libraries of those that it calls."""

    def add_llvm_module(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout
        self._final_module.link_in(module)

    def finalize(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0  # what Python would call; it never does

    def object_code(self, name: str) -> bytes:
        """Machine code of one function and all that it calls."""
        alone = self._final_module
        self._final_module = alone.clone()
        try:
            for module in self._called():
                self._final_module.link_in(module)
            for function in self._final_module.functions:
                if not function.is_declaration and function.name != name:
                    function.linkage = "internal"
            self._optimize_final_module()  # type: ignore[no-untyped-call]  # of numba
            code: bytes = self._codegen._tm.emit_object(self._final_module)
        finally:
            self._final_module = alone
        return code

    def _called(self) -> Iterator[Any]:
        """Modules of all that is called, each once."""
        seen, waiting = {self}, list(self._linking_libraries)
        while waiting:
            library = waiting.pop()
            if library in seen:
                continue
            seen.add(library)
            if isinstance(library, _Parts):
                waiting += library._linking_libraries
                yield _shared(library._final_module.clone())
            else:
                yield library._get_module_for_linking().clone()


def _shared(module: Any) -> Any:
    """A module that may be part of several others."""
    for function in module.functions:
        if not function.is_declaration and function.linkage is binding.Linkage.external:
            function.linkage = "linkonce_odr"
    return module


def _nothing(*args: Any, **options: Any) -> None:
    """In place of what makes functions callable from Python or C."""


@functools.cache
def _called_by_name(kernel: KernelDefinition) -> Any:
    """Numba's type of a kernel whose address is put in when the code is loaded."""
    returned = types.int64 if kernel.answers else types.none
    wanted = returned(*kernel.types_for([*map(type_of, kernel.apart)]))

    def typed(typing: Any, *args: Any) -> Any:
        if None in map(typing.can_convert, args, wanted.args):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            convention = context.call_conv
            result, given = signature.return_type, signature.args
            kind = convention.get_function_type(result, given)
            function = cgutils.get_or_insert_function(builder.module, kind, kernel.symbol)
            status, value = convention.call_function(builder, function, result, given, args)
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return value

        return wanted, generate

    first = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [first, *inspect.signature(kernel.py_func).parameters.values()]
    typed.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]  # numba asks
    make: Any = make_intrinsic_template
    template = make(kernel, typed, kernel.__name__)
    return types.Function(template)


def remember_types(functions: Any) -> None:
    """Lets numba look up what it found a built-in function to return for the same types before.

    By itself it tries all that it knows of ``+`` for each of them anew, ranges and strings first.
    What is not built in is left out: its type can depend on how the caller is compiled.

    Args:
        functions: Numba's class of the types of such functions.
    """
    find = functions.get_call_type
    found: dict[tuple[Any, Any], Any] = {}

    def get_call_type(function: Any, context: Any, args: Any, named: Any) -> Any:
        if named:
            return find(function, context, args, named)
        signature = found.get((function, args))
        if signature is None:
            signature = find(function, context, args, named)
            if signature is not None and function.get_impl_key(signature) == function.typing_key:
                found[function, args] = signature
        return signature

    functions.get_call_type = get_call_type


@functools.cache
def prepare() -> None:
    """Makes numba's one target emit object files only, for the rest of the process."""
    compiler()
    context = cpu_target.target_context
    context.refresh()
    kernel_definition.unit_type = _called_by_name
    codegen = context.codegen()
    codegen._library_class = _Parts
    codegen.set_env = _nothing
    remember_types(types.Function)
    context.create_cpython_wrapper = context.create_cfunc_wrapper = _nothing


def object_of(kernel: KernelDefinition, signature: tuple[Any, ...]) -> tuple[bytes, str] | None:
    """An object file and the name of the function in it; ``None`` if the kernel returns something.

    ``signature`` holds numba's types of all its arguments.
    """
    prepare()
    overload = kernel.overload(signature)
    if overload is None:
        return None
    name: str = overload.fndesc.llvm_func_name
    return overload.library.object_code(name), name
