"""Reading: from a path, bytes or a protobuf to a checked, tidy model."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.errors import ModelFormatError, ModelNotFoundError, PartitaError, first_cause
from partita.frontends.model_file import map_model
from partita.frontends.onnx.external_data import (
    beside,
    by_real_names,
    check_weights,
    densify,
    put_weights,
    set_folder,
    tensors_of,
)
from partita.frontends.onnx.lazy_onnx_ir import import_onnx_ir
from partita.frontends.onnx.malformed import described
from partita.frontends.onnx.protobuf_fields import MOST_NESTED, is_nested_too_deep
from partita.frontends.onnx.text_labels import with_numbered_labels
from partita.frontends.onnx.weight_splitter import without_weights
from partita.frontends.onnx.zip_maps import without_zip_maps
from partita.frontends.tflite import is_tflite
from partita.frontends.tidy_graph import tidied
from partita.model.model import Model
from partita.model.openvino_names import note_on_model
from partita.system.gc_pause import few_collections

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from partita.extensions import Extensions
    from partita.frontends.gguf import DecoderOptions


LABELS = "class_labels"
"""The note (``model.get_rt_info([LABELS, output])``) on what an output's columns stand for."""


@few_collections()
def read_model(
    source: Any,
    tidy: bool = True,
    weights: Any = None,
    isolate: bool = False,
    decoder: DecoderOptions | None = None,
    signature: str | None = None,
    extensions: Extensions | None = None,
) -> Model:
    """Reads an ONNX model, an OpenVINO IR, a GGUF, TFLite or circle file and makes it tidy.

    Local functions are inlined, ``Constant`` nodes become initializers, initializers that are also
    inputs become constants (:meth:`partita.Core.read_model` says why), operations get unique names
    and topological order, shapes are inferred. Weights in external files are mapped into memory,
    not read.

    As long as the model or what was compiled of it lives, replace its files by renaming others into
    place: one that is written to changes weights, and one that is cut short ends the process when
    they are read (SIGBUS).

    Args:
        source: A path, the file's bytes, an ``onnx.ModelProto``, an ``onnx_ir.Model`` (taken over)
            or a ``Model`` (returned as it is). A path or bytes may be an OpenVINO IR's ``.xml``, a
            GGUF, TFLite or circle file.
        tidy: Make it tidy; without it only its connections are checked, which is right for what
            :meth:`Model.to_onnx` made of a model that was read.
        weights: An OpenVINO IR's ``.bin`` file: path, bytes or array; ``None``: the ``.xml``'s.
        isolate: For files of strangers: ONNX's shape inference, which is C++ and trusts what it
            reads, runs in a process of its own, with limits of time and memory.
        decoder: How a GGUF file becomes a model; others take none.
        signature: Which signature of a TFLite or circle file; others have none.
        extensions: Operators of an application's own that the model may hold.

    Raises:
        ModelNotFoundError: The path does not exist.
        ModelFormatError: It is none of these, damaged, or holds what is not known.
    """
    if isinstance(source, Model):
        return source
    ready = functools.partial(tidied, tidy=tidy, isolate=isolate, extensions=extensions)
    import_onnx_ir()
    import onnx
    import onnx_ir as ir

    if isinstance(source, ir.Model):
        return ready(source, "the model")
    path: Path | None = None
    apart: Mapping[str, memoryview] = {}
    if isinstance(source, onnx.ModelProto):
        proto, origin = source, "the ModelProto"
    elif isinstance(source, (bytes, bytearray, memoryview, str, os.PathLike)):
        if isinstance(source, (str, os.PathLike)):
            path = _path(source)
            data, origin = map_model(path), f"'{path}'"
        else:
            # What others may write to is copied.
            data = memoryview(source if isinstance(source, bytes) else bytes(source))
            origin = "the given data"
        if _is_gguf(data):
            return ready(_decoder(data, weights, path, decoder, origin), origin)
        if decoder is not None:
            raise ModelFormatError(f"{origin} does not accept 'decoder': it is not a GGUF file.")
        if is_tflite(data):
            return ready(_mobile(data, weights, signature, origin), origin)
        if signature is not None:
            raise ModelFormatError(
                f"{origin} does not accept 'signature': it is not a TFLite file."
            )
        if _is_ir(data):
            return ready(_translated(bytes(data), weights, path, origin), origin)
        proto, apart = _parse(data, origin)
    else:
        raise ModelFormatError(
            f"Cannot read a model from {type(source).__name__}; give a path, bytes or an "
            "onnx.ModelProto."
        )
    if weights is not None:
        raise ModelFormatError(
            f"{origin} does not accept 'weights': an ONNX model names its external files itself."
        )
    ir_model, proto = _from_onnx(proto, apart, path, origin)
    return ready(ir_model, origin, proto=proto)


