"""PyTorch: modules as models, through ``torch.export`` and PyTorch's own ONNX exporter."""

from __future__ import annotations

import sys
from typing import Any

from partita.frontends.torch.exporting import ExportedModule, Returned, export_module

__all__ = ["ExportedModule", "Returned", "export_module", "is_torch_program"]


def is_torch_program(source: Any) -> bool:
    """Whether it is a PyTorch module or an exported program; does not import PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return isinstance(source, (torch.nn.Module, torch.export.ExportedProgram))
