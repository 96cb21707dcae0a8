"""Saving models as files that Partita, and other engines, read: ONNX and OpenVINO IR."""

from __future__ import annotations

import os
from pathlib import Path

from partita.errors import ModelError
from partita.frontends.openvino_ir.writer import write_ir
from partita.frontends.opset import with_opset
from partita.model.model import Model

_OPSET = 18
"""The IR's writer knows operators as this ONNX opset has them, or newer ones."""


def save_model(
    model: Model, output_model: str | os.PathLike[str], compress_to_fp16: bool = True
) -> None:
    """Writes a model as an OpenVINO IR (``.xml``, and ``.bin`` beside it) or as ONNX (``.onnx``).

    Args:
        model: The model.
        output_model: The file; what it ends with says the format.
        compress_to_fp16: In an IR, keep weights of float32 as float16, as OpenVINO does by default:
            those of which most are none of float16's numbers stay as they are. ONNX files always
            keep them as they are.

    Raises:
        ModelError: It ends with something else, cannot be written, or the model has operators that
            are not written as an IR.
    """
    _check_model(model)
    path = Path(output_model)
    if path.suffix == ".onnx":
        model.save(path)
    elif path.suffix == ".xml":
        _save_ir(model, path, path.with_suffix(".bin"), compress_to_fp16)
    else:
        raise ModelError(
            f"Cannot save the model to '{path}': the name ends with .xml for an OpenVINO IR, or "
            "with .onnx."
        )


def serialize(
    model: Model,
    xml_path: str | os.PathLike[str],
    bin_path: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a model as an OpenVINO IR whose weights keep their types.

    Args:
        model: The model.
        xml_path: The file of the network.
        bin_path: The file of weights; by default the one beside it.

    Raises:
        ModelError: It cannot be written, or has operators that are not written as an IR.
    """
    _check_model(model)
    xml = Path(xml_path)
    _save_ir(model, xml, xml.with_suffix(".bin") if bin_path is None else Path(bin_path), False)


def _check_model(model: object) -> None:
    """Refuses what is no model, such as the path of one."""
    if not isinstance(model, Model):
        raise ModelError(
            f"A model is saved, not {type(model).__name__}; make one with convert_model()."
        )


def _save_ir(model: Model, xml: Path, binary: Path, narrow: bool) -> None:
    try:
        write_ir(with_opset(model, _OPSET), xml, binary, narrow)
    except OSError as error:
        raise ModelError(f"Cannot save the model to '{xml}': {error}") from error
