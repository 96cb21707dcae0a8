"""Systematic draws of element-wise operators: limits, types, signs, and broadcast shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from onnx import numpy_helper

from partita_conformance.draws.choices.meet import meetings
from partita_conformance.draws.choices.numbers import numbers, whole
from partita_conformance.draws.draw import Array, Draw, scalar

_PAIRS = (
    ((3, 5), (3, 5)), ((2, 3, 5), (5,)), ((2, 3, 5), (3, 1)), ((4, 1, 5), (3, 1)), ((17,), ()),
    ((), (3, 5)), ((1, 5), (2, 3, 1)), ((33,), (33,)), ((3, 1), (1, 4)),
)  # fmt: skip
"""Shapes that broadcast, either way and both ways at once."""
_FEW = _PAIRS[1:6]
"""Some of them, where there is much else to choose."""


def clip() -> Iterator[Draw]:
    """Either limit or none, of each type, known or not, limits that cross; numbers of all sizes."""
    for row in meetings(
        kind=("float32", "float64", "float16", "int8", "int32", "int64", "uint32"),
        limits=("both", "low", "high", "none", "crossed", "equal"), known=((1, 2), (), (1,), (2,)),
        size=(7, 33),
    ):  # fmt: skip
        span = numbers(row["size"]) * 40
        x = (span if row["kind"][0] == "u" else span - 50).astype(row["kind"])
        low, high = {"crossed": (20, 5), "equal": (9, 9)}.get(row["limits"], (3, 21))
        parts: list[Array | None] = [scalar(n, x.dtype) for n in (low, high)]
        if row["limits"] in ("high", "none"):
            parts[0] = None
        if row["limits"] in ("low", "none"):
            parts.pop()
        inputs = [x, *parts]
        while inputs[-1] is None:
            inputs.pop()
        yield Draw(inputs, {}, [n for n in row["known"] if n < len(inputs)], opset=13)
    for kind, limits in itertools.product(_KINDS, ((), (3,), (None, 100), (3, 100))):
        ends = [None if n is None else scalar(n, kind) for n in limits]
        yield Draw([_of_all_sizes(kind), *ends], {}, (), opset=13)


_KINDS = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


def _of_all_sizes(kind: str) -> Array:
    """The ends of a type, and what lies about the ends of each narrower one."""
    limits = np.finfo(kind) if kind[0] == "f" else np.iinfo(kind)
    ends = [sign * (2**bits + by) for bits in (7, 8, 15, 16, 31, 32, 53) for sign in (1, -1)
            for by in (-1, 0, 1)]  # fmt: skip
    within = [n for n in ends if float(limits.min) <= n <= float(limits.max)]
    return np.array([limits.min, limits.max, 0, 1, *within], kind)


def modulo() -> Iterator[Draw]:
    """Either kind of remainder, of each type, signs in each quarter, shapes that meet."""
    for row in meetings(
        kind=("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
              "float64", "float16"), fmod=(0, 1), shapes=_FEW, known=((), (1,), (0,)),
    ):  # fmt: skip
        first, second = row["shapes"]
        floats, signed = row["kind"][0] == "f", row["kind"][0] != "u"
        if floats and not row["fmod"]:
            continue  # ONNX has no such remainder
        a, b = numbers(*first) * 50, numbers(*second) * 5 + 1
        if signed:
            a, b = a - 55, b * _signs(*second)
        yield Draw(
            [a.astype(row["kind"]), b.astype(row["kind"])], {"fmod": row["fmod"]}, row["known"]
        )


def _signs(*shape: int) -> Array:
    return (1 - 2 * (np.arange(int(np.prod(shape))) * 3 % 5 % 2)).reshape(shape)


def shift() -> Iterator[Draw]:
    """Either way, of each type, from no bit to all but one, shapes that meet."""
    for row in meetings(
        kind=("uint8", "uint16", "uint32", "uint64"), direction=("LEFT", "RIGHT"), shapes=_FEW,
        known=((), (1,), (0,)),
    ):  # fmt: skip
        bits = np.dtype(row["kind"]).itemsize * 8
        first, second = (int(np.prod(shape)) for shape in row["shapes"])
        words = [(0xA5C3_96E1_7B4D_28F5 * (2 * n + 1)) % 2**bits for n in range(first)]
        a = np.array(words, row["kind"]).reshape(row["shapes"][0])
        by = (np.arange(second) * 5 % bits).astype(row["kind"]).reshape(row["shapes"][1])
        yield Draw([a, by], {"direction": row["direction"]}, row["known"])


def bits(kinds: tuple[str, ...]) -> Iterator[Draw]:
    """Some types, shapes that meet."""
    for row in meetings(kind=kinds, shapes=_PAIRS, known=((), (1,))):
        arrays = [
            (numbers(*shape) * (1 + 50 * turn) * 40 % 120).astype(row["kind"])
            for turn, shape in enumerate(row["shapes"])
        ]
        yield Draw(arrays, {}, row["known"], opset=18)


def several(kinds: tuple[str, ...]) -> Iterator[Draw]:
    """One input and more, of each type, of which each in turn is broadcast."""
    shapes = ((3, 5), (5,), (3, 1), (), (2, 1, 1))
    for row in meetings(kind=kinds, count=(1, 2, 3, 5), turn=range(5), known=((), (1,))):
        places = [(row["turn"] + n) % 5 for n in range(row["count"])]
        arrays = [
            (numbers(*shapes[place]) * 20 * (1 + n % 2) + n).astype(row["kind"])
            for n, place in enumerate(places)
        ]
        signed = [a if row["kind"][0] == "u" else a - np.array(35, a.dtype) for a in arrays]
        yield Draw(signed, {}, row["known"] if row["count"] > 1 else ())


def power() -> Iterator[Draw]:
    """Bases and powers of different types, which are whole or not, of either sign."""
    for row in meetings(
        base=("float32", "float64", "float16", "int32", "int64"),
        by=("float32", "int32", "int64", "float64", "int8"), shapes=_FEW, known=((), (1,)),
    ):  # fmt: skip
        first, second = row["shapes"]
        a = numbers(*first) * 2 + 0.25
        b = np.arange(int(np.prod(second))).reshape(second) * 2 % 5 * 1.0
        if row["base"][0] == "f" and row["by"][0] in "fi" and row["by"] != "int8":
            b = b - 2
        if row["base"][0] == "f" and row["by"][0] == "f":
            b = b + 0.5 * (b > 0)
        yield Draw([a.astype(row["base"]), b.astype(row["by"])], {}, row["known"])


def prelu() -> Iterator[Draw]:
    """Slopes of each shape that broadcasts, of images of each rank."""
    for x, slope in itertools.product(
        ((2, 3, 4), (2, 3, 3), (3, 3), (5,), (2, 3, 4, 3)),
        ((), (1,), (3,), (3, 1), (3, 1, 1), (2, 1, 1), (4,), (4, 1), (1, 3)),
    ):
        if len(slope) <= len(x) and all(
            n in (1, m) for n, m in zip(slope[::-1], x[::-1], strict=False)
        ):
            yield Draw([numbers(*x) - 1.2, numbers(*slope)], {}, [1] if len(x) % 2 else [])


def where() -> Iterator[Draw]:
    """Each of three inputs of each shape, of each type."""
    shapes = ((3, 5), (5,), (3, 1), (), (2, 1, 1))
    for row in meetings(
        kind=("float32", "int64", "uint8", "bool", "float64", "float16", "int32", "object"),
        turn=range(5), step=(0, 1, 2), known=((), (0,), (1,), (2,)),
    ):  # fmt: skip
        given = [shapes[(row["turn"] + n * row["step"]) % 5] for n in range(3)]
        condition = np.arange(int(np.prod(given[0]))).reshape(given[0]) * 2 % 5 > 1
        sides = [numbers(*shape) * 30 + n for n, shape in enumerate(given[1:])]
        if row["kind"] == "bool":
            sides = [side % 2 > 1 for side in sides]
        if row["kind"] == "object":
            sides = [
                np.array([f"t{n:.2f}" for n in a.reshape(-1)], object).reshape(a.shape)
                for a in sides
            ]
        yield Draw([condition, *(side.astype(row["kind"]) for side in sides)], {}, row["known"])


def at_the_edge(**given: float) -> Iterator[Draw]:
    """Elements that are just what an attribute says, and their neighbours."""
    for values in ({}, given):
        edge = np.float32([*values.values(), 1.0 if "alpha" in given else 0.5][0])
        near = [np.nextafter(edge, np.float32(end)) for end in (-9, 9)]
        x = np.array([edge, -edge, *near, *(-n for n in near), 0, -0.0, 3, -3], np.float32)
        yield Draw([np.tile(x, 3)], dict(values))


def is_inf() -> Iterator[Draw]:
    """Either sign, both and none."""
    x = np.array([np.inf, -np.inf, np.nan, 0, 3e38, -3e38, 1] * 3, np.float32)
    for negative, positive in itertools.product((0, 1), (0, 1)):
        yield Draw([x], {"detect_negative": negative, "detect_positive": positive})


def dropout() -> Iterator[Draw]:
    """With and without a share and a mask, outside of training."""
    x = numbers(3, 5) - 1.2
    for outputs, more in itertools.product(
        (1, 2), ([], [scalar(0.9, np.float32)], [scalar(0.9, np.float32), scalar(False, np.bool_)])
    ):
        yield Draw([x, *more], {}, (1, 2), outputs)


def eye() -> Iterator[Draw]:
    """Diagonals in and out of matrices that are no squares, as each type."""
    for row in meetings(
        k=(None, 0, 1, -1, 4, -4), shape=((3, 5), (5, 3), (1, 4), (4, 4)),
        dtype=(None, 1, 6, 7, 11), like=("float32", "int32"),
    ):  # fmt: skip
        given = {name: row[name] for name in ("k", "dtype") if row[name] is not None}
        yield Draw([np.zeros(row["shape"], row["like"])], given)


def spans() -> Iterator[Draw]:
    """Up, down and nowhere, by whole steps and fractions, of each type; to an end and past it."""
    limits = [(0, 7, 2), (7, 0, -3), (3, 3, 1), (5, 0, 1), (0, -7, 2), (-3, 33, 1), (-9, -1, 4)]
    limits += [
        (sign * 2, sign * (2 + length), sign * step)
        for sign, length, step in itertools.product((1, -1), (5, 6, 7), (1, 2, 4))
    ]
    for kind, known in itertools.product(("float32", "int64", "int32", "int16", "float64"), (0, 1)):
        for start, limit, step in limits[known::2]:
            by = step / 2 if kind[0] == "f" else step
            inputs = [scalar(n, kind) for n in (start, limit, by)]
            yield Draw(inputs, {}, (0, 1, 2) if known else ())


def shape() -> Iterator[Draw]:
    """Parts of shapes from either side, beyond the ends, and none."""
    for rank, start, end in itertools.product(
        (0, 1, 3), (None, 0, 1, -2, -8, 9), (None, 1, -1, 9, -8)
    ):
        given = {n: v for n, v in (("start", start), ("end", end)) if v is not None}
        if rank == 3 or (start, end) in ((None, None), (0, 1), (-2, 9)):
            yield Draw([numbers(*(2, 3, 4)[:rank])], given)


def constant_of_shape() -> Iterator[Draw]:
    """Values of each type and none, in shapes of no dimensions, of none along one, and others."""
    for row in meetings(
        kind=(None, "float32", "float64", "int32", "int64", "uint8", "bool", "float16"),
        shape=([], [3], [2, 0], [2, 3]), known=(0, 1),
    ):  # fmt: skip
        value = None if row["kind"] is None else np.array([1.5 if row["kind"][0] == "f" else 1])
        given: dict[str, Any] = {}
        if value is not None:
            given["value"] = numpy_helper.from_array(value.astype(row["kind"]))
        yield Draw([whole(row["shape"])], given, [0] * row["known"])


_FLOATS = ("float32", "float64", "float16")
_NUMBERS = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8", "uint32", "uint64")
"""Every other one is tried with one of two operators."""

ELEMENTS: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "Clip": clip,
    "Mod": modulo,
    "BitShift": shift,
    "BitwiseAnd": lambda: bits(("int8", "uint16", "int64")),
    "BitwiseOr": lambda: bits(("uint8", "int32", "uint64")),
    "BitwiseXor": lambda: bits(("int16", "uint32", "int8")),
    "Max": lambda: several(_NUMBERS[::2]),
    "Min": lambda: several(_NUMBERS[1::2]),
    **dict.fromkeys(("Sum", "Mean"), lambda: several(_FLOATS)),
    "Pow": power,
    "PRelu": prelu,
    "Where": where,
    "ThresholdedRelu": lambda: at_the_edge(alpha=0.4),
    "Shrink": lambda: at_the_edge(lambd=0.75, bias=0.25),
    "IsInf": is_inf,
    "Dropout": dropout,
    "EyeLike": eye,
    "Range": spans,
    "Shape": shape,
    "ConstantOfShape": constant_of_shape,
}
"""Operator to its draws."""
