"""Custom operators that are written as a class, as in OpenVINO's Python API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InferError, ModelError
from partita.extensions.extension import Extension, Kernel
from partita.model.op import Op
from partita.model.port import Port
from partita.tensors.tensor import HostTensor

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class DiscreteTypeInfo:
    """What OpenVINO's Python API calls a type of operations by.

    Attributes:
        name: The operator's name in files.
        version_id: Which set of operations it is of; not used here.
    """

    name: str
    version_id: str = ""


class OpExtension(Extension):
    """An operator that a subclass of :class:`partita.Op` computes.

    The class has ``validate_and_infer_types``, which calls ``self.set_output_type(index, type,
    shape)`` by what ``self.get_input_element_type(index)`` and its like tell, and
    ``evaluate(outputs, inputs)``, which fills tensors and returns true. It may have
    ``visit_attributes(visitor)``, where ``visitor.on_attributes(dict)`` replaces the values of a
    dict by those of the model; ``self.get_attributes()`` has them as well. An object is made
    without arguments for each operation, and serves all requests.

    Operations are of it if their operator has the name of its ``class_type_info``, or of the class
    if it has none, whatever their domain; a text ``domain`` of the class says which.

    Args:
        op: The class.

    Raises:
        ModelError: It is no such class.
    """

    def __init__(self, op: type[Op]) -> None:
        if not isinstance(op, type) or not issubclass(op, Op) or op is Op:
            raise ModelError(f"An operator is a subclass of partita.Op; found {op!r}.")
        for name in ("validate_and_infer_types", "evaluate"):
            if not callable(getattr(op, name, None)):
                raise ModelError(f"{op.__name__} needs a method {name}; see partita.Op.")
        self._op = op
        named = getattr(op, "class_type_info", None)
        domain = vars(op).get("domain")
        super().__init__(
            op.__name__ if named is None else named.name, domain if type(domain) is str else None
        )

    @property
    def origin(self) -> str:
        """The class's name."""
        return self._op.__qualname__

    def types(self, node: ir.Node) -> Sequence[tuple[Any, Any]] | None:
        """What ``validate_and_infer_types`` sets."""
        made = self._made(node)
        made.validate_and_infer_types()  # type: ignore[attr-defined]  # checked above
        ports = [Port.of(place, value, False) for place, value in enumerate(node.outputs)]
        return [(port.element_type, port.partial_shape) for port in ports]

    def kernel(self, node: ir.Node) -> Kernel:
        """Its ``evaluate``."""
        made = self._made(node)
        ports = [Port.of(place, value, False) for place, value in enumerate(node.outputs)]

        def compute(inputs: Sequence[Any]) -> Sequence[Any]:
            given = [None if one is None else HostTensor(one) for one in inputs]
            outputs = [_empty(port) for port in ports]
            done = made.evaluate(outputs, given)  # type: ignore[attr-defined]
            if done is False:
                raise InferError("evaluate returned False")
            return [output.numpy() for output in outputs]

        return compute

    def _made(self, node: ir.Node) -> Op:
        """An object for one operation."""
        try:
            made = self._op()  # type: ignore[call-arg]  # an application's __init__
        except TypeError as error:
            raise ModelError(f"{self.origin}() must need no arguments: {error}") from error
        made.node = node
        if hasattr(made, "visit_attributes"):
            made.visit_attributes(_Visitor(made.get_attributes()))
        return made


class _Visitor:
    """Hands the attributes of an operation to a class that asks for them."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes

    def on_attributes(self, values: dict[str, Any]) -> None:
        """Replaces the values of a dict by those of the operation's attributes."""
        values.update((name, self._attributes[name]) for name in values if name in self._attributes)


def _empty(port: Port) -> HostTensor:
    """A tensor for an output; of sizes that are not known, 0."""
    dims = [dim if isinstance(dim, int) else 0 for dim in port.shape or ()]
    return HostTensor(np.zeros(dims, np.float32 if port.dtype is None else port.dtype))
