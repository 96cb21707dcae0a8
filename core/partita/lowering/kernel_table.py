"""Kernel tables: which emitter of a back-end computes which operator, for which element types.

A back-end makes one table, its emitter modules register functions in it::

    TABLE = KernelTable("mydevice.kernels")      # a package; its modules are imported on first use

    @TABLE.register("Relu", dtypes=FLOATS)
    def relu(b, node, x):
        y = b.empty(x.shape, x.dtype)
        b.call(relu_kernel, x, y)
        return y
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import ml_dtypes
import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering.graph import Graph, Node, Value
from partita.model.model import Port
from partita.system.modules import import_modules
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.tensors.cache_rows import ATTRIBUTES, OF_NUMBERS, is_quantized

DTypes = frozenset[np.dtype[Any]]

F32: DTypes = frozenset({np.dtype(np.float32)})
FLOATS: DTypes = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
HALVES: DTypes = frozenset({np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})
ALL_FLOATS: DTypes = FLOATS | HALVES
SIGNED: DTypes = frozenset(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UNSIGNED: DTypes = frozenset(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTS: DTypes = SIGNED | UNSIGNED
INT64: DTypes = frozenset({np.dtype(np.int64)})
INDICES: DTypes = frozenset({np.dtype(np.int32), np.dtype(np.int64)})
BOOL: DTypes = frozenset({np.dtype(np.bool_)})
CODES: DTypes = frozenset({np.dtype(np.int8)})
"""Of caches whose rows have scales."""

Check = Callable[[Node], Reason | None]
"""Refuses attributes or shapes by returning a reason; what is unknown is to be accepted."""


class _Typed(Protocol):
    """What has an element type: a value of a graph, an operand."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The type; ``None`` if it is not known."""


def refused_attribute(node: Node, due: Mapping[str, Any]) -> Reason | None:
    """A reason if an attribute is not as it is due, which is also what it is if it is left out."""
    for name, wanted in due.items():
        found = node.attrs.get(name, wanted)
        if found != wanted:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"{name} is {found}; takes {wanted}")
    return None


def refused_choice(node: Node, name: str, *choices: Any) -> Reason | None:
    """A reason if an attribute is none of some values, of which the first is its default."""
    found = node.attrs.get(name, choices[0])
    if found in choices:
        return None
    taken = ", ".join(map(str, choices))
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"{name} is {found!r}; takes {taken}")


def refused_input(node: Node, left_out: Mapping[int, str]) -> Reason | None:
    """A reason if one of some inputs, by position, is given."""
    for place, name in left_out.items():
        if node.input(place) is not None:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"input {place}, {name}, is given")
    return None


