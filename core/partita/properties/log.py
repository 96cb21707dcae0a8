"""Properties about logging."""

from __future__ import annotations

from partita.properties.names import Property

level = Property("LOG_LEVEL")
