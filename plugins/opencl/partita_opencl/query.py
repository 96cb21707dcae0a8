"""Which operations the plugin takes, and why not the others: by table, and by the driver's trials.

Needs no driver itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita import Model
from partita.contract.query import Reason, ReasonCode
from partita.lowering import Graph, Node, Value, expand_functions, lower
from partita.lowering.emission.walk import most_value_elements
from partita.lowering.fusion.mixture import expert_ifs
from partita.lowering.shapes.type_rules import mixed_types
from partita_opencl.emitters.operator_table import TABLE, Entry, family_of
from partita_opencl.trials.device_trials import DeviceTrials

MOST_DIMS = 8
"""Ranks that kernels take."""


def verdicts(model: Model, trials: DeviceTrials | None = None) -> dict[str, Reason | None]:
    """A reason per operation that is refused, ``None`` per operation that is taken.

    ``trials`` says what the driver can do; by default, all that is in the table.
    """
    graph = lower(model, for_query=True)
    lowered = {node.name for node in graph.nodes}
    reasons = expanded_refusals(graph, trials)
    functions = {(domain, name) for domain, name, _ in model.ir.functions}
    answers: dict[str, Reason | None] = {}
    for op in model.ops:
        if op.name not in lowered and (op.domain, op.op_type) in functions:
            answers[op.name] = Reason(
                ReasonCode.UNSUPPORTED_OP, "a function of the model; inline functions first"
            )
        else:  # what was lowered away is a constant, or read by nobody
            answers[op.name] = reasons.get(op.name)
    return answers


def expanded_refusals(graph: Graph, trials: DeviceTrials | None = None) -> dict[str, Reason]:
    """:func:`refusals`, once operators without kernels are expanded, in place, where that does.

    So are those whose kernels are for another form of them. Those with kernels that refuse a shape,
    a type or an attribute are not: definitions are no righter there.
    """
    reasons = refusals(graph, trials)
    if not reasons:
        return reasons
    missing = {name for name, reason in reasons.items() if reason.code is ReasonCode.UNSUPPORTED_OP}
    own = {
        node
        for node in graph.all_nodes()
        if _entry_of(node) is not None and node.name not in missing
    }
    expand_functions(graph, lambda node: node in own or takes(node))
    return refusals(graph, trials)


def _entry_of(node: Node) -> Entry | None:
    return TABLE.find(node.domain, node.op_type, node.version)


def refusals(graph: Graph, trials: DeviceTrials | None = None) -> dict[str, Reason]:
    """By the name of each of the model's operations that is refused the reason."""
    facts = _Facts(graph)
    reasons: dict[str, Reason] = {}
    families: dict[Node, str] = {}
    experts = expert_ifs(graph)
    for node in graph.nodes:
        if node in experts:
            reasons |= _of_bodies(node, trials)
            continue
        entry = _entry_of(node)
        missing = TABLE.missing(node) if entry is None else mixed_types(node)
        reason = missing or (None if entry is None else _refuse(node, entry, facts))
        if reason is not None:
            _add(reasons, node, reason)
        elif entry is not None and not facts.is_folded(node, entry):
            families[node] = family_of(node, entry)
        facts.note(node, entry if reason is None else None)
    if trials is not None and families:
        found, failures = trials.fitness(graph, families.values()), trials.failures(graph)
        for node, family in families.items():
            if found[family].reason:
                detail = f"kernels of family '{family}': {found[family].reason}"
                _add(reasons, node, Reason(ReasonCode.DRIVER_FAULT, detail))
            elif node.name in failures:
                _add(reasons, node, Reason(ReasonCode.DRIVER_FAULT, failures[node.name]))
    return reasons


def _add(reasons: dict[str, Reason], node: Node, reason: Reason) -> None:
    """Enters a reason for the operation that a node is, or is a part of."""
    for name in node.origins:
        reasons.setdefault(name, reason)


def _of_bodies(node: Node, trials: DeviceTrials | None) -> dict[str, Reason]:
    """Why an expert is refused: an operation of its branches is."""
    for body in node.graphs():
        for name, reason in refusals(body, trials).items():
            detail = f"its body holds '{name}': {reason.detail}"
            return {node.name: Reason(reason.code, detail)}
    return {}


