"""Compiling one model: place, cut, compile the parts side by side, and again where one fails."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from partita.contract.query import Reason, ReasonCode
from partita.model.model import Model
from partita_hetero.compile.assembler import Placed, assemble
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.failures import Exclusions, exclude, not_compiled, remark
from partita_hetero.compile.layout_negotiation import Negotiation
from partita_hetero.compile.placer import Placer
from partita_hetero.compile.submodel_compiler import SubmodelCompiler
from partita_hetero.placement.by_priority import Placement
from partita_hetero.placement.decision import Choice
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.reports import graphviz

_log = logging.getLogger("partita.hetero")


class Compilation:
    """One model on one device list; can be assembled again with more exclusions.

    Args:
        model: The model; affinities in it are pins.
        devices: The device list.
        tune: Sets ``choice`` and ``inexact`` by measurements, if properties ask for them. It is
            handed the compilation, what devices failed to compile and notes, and adds to both.
        pins: Operation name to device, instead of affinities, pins and lock file.

    Attributes:
        placer: Says where operations go.
        compiler: Compiles submodels; those that stay between assemblies once.
        choice: The placement that measurements have chosen, if they were asked.
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
        self.wiring = self.placer.wiring
        self.compiler = SubmodelCompiler(model, self.wiring, devices)
        self.choice: Choice | None = None
        self.inexact: dict[tuple[int, str], Reason] | None = None
        self._tune = tune
        self._negotiation = Negotiation()
        self._lock = threading.Lock()

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
        """
        with self._lock:  # requests that failed at the same time come one after another
            standing = [note for note in self.placer.wanted.notes if note not in notes]
            return self._assemble(dict(excluded), [*standing, *notes])

    def restore(
        self,
        placement: Placement,
        states: Mapping[str, Mapping[str, Any]],
        notes: Sequence[str] = (),
    ) -> Assembly:
        """Compiles a placement that an earlier compile found; asks no device what it takes.

        Args:
            placement: The placement.
            states: Device to what its compiled submodels had exported.
            notes: What to say in the explanation.
        """
        with self._lock:
            excluded: dict[tuple[int, str], Reason] = {}
            remarks = list(notes)
            self.compiler.states = states
            assembly = self.build(placement, excluded, remarks)
            self.compiler.states = {}
            if assembly is None:
                return self._assemble(excluded, remarks)
            return self._kept(assembly)

    def build(
        self,
        placement: Placement,
        out: dict[tuple[int, str], Reason],
        remarks: list[str],
        choice: Choice | None = None,
        counted: bool = False,
    ) -> Assembly | None:
        """Compiles a placement.

        Args:
            placement: Where everything goes.
            out: Exclusions; those of submodels that cannot be compiled are added.
            remarks: Notes for the explanation; what failed is added.
            choice: What the placement comes from, if measurements decided it.
            counted: Let devices measure every operation.

        Returns:
            The assembly, or ``None`` if a device failed.

        Raises:
            CompileError: ``STRICT`` is set and a device failed.
        """
        pieces = self.placer.pieces(placement)
        failures = self.compiler.compile(pieces, counted)
        if not failures:
            compiled = self.compiler.compiled(pieces, counted)
            plain = {port.name for port in self.model.outputs}
            settlement = self._negotiation.settle(pieces, compiled, plain)
            failures = settlement.failures
        if not failures:
            placed = Placed(
                *(placement, pieces, choice, self.placer.answers, self.devices.names, remarks)
            )
            executor = self.devices.properties.executor
            return assemble(self.model, self.wiring, placed, settlement, self.compiler, executor)
        for piece, error in failures:
            if self.devices.properties.STRICT:
                raise not_compiled(piece, error) from error
            remarks.append(remark(self.wiring, piece, "failed to compile", error))
            _log.warning("%s. They go to the next device.", remarks[-1])
            out |= exclude(self.wiring, piece, ReasonCode.COMPILE_FAILED, error)
        return None

    def forget(self, device: str) -> None:
        """Asks a device anew when it is needed next."""
        with self._lock:
            self.placer.forget(device)

    def _assemble(self, out: dict[tuple[int, str], Reason], remarks: list[str]) -> Assembly:
        self._tune(self, out, remarks)
        out |= self.inexact or {}
        choice = self.choice
        while True:
            placement = self.placer.place(out, choice.wishes if choice else {})
            assembly = self.build(placement, out, remarks, choice)
            if assembly is not None:
                return self._kept(assembly)

    def _kept(self, assembly: Assembly) -> Assembly:
        """The assembly that will run, told of in the log, and in files if they are wanted."""
        self.compiler.forget_old(assembly.submodels)
        _log.info("%s", assembly.explanation.summary())
        if self.devices.properties.HETERO_DUMP_GRAPH_DOT or graphviz.wanted(os.environ):
            why = assembly.explanation
            graphviz.write(Path.cwd(), self.model.name, self.wiring, assembly.submodels, why)
        return assembly


Tune = Callable[[Compilation, dict[tuple[int, str], Reason], list[str]], None]
"""Decides by measurements what priorities leave open; see :class:`Compilation`."""
