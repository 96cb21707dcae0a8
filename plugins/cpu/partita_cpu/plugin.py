"""Entry point of device CPU; numba and the kernels are imported when a model is compiled."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.properties.deferred import deferred_properties

if TYPE_CHECKING:
    from partita.properties import DeviceProperties


class CpuPlugin(DevicePlugin):
    """The processor, by numba kernels and OpenBLAS."""

    device_name = "CPU"
    leaves_models_alone = True
    properties_type: ClassVar[type[DeviceProperties]] = deferred_properties(
        "partita_cpu.properties:CpuProperties"
    )

    def device_info(self, device_id: str) -> DeviceInfo:
        """Names the processor, and what kernels are cut for on it.

        Raises:
            PropertyError: PARTITA_CPU_ISA names no level, or PARTITA_CPU_CACHES no sizes.
        """
        from partita.system.processor_identity import processor_name
        from partita_cpu.machine_model import this_machine

        machine = this_machine()
        level = machine.level.name
        return DeviceInfo(
            self.device_name,
            processor_name(),
            kind="cpu",
            driver=f"{level} kernels, numba {_version('numba')}, numpy {_version('numpy')}",
            details={
                "processors": str(machine.cores),
                "level": level,
                "caches": machine.describe_caches(),
            },
        )

    def query_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.QueryResult:
        """Takes what the kernel table has."""
        from partita_cpu.query import query

        return query(model, self.device_name)

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Lowers, folds, fuses, and makes the program if all shapes are known."""
        from partita_cpu.jit.compile_pool import start_workers

        start_workers()  # before the kernels are imported
        from partita_cpu.runtime.device_model import CpuModel

        return CpuModel(model, properties, self.device_name)

    def restore_model(
        self, model: partita.Model, properties: DeviceProperties, state: Mapping[str, Any]
    ) -> partita.DeviceModel:
        """Compiles with the weights packed already."""
        from partita_cpu.runtime.device_model import CpuModel

        return CpuModel(model, properties, self.device_name, state)


@functools.cache  # the packages' own files are read for it
def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


@partita.hookimpl
def device_plugins() -> Iterable[DevicePlugin]:
    """Registers CPU."""
    return [CpuPlugin()]
