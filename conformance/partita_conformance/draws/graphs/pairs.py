"""Random models of an operator and each other one behind it, in the ways in which values are read.

All models of an operator have many inputs, each the start of a few operations of its own: what one
draw shows, another one does not hide, and one compilation tries them all.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Draw, Rng, one_of
from partita_conformance.draws.graphs.builder import LINEAR, GraphDraw, Value, elements
from partita_conformance.draws.graphs.onto import OPERATORS, Link, onto
from partita_conformance.draws.vary import schema_of

OPSETS = (18, 13, 21, 11, 17, 9, 23, 12)
"""Of models, in turn: every other one is new."""
_TRIED = 8
_MOST_ELEMENTS = 400
_SIZES = (1, 2, 2, 3, 4, 4)
_AGAIN = ("Neg", "Relu", "Abs", "Sigmoid")


def rng_of(*words: Any) -> Rng:
    """Random numbers that are the same for the same words."""
    return np.random.default_rng(zlib.crc32("/".join(map(str, words)).encode()))


def graph_of(rng: Rng, first: str, number: int) -> GraphDraw:
    """An empty model for the draws of an operator: its opset goes by their number."""
    turn = zlib.crc32(first.encode()) + number
    known = [opset for opset in OPSETS if schema_of(first, opset)]
    return GraphDraw(known[turn % len(known)], rng, one_of(rng, 0.0, 0.0, 0.4))


_NUMBERS = (*[np.float32] * 8, np.float64, np.int64)
_TYPES: Mapping[str, Sequence[Any]] = {
    "Not": (np.bool_,),
    "DequantizeLinear": (np.uint8, np.int8),
    "OneHot": (np.int64,),
}


def start(graph: GraphDraw, op: str) -> tuple[Link, list[int], Any] | None:
    """An operator, and the shape and type of what it is to read, both drawn."""
    rng = graph.rng
    for _ in range(_TRIED):
        shape = shape_of(rng)
        dtype = one_of(rng, *_TYPES.get(op, _NUMBERS))
        link = onto(op, rng, shape, dtype)
        if link is not None:
            return link, shape, dtype
    return None


def shape_of(rng: Rng) -> list[int]:
    """Sizes of one to five axes, of which some are one; often those of an image."""
    if rng.random() < 0.35:
        return [one_of(rng, 1, 2), one_of(rng, 4, 2, 6, 8), one_of(rng, 4, 2), one_of(rng, 4, 6)]
    sizes = [one_of(rng, *_SIZES) for _ in range(one_of(rng, 1, 2, 2, 3, 3, 4, 5))]
    return [sizes[0]] * len(sizes) if rng.random() < 0.2 else sizes


def behind(graph: GraphDraw, op: str, value: Value, *more: Value) -> list[Value] | None:
    """An operator on a value that there is; ``None`` if it takes none like it."""
    shape = value.shape
    if shape is None or 0 in shape or int(np.prod(shape)) > _MOST_ELEMENTS:
        return None
    link = onto(op, graph.rng, shape, value.dtype)
    return None if link is None else graph.apply(link, value, *more)


def pairs_of(first: str, number: int) -> GraphDraw:
    """A model of an operator and every other one of all behind it, sometimes with a third one.

    Those that stand behind it in one model are not those of the next number, but for the ones that
    compilers look for most. Now and then the value between is an output too, or another operator or
    a branch reads it.
    """
    rng = rng_of("pairs", first, number)
    graph = graph_of(rng, first, number)
    for second in (*OPERATORS[number % 2 :: 2], *FUSED.get(first, "").split() * _FUSED_DRAWS):
        _pair(graph, first, second)
    return graph


_FUSED_DRAWS = 2
_ALONG_AN_AXIS = "Softmax LogSoftmax ArgMax Concat Split ReduceMean"
_AFTER_SUMS = (
    f"BatchNormalization Add Mul Sub Div Relu Clip PRelu Reshape Transpose {_ALONG_AN_AXIS}"
)
_AFTER_SCALES = (
    "Conv ConvTranspose MatMul Gemm MaxPool AveragePool ReduceMax ReduceSum Softmax Mul Add"
)
_AROUND_CODES = "Transpose Reshape Slice Concat MaxPool QuantizeLinear MatMul Relu Gather Add"
FUSED: Mapping[str, str] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm"), _AFTER_SUMS),
    **dict.fromkeys(("Mul", "Add", "Sub", "Div", "BatchNormalization", "Neg"), _AFTER_SCALES),
    **{op: f"{op} ReduceSum ReduceMax" for op in ("ReduceSum", "ReduceMax", "ReduceMin")},
    **dict.fromkeys(("ReduceMean", "ReduceProd"), "Reshape Squeeze Unsqueeze ReduceMean Mul"),
    **dict.fromkeys(("AveragePool", "MaxPool", "InstanceNormalization", "Resize"), _ALONG_AN_AXIS),
    "Pad": "Transpose Conv ConvTranspose MaxPool AveragePool Pad Slice",
    "Transpose": "MatMul Gemm Einsum Pad Pad Transpose Softmax ReduceSum ArgMax Concat Add Reshape"
    " Squeeze Split",
    "Softmax": "ArgMax Log TopK ReduceMax ReduceSum Mul",
    "Slice": "Slice Pad Concat Gather Slice",
    "Gather": "Gather Slice Transpose",
    "Concat": "Split Slice Gather Concat ReduceSum",
    "Split": "Concat Slice Relu Transpose",
    "Expand": "Add Mul Sub Div Expand MatMul",
    "Tile": "Add Slice Tile Reshape",
    "Reshape": "Reshape Transpose Squeeze Flatten MatMul",
    "Squeeze": "Unsqueeze Squeeze Reshape",
    "Unsqueeze": "Squeeze Unsqueeze Expand Add Concat",
    "OneHot": "MatMul MatMul MatMul Gather Transpose Mul ReduceSum Cast",
    "Einsum": "Transpose Reshape Add Softmax Einsum MatMul",
    "SpaceToDepth": "DepthToSpace Conv",
    "DepthToSpace": "SpaceToDepth Conv",
    "Cast": "Cast ReduceMean Greater",
    "Clip": "Clip Relu Min Max QuantizeLinear",
    "Relu": "Clip Relu QuantizeLinear MaxPool",
    "QuantizeLinear": "DequantizeLinear DequantizeLinear",
    "DequantizeLinear": _AROUND_CODES,
}
"""Operators that compilers make one of two, move or cancel most: these are drawn more often."""


def _pair(graph: GraphDraw, first: str, second: str) -> None:
    rng = graph.rng
    for _ in range(_TRIED):
        started = start(graph, first)
        if started is None:
            return
        link, shape, dtype = started
        source = graph.input(elements(rng, shape, dtype, first))
        made = graph.apply(link, source)
        if made is None:
            continue
        between = made[int(rng.integers(len(made)))]
        ends = behind(graph, second, between)
        if ends is None:
            continue
        if rng.random() < 0.35:
            third = behind(graph, one_of(rng, *OPERATORS), ends[0])
            ends = ends if third is None else third
        for end in ends if rng.random() < 0.5 else ends[-1:]:
            graph.give(end)
        how = rng.random()
        if how < 0.12:
            graph.give(between)
        elif how < 0.24 and between.dtype == np.float32:
            for value in behind(graph, one_of(rng, *_AGAIN), between) or ():
                graph.give(value)
        elif how < 0.3 and between.dtype == np.float32:
            graph.give(graph.branch(between))
        return


_ROUNDS = 4
_SIBLINGS = 5
_JOINS = ("Concat", "Add", "Mul", "Sub", "MatMul", "Div", "Max")


def readers_of(op: str, number: int) -> GraphDraw:
    """A model in which an operator stands several times beside itself, joined or not.

    Of one input: each time with other weights, or one of its attributes another one, or an optional
    input in another's place. Of two: with one thing different, and both joined. And joined with
    what it read.
    """
    rng = rng_of("beside", op, number)
    graph = graph_of(rng, op, number)
    for turn in range(_SIBLINGS):
        _siblings(graph, op, turn)
    for _ in range(_ROUNDS):
        _joined(graph, op)
        _residual(graph, op)
        _viewed(graph, op)
    return graph


def _siblings(graph: GraphDraw, op: str, turn: int) -> None:
    """Two or three of an operator on one input."""
    started = start(graph, op)
    if started is None:
        return
    link, shape, dtype = started
    source = graph.input(elements(graph.rng, shape, dtype, op))
    links = [link, _other(graph.rng, link) if turn % 2 else near(graph.rng, link), *gaps(link)]
    if op in LINEAR:
        links = [link, *(_other(graph.rng, link) for _ in range(1 + turn % 2))]
    for one in links:
        for value in graph.apply(one, source) or ():
            graph.give(value)


def _other(rng: Rng, link: Link) -> Link:
    """Another draw of an operator on the same value; of weights, at the same place."""
    array = link.draw.inputs[link.place]
    assert array is not None  # noqa: S101  # the place of the value
    found = link
    for _ in range(_TRIED):
        found = onto(link.op, rng, array.shape, array.dtype) or link
        same = found.place == link.place and len(found.draw.constant) == len(link.draw.constant)
        if same or link.op not in LINEAR:
            break
    return found


def _joined(graph: GraphDraw, op: str) -> None:
    """What an operator makes of two inputs, with one thing different, joined."""
    started = start(graph, op)
    if started is None:
        return
    link, shape, dtype = started
    rng = graph.rng
    sides = []
    for one in (link, near(rng, link)):
        source = graph.input(elements(rng, shape, dtype, op))
        made = graph.apply(one, source)
        if made is None:
            return
        sides.append(made[-1])
    _join(graph, one_of(rng, "Concat", "Concat", *_JOINS), *sides)


def _join(graph: GraphDraw, op: str, one: Value, other: Value) -> None:
    """An operator of two values of one type, in either order."""
    known = one.shape is not None and other.shape is not None
    if not known or one.dtype != other.dtype or one.dtype == np.bool_:
        return
    arrays = [np.ones(value.shape or (), value.dtype) for value in (one, other)]
    axis = int(graph.rng.integers(len(one.shape))) if one.shape else 0
    drawn = Draw(arrays, {"axis": axis} if op == "Concat" else {})
    values = [one, other]
    if graph.rng.random() < 0.4:
        drawn, values = dataclasses.replace(drawn, inputs=arrays[::-1]), values[::-1]
    whole = np.dtype(one.dtype).kind in "iu"
    if whole and op not in ("Concat", "Add", "Max"):
        return
    for value in graph.apply(Link(op, drawn, 0), *values) or ():
        graph.give(value)


def _residual(graph: GraphDraw, op: str) -> None:
    """What an operator makes of a value, joined with the value."""
    started = start(graph, op)
    if started is None:
        return
    link, shape, dtype = started
    source = graph.input(elements(graph.rng, shape, dtype, op))
    made = graph.apply(link, source)
    if made is not None:
        _join(graph, one_of(graph.rng, *_JOINS), source, made[-1])


_VIEWS = ("Reshape", "Flatten", "Unsqueeze", "Squeeze", "Identity", "Slice", "Transpose")


def _viewed(graph: GraphDraw, op: str) -> None:
    """A value, a view of it, then an operator on the value, and one that reads the view last."""
    rng = graph.rng
    made = behind(
        graph, one_of(rng, *_AGAIN), graph.input(elements(rng, [1, 2, 4], np.float32, op))
    )
    if made is None:
        return
    view = behind(graph, one_of(rng, *_VIEWS), made[0])
    after = behind(graph, op, made[0])
    if view is None or after is None:
        return
    graph.give(after[-1])
    for value in behind(graph, one_of(rng, *_AGAIN, "Softplus"), view[0]) or ():
        graph.give(value)


_BOUND = frozenset(("Gather", "GatherElements", "Pad", "TopK", "Einsum"))
"""Operators of which a constant is valid for the attributes that it was drawn with."""


_OF_SHAPES = ("group", "transA", "transB", "kernel_shape")
"""Attributes that go with the shapes of weights."""
_BY_AXIS = ("QuantizeLinear", "DequantizeLinear", "LayerNormalization")
"""Operators whose weights go along an axis."""


def near(rng: Rng, link: Link) -> Link:
    """The link with one constant, or one attribute, as another draw of it has."""
    array = link.draw.inputs[link.place]
    assert array is not None  # noqa: S101  # the place of the value
    for _ in range(_TRIED):
        other = onto(link.op, rng, array.shape, array.dtype)
        if other is None or other.place != link.place:
            continue
        if link.op in _BOUND:
            return other
        changes = list(_changes(link.op, link.draw, other.draw))
        if changes:
            return link._replace(draw=changes[int(rng.integers(len(changes)))])
    return link


def _changes(op: str, one: Draw, other: Draw) -> Iterator[Draw]:
    """The draw with one thing as the other has it."""
    for i in one.constant:
        arrays = [each.inputs[i] if i < len(each.inputs) else None for each in (one, other)]
        mine, new = arrays
        if mine is None or new is None or mine.shape != new.shape or mine.dtype != new.dtype:
            continue
        if not np.array_equal(mine, new):
            inputs = [new if k == i else array for k, array in enumerate(one.inputs)]
            yield dataclasses.replace(one, inputs=inputs)
    for name, value in other.attributes.items():
        if name in _OF_SHAPES or (op in _BY_AXIS and name == "axis"):
            continue
        if name in one.attributes and one.attributes[name] != value:
            yield dataclasses.replace(one, attributes={**one.attributes, name: value})


def gaps(link: Link) -> list[Link]:
    """The link with an optional input moved to the place of another one that is left out."""
    if link.op != "Clip":
        return []
    first, *rest = link.draw.inputs
    given = [array for array in rest if array is not None]
    return [
        link._replace(draw=dataclasses.replace(link.draw, inputs=inputs, constant=[1, 2]))
        for inputs in ([first, given[0]], [first, None, given[0]])
    ]
