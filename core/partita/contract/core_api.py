"""What a plugin that is made of other devices sees of the core."""

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
    """What a plugin that is made of other devices (HETERO) sees of the core."""

    @property
    def available_devices(self) -> list[str]:
        """Names of all devices that can be used, with ids where there are several."""

    @property
    def reference_device(self) -> str:
        """The device that others are compared with where none is named for that."""

    def resolve_device(self, device: str) -> str:
        """The canonical name of a device: aliases followed, existence checked."""

    def query_model(
        self, model: Model, device_name: str, config: Mapping[str, Any] | None = None
    ) -> QueryResult:
        """Asks one device which operations it takes."""

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
        """Compiles a model for one device by the state of an earlier compile."""

    def identity(self, device_name: str, config: Mapping[str, Any] | None = None) -> str:
        """What compiled models of one device depend on besides the model."""

    def device_info(self, device: str) -> DeviceInfo:
        """Describes one device."""

    def fingerprint(
        self, device: str, config: Mapping[str, Any] | None = None
    ) -> Mapping[str, str]:
        """What decides how fast a device is: equal answers mean that times can be shared."""

    def can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads tensors of a memory in place."""

    def transfer_to(self, device: str, tensor: Tensor) -> Tensor:
        """Brings a tensor into a device's memory."""

    def host_memory(self, device: str, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Host memory that a device copies from and to quickly; ``None`` if any will do."""

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name."""
