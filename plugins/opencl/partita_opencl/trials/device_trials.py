"""What all trials together say of a device, as a query of a graph asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partita.lowering import Graph
from partita_opencl.device.device import Device
from partita_opencl.properties import OpenClProperties
from partita_opencl.trials.failed_operations import known_failures
from partita_opencl.trials.kernel_trial import Fitness, fitness, mode_of


@dataclass(frozen=True)
class DeviceTrials:
    """The trials of a device under some properties.

    Attributes:
        device: The device.
        properties: They choose precision and tiling.
    """

    device: Device
    properties: OpenClProperties

    def fitness(self, graph: Graph, families: Iterable[str]) -> Mapping[str, Fitness]:
        """What the device can do with families of kernels; new ones are tried now."""
        return fitness(self.device, mode_of(self.device, self.properties, graph), families)

    def failures(self, graph: Graph) -> Mapping[str, str]:
        """Operations that compiling was seen to fail at, with the reason."""
        return known_failures(self.device, mode_of(self.device, self.properties, graph), graph)
