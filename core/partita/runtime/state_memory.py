"""Variables that runs update in place: one tensor each, in memory of the device."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from partita.contract.device_model import DeviceModel, offered_in_place
from partita.errors import DeviceMemoryError, InferError, InputError, PartitaError, PluginError
from partita.model.port import Port
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita.runtime.compiled_facts import CompiledFacts


class StateMemory:
    """The tensors of a request's variables, as far as its device updates them in place.

    A run is given each of them as an input and as an output. Requests that share state share it.

    Args:
        compiled: The request's model.
        place: The model where the request is.

    Attributes:
        outputs: By the index of an output that of the input whose tensor it is written to.
        tensors: By the index of an input its tensor.
        version: Another number when one of the tensors is another one.
        unsized: Inputs whose shape the first run is to decide, or who sets them.
    """

    def __init__(self, compiled: CompiledFacts, place: DeviceModel) -> None:
        self._model = place
        self._ports = compiled.inputs
        self.version = 0
        self.outputs = self._pairs(compiled)
        self.tensors: dict[int, Tensor] = {
            index: self._allocate(index, self._shape(index, {})) for index in self.outputs.values()
        }
        self.unsized = {
            index
            for index in self.tensors
            if any(isinstance(dim, str) for dim in self._ports[index].shape or ())
        }

    @functools.cached_property
    def offered(self) -> dict[int, int]:
        """What the device updates in place, state or not: output to input.

        Raises:
            PluginError: It names ports that are not there, or not alike.
        """
        return offered_in_place(self._model)

    def put(self, index: int, source: Tensor) -> bool:
        """Gives a variable the elements of a tensor, which fits its port.

        Returns:
            Whether its tensor is another one now, since its shape was.

        Raises:
            DeviceMemoryError: The device has no room.
        """
        held = self.tensors[index]
        moves = source.shape != held.shape
        if moves:
            held = self._allocate(index, source.shape)
        if source is not held:
            held.copy_from(source)
        if moves:
            self.tensors[index] = held
            self.version += 1
        self.unsized.discard(index)
        return moves

    def set_sizes(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        """Gives variables the sizes that other inputs have for their symbols, as the batch.

        Args:
            shapes: Those of the other inputs of a run.
        """
        sizes = sizes_of(self._ports, shapes)
        for index in sorted(self.unsized):
            shape = self._shape(index, sizes)
            if shape != self.tensors[index].shape:
                self.tensors[index] = self._allocate(index, shape)
                self.version += 1
        self.unsized.clear()

    def _shape(self, index: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """A variable's shape; what nobody knows is nothing until a value is set."""
        dims = self._ports[index].shape or ()
        return tuple(dim if isinstance(dim, int) else sizes.get(dim or "", 0) for dim in dims)

    def clear(self, index: int) -> None:
        """Makes a variable zero, in the shape that it has."""
        self.tensors[index].clear()

    def _pairs(self, compiled: CompiledFacts) -> dict[int, int]:
        """Output to input of the variables that the device updates in place.

        Not of those whose first value a run computes itself: it needs to know that there is none.
        """
        variables = [one for one in compiled.model.variables if not one.begun]
        inputs = {port.name: port.index for port in compiled.inputs}
        outputs = {port.name: port.index for port in compiled.outputs}
        pairs = {outputs[one.written]: inputs[one.read] for one in variables}
        return {made: given for made, given in pairs.items() if self.offered.get(made) == given}

    def _allocate(self, index: int, shape: tuple[int, ...]) -> Tensor:
        port = self._ports[index]
        try:
            found = self._model.allocate(port, shape)
        except PartitaError:
            raise
        except MemoryError as error:
            raise DeviceMemoryError(
                f"Device '{self._model.device}' has no room for '{port.name}' "
                f"({port.describe()}): {error}"
            ) from error
        if not isinstance(found, Tensor) or (found.dtype, found.shape) != (port.dtype, shape):
            raise PluginError(
                f"Device '{self._model.device}' allocated {found!r} for '{port.name}'; "
                f"expected {port.dtype}{list(shape)}. Tell the author of its plugin."
            )
        return found


class StateRows(StateMemory):
    """Some rows of other variables, along the first axis of each; views, not copies.

    Args:
        whole: The variables, whose shapes are known.
        count: How many rows; the first ones, until :meth:`select` says others.

    Raises:
        InputError: There are not so many.
        InferError: The variables are not all in the host's memory and updated in place.
    """

    def __init__(self, whole: StateMemory, count: int) -> None:
        shared = [tensor for tensor in whole.tensors.values() if tensor.memory == HOST]
        if len(shared) < len(whole.outputs) or not shared or whole.unsized:
            raise InferError(
                "A request can have some rows of another one's state where the device updates it "
                "in place in the host's memory, once a run or a value has decided its shape."
            )
        self._model, self._ports = whole._model, whole._ports
        self.version = 0
        self.outputs = whole.outputs
        self.unsized: set[int] = set()
        self._whole, self._count = whole, count
        self.select(0)

    def select(self, first: int) -> None:
        """Changes to the rows from ``first`` on.

        Raises:
            InputError: There are not so many.
        """
        arrays = {index: tensor.numpy() for index, tensor in self._whole.tensors.items()}
        most = min(len(array) if array.ndim else 0 for array in arrays.values())
        if self._count < 1 or not 0 <= first <= most - self._count:
            raise InputError(
                f"The state has rows 0 to {most - 1}; {self._count} from row {first} on are not "
                "among them."
            )
        self.tensors = {
            index: HostTensor(array[first : first + self._count]) for index, array in arrays.items()
        }
        self.version += 1

    def put(self, index: int, source: Tensor) -> bool:
        """Gives the rows of a variable the elements of a tensor; their shape stays.

        Raises:
            InputError: It has another shape.
        """
        held = self.tensors[index]
        if source.shape != held.shape:
            raise InputError(
                f"'{self._ports[index].name}' of these rows is {list(held.shape)}, and "
                f"{list(source.shape)} is given; give the request with all rows another shape."
            )
        return super().put(index, source)


def sizes_of(ports: Sequence[Port], shapes: Mapping[int, tuple[int, ...]]) -> dict[str, int]:
    """The size that each symbol of some inputs has.

    Args:
        ports: All inputs.
        shapes: By input its shape.
    """
    return {
        dim: size
        for index, shape in shapes.items()
        for dim, size in zip(ports[index].shape or (), shape, strict=False)
        if isinstance(dim, str)
    }
