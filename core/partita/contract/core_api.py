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
    """The interface of Core for plugins that are made of other devices, as HETERO is.

    A device is named as in ``"OPENCL.1"``, or by an alias; ``DeviceNotFoundError`` says that there
    is none of the name. ``config`` holds properties of one call; ``PropertyError`` says which of
    them the device does not have or cannot take.
    """

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
        """Which operations of a model one device supports, and why not the others.

        Args:
            model: The model, which is not changed.
            device_name: One device, e.g. ``"CPU"`` or ``"OPENCL.1"``.
            config: Properties of the device by name; those that are set for it hold beside them.

        Returns:
            A verdict on each operation.

        Raises:
            PluginError: The plugin failed, or answered with something else than verdicts.
        """

    def compile_model(
        self, model: Model, device_name: str, config: Mapping[str, Any] | None = None
    ) -> DeviceModel:
        """Compiles a model for one device; it is not changed, and must not change later.

        Args:
            model: The model.
            device_name: One device, e.g. ``"CPU"`` or ``"OPENCL.1"``.
            config: Properties of the device by name; those that are set for it hold beside them.

        Raises:
            CompileError: The device failed.
            PluginError: It answered with something else than a complete ``DeviceModel``.
        """

    def restore_model(
        self,
        model: Model,
        device_name: str,
        config: Mapping[str, Any] | None,
        state: Mapping[str, Any],
    ) -> DeviceModel:
        """Compiles a model for one device, using the state of an earlier compile.

        Args:
            model: The model that was compiled then; the device may change it.
            device_name: The device.
            config: Properties of this compile.
            state: What ``DeviceModel.export_state`` gave, by the same version of the plugin.

        Raises:
            CompileError: The device failed.
            PluginError: It answered with something else than a complete ``DeviceModel``.
        """

    def identity(self, device_name: str, config: Mapping[str, Any] | None = None) -> str:
        """A cache key for everything but the model that a device's compiled models depend on."""

    def device_info(self, device: str) -> DeviceInfo:
        """Describes one device.

        Raises:
            DeviceError: Its driver fails to describe it.
        """

    def fingerprint(
        self, device: str, config: Mapping[str, Any] | None = None
    ) -> Mapping[str, str]:
        """What a device's speed depends on: where it is equal, measured times can be shared."""

    def can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads tensors in a memory in place.

        Args:
            device: The device.
            memory: The name of the memory, as :attr:`Tensor.memory` has it.
        """

    def transfer_to(self, device: str, tensor: Tensor) -> Tensor:
        """Copies a tensor to a device's memory.

        Returns:
            A tensor of the same shape, element type and elements, which the caller owns.
        """

    def host_memory(self, device: str, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Host memory that a device copies from and to fast, as a page-locked block is.

        Returns:
            A ``uint8`` array of shape ``[nbytes]``; ``None`` if all host memory is as fast.
        """

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name."""
