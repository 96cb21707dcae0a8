"""Invariants that hold after each query, compile, import and run of a drawn model."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

import partita
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.promises import require_face
from partita_conformance.draws.makeup.built import Built, Case
from partita_conformance.inputs.models import Array
from partita_conformance.judging.compare import compare, largest
from partita_conformance.judging.requirements import require
from partita_conformance.suites.contract.suite_properties import settable

_RELATIVE = {"float32": 2e-5, "float64": 1e-11}


class Untouched:
    """A model as it was handed over.

    Args:
        model: The model, which nobody may change from now on.
    """

    def __init__(self, model: partita.Model) -> None:
        self._model = model
        self._before = self._content()

    def _content(self) -> dict[str, object]:
        graph = self._model.ir.graph
        values = [*graph.inputs, *(v for node in graph for v in node.outputs)]
        return {
            "the graph, its weights or its texts": ir.to_proto(self._model.ir).SerializeToString(
                deterministic=True
            ),
            "its nodes": [id(node) for node in graph],
            "its weights": [id(value.const_value) for value in graph.initializers.values()],
            "affinities": [op.affinity for op in self._model.ops],
            "notes of others": [dict(one.meta) for one in (self._model.ir, graph, *graph, *values)],
            "inputs and outputs": (self._model.inputs, self._model.outputs),
        }

    def require(self, what: str) -> None:
        """Fails if anything of the model has changed.

        Raises:
            ConformanceError: It has; ``what`` says behind what.
        """
        now = self._content()
        changed = [name for name, value in self._before.items() if now[name] != value]
        require(not changed, f"{what} changed the model that it was given: {', '.join(changed)}.")


@functools.lru_cache(maxsize=4)
def _usual(bench: Bench) -> dict[str, Any]:
    """What a model of which nothing was set has for its settings."""
    compiled = bench.compile(bench.sample("plain").proto, core=bench.new_core())
    names = [n for n, _ in settable(bench) if not n.endswith("_HINT") and n != "CACHE_DIR"]
    found = {name: compiled.get_property(name) for name in names}
    return {name: value for name, value in found.items() if not isinstance(value, dict)}


def require_facts(
    bench: Bench,
    model: partita.Model,
    compiled: partita.CompiledModel,
    settings: Mapping[str, Any],
) -> None:
    """Looks at all that a compiled model says of itself.

    Args:
        bench: The device.
        model: What was compiled.
        compiled: What came of it.
        settings: What it was compiled with.
    """
    require_face(model, compiled)
    names = compiled.get_property("SUPPORTED_PROPERTIES")
    notes = compiled.explain().notes
    for name in names:
        value = compiled.get_property(name)
        if name in settings:
            explained = name.endswith("_HINT") and any(name in note for note in notes)
            said = f"{name} was set to {settings[name]!r} and reads {value!r}."
            require(value == settings[name] or explained, said)
    if bench.is_virtual:
        return
    if not any(one.endswith("_HINT") for one in settings):
        for one, due in _usual(bench).items():
            have = compiled.get_property(one)
            others = f"Of a model with {dict(settings)}, {one} is {have!r}, not {due!r}."
            require(one in settings or have == due, others)
    name = bench.plugin.device_name
    devices = compiled.get_property("EXECUTION_DEVICES")
    ok = isinstance(devices, list) and {str(one).partition(".")[0] for one in devices} == {name}
    require(ok, f"EXECUTION_DEVICES is {devices!r}; the model is on '{name}'.")
    placed = [placement.name for placement in compiled.explain().ops]
    due = [op.name for op in model.ops]
    require(placed == due, f"explain() places {placed}; the model's operations are {due}.")


def require_counters(request: partita.InferRequest, model: partita.Model) -> None:
    """Looks at the counters of a request's last run."""
    ops = {op.name: op.op_type for op in model.ops}
    counters = request.get_profiling_info()
    own = [one for one in counters if one.node_type != "Permute"]
    names = [one.node_name for one in own]
    require(len(set(names)) == len(names), f"Counters tell one operation twice: {names}.")
    strange = set(names) - ops.keys()
    require(not strange, f"Counters speak of {sorted(strange)}; the model has {sorted(ops)}.")


def require_right(compiled: partita.CompiledModel, made: Built, what: str) -> None:
    """Runs a model on each of its cases and the first one again, and looks at results and inputs.

    Results are the caller's: behind each run they are overwritten.
    """
    requests = [compiled.create_infer_request() for _ in range(2)]
    held: list[Array] = []
    for turn, place in enumerate((0, 1, 2, 0)):
        held = _run(requests[turn % 2], made.cases[place % len(made.cases)], held, made, what)


def _run(
    request: partita.InferRequest, case: Case, held: Sequence[Array], made: Built, what: str
) -> list[Array]:
    feeds, due = case
    given = {name: array.copy() for name, array in feeds.items()}
    results = request.infer(given).to_tuple()
    agree(results, due, what)
    for name, array in feeds.items():
        require(_same(given[name], array), f"{what}: a run wrote to its input '{name}'.")
    for index, array in enumerate(results):
        if not isinstance(array, np.ndarray):
            continue
        whole = array.flags.c_contiguous and array.flags.writeable and type(array) is np.ndarray
        require(whole, f"{what}: output {index} is not a plain array that can be written to.")
        others = (*given.values(), *results[:index], *held)
        apart = not any(np.shares_memory(array, other) for other in others if other.size)
        require(apart, f"{what}: output {index} lies where an input or another result does.")
    for array in results:
        array[...] = "?" if array.dtype.hasobject else np.ones((), array.dtype)
    return list(results)


def _same(one: Array, other: Array) -> bool:
    if one.dtype.hasobject:
        return bool(one.tolist() == other.tolist())
    return one.tobytes() == other.tobytes()


def agree(results: Sequence[Any], due: Sequence[Array], what: str) -> None:
    """Compares results with the right ones, closely."""
    require(len(results) == len(due), f"{what}: {len(results)} outputs; expected {len(due)}.")
    for index, (have, want) in enumerate(zip(results, due, strict=True)):
        place = f"{what}, output {index}"
        relative = _RELATIVE.get(want.dtype.name)
        if relative is None or want.dtype == ml_dtypes.bfloat16:
            compare([have], [want], place)
        else:
            compare([have], [want], place, relative, relative * largest(want))
