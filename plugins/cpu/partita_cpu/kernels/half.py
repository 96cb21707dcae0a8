"""16-bit floats: kept as they are in memory, computed through float32 copies.

numba knows neither bfloat16 nor, on processors, float16. Their elements pass through kernels as
bits, and arithmetic happens on float32 copies, which is also how onnxruntime computes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.jit.intrinsics.address_call import address, call_convert
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.operator_table import HALVES
from partita_cpu.scalar.half_floats import (
    bfloat16_to_float32,
    float16_to_float32,
    float32_to_bfloat16,
    float32_to_float16,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)

LINE = 64
"""Elements of which threads take whole numbers."""


def _converter(convert: Callable[[Any], Any]) -> Callable[..., None]:
    """A kernel that converts elements one by one."""

    def kernel(x: Any, y: Any, tid: int, nt: int) -> None:
        start, stop = x.size * tid // nt, x.size * (tid + 1) // nt
        source, target = x[start:stop], y[start:stop]
        for i in range(target.size):
            target[i] = convert(source[i])

    kernel.__name__ = kernel.__qualname__ = f"each_{convert.__name__}"
    return loop(kernel)


_widen_float16, _widen_bfloat16 = _converter(float16_to_float32), _converter(bfloat16_to_float32)
_narrow_float16, _narrow_bfloat16 = _converter(float32_to_float16), _converter(float32_to_bfloat16)


def widen_kernel(x: Array, y: Array, tid: int, nt: int) -> None:
    """16-bit floats to float32."""
    kernel = _widen_bfloat16 if x.dtype == BFLOAT16 else _widen_float16
    kernel(x.view(np.uint16), y, tid, nt)


def narrow_kernel(x: Array, y: Array, tid: int, nt: int) -> None:
    """float32 to 16-bit floats, to nearest even."""
    kernel = _narrow_bfloat16 if y.dtype == BFLOAT16 else _narrow_float16
    kernel(x, y.view(np.uint16), tid, nt)


def _to_float32(array: Array) -> Array:
    return array.astype(np.float32)


def widen(b: Builder, x: Operand) -> Operand:
    """A float32 copy of an operand of 16-bit floats; constants stay constants."""
    if x.const is not None:
        return b.prepack(x, "float32", _to_float32, form=Form(np.float32, x.shape))
    y = b.empty(x.shape, np.float32)
    _convert(b, x, y)
    return y


def narrow(b: Builder, x: Operand, dtype: Any) -> Operand:
    """A copy of a float32 operand as 16-bit floats.

    Args:
        b: The program's builder.
        x: The operand, float32.
        dtype: float16 or bfloat16.
    """
    y = b.empty(x.shape, dtype)
    _convert(b, x, y)
    return y


def _convert(b: Builder, x: Operand, y: Operand) -> None:
    """Records a conversion; float16 by the processor's instructions where there are kernels."""
    if not x.size:
        return
    to_half = x.dtype == FLOAT32
    policy = native_policy(b.options)
    if policy is None or b.folding or BFLOAT16 in (x.dtype, y.dtype):
        b.call(narrow_kernel if to_half else widen_kernel, b.flat(x), b.flat(y))
        return
    kernel = addresses(policy.level)["to_f16" if to_half else "from_f16"]
    b.call(convert_run, b.flat(x), b.flat(y), kernel)


@loop
def convert_run(x: Array, y: Array, kernel: int, tid: int, nt: int) -> None:
    """Floats as float16 or float16 as floats; threads share whole lines.

    Args:
        x: What is read.
        y: What is written; as many elements.
        kernel: Address of the kernel that converts a run.
        tid: This thread.
        nt: All threads.
    """
    lines = -(-x.size // LINE)
    start, stop = lines * tid // nt * LINE, min(lines * (tid + 1) // nt * LINE, x.size)
    if start < stop:
        source, target = address(x) + x.itemsize * start, address(y) + y.itemsize * start
        call_convert(kernel, (source, stop - start, target))


def float32_of(b: Builder, x: Operand) -> Operand:
    """The operand, widened if it holds 16-bit floats.

    Args:
        b: The program's builder.
        x: An operand of any type.
    """
    return widen(b, x) if x.dtype in HALVES else x


def through_float32(
    emit: Callable[..., Any], keeps: Callable[[Builder, Operand], bool] | None = None
) -> Callable[..., Any]:
    """Makes an emitter for float32 one for 16-bit floats too.

    16-bit inputs are widened. A float32 result is narrowed to the type of the first 16-bit input,
    unless the node says that this output is something else.

    Args:
        emit: The emitter.
        keeps: Which inputs it takes as they are. The first input then says what results are.
    """

    @functools.wraps(emit)
    def wrapped(b: Builder, node: Node, *operands: Operand | None) -> Any:
        deciding = operands if keeps is None else operands[:1]
        kind = next((o.dtype for o in deciding if o is not None and o.dtype in HALVES), None)
        if kind is None and keeps is None:
            return emit(b, node, *operands)
        wide = [
            o if o is None or (keeps is not None and keeps(b, o)) else float32_of(b, o)
            for o in operands
        ]
        results = emit(b, node, *wide)
        if kind is None:
            return results
        if isinstance(results, Operand):
            return _narrowed(b, node, [results], kind)[0]
        return tuple(_narrowed(b, node, results, kind))

    return wrapped


def _narrowed(
    b: Builder, node: Node, results: Sequence[Operand | None], kind: np.dtype[Any]
) -> list[Operand | None]:
    narrowed: list[Operand | None] = []
    for position, result in enumerate(results):
        value = node.outputs[position] if position < len(node.outputs) else None
        declared = value.dtype if value is not None else None
        wanted = kind if declared is None else declared
        if result is not None and result.dtype == FLOAT32 and wanted in HALVES:
            result = narrow(b, result, wanted)
        narrowed.append(result)
    return narrowed


def as_bits(kernel: Callable[..., None]) -> Callable[..., None]:
    """Makes a kernel that only moves elements take arrays of 16-bit floats."""

    # Without the kernel's own attributes, by which the engine would take it for compiled code.
    @functools.wraps(kernel, updated=())
    def wrapped(*args: Any) -> None:
        kernel(
            *(
                a.view(np.uint16) if isinstance(a, np.ndarray) and a.dtype in HALVES else a
                for a in args
            )
        )

    return wrapped
