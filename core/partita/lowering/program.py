"""The flat program: what a graph becomes once its shapes are known. Data only."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from partita.lowering.shapes.symbolic_size import settled

Array = np.ndarray[Any, Any]
"""An array of any shape and element type."""

Spec = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and element type of one input."""

_ARGUMENT_BYTES = 200
"""About what Python keeps for an argument of a step, and for an operation."""

_WORTH_WAITING = 1 << 14
"""Copies of smaller arrays cost nothing."""


def is_record(thing: Any) -> bool:
    """Whether something is a named tuple, or a type of them."""
    return hasattr(thing, "_fields") and issubclass(
        thing if isinstance(thing, type) else type(thing), tuple
    )


def flattened(args: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with the fields of records, and of records in them, in the records' places."""
    flat: list[Any] = []
    for arg in args:
        if isinstance(arg, tuple) and hasattr(arg, "_fields"):
            flat += flattened(arg)
        else:
            flat.append(arg)
    return tuple(flat)


class Operand:
    """A tensor of a program: a shape and type over a buffer. Compared by identity.

    Attributes:
        shape: Concrete dimensions.
        dtype: Element type.
        const: The elements where they are known at compile time, else ``None``.
        base: The operand whose buffer this one views whole, or ``None`` if it has its own.
        lasting: Whether ``const`` lives as long as the compiled model (weights).
    """

    __slots__ = ("_size", "base", "const", "dtype", "lasting", "shape")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        const: Array | None = None,
        base: Operand | None = None,
        lasting: bool = False,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.const = const
        self.base = base
        self.lasting = lasting
        self._size: int | None = None  # told when asked for

    @property
    def root(self) -> Operand:
        """The operand that owns the buffer."""
        return self if self.base is None else self.base

    @property
    def is_constant(self) -> bool:
        """Whether the elements are known at compile time; asked without a look at them."""
        return self.const is not None

    def make_plain(self) -> None:
        """Brings known elements into the form that kernels take: see :func:`plain`."""
        if self.const is not None:
            self.const = plain(self.const)

    def viewed(self, shape: tuple[int, ...]) -> Operand:
        """The same memory with other dimensions of as many elements; a constant stays one."""
        if self.const is None:
            return Operand(shape, self.dtype, base=self.root)
        whole = self.const.ndim == 0 < self.ndim  # stands for an array, see `Builder.computed`
        elements = self.const if whole else self.const.reshape([settled(n) for n in shape])
        return Operand(shape, self.dtype, elements, lasting=self.lasting)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        found = self._size
        if found is None:
            found = self._size = math.prod(self.shape)
        return found

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        kind = "const " if self.is_constant else "view " if self.base is not None else ""
        return f"<Operand {kind}{self.dtype}{list(self.shape)}>"


class Elements:
    """Elements that the host need not keep once a device has them: they can be read back.

    Args:
        array: The elements, or what makes them each time that they are asked for.
    """

    __slots__ = ("_again", "_array")

    def __init__(self, array: Array | Callable[[], Array]) -> None:
        self._array: Array | None = None
        self._again: Callable[[], Array] | None = None
        if callable(array):
            self._again = array
        else:
            self._array = array

    def array(self) -> Array:
        """The elements, made or read back if nobody has them; they are the caller's alone then.

        Raises:
            ValueError: They were released and cannot be had again.
        """
        array, again = self._array, self._again
        if array is not None:
            return array
        if again is None:
            raise ValueError("elements were released without a way to have them again")
        return again()

    def release(self, again: Callable[[], Array]) -> None:
        """Lets the array go.

        Args:
            again: Reads the elements back, in the array's shape and type.
        """
        self._again = again
        self._array = None


class Packed(Operand):
    """A constant made of a weight for a device, which may have its elements for itself.

    Attributes:
        elements: What views of it share.
    """

    __slots__ = ("elements",)

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], elements: Elements) -> None:
        self.elements = elements
        super().__init__(shape, dtype, lasting=True)

    @property
    def const(self) -> Array:
        """The elements; where only the device has them, they are read back: it takes a while."""
        return self.elements.array().reshape(self.shape)

    @const.setter
    def const(self, array: Array | None) -> None:
        if array is not None:
            raise TypeError("the elements of a packed weight are what was made of it")

    @property
    def is_constant(self) -> bool:
        """Always."""
        return True

    def make_plain(self) -> None:
        """Nothing: it is made so."""

    def viewed(self, shape: tuple[int, ...]) -> Packed:
        """The same elements with other dimensions."""
        return Packed(shape, self.dtype, self.elements)


