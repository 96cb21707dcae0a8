"""The builder: what emitters call to record the steps of a program."""

from __future__ import annotations

import contextlib
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError, OperandError
from partita.lowering.emitter import GraphBody, NeedsValue
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import (
    Array,
    Operand,
    OpRecord,
    Packed,
    ProgramMaker,
    Step,
    flattened,
    plain,
)
from partita.lowering.shapes.fold_allowance import FoldAllowance
from partita.lowering.shapes.symbolic_size import (
    Number,
    Size,
    evaluated,
    holds_sizes,
    integer,
    present,
)
from partita.lowering.transformed_weights import Form, Prepacked
from partita.tensors.allocation import host_zeros

_MOST_BYTES = 1 << 42
"""No tensor may be larger: emitters that split their work into pieces would never end."""

_MOST_STEPS = 1 << 15
"""No operation takes more steps, beside some for each input and output, which a file has to name.

One that claims 2**31 channels is cut in as many pieces.
"""

MOST_TABLE_BYTES = 1 << 26
"""Tables of more are not kept: they take longer than 0.1 s, and more than the tensors of most runs.
"""

_SMALL_BYTES = 1 << 12
"""Constants of fewer are known by their arrays; others would be kept longer than they serve."""

_INT64 = np.dtype(np.int64)

_ZEROS: weakref.WeakValueDictionary[tuple[int, np.dtype[Any]], Array] = (
    weakref.WeakValueDictionary()
)
"""Rows of zeros that constants are, by how many and their type."""


def _plain_result(dtype: np.dtype[Any], fn: Callable[..., Array], *args: Any) -> Array:
    """The result of a function, in the form that kernels need."""
    return plain(np.asarray(fn(*args), dtype))


def _work_of(work: int, *moved: int) -> int:
    """The work of a step, as given or at least the bytes of its arrays."""
    return max(work, sum(moved))


def _repeated(element: Any, *shape: int) -> Array:
    return np.broadcast_to(element, shape)


def _write(fn: Callable[..., Array], args: tuple[Any, ...], y: Array) -> None:
    y[...] = fn(*args)


def _constant(array: Any) -> Operand:
    """A new operand for constant elements."""
    elements = plain(np.asarray(array))
    symbolic = elements.dtype == object and holds_sizes(elements)
    return Operand(elements.shape, _INT64 if symbolic else elements.dtype, elements)


new_array = np.empty
"""Allocates the arrays of folded constants; tests of memory replace it."""


