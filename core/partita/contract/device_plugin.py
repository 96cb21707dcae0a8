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
    """What a device is, for ``partita devices`` and for those who choose devices.

    Attributes:
        device: Name with id, e.g. ``"OPENCL.0"``.
        full_name: What a person calls it, e.g. ``"NVIDIA H200"``.
        kind: ``"cpu"``, ``"gpu"``, ``"accelerator"``, ``"reference"`` (right rather than fast) or
            ``"virtual"`` (made of other devices).
        memory: Id of the memory its tensors lie in; ``"host"`` if they are ordinary arrays.
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
    """How large the requests of a decoder will be; ``None`` for what is not known.

    Attributes:
        context: Tokens that its cache must hold.
        prompt: Tokens of a prompt.
        new: Tokens generated after it.
        chunk: Tokens of a prompt that one run reads at most.
    """

    context: int | None = None
    prompt: int | None = None
    new: int | None = None
    chunk: int | None = None


class DevicePlugin(abc.ABC):
    """One kind of device: says what it takes and compiles it.

    Required are the name and the three abstract methods; each other method has the default that
    its docstring tells. Methods are called from several threads at once. An instance is made once
    per :class:`~partita.core.Core` and device name, when plugins are discovered: keep ``__init__``
    cheap and import drivers only in the methods.
    """

    device_name: ClassVar[str]
    """The name in device strings: upper case letters, digits and ``_``, e.g. ``"CPU"``."""

    api_version: ClassVar[int] = API_VERSION

    properties_type: ClassVar[type[DeviceProperties]]
    """The pydantic model of this device's properties.

    Pydantic takes longer to import than all of ``import partita``. What
    :func:`~partita.properties.deferred.deferred_properties` returns stands for a class that is
    imported when
    a property is first looked at.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    """(optional) Other names for devices of one kind: ``{"GPU": "gpu"}`` lets ``GPU.n`` stand for
    the n-th device whose ``DeviceInfo.kind`` is ``"gpu"`` (defaults to none)."""

    is_default: ClassVar[bool] = False
    """(optional) Whether applications that name no device get this one (defaults to no)."""

    splits_models: ClassVar[bool] = False
    """(optional) Whether it takes a list of devices and gives each a part of the model, so that
    what one of them does not take, another one can (defaults to no)."""

    leaves_models_alone: ClassVar[bool] = False
    """(optional) Whether compiled models never change the model that they are made of, and can be
    made of one that others use too (defaults to no: where a plugin of plugins compiles, each gets a
    copy, which takes as long as a fifth of a compile)."""

    is_reference: ClassVar[bool] = False
    """(optional) Whether other devices are compared with this one where no device is named for that
    (defaults to no)."""

    @abc.abstractmethod
    def device_info(self, device_id: str) -> DeviceInfo:
        """(required) Describes one device. ``device_id`` is ``""`` for the default one."""

    @abc.abstractmethod
    def query_model(self, model: Model, properties: DeviceProperties) -> QueryResult:
        """(required) Says which operations of ``model`` this device takes, and why not the others.

        The answer must be truthful: what is claimed must compile, alone and together. Affinities
        in the model are ignored. Every operation is either supported or has a reason.
        """

    @abc.abstractmethod
    def compile_model(self, model: Model, properties: DeviceProperties) -> DeviceModel:
        """(required) Compiles a model all of whose operations this device takes.

        Raises:
            CompileError: The model cannot be compiled; HETERO then tries the next device.
        """

    def device_ids(self) -> Sequence[str]:
        """(optional) Ids of the devices there are, in stable order (defaults to one without id).

        Raises:
            DeviceUnavailableError: No device can be used; the message says why and what to do.
        """
        return ("",)

    def unavailable_devices(self) -> Mapping[str, str]:
        """(optional) What cannot be used beside :meth:`device_ids`, and why (defaults to nothing).

        By name, as of a driver, with the reason and what to do. Asked after :meth:`device_ids`.
        """
        return {}

    def import_model(self, blob: bytes | memoryview, properties: DeviceProperties) -> DeviceModel:
        """(optional) Restores what ``DeviceModel.export_model`` wrote, if that is overridden.

        By default Core reads the blob and calls :meth:`restore_model`. ``blob`` may be a file of
        ``CACHE_DIR``, mapped into memory.
        """
        from partita.errors import CompileError

        raise CompileError(f"Device '{self.device_name}' cannot import compiled models.")

    def restore_model(
        self, model: Model, properties: DeviceProperties, state: Mapping[str, Any]
    ) -> DeviceModel:
        """(optional) Compiles a model faster by what it knows already (defaults to compiling).

        ``state`` is what :meth:`DeviceModel.export_state` returned when a plugin of the same
        :meth:`identity` had compiled the same model; read-only, perhaps a mapped file. Empty if
        anything of it is another one.
        """
        return self.compile_model(model, properties)

    def for_decoder(
        self, request: DecoderRequest, properties: DeviceProperties
    ) -> Mapping[str, Any]:
        """(optional) Properties to compile a decoder with for such requests (defaults to none).

        Those that ``properties`` have set are the application's, and stay as they are.
        """
        return {}

    def identity(self, properties: DeviceProperties) -> str:
        """(optional) What compiled models depend on besides the model, as a key for caches.

        Defaults to the plugin's code, the device's name and driver, and the properties.
        """
        info = self.device_info(properties.DEVICE_ID)
        settings = properties.model_dump(mode="json", exclude={"CACHE_DIR"})
        package = type(self).__module__.partition(".")[0]
        return identity_of(package, [self.device_name, info.full_name, info.driver, settings])

    def can_share(self, memory: str, device_id: str = "") -> bool:
        """(optional) Whether runners read tensors of this memory in place (defaults to host)."""
        return memory == HOST

    def transfer_to(self, tensor: Tensor, device_id: str = "") -> Tensor:
        """(optional) Brings a tensor into this device's memory (defaults to the host).

        Called for tensors whose memory the device cannot share. The result is a tensor that the
        device's runners take; it stays valid until the caller drops it.
        """
        from partita.tensors.tensor import HostTensor

        return HostTensor(tensor.numpy())

    def host_memory(self, nbytes: int, device_id: str = "") -> np.ndarray[Any, Any] | None:
        """(optional) Host memory that is quick to copy from and to (defaults to ``None``: any is).

        HETERO allocates a request's intermediate host tensors in it. The result is an array of
        ``nbytes`` bytes (``uint8``) that stays valid as long as it is referred to.
        """
        return None