def refused_caches(node: Node, numbers: DTypes, *caches: _Typed | None) -> Reason | None:
    """A reason if caches of a GroupQueryAttention are not of the type that its attributes tell.

    Args:
        node: The operation.
        numbers: Types taken of caches whose elements are numbers by themselves.
        caches: Past keys and values, ``None`` if they are left out; types may be unknown.
    """
    quantized = is_quantized(node.attrs)
    if reason := refused_attribute(node, ATTRIBUTES if quantized else OF_NUMBERS):
        return reason
    due, words = (CODES, "int8") if quantized else (numbers, "floats")
    for place, cache in enumerate(caches, 3):
        dtype = None if cache is None else cache.dtype
        if (cache is None and quantized) or not (dtype is None or dtype in due):
            text = f"input {place} is {dtype or 'left out'}; these attributes are for {words}"
            return Reason(ReasonCode.UNSUPPORTED_DTYPE, text)
    return None


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table.

    Attributes:
        op_type: The operator.
        domain: Its domain; ``"partita"`` for what fusion makes.
        emit: The emitter.
        dtypes: Allowed element types: one set for all inputs, or a set per input position (inputs
            that are not named take anything).
        check: Refuses attributes or shapes.
        since: First opset version it is right for.
        until: Last opset version it is right for, or ``None``.
        folds: Whether it may run at compile time on constants.
        values: Positions of inputs whose elements must be known when the shapes are.
        outputs: Most outputs that are computed, or ``None`` for any number.
        in_place: By output position the position of an input that the output may be made in. Where
            both operands turn out to be the same memory, the kernels copy nothing, read nothing
            that they have overwritten, and come to the same if they run twice.
    """

    op_type: str
    domain: str
    emit: Callable[..., Any]
    dtypes: DTypes | Mapping[int, DTypes]
    check: Check | None
    since: int
    until: int | None
    folds: bool
    values: tuple[int, ...]
    outputs: int | None
    in_place: Mapping[int, int]

    @property
    def arity(self) -> tuple[int, int | None]:
        """Fewest and most inputs that the emitter takes; most is ``None`` for any number."""
        return _arity(self.emit)

    def refuse(self, node: Node, dtypes: Sequence[np.dtype[Any] | None]) -> Reason | None:
        """Why the emitter cannot compute the node for inputs of these types, or ``None``.

        A type of ``None`` is unknown (or the input absent) and accepted.
        """
        fewest, most = self.arity
        if len(dtypes) < fewest or (most is not None and len(dtypes) > most):
            upper = "any number" if most is None else most
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"{len(dtypes)} inputs; takes {fewest} to {upper}",
            )
        used = [i for i, value in enumerate(node.outputs) if value is not None]
        if self.outputs is not None and used and used[-1] >= self.outputs:
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"output {used[-1]} is used; computes the first {self.outputs} only",
            )
        for position, dtype in enumerate(dtypes):
            if dtype is None:
                continue
            allowed = self.allowed(position)
            if allowed is not None and dtype not in allowed:
                names = ", ".join(sorted(map(_type_name, allowed)))
                text = f"input {position} is {_type_name(dtype)}; takes {names}"
                return Reason(ReasonCode.UNSUPPORTED_DTYPE, text)
        if self.check is None:
            return None
        try:
            return self.check(node)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            return Reason(
                ReasonCode.UNSUPPORTED_ATTRIBUTE,
                f"its attributes cannot be understood ({type(error).__name__}: {error})",
            )

    def allowed(self, position: int) -> DTypes | None:
        """Element types taken at an input position; ``None`` is all."""
        return self.dtypes if isinstance(self.dtypes, frozenset) else self.dtypes.get(position)


@functools.cache  # of a table's hundreds of emitters a model needs few, and each many times
def _arity(emit: Callable[..., Any]) -> tuple[int, int | None]:
    """See :attr:`Entry.arity`."""
    parameters = list(inspect.signature(emit).parameters.values())[2:]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    fewest = sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters)
    return fewest, None if several else len(parameters)


F = TypeVar("F", bound=Callable[..., Any])


class KernelTable:
    """Emitters by operator. Thread-safe.

    Args:
        package: Name of the package whose modules register emitters; imported when the table is
            first asked, so that a new module needs no further entry.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self.entries: dict[tuple[str, str], list[Entry]] = {}
        self._lock = InterruptSafeLock()
        self._loaded = False

    def register(
        self,
        *op_types: str,
        domain: str = "",
        dtypes: DTypes | Mapping[int, DTypes] = FLOATS,
        check: Check | None = None,
        since: int = 1,
        until: int | None = None,
        folds: bool = True,
        values: Sequence[int] = (),
        outputs: int | None = None,
        in_place: Mapping[int, int] | None = None,
    ) -> Callable[[F], F]:
        """Registers an emitter ``emit(builder, node, *operands)`` for operators of one domain.

        The emitter's signature tells how many inputs it takes.

        Args:
            op_types: The operators; the emitter tells several apart by ``node.op_type``.
            domain: Their domain; ``"partita"`` for what fusion makes.
            dtypes: Element types that it takes: one set for all inputs, or a set per input position
                (inputs that are not named take anything).
            check: Says why it refuses a node's attributes or shapes, if it does.
            since: First opset version it is right for.
            until: Last opset version it is right for; ``None`` for all later ones.
            folds: Whether it may run at compile time on constants.
            values: Positions of inputs whose elements must be known when the shapes are.
            outputs: How many outputs it computes at most; ``None`` for any number.
            in_place: By position of an output that of the input in whose memory it may be made.

        Returns:
            A decorator that registers the emitter and gives it back.
        """

        def add(emit: F) -> F:
            for op_type in op_types:
                entry = Entry(
                    op_type,
                    domain,
                    emit,
                    dtypes,
                    check,
                    since,
                    until,
                    folds,
                    tuple(values),
                    outputs,
                    in_place or {},
                )
                self.entries.setdefault((domain, op_type), []).append(entry)
            return emit

        return add

    def find(self, domain: str, op_type: str, version: int) -> Entry | None:
        """The entry for an operator of an opset version, or ``None``."""
        self.load()
        for entry in self.entries.get((domain, op_type), ()):
            if entry.since <= version and (entry.until is None or version <= entry.until):
                return entry
        return None

    def in_place(self, node: Node) -> Mapping[int, int]:
        """By output position of a node the input that its emitter can make the output in."""
        entry = self.find(node.domain, node.op_type, node.version)
        return {} if entry is None else entry.in_place

    def missing(self, node: Node) -> Reason:
        """Why :meth:`find` found nothing for a node: no such operator, or not of this opset."""
        self.load()
        known = self.entries.get((node.domain, node.op_type), ())
        if not known:
            return Reason(ReasonCode.UNSUPPORTED_OP, f"no kernel for {node.kind}")
        ranges = ", ".join(f"{entry.since} to {entry.until or 'latest'}" for entry in known)
        return Reason(
            ReasonCode.UNSUPPORTED_OP, f"{node.kind} of opset {node.version}; takes opsets {ranges}"
        )

    def load(self) -> None:
        """Imports the package's modules, once."""
        if self._loaded:
            return
        with self._lock:
            if not self._loaded:
                import_modules(importlib.import_module(self._package))
                self._loaded = True