@dataclass(slots=True)
class OpRecord:
    """The operation that steps belong to, for profiles and error messages.

    Attributes:
        name: Its name in the model; for a fused operation that of the main one.
        op_type: The operator.
        origins: Names of all the model's operations it computes.
        exec_type: What computes it: ``"numba"``, ``"numpy"``, ``"view"``, ``"constant"``, ...
    """

    name: str
    op_type: str
    origins: tuple[str, ...]
    exec_type: str = "view"


@dataclass(slots=True)
class Step:
    """One call of a program.

    Attributes:
        fn: What is called.
        args: Its arguments; operands stand for arrays, everything else is passed as it is. There
            are no records among them, only their fields.
        op: The operation it belongs to.
        shares: Whether ``fn`` takes ``tid, nt`` as last arguments and computes share tid of nt.
        work: Estimate of the work, in bytes moved or elementary operations, whichever is larger.
        results: For a step whose result shapes are only known afterwards: the operands that its
            returned arrays are for. Empty for all others.
        cleared: Which of the arguments has to be zero when shares begin, several of them at least:
            where threads note what they have taken. -1: none.
        over: A result and an argument in whose memory it may be made, if that is not needed later:
            no element is read once the one in its place is written. The memory plan reads it.
        when: Whether it is called, if other sizes have another step for the same; 0 if not.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    op: OpRecord
    shares: bool = False
    work: int = 0
    results: tuple[Operand, ...] = ()
    cleared: int = -1
    over: tuple[Operand, Operand] | None = None
    when: int = 1


class ProgramMaker(Protocol):
    """Makes the programs of one graph; :class:`partita.lowering.Specializer` is one."""

    @property
    def value_inputs(self) -> tuple[int, ...]:
        """Indices of inputs whose elements belong to the key of a program."""

    @property
    def plain(self) -> ProgramMaker | None:
        """For programs that may find sizes other than expected, what makes some that do not."""

    def program(self, specs: Sequence[Spec], value_of: Callable[[int], Array]) -> Program:
        """The program for inputs of these shapes and types."""

    def program_for(self, arrays: Sequence[Array]) -> Program:
        """The program for these inputs."""


@dataclass(slots=True)
class Continuation:
    """What remains to be computed after a program, because it depends on values of that run.

    Attributes:
        specializer: Makes the program that goes on, from the arrays of ``inputs``.
        inputs: Operands of the finished program that the rest reads, in the rest's input order.
        outputs: For each output of the rest, the output of the whole that it is.
    """

    specializer: ProgramMaker
    inputs: tuple[Operand, ...]
    outputs: tuple[int, ...]


class Program(abc.ABC):
    """Steps for one set of shapes. Shared by all requests; never changed after it was made.

    Attributes:
        arena_bytes: Size of the arena.
        ops: The operations in order, those without steps included.
        made: What the back-end made of the program with symbolic sizes, once for its class of
            shapes; ``None`` if the graph was emitted for these sizes.
        numbers: What the sizes come to then, by their places; int64.
        facts: What the back-end tells of it once for all requests, which read it only; ``None``
            until then.
    """

    __slots__ = ()

    arena_bytes: int
    ops: list[OpRecord]
    made: Any
    numbers: Array
    facts: Any

    @property
    @abc.abstractmethod
    def inputs(self) -> Sequence[Operand]:
        """One operand per graph input."""

    @property
    @abc.abstractmethod
    def outputs(self) -> Sequence[Operand | None]:
        """One operand per graph output; ``None`` where the rest computes it.

        Operands that are inputs, constants or repeated are to be copied at the end.
        """

    @property
    @abc.abstractmethod
    def steps(self) -> Sequence[Step]:
        """The calls in order; of a recorded program each is made when it is asked for."""

    @property
    @abc.abstractmethod
    def offsets(self) -> Mapping[Operand, int]:
        """Place in the arena of every operand that owns an intermediate buffer."""

    @property
    @abc.abstractmethod
    def owned(self) -> Sequence[Operand | None]:
        """For each output, the operand whose buffer is the output's own memory.

        ``None`` where the output has to be copied at the end.
        """

    @property
    @abc.abstractmethod
    def rest(self) -> Continuation | None:
        """What runs after the steps, or ``None``."""

    @property
    @abc.abstractmethod
    def kept_bytes(self) -> int:
        """What keeping it costs, roughly: its calls, and constants that are nobody else's."""

    @property
    def is_direct(self) -> bool:
        """Whether the steps leave every output in its own memory: there is nothing to collect."""
        late = self.late
        return self.rest is None and all(
            owner is not None and owner not in late for owner in self.owned
        )

    @property
    def late(self) -> Set[Operand]:
        """The results of steps that tell their shapes when they have run."""
        return {operand for step in self.steps for operand in step.results}

    @property
    def works(self) -> Array:
        """:attr:`Step.work` of each step."""
        return np.array([step.work for step in self.steps])

    @property
    def idle(self) -> Sequence[int]:
        """The numbers of the steps that are not called, by :attr:`Step.when`."""
        return ()

    def elements(self, number: int, position: int) -> Array:
        """The elements of a constant argument, by the numbers of the step and of itself."""
        elements: Array = self.steps[number].args[position].const
        return elements


