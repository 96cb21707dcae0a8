"""The kernel table: which operator is computed by which emitter, for which element types.

A kernel module defines numba functions and emitters, and registers each emitter::

    from partita_cpu.jit.kernel import jit
    from partita_cpu.kernels.operator_table import FLOATS, kernel

    @jit
    def relu_kernel(x, y, tid, nt):              # arrays in, arrays out, scalars, then tid, nt
        n = x.size
        for i in range(n * tid // nt, n * (tid + 1) // nt):
            y[i] = max(x[i], x.dtype.type(0))

    @kernel("Relu", dtypes=FLOATS)
    def relu(b, node, x):
        y = b.empty(x.shape, x.dtype)
        b.call(relu_kernel, b.flat(x), b.flat(y))
        return y

All modules of this package are imported on first use, so a new file needs no further entry. An
operator is tried without a device or a model file::

    from partita.lowering import lower_proto
    from partita_cpu.runtime.device_model import run_graph
    outputs = run_graph(lower_proto(onnx_model_proto), {"x": array})    # a list of arrays

and compared with onnxruntime (graph optimizations off).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from partita.errors import CompileError
from partita.lowering import Builder, Node, Operand
from partita.lowering.kernel_table import (
    ALL_FLOATS,
    BOOL,
    F32,
    FLOATS,
    HALVES,
    INDICES,
    INT64,
    INTS,
    SIGNED,
    UNSIGNED,
    DTypes,
    Entry,
    KernelTable,
)

__all__ = [
    "ALL_FLOATS",
    "ANY",
    "BOOL",
    "F32",
    "FLOATS",
    "HALVES",
    "INDICES",
    "INT64",
    "INTS",
    "NUMBERS",
    "SIGNED",
    "TABLE",
    "UNSIGNED",
    "DTypes",
    "emitter_for",
    "find",
    "kernel",
    "with_inputs",
]

NUMBERS: DTypes = FLOATS | INTS
ANY: DTypes = ALL_FLOATS | INTS | BOOL

TABLE = KernelTable("partita_cpu.kernels")
kernel = TABLE.register
find = TABLE.find


def with_inputs(record: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lets an emitter take an operator's many inputs as one record: a named tuple or dataclass.

    Its fields are the inputs in ONNX's order, those with defaults optional ones.
    """

    def wrap(emit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(emit)
        def with_record(b: Builder, node: Node, *operands: Operand | None) -> Any:
            return emit(b, node, record(*operands))

        first = [*inspect.signature(emit).parameters.values()][:2]
        inputs = inspect.signature(record).parameters.values()
        with_record.__signature__ = inspect.Signature([*first, *inputs])  # type: ignore[attr-defined]
        return with_record

    return wrap


def emitter_for(node: Node, operands: Sequence[Operand | None]) -> Entry:
    """The entry that computes a node on these operands.

    Raises:
        CompileError: There is none, or it does not take these types.
    """
    entry = find(node.domain, node.op_type, node.version)
    if entry is None:
        raise CompileError(
            f"Operation '{node.name}': device CPU has no kernel for {node.kind} of opset "
            f"{node.version}. Run it on another device, e.g. 'HETERO:CPU,REFERENCE'."
        )
    reason = entry.refuse(node, [None if o is None else o.dtype for o in operands])
    if reason is not None:
        raise CompileError(f"Operation '{node.name}' ({node.model_kind}) on device CPU: {reason}.")
    return entry
