"""The operator table: which operator is computed by which emitter, for which element types.

An emitter module registers functions ``emit(kit, node, *operands)``::

    @operator("Softmax", "LogSoftmax", types=F32)
    def softmax(k, node, x):
        y = k.empty(x.shape, x.dtype)
        k.launch("softmax.cl", "softmax_rows", sizes, x, y, ...)
        return y

All modules of ``partita_opencl.emitters`` are imported on first use.
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
from partita.lowering import Builder, Node, Operand
from partita.query import Reason, ReasonCode
from partita_opencl.kit import Kit
from partita_opencl.tuning import Tuning

DTypes = frozenset[np.dtype[Any]]

F32: DTypes = frozenset({np.dtype(np.float32)})
INDICES: DTypes = frozenset({np.dtype(np.int32), np.dtype(np.int64)})
INTS: DTypes = frozenset(
    np.dtype(t)
    for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
)
BOOL: DTypes = frozenset({np.dtype(np.bool_)})
NUMBERS: DTypes = F32 | INTS
COMPUTED: DTypes = NUMBERS | BOOL
MOVED: DTypes = COMPUTED | frozenset(
    np.dtype(t) for t in (np.float16, np.float64, ml_dtypes.bfloat16)
)
"""Types whose elements can be copied, though not computed with."""

Check = Callable[[Node], Reason | None]


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Attributes:
        op_type: The operator.
        domain: Its domain; ``"partita"`` for what fusion makes.
        emit: The emitter.
        types: Allowed element types: one set for all inputs, or a set per input position (inputs
            that are not named take anything).
        values: Positions of inputs whose elements must be known when the shapes are.
        check: Refuses attributes or shapes by returning a reason.
        since: First opset version it is right for.
        until: Last opset version it is right for, or ``None``.
        arity: Fewest and most inputs; most is ``None`` for any number.
        outputs: Most outputs that are computed, or ``None`` for any number.
    """

    op_type: str
    domain: str
    emit: Callable[..., Any]
    types: DTypes | Mapping[int, DTypes]
    values: tuple[int, ...]
    check: Check | None
    since: int
    until: int | None
    arity: tuple[int, int | None]
    outputs: int | None

    def refuse(self, node: Node, dtypes: Sequence[np.dtype[Any] | None]) -> Reason | None:
        """Why the node cannot be computed for inputs of these types, or ``None``."""
        fewest, most = self.arity
        if len(dtypes) < fewest or (most is not None and len(dtypes) > most):
            upper = "any number" if most is None else most
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"{len(dtypes)} inputs; takes {fewest} to {upper}",
            )
        used = [i for i, value in enumerate(node.outputs) if value is not None]
        if self.outputs is not None and used and used[-1] >= self.outputs:
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"output {used[-1]} is used; computes the first {self.outputs} only",
            )
        for position, dtype in enumerate(dtypes):
            allowed = self.allowed(position)
            if dtype is not None and allowed is not None and dtype not in allowed:
                names = ", ".join(sorted(kind.name for kind in allowed))
                return Reason(
                    ReasonCode.UNSUPPORTED_DTYPE, f"input {position} is {dtype}; takes {names}"
                )
        return None if self.check is None else self.check(node)

    def allowed(self, position: int) -> DTypes | None:
        """Element types taken at an input position; ``None`` is all."""
        return self.types.get(position) if isinstance(self.types, Mapping) else self.types


F = TypeVar("F", bound=Callable[..., Any])

_entries: dict[tuple[str, str], list[Entry]] = {}
_lock = threading.Lock()
_loaded = False


def operator(
    *op_types: str,
    domain: str = "",
    types: DTypes | Mapping[int, DTypes] = F32,
    values: Sequence[int] = (),
    check: Check | None = None,
    since: int = 1,
    until: int | None = None,
    outputs: int | None = 1,
) -> Callable[[F], F]:
    """Registers an emitter ``emit(kit, node, *operands)``; see :class:`Entry` for the arguments."""

    def register(emit: F) -> F:
        parameters = list(inspect.signature(emit).parameters.values())[2:]
        several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        fewest = sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)
        arity = (fewest, None if several else len(parameters))
        for op_type in op_types:
            entry = Entry(
                op_type, domain, emit, types, tuple(values), check, since, until, arity, outputs
            )
            _entries.setdefault((domain, op_type), []).append(entry)
        return emit

    return register


def find(domain: str, op_type: str, version: int) -> Entry | None:
    """The entry of an operator of an opset version, or ``None``."""
    load()
    for entry in _entries.get((domain, op_type), ()):
        if entry.since <= version and (entry.until is None or version <= entry.until):
            return entry
    return None


def versions(domain: str, op_type: str) -> list[tuple[int, int | None]]:
    """The opset ranges in which an operator is known; empty if it is not known at all."""
    load()
    return [(entry.since, entry.until) for entry in _entries.get((domain, op_type), ())]


@dataclass(frozen=True)
class BoundEmitter:
    """An entry for one device, in the form that the toolkit calls.

    Attributes:
        entry: The entry.
        tuning: The device's tuning.
        folds: Whether the node may be computed on the host when all its inputs are constants.
    """

    entry: Entry
    tuning: Tuning
    folds: bool

    def emit(self, builder: Builder, node: Node, *operands: Operand | None) -> Any:
        """Calls the entry's emitter with a kit."""
        return self.entry.emit(Kit(builder, self.tuning), node, *operands)


def emitter_for(
    tuning: Tuning, device: str
) -> Callable[[Node, Sequence[Operand | None]], BoundEmitter]:
    """The function that the toolkit asks for emitters."""

    def find_emitter(node: Node, operands: Sequence[Operand | None]) -> BoundEmitter:
        entry = find(node.domain, node.op_type, node.version)
        if entry is None:
            raise CompileError(
                f"Operation '{node.name}': device {device} has no kernel for {node.kind} of opset "
                f"{node.version}. Run it on another device, e.g. 'HETERO:{device},CPU'."
            )
        # What fusion makes is no ONNX operator, which the host could evaluate.
        folds = not node.domain
        constant = folds and all(o is None or o.const is not None for o in operands)
        reason = None
        if not constant:
            reason = entry.refuse(node, [None if o is None else o.dtype for o in operands])
        if reason is not None:
            raise CompileError(
                f"Operation '{node.name}' ({node.kind}) on device {device}: {reason}."
            )
        return BoundEmitter(entry, tuning, folds)

    return find_emitter


def load() -> None:
    """Imports the emitter modules once."""
    global _loaded
    if _loaded:
        return
    with _lock:
        if not _loaded:
            package = importlib.import_module("partita_opencl.emitters")
            for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
                importlib.import_module(f"partita_opencl.emitters.{module}")
            _loaded = True
