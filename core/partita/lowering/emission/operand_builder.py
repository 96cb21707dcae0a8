"""Operands of a program that is being built: memory, views, constants, transformed weights."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from partita.errors import OperandError
from partita.lowering.emitter import NeedsValue
from partita.lowering.graph import Node
from partita.lowering.program import Array, Operand, Packed, plain
from partita.lowering.shapes.fold_allowance import FoldAllowance
from partita.lowering.shapes.symbolic_size import Number, Size, evaluated, holds_sizes, integer
from partita.lowering.transformed_weights import Form, Prepacked
from partita.tensors.allocation import host_zeros

_MOST_BYTES = 1 << 42
"""No tensor may be larger: emitters that split their work into pieces would never end."""

_SMALL_BYTES = 1 << 12
"""Constants of fewer are known by their arrays; others would be kept longer than they serve."""

_INT64 = np.dtype(np.int64)

_ZEROS: weakref.WeakValueDictionary[tuple[int, np.dtype[Any]], Array] = (
    weakref.WeakValueDictionary()
)
"""Rows of zeros that constants are, by how many and their type."""


def _row_of_zeros(dtype: np.dtype[Any], count: int) -> Array:
    return np.zeros(count, dtype)


def _plain_result(dtype: np.dtype[Any], fn: Callable[..., Array], *args: Any) -> Array:
    """The result of a function, in the form that kernels need."""
    return plain(np.asarray(fn(*args), dtype))


def _only_element(dtype: np.dtype[Any], fn: Callable[..., Array], *args: Any) -> Any:
    """The one element of a function's result."""
    return np.asarray(fn(*args), dtype).item()


def _constant(array: Any) -> Operand:
    """A new operand for constant elements."""
    elements = plain(np.asarray(array))
    symbolic = elements.dtype == object and holds_sizes(elements)
    return Operand(elements.shape, _INT64 if symbolic else elements.dtype, elements)


new_array = np.empty
"""Allocates the arrays of folded constants; tests of memory replace it."""


