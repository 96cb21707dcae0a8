"""A model on the device that AUTO has chosen, which may be another one in a moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.contract.device_model import DeviceModel, devices_of, explanation_of, requests_at_once
from partita.contract.explanation import Explanation
from partita.contract.runner import Runner
from partita.model.model import Model
from partita_virtual.auto.candidates import Candidates
from partita_virtual.auto.device_selector import DeviceSelector
from partita_virtual.auto.runner import AutoRunner
from partita_virtual.members import Members, explained, states
from partita_virtual.properties import AutoProperties


class AutoModel(DeviceModel):
    """A model that moves to a better device when that is ready.

    Args:
        model: The model.
        members: The devices of the list.
        state: What an earlier compile left.

    Raises:
        UnsupportedOpError: No device takes the model.
        OperandError: Nor could any, since what an operation reads does not fit it.
    """

    properties: AutoProperties

    def __init__(self, model: Model, members: Members, state: Mapping[str, Any]) -> None:
        super().__init__(model, members.properties, members.own_name)
        candidates = Candidates(members, self.properties)
        self._chooser = DeviceSelector(model, candidates, self.properties, state)

    def create_runner(self) -> Runner:
        """A runner that follows the choice."""
        return AutoRunner(self._chooser, self.properties.ENABLE_RUNTIME_FALLBACK)

    @property
    def execution_devices(self) -> list[str]:
        """The device; in parentheses, as OpenVINO writes it, while another may take over."""
        devices = devices_of(self._chooser.present.compiled)
        return [f"({device})" for device in devices] if self._chooser.is_open else devices

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """What the present device takes."""
        return requests_at_once(self._chooser.present.compiled)

    def explain(self) -> Explanation:
        """The placement on the present device, why it is that one, and what went wrong."""
        chooser = self._chooser
        present = chooser.present
        base = explanation_of(present.compiled)
        notes = list(chooser.notes)
        if chooser.is_open:
            notes.append(f"{present.device} computes until other devices are ready and compared")
        return explained(base, present.reason, chooser.refused, notes)

    def export_state(self) -> Mapping[str, Any]:
        """What the present device keeps."""
        present = self._chooser.present
        return states({present.device: present.compiled})
