"""The interface of Core for plugins that are made of other devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from partita.contract.device_model import DeviceModel
    from partita.contract.device_plugin import DeviceInfo
    from partita.contract.query import QueryResult
    from partita.model.model import Model
    from partita.tensors.tensor import Tensor


class CoreAPI(Protocol):
    """The interface of Core for plugins that are made of other devices, as HETERO is."""

    @property
    def available_devices(self) -> list[str]:
        """Names of all devices that can be used, with ids where there are several."""

    @property
    def reference_device(self) -> str:
        """The device that others are compared with by default."""

    def resolve_device(self, device: str) -> str:
        """The canonical name of a device: aliases followed, existence checked."""

    def query_model(
        self, model: Model, device_name: str, config: Mapping[str, Any] | None = None
    ) -> QueryResult:
        """Which operations of a model one device supports, and why not the others."""

    def compile_model(
        self, model: Model, device_name: str, config: Mapping[str, Any] | None = None
    ) -> DeviceModel:
        """Compiles a model for one device."""

    def restore_model(
        self,
        model: Model,
        device_name: str,
        config: Mapping[str, Any] | None,
        state: Mapping[str, Any],
    ) -> DeviceModel:
        """Compiles a model for one device, using the state of an earlier compile."""

    def identity(self, device_name: str, config: Mapping[str, Any] | None = None) -> str:
        """A cache key for everything but the model that a device's compiled models depend on."""

    def device_info(self, device: str) -> DeviceInfo:
        """Describes one device."""

    def fingerprint(
        self, device: str, config: Mapping[str, Any] | None = None
    ) -> Mapping[str, str]:
        """What a device's speed depends on: where it is equal, measured times can be shared."""

    def can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads tensors in a memory in place."""

    def transfer_to(self, device: str, tensor: Tensor) -> Tensor:
        """Copies a tensor to a device's memory."""

    def host_memory(self, device: str, nbytes: int) -> np.ndarray[Any, Any] | None:
        """``nbytes`` of host memory that are fast for a device to copy; ``None`` if all are."""

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name."""