def _from_onnx(
    proto: onnx.ModelProto, apart: Mapping[str, memoryview], path: Path | None, origin: str
) -> tuple[ir.Model, onnx.ModelProto]:
    """The graph of a protobuf, with its weights, and the protobuf or copy that it was made of."""
    import onnx_ir as ir

    folder = None
    try:
        proto, labels = without_zip_maps(proto, origin)
        _check_header(proto, origin)
        proto = with_numbered_labels(proto)
        has_files = check_weights(proto, path, origin, apart)
        if path is not None and has_files:
            proto, folder = by_real_names(proto, path)
        proto = densify(proto, origin)
        ir_model = ir.from_proto(proto)
        put_weights(ir_model.graph, apart)
        if folder is not None:
            set_folder(ir_model, folder)
        if labels:
            note_on_model(ir_model, {LABELS: labels})
    except PartitaError:
        raise
    except Exception as error:  # damaged files make the parsers raise errors of any kind
        what = described(proto, error)
        raise ModelFormatError(f"{origin} is not a valid ONNX model: {what}") from error
    if not ir_model.graph.name:
        ir_model.graph.name = "model" if path is None else path.stem
    return ir_model, proto


def _is_ir(data: bytes | memoryview) -> bool:
    """Whether bytes are those of an IR's ``.xml`` file; an ONNX file cannot start like one."""
    return bytes(data[:200]).removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"<?xml", b"<net"))


def _is_gguf(data: bytes | memoryview) -> bool:
    """Whether bytes are those of a GGUF file; neither of the others can start like one."""
    return bytes(data[:4]) == b"GGUF"


def _decoder(
    data: memoryview,
    weights: Any,
    path: Path | None,
    options: DecoderOptions | None,
    origin: str,
) -> ir.Model:
    from partita.frontends.gguf import DecoderOptions, read_gguf

    if weights is not None:
        raise ModelFormatError(f"{origin} does not accept 'weights': a GGUF file contains its own.")
    return read_gguf(data, origin, options or DecoderOptions(), path)


def _mobile(data: memoryview, weights: Any, signature: str | None, origin: str) -> ir.Model:
    from partita.frontends.tflite import read_tflite

    if weights is not None:
        raise ModelFormatError(
            f"{origin} does not accept 'weights': a TFLite file contains its own."
        )
    return read_tflite(data, origin, signature)


def _translated(data: bytes, weights: Any, path: Path | None, origin: str) -> ir.Model:
    from partita.frontends.openvino_ir import read_ir

    try:
        return read_ir(data, weights, path, origin)
    except PartitaError:
        raise
    except Exception as error:  # layers with too few inputs, axes that are not there, ...
        raise ModelFormatError(
            f"{origin} is not a valid OpenVINO IR: {first_cause(error)}"
        ) from error


