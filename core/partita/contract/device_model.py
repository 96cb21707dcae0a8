"""Device models: what a plugin makes of a model."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.explanation import Explanation
from partita.contract.runner import Runner
from partita.errors import DeviceMemoryError, PluginError, PropertyError, raised_as
from partita.printable import shown
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


class DeviceModel(abc.ABC):
    """What a plugin makes of a model: the author's half of a compiled model.

    Required is :meth:`create_runner`; each other method has the default that its docstring tells.
    Applications get a :class:`~partita.CompiledModel`, which Core puts around it.

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
        """(required) Makes the private state of one request. Called from several threads."""

    def for_request(self) -> DeviceModel:
        """(optional) The model as a new request has it for all its life (defaults to itself).

        For models that are in several places, of which a request stays at one: its runner, and
        memory for what it keeps from run to run, are asked of the result. Requests that share state
        share the result.
        """
        return self

    def create_call_queue(self, requests: int) -> CallQueue | None:
        """(optional) What makes bound calls of many requests beside Python (defaults to none).

        Args:
            requests: How many requests share it; 0 for as many as it takes.
        """
        return None

    @property
    def execution_devices(self) -> list[str]:
        """(optional) The devices that take part (defaults to the one)."""
        return [self.device]

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """(optional) How many requests keep the device busy (defaults to 1)."""
        return 1

    @property
    def scratch_bytes(self) -> int:
        """(optional) Host memory that bound calls can borrow while they run (defaults to none).

        Submodels that run one after another then work in the same memory.
        """
        return 0

    def takes_memory(self, memory: str) -> bool:
        """(optional) Whether requests take input tensors of a memory as they are.

        Tensors of other memories are brought to the host first (defaults to the host alone). A
        runner that takes tensors of its own memory must bear that one of its own outputs comes in.
        """
        return memory == HOST

    def in_place_outputs(self) -> Mapping[int, int]:
        """(optional) Outputs that runs can write over an input (defaults to none).

        By the index of the output that of the input, whose port has the same dtype, and a shape
        that no dimension tells from the output's. A runner that is given *one tensor* for both, of
        the shape that the output has in this run, updates it: it moves no element that stays as it
        is, and writes none outside of the tensor. It may be given that tensor again and again, or
        two tensors, of which it then leaves the input as it is.

        What is written follows from the other inputs alone, as the rows that an operator puts at
        given places of a cache do: a run that fails on the way can be made once more.

        Requests ask for it where the model keeps variables
        (:class:`partita.model.variables.Variable`), and have one tensor for each of them then.
        """
        return {}

    def allocate(self, port: Port, shape: tuple[int, ...]) -> Tensor:
        """(optional) A tensor of zeros in memory in which a port costs least (defaults to host).

        Asked for the inputs that :meth:`in_place_outputs` names. Runners take such a tensor as that
        input and, at the same time, as the output; :meth:`partita.Tensor.copy_from` and
        :meth:`partita.Tensor.clear` write to it.

        Args:
            port: The input.
            shape: One that the port allows.

        Raises:
            DeviceMemoryError: There is no room.
        """
        try:
            return host_zeros(shape, port.dtype or np.dtype(np.float32))
        except MemoryError as error:
            raise DeviceMemoryError(f"The host has no room for '{port.name}': {error}") from error

    def host_array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """(optional) A host array that is quick to copy to and from the device (defaults to any).

        Requests ask for one for each output that runners leave in another memory, and for inputs
        that they copy. Its elements mean nothing.
        """
        return np.empty(shape, dtype)

    def layouts(self) -> Mapping[Port, Sequence[MemoryLayout]]:
        """(optional) Other layouts that ports could have at less cost (defaults to none).

        A device that computes with channels last, or in a narrower type than its ports have, names
        here what it would take and give without converting, best first. Asked by HETERO, which lets
        two submodels exchange a tensor in a layout that both name.
        """
        return {}

    def with_layouts(self, layouts: Mapping[Port, MemoryLayout]) -> DeviceModel:
        """(optional) The same model with ports in layouts out of those that :meth:`layouts` names.

        Its runners take and return tensors whose ``layout`` is the one given here for their port
        (outputs that they are handed have it as well), and plain ones for all other ports. Shapes
        and dtypes of ports stay as they are.
        """
        raise NotImplementedError(f"{type(self).__name__} names layouts and takes none.")

    def extra_properties(self) -> dict[str, Any]:
        """(optional) Read-only properties of this compiled model beyond the usual ones."""
        return {}

    def explain(self) -> Explanation:
        """(optional) Where every operation runs and why (defaults to all on the one device)."""
        return Explanation.single_device(self.model, self.device)

    def export_state(self) -> Mapping[str, Array]:
        """(optional) Arrays that took long to compute, by name (defaults to none).

        They are stored with the model when it is exported or cached, and handed to
        :meth:`partita.DevicePlugin.restore_model`.
        """
        return {}

    def piece_properties(self) -> dict[str, Any]:
        """(optional) Properties that let a piece of this model compute as it does in the whole.

        The piece's operations carry their devices as affinities (defaults to the model's own).
        """
        return self.exported_properties()

    def exported_properties(self) -> dict[str, Any]:
        """The properties that belong to the model wherever it is imported."""
        return self.properties.model_dump(mode="json", exclude_unset=True, exclude={"CACHE_DIR"})

    def export_model(self) -> bytes | None:
        """(optional) What :meth:`DevicePlugin.import_model` takes, for plugins that override that.

        Defaults to ``None``: the model, its properties and :meth:`export_state` are packed by Core,
        with what code, device and driver they are from.

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
            **self.extra_properties(),
        }
        names = [*facts, "SUPPORTED_PROPERTIES", *type(self.properties).model_fields]
        facts["SUPPORTED_PROPERTIES"] = dict.fromkeys(names, "RO")
        return facts

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


def new_runner(model: DeviceModel) -> Runner:
    """A runner of a compiled model, for one request.

    Raises:
        PluginError: The model gave something else.
    """
    runner = model.create_runner()
    if not isinstance(runner, Runner):
        raise PluginError(
            f"Device '{model.device}' answered create_runner with {type(runner).__name__}; a "
            "Runner is due."
        )
    return runner


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
        raise PluginError(f"{what}: export_state gave {found}; arrays by name are due.")
    for name, array in state.items():
        if np.asarray(array).dtype.hasobject:
            found = type(array).__name__
            raise PluginError(f"{what}: {name!r} is {found}; an array of numbers is due.")
    return state
