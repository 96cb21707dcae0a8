"""Node cases as a file for worker processes: one zip of models, tensors and an index in JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from partita_conformance.inputs.node_cases import NodeCase

_INDEX = "index.json"


def save(path: Path, cases: Mapping[str, NodeCase]) -> None:
    """Writes the cases, so that other processes need not make them anew."""
    with zipfile.ZipFile(path, "w") as archive:
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


@functools.cache
def load(path: Path) -> dict[str, NodeCase]:
    """Reads what :func:`save` wrote."""
    cases = {}
    with zipfile.ZipFile(path) as archive:
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
