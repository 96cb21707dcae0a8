"""Which names of OpenVINO's Python API there are here, and why others are not.

    python benchmarks/openvino_surface.py --write      # docs/openvino-surface.md
    python benchmarks/openvino_surface.py --programs   # runs the test programs on both packages

Needs the package ``openvino`` beside ``partita``. Names are taken from the installed package; what
is missing needs a reason in `REASONS`, or the script fails. That names behave is tested by
``tests/unit/openvino_surface``; ``--programs`` runs the programs in there on OpenVINO too, and
compares what both answer.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "openvino-surface.md"

CLASSES = {
    "Core": "",
    "Model": "",
    "CompiledModel": "",
    "InferRequest": "",
    "AsyncInferQueue": "",
    "Tensor": "",
    "ConstOutput": "",
    "Output": "",
    "Node": "",
    "Type": "",
    "Shape": "",
    "PartialShape": "",
    "Dimension": "",
    "Layout": "",
    "Version": "",
    "ProfilingInfo": "",
    "OVAny": "",
    "VariableState": "partita.runtime.variable_state",
}
"""Classes, and the modules that have them here where that is not the top level."""

MODULES = ("layout_helpers", "op", "preprocess", "opset1", "opset8", "opset13", "opset17")
PROPERTIES = ("", "hint", "device", "log", "streams", "intel_cpu", "intel_auto", "intel_gpu")

REASONS = {
    r"top level\.(VA\w+|Remote\w+)": "memory of other libraries crosses by DLPack: `Tensor` takes "
    "and gives it",
    r"\w+\.(create_context|get_default_context)": "memory of other libraries crosses by DLPack",
    r"top level\.(frontend|tools|utils|helpers|package_utils|experimental|exceptions)": "internals "
    "of OpenVINO's own package",
    r"preprocess\.get_version": "`partita.__version__` is the one version",
    r"top level\.shutdown": "nothing is left to shut down",
    r"Core\.register_plugins": "plugins are found by entry points; an XML list of libraries names "
    "none",
    r"Model\.(add|remove|replace)_\w+": "graphs are edited through `model.ir`, an onnx-ir model",
    r"(Const)?Output\.(get_)?target_inputs|Output\.(remove_target_input|replace)": "graphs are "
    "edited through `model.ir`, an onnx-ir model",
    r"Output\.set_rt_info": "notes are kept on operations and on the model",
    r"Node\.\w+": "nodes of an operation set are written once; operators of your own stand in "
    "models that are read: [Adding things](adding-things.md)",
    r"properties\.intel_gpu\.\w+": "settings of Intel's GPU driver",
    r"properties\.(CompatibilityCheck|cache_encryption_callbacks)": "the cache checks and protects "
    "its files itself",
    r"properties\.device\.(Priorities|PCIInfo)": "a text",
    r"opset\d+\.\w+": "no translation to ONNX operators yet",
    r"op\.\w+": "bodies of loops and state are read from files, not written",
}
"""What a missing name matches, to why it is missing."""


def instances() -> dict[str, Any]:
    """Objects of classes that have names only once they are made."""
    import partita
    from partita import opset13

    x = opset13.parameter([1], np.float32)
    model = partita.Model([opset13.relu(x)], [x], "model")
    compiled = partita.Core().compile_model(model, "CPU")
    return {
        "CompiledModel": compiled,
        "InferRequest": compiled.create_infer_request(),
        "Tensor": partita.Tensor(np.zeros(1)),
        "Node": x,
        "Output": compiled.output(),
        "ConstOutput": compiled.output(),
    }


def public(thing: Any) -> list[str]:
    """The names of a module or class that are no internals."""
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def groups() -> Iterator[tuple[str, list[str], Any]]:
    """What each part of the real package has, and its counterpart here."""
    import openvino
    from openvino import _pyopenvino

    import partita

    made = instances()
    yield "top level", public(openvino), partita
    for name, module in CLASSES.items():
        theirs = getattr(openvino, name, None) or getattr(_pyopenvino, name)
        ours = importlib.import_module(module) if module else partita
        yield name, public(theirs), made.get(name) or getattr(ours, name)
    for name in MODULES:
        theirs = importlib.import_module(f"openvino.{name}") if name[0] != "l" else (
            openvino.layout_helpers
        )  # fmt: skip
        kept = [one for one in public(theirs) if callable(getattr(theirs, one))]
        yield name, kept, getattr(partita, name, None)
    for name in PROPERTIES:
        theirs = getattr(_pyopenvino.properties, name) if name else _pyopenvino.properties
        kept = [one for one in public(theirs) if not inspect.ismodule(getattr(theirs, one))]
        ours = getattr(partita.properties, name, None) if name else partita.properties
        yield f"properties.{name}".strip("."), kept, ours


def reason(name: str) -> str:
    """Why a name is missing; empty if nobody has said."""
    return next((why for what, why in REASONS.items() if re.fullmatch(what, name)), "")


SETS = range(1, 18)
"""Operation sets whose layers a file may have."""

OTHER_NAMES = frozenset({"absolute", "ceil", "ops"})
"""What the modules of operation sets have beside functions that make one layer each."""

IN_THE_READER = frozenset({"constant", "parameter", "result"})
"""Layers that the reader of files takes without a translator."""


def layers_not_read() -> dict[int, list[str]]:
    """Operation set to the names of its layers that no translator reads; each name once."""
    from partita.frontends.openvino_ir import translators
    from partita.frontends.openvino_ir.translator import TRANSLATORS
    from partita.system.modules import import_modules

    import_modules(translators)
    known = {kind.lower() for kind in TRANSLATORS} | IN_THE_READER | OTHER_NAMES
    found: dict[int, list[str]] = {}
    for number in SETS:
        for name in public(importlib.import_module(f"openvino.opset{number}")):
            kind = name.removesuffix("_op").replace("_", "")
            if kind not in known:
                known.add(kind)
                found.setdefault(number, []).append(name)
    return found


def page() -> tuple[str, list[str]]:
    """The page, and names that are missing without a reason."""
    import openvino

    rows, missing, unexplained = [], [], []
    counts = {True: [0, 0], False: [0, 0]}
    for group, names, ours in groups():
        known = {*dir(ours), *getattr(ours, "__all__", ())}
        known |= {name for name in names if inspect.getattr_static(ours, name, None) is not None}
        lacking = [name for name in names if ours is None or name not in known]
        runs = not re.fullmatch(r"opset\d+|op|Node", group)
        counts[runs][0] += len(names) - len(lacking)
        counts[runs][1] += len(names)
        rows.append(f"| `{group}` | {len(names) - len(lacking)} | {len(names)} |")
        by_reason: dict[str, list[str]] = {}
        for name in lacking:
            why = reason(f"{group}.{name}")
            if not why:
                unexplained.append(f"{group}.{name}")
            by_reason.setdefault(why, []).append(name)
        for why, lacks in by_reason.items():
            listed = ", ".join(f"`{name}`" for name in lacks)
            missing.append(f"| `{group}` | {listed} | {why} |")
    layers = [
        f"| `opset{number}` | {', '.join(f'`{name}`' for name in names)} |"
        for number, names in layers_not_read().items()
    ]
    text = TEXT.format(
        layers="\n".join(layers),
        version=openvino.__version__.partition("-")[0],
        rows="\n".join(rows),
        missing="\n".join(missing),
        there=counts[True][0],
        total=counts[True][1],
        written=counts[False][0],
        writing=counts[False][1],
    )
    return text, unexplained


TEXT = """# OpenVINO's Python API