class Builder:
    """Records the steps of one program. Emitters use its methods; engines never see it.

    Attributes:
        node: The node being emitted.
        options: The back-end's :attr:`Target.options`.
        allowance: The limits for nodes of constants, which are computed at once.

    Args:
        operand_of: Gives the operand of a value of the graph, as long as the node is emitted.
        prepacked: Where transformed weights come from and go to.
        body: Makes the specializer of a body, whose captured values are the second argument.
        options: The back-end's :attr:`Target.options`.
        allowance: The limits for nodes of constants; ``None`` for those of one program alone.
    """

    def __init__(
        self,
        operand_of: Callable[[Value], Operand],
        prepacked: Prepacked,
        body: Callable[[Graph, Sequence[Value]], ProgramMaker],
        options: Any = None,
        allowance: FoldAllowance | None = None,
    ) -> None:
        self.steps: list[Step] = []
        self.ops: list[OpRecord] = []
        self.node: Node = Node("", (), ())
        self.options = options
        self.allowance = FoldAllowance() if allowance is None else allowance
        self._operand_of = operand_of
        self._prepacked = prepacked
        self._body = body
        self._folding = False
        self._made: dict[tuple[Operand, Any], Operand] = {}
        self._flat: dict[Operand, Operand] = {}
        self._scratch: dict[tuple[int, np.dtype[Any], bool], Operand] = {}
        self._constants: dict[int, tuple[Array, Operand]] = {}  # by the array's identity
        self._most = 0  # work of the node's largest step, which profiles name
        self._steps_end = _MOST_STEPS

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

    def zeros(self, count: int, dtype: Any) -> Operand:
        """A constant row of zeros; equal ones share one array.

        For omitted operands: a decoder has hundreds of products without a bias.
        """
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
        kind = np.dtype(dtype)
        elements = evaluated(_plain_result, kind, fn, *args)
        if type(elements) is Size:
            return Operand(tuple(shape), kind, np.array(elements, object))
        return Operand(elements.shape, kind, elements)  # without sizes, as the elements are

    def filled(self, shape: Iterable[int], dtype: Any, element: Any) -> Operand:
        """A :meth:`table` of one element, again and again.

        Args:
            shape: Of the operand.
            dtype: Of its elements.
            element: Each of them.
        """
        dims = tuple(shape)
        return self.table(dims, dtype, _repeated, element, *dims)

    def table(
        self, shape: Iterable[int], dtype: Any, fn: Callable[..., Array], *args: Any
    ) -> Operand:
        """A table that a kernel reads besides its inputs: ``fn(*args)``.

        If it is large, each run computes it, so that sizes that a model claims cost no memory when
        it is compiled. For engines that run steps on numpy arrays.

        Args:
            shape: Shape of the table.
            dtype: Element type of the table.
            fn: As for :meth:`computed`.
            args: Its arguments, as for :meth:`computed`.
        """
        dims, kind = tuple(shape), np.dtype(dtype)
        small = holds_sizes((dims, args)) or math.prod(dims) * kind.itemsize <= MOST_TABLE_BYTES
        if small or self._folding:
            return self.computed(dims, kind, fn, *args)
        y = self.empty(dims, kind)
        self.call_numpy(_write, fn, args, y)
        return y

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

    def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        work: int | None = None,
        exec_type: str = "numba",
        cleared: Operand | None = None,
        over: tuple[Operand, Operand] | None = None,
    ) -> None:
        """Records ``fn(*args, tid, nt)``: share ``tid`` of ``nt`` of the work.

        Operands become C-contiguous arrays, everything else is passed as it is; of records (named
        tuples) every field by itself. ``fn`` writes into its output arguments.

        Args:
            fn: The kernel.
            args: Its arguments without ``tid, nt``.
            work: Elementary operations, where that is more than the bytes of all arrays; decides
                whether threads are worth it.
            exec_type: What profiles say computes it.
            cleared: The argument that is zero when shares begin, if there are several.
            over: A result and an argument in whose memory it may be made; see :class:`Step`.
        """
        flat = flattened(args)
        self._record(fn, flat, True, work, exec_type)
        if self._folding:
            return
        self.steps[-1].over = over
        if cleared is not None:
            self.steps[-1].cleared = next(n for n, arg in enumerate(flat) if arg is cleared)

    def call_numpy(
        self,
        fn: Callable[..., Any],
        *args: Any,
        work: int | None = None,
        exec_type: str = "numpy",
    ) -> None:
        """Records ``fn(*args)``, run once on the calling thread; for BLAS and rare operators.

        Args:
            fn: Writes into its output arguments, which are arrays as for :meth:`call`.
            args: Its arguments.
            work: Elementary operations, where that is more than the bytes of all arrays.
            exec_type: What profiles say computes it.
        """
        self._record(fn, args, False, work, exec_type)

    def dynamic(
        self,
        fn: Callable[..., Any],
        inputs: Sequence[Any],
        dtypes: Sequence[Any],
        exec_type: str = "numpy",
    ) -> tuple[Operand, ...]:
        """Records ``fn(*inputs) -> arrays`` with shapes only known at run time (NonZero, Unique).

        It must be the last call of an emitter, which returns the operands as they are. Nodes that
        depend on them are compiled once they have been computed.

        Args:
            fn: Takes the arrays of the inputs, and returns those of the results.
            inputs: Operands, and what else it takes.
            dtypes: The results' element types; ``None`` for one only known at run time.
            exec_type: What profiles say computes it.
        """
        if self._folding:
            arrays = fn(*(self._now(arg) for arg in inputs))
            return tuple(
                self.constant(np.asarray(array, dtype=dtype))
                for array, dtype in zip(arrays, dtypes, strict=True)
            )
        results = tuple(
            Operand((), np.dtype(object if dtype is None else dtype)) for dtype in dtypes
        )
        self._record(fn, tuple(inputs), False, None, exec_type, results)
        return results

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

    def once(self, x: Operand, key: Any, make: Callable[[], Operand]) -> Operand:
        """The result of ``make`` for an operand, shared by all nodes that need it.

        Args:
            x: The operand; it must not be written to later.
            key: Identifies the computation; hashable.
            make: Records the steps. It must not raise `NeedsValue`.
        """
        found = self._made.get((x, key))
        if found is None:
            found = self._made[x, key] = make()
        return found

    @contextlib.contextmanager
    def only_if(self, chosen: Number) -> Iterator[None]:
        """Steps that are recorded within it are called for those sizes for which it is not 0.

        For ways to the same result, each of which is recorded: which of them is taken is then no
        decision that tells recordings apart. Ways are not nested.

        Args:
            chosen: Whether this way is taken; of all ways to a result exactly one is.
        """
        steps, made = len(self.steps), len(self._made)
        yield
        if not isinstance(chosen, int):
            while len(self._made) > made:  # other nodes may not read what other sizes do not make
                self._made.popitem()
            for step in self.steps[steps:]:
                step.when = chosen

    def graph_body(self, graph: Graph) -> GraphBody:
        """A runner for a body, to be passed to a step; see :class:`GraphBody`."""
        captured = [
            (value, operand)
            for value in graph.captures()
            if not (operand := self._operand_of(value)).is_constant
        ]
        specializer = self._body(graph, [value for value, _ in captured])
        return GraphBody(specializer, len(graph.inputs), tuple(operand for _, operand in captured))

    def begin(self, node: Node, folding: bool) -> None:
        """Starts a node, to which all further steps belong. Called by the specializer."""
        self.node = node
        self._folding = folding
        self._most = 0
        named = len(node.inputs) + len(node.outputs)
        self._steps_end = len(self.steps) + _MOST_STEPS + 8 * named
        self.ops.append(OpRecord(node.name, node.op_type, node.origins))
        if folding:
            self.ops[-1].exec_type = "constant"

    def _record(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        shares: bool,
        work: int | None,
        exec_type: str,
        results: tuple[Operand, ...] = (),
    ) -> None:
        """Records a step, or takes it at once where constants fold.

        Args:
            fn: What computes.
            args: What it reads and writes: operands, and other arguments that never change.
            shares: Whether it takes the number of a thread and of all threads, which share its
                work.
            work: What it costs, in bytes moved or a like measure; None for what its operands hold.
            exec_type: What profiles show of it.
            results: Operands that it makes, whose memory is its own.
        """
        if self._folding:
            arrays = tuple(self._now(arg) for arg in args)
            fn(*arrays, 0, 1) if shares else fn(*arrays)
            return
        op = self.ops[-1]
        moved = [arg.nbytes for arg in args if isinstance(arg, Operand)]
        step = Step(fn, args, op, shares, evaluated(_work_of, work or 0, *moved), results)
        if present(step.work) >= self._most:  # what a profile says for all sizes alike
            self._most = present(step.work)
            op.exec_type = exec_type
        self.steps.append(step)
        if len(self.steps) > self._steps_end:
            raise CompileError(
                f"Operation '{self.node.name}' ({self.node.model_kind}) would take more than "
                f"{_MOST_STEPS} steps; check the shapes that lead to it."
            )

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
