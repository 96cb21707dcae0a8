"""Writer of OpenVINO IR (``.xml`` and ``.bin``)."""

from __future__ import annotations

from partita.frontends.openvino_ir.writer.walk import write_ir

__all__ = ["write_ir"]
