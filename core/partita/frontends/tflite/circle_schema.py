"""What circle's schema has beside TFLite's: operators with negative codes, and their options.

The schema: https://github.com/Samsung/ONE/blob/master/nnpackage/schema/circle_schema.fbs
"""

from __future__ import annotations

from typing import Any

CIRCLE_OPERATORS = {
    -6: "RMS_NORM",
    -5: "GRU",
    -4: "BCQ_GATHER",
    -3: "BCQ_FULLY_CONNECTED",
    -2: "INSTANCE_NORM",
}
"""Operator code to name."""

_FIRST_FIELD = 4
"""Where a table keeps the place of its first field; the others follow in steps of two."""


class NormalizationOptions:
    """Options of INSTANCE_NORM and RMS_NORM, with accessors named as those of TFLite's options.

    Args:
        table: The table of the file.
    """

    def __init__(self, table: Any) -> None:
        self._table = table

    def Epsilon(self) -> float:  # noqa: N802 - named as the generated accessors are
        """What is added to the variance or the mean of squares."""
        from flatbuffers.number_types import Float32Flags

        return float(self._table.GetSlot(_FIRST_FIELD, 0.0, Float32Flags))

    def FusedActivationFunction(self) -> int:  # noqa: N802 - named as the generated accessors are
        """The activation behind the operator."""
        from flatbuffers.number_types import Int8Flags

        return int(self._table.GetSlot(_FIRST_FIELD + 2, 0, Int8Flags))


_OPTIONS = {250: NormalizationOptions, 254: NormalizationOptions}
"""Number in the union of options to their reader."""


def circle_options(number: int, table: Any) -> Any:
    """The reader of options that only circle has, or ``None``."""
    reader = _OPTIONS.get(number)
    return None if reader is None else reader(table)
