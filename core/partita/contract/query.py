"""The answer of a device to the question which operations of a model it supports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from partita.errors import UnsupportedOpError
from partita.reason import Reason, ReasonCode

if TYPE_CHECKING:
    from partita.model.model import Model

__all__ = ["QueryResult", "Reason", "ReasonCode"]


class QueryResult(dict[str, str]):
    """Which operations a device supports, and why not the others.

    A dict from operation name to the device that supports it, as OpenVINO's ``query_model`` returns
    it; unsupported operations are absent. It may be edited and written back as affinities.

    Attributes:
        device: The device that answered, e.g. ``"CPU"`` or ``"HETERO:GPU,CPU"``.
        reasons: Operation name to the reason, for every unsupported operation. Devices that choose
            among others (HETERO) may give reasons for supported operations too.
    """

    def __init__(
        self,
        device: str,
        supported: Mapping[str, str],
        reasons: Mapping[str, Reason] | None = None,
    ) -> None:
        super().__init__(supported)
        self.device = device
        self.reasons: Mapping[str, Reason] = {} if reasons is None else reasons

    @classmethod
    def of(cls, device: str, reasons: Mapping[str, Reason | None]) -> QueryResult:
        """Builds a result from one verdict per operation: ``None`` means that it is supported."""
        return cls(
            device,
            {name: device for name, reason in reasons.items() if reason is None},
            {name: reason for name, reason in reasons.items() if reason is not None},
        )

    def require_all(self, model: Model) -> None:
        """Checks that all operations of a model are supported; plugins call it before they compile.

        Raises:
            UnsupportedOpError: Some are not; lists the first ones with their reasons.
        """
        missing = [op for op in model.ops if op.name not in self]
        if missing:
            from partita.extensions import advice

            lines = [f"'{op.name}' ({op.op_type}): {self.reasons.get(op.name)}" for op in missing]
            raise UnsupportedOpError(
                f"Device '{self.device}' does not take {len(missing)} of {len(model.ops)} "
                f"operations of model '{model.name}': {'; '.join(lines[:10])}"
                f"{f'; and {len(lines) - 10} more' if len(lines) > 10 else ''}.",
                {op.name: self.reasons[op.name] for op in missing if op.name in self.reasons},
            ).with_lines(advice(op for op in missing if self._lacks_operator(op.name)))

    def _lacks_operator(self, name: str) -> bool:
        """Whether an operation is unsupported because of its operator."""
        reason = self.reasons.get(name)
        return reason is not None and reason.code is ReasonCode.UNSUPPORTED_OP

    def __repr__(self) -> str:
        return f"QueryResult({self.device!r}, {dict(self)!r}, {dict(self.reasons)!r})"
