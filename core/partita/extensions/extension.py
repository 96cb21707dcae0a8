"""Custom operators of an application: what they declare, and how an operation's is found."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InferError, ModelError, PartitaError
from partita.model.op import EXTENSION, Op
from partita.model.operator_checks import PRIVATE_DOMAIN, is_of_onnx
from partita.model.port import Port, numpy_dtype
from partita.reason import Reason
from partita.shapes.partial_shape import PartialShape
from partita.tensors.element_type import Type

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]

Kernel = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes outputs of inputs, which are arrays, or ``None`` where one is left out."""


class Extension(abc.ABC):
    """An operator of an application's own, written in Python.

    Attributes:
        op_type: Its name in files.
        domain: Its domain in files; ``None`` for any but ONNX's own.

    Raises:
        ModelError: It has no name, or one that is ONNX's or Partita's.
    """

    def __init__(self, op_type: str, domain: str | None) -> None:
        self.op_type = op_type
        self.domain = domain
        if not isinstance(op_type, str) or not op_type:
            raise ModelError(f"An operator has a name, a text; found {op_type!r}.")
        if domain is not None and domain.partition(".")[0] == PRIVATE_DOMAIN:
            raise ModelError(f"Domain '{domain}' of {self} is Partita's; use one of your own.")
        if domain is not None and is_of_onnx(op_type, domain):
            raise ModelError(f"{self} is ONNX's own operator; give yours a domain of its own.")

    @property
    @abc.abstractmethod
    def origin(self) -> str:
        """What in the application computes it, for those who ask why an operation is where."""

    @abc.abstractmethod
    def types(self, node: ir.Node) -> Sequence[tuple[Any, Any]] | None:
        """Element type and shape of each output of an operation.

        Args:
            node: The operation; types and ranks of its inputs are known.

        Returns:
            By output what :class:`partita.Type` and :class:`partita.PartialShape` take; ``None``
            where the extension has no rule. Any exception becomes a ``ModelError``.
        """

    @abc.abstractmethod
    def kernel(self, node: ir.Node) -> Kernel:
        """What computes an operation.

        Args:
            node: The operation, with its attributes.

        Returns:
            A function of the inputs' arrays, ``None`` for one that is left out, to those of the
            outputs. It may be called from several threads at once, and owns what it returns as
            little as what it is given.
        """

    def output_types(self, node: ir.Node) -> list[tuple[np.dtype[Any], list[int | str | None]]]:
        """Element type and dimensions of each output, as far as that is known by now.

        Returns:
            Nothing while types or ranks of inputs are missing.

        Raises:
            ModelError: The application's rule fails, or tells what cannot be.
        """
        inputs = [Port.of(0, value, True) for value in node.inputs if value is not None]
        if any(port.dtype is None or port.shape is None for port in inputs):
            return []
        what = f"The rule of {self} for the types of operation '{node.name}'"
        try:
            declared = self.types(node)
            found = [(Type(kind).dtype, PartialShape(dims)) for kind, dims in declared or ()]
        except PartitaError as error:
            raise ModelError(f"{what} failed: {error}") from error
        except Exception as error:
            raise ModelError(f"{what} failed: {type(error).__name__}: {error}") from error
        if declared is not None and len(found) < len(node.outputs):
            raise ModelError(
                f"{what} declares {len(found)} outputs; the operation has {len(node.outputs)}."
            )
        if any(shape.rank.is_dynamic for _, shape in found):
            return []
        return [(kind, [dim.size for dim in shape]) for kind, shape in found[: len(node.outputs)]]

    def bind(self, node: ir.Node) -> Kernel:
        """The kernel of an operation, whose results are checked against the operator's rule.

        Returns:
            What :meth:`kernel` returns, but that calls raise `InferError` where it fails, returns
            too few outputs, or others than the rule tells.
        """
        kernel, output_count = self.kernel(node), len(node.outputs)
        due = [(value.name, numpy_dtype(value.dtype), value.shape) for value in node.outputs]
        what = f"{self}, which computes operation '{node.name}',"

        def compute(inputs: Sequence[Any]) -> list[Array]:
            try:
                results = kernel(inputs)
            except Exception as error:
                given = ", ".join(map(_described, inputs))
                raise InferError(
                    f"{what} failed for inputs {given}: {type(error).__name__}: {error}"
                ) from error
            if len(results) < output_count:
                raise InferError(
                    f"{what} returned {len(results)} outputs; expected {output_count}."
                )
            arrays = [np.asarray(one) for one in results[:output_count]]
            for place, (array, (name, kind, shape)) in enumerate(zip(arrays, due, strict=True)):
                if name and not _fits(array, kind, shape):
                    raise InferError(
                        f"{what} returned {_described(array)} as output {place}; its rule says "
                        f"{kind}{'' if shape is None else f'[{_dims(shape)}]'}. Change the rule, "
                        "or convert the result."
                    )
            return arrays

        return compute

    def __str__(self) -> str:
        return f"operator '{self.domain + '::' if self.domain else ''}{self.op_type}'"


def extension_of(node: Any) -> Extension | None:
    """The application's own operator that stands behind an ``onnx_ir.Node``, if it is one."""
    if is_of_onnx(node.op_type, node.domain):
        return None  # none may have such a name, and a node makes its notes when it is asked
    found: Extension | None = node.meta.get(EXTENSION)
    return found


def noted(node: Any, reason: Reason) -> Reason:
    """A reason why an ``onnx_ir.Node`` is where it is, with what in the application computes it."""
    found = extension_of(node)
    if found is None:
        return reason
    detail = f"{found.origin} computes it, in Python"
    return Reason(reason.code, f"{reason.detail}; {detail}" if reason.detail else detail)


def advice(ops: Iterable[Op]) -> tuple[str, ...]:
    """What to do about operators that nobody has: a line for an error, or none.

    Args:
        ops: Operations that some device does not take.
    """
    unknown = dict.fromkeys(
        f"'{op.domain + '::' if op.domain else ''}{op.op_type}'"
        for op in ops
        if not is_of_onnx(op.op_type, op.domain) and extension_of(op.node) is None
    )
    if not unknown:
        return ()
    return (
        f"No operators of ONNX: {', '.join([*unknown][:5])}. Core.add_extension takes such "
        "operators, written in Python.",
    )


def _fits(array: Array, kind: np.dtype[Any] | None, shape: Any) -> bool:
    """Whether a result is of the type and shape that are due, as far as these are known."""
    if kind is not None and array.dtype != kind:
        return False
    if shape is None:
        return True
    return len(shape) == array.ndim and all(
        not isinstance(dim, int) or dim == size
        for dim, size in zip(shape, array.shape, strict=True)
    )


def _described(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return "nothing" if array is None else type(array).__name__
    return f"{array.dtype}[{_dims(array.shape)}]"


def _dims(shape: Iterable[Any]) -> str:
    return ",".join(str(dim) if isinstance(dim, int) else "?" for dim in shape)
