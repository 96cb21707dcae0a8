"""The fault as files: a model, its inputs and the expected outputs, in ONNX's own layout."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from partita.core import Core
from partita.errors import InferError, InputError, ModelError
from partita.model.compare import difference
from partita.model.model import Model
from partita.properties import Config
from partita.tensors.sequence_values import boxed, unboxed

Array = np.ndarray[Any, Any]


def write(
    path: Path, model: Model, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> Path:
    """Writes the model, and beside it ``<stem>/test_data_set_0`` with one file per value.

    Args:
        path: The file of the model.
        model: What is written.
        inputs: By input name, what the model is run on.
        expected: By output name, the reference's results.

    Returns:
        The folder with the data; what it held before is deleted.

    Raises:
        ModelError: It cannot be written.
    """
    folder = path.with_suffix("") / "test_data_set_0"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        graph = model.ir.graph
        for kind, ports, arrays in (
            ("input", graph.inputs, inputs),
            ("output", graph.outputs, expected),
        ):
            for index, port in enumerate(ports):
                name = port.name or ""
                data = _proto(arrays[name], port.type, name).SerializeToString()
                (folder / f"{kind}_{index}.pb").write_bytes(data)
    except OSError as error:
        raise ModelError(f"Cannot write the data of '{path}': {error}") from error
    model.save(path)
    return folder


def read_data(folder: Path, model: Model, kind: str = "input") -> dict[str, Array]:
    """Reads ``input_0.pb``, ``input_1.pb``, ... (or outputs) of a folder in ONNX's layout.

    Raises:
        InputError: A file is missing or holds no value.
    """
    graph = model.ir.graph
    values = {}
    for index, port in enumerate(graph.inputs if kind == "input" else graph.outputs):
        file = folder / f"{kind}_{index}.pb"
        try:
            values[port.name or ""] = _array(file.read_bytes(), port.type)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"'{file}' cannot be read as the value of '{port.name}': {error}"
            ) from error
    return values


def shows(core: Core, path: Path, device: str, config: Config, rtol: float, atol: float) -> bool:
    """Whether the files, read again, are out of tolerance on a device.

    Args:
        core: Compiles the model anew, as a reader of the files would.
        path: The file of the model, with its data as :func:`write` has them.
        device: A device string.
        config: Properties to compile with.
        rtol: Relative tolerance, as :func:`~partita.model.compare.difference` takes it.
        atol: Absolute tolerance.
    """
    from partita.bisection.device_pair import ROUNDING

    model = core.read_model(path)
    folder = path.with_suffix("") / "test_data_set_0"
    try:
        values = core.compile_model(model, device, config)(read_data(folder, model)).to_dict()
    except InferError:
        return True
    expected = read_data(folder, model, "output")
    return not all(
        difference(values[name], array, rtol, atol, ROUNDING * rtol).ok
        for name, array in expected.items()
    )


def _proto(array: Array, kind: Any, name: str) -> Any:
    """The value as the protobuf that its type asks for."""
    import onnx_ir as ir
    from onnx import numpy_helper

    value = unboxed(array)
    if isinstance(kind, ir.OptionalType):
        return numpy_helper.from_optional(value, name)
    if isinstance(value, list):
        return numpy_helper.from_list(value, name)
    if value.dtype == object:
        return numpy_helper.from_array(value, name)
    return ir.to_proto(ir.Tensor(np.ascontiguousarray(value).reshape(value.shape), name=name))


def _array(data: bytes, kind: Any) -> Array:
    import onnx
    import onnx_ir as ir
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    try:
        if isinstance(kind, ir.OptionalType):
            return np.asarray(boxed(numpy_helper.to_optional(onnx.OptionalProto.FromString(data))))
        if isinstance(kind, ir.SequenceType):
            return np.asarray(boxed(numpy_helper.to_list(onnx.SequenceProto.FromString(data))))
        tensor = onnx.TensorProto.FromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not a protobuf of that type: {error}") from error
    if tensor.data_type == onnx.TensorProto.STRING:
        return np.asarray(numpy_helper.to_array(tensor))
    return np.asarray(ir.from_proto(tensor).numpy())
