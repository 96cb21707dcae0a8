"""The compiled HETERO model: an assembly that can change when a device fails."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

from partita import blob
from partita.compiled_model import CompiledModel, Runner
from partita.errors import DeviceNotFoundError
from partita.explain import Explanation
from partita.query import Reason, ReasonCode
from partita_hetero.assembly import Assembly
from partita_hetero.compilation import Compilation, Exclusions
from partita_hetero.properties import HeteroProperties
from partita_hetero.submodels import Submodel
from partita_hetero.watchdog import Watchdog

_log = logging.getLogger("partita.hetero")

STRIKES = 3
"""After so many failures at run time a device gets nothing more to do."""


class HeteroCompiledModel(CompiledModel):
    """Submodels on their devices, joined by a plan.

    Args:
        compilation: Makes assemblies, now and when a device fails.
    """

    properties: HeteroProperties

    def __init__(self, compilation: Compilation) -> None:
        devices = compilation.devices
        super().__init__(compilation.model, devices.properties, devices.own_name)
        self.core = devices.core
        self.compilation = compilation
        self._lock = threading.Lock()
        self._excluded: Exclusions = {}
        self._failures: Counter[str] = Counter()
        self._notes: list[str] = []
        timeout_ms = devices.properties.HETERO_TIMEOUT_MS
        self.watchdog = Watchdog(timeout_ms / 1e3) if timeout_ms else None
        self.assembly = compilation.assemble({})

    def create_runner(self) -> Runner:
        """A runner with runners of its own on every device."""
        from partita_hetero.runner import HeteroRunner

        return HeteroRunner(self)

    def explain(self) -> Explanation:
        """Where every operation runs and why, what crosses, and what went wrong on the way."""
        return self.assembly.explanation

    @property
    def execution_devices(self) -> list[str]:
        """The devices that run something, in order of first use."""
        return list(dict.fromkeys(submodel.device for submodel in self.assembly.submodels))

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """One per device, so that each can work on another request."""
        return max(1, len(self.execution_devices))

    def extra_properties(self) -> dict[str, Any]:
        """``HETERO_NUMBER_OF_SUBMODELS``."""
        return {"HETERO_NUMBER_OF_SUBMODELS": len(self.assembly.submodels)}

    def export_model(self) -> bytes:
        """The model with its placement; importing compiles the same submodels again."""
        placement = {
            op.name: op.device for op in self.assembly.explanation.ops if op.subgraph is not None
        }
        return blob.pack(
            device=self.device,
            header={
                "properties": self.properties.model_dump(mode="json", exclude_unset=True),
                "placement": placement,
            },
            model=self.model,
        )

    # ------------------------------------------------------------------------ failures

    def without(self, failures: list[tuple[Submodel, Exception]]) -> tuple[Assembly, Exclusions]:
        """An assembly in which devices have lost what they failed on; does not adopt it.

        Args:
            failures: Submodels of the assembly, and of those tried since, with their errors.

        Raises:
            UnsupportedOpError: There is no other device for an operation.
        """
        with self._lock:
            excluded = dict(self._excluded)
            notes = list(self._notes)
            strikes = self._failures.copy()
        for piece, error in failures:
            excluded |= self.compilation.exclude(piece, ReasonCode.RUN_FAILED, error)
            notes.append(self.compilation.remark(piece, "failed to run", error))
            strikes[piece.device] += 1
            if strikes[piece.device] >= STRIKES:
                reason = Reason(ReasonCode.RUN_FAILED, f"failed {strikes[piece.device]} times")
                excluded = {**self.compilation.exclude_device(piece.device, reason), **excluded}
                notes.append(
                    f"{piece.device} failed {strikes[piece.device]} times and gets nothing more to "
                    f"do; compiled.enable_device({piece.device!r}) lets it try again."
                )
        return self.compilation.assemble(excluded, notes), excluded

    def adopt(
        self,
        start: Assembly,
        assembly: Assembly,
        excluded: Exclusions,
        failures: list[tuple[Submodel, Exception]],
    ) -> None:
        """Makes an assembly that has run what all requests run from now on.

        Nothing happens if another request was faster and ``start``, from which the new assembly was
        made, is no longer the current one: its failures are not lost by that.
        """
        with self._lock:
            if self.assembly is not start:
                return
            self.assembly = assembly
            self._excluded = excluded
            self._notes = list(assembly.explanation.notes)
            self._failures.update(piece.device for piece, _ in failures)
        for note in assembly.explanation.notes[-len(failures) :]:
            _log.warning("%s", note)

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
            del self._failures[name]
            self.compilation.forget(name)
            self.assembly = self.compilation.assemble(self._excluded, self._notes)