`import partita as ov` runs programs written for OpenVINO's runtime API:

```python
import numpy as np

import partita as ov
from partita import opset13 as ops

x = ops.parameter([-1, 3], ov.Type.f32, name="x")
model = ov.Model([ops.relu(x, name="y")], [x], "example")
compiled = ov.Core().compile_model(model, "CPU")
print(compiled(np.array([[-1, 2, -3]]))["y"])
```

This page is written by `python benchmarks/openvino_surface.py --write` from the names of OpenVINO
{version}. Of {total} names that load, compile and run models {there} are there, and {written} of
{writing} that write graphs (`op`, `Node`, and four of the operation sets).

| part | there | of |
| --- | --- | --- |
{rows}

## What differs

- Graphs are ONNX: `model.get_ops()` lists ONNX operators, and no parameters, constants and
  results; these are `get_parameters()` and `get_results()`.
- `port.shape` is a tuple in which dimensions without a size are a symbol or `None`;
  `port.get_shape()` raises for them, as OpenVINO's does, and `port.partial_shape` has all.
- Inputs that were neither set nor given are an error, not zeros.
- Texts are Python's: `tensor.data` of texts holds `str`; `tensor.bytes_data` holds UTF-8.
- A property that a device does not have is an error that lists those it has.
- `compiled.export_model()` returns `bytes`, where OpenVINO's is a stream in memory;
  `Core.import_model` takes both. `result.to_dict()` is by name, `result` itself by port.
