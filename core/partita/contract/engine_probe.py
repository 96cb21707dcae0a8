"""For plugins that wrap an engine: asks the engine about each operation as a model of its own."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import CompileError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

if TYPE_CHECKING:
    from partita.model.model import Model, Op

MOST_ANSWERS = 4096
"""Answers that a probe keeps; those not asked for the longest are dropped."""


class Probe:
    """Answers queries by letting an engine load models of one operation each.

    The last 4096 answers are cached, because models repeat their operations. Thread-safe.

    Args:
        load: Lets the engine load a serialized model; raises ``CompileError`` if it cannot.
        types: Element types that the engine supports, as ONNX IR prints them, e.g. ``"FLOAT"``.
        wrong: Operators that the engine loads, but computes differently from ONNX.
    """

    def __init__(
        self,
        load: Callable[[bytes], object],
        types: Collection[str],
        wrong: Collection[str] = (),
    ) -> None:
        self._load, self._types, self._wrong = load, types, wrong
        self._answers: OrderedDict[bytes, Reason | None] = OrderedDict()
        self._lock = InterruptSafeLock()

    def query(self, model: Model, device: str) -> QueryResult:
        """The result for ``DevicePlugin.query_model``; costs one load per new operation."""
        return QueryResult.of(device, {op.name: self._refusal(model, op) for op in model.ops})

    def _refusal(self, model: Model, op: Op) -> Reason | None:
        for value in (*op.node.inputs, *op.node.outputs):
            if value is None or not value.name:  # an input or output that is left out
                continue
            if (kind := str(value.type)) not in self._types:
                found = f"'{value.name}' has no known type" if value.type is None else kind
                takes = _listed(self._types)
                return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"{found}; takes {takes}")
        if op.op_type in self._wrong and op.domain in ("", "ai.onnx"):
            return Reason(ReasonCode.UNSUPPORTED_OP, f"computes {op.op_type} otherwise than ONNX")
        if any(str(attribute.type) == "GRAPH" for attribute in op.node.attributes.values()):
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "has a body, which cannot stand alone")
        constants = model.ir.graph.initializers
        inputs = [name for name in dict.fromkeys(op.inputs) if name and name not in constants]
        outputs = [name for name in op.outputs if name]
        alone = model.extract(inputs, outputs, "alone", [op.node]).to_onnx()
        return self._tried(alone.SerializeToString(deterministic=True))

    def _tried(self, proto: bytes) -> Reason | None:
        key = hashlib.sha256(proto).digest()
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        try:
            self._load(proto)
            reason = None
        except CompileError as error:
            reason = Reason(ReasonCode.UNSUPPORTED_OP, str(error)[:200])
        with self._lock:
            self._answers[key] = reason
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        return reason


def _listed(types: Collection[str]) -> str:
    return ", ".join(sorted(types))
