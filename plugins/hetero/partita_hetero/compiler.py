"""Compiling: place, cut, compile the submodels side by side, and try again where a device fails."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from partita.compiled_model import CompiledModel
from partita.device_string import parse_list
from partita.errors import (
    CompileError,
    DeviceError,
    PartitaError,
    PropertyError,
    UnsupportedOpError,
)
from partita.explain import Boundary, Explanation, OpPlacement
from partita.model import Model, is_static, numpy_dtype, value_shape
from partita.plugin import CoreAPI
from partita.query import QueryResult, Reason, ReasonCode
from partita_hetero import affinity, dot, graph, partition, submodels, transfer
from partita_hetero.affinity import Placement
from partita_hetero.compiled import HeteroCompiledModel
from partita_hetero.graph import OpGraph
from partita_hetero.properties import HeteroProperties
from partita_hetero.submodels import Submodel

_log = logging.getLogger("partita.hetero")

DOT_VARIABLE = "PARTITA_HETERO_DUMP_GRAPH_DOT"
"""Environment variable: set to 1 to write the .dot files of every compile."""


class Compiler:
    """One compile of one model.

    Args:
        core: What HETERO sees of the devices.
        own_name: The name that HETERO is registered under.
        properties: Validated properties.

    Raises:
        DeviceError: A device of the list does not exist, is listed twice, or is HETERO itself.
        PropertyError: A property fits none of the devices.
    """

    def __init__(self, core: CoreAPI, own_name: str, properties: HeteroProperties) -> None:
        self._core = core
        self._own_name = own_name
        listed = properties.MULTI_DEVICE_PRIORITIES
        self.devices = (
            list(parse_list(listed)) if listed else affinity.default_priorities(core, own_name)
        )
        if not self.devices:
            raise DeviceError(f"{own_name} found no device to run on.")
        affinity.check_priorities(core, self.devices, own_name)
        self._properties = properties
        self._check_device_properties()

    # ------------------------------------------------------------------------ query

    def query(self, model: Model) -> QueryResult:
        """Who would take what; pins are ignored, so that the answer can be edited into pins."""
        supported: dict[str, str] = {}
        reasons: dict[str, Reason] = {}
        answers: dict[str, QueryResult] = {}
        for op in model.ops:
            refused = []
            for device in self.devices:
                if device not in answers:
                    answers[device] = self._ask(model, device)
                if op.name in answers[device]:
                    supported[op.name] = device
                    break
                refused.append(f"not {device}: {answers[device].reasons.get(op.name)}")
            else:
                reasons[op.name] = Reason(ReasonCode.UNSUPPORTED_OP, "; ".join(refused))
                continue
            if refused:
                reasons[op.name] = Reason(ReasonCode.FALLBACK, "; ".join(refused))
        name = f"{self._own_name}:{','.join(self.devices)}"
        return QueryResult(name, supported, reasons)

    def _ask(self, model: Model, device: str) -> QueryResult:
        return self._core.query_model(model, device, self._config(device))

    # ---------------------------------------------------------------------- compile

    def compile(self, model: Model, pins: Mapping[str, str] | None = None) -> HeteroCompiledModel:
        """Places and compiles.

        A device that claims operations and then fails to compile them loses them to the next
        device of the list, with the reason recorded; with ``STRICT`` its error is raised.

        Args:
            model: The model; affinities in it are pins.
            pins: Operation name to device, instead of the model's affinities.

        Raises:
            UnsupportedOpError: No device takes an operation.
            DeviceNotFoundError: A pin names a device that does not exist.
            CompileError: ``STRICT`` is set and a device failed.
        """
        wiring = graph.build(model)
        if pins is None:
            pins = {op.name: op.affinity for op in model.ops if op.affinity}
        by_index = self._resolve_pins(wiring, pins)
        excluded: dict[tuple[int, str], Reason] = {}
        done: dict[Any, CompiledModel] = {}
        notes: list[str] = []
        answers: dict[str, QueryResult] = {}

        def ask(device: str) -> QueryResult:
            if device not in answers:
                answers[device] = self._ask(model, device)
            return answers[device]

        while True:
            placement = affinity.place(
                wiring, self.devices, by_index, ask, excluded, self._properties.STRICT
            )
            parts = partition.partition(
                wiring.preds,
                wiring.succs,
                placement.device,
                merge_islands=self._properties.HETERO_EXECUTOR != "PARALLEL",
            )
            pieces = submodels.describe(wiring, parts)
            failures = self._compile_all(model, wiring, pieces, done)
            if not failures:
                break
            for piece, error in failures:
                if self._properties.STRICT:
                    raise CompileError(
                        f"Device '{piece.device}' claimed {len(piece.ops)} operations and failed "
                        f"to compile them: {error}"
                    ) from error
                notes.append(
                    f"{piece.device} claimed {len(piece.ops)} operations "
                    f"(from '{wiring.nodes[piece.ops[0]].name}') and failed to compile them: "
                    f"{error}"
                )
                _log.warning("%s. They go to the next device.", notes[-1])
                reason = Reason(ReasonCode.COMPILE_FAILED, str(error))
                excluded |= {(op, piece.device): reason for op in piece.ops}
        return self._assemble(model, wiring, placement, pieces, done, notes)

    def _compile_all(
        self,
        model: Model,
        wiring: OpGraph,
        pieces: Sequence[Submodel],
        done: dict[Any, CompiledModel],
    ) -> list[tuple[Submodel, PartitaError]]:
        """Compiles what is not done yet, side by side; returns what failed."""
        waiting = [piece for piece in pieces if piece.key not in done]
        models = [submodels.cut(model, wiring, piece) for piece in waiting]

        def compile_one(index: int) -> PartitaError | None:
            piece = waiting[index]
            try:
                done[piece.key] = self._core.compile_model(
                    models[index], piece.device, self._config(piece.device)
                )
            except PartitaError as error:
                return error
            return None

        if len(waiting) <= 1:
            errors = [compile_one(index) for index in range(len(waiting))]
        else:
            workers = min(len(waiting), os.cpu_count() or 1)
            with ThreadPoolExecutor(workers, thread_name_prefix="partita-compile") as pool:
                errors = list(pool.map(compile_one, range(len(waiting))))
        return [(p, e) for p, e in zip(waiting, errors, strict=True) if e is not None]

    def _assemble(
        self,
        model: Model,
        wiring: OpGraph,
        placement: Placement,
        pieces: Sequence[Submodel],
        done: Mapping[Any, CompiledModel],
        notes: Sequence[str],
    ) -> HeteroCompiledModel:
        outputs = [port.name for port in model.outputs]
        plan = transfer.plan(
            pieces,
            [port.name for port in model.inputs],
            outputs,
            lambda device: self._core.device_info(device).memory,
            self._core.can_share,
            _sizes(model),
        )
        initializers = model.ir.graph.initializers
        constants = {
            name: initializers[name].const_value.numpy()  # type: ignore[union-attr]  # has a value
            for name, slot in zip(outputs, plan.outputs, strict=True)
            if slot is None
        }
        explanation = _explain(model, wiring, placement, pieces, plan.boundaries, notes)
        _log.info("%s", explanation.summary())
        if self._properties.HETERO_DUMP_GRAPH_DOT or os.environ.get(DOT_VARIABLE, "0") not in (
            "",
            "0",
        ):
            paths = dot.write(Path.cwd(), model.name, wiring, pieces, explanation)
            _log.info("wrote %s and %s", *paths)
        final = self._properties.model_copy(
            update={"MULTI_DEVICE_PRIORITIES": ",".join(self.devices)}
        )
        return HeteroCompiledModel(
            model,
            final,
            self._own_name,
            self._core,
            pieces,
            [done[piece.key] for piece in pieces],
            plan,
            constants,
            explanation,
        )

    # --------------------------------------------------------------------- internals

    def _resolve_pins(self, wiring: OpGraph, pins: Mapping[str, str]) -> dict[int, str]:
        """Pins by index, each by the name that the device has in the list, if it is there."""
        listed = {self._core.resolve_device(device): device for device in self.devices}
        spelled: dict[str, str] = {}
        result: dict[int, str] = {}
        names = {name: index for index, name in enumerate(wiring.names())}
        for name, pin in pins.items():
            if name not in names:
                raise UnsupportedOpError(f"A pin names operation '{name}', which the model lacks.")
            if pin not in spelled:
                try:
                    canonical = self._core.resolve_device(pin)
                except DeviceError as error:
                    raise type(error)(
                        f"Operation '{name}' has the affinity '{pin}', which is no usable device. "
                        f"{error}"
                    ) from error
                spelled[pin] = listed.get(canonical, pin)
            result[names[name]] = spelled[pin]
        return result

    def _config(self, device: str) -> dict[str, Any]:
        """The properties for a device's submodels: its own, and those common keys that it has."""
        canonical = self._core.resolve_device(device)
        nested = self._properties.DEVICE_PROPERTIES
        config = {
            key: value
            for key, value in nested.get("*", {}).items()
            if self._core.accepts_property(device, key)
        }
        if self._properties.PERF_COUNT:
            config["PERF_COUNT"] = True
        for name, settings in nested.items():
            if name != "*" and self._core.resolve_device(name) == canonical:
                config |= settings
        return config

    def _check_device_properties(self) -> None:
        nested = self._properties.DEVICE_PROPERTIES
        for name in nested:
            if name != "*":
                try:
                    self._core.resolve_device(name)
                except DeviceError as error:
                    raise PropertyError(f"DEVICE_PROPERTIES names '{name}': {error}") from error
        for key in nested.get("*", {}):
            if not any(self._core.accepts_property(device, key) for device in self.devices):
                own = ", ".join(HeteroProperties.model_fields)
                raise PropertyError(
                    f"Neither {self._own_name} nor any of {', '.join(self.devices)} has a property "
                    f"'{key}'. {self._own_name} accepts {own}, and every key of its devices."
                )


def _sizes(model: Model) -> dict[str, int | None]:
    """Bytes of every value whose type and shape are known."""
    sizes: dict[str, int | None] = {}
    graph = model.ir.graph
    for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]:
        dtype, shape = numpy_dtype(value.dtype), value_shape(value)
        if value.name and dtype is not None and is_static(shape):
            sizes[value.name] = dtype.itemsize * math.prod(shape)
    return sizes


def _explain(
    model: Model,
    wiring: OpGraph,
    placement: Placement,
    pieces: Sequence[Submodel],
    boundaries: Sequence[Boundary],
    notes: Sequence[str],
) -> Explanation:
    home = {op: piece.number for piece in pieces for op in piece.ops}
    rows = []
    for index, node in enumerate(wiring.nodes):
        device = placement.device[index]
        reason = placement.reason[index]
        rows.append(
            OpPlacement(
                node.name or "",
                node.op_type,
                device if device is not None else "-",
                home.get(index),
                reason,
                placement.refused[index],
            )
        )
    return Explanation(model.name, rows, [piece.device for piece in pieces], boundaries, notes)
