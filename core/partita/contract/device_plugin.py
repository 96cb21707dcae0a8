"""What a plugin author writes: a subclass of :class:`DevicePlugin`, and nothing else."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from partita.contract.identity import identity_of
from partita.tensors.host import HOST

if TYPE_CHECKING:
    import numpy as np

    from partita.contract.device_model import DeviceModel
    from partita.contract.query import QueryResult
    from partita.model.model import Model
    from partita.properties import DeviceProperties
    from partita.tensors.tensor import Tensor

API_VERSION = 1
"""Version of the plugin interface; a plugin built for another one is refused with both numbers."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A description of a device, for ``partita devices`` and for code that chooses devices.

    Attributes:
        device: Name with id, e.g. ``"OPENCL.0"``.
        full_name: The product's name, e.g. ``"NVIDIA H200"``.
        kind: ``"cpu"``, ``"gpu"``, ``"accelerator"``, ``"reference"`` (exact rather than fast) or
            ``"virtual"`` (made of other devices).
        memory: Id of the memory that holds its tensors; ``"host"`` if they are ordinary arrays.
        memory_bytes: Size of that memory, or ``None`` where it has no limit of its own.
        driver: Driver or library with version.
        details: More facts to show, in order.
    """

    device: str
    full_name: str
    kind: str = "accelerator"
    memory: str = HOST
    memory_bytes: int | None = None
    driver: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DecoderRequest:
    """The sizes of a decoder's requests in tokens; ``None`` for a size that is not known.

    Attributes:
        context: Capacity of the cache.
        prompt: Length of a prompt.
        new: How many are generated after it.
        chunk: How many of a prompt one run reads at most.
    """

    context: int | None = None
    prompt: int | None = None
    new: int | None = None
    chunk: int | None = None


class DevicePlugin(abc.ABC):
    """One kind of device: says which operations it supports, and compiles models of them.

    Only the name and the three abstract methods are required; the docstrings of the others say what
    they default to. Methods are called from several threads at once. One instance is created per
    :class:`~partita.core.Core` and device name, when plugins are discovered: keep ``__init__``
    cheap, and import drivers only in the methods.
    """

    device_name: ClassVar[str]
    """The name in device strings: upper case letters, digits and ``_``, e.g. ``"CPU"``."""

    api_version: ClassVar[int] = API_VERSION

    properties_type: ClassVar[type[DeviceProperties]]
    """The pydantic model of this device's properties.

    Importing pydantic takes longer than ``import partita``: with
    :func:`~partita.properties.deferred.deferred_properties` the class is imported only when a
    property is first used.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    """(optional) Other names for devices of one kind: ``{"GPU": "gpu"}`` lets ``GPU.n`` stand for
    the n-th device whose ``DeviceInfo.kind`` is ``"gpu"`` (defaults to none)."""

    is_default: ClassVar[bool] = False
    """(optional) Whether it is the device of applications that name none (defaults to no)."""

    splits_models: ClassVar[bool] = False
    """(optional) Whether it splits models over a list of devices, so that an operation which one of
    them does not support runs on another (defaults to no)."""

    leaves_models_alone: ClassVar[bool] = False
    """(optional) Whether neither compiling nor compiled models modify the model that is passed, and
    others may use it too (defaults to no: a device made of others then passes a copy to each of
    them, which takes as long as a fifth of a compile)."""

    is_reference: ClassVar[bool] = False
    """(optional) Whether other devices are compared with this one by default (defaults to no)."""

    @abc.abstractmethod
    def device_info(self, device_id: str) -> DeviceInfo:
        """(required) Describes one device. ``device_id`` is ``""`` for the default one.

        Raises:
            DeviceError: The driver fails to describe it.
        """

    @abc.abstractmethod
    def query_model(self, model: Model, properties: DeviceProperties) -> QueryResult:
        """(required) Says which operations of ``model`` are supported, and why the others are not.

        Operations that are reported as supported must compile, alone and together. Affinities in
        the model are ignored. Every operation is either supported or has a reason.
        """

    @abc.abstractmethod
    def compile_model(self, model: Model, properties: DeviceProperties) -> DeviceModel:
        """(required) Compiles a model all of whose operations this device supports.

        Raises:
            CompileError: The model cannot be compiled; HETERO then tries the next device.
        """

    def device_ids(self) -> Sequence[str]:
        """(optional) Ids of the devices present, in stable order (defaults to one without an id).

        Raises:
            DeviceUnavailableError: No device can be used; the message says why and what to do.
        """
        return ("",)

    def unavailable_devices(self) -> Mapping[str, str]:
        """(optional) Devices or drivers that were found but cannot be used (defaults to none).

        Maps a name to the reason and what to do. Called after :meth:`device_ids`.
        """
        return {}

    def import_model(self, blob: bytes | memoryview, properties: DeviceProperties) -> DeviceModel:
        """(optional) Restores a model from the bytes of an overridden ``DeviceModel.export_model``.

        By default Core reads the blob and calls :meth:`restore_model`. ``blob`` may be a file of
        ``CACHE_DIR``, mapped into memory.

        Raises:
            CompileError: The blob cannot be restored; by default none can.
        """
        from partita.errors import CompileError

        raise CompileError(f"Device '{self.device_name}' cannot import compiled models.")

    def restore_model(
        self, model: Model, properties: DeviceProperties, state: Mapping[str, Any]
    ) -> DeviceModel:
        """(optional) Compiles a model using an earlier compile's state (defaults to compiling).

        Args:
            model: The model; as :meth:`compile_model` gets it.
            properties: Likewise.
            state: What :meth:`DeviceModel.export_state` returned when a plugin with the same
                :meth:`identity` had compiled the same model. Its arrays are read-only, and may be
                parts of a mapped file. It is empty if the model or the identity differ.
        """
        return self.compile_model(model, properties)

    def for_decoder(
        self, request: DecoderRequest, properties: DeviceProperties
    ) -> Mapping[str, Any]:
        """(optional) Properties with which to compile a decoder for such requests (default: none).

        Properties that are set in ``properties`` were set by the application and take precedence.
        """
        return {}

    def identity(self, properties: DeviceProperties) -> str:
        """(optional) A cache key for everything but the model that a compiled model depends on.

        Defaults to the plugin's code, the device's name and driver, and the properties.
        """
        info = self.device_info(properties.DEVICE_ID)
        settings = properties.model_dump(mode="json", exclude={"CACHE_DIR"})
        package = type(self).__module__.partition(".")[0]
        return identity_of(package, [self.device_name, info.full_name, info.driver, settings])

    def can_share(self, memory: str, device_id: str = "") -> bool:
        """(optional) Whether runners read tensors in a memory in place (defaults to the host's).

        Args:
            memory: The memory's id, as ``DeviceInfo.memory`` and ``Tensor.memory`` have it.
            device_id: Which of the plugin's devices would read them.
        """
        return memory == HOST

    def transfer_to(self, tensor: Tensor, device_id: str = "") -> Tensor:
        """(optional) Copies a tensor to this device's memory (defaults to host memory).

        Called for tensors in memory that the device cannot share. The device's runners must accept
        the result, which has the tensor's shape, element type and elements, and stays valid until
        the caller drops it.
        """
        from partita.tensors.tensor import HostTensor

        return HostTensor(tensor.numpy())

    def host_memory(self, nbytes: int, device_id: str = "") -> np.ndarray[Any, Any] | None:
        """(optional) Host memory that is fast to copy from and to (defaults to ``None``: any is).

        HETERO allocates a request's intermediate host tensors in it. The result is a ``uint8``
        array of ``nbytes`` elements that stays valid as long as it is referenced.
        """
        return None
