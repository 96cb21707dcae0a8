"""Properties about streams: requests that a device computes at the same time."""

from __future__ import annotations

from partita.properties.names import Property

num = Property("NUM_STREAMS")
