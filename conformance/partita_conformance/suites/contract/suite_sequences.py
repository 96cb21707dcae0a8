"""Further checks of suite ``request``: sequences as inputs and results."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx

from partita.tensors.sequence_values import boxed, unboxed
from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.inputs.models import Array, parse
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require

SEQUENCES = (
    "g (seq(float[2,3]) s, float[2,3] x) => (seq(float[2,3]) y) { y = SequenceInsert(s, x) }",
    "g (seq(float[2,3]) s, float[2,3] x, int64 i) => (seq(float[2,3]) y) {"
    " y = SequenceInsert(s, x, i) }",
    "g (seq(float[2,3]) s, int64 i) => (seq(float[2,3]) y) { y = SequenceErase(s, i) }",
    "g (seq(float[2,3]) s, int64 i) => (float[2,3] y) { y = SequenceAt(s, i) }",
    "g (seq(float[2,3]) s) => (int64 y) { y = SequenceLength(s) }",
    "g (seq(float[2,3]) s) => (float[A,3] y) { y = ConcatFromSequence <axis = 0> (s) }",
    "g (seq(float[2,3]) s) => (float[A,2,3] y) {"
    " y = ConcatFromSequence <axis = 0, new_axis = 1> (s) }",
    "g (seq(float[2,3]) s) => (float[2,A,3] y) {"
    " y = ConcatFromSequence <axis = -2, new_axis = 1> (s) }",
)


def _taken(bench: Bench) -> list[tuple[str, onnx.ModelProto]]:
    """The models that the device takes, with their texts.

    Raises:
        NotApplicableError: It takes none.
    """
    read = [(text, parse(text)) for text in SEQUENCES]
    found = [(text, proto) for text, proto in read if not bench.refusals(proto)]
    if not found:
        raise NotApplicableError("the device takes no sequences")
    return found


@check("request", values=True)
def sequences_are_only_read(bench: Bench) -> None:
    """Sequences that are inputs hold the same tensors after a run as before."""
    for text, proto in _taken(bench):
        compiled = bench.compile(proto)
        for place in (1, -1, 0, -2):  # counted from the end, too
            _read_only(bench, proto, compiled, place, text.partition("{")[2])


@check("request", values=True)
def sequences_may_change_their_length(bench: Bench) -> None:
    """A request is given longer and shorter sequences in turn, and gives as many tensors back."""
    for text, proto in _taken(bench):
        request = bench.compile(proto).create_infer_request()
        names = {value.name for value in proto.graph.input}
        more = {"x": np.full((2, 3), 7, np.float32), "i": np.array(0, np.int64)}
        for turn, count in enumerate((3, 1, 4, 2)):
            given = [np.full((2, 3), 10 * turn + n, np.float32) for n in range(count)]
            feeds = {"s": boxed(given), **{n: a for n, a in more.items() if n in names}}
            have = [unboxed(array) for array in request.infer(feeds).to_tuple()]
            due = [unboxed(array) for array in bench.expected(proto, feeds)]
            what = f"{text.partition('{')[2]} of {count} tensors in run {turn + 1}"
            compare(have, due, what)


_MANY_TENSORS = 300
_CHANGES: dict[str, Callable[[list[Array]], object]] = {
    "as they come": lambda tensors: None,
    "the last but one changed where it lies": lambda tensors: np.add(
        tensors[-2], 5, out=tensors[-2]
    ),
    "one moved to the front": lambda tensors: tensors.insert(0, tensors.pop(-2)),
    "one replaced": lambda tensors: tensors.__setitem__(-2, tensors[-2] * 3),
}
"""What happens to a sequence between two runs."""


@check("request", values=True)
def sequences_are_read_anew(bench: Bench) -> None:
    """Sequences of few tensors and of many count in each run as they are then.

    Tensors may have been changed where they lie, moved, or replaced by others.
    """
    for text, proto in _taken(bench):
        request = bench.compile(proto).create_infer_request()
        names = {value.name for value in proto.graph.input}
        for count in (3, _MANY_TENSORS):
            given = [np.full((2, 3), n, np.float32) for n in range(count)]
            last = {"x": np.full((2, 3), 7, np.float32), "i": np.array(count - 2, np.int64)}
            more = {name: array for name, array in last.items() if name in names}
            held = boxed(given)
            for what, change in _CHANGES.items():
                change(given)
                unboxed(held)[:] = given
                for sequence in (held, boxed([*given])) if count < _MANY_TENSORS else (held,):
                    feeds = {"s": sequence, **more}
                    have = [unboxed(array) for array in request.infer(feeds).to_tuple()]
                    due = [unboxed(array) for array in bench.expected(proto, feeds)]
                    what_differs = f"{text.partition('{')[2]} of {count} tensors, {what}"
                    compare(have, due, what_differs)


_OF_ANY_SHAPE = (
    "g (seq(float) s, float x) => (seq(float) y) { y = SequenceInsert(s, x) }",
    "g (seq(float) s, int64 i) => (seq(float) y) { y = SequenceErase(s, i) }",
    "g (seq(float) s, int64 i) => (float y) { y = SequenceAt(s, i) }",
    "g (seq(float) s) => (int64 y) { y = SequenceLength(s) }",
    "g (seq(float) s) => (seq(float) y) { y = Identity(s) }",
)
_SHAPES_IN_TURN: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((2, 3), (3, 2), (6,)),
    ((6,),),
    (),
    ((0, 4), (), (1, 1, 2)),
    ((2, 3), (2, 3), (2, 3), (2, 3)),
    (),
    ((), ()),
)


@check("request", values=True)
def sequences_hold_tensors_of_any_shape(bench: Bench) -> None:
    """Sequences of tensors of other shapes and ranks, and of none at all, take turns.

    Tensors of a result are its own: they stay as they are when those that came in are overwritten.
    """
    tried = 0
    for text in _OF_ANY_SHAPE:
        proto = parse(text)
        for value in (*proto.graph.input, *proto.graph.output):
            kind = value.type
            tensor = (
                kind.sequence_type.elem_type.tensor_type
                if kind.HasField("sequence_type")
                else kind.tensor_type
            )
            if tensor.elem_type == onnx.TensorProto.FLOAT:
                tensor.ClearField("shape")
        if bench.refusals(proto):
            continue
        tried += 1
        request = bench.compile(proto).create_infer_request()
        names = {value.name for value in proto.graph.input}
        for turn, shapes in enumerate(_SHAPES_IN_TURN):
            if not shapes and "i" in names:
                continue  # there is no place in it
            given = [np.full(shape, 10 * turn + n, np.float32) for n, shape in enumerate(shapes)]
            feeds: dict[str, Any] = {"s": boxed(given)}
            more: dict[str, Any] = {"x": np.full((2, 2), 7, np.float32)}
            more["i"] = np.array(len(shapes) - 1, np.int64)
            feeds |= {n: a for n, a in more.items() if n in names}
            due = [unboxed(copy.deepcopy(array)) for array in bench.expected(proto, feeds)]
            have = [unboxed(array) for array in request.infer(feeds).to_tuple()]
            what = f"{text.partition('{')[2]} of tensors of shapes {shapes} in run {turn + 1}"
            compare(have, due, what)
            for array in (*given, more["x"]):
                array[...] = -77
            compare(have, due, f"{what}, after its inputs were overwritten")
    if not tried:
        raise NotApplicableError("the device takes no sequences of tensors of any shape")


_OPTIONALS = (
    "g (optional(float[2,3]) o) => (bool y) { y = OptionalHasElement(o) }",
    "g (optional(float[2,3]) o) => (float[2,3] y) { h = OptionalHasElement(o)"
    " y = If (h) <then_branch = t () => (float[2,3] a) { a = OptionalGetElement(o) },"
    " else_branch = e () => (float[2,3] b) { b = Identity(w) }> }",
    "g (optional(float[2,3]) o) => (optional(float[2,3]) y) { y = Identity(o) }",
    "g (optional(float[N,3]) o) => (optional(float[N,3]) y, bool h)"
    " { y = Identity(o) h = OptionalHasElement(o) }",
)


@check("request", values=True)
def optionals_come_and_go(bench: Bench) -> None:
    """An optional that is an input is there in one run, absent in the next, or without elements."""
    tried = 0
    for text in _OPTIONALS:
        weights = {"w": np.full((2, 3), 0.5, np.float32)} if "(w)" in text else None
        proto = parse(text, weights)
        proto.opset_import[0].version = 18
        if bench.refusals(proto):
            continue
        tried += 1
        request = bench.compile(proto).create_infer_request()
        rows: tuple[int | None, ...] = (2, None, 2, 2, None, None, 2)
        if "N" in text:
            rows += 0, None, 3, 0, 0, 2
        for turn, size in enumerate(rows):
            given = None if size is None else np.full((size, 3), turn, np.float32)
            feeds = {"o": boxed(given)}
            have = [unboxed(array) for array in request.infer(feeds).to_tuple()]
            due = [unboxed(array) for array in bench.expected(proto, feeds)]
            state = "that is absent" if size is None else f"of {size} rows"
            compare(have, due, f"{text.partition('{')[2]} {state} in run {turn + 1}")
    if not tried:
        raise NotApplicableError("the device takes no optionals")


def _splits() -> Iterator[tuple[str, str, dict[str, np.ndarray[Any, Any]]]]:
    """Texts of models that split, along each axis, kept or not, into parts of one row and others.

    With each, what it is, and its constants.
    """
    for axis, keep in itertools.product((0, 1, -1), (None, 0, 1)):
        size = (3, 4)[axis]
        sizes = {"no": None, "1": 1, "2": 2, "ones": [1] * size, "1, more": [1, size - 1]}
        sizes |= {"more, 1": [size - 1, 1], "all": [size], "all by number": size}
        for name, given in sizes.items():
            more = "" if given is None else ", p"
            kept = "" if keep is None else f", keepdims = {keep}"
            split = f"SplitToSequence <axis = {axis}{kept}> (x{more})"
            constants = {} if given is None else {"p": np.array(given, np.int64)}
            yield f"{split} of {name} parts", split, constants


@check("request", values=True)
def sequences_hold_the_parts_that_are_due(bench: Bench) -> None:
    """Parts of a tensor keep or lose their axis as ONNX says, whatever their sizes are given by."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tried = 0
    for what, split, constants in _splits():
        proto = parse(f"g (float[3,4] x) => (seq(float) y) {{ y = {split} }}", constants)
        if bench.refusals(proto):
            continue
        tried += 1
        have = [unboxed(array) for array in bench.compile(proto)({"x": x}).to_tuple()]
        compare(have, [unboxed(array) for array in bench.expected(proto, {"x": x})], what)
    if not tried:
        raise NotApplicableError("the device splits nothing into sequences")


def _read_only(bench: Bench, proto: Any, compiled: Any, place: int, what: str) -> None:
    """Runs a model of a sequence of three twice, and looks at its tensors."""
    given = [np.full((2, 3), number, np.float32) for number in range(3)]
    more = {"x": np.full((2, 3), 7, np.float32), "i": np.array(place, np.int64)}
    names = {value.name for value in proto.graph.input}
    feeds = {"s": boxed(given), **{n: a for n, a in more.items() if n in names}}
    for _ in range(2):
        have = [unboxed(array) for array in compiled(feeds).to_tuple()]
        compare(have, [unboxed(array) for array in bench.expected(proto, feeds)], what)
        for number, array in enumerate(given):
            require(bool(np.all(array == number)), f"{what}: a run writes to the sequence.")
        require(len(given) == 3, f"{what}: a run changes the sequence that it is given.")
