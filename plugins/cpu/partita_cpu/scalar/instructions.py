"""Instructions that LLVM has for numbers and numba does not, as functions for compiled kernels."""

from __future__ import annotations

from typing import Any

from partita_cpu.jit.deferred_numba import intrinsic, ir, overload, types


def _llvm(name: str, arity: int) -> Any:
    """A numba function for an LLVM intrinsic on floats of one type."""

    def typed(typing_context: Any, *args: Any) -> Any:
        del typing_context

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            del context, signature
            kind = values[0].type
            function = ir.FunctionType(kind, [kind] * arity)
            return builder.call(builder.module.declare_intrinsic(name, [kind], function), values)

        return args[0](*[args[0]] * arity), generate

    def unary(typing_context: Any, x: Any) -> Any:
        return typed(typing_context, x)

    def binary(typing_context: Any, a: Any, b: Any) -> Any:
        return typed(typing_context, a, b)

    def ternary(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        return typed(typing_context, a, b, c)

    made = intrinsic((unary, binary, ternary)[arity - 1])
    made.__name__ = name.rpartition(".")[2]  # kernels made of it are named by that
    return made


sqrt = _llvm("llvm.sqrt", 1)
"""The square root of a float; NaN below zero."""
floor = _llvm("llvm.floor", 1)
"""The next whole number below a float."""
ceil = _llvm("llvm.ceil", 1)
"""The next whole number above a float."""
round_even = _llvm("llvm.roundeven", 1)
"""The nearest whole number to a float, ties to even."""
muladd = _llvm("llvm.fmuladd", 3)
"""``a * b + c``, fused where the processor can do it fast."""
fused_muladd = _llvm("llvm.fma", 3)
"""``a * b + c``, rounded once."""
maximum = _llvm("llvm.maximum", 2)
"""The larger of two floats; NaN if either is NaN; its reductions vectorize."""
minimum = _llvm("llvm.minimum", 2)
"""The smaller of two floats; NaN if either is NaN."""
copysign = _llvm("llvm.copysign", 2)
"""The magnitude of the first float with the sign of the second."""


@intrinsic
def add_in_any_order(typing_context: Any, a: Any, b: Any) -> Any:
    """``a + b`` of floats, where a sum of many may be reordered to vectorize."""
    del typing_context, b

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del context, signature
        return builder.fadd(*values, flags=("reassoc", "nsz"))

    return a(a, a), generate


@intrinsic
def multiply_in_any_order(typing_context: Any, a: Any, b: Any) -> Any:
    """``a * b`` of floats, where a product of many may be reordered to vectorize."""
    del typing_context, b

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del context, signature
        return builder.fmul(*values, flags=("reassoc", "nsz"))

    return a(a, a), generate


def _same_width(kind: Any) -> Any:
    """The integer of a float's width, or the float of an integer's."""
    return getattr(types, f"{'int' if isinstance(kind, types.Float) else 'float'}{kind.bitwidth}")


@intrinsic
def bits(typing_context: Any, x: Any) -> Any:
    """The bits of a float as an integer of its width, or the float of an integer's bits."""
    del typing_context
    result = _same_width(x)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        return builder.bitcast(values[0], context.get_value_type(result))

    return result(x), generate


@intrinsic
def ordered(typing_context: Any, x: Any) -> Any:
    """An integer that is ordered as the float is; of its own inverse up to :func:`bits`."""
    del typing_context
    result = _same_width(x) if isinstance(x, types.Float) else x

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        kind = context.get_value_type(result)
        pattern = builder.bitcast(values[0], kind)
        low = builder.and_(
            builder.ashr(pattern, kind(kind.width - 1)), kind(2 ** (kind.width - 1) - 1)
        )
        return builder.xor(pattern, low)

    return result(x), generate


@intrinsic
def larger_integer(typing_context: Any, a: Any, b: Any) -> Any:
    """The larger of two signed integers of one type, which it keeps."""
    del typing_context, b

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del context, signature
        return builder.select(builder.icmp_signed(">", *values), *values)

    return a(a, a), generate


@intrinsic
def wide_vectors(typing_context: Any) -> Any:
    """To be called in a kernel full of arithmetic: it may use the widest vectors there are.

    LLVM prefers 256 bits on most processors with AVX-512, which suits code that waits for memory.
    """
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature, values
        # llvmlite knows no attributes with values; as a plain string it is printed as needed.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


def like(x: Any, value: Any) -> Any:
    """``value`` as a number of the type of ``x``; numba's literals are 64 bits wide."""
    return type(x)(value)


@overload(like)
def _like(x: Any, value: Any) -> Any:
    kind = x

    def convert(x: Any, value: Any) -> Any:
        return kind(value)

    return convert
