"""Why an operation is, or is not, on a device."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReasonCode(enum.StrEnum):
    """Why an operation is, or is not, on a device."""

    UNSUPPORTED_OP = "UNSUPPORTED_OP"
    UNSUPPORTED_DTYPE = "UNSUPPORTED_DTYPE"
    UNSUPPORTED_ATTRIBUTE = "UNSUPPORTED_ATTRIBUTE"
    UNSUPPORTED_SHAPE = "UNSUPPORTED_SHAPE"
    DYNAMIC_SHAPE = "DYNAMIC_SHAPE"
    VALUE_DEPENDENT_SHAPE = "VALUE_DEPENDENT_SHAPE"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    DRIVER_FAULT = "DRIVER_FAULT"
    QUERY_FAILED = "QUERY_FAILED"
    COMPILE_FAILED = "COMPILE_FAILED"
    RUN_FAILED = "RUN_FAILED"
    DRIFTED = "DRIFTED"
    PRIORITY = "PRIORITY"
    PINNED = "PINNED"
    ACCURACY = "ACCURACY"
    CHEAPER_BY = "CHEAPER_BY"
    MERGED = "MERGED"
    REPLICATED = "REPLICATED"
    CONSTANT = "CONSTANT"
    FALLBACK = "FALLBACK"
    FOLLOWS = "FOLLOWS"
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
