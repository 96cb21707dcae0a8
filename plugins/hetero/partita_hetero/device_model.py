"""The compiled HETERO model: an assembly that can change when a device fails."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from partita.contract.device_model import DeviceModel
from partita.contract.explanation import Explanation
from partita.contract.query import Reason, ReasonCode
from partita.contract.runner import Runner
from partita.errors import DeviceNotFoundError
from partita.model.expected_shapes import DueShapes
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.pipeline import Compilation, Exclusions
from partita_hetero.partition.submodels import Submodel
from partita_hetero.planner.simulation.timeline import Timeline
from partita_hetero.properties import HeteroProperties
from partita_hetero.runtime.call_timeout import Watchdog

_log = logging.getLogger("partita.hetero")

UNDECIDED = {
    "HETERO_SCHEDULE": "PRIORITY",
    "HETERO_PINS": [],
    "HETERO_PLACEMENT_LOCK": "",
    "HETERO_ACCURACY_BUDGET": 0.0,
}
"""Settings under which affinities alone decide, besides priorities."""

STRIKES = 3
"""After so many failures at run time a device gets nothing more to do."""


class Counted(Protocol):
    """A request that noted when its steps ran."""

    def timeline(self, name: str) -> Timeline:
        """Its last run."""


@dataclass(frozen=True)
class Remedy:
    """A way round failures.

    Attributes:
        start: The assembly that it changes.
        assembly: The one to try; ``start`` itself if all failures have been dealt with already.
        excluded: What devices have lost in it.
        blamed: The device of each failure that is new.
        drifted: Whether it is slowness that it is a way round.
    """

    start: Assembly
    assembly: Assembly
    excluded: Exclusions
    blamed: Sequence[str]
    drifted: bool = False


class HeteroModel(DeviceModel):
    """Submodels on their devices, joined by a plan.

    Args:
        compilation: Makes assemblies, now and when a device fails.
        assembly: What to run, if it is there already.

    Attributes:
        nan_told: Whether a request has told already of NaN out of finite inputs.
    """

    properties: HeteroProperties

    def __init__(self, compilation: Compilation, assembly: Assembly | None = None) -> None:
        devices = compilation.devices
        super().__init__(compilation.model, devices.properties, devices.own_name)
        self.core = devices.core
        self.compilation = compilation
        self._lock = threading.Lock()
        self._excluded: Exclusions = {}
        self._failures: Counter[str] = Counter()
        self._notes: list[str] = []
        self._reports: list[str] = []
        self.nan_told = False
        self._drifted: set[Hashable] = set()
        timeout_ms = devices.properties.HETERO_TIMEOUT_MS
        self.due_shapes = DueShapes(compilation.model)
        self.watchdog = Watchdog(timeout_ms / 1e3) if timeout_ms else None
        self.counted: Counted | None = None
        self.assembly = compilation.assemble({}) if assembly is None else assembly

    @property
    def predicted(self) -> Timeline | None:
        """The run that the cost model foresaw, if HETERO_SCHEDULE=COST placed the model."""
        choice = self.compilation.choice
        return None if choice is None else choice.predicted

    @property
    def measured(self) -> Timeline | None:
        """When each submodel and Permute of the last request ran, if PERF_COUNT is set."""
        return None if self.counted is None else self.counted.timeline("measured")

    @property
    def failures(self) -> dict[str, int]:
        """How often each device has failed while requests ran and lost operations for it."""
        return dict(self._failures)

    def create_runner(self) -> Runner:
        """A runner with runners of its own on every device."""
        from partita_hetero.runtime.request_runner import HeteroRunner

        return HeteroRunner(self)

    def explain(self) -> Explanation:
        """Where every operation runs and why, what crosses, and what went wrong on the way."""
        explanation = self.assembly.explanation
        if not self._reports:
            return explanation
        return replace(explanation, notes=[*explanation.notes, *self._reports])

    @property
    def execution_devices(self) -> list[str]:
        """The devices that run something, in order of first use."""
        return list(dict.fromkeys(submodel.device for submodel in self.assembly.submodels))

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """What its devices take at the same time: each then works on other requests than the rest.

        A device that runs several submodels counts once, by the one that takes most.
        """
        most: dict[str, int] = {}
        assembly = self.assembly
        for piece, part in zip(assembly.submodels, assembly.compiled, strict=True):
            count = part.optimal_number_of_infer_requests
            most[piece.device] = max(count, most.get(piece.device, 1))
        return max(1, sum(most.values()))

    def extra_properties(self) -> dict[str, Any]:
        """``HETERO_NUMBER_OF_SUBMODELS``, and the properties that each device's submodels have."""
        assembly = self.assembly
        of_device: dict[str, dict[str, Any]] = {}
        for piece, part in zip(assembly.submodels, assembly.compiled, strict=True):
            if piece.device not in of_device:
                keys = part.get_property("SUPPORTED_PROPERTIES")
                of_device[piece.device] = {key: part.get_property(key) for key in keys}
        return {
            "HETERO_NUMBER_OF_SUBMODELS": len(assembly.submodels),
            "DEVICE_PROPERTIES": of_device,
        }

    def piece_properties(self) -> dict[str, Any]:
        """Its own, with device settings that were found, and nothing that decides placements."""
        nested = dict(self.properties.DEVICE_PROPERTIES)
        for device, found in self.compilation.devices.overrides.items():
            nested[device] = {**nested.pop(device, {}), **found}  # the last one counts
        return {**self.exported_properties(), "DEVICE_PROPERTIES": nested, **UNDECIDED}

    def export_model(self) -> bytes:
        """The model, its placement, and what its devices keep of their submodels."""
        from partita_hetero.export import export

        return export(self)

    # ------------------------------------------------------------------------ failures

    def without(self, failures: Sequence[tuple[Submodel, Exception]]) -> Remedy:
        """An assembly in which devices have lost what they failed on; does not adopt it.

        Args:
            failures: Submodels that failed, with their errors. Those whose operations the device
                has lost already, by another request's failure, count no more.

        Raises:
            UnsupportedOpError: There is no other device for an operation.
        """
        with self._lock:
            start = self.assembly
            excluded = dict(self._excluded)
            notes = list(self._notes)
            strikes = self._failures.copy()
        blamed = []
        for piece, error in failures:
            lost = self.compilation.exclude(piece, ReasonCode.RUN_FAILED, error)
            if all(key in excluded for key in lost):
                continue
            excluded |= lost
            blamed.append(piece.device)
            notes.append(self.compilation.remark(piece, "failed to run", error))
            strikes[piece.device] += 1
            if strikes[piece.device] == STRIKES:
                reason = Reason(ReasonCode.RUN_FAILED, f"failed {STRIKES} times")
                excluded = {**self.compilation.exclude_device(piece.device, reason), **excluded}
                notes.append(
                    f"{piece.device} failed {STRIKES} times and gets nothing more to do; "
                    f"compiled.device_model.enable_device({piece.device!r}) lets it try again."
                )
        assembly = self.compilation.assemble(excluded, notes) if blamed else start
        return Remedy(start, assembly, excluded, blamed)

    def without_drifted(self, pieces: Sequence[Submodel], why: str) -> Remedy:
        """An assembly in which a device has lost what it has become slow at; does not adopt it.

        Args:
            pieces: The submodels.
            why: What was found.

        Raises:
            UnsupportedOpError: There is no other device for an operation.
        """
        with self._lock:
            start, notes = self.assembly, [*self._notes, why]
            reason = Reason(ReasonCode.DRIFTED, why)
            lost = {(op, piece.device): reason for piece in pieces for op in piece.ops}
            excluded = {**self._excluded, **lost}
        return Remedy(start, self.compilation.assemble(excluded, notes), excluded, [], drifted=True)

    def first_to_tell(self, piece: Submodel) -> bool:
        """Whether nobody has told of the drift of a submodel yet; each is told of once."""
        with self._lock:
            known = piece.key in self._drifted
            self._drifted.add(piece.key)
            return not known

    def report(self, note: str) -> None:
        """Logs something that went wrong and changes nothing, and puts it into the explanation."""
        with self._lock:
            self._reports.append(note)
        _log.warning("%s", note)

    def adopt(self, remedy: Remedy) -> bool:
        """Makes a remedy that has worked what all requests run from now on.

        Returns:
            Whether it is; not if the assembly that it starts from has been replaced meanwhile.
        """
        if not remedy.blamed and not remedy.drifted:
            return True
        with self._lock:
            if self.assembly is not remedy.start:
                return False
            known = len(self._notes)
            self.assembly = remedy.assembly
            self._excluded = remedy.excluded
            self._notes = list(remedy.assembly.explanation.notes)
            self._failures.update(remedy.blamed)
        for note in remedy.assembly.explanation.notes[known:]:
            _log.warning("%s", note)
        return True

    def enable_device(self, device: str) -> None:
        """Forgets a device's failures and gives its operations back to it.

        Raises:
            DeviceNotFoundError: The device is not in the list.
        """
        names = {self.core.resolve_device(name): name for name in self.compilation.devices.names}
        name = names.get(self.core.resolve_device(device))
        if name is None:
            raise DeviceNotFoundError(
                f"'{device}' is not among the devices of this model: {', '.join(names.values())}."
            )
        with self._lock:
            self._excluded = {key: why for key, why in self._excluded.items() if key[1] != name}
            self._notes = [note for note in self._notes if not note.startswith(f"{name} ")]
            self._reports = [note for note in self._reports if not note.startswith(f"{name} ")]
            self._drifted = set()
            del self._failures[name]
            self.compilation.forget(name)
            self.assembly = self.compilation.assemble(self._excluded, self._notes)
