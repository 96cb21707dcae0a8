"""Failover: the assembly that a model's requests run, and what replaces it if a device fails."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from partita.contract.explanation import Explanation
from partita.contract.query import Reason, ReasonCode
from partita.errors import DeviceNotFoundError
from partita.model.expected_shapes import ExpectedShapes
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.tensors.tensor import Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.failures import Exclusions, exclude, exclude_device, remark
from partita_hetero.compile.pipeline import Compilation
from partita_hetero.compile.replicas import ReplicaBindings, assembly_of_seat
from partita_hetero.compile.variants import for_inputs
from partita_hetero.partition.submodels import Submodel
from partita_hetero.properties import HeteroProperties
from partita_hetero.runtime.call_timeout import Watchdog
from partita_hetero.runtime.drift import Running
from partita_hetero.runtime.run_timeline import RunTimeline

_log = logging.getLogger("partita.hetero")

STRIKES = 3
"""After so many failures at run time a device gets nothing more to do."""


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


class Failover:
    """What the requests of one model share.

    Args:
        compilation: Makes assemblies, now and when a device fails.
        assembly: What to run, if it is there already.
        properties: How to run it.

    Attributes:
        compilation: Makes assemblies.
        properties: How requests run.
        assembly: What requests run from now on.
        seats: Which replica each request is bound to.
        expected_shapes: The shapes that values of the model have.
        watchdog: Gives up calls that take too long, if there is a limit.
        running: Counts the requests that run now.
        measured: When each step of the last request ran, if requests note that.
    """

    def __init__(
        self,
        compilation: Compilation,
        assembly: Assembly | None,
        properties: HeteroProperties,
    ) -> None:
        self.compilation = compilation
        self.properties = properties
        self._lock = InterruptSafeLock()
        self._excluded: Exclusions = {}
        self._failures: Counter[str] = Counter()
        self._notes: list[str] = []
        self._reports: list[str] = []
        self._told_of_nan = False
        self._drifted: set[Hashable] = set()
        timeout_ms = self.properties.HETERO_TIMEOUT_MS
        self.expected_shapes = ExpectedShapes(compilation.model)
        self.watchdog = Watchdog(timeout_ms / 1e3) if timeout_ms else None
        self.running = Running()
        self.measured: RunTimeline | None = None
        self.seats = ReplicaBindings()
        self.assembly = compilation.assemble({}) if assembly is None else assembly

    @property
    def failures(self) -> dict[str, int]:
        """How often each device has failed while requests ran and lost operations for it."""
        return dict(self._failures)

    @property
    def nan_reported(self) -> bool:
        """Whether a request has reported NaN for finite inputs already."""
        return self._told_of_nan

    def assembly_for(self, inputs: Sequence[Tensor], seat: int) -> Assembly:
        """What a request with these inputs, on this seat, runs."""
        return request_assembly(self.assembly, inputs, seat)

    def explain(self) -> Explanation:
        """Where every operation runs and why, what crosses, and what went wrong on the way."""
        explanation = self.assembly.explanation
        if not self._reports:
            return explanation
        return replace(explanation, notes=[*explanation.notes, *self._reports])

    def without(self, failures: Sequence[tuple[Submodel, BaseException]]) -> Remedy:
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
        for submodel, error in failures:
            lost = exclude(self.compilation.op_graph, submodel, ReasonCode.RUN_FAILED, error)
            if all(key in excluded for key in lost):
                continue
            excluded |= lost
            blamed.append(submodel.device)
            notes.append(remark(self.compilation.op_graph, submodel, "failed to run", error))
            strikes[submodel.device] += 1
            if strikes[submodel.device] == STRIKES:
                reason = Reason(ReasonCode.RUN_FAILED, f"failed {STRIKES} times")
                everything = exclude_device(self.compilation.op_graph, submodel.device, reason)
                excluded = {**everything, **excluded}
                notes.append(
                    f"{submodel.device} failed {STRIKES} times and gets nothing more to do; "
                    f"compiled.device_model.enable_device({submodel.device!r}) lets it try again."
                )
        assembly = self.compilation.assemble(excluded, notes) if blamed else start
        return Remedy(start, assembly, excluded, blamed)

    def without_drifted(self, submodels: Sequence[Submodel], why: str) -> Remedy:
        """An assembly in which a device has lost what it has become slow at; does not adopt it.

        Args:
            submodels: The submodels.
            why: What was found.

        Raises:
            UnsupportedOpError: There is no other device for an operation.
        """
        with self._lock:
            start, notes = self.assembly, [*self._notes, why]
            reason = Reason(ReasonCode.DRIFTED, why)
            lost = {(op, submodel.device): reason for submodel in submodels for op in submodel.ops}
            excluded = {**self._excluded, **lost}
        return Remedy(start, self.compilation.assemble(excluded, notes), excluded, [], drifted=True)

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

        Requests go on with what they have while it compiles. If that fails, nothing changes.

        Raises:
            DeviceNotFoundError: The device is not in the list.
            CompileError: ``STRICT`` is set and a device failed.
        """
        devices = self.compilation.devices
        resolve = devices.core.resolve_device
        names = {resolve(name): name for name in devices.names}
        name = names.get(resolve(device))
        if name is None:
            raise DeviceNotFoundError(
                f"'{device}' is not among the devices of this model: {', '.join(names.values())}."
            )
        self.compilation.forget(name)
        while not self._give_back(name):
            pass  # a remedy for another failure was adopted while it compiled

    def _give_back(self, name: str) -> bool:
        """Gives a device its operations back; ``False`` if the assembly was replaced meanwhile."""
        with self._lock:
            start = self.assembly
            excluded = {key: why for key, why in self._excluded.items() if key[1] != name}
            notes = _about_others(self._notes, name)
        assembly = self.compilation.assemble(excluded, notes)
        with self._lock:
            if self.assembly is not start:
                return False
            self.assembly, self._excluded, self._notes = assembly, excluded, notes
            self._reports = _about_others(self._reports, name)
            self._drifted = set()
            del self._failures[name]
        return True

    def reports_drift_first(self, submodel: Submodel) -> bool:
        """Whether the drift of a submodel was not reported yet; each is reported once."""
        with self._lock:
            known = submodel.key in self._drifted
            self._drifted.add(submodel.key)
            return not known

    def report(self, note: str) -> None:
        """Logs something that went wrong and changes nothing, and puts it into the explanation."""
        with self._lock:
            self._reports.append(note)
        _log.warning("%s", note)

    def report_nan(self, submodel: Submodel, output: int) -> None:
        """Tells of NaN in an output of a submodel whose inputs were finite; once for the model."""
        with self._lock:
            if self._told_of_nan:
                return
            self._told_of_nan = True
        self.report(
            f"{submodel.device} returned NaN in '{submodel.outputs[output]}' for finite inputs "
            f"(submodel {submodel.number}, {len(submodel.ops)} operations from "
            f"'{self.first_op(submodel)}'). If the model does not mean that, REJECT_NAN=YES has "
            "another device compute them."
        )

    def first_op(self, submodel: Submodel) -> str:
        """The name of a submodel's first operation."""
        return self.compilation.op_graph.names()[submodel.ops[0]]


def _about_others(notes: Sequence[str], device: str) -> list[str]:
    """The notes that do not begin with a device's name."""
    return [note for note in notes if not note.startswith(f"{device} ")]


def request_assembly(assembly: Assembly, inputs: Sequence[Tensor], seat: int) -> Assembly:
    """What a request with these inputs, on this seat, runs of an assembly."""
    return assembly_of_seat(for_inputs(assembly, inputs), seat)
