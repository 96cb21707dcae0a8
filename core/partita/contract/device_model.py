"""Device models: a plugin's half of a compiled model."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.explanation import Explanation
from partita.contract.runner import Runner
from partita.errors import (
    DeviceMemoryError,
    PluginError,
    PropertyError,
    raised_as,
    wrong_answer,
)
from partita.printable import is_encodable, shown
from partita.properties.values import check_name
from partita.tensors.allocation import host_zeros
from partita.tensors.host import HOST

if TYPE_CHECKING:
    from partita.contract.call_queue import CallQueue
    from partita.model.model import Model, Port
    from partita.properties import DeviceProperties
    from partita.tensors.layout import MemoryLayout
    from partita.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]

Dims = tuple[int | str | None, ...]

MOST_REQUESTS = 1 << 16
"""A device that wants more requests at the same time is mistaken."""

MOST_SCRATCH = 1 << 44
"""A device that wants more bytes to work in is mistaken."""


class DeviceModel(abc.ABC):
    """A model compiled by a plugin: the author's half of a compiled model.

    Only :meth:`create_runner` is required; the docstrings of the others say what they default to.
    Applications get a :class:`~partita.CompiledModel`, with which Core wraps it.

    Args:
        model: What was compiled; its ports become those of the device model.
        properties: The validated properties it was compiled with.
        device: The device's name, e.g. ``"CPU"`` or ``"OPENCL.0"``.
    """

    def __init__(self, model: Model, properties: DeviceProperties, device: str) -> None:
        self.model = model
        self.properties = properties
        self.device = device
        self.inputs: tuple[Port, ...] = model.inputs
        self.outputs: tuple[Port, ...] = model.outputs

    @abc.abstractmethod
    def create_runner(self) -> Runner:
        """(required) Creates the private state of one request. Called from several threads."""

    def for_request(self) -> DeviceModel:
        """(optional) The replica of the model that a new request uses (defaults to itself).

        For models that are compiled for several devices. The request stays with the result for its
        whole life: its runner and the memory of its state come from there. Requests that share
        state share the result.
        """
        return self

    def create_call_queue(self, requests: int) -> CallQueue | None:
        """(optional) A queue that runs bound calls of many requests without Python (default: none).

        Args:
            requests: How many requests share it; 0 lets the device choose.
        """
        return None

    @property
    def execution_devices(self) -> list[str]:
        """(optional) The devices that compute parts of the model (defaults to this device)."""
        return [self.device]

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """(optional) How many requests keep the device busy (defaults to 1)."""
        return 1

    @property
    def scratch_bytes(self) -> int:
        """(optional) Bytes of temporary host memory that bound calls need (defaults to 0).

        Submodels that run one after another are given the same memory.
        """
        return 0

    def takes_memory(self, memory: str) -> bool:
        """(optional) Whether runners accept input tensors in a memory (defaults to host memory).

        Tensors in other memories are copied to the host first. A runner that accepts tensors of its
        own memory may be given one of its own outputs as an input.
        """
        return memory == HOST

    def in_place_outputs(self) -> Mapping[int, int]:
        """(optional) Outputs that runs can update in place, over an input (defaults to none).

        Maps the index of an output to the index of an input whose port has the same dtype and a
        compatible shape. A runner that is given *one tensor* for both, of the output's shape in
        this run, updates it in place: unchanged elements stay where they are, and nothing outside
        of the tensor is written. It may be given that tensor repeatedly, or two different tensors,
        and must then leave the input unchanged.

        The elements written must depend on the other inputs alone, as those of rows that an
        operator writes to given positions of a cache: a run that failed can then be repeated.

        Requests use it for the variables of a model (:class:`partita.model.variables.Variable`),
        with one tensor for each of them.
        """
        return {}

    def allocate(self, port: Port, shape: tuple[int, ...]) -> Tensor:
        """(optional) A tensor of zeros in the memory that suits a port best (defaults to the host).

        Called for the inputs that :meth:`in_place_outputs` names. Runners must accept the tensor as
        that input and as the output at the same time; :meth:`partita.Tensor.copy_from` and
        :meth:`partita.Tensor.clear` write to it.

        Args:
            port: The input port.
            shape: A shape that the port allows.

        Raises:
            DeviceMemoryError: There is not enough memory.
        """
        try:
            return host_zeros(shape, port.dtype or np.dtype(np.float32))
        except MemoryError as error:
            raise DeviceMemoryError(f"The host has no room for '{port.name}': {error}") from error

    def host_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """(optional) A host array that is fast to copy to and from the device (defaults to any).

        Used for outputs that runners leave in device memory, and for inputs that requests copy.
        Page-locked memory is the usual choice of devices with their own.

        Args:
            shape: Of the array.
            dtype: Of its elements.

        Returns:
            A writable array in C order with arbitrary content, which belongs to the caller and
            stays valid as long as it is referenced.

        Raises:
            MemoryError: By default, where the host has no room.
        """
        return np.empty(shape, dtype)

    def layouts(self) -> Mapping[Port, Sequence[MemoryLayout]]:
        """(optional) Layouts that ports could have at less cost (defaults to none).

        A device that computes with channels last, or in a narrower type than its ports have, lists
        the layouts that it can read or write without conversion, best first. HETERO lets two
        submodels exchange a tensor in a layout that both list.
        """
        return {}

    def with_layouts(self, layouts: Mapping[Port, MemoryLayout]) -> DeviceModel:
        """(optional) The same model with some ports in layouts that :meth:`layouts` lists.

        Its runners read and return tensors whose ``layout`` is the one given here for their port,
        and plain tensors for all other ports; so are the output tensors passed to them. Shapes and
        dtypes of ports do not change.

        Raises:
            NotImplementedError: By default, since no layouts are listed.
        """
        raise NotImplementedError(f"{type(self).__name__} names layouts and takes none.")

    def extra_properties(self) -> dict[str, Any]:
        """(optional) Read-only properties of this compiled model beyond the usual ones."""
        return {}

    def explain(self) -> Explanation:
        """(optional) Where every operation runs and why (defaults to all on the one device)."""
        return Explanation.single_device(self.model, self.device)

    def export_state(self) -> Mapping[str, Array]:
        """(optional) Arrays that are expensive to compute, by name (defaults to none).

        They are stored with the model when it is exported or cached, and passed to
        :meth:`partita.DevicePlugin.restore_model`.
        """
        return {}

    def piece_properties(self) -> dict[str, Any]:
        """(optional) Properties with which a part of this model computes as it does in the whole.

        The part's operations have their devices as affinities (defaults to the model's properties).
        """
        return self.exported_properties()

    def exported_properties(self) -> dict[str, Any]:
        """The properties that are exported with the model: all that were set but CACHE_DIR."""
        return self.properties.model_dump(mode="json", exclude_unset=True, exclude={"CACHE_DIR"})

    def export_model(self) -> bytes | None:
        """(optional) The bytes that an overridden :meth:`DevicePlugin.import_model` reads.

        Defaults to ``None``: Core packs the model, its properties and :meth:`export_state`, with
        the identity of code, device and driver.

        Raises:
            BlobError: The model is too large for one protobuf (2 GiB).
        """
        return None

    def facts(self) -> dict[str, Any]:
        """Read-only properties by name, :meth:`extra_properties` among them."""
        facts = {
            "NETWORK_NAME": self.model.name,
            "EXECUTION_DEVICES": self.execution_devices,
            "OPTIMAL_NUMBER_OF_INFER_REQUESTS": self.optimal_number_of_infer_requests,
            **self._checked_extra_properties(),
        }
        names = [*facts, "SUPPORTED_PROPERTIES", *type(self.properties).model_fields]
        facts["SUPPORTED_PROPERTIES"] = dict.fromkeys(names, "RO")
        return facts

    def _checked_extra_properties(self) -> Mapping[str, Any]:
        found = self.extra_properties()
        if isinstance(found, Mapping) and all(isinstance(name, str) for name in found):
            return found
        expected = "a dict from names to values"
        raise wrong_answer(self.device, "extra_properties", found, expected)

    def get_property(self, name: str) -> Any:
        """A setting that the model was compiled with, or a fact about it.

        Raises:
            PropertyError: Unknown name; the message lists the known ones.
        """
        check_name(name)
        facts = self.facts()
        if name in facts:
            return facts[name]
        if name in type(self.properties).model_fields:
            return copy.deepcopy(getattr(self.properties, name))  # a list is the caller's
        known = ", ".join([*facts, *type(self.properties).model_fields])
        raise PropertyError(
            f"Compiled model '{self.model.name}' has no property {shown(name)}; it has {known}."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model.name!r} on {self.device}>"


def replica_for_request(model: DeviceModel) -> DeviceModel:
    """What a compiled model's ``for_request`` gives.

    Raises:
        PluginError: It failed, or gave something else than a device model.
        DeviceMemoryError: There is no room for one more.
    """
    with raised_as(PluginError, f"Device '{model.device}' failed to answer for_request"):
        replica = model.for_request()
    if not isinstance(replica, DeviceModel):
        raise wrong_answer(model.device, "for_request", replica, "a DeviceModel")
    return replica


def new_runner(model: DeviceModel) -> Runner:
    """A runner of a compiled model, for one request.

    Raises:
        PluginError: The model gave something else.
    """
    runner = model.create_runner()
    if not isinstance(runner, Runner):
        raise wrong_answer(model.device, "create_runner", runner, "a Runner")
    return runner


def explanation_of(model: DeviceModel) -> Explanation:
    """What a compiled model's ``explain`` gives.

    Raises:
        PluginError: It failed, or gave something else.
    """
    with raised_as(PluginError, f"Device '{model.device}' failed to answer explain"):
        found = model.explain()
    if not isinstance(found, Explanation):
        raise wrong_answer(model.device, "explain", found, "an Explanation")
    return found


def devices_of(model: DeviceModel) -> list[str]:
    """What a compiled model's ``execution_devices`` gives.

    Raises:
        PluginError: It failed, or gave something else than a list of names.
    """
    with raised_as(PluginError, f"Device '{model.device}' failed to answer execution_devices"):
        found = model.execution_devices
    if isinstance(found, list) and all(isinstance(name, str) for name in found):
        return found
    raise wrong_answer(model.device, "execution_devices", found, "a list of names")


def exported_state(model: DeviceModel) -> Mapping[str, Array]:
    """What a compiled model's ``export_state`` gives.

    Raises:
        PluginError: It failed, or gave something else than arrays of numbers by name.
    """
    what = f"Device '{model.device}' failed to export its state"
    with raised_as(PluginError, what):
        state = model.export_state()
    if not isinstance(state, Mapping):
        found = type(state).__name__
        raise PluginError(f"{what}: export_state gave {found}; expected arrays by name.")
    for name, array in state.items():
        if not (isinstance(name, str) and is_encodable(name)):
            raise PluginError(
                f"{what}: export_state named an array {shown(name)}; expected a text."
            )
        if np.asarray(array).dtype.hasobject:
            found = type(array).__name__
            raise PluginError(f"{what}: {name!r} is {found}; expected an array of numbers.")
    return state


def offered_in_place(model: DeviceModel) -> dict[int, int]:
    """What a compiled model's ``in_place_outputs`` gives: output index to input index.

    Raises:
        PluginError: It failed, or names ports that are not there, or not alike.
    """
    with raised_as(PluginError, f"Device '{model.device}' failed to answer in_place_outputs"):
        pairs = dict(model.in_place_outputs())
    for made, given in pairs.items():
        if made not in range(len(model.outputs)) or given not in range(len(model.inputs)):
            said = "which are not indices of its ports"
        else:
            source, target = model.inputs[given], model.outputs[made]
            if source.dtype == target.dtype and _may_be_alike(source.shape, target.shape):
                continue
            said = f"which are {target.describe()} and {source.describe()}"
        raise PluginError(
            f"Device '{model.device}' would write output {made} over input {given} of model "
            f"'{model.model.name}', {said}. Tell the author of its plugin."
        )
    return pairs


def _may_be_alike(one: Dims | None, other: Dims | None) -> bool:
    """Whether no dimension tells two shapes apart."""
    if one is None or other is None:
        return True
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs
    )


def scratch_bytes_of(model: DeviceModel) -> int:
    """What a compiled model's ``scratch_bytes`` gives.

    Raises:
        PluginError: It failed, or gave something else than a number of bytes.
    """
    with raised_as(PluginError, f"Device '{model.device}' failed to answer scratch_bytes"):
        found = model.scratch_bytes
    if isinstance(found, Integral) and 0 <= found <= MOST_SCRATCH:
        return int(found)
    expected = f"a whole number from 0 to {MOST_SCRATCH}"
    raise wrong_answer(model.device, "scratch_bytes", found, expected)


def requests_at_once(model: DeviceModel) -> int:
    """What a compiled model's ``optimal_number_of_infer_requests`` gives.

    Raises:
        PluginError: It failed, or gave something else than a number of requests.
    """
    member = "optimal_number_of_infer_requests"
    with raised_as(PluginError, f"Device '{model.device}' failed to answer {member}"):
        found = model.optimal_number_of_infer_requests
        if isinstance(found, Integral) and 1 <= found <= MOST_REQUESTS:
            return int(found)
    expected = f"a whole number from 1 to {MOST_REQUESTS}"
    raise wrong_answer(model.device, member, found, expected)