def external_files(data: bytes, path: Path) -> list[Path]:
    """The files beside a model that hold its weights, each once; sound or not.

    What it names elsewhere is left out; no such model is read.
    """
    if _is_gguf(data):
        from partita.frontends.gguf import part_paths

        return [part for part in part_paths(path) if part != path and part.is_file()]
    if is_tflite(data):
        return []
    if _is_ir(data):
        return [file] if (file := path.with_suffix(".bin")).is_file() else []
    proto, _ = _parse(memoryview(data), f"'{path}'")
    names = {
        entry.value
        for tensor in tensors_of(proto)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    files = []
    for name in sorted(names):
        with contextlib.suppress(ValueError, OSError, RuntimeError):
            target = beside(path, name)
            if target is not None and target.is_file():
                files.append(target)
    return files


def _parse(data: memoryview, origin: str) -> tuple[onnx.ModelProto, Mapping[str, memoryview]]:
    """The model without the elements of its large weights, and these by name."""
    import onnx
    from google.protobuf.message import DecodeError

    if not data.nbytes:
        raise ModelFormatError(f"{origin} is empty, and no model: {_cure(data)}.")
    proto = onnx.ModelProto()
    rest, weights = without_weights(data)
    try:
        proto.ParseFromString(rest)
    except DecodeError as error:
        if is_nested_too_deep(data, proto.DESCRIPTOR):
            raise ModelFormatError(
                f"{origin} has messages nested more than {MOST_NESTED} deep, which protobuf does "
                "not parse: If, Loop or Scan in bodies of each other take three a level, types of "
                "sequences two. Write fewer of them inside of each other."
            ) from error
        raise ModelFormatError(
            f"{origin} is not an ONNX model or is damaged ({len(data)} bytes, starting with "
            f"{bytes(data[:8])!r}), and no OpenVINO IR, GGUF, TFLite or circle file either; "
            f"{_cure(data)}."
        ) from error
    return proto, weights


_CURES = {
    b"version https://git-lfs": "it is a pointer of Git LFS: fetch the file with 'git lfs pull'",
    b"<!DOCTYPE": "it is a web page: download the file itself",
    b"<html": "it is a web page: download the file itself",
    b"PK\3\4": "it is an archive, such as PyTorch's: give a model that torch.onnx.export wrote",
    b"\x89HDF": "it is an HDF5 file, such as Keras's: convert it with tf2onnx",
}
"""How files begin that are often taken for a model, and what to do."""


def _cure(data: memoryview) -> str:
    """What to do with a file that is no model."""
    head = bytes(data[:64]).lstrip()
    found = (cure for begin, cure in _CURES.items() if head.lower().startswith(begin.lower()))
    return next(found, "export or download it again")


def _path(source: str | os.PathLike[str]) -> Path:
    if not os.fspath(source):
        raise ModelNotFoundError("The path of the model is empty; give that of a file.")
    return Path(source)


def _check_header(proto: onnx.ModelProto, origin: str) -> None:
    """Refuses what parses as protobuf but is no model, and opsets from the future."""
    import onnx.defs

    if not proto.HasField("graph"):
        raise ModelFormatError(f"{origin} is not an ONNX model: it holds no graph.")
    if not proto.graph.output:
        raise ModelFormatError(f"{origin} is not an ONNX model: its graph has no output.")
    for value in (*proto.graph.input, *proto.graph.output):
        if isinstance(value.name, bytes):
            raise ModelFormatError(
                f"{origin}: an input or output has the name {value.name!r}, which is no UTF-8; "
                "export or download it again."
            )
        if _is_map(value.type):
            raise ModelFormatError(
                f"{origin}: '{value.name}' is made of maps, which are not supported but for what "
                "ZipMap returns; let the model take or give a tensor."
            )
    names: set[str] = set()
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            raise ModelFormatError(
                f"{origin} has two initializers '{tensor.name}', and nothing says which one "
                "counts; export it again."
            )
        names.add(tensor.name)
    newest = onnx.defs.onnx_opset_version()
    versions = [entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions and any(node.domain in ("", "ai.onnx") for node in proto.graph.node):
        if proto.ir_version >= 3:
            raise ModelFormatError(f"{origin} names no opset version for the ONNX operators.")
        versions = [1]
    if len(set(versions)) > 1:
        named = " and ".join(map(str, versions))
        raise ModelFormatError(
            f"{origin} names opsets {named} for the ONNX operators, and nothing says which one "
            "counts; export it again."
        )
    for version in versions:
        if not 1 <= version <= newest:
            raise ModelFormatError(
                f"{origin} uses opset {version}; supported are 1 to {newest}. Export it with an "
                "older opset, or upgrade the 'onnx' package."
            )


def _is_map(kind: onnx.TypeProto) -> bool:
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return _is_map(getattr(kind, which).elem_type)
    return bool(which == "map_type")
