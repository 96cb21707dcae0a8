"""The builder: what emitters call to record the steps of a program."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError
from partita.lowering.emission.operand_builder import OperandBuilder
from partita.lowering.emitter import GraphBody
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array, Operand, OpRecord, ProgramMaker, Step, flattened
from partita.lowering.shapes.fold_allowance import FoldAllowance
from partita.lowering.shapes.symbolic_elements import is_symbolic
from partita.lowering.shapes.symbolic_size import (
    Number,
    evaluated,
    has_varied,
    holds_sizes,
    never_less,
    present,
)
from partita.lowering.transformed_weights import Prepacked

_MOST_STEPS = 1 << 15
"""No operation takes more steps, beside some for each input and output, which a file has to name.

One that claims 2**31 channels is cut in as many pieces.
"""

MOST_TABLE_BYTES = 1 << 26
"""Tables of more are not kept: they take longer than 0.1 s, and more than the tensors of most runs.
"""


def _both(one: int, other: int) -> int:
    return int(bool(one) and bool(other))


def _repeated(element: Any, *shape: int) -> Array:
    return np.broadcast_to(element, shape)


def _write(fn: Callable[..., Array], args: tuple[Any, ...], y: Array) -> None:
    y[...] = fn(*args)


class Builder(OperandBuilder):
    """Records the steps of one program. Emitters use its methods; engines never see it.

    Memory, constants and transformed weights are :class:`OperandBuilder`'s.

    Attributes:
        options: The back-end's :attr:`Target.options`.

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
        super().__init__(prepacked, allowance)
        self.steps: list[Step] = []
        self.ops: list[OpRecord] = []
        self.options = options
        self._operand_of = operand_of
        self._body = body
        self._made: dict[tuple[Operand, Any], Operand] = {}
        self._most = 0  # work of the node's largest step, which profiles name
        self._steps_end = _MOST_STEPS

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
        decision that tells recordings apart.

        Args:
            chosen: Whether this way is taken; of all ways to a result exactly one is.
        """
        steps, made = len(self.steps), len(self._made)
        yield
        if not isinstance(chosen, int):
            while len(self._made) > made:  # other nodes may not read what other sizes do not make
                self._made.popitem()
            for step in self.steps[steps:]:
                is_free = isinstance(step.when, int)
                step.when = chosen if is_free else evaluated(_both, step.when, chosen)

    @contextlib.contextmanager
    def if_any(self, elements: Number) -> Iterator[bool]:
        """Tells whether there is anything to record for a result of so many elements.

        Sizes that leave none are no decision, once others of their class have decided otherwise:
        steps that are recorded within it are not called for them.

        Args:
            elements: How many there are.
        """
        if has_varied([elements]) and not never_less(elements, 1):
            with self.only_if(elements):
                yield True
        else:
            yield bool(elements)

    def graph_body(self, graph: Graph) -> GraphBody:
        """A runner for a body, to be passed to a step; see :class:`GraphBody`."""
        captured = [
            (value, operand)
            for value in graph.captures()
            if not (operand := self._operand_of(value)).is_constant or is_symbolic(operand)
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
        moved = sum(arg.nbytes for arg in args if isinstance(arg, Operand))
        most = moved if work is None else evaluated(max, work, moved)
        step = Step(fn, args, op, shares, most, results)
        if present(step.work) >= self._most:  # what a profile says for all sizes alike
            self._most = present(step.work)
            op.exec_type = exec_type
        self.steps.append(step)
        if len(self.steps) > self._steps_end:
            raise CompileError(
                f"Operation '{self.node.name}' ({self.node.model_kind}) would take more than "
                f"{_MOST_STEPS} steps; check the shapes that lead to it."
            )
