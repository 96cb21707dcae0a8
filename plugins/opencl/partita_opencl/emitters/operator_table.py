"""The operator table: which operator is computed by which emitter, for which element types.

An emitter module registers functions ``emit(kit, node, *operands)``::

    @operator("Softmax", "LogSoftmax", types=FLOATS)
    def softmax(k, node, x):
        y = k.empty(x.shape, x.dtype)
        k.launch("softmax.cl", "softmax_rows", sizes, x, y, ...)
        return y

All modules of ``partita_opencl.emitters`` are imported on first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from partita.errors import CompileError
from partita.lowering import Builder, Node, Operand, Packed
from partita.lowering.kernel_table import (
    BOOL,
    F32,
    HALVES,
    INDICES,
    INTS,
    Check,
    DTypes,
    Entry,
    KernelTable,
)
from partita.lowering.nhwc.conversion import DOMAIN
from partita.lowering.shapes.symbolic_size import holds_sizes
from partita_opencl.launches.emitter_kit import Kit
from partita_opencl.launches.work_sizes import Form, Tuning
from partita_opencl.passes.half_precision import narrowed
from partita_opencl.trials.kernel_trial import Fitness

__all__ = [
    "BOOL",
    "COMPUTED",
    "FLOATS",
    "INDICES",
    "INTS",
    "MOVED",
    "NUMBERS",
    "TABLE",
    "BoundEmitter",
    "Check",
    "DTypes",
    "Entry",
    "emitter_for",
    "family_of",
    "operator",
]

FLOATS: DTypes = F32 | frozenset({np.dtype(np.float16)})
"""Types of floating-point arithmetic; that of float16 is done in float32."""

NUMBERS: DTypes = FLOATS | INTS
COMPUTED: DTypes = NUMBERS | BOOL
MOVED: DTypes = COMPUTED | HALVES | frozenset({np.dtype(np.float64)})
"""Types whose elements can be copied, though not computed with."""

TABLE = KernelTable("partita_opencl.emitters")

F = TypeVar("F", bound=Callable[..., Any])


def operator(
    *op_types: str,
    domain: str = "",
    types: DTypes | Mapping[int, DTypes] = FLOATS,
    values: Sequence[int] = (),
    check: Check | None = None,
    since: int = 1,
    until: int | None = None,
    folds: bool = True,
    outputs: int | None = 1,
    in_place: Mapping[int, int] | None = None,
) -> Callable[[F], F]:
    """Registers an emitter ``emit(kit, node, *operands)``.

    What the host would compute element by element, in Python, does not fold: a window over a
    padding of millions is soon done on the device, and a matter of minutes there.

    Args:
        op_types: The operators; the emitter distinguishes several by ``node.op_type``.
        domain: Their domain; ``"partita"`` for what fusion makes.
        types: Element types that it takes, for all inputs or by position.
        values: Positions of inputs whose elements must be known when the shapes are.
        check: Says why it refuses a node's attributes or shapes, if it does.
        since: First opset version it is right for.
        until: Last opset version it is right for; ``None`` for all later ones.
        folds: Whether it may run at compile time on constants.
        outputs: How many outputs it computes at most; ``None`` for any number.
        in_place: By position of an output that of the input in whose memory it may be made.
    """
    return TABLE.register(
        *op_types,
        domain=domain,
        dtypes=types,
        values=values,
        check=check,
        since=since,
        until=until,
        folds=folds,
        outputs=outputs,
        in_place=in_place,
    )


_FAMILIES = {
    "Softmax": "softmax",
    "LogSoftmax": "softmax",
    "ArgMax": "argument",
    "ArgMin": "argument",
    "LRN": "lrn",
    "valid_attention": "cache_attention",
}
"""Operators whose kernels are a family of their own, and modules whose kernels are another's;
others belong to that of their module."""


def family_of(node: Node, entry: Entry) -> str:
    """The family of kernels that computes a node: what a driver is tried for.

    Args:
        node: The operation.
        entry: Its entry in the table.

    Returns:
        A key of the checks of drivers, or the name of the module that emits it.
    """
    if node.op_type == "Conv" and entry.domain != DOMAIN and _is_depthwise(node):
        return "depthwise"
    module = entry.emit.__module__.rpartition(".")[2]
    return _FAMILIES.get(node.op_type) or _FAMILIES.get(module, module)


def _is_depthwise(node: Node) -> bool:
    weights = node.input(1)
    shape = None if weights is None else weights.shape
    return int(node.attrs.get("group", 1)) > 1 and shape is not None and shape[1:2] == (1,)


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
        kit = Kit(builder, self.tuning)
        if self.tuning.half:
            operands = tuple(narrowed(kit, node, self.entry, operands))
        return self.entry.emit(kit, node, *operands)


def _is_known(operand: Operand) -> bool:
    """Whether the host has the elements, not sizes among them that stand for others."""
    if isinstance(operand, Packed):
        return True
    const = operand.const
    return const is not None and not (const.dtype.hasobject and holds_sizes(const))


def emitter_for(
    tuning: Tuning, device: str, fitness: Callable[[str], Fitness]
) -> Callable[[Node, Sequence[Operand | None]], BoundEmitter]:
    """The function that gives the toolkit emitters.

    Args:
        tuning: How work is cut for the device.
        device: Its name.
        fitness: What it can do with a family of kernels; called once for each.
    """
    fitness = functools.cache(fitness)

    @functools.cache
    def tuned(form: Form) -> Tuning:
        return replace(tuning, form=form)

    def find_emitter(node: Node, operands: Sequence[Operand | None]) -> BoundEmitter:
        entry = TABLE.find(node.domain, node.op_type, node.version)
        if entry is None:
            raise CompileError(
                f"Operation '{node.name}': device {device} has no kernel for {node.kind} of opset "
                f"{node.version}. Run it on another device, e.g. 'HETERO:{device},CPU'."
            )
        # What fusion makes is no ONNX operator, which the host could evaluate.
        folds = entry.folds and not node.domain
        constant = folds and all(o is None or _is_known(o) for o in operands)
        reason = None
        if not constant:
            reason = entry.refuse(node, [None if o is None else o.dtype for o in operands])
        if reason is not None:
            raise CompileError(
                f"Operation '{node.name}' ({node.model_kind}) on device {device}: {reason}."
            )
        if constant:
            return BoundEmitter(entry, tuning, folds)
        fit = fitness(family_of(node, entry))
        if fit.reason:
            raise CompileError(
                f"Operation '{node.name}' ({node.model_kind}): device {device} does not compute "
                f"it: {fit.reason}. Run it on another device, e.g. 'HETERO:{device},CPU'."
            )
        return BoundEmitter(entry, tuned(fit.form), folds)

    return find_emitter
