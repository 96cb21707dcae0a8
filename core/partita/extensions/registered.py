"""The custom operators that are registered with one Core, and the models that hold them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from partita.errors import ModelError
from partita.extensions.extension import Extension
from partita.extensions.op_class import OpExtension
from partita.model.op import EXTENSION
from partita.model.operator_checks import is_of_onnx

if TYPE_CHECKING:
    import onnx_ir as ir


class Extensions:
    """Operators by name and domain."""

    def __init__(self) -> None:
        self._found: dict[tuple[str | None, str], Extension] = {}

    def add(self, extension: Any) -> None:
        """Adds what ``Core.add_extension`` takes; the last one of a name and domain counts.

        Raises:
            ModelError: It is none of these.
        """
        if isinstance(extension, (list, tuple)):
            for one in extension:
                self.add(one)
            return
        if isinstance(extension, (str, os.PathLike)):
            raise ModelError(
                f"'{extension}': libraries of operators are not loaded; add_extension takes "
                "operators in Python, a partita.CustomOperator or a subclass of partita.Op."
            )
        made = extension if isinstance(extension, Extension) else OpExtension(extension)
        self._found[made.domain, made.op_type] = made

    def attach(self, graph: ir.Graph) -> bool:
        """Notes at the operations of a graph which of them are computed by these operators.

        Copies and parts of the graph have the notes too; files have not.

        Returns:
            Whether there was anything new.
        """
        import onnx_ir as ir

        if not self._found:
            return False
        is_new = False
        for node in ir.traversal.RecursiveGraphIterator(graph):
            found = self._find(node.domain, node.op_type)
            if found is not None and node.meta.get(EXTENSION) is not found:
                node.meta[EXTENSION] = found
                is_new = True
        return is_new

    def _find(self, domain: str, op_type: str) -> Extension | None:
        found = self._found.get((domain, op_type))
        if found is None and (anywhere := self._found.get((None, op_type))) is not None:
            return None if is_of_onnx(op_type, domain) else anywhere
        return found
