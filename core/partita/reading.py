"""Reading: from a path, bytes or a protobuf to a checked, tidy :class:`~partita.model.Model`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.errors import ModelFormatError, ModelNotFoundError
from partita.model import Model

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

_log = logging.getLogger(__name__)

ModelSource = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | Model"


def read_model(source: Any) -> Model:
    """Reads an ONNX model and makes it tidy.

    Local functions are inlined, ``Constant`` nodes become initializers, initializers that are also
    inputs become constants, operations get unique names and topological order, shapes are
    inferred. Weights in external files are mapped into memory, not read.

    Args:
        source: A path, the file's bytes, an ``onnx.ModelProto``, an ``onnx_ir.Model`` (taken over)
            or a ``Model`` (returned as it is).

    Raises:
        ModelNotFoundError: The path does not exist.
        ModelFormatError: It is no ONNX model, damaged, or of an opset that is not known.
    """
    if isinstance(source, Model):
        return source
    import onnx
    import onnx_ir as ir

    folder: Path | None = None
    if isinstance(source, ir.Model):
        ir_model, origin = source, "the model"
    else:
        if isinstance(source, onnx.ModelProto):
            proto, origin = source, "the ModelProto"
        elif isinstance(source, (bytes, bytearray, memoryview)):
            proto, origin = _parse(bytes(source), "the bytes"), "the bytes"
        elif isinstance(source, (str, os.PathLike)):
            path = Path(source)
            proto, origin, folder = _parse(_read(path), f"'{path}'"), f"'{path}'", path.parent
        else:
            raise ModelFormatError(
                f"Cannot read a model from {type(source).__name__}; give a path, bytes or an "
                "onnx.ModelProto."
            )
        _check_header(proto, origin)
        _check_external_data(proto, folder, origin)
        try:
            ir_model = ir.from_proto(proto)
        except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
            raise ModelFormatError(f"{origin} is not a valid ONNX model: {error}") from error
        if folder is not None:
            ir.external_data.set_base_dir(ir_model.graph, folder)
        if not ir_model.graph.name:
            ir_model.graph.name = Path(str(source)).stem if folder is not None else "model"
    _tidy(ir_model, origin)
    return Model(ir_model)


def infer_shapes(ir_model: ir.Model) -> None:
    """Infers shapes and types in place; what cannot be inferred stays unknown."""
    from onnx.shape_inference import InferenceError
    from onnx_ir.passes.common import ShapeInferencePass

    try:
        ShapeInferencePass(data_prop=True)(ir_model)
    except (InferenceError, RuntimeError, ValueError) as error:
        _log.warning("Shapes of model '%s' could not be inferred: %s", ir_model.graph.name, error)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"Model file '{path}' does not exist (looked in '{path.absolute().parent}')."
        ) from error
    except OSError as error:
        raise ModelFormatError(f"Model file '{path}' cannot be read: {error}") from error


def _parse(data: bytes, origin: str) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise ModelFormatError(
            f"{origin} is not an ONNX model or is damaged ({len(data)} bytes, starting with "
            f"{data[:8]!r})."
        ) from error
    return proto


def _check_header(proto: onnx.ModelProto, origin: str) -> None:
    """Refuses what parses as protobuf but is no model, and opsets from the future."""
    import onnx.defs

    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelFormatError(f"{origin} is not an ONNX model: it holds no graph.")
    newest = onnx.defs.onnx_opset_version()
    versions = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions and any(node.domain in ("", "ai.onnx") for node in proto.graph.node):
        if proto.ir_version >= 3:
            raise ModelFormatError(f"{origin} names no opset version for the ONNX operators.")
        versions = [1]
    for version in versions:
        if not 1 <= version <= newest:
            raise ModelFormatError(
                f"{origin} uses opset {version}; supported are 1 to {newest}. Export it with an "
                "older opset, or upgrade the 'onnx' package."
            )


def _check_external_data(proto: onnx.ModelProto, folder: Path | None, origin: str) -> None:
    """Refuses weights outside the model's folder and ranges outside their file."""
    from onnx import TensorProto

    for tensor in _all_tensors(proto.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if folder is None:
            raise ModelFormatError(
                f"Tensor '{tensor.name}' of {origin} is kept in file '{location}'; read the model "
                "from its path so that the file can be found."
            )
        root = folder.resolve()
        target = (root / location).resolve()
        if not location or Path(location).is_absolute() or not target.is_relative_to(root):
            raise ModelFormatError(
                f"Tensor '{tensor.name}' of {origin} points to '{location}', which is outside the "
                "model's folder."
            )
        if not target.is_file():
            raise ModelNotFoundError(
                f"Tensor '{tensor.name}' of {origin} is kept in '{target}', which does not exist."
            )
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
        except ValueError as error:
            raise ModelFormatError(
                f"Tensor '{tensor.name}' of {origin} has a broken external-data entry: {error}"
            ) from error
        size = target.stat().st_size
        needed = length or _tensor_bytes(tensor)
        if offset < 0 or length < 0 or offset + needed > size:
            raise ModelFormatError(
                f"Tensor '{tensor.name}' of {origin} needs bytes {offset} to {offset + needed} of "
                f"'{target}', which has {size}."
            )


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    import onnx_ir as ir

    count = 1
    for dim in tensor.dims:
        count *= dim
    return int(count * ir.DataType(tensor.data_type).itemsize)


def _all_tensors(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                tensors.append(attribute.t)
            tensors.extend(attribute.tensors)
            if attribute.HasField("g"):
                tensors.extend(_all_tensors(attribute.g))
            for body in attribute.graphs:
                tensors.extend(_all_tensors(body))
    return tensors


def _tidy(ir_model: ir.Model, origin: str) -> None:
    from onnx_ir.passes import PreconditionError
    from onnx_ir.passes.common import (
        InlinePass,
        LiftConstantsToInitializersPass,
        RemoveInitializersFromInputsPass,
    )

    graph = ir_model.graph
    if ir_model.functions:
        try:
            InlinePass()(ir_model)
        except PreconditionError as error:
            raise ModelFormatError(f"{origin}: {error}") from error
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(ir_model)
    RemoveInitializersFromInputsPass()(ir_model)
    _check_wiring(ir_model, origin)
    try:
        graph.sort()
    except ValueError as error:
        raise ModelFormatError(f"{origin} has a cycle: {error}") from error
    _forget_meaningless_dims(graph)
    _name_nodes(graph)
    infer_shapes(ir_model)


def _check_wiring(ir_model: ir.Model, origin: str) -> None:
    """Every value that is read or returned must come from somewhere."""
    import onnx_ir as ir

    for node in ir.traversal.RecursiveGraphIterator(ir_model.graph):
        for value in node.inputs:
            if value is not None and value.producer() is None and not _is_source(value):
                raise ModelFormatError(
                    f"{origin}: operation '{node.name or node.op_type}' reads '{value.name}', "
                    "which nothing produces."
                )
    names: set[str | None] = set()
    for value in ir_model.graph.outputs:
        if value.producer() is None and not _is_source(value):
            raise ModelFormatError(f"{origin}: nothing produces output '{value.name}'.")
        if value.name in names:
            raise ModelFormatError(f"{origin} lists output '{value.name}' twice.")
        names.add(value.name)


def _is_source(value: ir.Value) -> bool:
    return bool(value.is_graph_input() or value.is_initializer())


def _forget_meaningless_dims(graph: ir.Graph) -> None:
    """Dimensions such as -1, "" and "?" say nothing; as symbols they would even claim equality."""
    import onnx_ir as ir

    for value in graph.inputs:
        if value.shape is None:
            continue
        dims: list[int | str | None] = []
        for dim in value.shape:
            known = dim if isinstance(dim, int) else dim.value
            meaningless = (isinstance(known, int) and known < 0) or known in ("", "?", "-1")
            dims.append(None if meaningless else known)
        value.shape = ir.Shape(dims)


def _name_nodes(graph: ir.Graph) -> None:
    """Gives every operation, those in bodies included, a name of its own."""
    import onnx_ir as ir

    nodes = list(ir.traversal.RecursiveGraphIterator(graph))
    taken = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    for node in nodes:
        name = node.name or ""
        if not name or name in seen:
            stem = name or node.op_type
            count = 0
            while not name or name in seen or name in taken:
                name = f"{stem}_{count}"
                count += 1
            node.name = name
        seen.add(name)
