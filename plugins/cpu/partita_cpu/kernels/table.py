"""The kernel table: which operator is computed by which emitter, for which element types.

A kernel module defines numba functions and emitters, and registers each emitter::

    from partita_cpu.kernels.numba_jit import jit
    from partita_cpu.kernels.table import FLOATS, kernel

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
    from partita_cpu.engine import run_graph
    outputs = run_graph(lower_proto(onnx_model_proto), {"x": array})    # a list of arrays

and compared with onnxruntime (graph optimisations off).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from partita.errors import CompileError
from partita.lowering import Node, Operand
from partita.query import Reason, ReasonCode

DTypes = frozenset[np.dtype[Any]]

F32: DTypes = frozenset({np.dtype(np.float32)})
FLOATS: DTypes = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
HALVES: DTypes = frozenset({np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})
ALL_FLOATS: DTypes = FLOATS | HALVES
SIGNED: DTypes = frozenset(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UNSIGNED: DTypes = frozenset(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTS: DTypes = SIGNED | UNSIGNED
INT64: DTypes = frozenset({np.dtype(np.int64)})
INDICES: DTypes = frozenset({np.dtype(np.int32), np.dtype(np.int64)})
BOOL: DTypes = frozenset({np.dtype(np.bool_)})
NUMBERS: DTypes = FLOATS | INTS
ANY: DTypes = ALL_FLOATS | INTS | BOOL


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table.

    Attributes:
        op_type: The operator.
        domain: Its domain.
        emit: The emitter.
        dtypes: Allowed element types: one set for all inputs, or a set per input position (inputs
            that are not named take anything).
        check: Refuses attributes or shapes by returning a reason; sees constants of the node.
        since: First opset version it is right for.
        until: Last opset version it is right for, or ``None``.
        folds: Whether it may run at compile time on constants.
        arity: Fewest and most inputs that the emitter takes; most is ``None`` for any number.
    """

    op_type: str
    domain: str
    emit: Callable[..., Any]
    dtypes: DTypes | Mapping[int, DTypes]
    check: Callable[[Node], Reason | None] | None
    since: int
    until: int | None
    folds: bool
    arity: tuple[int, int | None]

    def refuse(self, node: Node, dtypes: Sequence[np.dtype[Any] | None]) -> Reason | None:
        """Why the emitter cannot compute the node for inputs of these types, or ``None``.

        A type of ``None`` is unknown (or the input absent) and accepted.
        """
        fewest, most = self.arity
        if len(dtypes) < fewest or (most is not None and len(dtypes) > most):
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"{len(dtypes)} inputs; takes {fewest} to {'any' if most is None else most}",
            )
        for position, dtype in enumerate(dtypes):
            allowed = self._allowed(position)
            if dtype is not None and allowed is not None and dtype not in allowed:
                names = ", ".join(sorted(kind.name for kind in allowed))
                return Reason(
                    ReasonCode.UNSUPPORTED_DTYPE,
                    f"input {position} is {dtype}; takes {names}",
                )
        return None if self.check is None else self.check(node)

    def _allowed(self, position: int) -> DTypes | None:
        if isinstance(self.dtypes, Mapping):
            return self.dtypes.get(position)
        return self.dtypes


F = TypeVar("F", bound=Callable[..., Any])

_entries: dict[tuple[str, str], list[Entry]] = {}
_lock = threading.Lock()
_loaded = False


def kernel(
    *op_types: str,
    domain: str = "",
    dtypes: DTypes | Mapping[int, DTypes] = FLOATS,
    check: Callable[[Node], Reason | None] | None = None,
    since: int = 1,
    until: int | None = None,
    folds: bool = True,
) -> Callable[[F], F]:
    """Registers an emitter ``emit(b, node, *operands)`` for operators of one domain.

    Args:
        op_types: One or several operators; the emitter tells them apart by ``node.op_type``.
        domain: Their domain; ``"partita"`` for what fusion makes.
        dtypes: Element types taken: a set for all inputs, or ``{input position: set}``.
        check: ``check(node) -> Reason | None``; refuses attributes and shapes at query time.
            Shapes and types of ``node.inputs`` may be unknown: accept then.
        since: First opset version it is right for.
        until: Last opset version it is right for; ``None`` for no end.
        folds: False if it must not run at compile time (random numbers).
    """

    def register(emit: F) -> F:
        parameters = list(inspect.signature(emit).parameters.values())[2:]
        several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        fewest = sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)
        arity = (fewest, None if several else len(parameters))
        for op_type in op_types:
            entry = Entry(op_type, domain, emit, dtypes, check, since, until, folds, arity)
            _entries.setdefault((domain, op_type), []).append(entry)
        return emit

    return register


def find(domain: str, op_type: str, version: int) -> Entry | None:
    """The table's entry for an operator of an opset version, or ``None``."""
    load()
    for entry in _entries.get((domain, op_type), ()):
        if entry.since <= version and (entry.until is None or version <= entry.until):
            return entry
    return None


def versions(domain: str, op_type: str) -> list[tuple[int, int | None]]:
    """The opset ranges in which an operator is known; empty if it is not known at all."""
    load()
    return [(entry.since, entry.until) for entry in _entries.get((domain, op_type), ())]


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
        raise CompileError(f"Operation '{node.name}' ({node.kind}) on device CPU: {reason}.")
    return entry


def load() -> None:
    """Imports the kernel modules (and with them numba) once."""
    global _loaded
    if _loaded:
        return
    with _lock:
        if not _loaded:
            package = importlib.import_module("partita_cpu.kernels")
            for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
                importlib.import_module(f"partita_cpu.kernels.{module}")
            _loaded = True