_NO_NUMBERS = np.zeros(0, np.int64)


class EmittedProgram(Program):
    """A program whose graph was emitted for its sizes; arguments are those of :class:`Program`."""

    __slots__ = (
        *("__weakref__", "arena_bytes", "facts", "inputs", "kept_bytes", "made", "numbers"),
        *("offsets", "ops", "outputs", "owned", "rest", "steps"),
    )

    inputs: Sequence[Operand]
    outputs: Sequence[Operand | None]
    owned: Sequence[Operand | None]
    steps: Sequence[Step]
    rest: Continuation | None
    offsets: Mapping[Operand, int]
    kept_bytes: int

    def __init__(
        self,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand | None],
        steps: Sequence[Step],
        offsets: Mapping[Operand, int],
        arena_bytes: int,
        owned: Sequence[Operand | None],
        ops: list[OpRecord],
        rest: Continuation | None,
        kept_bytes: int,
    ) -> None:
        self.inputs, self.outputs, self.owned = inputs, outputs, owned
        self.steps, self.ops, self.rest = steps, ops, rest
        self.offsets, self.arena_bytes = offsets, arena_bytes
        self.kept_bytes = kept_bytes
        self.made, self.numbers, self.facts = None, _NO_NUMBERS, None


def bytes_of_calls(steps: Sequence[Step], ops: Sequence[OpRecord]) -> int:
    """What keeping the calls of a program costs, roughly, without its constants."""
    return _ARGUMENT_BYTES * (sum(len(step.args) for step in steps) + len(ops))


def bytes_of_constants(steps: Sequence[Step]) -> int:
    """What the constants of steps take that are nobody else's."""
    own = {
        id(arg.const): arg.const.nbytes
        for step in steps
        for arg in step.args
        if isinstance(arg, Operand) and not arg.lasting and arg.const is not None
    }
    return sum(own.values())


def plain(array: Array) -> Array:
    """The array as kernels take it: C-contiguous, aligned, native byte order, marked writable.

    Copies only where one of the first three does not hold. Read-only memory (weights mapped from
    a file) is passed on without a copy: kernels never write to inputs, and numba would compile
    every kernel a second time for read-only arrays.
    """
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = in_rows(array)
    elif not flags.writeable and array.dtype != object:
        array = np.asarray(_Memory(array)).view(array.dtype).reshape(array.shape)
    return array


def may_wait(array: Array) -> bool:
    """Whether :func:`plain` would copy a large array only since of where its elements lie.

    Weights in files lie at odd addresses, and those of many products column by column. Most are
    packed anyway, and need no copy of their own for that.
    """
    flags = array.flags
    if array.nbytes < _WORTH_WAITING or not array.dtype.isnative:
        return False
    return not flags.aligned if flags.c_contiguous else flags.f_contiguous and array.ndim == 2


def in_rows(array: Array) -> Array:
    """A copy in C order; a transposed matrix goes by tiles that stay in the cache, faster so."""
    if array.ndim != 2 or not array.flags.f_contiguous:
        return np.array(array, order="C", copy=True)
    rows, columns = array.shape
    result = np.empty((rows, columns), array.dtype)
    for top in range(0, columns, 32):
        for left in range(0, rows, 256):
            result[left : left + 256, top : top + 32] = array[left : left + 256, top : top + 32]
    return result


class _Memory:
    """Exposes the memory of a read-only array as writable bytes and keeps it alive."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """By which numpy makes the array; a decoder has hundreds of them, and needs each once."""
        return {
            "version": 3,
            "shape": (self._array.nbytes,),
            "typestr": "|u1",
            "data": (self._array.ctypes.data, False),
        }
