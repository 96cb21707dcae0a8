"""The name of the memory that needs no device: plugins ask for it before any tensor is there."""

HOST = "host"
"""The memory id of ordinary host memory."""
