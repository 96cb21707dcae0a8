"""The compile pipeline: place, partition, compile submodels in parallel; repeat where one fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError, UnsupportedOpError, in_words
from partita.model.expected_shapes import InputShapes
from partita.model.model import Model
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_hetero.compile.assembler import Placed, assemble
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.failures import Exclusions, exclude, not_compiled, remark
from partita_hetero.compile.layout_negotiation import Negotiation
from partita_hetero.compile.placer import Placer
from partita_hetero.compile.replicas import ReplicaSet, with_replicas
from partita_hetero.compile.submodel_compiler import SubmodelCompiler
from partita_hetero.compile.variants import with_variants
from partita_hetero.placement.by_priority import Placement
from partita_hetero.placement.decision import ChosenPlacement
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.reports import graphviz

_log = logging.getLogger("partita.hetero")


class Compilation:
    """One model on one device list; can be assembled again with more exclusions.

    Args:
        model: The model; affinities in it are pins.
        devices: The device list.
        tune: Sets ``choices`` and ``inexact`` by measurements, if properties ask for them. It is
            handed the compilation, what devices failed to compile and notes, and adds to both.
        pins: Operation name to device, instead of affinities, pins and lock file.

    Attributes:
        placer: Says where operations go.
        compiler: Compiles submodels; those that stay between assemblies once.
        choices: The placement that measurements have chosen, if they were asked; where input
            shapes vary, one for each of some shapes.
        inexact: What devices lose for the accuracy budget, if there is one.

    Raises:
        DeviceNotFoundError: A pin names a device that does not exist.
        PlanError: A pin or the lock file cannot be used.
    """

    def __init__(
        self,
        model: Model,
        devices: DeviceList,
        tune: Tune,
        pins: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.devices = devices
        self.placer = Placer(model, devices, pins)
        self.op_graph = self.placer.op_graph
        self.compiler = SubmodelCompiler(model, self.op_graph, devices)
        self.choices: Sequence[ChosenPlacement] = ()
        self.inexact: dict[tuple[int, str], Reason] | None = None
        self._tune = tune
        self._model_fault = ""
        self._negotiation = Negotiation()
        self._lock = InterruptSafeLock()

    def assemble(self, excluded: Exclusions, notes: Sequence[str] = ()) -> Assembly:
        """Places and compiles.

        A device that claims operations and then fails to compile them loses them to the next
        device of the list, with the reason recorded; with ``STRICT`` its error is raised.

        Args:
            excluded: What failed before.
            notes: What to say of it in the explanation.

        Raises:
            UnsupportedOpError: No device takes an operation.
            CompileError: ``STRICT`` is set and a device failed.
            OperandError: No device takes an operation, since what one reads does not fit it.
        """
        with self._lock:  # requests that failed at the same time come one after another
            standing = [note for note in self.placer.constraints.notes if note not in notes]
            return self._assemble(dict(excluded), [*standing, *notes])

    @property
    def choice(self) -> ChosenPlacement | None:
        """The first of the choices."""
        return self.choices[0] if self.choices else None

    def restore(
        self,
        placements: Sequence[tuple[ReplicaSet, Sequence[InputShapes]]],
        states: Mapping[str, Mapping[str, Any]],
        notes: Sequence[str] = (),
    ) -> Assembly:
        """Compiles what an earlier compile found; asks no device what it takes.

        Args:
            placements: The placement, and others for other shapes, with the shapes of each; with
                replicas, several placements in one.
            states: Device to what its compiled submodels had exported.
            notes: What to say in the explanation.
        """
        with self._lock:
            excluded: dict[tuple[int, str], Reason] = {}
            remarks = list(notes)
            self.compiler.states = states
            built = [
                (self.build_replicas(replica_set, excluded, remarks), shapes)
                for replica_set, shapes in placements
            ]
            self.compiler.states = {}
            assemblies = [
                replace(one, planned_for=shapes) for one, shapes in built if one is not None
            ]
            if len(assemblies) < len(built):
                return self._assemble(excluded, remarks)
            return self._final_assembly(assemblies)

    def build(
        self,
        placement: Placement,
        excluded: dict[tuple[int, str], Reason],
        remarks: list[str],
        choice: ChosenPlacement | None = None,
        counted: bool = False,
    ) -> Assembly | None:
        """Compiles a placement.

        Args:
            placement: Where everything goes.
            excluded: Exclusions; those of submodels that cannot be compiled are added.
            remarks: Notes for the explanation; what failed is added.
            choice: What the placement comes from, if measurements decided it.
            counted: Let devices measure every operation.

        Returns:
            The assembly, or ``None`` if a device failed.

        Raises:
            CompileError: ``STRICT`` is set and a device failed.
        """
        submodels = self.placer.submodels(placement)
        failures = self.compiler.compile(submodels, counted)
        if not failures:
            compiled = self.compiler.compiled(submodels, counted)
            plain = {port.name for port in self.model.outputs}
            settlement = self._negotiation.settle(submodels, compiled, plain)
            failures = settlement.failures
        if not failures:
            placed = Placed(
                placement, submodels, choice, self.placer.answers, self.devices.names, remarks
            )
            executor = self.devices.properties.executor
            return assemble(self.model, self.op_graph, placed, settlement, self.compiler, executor)
        for submodel, error in failures:
            if self.devices.properties.STRICT:
                raise not_compiled(submodel, error) from error
            remarks.append(remark(self.op_graph, submodel, "failed to compile", error))
            _log.warning("%s. They go to the next device.", remarks[-1].rstrip("."))
            excluded |= exclude(self.op_graph, submodel, ReasonCode.COMPILE_FAILED, error)
            if isinstance(error, OperandError):
                self._model_fault = in_words(error)
        return None

    def build_replicas(
        self,
        replica_set: ReplicaSet,
        excluded: dict[tuple[int, str], Reason],
        remarks: list[str],
        choice: ChosenPlacement | None = None,
    ) -> Assembly | None:
        """Compiles placements that requests are spread over.

        Args:
            replica_set: The placements, and how many of the requests each gets.
            excluded: Exclusions; those of submodels that cannot be compiled are added.
            remarks: Notes for the explanation; what failed is added.
            choice: What the placements come from, if measurements decided them.

        Returns:
            The assembly of all of them, or ``None`` if a device failed.

        Raises:
            CompileError: ``STRICT`` is set and a device failed.
        """
        assemblies = []
        for placement in replica_set.placements:
            assembly = self.build(placement, excluded, remarks, choice)
            if assembly is None:
                return None
            assemblies.append(assembly)
        return with_replicas(assemblies, replica_set)

    def forget(self, device: str) -> None:
        """Asks a device anew, and has it compile anew, when it is needed next."""
        with self._lock:
            self.placer.forget(device)
            self.compiler.forget_device(device)

    def _assemble(self, excluded: dict[tuple[int, str], Reason], remarks: list[str]) -> Assembly:
        self._model_fault = ""
        try:
            self._tune(self, excluded, remarks)
            excluded |= self.inexact or {}
            while True:
                assemblies = self._built(excluded, remarks)
                if assemblies is not None:
                    return self._final_assembly(assemblies)
        except UnsupportedOpError as error:
            if not self._model_fault:
                raise
            # Devices lose all that they were to compile together; the fault is one operation's.
            raise OperandError(self._model_fault) from error

    def _built(
        self, excluded: dict[tuple[int, str], Reason], remarks: list[str]
    ) -> list[Assembly] | None:
        """What was chosen, compiled, each placement once; ``None`` if a device failed."""
        shapes: dict[Hashable, list[InputShapes]] = {}
        built: list[Assembly] = []
        undecided: Sequence[ChosenPlacement | None] = [None]
        for choice in self.choices or undecided:
            replica_set = self.replica_set(choice, excluded)
            is_new = replica_set.key not in shapes
            planned_for = shapes.setdefault(replica_set.key, [])
            if choice is not None and choice.shapes:
                planned_for.append(tuple(choice.shapes.values()))
            if is_new:
                assembly = self.build_replicas(replica_set, excluded, remarks, choice)
                if assembly is None:
                    return None
                built.append(assembly)
        return [
            replace(one, planned_for=tuple(found))
            for one, found in zip(built, shapes.values(), strict=True)
        ]

    def replica_set(self, choice: ChosenPlacement | None, excluded: Exclusions) -> ReplicaSet:
        """The placements of a choice."""
        if choice is None:
            return ReplicaSet.single(self.placer.place(excluded, {}))
        placed = [
            (self.placer.place(excluded, preferred, keeps_limits=choice.keeps_limits), preferred)
            for preferred in choice.every
        ]
        return ReplicaSet.of(placed, choice.shares)

    def _final_assembly(self, assemblies: Sequence[Assembly]) -> Assembly:
        """The assembly that will run; writes it to the log, and to files if these are asked for."""
        assembly = with_variants(assemblies, [port.name for port in self.model.inputs])
        self.compiler.forget_old(
            [submodel for one in assembly.every() for submodel in one.submodels]
        )
        _log.info("%s", assembly.explanation.summary())
        if self.devices.properties.HETERO_DUMP_GRAPH_DOT or graphviz.is_requested(os.environ):
            why = assembly.explanation
            graphviz.write(Path.cwd(), self.model.name, self.op_graph, assembly.submodels, why)
        return assembly


Tune = Callable[[Compilation, dict[tuple[int, str], Reason], list[str]], None]
"""Decides by measurements what priorities leave open; see :class:`Compilation`."""
