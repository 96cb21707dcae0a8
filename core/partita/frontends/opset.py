"""Models of an older ONNX opset than one that is needed, converted."""

from __future__ import annotations

from partita.errors import ModelError
from partita.frontends.reader import read_model
from partita.model.model import Model


def with_opset(model: Model, version: int) -> Model:
    """The model, or one of the opset that ONNX's version converter makes of it if it is older.

    Raises:
        ModelError: The converter does not know an operation of the older opset.
    """
    found = model.ir.opset_imports.get("", version)
    if found >= version:
        return model
    import onnx.version_converter

    try:
        return read_model(onnx.version_converter.convert_version(model.to_onnx(), version))
    except Exception as error:  # C++: what it raises is of many types
        raise ModelError(
            f"Model '{model.name}' is of ONNX opset {found}, and {version} is needed; converting "
            f"it fails: {error}"
        ) from error
