"""Properties about logging."""

from __future__ import annotations

import enum

from partita.properties.names import Property

level = Property("LOG_LEVEL")


class Level(enum.StrEnum):
    """What is logged, by the names that Python's loggers have."""

    NO = "CRITICAL"
    ERR = "ERROR"
    WARNING = "WARNING"
    INFO = "INFO"
    DEBUG = "DEBUG"
    TRACE = "DEBUG"
