"""The compiled HETERO model: an assembly that can change when a device fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from partita.contract.device_model import DeviceModel, requests_at_once
from partita.contract.explanation import Explanation
from partita.contract.runner import Runner
from partita.errors import PluginError, raised_as
from partita.model.model import Port
from partita.runtime.binding.input_copies import host_array
from partita.tensors.tensor import Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.in_place import InPlacePair, in_place_pairs
from partita_hetero.compile.pipeline import Compilation
from partita_hetero.compile.replicas import assembly_of_seat
from partita_hetero.export import export
from partita_hetero.partition.submodels import Submodel
from partita_hetero.planner.simulation.timeline import Timeline
from partita_hetero.properties import HeteroProperties
from partita_hetero.runtime.failover import Failover
from partita_hetero.runtime.request_runner import HeteroRunner

Array = np.ndarray[Any, Any]

UNDECIDED = {
    "HETERO_SCHEDULE": "PRIORITY",
    "HETERO_PINS": [],
    "HETERO_PLACEMENT_LOCK": "",
    "HETERO_ACCURACY_BUDGET": 0.0,
}
"""Settings under which affinities alone decide, besides priorities."""


class HeteroModel(DeviceModel):
    """Submodels on their devices, joined by a plan.

    Args:
        compilation: Makes assemblies, now and when a device fails.
        assembly: What to run, if it is there already.
        properties: How requests run (defaults to those of the compilation).

    Attributes:
        compilation: Makes assemblies.
        failover: What requests run, and how that changes.
    """

    properties: HeteroProperties

    def __init__(
        self,
        compilation: Compilation,
        assembly: Assembly | None = None,
        properties: HeteroProperties | None = None,
    ) -> None:
        devices = compilation.devices
        super().__init__(compilation.model, properties or devices.properties, devices.own_name)
        self.compilation = compilation
        self.failover = Failover(compilation, assembly, self.properties)

    @property
    def assembly(self) -> Assembly:
        """What requests run now."""
        return self.failover.assembly

    @property
    def predicted(self) -> Timeline | None:
        """The run that the cost model foresaw, if HETERO_SCHEDULE=COST placed the model."""
        choice = self.compilation.choice
        return None if choice is None else choice.predicted

    @property
    def measured(self) -> Timeline | None:
        """When each submodel and Permute of the last request ran, if PERF_COUNT is set."""
        times = self.failover.measured
        return None if times is None else times.timeline()

    @property
    def failures(self) -> dict[str, int]:
        """How often each device has failed while requests ran and lost operations for it."""
        return self.failover.failures

    def for_request(self) -> DeviceModel:
        """The model on the replica that a new request stays on; itself if there is but one."""
        assembly = self.assembly
        if not any(one.replicas for one in (assembly, *assembly.variants)):
            return self
        return HeteroReplica(self, self.failover.seats.choose(assembly.shares))

    def create_runner(self) -> Runner:
        """A runner with runners of its own on every device."""
        return HeteroRunner(self.failover)

    def in_place_outputs(self) -> Mapping[int, int]:
        """Those that a submodel offers and no other one reads, wherever requests may run.

        None with a time limit: a submodel that is given up may go on to write.
        """
        return self.updates(list(self.assembly.every()))

    def allocate(self, port: Port, shape: tuple[int, ...]) -> Tensor:
        """Memory of the device that updates the input."""
        return self.allocate_for(self.assembly, port, shape)

    def updates(self, assemblies: Sequence[Assembly]) -> dict[int, int]:
        """By output the input that all of some assemblies can write it over, on the same device."""
        if self.failover.watchdog is not None:
            return {}
        places = [
            {(pair.output, pair.input, pair.device) for pair in self._pairs(one)}
            for one in assemblies
        ]
        return {made: given for made, given, _ in sorted(set.intersection(*places))}

    def allocate_for(self, assembly: Assembly, port: Port, shape: tuple[int, ...]) -> Tensor:
        """Memory of the device that updates an input in an assembly."""
        for pair in self._pairs(assembly):
            if pair.input == port.index:
                return pair.device_model.allocate(pair.port, shape)
        return super().allocate(port, shape)

    def host_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As the first submodel's device has it."""
        return self.host_array_for(self.assembly, shape, dtype)

    def host_array_for(
        self, assembly: Assembly, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        """As the device of an assembly's first submodel has it, which reads inputs."""
        if not assembly.compiled:
            return super().host_array(shape, dtype)
        return host_array(assembly.compiled[0], shape, dtype)

    def _pairs(self, assembly: Assembly) -> list[InPlacePair]:
        return in_place_pairs(assembly, len(self.inputs))

    def _submodels(self) -> Iterator[tuple[Submodel, DeviceModel]]:
        """The submodels of all replicas."""
        for one in (self.assembly, *self.assembly.replicas):
            yield from zip(one.submodels, one.compiled, strict=True)

    def explain(self) -> Explanation:
        """Where every operation runs and why, what crosses, and what went wrong on the way."""
        return self.failover.explain()

    @property
    def execution_devices(self) -> list[str]:
        """The devices that run something, in order of first use."""
        every = self.assembly.every()
        return list(dict.fromkeys(submodel.device for one in every for submodel in one.submodels))

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """What its devices take at the same time: each then works on other requests than the rest.

        A device that runs several submodels counts once, by the one that takes most; what replicas
        take adds up.
        """
        assembly = self.assembly
        return sum(_requests_at_once(one) for one in (assembly, *assembly.replicas))

    def extra_properties(self) -> dict[str, Any]:
        """``HETERO_NUMBER_OF_SUBMODELS``, and the properties that each device's submodels have.

        Submodels are those that a request runs; ``HETERO_NUMBER_OF_REPLICAS`` says on how many
        sets of devices there is one of each.
        """
        of_device: dict[str, dict[str, Any]] = {}
        for submodel, device_model in self._submodels():
            if submodel.device not in of_device:
                with raised_as(
                    PluginError, f"Device '{submodel.device}' failed to answer get_property"
                ):
                    keys = device_model.get_property("SUPPORTED_PROPERTIES")
                    of_device[submodel.device] = {
                        key: device_model.get_property(key) for key in keys
                    }
        return {
            "HETERO_NUMBER_OF_SUBMODELS": len(self.assembly.submodels),
            "HETERO_NUMBER_OF_REPLICAS": 1 + len(self.assembly.replicas),
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
        return export(self.compilation, self.assembly, self.exported_properties())

    def enable_device(self, device: str) -> None:
        """Forgets a device's failures and gives its operations back to it.

        Raises:
            DeviceNotFoundError: The device is not in the list.
        """
        self.failover.enable_device(device)


class HeteroReplica(DeviceModel):
    """The compiled model as a request has it that stays on one of several replicas.

    Args:
        whole: The model.
        seat: Which replica.
    """

    def __init__(self, whole: HeteroModel, seat: int) -> None:
        super().__init__(whole.model, whole.properties, whole.device)
        self._whole, self._seat = whole, seat

    def create_runner(self) -> Runner:
        """A runner on the replica."""
        return HeteroRunner(self._whole.failover, self._seat)

    def in_place_outputs(self) -> Mapping[int, int]:
        """As those of the whole model, on the devices of this replica."""
        assembly = self._whole.assembly
        every = (assembly, *assembly.variants)
        return self._whole.updates([assembly_of_seat(one, self._seat) for one in every])

    def allocate(self, port: Port, shape: tuple[int, ...]) -> Tensor:
        """Memory of the replica's device that updates the input."""
        return self._whole.allocate_for(
            assembly_of_seat(self._whole.assembly, self._seat), port, shape
        )

    def host_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """As the device of the replica's first submodel has it."""
        replica = assembly_of_seat(self._whole.assembly, self._seat)
        return self._whole.host_array_for(replica, shape, dtype)

    def explain(self) -> Explanation:
        """That of the whole model."""
        return self._whole.explain()


def _requests_at_once(assembly: Assembly) -> int:
    """What the devices of an assembly take at the same time."""
    most: dict[str, int] = {}
    for submodel, device_model in zip(assembly.submodels, assembly.compiled, strict=True):
        count = requests_at_once(device_model)
        most[submodel.device] = max(count, most.get(submodel.device, 1))
    return max(1, sum(most.values()))
