"""Entry point of the devices OPENCL[.n]; pyopencl is imported when a device is listed or used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.contract.query import QueryResult
from partita.properties.deferred import deferred_properties
from partita.tensors.host import HOST

if TYPE_CHECKING:
    import numpy as np

    from partita.properties import DeviceProperties
    from partita.tensors.tensor import Tensor
    from partita_opencl.properties import OpenClProperties


class OpenClPlugin(DevicePlugin):
    """Every device of every OpenCL platform of this machine, numbered in the platforms' order."""

    device_name = "OPENCL"
    leaves_models_alone = True
    properties_type: ClassVar[type[DeviceProperties]] = deferred_properties(
        "partita_opencl.properties:OpenClProperties"
    )
    aliases = {"GPU": "gpu"}  # noqa: RUF012  # declared as a ClassVar in the base class

    def device_ids(self) -> Sequence[str]:
        """Ids ``"0"``, ``"1"``, ...; loads pyopencl and asks the drivers once per process.

        Raises:
            DeviceUnavailableError: pyopencl is missing, or no driver offers a device.
        """
        from partita_opencl.device.device import all_devices

        return [device.id for device in all_devices()]

    def unavailable_devices(self) -> Mapping[str, str]:
        """Drivers that did not pass their trial, and platforms and devices that fail."""
        from partita_opencl.device.device import unavailable

        return dict(unavailable())  # the caller may change it

    def device_info(self, device_id: str) -> DeviceInfo:
        """Name, type, memory and driver of one device."""
        from partita_opencl.device.device import find_device

        return find_device(device_id).info(self.device_name)

    def query_model(self, model: partita.Model, properties: DeviceProperties) -> QueryResult:
        """Takes what has a kernel that the driver computes; all else gets the reason why not.

        Kernels that were never tried on this driver are tried now, by other processes. Operations
        that compiling was seen to fail at are refused; others may yet fail when they are compiled.
        """
        from partita_opencl.device.device import find_device
        from partita_opencl.query import verdicts
        from partita_opencl.trials.device_trials import DeviceTrials

        known = cast("OpenClProperties", properties)
        answers = verdicts(model, DeviceTrials(find_device(known.DEVICE_ID), known))
        return QueryResult.of(self._name(properties), answers)

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Lowers and fuses the model; static shapes are planned and built at once."""
        from partita.system.threads import joint_work
        from partita_opencl.device.device import find_device

        known = cast("OpenClProperties", properties)
        with joint_work.workers(1) as pool:
            # The device opens beside imports and lowering; what fails there fails again in use.
            pool.submit(find_device(known.DEVICE_ID).open)
            from partita_opencl.runtime.device_model import OpenClModel

            return OpenClModel(model, known, self._name(properties))

    def can_share(self, memory: str, device_id: str = "") -> bool:
        """Tensors of the same device, and host tensors where the device is the host's processor."""
        from partita_opencl.device.device import find_device

        device = find_device(device_id)
        return memory == device.memory or (memory == HOST and device.shares_host)

    def transfer_to(self, tensor: Tensor, device_id: str = "") -> Tensor:
        """Uploads a tensor; one that lies on the device already is returned as it is."""
        from partita_opencl.device.device import find_device
        from partita_opencl.device.device_tensor import upload

        return upload(tensor, find_device(device_id), self.device_name)

    def host_memory(self, nbytes: int, device_id: str = "") -> np.ndarray[Any, Any] | None:
        """Page-locked memory, for devices that do not work in host memory themselves."""
        from partita_opencl.device.device import find_device
        from partita_opencl.device.host_buffers import page_locked

        device = find_device(device_id)
        return None if device.shares_host else page_locked(device, nbytes)

    def _name(self, properties: DeviceProperties) -> str:
        return f"{self.device_name}.{properties.DEVICE_ID or '0'}"


@partita.hookimpl
def device_plugins() -> Iterable[DevicePlugin]:
    """Registers OPENCL."""
    return [OpenClPlugin()]


@partita.hookimpl
def command_modules() -> Iterable[str]:
    """Registers ``partita tune``."""
    return ["partita_opencl.tuning.command"]
