"""What AUTO chooses from: the devices of its list, and devices made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from partita.contract.device_model import DeviceModel, explanation_of
from partita.contract.query import QueryResult
from partita.errors import CompileError
from partita.model.model import Model
from partita_virtual.members import Members
from partita_virtual.properties import AutoProperties

_BATCH, _MULTI = "BATCH", "MULTI"

BATCH_SIZE = "BATCH_SIZE"
"""The property of a model on BATCH that says how many requests make a batch."""


class Candidates:
    """The devices that may run a model, the preferred ones first.

    Args:
        members: The devices of the list.
        properties: What is fast: with CUMULATIVE_THROUGHPUT all devices together are the one
            candidate, with THROUGHPUT batches on GPUs are candidates too.

    Attributes:
        own_name: AUTO's name.
        starter: The CPU that answers while others compile, if there is one.
    """

    def __init__(self, members: Members, properties: AutoProperties) -> None:
        self._members = members
        self.own_name = members.own_name
        self._kinds = {device: members.kind(device) for device in members}
        names = list(members)
        cpus = [name for name in names if self._kinds[name] == "cpu"]
        self.starter = min(
            cpus, key=lambda cpu: "." in members.core.resolve_device(cpu), default=None
        )
        if properties.PERFORMANCE_HINT == "CUMULATIVE_THROUGHPUT":
            useful = [n for n in names if self._kinds[n] != "reference"] or names
            names, self.starter = [f"{_MULTI}:{','.join(useful)}"], None
        elif properties.PERFORMANCE_HINT == "THROUGHPUT" and properties.ALLOW_AUTO_BATCHING:
            gpus = {name for name in names if self._kinds[name] == "gpu"}
            several_each = ([f"{_BATCH}:{n}", n] if n in gpus else [n] for n in names)
            names = [name for both in several_each for name in both]
        self._names = names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def is_last_resort(self, device: str) -> bool:
        """Whether it is right rather than fast."""
        return self._kinds.get(device) == "reference"

    def ask(self, model: Model, device: str) -> QueryResult:
        """What a candidate says of the model."""
        return self._members.ask(model, device)

    def compile(self, model: Model, device: str, state: Mapping[str, Any]) -> DeviceModel:
        """The model on a candidate.

        Raises:
            PartitaError: It cannot; or it is a batch, and the model's requests cannot be gathered.
        """
        compiled = self._members.compile(model, device, state)
        if device.startswith(f"{_BATCH}:") and compiled.get_property(BATCH_SIZE) == 1:
            raise CompileError(explanation_of(compiled).notes[-1])
        return compiled
