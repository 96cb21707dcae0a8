"""The walk over a graph that writes an OpenVINO IR of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from partita.errors import ModelError
from partita.frontends.openvino_ir.weights import type_name
from partita.frontends.openvino_ir.writer import operators
from partita.frontends.openvino_ir.writer.document import Document, Output
from partita.frontends.openvino_ir.writer.writing_context import WRITERS, Site, dims_of
from partita.system.modules import import_modules

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.model.model import Model


def write_ir(model: Model, xml: Path, binary: Path, narrow: bool) -> None:
    """Writes a model as an IR of version 11.

    Args:
        model: The model, of opset 13 or newer.
        xml: The file of the network.
        binary: The file of its constants.
        narrow: Keep weights of float32 as float16.

    Raises:
        ModelError: It has operations that cannot be written, or keeps state.
        OSError: A file cannot be written.
    """
    import_modules(operators)
    graph = model.ir.graph
    _refuse_unknown(model)
    with binary.open("wb") as stream:
        document = Document(model.name, stream, narrow)
        ports = {value: _parameter(document, value) for value in graph.inputs}
        outputs = set(graph.outputs)
        for value in graph.initializers.values():
            if value.const_value is not None and (value.uses() or value in outputs):
                ports[value] = document.constant(value.const_value, str(value.name))
        for node in graph:
            _write(document, node, ports)
        for value in graph.outputs:
            document.layer("Result", "opset1", f"{value.name}/result", [ports[value]], [], {})
    document.save(xml)


def _parameter(document: Document, value: ir.Value) -> Output:
    if value.dtype is None:
        raise ModelError(f"The element type of input '{value.name}' is not known.")
    dims, name = dims_of(value), str(value.name)
    shape = "..." if dims is None else ",".join("?" if dim < 0 else str(dim) for dim in dims)
    data = {"shape": shape, "element_type": type_name(value.dtype, f"input '{name}'")}
    made = [(value.dtype, dims)]
    (port,) = document.layer("Parameter", "opset1", name, [], made, data)
    document.name_port(port, name)
    return port


def _write(document: Document, node: ir.Node, ports: dict[ir.Value, Output]) -> None:
    inputs = [None if value is None else ports[value] for value in node.inputs]
    made = WRITERS[node.op_type](Site(node, inputs, document))
    found = [made] if isinstance(made, Output) else list(made)
    for value, port in zip(node.outputs, found, strict=False):
        ports[value] = port
        if value.name:
            document.name_port(port, value.name)


def _refuse_unknown(model: Model) -> None:
    if model.variables:
        raise ModelError(f"Model '{model.name}' keeps state, which is not written as an IR.")
    refused = [op for op in model.ops if op.domain or op.op_type not in WRITERS]
    if refused:
        kinds = sorted({f"{op.domain}::{op.op_type}" if op.domain else op.op_type
                        for op in refused})  # fmt: skip
        raise ModelError(
            f"Model '{model.name}' has operators that are not written as an IR: "
            f"{', '.join(kinds)}; save it as .onnx."
        )