class OperandBuilder:
    """Makes the operands of the node that is being emitted; records no step.

    Attributes:
        node: The node being emitted.
        allowance: The limits for nodes of constants, which are computed at once.

    Args:
        prepacked: Where transformed weights come from and go to.
        allowance: The limits for nodes of constants; ``None`` for those of one program alone.
    """

    def __init__(self, prepacked: Prepacked, allowance: FoldAllowance | None = None) -> None:
        self.node: Node = Node("", (), ())
        self.allowance = FoldAllowance() if allowance is None else allowance
        self._prepacked = prepacked
        self._folding = False
        self._flat: dict[Operand, Operand] = {}
        self._scratch: dict[tuple[int, np.dtype[Any], bool], Operand] = {}
        self._constants: dict[int, tuple[Array, Operand]] = {}  # by the array's identity

    @property
    def version(self) -> int:
        """Opset version of the node being emitted."""
        return self.node.version

    @property
    def folding(self) -> bool:
        """Whether the node is computed at once, because all its inputs are constants."""
        return self._folding

    def empty(self, shape: Iterable[int], dtype: Any) -> Operand:
        """A new intermediate tensor with arbitrary content; its memory is planned by liveness.

        Raises:
            OperandError: A size is negative, or all of them are more than any memory.
        """
        dims = tuple(map(integer, shape))
        kind = np.dtype(dtype)
        if any(n < 0 for n in dims):
            raise OperandError(
                f"Operation '{self.node.name}' ({self.node.model_kind}) would make a tensor of "
                f"shape {list(dims)}; check the shapes and attributes that lead to it."
            )
        if math.prod(dims) * kind.itemsize > _MOST_BYTES:
            raise OperandError(
                f"Operation '{self.node.name}' ({self.node.model_kind}) would make a tensor of "
                f"shape {list(dims)}, more than any memory; check the shapes that lead to it."
            )
        if not self._folding:
            return Operand(dims, kind)
        self.allowance.take(math.prod(dims) * kind.itemsize)
        return Operand(dims, kind, new_array(dims, kind))

    def scratch(self, count: Number, dtype: Any = np.uint8, second: bool = False) -> Operand:
        """Memory that a step reads only where it has written; all that ask for as much share it.

        So threads find the lines of their parts in their own caches, where the step before left
        them. It is kept for as long as one of these steps is to come.

        Args:
            count: Elements. If it stands for other numbers, no other step has this memory.
            dtype: Of an element.
            second: Whether the step asks for as much twice.
        """
        if self._folding or type(count) is not int:
            return self.empty((count,), dtype)
        key = count, np.dtype(dtype), second
        if key not in self._scratch:
            self._scratch[key] = self.empty((count,), dtype)
        return self._scratch[key]

    def view(self, x: Operand, shape: Iterable[int]) -> Operand:
        """The same memory with other dimensions; no step, no copy. A constant stays one.

        Raises:
            OperandError: The dimensions have another number of elements.
        """
        dims = tuple(map(integer, shape))
        if math.prod(dims) != x.size or any(n < 0 for n in dims):
            raise OperandError(
                f"Operation '{self.node.name}' ({self.node.model_kind}) cannot view a tensor of "
                f"shape {list(x.shape)} as {list(dims)}."
            )
        return x.viewed(dims)

    def flat(self, x: Operand) -> Operand:
        """The operand as one dimension; no copy."""
        if len(x.shape) == 1:
            return x
        found = self._flat.get(x)
        if found is None:
            found = self._flat[x] = x.viewed((x.size,))
        return found

    def constant(self, array: Any) -> Operand:
        """An operand for constant elements; those of :func:`integers` are int64.

        The same small array, such as a table of a kernel, gives the same operand.
        """
        if self._folding:
            self.allowance.take(np.asarray(array).nbytes)
        if isinstance(array, np.ndarray) and array.nbytes <= _SMALL_BYTES:
            return self._constant_of(array)
        return _constant(array)

    def zeros(self, count: Number, dtype: Any) -> Operand:
        """A constant row of zeros; equal ones share one array.

        For omitted operands: a decoder has hundreds of products without a bias.
        """
        if holds_sizes(count):
            return self.computed((count,), dtype, _row_of_zeros, np.dtype(dtype), count)
        asked = operator.index(count), np.dtype(dtype)
        found = _ZEROS.get(asked)
        if found is None:
            found = _ZEROS[asked] = host_zeros(asked[:1], asked[1]).numpy()
        return self._constant_of(found)

    def computed(
        self, shape: Iterable[int], dtype: Any, fn: Callable[..., Array], *args: Any
    ) -> Operand:
        """An operand for ``fn(*args)``, whose elements are known when sizes are.

        Args:
            shape: Shape of the result.
            dtype: Element type of the result.
            fn: A function of sizes and other constants, known by itself: see
                :meth:`partita.lowering.shapes.symbolic_size.Recording.evaluate`.
            args: Its arguments; a size that is no argument but within one is taken as a number.
        """
        kind, dims = np.dtype(dtype), tuple(shape)
        if not dims:  # one that stands for a whole array cannot be told from a number
            element = evaluated(_only_element, kind, fn, *args)
            return Operand((), kind, np.array(element, object if type(element) is Size else kind))
        elements = evaluated(_plain_result, kind, fn, *args)
        if type(elements) is Size:
            return Operand(dims, kind, np.array(elements, object))
        return Operand(elements.shape, kind, elements)  # without sizes, as the elements are

    def value(self, x: Operand, anywhere: bool = False) -> Array:
        """The elements of ``x``; never write to them.

        Args:
            x: The operand.
            anywhere: Whether the array may be unaligned, which is enough for numpy: weights that
                are packed later are then not copied.

        Returns:
            The elements; an object array if symbolic sizes are among them.

        Raises:
            NeedsValue: They are only known at run time. Emitters must not catch it: the specializer
                calls them again when the elements are known.
        """
        if not anywhere:
            self.make_plain(x)
        elements = x.const
        if elements is None:
            raise NeedsValue(x)
        return elements

    def make_plain(self, x: Operand) -> None:
        """Brings the elements of a constant into the form that kernels take.

        Weights that have to be copied for that are copied once for all programs.
        """
        if x.lasting and not isinstance(x, Packed) and x.const is not None:
            x.const = self._prepacked.plain(x.const)
        else:
            x.make_plain()

    def prepack(
        self,
        x: Operand,
        key: Any,
        fn: Callable[[Array], Array],
        anywhere: bool = False,
        form: Form | None = None,
    ) -> Operand:
        """``fn`` of a constant, as an operand; computed once per compiled model for weights.

        Args:
            x: The constant.
            key: Identifies the transformation of this constant: a string, a number, or a tuple of
                these, so that results can be stored for other processes (:class:`Prepacked`).
            fn: The transformation.
            anywhere: Whether ``fn`` accepts unaligned arrays, which saves a copy.
            form: Shape and type of the result. Results with a form are stored for other processes,
                and checked when they are restored; others are computed again.
        """
        if isinstance(x, Packed):
            return self._prepacked.packed_again(x, key, fn)
        if x.const is None or not x.lasting:
            return self.constant(fn(self.value(x)))
        return self._prepacked.operand(x.const, key, fn, anywhere, form)

    def _constant_of(self, array: Array) -> Operand:
        """The operand of an array, which is kept as long as the builder."""
        found = self._constants.get(id(array))
        if found is None:
            found = self._constants[id(array)] = array, _constant(array)
        return found[1]

    @staticmethod
    def _now(arg: Any) -> Any:
        if not isinstance(arg, Operand):
            return arg
        arg.make_plain()
        return arg.const
