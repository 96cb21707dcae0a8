"""Functions that kernels call, each translated once for the kinds of its arguments."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partita_cpu.jit.deferred_numba import ir
from partita_cpu.jit.kernel_definition import KernelDefinition
from partita_cpu.jit.translation.kinds import UntranslatableError
from partita_cpu.jit.translation.statements import Body
from partita_cpu.jit.translation.values import Value, part_types, taken


@dataclass
class Translated:
    """A function in LLVM's language.

    Attributes:
        llvm: The function.
        kind: The kind of its result.
    """

    llvm: Any
    kind: Any


class Functions:
    """The functions of one module.

    Args:
        module: LLVM's module that they are written to.
        flat: Whether all that a kernel calls is inlined, instead of what asks for it.
    """

    def __init__(self, module: Any, *, flat: bool) -> None:
        self.module = module
        self._flat = flat
        self._known: dict[Any, Translated | None] = {}

    def call(self, builder: Any, function: Any, given: Sequence[Value]) -> Value:
        """The result of a function.

        Args:
            builder: Where it is called.
            function: A kernel, or a Python function that kernels call.
            given: All of its arguments, in order.

        Raises:
            UntranslatableError: It cannot be translated.
        """
        made = self._translated(function, tuple(value.kind for value in given))
        result = builder.call(made.llvm, [part for value in given for part in value.parts])
        count = len(part_types(made.kind))
        parts = [result] if count == 1 else [builder.extract_value(result, i) for i in range(count)]
        return Value(made.kind, tuple(parts) if count else ())

    def call_kernel(self, builder: Any, kernel: Any, given: Sequence[Value]) -> tuple[Value, Any]:
        """As :meth:`call`, of a kernel that may raise an error itself; what it calls may not.

        Returns:
            Its result, and a status: 0 if all is well, 1 if it raised one.
        """
        made = self._translate(kernel, tuple(value.kind for value in given), raises=True)
        status = builder.alloca(ir.IntType(32))
        builder.store(ir.Constant(ir.IntType(32), 0), status)
        parts = [part for value in given for part in value.parts]
        result = builder.call(made.llvm, [*parts, status])
        value = Value(made.kind, (result,) if part_types(made.kind) else ())
        return value, builder.load(status)

    def _translated(self, function: Any, given: tuple[Any, ...]) -> Translated:
        key = function, given
        if key not in self._known:
            self._known[key] = None
            self._known[key] = self._translate(function, given)
        made = self._known[key]
        if made is None:
            raise UntranslatableError(f"function {function.__qualname__}, which calls itself")
        return made

    def _translate(self, function: Any, given: tuple[Any, ...], raises: bool = False) -> Translated:
        python, flags, inlined = function, (), False
        if isinstance(function, KernelDefinition):
            python = function.py_func
            flags = tuple(sorted(function.options.get("fastmath", ())))
            inlined = function.options.get("forceinline", False)
        if not isinstance(python, types.FunctionType):
            raise UntranslatableError(f"a call of {python!r}")
        args = [part for kind in given for part in part_types(kind)]
        if raises:
            args.append(ir.IntType(32).as_pointer())
        signature = ir.FunctionType(ir.VoidType(), args)
        name = self.module.get_unique_name(python.__qualname__)
        llvm = ir.Function(self.module, signature, name)
        llvm.linkage = "internal"
        if inlined or self._flat:
            llvm.attributes.add("alwaysinline")
        body = Body(self, python, llvm, flags, llvm.args[-1] if raises else None)
        kind = body.translate(list(taken(given, llvm.args)))
        returned = part_types(kind)
        if returned:
            alone = len(returned) == 1
            result = returned[0] if alone else ir.LiteralStructType(returned)
            signature.return_type = llvm.return_value.type = result  # known only now
        return Translated(llvm, kind)
