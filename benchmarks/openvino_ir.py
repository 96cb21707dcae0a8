"""OpenVINO IRs read by Partita and by OpenVINO, results side by side.

    python benchmarks/openvino_ir.py [--models] [--nodes PATTERN] [--failures] [--ours]

OpenVINO itself writes the IRs: of ONNX's node cases, and with --models of the zoo and the light
topologies; with --ours Partita writes them, and OpenVINO runs both them and the ONNX. Each is
read back by both, run on the same inputs (Partita on HETERO:CPU,REFERENCE), and
compared: rtol 1e-3, atol 1e-4, equal element types. Needs `pip install openvino`. Some cases differ
because OpenVINO does not compute what ONNX defines (bfloat16 inputs, shifts beyond the width).
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from models import cases
from onnx.backend.test.case.node import collect_testcases

import partita
from partita.errors import ModelFormatError, PartitaError

RTOL, ATOL = 1e-3, 1e-4
Inputs = Mapping[Any, Any]


def main() -> None:
    """Prints what agrees, what differs and what is not read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", action="store_true", help="models, not node cases")
    parser.add_argument("--nodes", default="", metavar="PATTERN", help="only cases that match")
    parser.add_argument("--ours", action="store_true", help="IRs that Partita has written")
    parser.add_argument("--failures", action="store_true", help="say what differs")
    options = parser.parse_args()
    with np.errstate(all="ignore"), tempfile.TemporaryDirectory() as folder:
        compare(options, Path(folder) / "m.xml")


def compare(options: argparse.Namespace, path: Path) -> None:
    """Runs all and prints the sums."""
    sums: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for name, model, inputs in everything(options):
        kind, said = verdict(model, inputs, path, options.ours)
        sums[kind] += 1
        if kind == "not read":
            refusals[re.sub(r"^.*?: (layer '[^']*'|layers that)", "", said)] += 1
        if options.models or (options.failures and kind == "differs"):
            print(f"{name:32} {kind} {said}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sums.most_common()))
    for said, count in refusals.most_common():
        print(f"{count:4} not read: {said.strip()}")


def everything(options: argparse.Namespace) -> Iterator[tuple[str, Any, Inputs]]:
    """Name, ONNX model and inputs."""
    if options.models:
        for case in cases():
            yield case.name, case.path, case.feeds
        return
    for node in collect_testcases(None):
        if re.search(options.nodes, node.name):
            yield node.name, node.model.SerializeToString(), dict(enumerate(node.data_sets[0][0]))


def verdict(model: Any, inputs: Inputs, path: Path, ours: bool) -> tuple[str, str]:
    """What came of one model, and why."""
    core = openvino.Core()
    try:
        read = core.read_model(model)
        if not ours:
            openvino.save_model(read, path, compress_to_fp16=False)
        peer = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results = peer(inputs)
        wanted = [np.asarray(results[index]) for index in range(len(read.outputs))]
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        return "beyond OpenVINO", str(error).splitlines()[0][:60]
    if ours:
        try:
            partita.serialize(partita.Core().read_model(model), path)
        except PartitaError as error:
            return "not written", str(error)
        try:
            again = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)
        except RuntimeError as error:
            return "differs", f"for OpenVINO: {str(error).splitlines()[-1][:60]}"
        for index, expected in enumerate(wanted):
            if not np.allclose(again[index], expected, RTOL, ATOL, equal_nan=True):
                return "differs", f"for OpenVINO: output {index}"
    try:
        compiled = partita.Core().compile_model(str(path), "HETERO:CPU,REFERENCE")
    except ModelFormatError as error:
        return "not read", str(error)
    try:
        found = compiled(inputs)
    except PartitaError as error:
        return "differs", str(error)
    worst = 0.0
    for index, expected in enumerate(wanted):
        array = np.asarray(found[index])
        same = array.shape == expected.shape and array.dtype == expected.dtype
        if not same or not np.allclose(array, expected, RTOL, ATOL, equal_nan=True):
            return "differs", f"output {index}"
        if array.size and array.dtype.kind == "f":
            gap = np.abs(array.astype(np.float64) - expected)
            worst = max(worst, float(np.nanmax(gap, initial=0.0)))
    return "agrees", f"(largest difference {worst:.1e})"


if __name__ == "__main__":
    main()
