"""Node cases as they are, and as a file: one zip of models, tensors and an index in JSON."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_INDEX = "index.json"


@dataclass(frozen=True)
class NodeCase:
    """One of ONNX's node cases.

    Attributes:
        name: Without ``test_``.
        model: The serialized model.
        runs: Pairs of inputs and expected outputs.
        rtol: Relative tolerance that ONNX gives.
        atol: Absolute tolerance that ONNX gives.
        op: The operator it is about.
        dtype: Element type of the first input (or output).
        form_only: Whether the outputs are random, so that only shape and dtype are compared.
        values: Whether an output of zeros would be wrong.
    """

    name: str
    model: bytes
    runs: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float
    op: str
    dtype: str
    form_only: bool
    values: bool

    def proto(self) -> onnx.ModelProto:
        """The model."""
        model = onnx.ModelProto()
        model.ParseFromString(self.model)
        return model


def save(path: Path, cases: Mapping[str, NodeCase]) -> None:
    """Writes the cases, so that other processes need not make them anew."""
    path.write_bytes(packed(cases))


@functools.cache
def load(path: Path) -> dict[str, NodeCase]:
    """Reads what :func:`save` wrote."""
    return unpacked(path.read_bytes())


def packed(cases: Mapping[str, NodeCase]) -> bytes:
    """What a file of the cases holds."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        index = []
        for number, case in enumerate(cases.values()):
            archive.writestr(f"{number}/model.onnx", case.model)
            facts = {
                field.name: getattr(case, field.name)
                for field in dataclasses.fields(case)
                if field.name not in ("model", "runs")
            }
            values = _Writer(archive, str(number))
            runs = [[values.described(part) for part in run] for run in case.runs]
            index.append({**facts, "runs": runs})
        archive.writestr(_INDEX, json.dumps(index))
    return content.getvalue()


def unpacked(content: bytes) -> dict[str, NodeCase]:
    """The cases of which :func:`packed` made this.

    Raises:
        zipfile.BadZipFile: The content is damaged.
    """
    cases = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for number, facts in enumerate(json.loads(archive.read(_INDEX))):
            runs = [tuple(_restored(archive, part) for part in run) for run in facts.pop("runs")]
            model = archive.read(f"{number}/model.onnx")
            cases[facts["name"]] = NodeCase(model=model, runs=runs, **facts)
    return cases


class _Writer:
    """Stores the tensors in values under numbered names, and describes the values."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self._archive, self._folder = archive, folder
        self._count = 0

    def described(self, value: Any) -> Any:
        """A list of what it holds, ``None``, or the name of the tensor that was stored."""
        if value is None:
            return None
        if isinstance(value, list):
            return [self.described(item) for item in value]
        name = f"{self._folder}/{self._count}.pb"
        self._count += 1
        tensor = numpy_helper.from_array(np.asarray(value))
        self._archive.writestr(name, tensor.SerializeToString())
        return name


def _restored(archive: zipfile.ZipFile, described: Any) -> Any:
    if described is None:
        return None
    if isinstance(described, list):
        return [_restored(archive, item) for item in described]
    return numpy_helper.to_array(onnx.TensorProto.FromString(archive.read(described)))