def takes(node: Node) -> bool:
    """Whether there is a kernel for a node that fusion is about to make."""
    entry = _entry_of(node)
    if entry is None:
        return False
    return entry.refuse(node, [_dtype(v) for v in node.inputs]) is None


class _Facts:
    """What is known about values before anything runs."""

    def __init__(self, graph: Graph) -> None:
        self._constant: set[Value] = set()
        self._derived = {v for v in graph.inputs if _may_be_read(v)}
        self._untyped: set[Value] = set()

    def is_constant(self, value: Value | None) -> bool:
        """Whether the value follows from weights alone."""
        return value is None or value.const is not None or value in self._constant

    def is_known(self, value: Value | None) -> bool:
        """Whether the elements are known as soon as the shapes (and small inputs) are."""
        return self.is_constant(value) or value in self._derived

    def is_typed(self, value: Value) -> bool:
        """Whether the element type is known, or the compile is to tell why there is none.

        ONNX knows the type of all that its own operators compute, unless one of them is at fault.
        Compiling names that one; a refusal would name the one that reads what it computes.
        """
        return _dtype(value) is not None or value in self._untyped

    def is_folded(self, node: Node, entry: Entry) -> bool:
        """Whether the host computes the node, once, rather than a kernel."""
        folds = entry.folds and not node.domain
        return folds and all(self.is_constant(value) for value in node.inputs)

    def note(self, node: Node, entry: Entry | None) -> None:
        """Draws conclusions for the node's outputs."""
        outputs = [value for value in node.outputs if value is not None]
        if entry is None or node.domain:
            return
        self._untyped.update(value for value in outputs if value.dtype is None)
        if node.op_type in ("Shape", "Size"):
            self._derived.update(outputs)
        elif self.is_folded(node, entry):
            self._constant.update(outputs)
        elif entry.folds and all(self.is_known(value) for value in node.inputs):
            self._derived.update(value for value in outputs if _may_be_read(value))


def _dtype(value: Value | None) -> np.dtype[Any] | None:
    """The element type; that of a constant where the model does not declare one."""
    if value is None:
        return None
    return value.const.dtype if value.const is not None else value.dtype


def _may_be_read(value: Value) -> bool:
    """Whether a value, given as an input, would be read to work out shapes.

    The model may be cut anywhere, so this is asked of every value on the way to a shape.
    """
    if value.dtype is None:
        return False
    most = most_value_elements(value.dtype, allow_split=False)
    if value.shape is not None and all(isinstance(size, int) for size in value.shape):
        return math.prod(size for size in value.shape if isinstance(size, int)) <= most
    # Of open sizes, integers are rather a shape, and floats an image.
    is_row = value.shape is None or len(value.shape) <= 1
    return is_row and most >= 0 and value.dtype.kind != "f"


def _refuse_texts(node: Node) -> Reason | None:
    """What the host computes lies on the device then, which holds numbers."""
    for value in node.outputs:
        if value is not None and _dtype(value) == np.object_:
            return Reason(
                ReasonCode.UNSUPPORTED_DTYPE, f"'{value.name}' holds texts; takes numbers"
            )
    return None


def _refuse(node: Node, entry: Entry, facts: _Facts) -> Reason | None:
    if facts.is_folded(node, entry):
        return _refuse_texts(node)
    for position, value in enumerate(node.inputs):
        if value is None:
            continue
        if facts.is_constant(value):
            continue  # the host computes it, and its type with it, before the kernel is chosen
        if not facts.is_typed(value) and entry.allowed(position) is not None:
            return Reason(
                ReasonCode.UNSUPPORTED_DTYPE, f"input {position} ('{value.name}') has no known type"
            )
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.shape is not None and len(value.shape) > MOST_DIMS:
            return Reason(
                ReasonCode.UNSUPPORTED_SHAPE,
                f"'{value.name}' has {len(value.shape)} dimensions; takes {MOST_DIMS}",
            )
    reason = entry.refuse(node, [_dtype(v) for v in node.inputs])
    if reason is not None:
        return reason
    for position in entry.values:
        value = node.input(position)
        if not facts.is_known(value):
            name = "" if value is None else value.name
            return Reason(
                ReasonCode.VALUE_DEPENDENT_SHAPE,
                f"input {position} ('{name}') is computed while the model runs; takes constants, "
                "small inputs and what follows from shapes",
            )
    return None
