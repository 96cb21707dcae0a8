"""A model on one device, twice: for one request, and for a batch of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.contract.device_model import (
    DeviceModel,
    devices_of,
    explanation_of,
    exported_state,
    new_runner,
    requests_at_once,
)
from partita.contract.explanation import Explanation
from partita.contract.query import Reason, ReasonCode
from partita.contract.runner import Runner
from partita.errors import DeviceStringError, PartitaError
from partita.model.model import Model
from partita_virtual.batch.batched_model import batched
from partita_virtual.batch.gathering import Gathering
from partita_virtual.batch.runner import BatchRunner
from partita_virtual.members import Members, explained, state_of
from partita_virtual.properties import BatchProperties

DEFAULT_SIZE = 8
"""Requests in a batch, where neither the device string nor a property says how many."""


class BatchModel(DeviceModel):
    """Gathers requests, where their rows do not meet in the model; else it runs them one by one.

    Args:
        model: The model.
        members: The one device, the first of those that there are if none is named.
        state: What an earlier compile left.

    Raises:
        DeviceStringError: Several devices are named.
        CompileError: The device does not take the model.
    """

    properties: BatchProperties

    def __init__(self, model: Model, members: Members, state: Mapping[str, Any]) -> None:
        super().__init__(model, members.properties, members.own_name)
        self._member = _only(members)
        most = self.properties.PERFORMANCE_HINT_NUM_REQUESTS
        size = members.counts.get(self._member) or DEFAULT_SIZE
        self.size = min(size, most) if most else size
        self._single = members.compile(model, self._member, state_of("single", state))
        self._batched: DeviceModel | None = None
        self._why_not = ""
        if self.size > 1:
            self._compile_batch(members, state_of("batch", state))
        self._gathering = (
            None
            if self._batched is None
            else Gathering(self._batched, self.size, self.properties.AUTO_BATCH_TIMEOUT / 1e3)
        )

    def _compile_batch(self, members: Members, state: Mapping[str, Any]) -> None:
        found = batched(self.model, self.size)
        if isinstance(found, Reason):
            self._why_not = str(found)
        else:
            try:
                self._batched = members.compile(found, self._member, state)
            except PartitaError as error:
                self._why_not = f"{self._member} does not take the batch: {error}"
        if self._batched is None:
            self.size = 1

    def create_runner(self) -> Runner:
        """A runner that joins others; the device's own, if requests cannot be gathered."""
        if self._gathering is None:
            return new_runner(self._single)
        return BatchRunner(self._single, self._gathering)

    @property
    def execution_devices(self) -> list[str]:
        """Those of the device."""
        return devices_of(self._single)

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """Enough for all batches that the device computes at the same time."""
        compiled = self._batched or self._single
        return self.size * requests_at_once(compiled)

    def extra_properties(self) -> dict[str, Any]:
        """``BATCH_SIZE``: how many requests make a batch; 1 if they cannot be gathered."""
        return {"BATCH_SIZE": self.size}

    def explain(self) -> Explanation:
        """The placement on the device, and whether requests are gathered."""
        if self._gathering is None:
            note = f"requests run one by one: {self._why_not or 'the batch is 1'}"
        else:
            note = (
                f"batches of {self.size}: {self._gathering.batches} have run; requests wait "
                f"{self.properties.AUTO_BATCH_TIMEOUT} ms for others"
            )
            if self._gathering.last_error is not None:
                note += f"; one failed, and ran one by one: {self._gathering.last_error}"
        reason = Reason(ReasonCode.PRIORITY, f"{self._member} computes batches")
        return explained(explanation_of(self._single), reason, {}, [note])

    def export_state(self) -> Mapping[str, Any]:
        """What the device keeps of both models."""
        both = {"single": self._single, "batch": self._batched}
        return {
            f"{part}/{self._member}/{name}": array
            for part, one in both.items()
            if one is not None
            for name, array in exported_state(one).items()
        }


def _only(members: Members) -> str:
    """The one device.

    Raises:
        DeviceStringError: There are several.
    """
    if members.is_listed and len(members.names) > 1:
        raise DeviceStringError(
            f"{members.own_name} gathers requests for one device; it was given "
            f"{', '.join(members.names)}."
        )
    return members.names[0]