- `set_names` adds names that a port is found by; its ONNX name stays, and is its `any_name`.
- Operators of your own (`Op`, `Core.add_extension`) are computed by REFERENCE: where OpenVINO's
  example says "CPU", say "HETERO:CPU,REFERENCE". They are written in Python; libraries are not
  loaded.
- `import partita.opset13` is no module; `from partita import opset13` works.

## HETERO

Device strings, `MULTI_DEVICE_PRIORITIES` (`properties.device.priorities`), affinities in
`op.get_rt_info()["affinity"]`, answers of `query_model` and `OPENVINO_HETERO_VISUALIZE` are those
of OpenVINO's HETERO. What differs:

- Operations that compute nothing (Reshape, Gather of a shape) follow their neighbours, where
  OpenVINO's go to the first device too. An affinity that its device does not support is a warning
  and a note of `explain()`; with the property `STRICT` it is an error.
- There is no `MODEL_DISTRIBUTION_POLICY`. `HETERO_SCHEDULE=COST` measures instead, and keeps the
  fastest placement; with `PERFORMANCE_HINT=THROUGHPUT` it may be a pipeline of stages, or a
  replica of the model on each of several equal devices. No operation is computed by two devices
  together.
- `HETERO_MEMORY_LIMITS` limits any device; a device that tells how much memory it has is limited to
  that.
- `compiled.explain()` has the device of each operation and the reason, where OpenVINO has a graph
  to look at. [Placement](placement.md) has pins, lock files, plans and what happens when a device
  fails.

## What is missing

| part | names | why |
| --- | --- | --- |
{missing}

## Layers of files that are not read

`Core.read_model` refuses an OpenVINO IR that has one of these layers, and says which. They have the
names of functions of the first operation set that has them; all others of `opset1` to `opset17` are
read.

| set | layers |
| --- | --- |
{layers}
"""


def compare_programs() -> int:
    """Runs the test programs on both packages; returns how many disagree."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "unit" / "openvino_surface")]
    from program_files import functions, write_models

    wrong = 0
    ours, theirs = functions("partita"), functions("openvino")
    for name, function in ours.items():
        with tempfile.TemporaryDirectory() as folder:
            write_models(Path(folder))
            found = [np.asarray(one(Path(folder))[0]) for one in (function, theirs[name])]
        agree = found[0].shape == found[1].shape and np.allclose(*found, rtol=1e-4, atol=1e-5)
        wrong += not agree
        print(f"{name:45} {'agrees' if agree else 'DIFFERS'}")
    print(f"{len(ours) - wrong} of {len(ours)} programs agree")
    return wrong


def main() -> int:
    """Writes or prints the page, or runs the programs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--programs", action="store_true", help="run the programs on both")
    arguments = parser.parse_args()
    if arguments.programs:
        return compare_programs()
    text, unexplained = page()
    if arguments.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
    for name in unexplained:
        print(f"no reason for {name}", file=sys.stderr)
    return bool(unexplained)


if __name__ == "__main__":
    sys.exit(main())
