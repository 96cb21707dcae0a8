"""What the call of a submodel says at once, both ways: plain data in MessagePack.

Small tensors cross within these messages, as an object of Ray's store for each would take longer.
Ray sends bytes as they are, and takes longer for all else than it takes to write it here. A message
holds texts, numbers, lists and bytes and nothing else; whoever reads it checks it against the
model's ports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from partita.contract.profiling import ProfilingInfo, Status
from partita.errors import InferError
from partita.model.model import Port, is_static

Array = np.ndarray[Any, Any]

SMALL_BYTES = 16 << 10
"""Most bytes of a tensor that crosses within a message."""

_STATES = {one.value for one in Status}


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """What is told of a run at once; what crosses as objects comes beside it.

    Attributes:
        start_s: When the device began, by the node's clock.
        end_s: When it ended.
        small: The outputs that are always small, by name; read-only.
        shapes: Dimensions of the others, in order.
        counters: The device's counters, if it keeps any.
    """

    start_s: float
    end_s: float
    small: Mapping[str, Array]
    shapes: Sequence[tuple[int, ...]]
    counters: Sequence[ProfilingInfo]


class _Kind(NamedTuple):
    """The element type of a port, and what messages call it."""

    dtype: np.dtype[Any] | None
    name: str


class CallMessages:
    """The messages of all calls of one model.

    Args:
        inputs: The model's inputs.
        outputs: Its outputs.

    Attributes:
        large_outputs: How many outputs cross as objects.
    """

    def __init__(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        self._inputs = _kinds(inputs)
        self._outputs = _kinds(outputs)
        self._small_outputs = {port.name for port in outputs if _is_always_small(port)}
        self.large_outputs = sum(name not in self._small_outputs for name in self._outputs)

    def write_inputs(self, inputs: Sequence[Any]) -> tuple[bytes, list[Any]]:
        """The message of a call, and what crosses beside it.

        Args:
            inputs: Arrays, and references to those that are objects already, in order.
        """
        small: dict[str, Any] = {}
        large = []
        for (name, kind), x in zip(self._inputs.items(), inputs, strict=True):
            is_array = isinstance(x, np.ndarray) and x.dtype == kind.dtype
            if is_array and x.nbytes <= SMALL_BYTES and kind.name:
                small[name] = kind.name, x.shape, x.tobytes()
            else:
                large.append(x)
        return _written(small), large

    def read_inputs(self, message: bytes, large: Sequence[Array]) -> list[Array]:
        """The inputs of a call; those that crossed within its message are read-only.

        Args:
            message: The message.
            large: The inputs that crossed as objects, in order.

        Raises:
            InferError: The bytes are no such message, or its tensors are not the model's.
        """
        small = _tensors(_read(message), self._inputs)
        if len(small) + len(large) != len(self._inputs):
            raise InferError(
                f"A call has {len(small)} inputs in its message and {len(large)} beside it; the "
                f"model takes {len(self._inputs)}."
            )
        others = iter(large)
        return [small[name] if name in small else next(others) for name in self._inputs]

    def write_answer(
        self,
        start_s: float,
        end_s: float,
        outputs: Sequence[Array],
        counters: Sequence[ProfilingInfo],
    ) -> tuple[bytes, list[Array]]:
        """The message of a :class:`RunAnswer`, and the outputs that cross beside it.

        Args:
            start_s: When the run began, in seconds by the node's clock.
            end_s: When it ended.
            outputs: Its results, in the model's order.
            counters: What each operation took; none if they were not asked for.
        """
        small: dict[str, Any] = {}
        large = []
        for (name, kind), y in zip(self._outputs.items(), outputs, strict=True):
            if name in self._small_outputs:
                small[name] = kind.name, y.shape, y.tobytes()
            else:
                large.append(y)
        spans = [
            [
                [one.node_name, one.node_type, one.exec_type, one.status.value],
                [float(one.real_time_us), float(one.cpu_time_us)],
                one.covers,
            ]
            for one in counters
        ]
        return _written((start_s, end_s, small, [y.shape for y in large], spans)), large

    def read_answer(self, message: bytes) -> RunAnswer:
        """What was told of a run.

        Raises:
            InferError: The bytes are no such message, or its tensors are not the model's.
        """
        match _read(message):
            case [float(start_s), float(end_s), found, [*shapes], [*counters]]:
                small = _tensors(found, self._outputs)
            case _:
                raise InferError("An answer lacks times, tensors, shapes or counters.")
        if small.keys() != self._small_outputs or len(shapes) != self.large_outputs:
            raise InferError(
                f"An answer has outputs {sorted(small)} and shapes of {len(shapes)} more; the "
                f"model has {sorted(self._small_outputs)} and {self.large_outputs} more."
            )
        return RunAnswer(
            start_s, end_s, small, list(map(_shape, shapes)), list(map(_counter, counters))
        )


# ------------------------------------------------------------------------------- parts


def _kinds(ports: Sequence[Port]) -> dict[str, _Kind]:
    """Name to element type; without a name are those that no message can hold."""
    return {
        port.name: _Kind(
            port.dtype, "" if port.dtype is None or port.dtype.hasobject else port.dtype.name
        )
        for port in ports
    }


def _is_always_small(port: Port) -> bool:
    """Whether all tensors of a port cross within messages, so that no object has to be there."""
    if port.dtype is None or port.dtype.hasobject or not is_static(port.shape):
        return False
    return math.prod(port.shape) * port.dtype.itemsize <= SMALL_BYTES


def _written(content: Any) -> bytes:
    import msgpack

    data: bytes = msgpack.packb(content)
    return data


def _read(message: bytes) -> Any:
    import msgpack

    try:
        return msgpack.unpackb(message)
    except ValueError as error:  # what msgpack raises is one
        raise InferError(
            f"A message of {len(message)} bytes is no MessagePack ({error or type(error).__name__})"
            "; install one version of Partita and of msgpack on all nodes."
        ) from error


def _tensors(found: Any, kinds: Mapping[str, _Kind]) -> dict[str, Array]:
    """The tensors of a message, which must be those of ports."""
    if type(found) is not dict:
        raise InferError(f"A message has {found!r:.100} where tensors by name belong.")
    return {name: _tensor(name, entry, kinds) for name, entry in found.items()}


def _tensor(name: str, entry: Any, kinds: Mapping[str, _Kind]) -> Array:
    kind = kinds.get(name)
    if kind is None:
        raise InferError(
            f"A message has tensor {name!r}, which is none of {', '.join(map(repr, kinds))}."
        )
    try:
        stated, shape, elements = entry
        array: Array = np.ndarray(shape, kind.dtype, elements)
    except (TypeError, ValueError) as error:
        raise InferError(
            f"A message has {entry!r:.100} as tensor '{name}', which cannot be read as "
            f"{kind.name}, dimensions and bytes: {error}."
        ) from error
    if stated != kind.name or array.nbytes != len(elements):
        raise InferError(
            f"A message has {stated}{shape} in {len(elements)} bytes as tensor '{name}', which is "
            f"{kind.name} and has {array.nbytes} bytes of that shape."
        )
    return array


def _shape(dims: Any) -> tuple[int, ...]:
    if type(dims) is not list or not all(type(dim) is int and dim >= 0 for dim in dims):
        raise InferError(f"A message has {dims!r:.100} as dimensions; they are whole numbers.")
    return tuple(dims)


def _counter(found: Any) -> ProfilingInfo:
    match found:
        case [
            [str(name), str(kind), str(kernel), str(state)],
            [float(real), float(cpu)],
            [*covers],
        ]:
            if state in _STATES:
                return ProfilingInfo(name, kind, kernel, Status(state), real, cpu, tuple(covers))
    raise InferError(f"A message has {found!r:.100} as the counter of an operation.")
