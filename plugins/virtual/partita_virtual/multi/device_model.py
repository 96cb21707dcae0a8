"""A model compiled for all devices of MULTI's list that take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from partita.contract.device_model import DeviceModel, explanation_of, requests_at_once
from partita.contract.explanation import Explanation
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.contract.runner import Runner
from partita.errors import PartitaError
from partita.model.model import Model
from partita_virtual.members import Members, explained, states, unsupported_by_all
from partita_virtual.multi.device_pool import DevicePool, PooledDevice
from partita_virtual.multi.runner import MultiRunner
from partita_virtual.properties import MultiProperties


class MultiModel(DeviceModel):
    """The same model on several devices; each request runs on one of them.

    Args:
        model: The model.
        members: The devices.
        state: What an earlier compile left.

    Raises:
        UnsupportedOpError: No device takes the model.
        OperandError: Nor could any, since what an operation reads does not fit it.
    """

    properties: MultiProperties

    def __init__(self, model: Model, members: Members, state: Mapping[str, Any]) -> None:
        super().__init__(model, members.properties, members.own_name)
        self._refused: dict[str, QueryResult] = {}
        self._notes: list[str] = []
        causes: dict[str, BaseException] = {}
        pooled: list[PooledDevice] = []
        for device in members:
            try:
                answer = members.ask(model, device)
                self._refused[device] = answer
                answer.require_all(model)
                compiled = members.compile(model, device, state)
            except PartitaError as error:
                causes[device] = error
                self._notes.append(f"{device} gets no requests: {error}")
                continue
            del self._refused[device]
            room = members.counts.get(device) or requests_at_once(compiled)
            pooled.append(PooledDevice(device, compiled, room))
        if not pooled:
            raise unsupported_by_all(members.own_name, model, causes)
        self._pool = DevicePool(pooled, self.properties.SCHEDULE_POLICY == "ROUND_ROBIN")

    def create_runner(self) -> Runner:
        """A runner that goes to a free device with each run."""
        return MultiRunner(self._pool, self.properties.ENABLE_RUNTIME_FALLBACK)

    def host_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """As the first device has it."""
        return self._pool.present[0].compiled.host_array(shape, dtype)

    @property
    def execution_devices(self) -> list[str]:
        """The devices that get requests."""
        return [one.device for one in self._pool.present]

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """What all devices take together."""
        return sum(one.capacity for one in self._pool.present)

    def explain(self) -> Explanation:
        """The placement on the first device; the notes tell of the others."""
        first, *others = self._pool.present
        reason = Reason(ReasonCode.PRIORITY, f"a request on {first.device}, the first of the list")
        counts = [f"{one.device} has run {one.served} requests" for one in (first, *others)]
        notes = [*self._notes, *self._pool.notes, *(counts if others else ())]
        return explained(explanation_of(first.compiled), reason, self._refused, notes)

    def export_state(self) -> Mapping[str, Any]:
        """What the devices keep."""
        return states({one.device: one.compiled for one in self._pool.present})
