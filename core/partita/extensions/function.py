"""Custom operators that are computed by a function of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelError
from partita.extensions.extension import Extension, Kernel
from partita.model.port import Port

if TYPE_CHECKING:
    import onnx_ir as ir


class CustomOperator(Extension):
    """An operator that a function of numpy arrays computes.

    Args:
        op_type: Its name in files.
        domain: Its domain in files.
        compute: Is called with an array for each input (``None`` for one that is left out), and
            with the attributes by name; returns an array, or a tuple or list of them. From
            several threads at once, if requests run at once. It must not write to its inputs.
        infer: Tells types and shapes: is called with a :class:`partita.Port` for each input
            (``None`` for one that is left out), of which ``dtype`` and ``shape`` are known but for
            sizes that vary, and with the attributes by name. Returns what has a ``dtype`` and a
            ``shape``, as ports have, or a pair of them; or for several outputs a list of those.
            Without it only what the model itself says of the outputs is known.

    Example:
        >>> import numpy as np
        >>> from partita import Core, CustomOperator
        >>> def swirl(x, angle=1.0):
        ...     return x + np.float32(angle) * np.flip(x, -1)
        >>> core = Core()
        >>> core.add_extension(CustomOperator("Swirl", "my.ops", swirl, infer=lambda x, **_: x))

    Raises:
        ModelError: The name is ONNX's or Partita's, or what should be called cannot be.
    """

    def __init__(
        self,
        op_type: str,
        domain: str,
        compute: Callable[..., Any],
        infer: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(op_type, domain)
        self._compute, self._infer = compute, infer
        for what in (compute, infer or compute):
            if not callable(what):
                raise ModelError(f"The function of {self} is called; {what!r} cannot be.")

    @property
    def origin(self) -> str:
        """The function's name."""
        return getattr(self._compute, "__qualname__", type(self._compute).__name__)

    def types(self, node: ir.Node) -> Sequence[tuple[Any, Any]] | None:
        """What ``infer`` tells."""
        if self._infer is None:
            return None
        ports = [
            None if value is None else Port.of(place, value, True)
            for place, value in enumerate(node.inputs)
        ]
        inferred = self._infer(*ports, **_attributes(node))
        return [_pair(one) for one in (inferred if isinstance(inferred, list) else [inferred])]

    def kernel(self, node: ir.Node) -> Kernel:
        """The function, given the operation's attributes."""
        attributes = _attributes(node)

        def compute(inputs: Sequence[Any]) -> Sequence[Any]:
            made = self._compute(*inputs, **attributes)
            return made if isinstance(made, (tuple, list)) else [made]

        return compute


def _pair(result: Any) -> tuple[Any, Any]:
    """Element type and shape of one output."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    if hasattr(result, "dtype") and hasattr(result, "shape"):
        return result.dtype, result.shape
    raise ModelError(f"for each output, expected a dtype and a shape; found {result!r}")


def _attributes(node: ir.Node) -> dict[str, Any]:
    """The attributes as numbers, texts, lists and arrays."""
    import onnx_ir as ir

    found: dict[str, Any] = {}
    for name, attribute in node.attributes.items():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            raise ModelError(f"its attribute '{name}' is a graph; functions cannot have these")
        value: Any = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = value.numpy()
        elif isinstance(value, (tuple, list)):
            value = [np.asarray(x) if hasattr(x, "raw") else x for x in value]
        found[name] = value
    return found