def in_place_outputs(
    graph: Graph,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    of_node: Callable[[Node], Mapping[int, int]],
) -> dict[int, int]:
    """By the index of an output that of the input that it can be written over.

    Such an input is read by one node alone, and once; the node makes the output of it. Whoever else
    reads the output reads it after it was made, wherever it lies. Where dimensions are symbols, a
    run tells whether both have one shape.

    Args:
        graph: The graph.
        inputs: The ports of its inputs.
        outputs: The ports of its outputs.
        of_node: For a node, by output position the position of the input that it can be made in.
    """
    uses = graph.uses()
    places = {value: index for index, value in enumerate(graph.inputs)}
    found: dict[int, int] = {}
    for index, value in enumerate(graph.outputs):
        node = value.producer
        if node is None or graph.outputs.count(value) > 1:
            continue
        source = _source(node, value, of_node(node))
        if source is None or source not in places or source in graph.outputs:
            continue
        given, made = inputs[places[source]], outputs[index]
        if uses[source] == [node] and _are_alike(given, made):
            found[index] = places[source]
    return found


def _are_alike(given: Port, made: Port) -> bool:
    """Whether two ports have one type, and no dimension tells their shapes apart."""
    if given.dtype != made.dtype or given.shape is None or made.shape is None:
        return False
    if len(given.shape) != len(made.shape):
        return False
    pairs = zip(given.shape, made.shape, strict=True)
    return all(a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in pairs)


def _source(node: Node, value: Value, pairs: Mapping[int, int]) -> Value | None:
    """The input of a node that one of its outputs can be made in."""
    position = pairs.get(node.outputs.index(value))
    return None if position is None else node.input(position)


def _type_name(dtype: np.dtype[Any]) -> str:
    """ONNX's name of strings, which are objects in numpy; numpy's of all other types."""
    return "string" if dtype.hasobject else dtype.name
