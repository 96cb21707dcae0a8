"""ONNX's own node cases, as the kit runs them; what ONNX made of them is kept on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
import warnings
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita.storage.cache_folder import (
    cache_folder,
    mark_used,
    prune,
    read_private,
    write_private,
)
from partita_conformance.inputs import cases_file
from partita_conformance.inputs.cases_file import NodeCase, packed, unpacked

_RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
_RANDOM |= {"RandomUniformLike"}
_MAKERS = ("onnx", "numpy", "ml_dtypes", "pillow")
_MOST_FILES = 4


@functools.cache
def node_cases() -> dict[str, NodeCase]:
    """All node cases by name, in ONNX's order.

    ONNX takes some ten seconds to make them; other processes of this user read what was made.
    """
    path = _kept_at()
    content = None if path is None else read_private(path)
    if path is not None and content is not None:
        with contextlib.suppress(zipfile.BadZipFile):  # damaged: made anew and replaced
            mark_used(path)
            return unpacked(content)
    content = packed(_made())
    if path is not None:
        with contextlib.suppress(OSError):  # no room: other processes make them too
            write_private(path, content)
            prune(path.parent, _MOST_FILES)
    return unpacked(content)  # arrays as all others read them


def _kept_at() -> Path | None:
    """The file of what is made by these packages and this code; ``None`` if nothing is kept."""
    folder = cache_folder("conformance")
    if folder is None:
        return None
    made_by = [sys.version, *map(_version, _MAKERS)]
    made_by += [inspect.getsource(module) for module in (cases_file, sys.modules[__name__])]
    return folder / f"{hashlib.sha256(repr(made_by).encode()).hexdigest()[:32]}.zip"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # there are fewer cases then
        return ""


def _made() -> dict[str, NodeCase]:
    """All node cases, as ONNX makes them."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they divide by zero as they are made, on purpose
        loaded = load_model_tests(kind="node")
    cases = [_node_case(case) for case in loaded]
    return {case.name: case for case in cases}


def _node_case(case: Any) -> NodeCase:
    nodes = case.model.graph.node
    name = case.name.removeprefix("test_")
    runs = [
        ([_value(item) for item in inputs], [_value(item) for item in outputs])
        for inputs, outputs in case.data_sets
    ]
    random = any(node.op_type in _RANDOM for node in nodes) or (
        name.startswith("training_dropout") and "zero_ratio" not in name
    )
    return NodeCase(
        name,
        case.model.SerializeToString(),
        runs,
        case.rtol,
        case.atol,
        nodes[0].op_type if len(nodes) == 1 else _operator_of(name, nodes),
        _dtype(case.model),
        random,
        not random and any(_has_more_than_zeros(outputs) for _, outputs in runs),
    )


def _operator_of(name: str, nodes: Any) -> str:
    """Of a case of several nodes: the one that its name has, else the last one's operator."""
    flat = name.replace("_", "")
    fitting = [node.op_type for node in nodes if node.op_type.lower() in flat]
    return str(max(fitting, key=len)) if fitting else str(nodes[-1].op_type)


def _dtype(model: onnx.ModelProto) -> str:
    for value in (*model.graph.input, *model.graph.output):
        element = value.type.tensor_type.elem_type
        if element:
            return str(helper.tensor_dtype_to_string(element).rpartition(".")[2].lower())
    return "sequence"


def _value(item: Any) -> Any:
    """A value as worker processes read it from a file: scalars are arrays too."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def _has_more_than_zeros(value: Any) -> bool:
    if value is None or isinstance(value, list):
        return any(_has_more_than_zeros(item) for item in value or ())
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return any(array.ravel())  # an empty text is the zero of texts
    return bool(np.any(array.astype(bool)))
