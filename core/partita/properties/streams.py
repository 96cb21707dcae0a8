"""Properties about streams: requests that a device computes at the same time."""

from __future__ import annotations

import enum

from partita.properties.names import Property

num = Property("NUM_STREAMS")


class Num(enum.Enum):
    """Numbers of streams that a device finds by itself."""

    AUTO = -1
    NUMA = -2

    def to_integer(self) -> int:
        """The number that stands for it (OpenVINO's spelling)."""
        return self.value
