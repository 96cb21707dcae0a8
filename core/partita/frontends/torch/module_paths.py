"""Names of the PyTorch modules that operations come from, stored where pins find them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

MODULE_PATH = "partita.module_path"
"""The key in an operation's metadata; ``op.rt_info["module_path"]`` is the same."""

_SCOPES = "pkg.torch.onnx.name_scopes"
"""Where PyTorch's exporter writes the modules around an operation, outermost first."""

_EXPORTERS = ("pkg.torch.", "pkg.onnxscript.", "namespace")


def keep_module_paths(model: ir.Model) -> None:
    """Writes an operation's innermost module into its metadata, and drops the exporter's notes.

    Those hold stack traces with the names of files, and are larger than many a graph.
    """
    import onnx_ir as ir

    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        path = _innermost(node.metadata_props.get(_SCOPES, "[]"))
        for key in list(node.metadata_props):
            if key.startswith(_EXPORTERS):
                del node.metadata_props[key]
        if path:
            node.metadata_props[MODULE_PATH] = path


def _innermost(scopes: str) -> str:
    """``encoder.layer.3`` of a list of modules that ends with the operation itself."""
    try:
        *modules, _ = ast.literal_eval(scopes)
    except (SyntaxError, ValueError):  # an exporter of other habits: there is no path then
        return ""
    return str(modules[-1]) if modules else ""


def lies_in(path: str, module: str) -> bool:
    """Whether a path is that of a module or of one inside of it.

    Example:
        >>> lies_in("encoder.3.mlp", "encoder.3"), lies_in("encoder.31", "encoder.3")
        (True, False)
    """
    return path == module or path.startswith(f"{module}.")
