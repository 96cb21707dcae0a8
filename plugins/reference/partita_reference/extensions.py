"""Operators of an application's own, as the evaluator takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir
from onnx.reference.op_run import OpRun

from partita.extensions import extension_of
from partita.extensions.extension import Kernel


def python_operators(nodes: Iterable[ir.Node]) -> dict[tuple[str, str], type[OpRun]]:
    """The evaluator's classes for those of some operations that an application computes.

    Raises:
        PartitaError: One of them refuses its operation.
    """
    kernels: dict[tuple[str, str], dict[str, Kernel]] = {}
    for node in nodes:
        own = extension_of(node)
        if own is not None:
            named = kernels.setdefault((node.domain, node.op_type), {})
            named[node.name or ""] = own.bind(node)
    return {key: _class_of(*key, named) for key, named in kernels.items()}


def _class_of(domain: str, op_type: str, kernels: Mapping[str, Kernel]) -> type[OpRun]:
    """A class of operations, which are told apart by their names."""

    def run(self: OpRun, *inputs: Any, **_: Any) -> tuple[Any, ...]:
        return tuple(kernels[self.onnx_node.name](inputs))

    return type(op_type, (OpRun,), {"op_domain": domain, "_run": run})
