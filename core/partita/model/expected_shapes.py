"""Expected shapes of values for given input shapes, by which results of devices are checked.

Symbols in a model's shapes say which sizes are equal. A device's answer that contradicts them is
looked at closely: shape inference is run for the very input shapes, since symbols that come from a
model's file (rather than from inference) are sometimes wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from partita.model.model import Model, is_static, value_shape
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

_KEPT = 16
"""Sets of input shapes that are remembered."""

Shape = tuple[int, ...]
InputShapes = tuple[Shape, ...]


class ExpectedShapes:
    """Shapes of a model's values for given input shapes, inferred when first asked for.

    Args:
        model: The whole model; it is not changed.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.known: OrderedDict[InputShapes, dict[str, Shape]] = OrderedDict()
        self._lock = InterruptSafeLock()
        self._sizes: tuple[InputShapes | None, Mapping[str, int]] = None, {}  # of the last shapes
        self.symbols = tuple(
            (index, axis, dim)
            for index, port in enumerate(model.inputs)
            for axis, dim in enumerate(port.shape or ())
            if isinstance(dim, str)
        )

    def sizes(self, shapes: Sequence[Shape]) -> Mapping[str, int]:
        """The size of every symbol of the inputs, but of those that inputs disagree about."""
        last, found = self._sizes
        if last is shapes:  # each submodel of a run is asked for them
            return found
        sizes: dict[str, int] = {}
        for index, axis, symbol in self.symbols:
            size = shapes[index][axis]
            if sizes.setdefault(symbol, size) != size:
                sizes[symbol] = -1
        found = {symbol: size for symbol, size in sizes.items() if size >= 0}
        if isinstance(shapes, tuple):
            self._sizes = shapes, found
        return found

    def infer(self, name: str, shapes: Sequence[Shape]) -> Shape | None:
        """The shape of a value, or ``None`` where inference does not find it."""
        key = tuple(shapes)
        with self._lock:
            found = self.known.get(key)
            if found is None:
                found = self.known[key] = _infer_all(self._model, key)
                if len(self.known) > _KEPT:
                    self.known.popitem(last=False)
            return found.get(name)


def static_shapes(model: Model) -> dict[str, Shape]:
    """By name the shape of each value that the model computes, where it is known."""
    found: dict[str, Shape] = {}
    for node in model.ir.graph:
        for value in node.outputs:
            shape = value_shape(value)
            if value.name and is_static(shape):
                found[value.name] = shape
    return found


def _infer_all(model: Model, shapes: InputShapes) -> dict[str, Shape]:
    return static_shapes(model.clone().reshape(dict(enumerate(shapes))))
