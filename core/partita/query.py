"""What a device answers when it is asked which operations of a model it takes."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


class ReasonCode(enum.StrEnum):
    """Why an operation is, or is not, on a device."""

    UNSUPPORTED_OP = "UNSUPPORTED_OP"
    UNSUPPORTED_DTYPE = "UNSUPPORTED_DTYPE"
    UNSUPPORTED_ATTRIBUTE = "UNSUPPORTED_ATTRIBUTE"
    UNSUPPORTED_SHAPE = "UNSUPPORTED_SHAPE"
    DYNAMIC_SHAPE = "DYNAMIC_SHAPE"
    VALUE_DEPENDENT_SHAPE = "VALUE_DEPENDENT_SHAPE"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    COMPILE_FAILED = "COMPILE_FAILED"
    RUN_FAILED = "RUN_FAILED"
    PRIORITY = "PRIORITY"
    PINNED = "PINNED"
    CONSTANT = "CONSTANT"
    FALLBACK = "FALLBACK"
    UNUSED = "UNUSED"


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason code and a sentence for a person.

    Attributes:
        code: What kind of reason it is; programs test this.
        detail: What exactly was found and what would be accepted, e.g. ``"dtype float64; takes
            float32"``.
    """

    code: ReasonCode
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else str(self.code)


@dataclass(frozen=True)
class QueryResult(Mapping[str, str]):
    """Which operations a device takes, and why not the others.

    As a mapping it goes from operation name to device name, as OpenVINO's ``query_model`` does;
    operations that no device takes are absent.

    Attributes:
        device: The device that answered, e.g. ``"CPU"`` or ``"HETERO:GPU,CPU"``.
        supported: Operation name to the device that takes it.
        reasons: Operation name to the reason, for every operation that is not taken. Devices that
            choose among others (HETERO) may give reasons for taken operations too.
    """

    device: str
    supported: Mapping[str, str]
    reasons: Mapping[str, Reason] = field(default_factory=dict)

    @classmethod
    def of(cls, device: str, reasons: Mapping[str, Reason | None]) -> QueryResult:
        """Builds a result from one verdict per operation: ``None`` means that it is taken."""
        return cls(
            device,
            {name: device for name, reason in reasons.items() if reason is None},
            {name: reason for name, reason in reasons.items() if reason is not None},
        )

    def __getitem__(self, name: str) -> str:
        return self.supported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.supported)

    def __len__(self) -> int:
        return len(self.supported)
