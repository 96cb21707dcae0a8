"""All systematic draws: each choice of an operator, with inputs for which it matters.

Random draws meet a second batch axis, axes in falling order or indices that are fewer than the data
beside the axis by chance, or never; here all of them are made, on sizes that differ for each axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from partita_conformance.draws.choices import windows
from partita_conformance.draws.choices.attention import ATTENTION
from partita_conformance.draws.choices.codes import CODES
from partita_conformance.draws.choices.elements import ELEMENTS
from partita_conformance.draws.choices.images import IMAGES
from partita_conformance.draws.choices.loops import LOOPS
from partita_conformance.draws.choices.meet import meetings
from partita_conformance.draws.choices.norms import NORMS
from partita_conformance.draws.choices.numbers import numbers, places, whole
from partita_conformance.draws.choices.recurrent import RECURRENT
from partita_conformance.draws.choices.rows import ROWS
from partita_conformance.draws.choices.signals import SIGNALS
from partita_conformance.draws.choices.texts import TEXTS
from partita_conformance.draws.draw import Array, Draw

_SIZES = (2, 3, 4, 5)
"""Of axes, each another one."""
_REDUCTIONS = ("Mean", "Max", "Min", "L1", "L2", "Prod", "SumSquare", "LogSumExp", "LogSum", "Sum")


def _orders(rank: int) -> Iterator[list[int]]:
    """Some axes of a rank in each order, every other one counted from the back."""
    number = 0
    for count in range(1, rank + 1):
        for axes in itertools.permutations(range(rank), count):
            number += 1
            yield [a - rank if (number + k) % 2 else a for k, a in enumerate(axes)]


def gather_nd() -> Iterator[Draw]:
    """Each number of batch axes, of each rank, and of each length of an index."""
    for rank in range(1, 5):
        x = numbers(*_SIZES[:rank])
        for batch in range(rank):
            for depth in range(1, rank - batch + 1):
                parts = [
                    places(n, *x.shape[:batch], 3, 1)[..., ::-1, :]
                    for n in x.shape[batch : batch + depth]
                ]
                yield Draw([x, np.concatenate(parts, -1)], {"batch_dims": batch})
                one = np.concatenate([part[..., 0, :] for part in parts], -1)
                yield Draw([x, one], {"batch_dims": batch})


def _every(rank: int) -> list[int]:
    """The axes of a rank, every other one counted from the back."""
    return [axis - rank if (axis + rank) % 2 else axis for axis in range(rank)]


def _beside(rank: int) -> Iterator[tuple[Array, int, list[int]]]:
    """Data, an axis, and sizes of indices: as many, more and fewer along it, fewer beside it."""
    x = numbers(*(n + 1 for n in _SIZES[:rank]))
    for axis in _every(rank):
        for along in (-1, 0, 2):
            for place in (None, *range(rank)):
                shape = list(x.shape)
                shape[axis] += along
                if place is not None and place != axis % rank:
                    shape[place] -= 1
                yield x, axis, shape


def gather_elements() -> Iterator[Draw]:
    """Indices of other sizes than the data's, along each axis and beside it."""
    for rank in range(1, 4):
        for x, axis, shape in _beside(rank):
            yield Draw([x, places(x.shape[axis], *shape)], {"axis": axis})


def scatter_elements() -> Iterator[Draw]:
    """The same, where places that are met again add up."""
    for rank in range(1, 4):
        for number, (x, axis, shape) in enumerate(_beside(rank)):
            how = ("add", "mul", "max", "min")[(number + number // 4) % 4]
            given = {"axis": axis, "reduction": how}
            indices = places(x.shape[axis], *shape)
            known = ((), (1,), (0, 2))[number % 3]
            yield Draw([x - 1.2, indices, numbers(*shape) - 1], given, known, opset=18)


def scatter_nd() -> Iterator[Draw]:
    """Each length of an index into each rank, indices of one dimension and of several."""
    for rank in range(1, 5):
        x = numbers(*_SIZES[:rank])
        for depth in range(1, rank + 1):
            for number, rows in enumerate(((), (3,), (2, 2))):
                indices = np.concatenate([places(n, *rows, 1) for n in x.shape[:depth]], -1)
                updates = numbers(*rows, *x.shape[depth:])
                for turn in (0, 1):
                    how = ("add", "max", "mul", "min")[(number + depth + rank + turn) % 4]
                    drawn = [x - 1.2, indices, np.asarray(updates - 1)]
                    yield Draw(drawn, {"reduction": how}, ((), (1,))[turn], opset=18)


def pad() -> Iterator[Draw]:
    """Axes in each order, other pads for each, in each mode, what is taken away, and all axes."""
    x = numbers(4, 5, 6)
    for number, axes in enumerate(_orders(3)):
        before, after = ([(k + step) % 3 for k in range(len(axes))] for step in (1, 3))
        pads, mode = whole(before + after), ("constant", "edge", "reflect", "wrap")[number % 4]
        inputs = [x, pads, np.array(1.5, np.float32) if mode == "constant" else None, whole(axes)]
        yield Draw(inputs, {"mode": mode}, (1, 2, 3), opset=19)
    for row in meetings(
        mode=("constant", "edge", "reflect", "wrap"), rank=(1, 2, 3, 4), turn=(0, 1, 2, 3),
        filled=(0, 1), taken=(0, 1), named=(0, 1), known=((1, 2, 3), (1, 3), (1,), (2, 3)),
    ):  # fmt: skip
        shape = (4, 5, 6, 7)[4 - row["rank"] :]
        sides = [(k * 2 + row["turn"]) % 4 for k in range(2 * len(shape))]
        constant = row["mode"] == "constant"
        if row["taken"] and constant:  # of other modes, engines do not agree
            sides[row["turn"] % len(sides)] = -2
        drawn: list[Array | None] = [numbers(*shape) - 1.2, whole(sides)]
        drawn += [np.array(-2.5, np.float32)] if row["filled"] and constant else []
        if row["named"]:  # backwards
            drawn += [None] * (3 - len(drawn)) + [whole(range(len(shape))[::-1])]
        known = [n for n in row["known"] if n < len(drawn)]
        yield Draw(drawn, {"mode": row["mode"]}, known, opset=19)


def slice() -> Iterator[Draw]:
    """Axes in each order, other limits and steps for each; each limit either way, and none left."""
    x = numbers(5, 6, 7)
    for axes in _orders(3):
        limits = [[1, 5, 2], [-2, -(2**40), -1], [2, 2**40, 1]]
        parts = [whole(one) for one in zip(*limits[: len(axes)], strict=True)]
        yield Draw([x, *parts[:2], whole(axes), parts[2]], {}, (1, 2, 3, 4))
    for row in meetings(
        start=(0, 1, 4, 7, -1, -3, -9), end=(0, 3, 6, 9, -1, -4, "far"),
        step=(1, 2, 3, 9, -1, -2, -9), axis=(0, 1, -1), kind=("int64", "int32"),
        known=((1, 2, 3, 4), (), (1, 2, 3), (4,)),
    ):  # fmt: skip
        far = 2**31 - 1 if row["step"] > 0 else -(2**31)
        end = far if row["end"] == "far" else row["end"]
        given = (row["start"], end, row["axis"], row["step"])
        parts = [np.array([one], row["kind"]) for one in given]
        yield Draw([x, *parts], {}, row["known"])
    for count in (1, 2, 3):  # the first axes, as they come
        parts = [whole([1, -4, 2][:count]), whole([4, -1, 9][:count])]
        yield Draw([x, *parts], {}, (1, 2))
        yield Draw([x, *parts, None, whole([2, 1, 3][:count])], {}, (1, 2, 4))


def squeeze() -> Iterator[Draw]:
    """Axes of one in each order."""
    for order in _orders(3):
        axes = [2 * a if a >= 0 else 2 * a + 1 for a in order]  # of five, every other one
        yield Draw([numbers(1, 3, 1, 2, 1), whole(axes)], {}, (1,))
    for shape in ((1, 3, 1, 2, 1), (2, 3), (1, 1)):  # all axes of one
        yield Draw([numbers(*shape)])


def unsqueeze() -> Iterator[Draw]:
    """New axes in each order, of which some are beside one another."""
    for axes in _orders(3):
        rank = 2 + len(axes)
        front = [a % 3 for a in axes]
        if max(front) < rank:
            places = [a - rank if given < 0 else a for a, given in zip(front, axes, strict=True)]
            yield Draw([numbers(2, 3), whole(places)], {}, (1,))


def reduction(op_type: str) -> Iterator[Draw]:
    """Axes in each order, kept or not, and none of them, which is all or nothing."""
    x, opset = numbers(*_SIZES[:3]), 17 if op_type == "ReduceSum" else 18
    first = _REDUCTIONS.index(op_type.removeprefix("Reduce")) % 2
    for number, axes in [*enumerate(_orders(3))][first::2]:
        yield Draw([x, whole(axes)], {"keepdims": number // 2 % 2}, (1,), opset=opset)
    deep = numbers(2, 3, 4, 5, 3)
    apart = ([0, 2], [1, 3], [-1, 0], [0, 2, 4], [1, -1], [1, 2], [3, 0, 1], [2])
    for number, axes in enumerate(apart):  # with kept ones between them, before and behind
        yield Draw([deep, whole(axes)], {"keepdims": (number + first) % 2}, (1,), opset=opset)
    for keep, noop in itertools.product((0, 1), (0, 1)):
        given = {"keepdims": keep, "noop_with_empty_axes": noop}
        yield Draw([x], given, opset=opset)
        yield Draw([x, whole([])], given, (1,), opset=opset)


def center_crop_pad() -> Iterator[Draw]:
    """Axes in each order, cut off and filled up, by odd and even numbers."""
    x = numbers(4, 5, 6)
    for changes in ((3, -2, 1), (-1, 2, -3), (0, -3, 2)):
        yield Draw(
            [x, whole([n + change for n, change in zip(x.shape, changes, strict=True)])],
            {},
            (1,),
            opset=18,
        )
    for number, axes in enumerate(_orders(3)):
        changes = ((3, -2, 1), (-1, 2, -3))[number % 2]
        sizes = [x.shape[a] + change for a, change in zip(axes, changes, strict=False)]
        yield Draw([x, whole(sizes)], {"axes": axes}, (1,), opset=18)


def split() -> Iterator[Draw]:
    """Each axis, into parts of which some are of one row or of none."""
    for axis in _every(3):
        x = numbers(4, 5, 6)
        size = x.shape[axis]
        for parts in ([1, size - 1], [size - 1, 1], [0, size], [1] * size, [size]):
            yield Draw([x, whole(parts)], {"axis": axis}, (1,), len(parts))
        for count in (1, 2, size):
            given = {"axis": axis, "num_outputs": count}
            yield Draw([x], given, (), count, opset=18)


def transpose() -> Iterator[Draw]:
    """Each order of three axes, and of four."""
    for rank in (3, 4):
        for perm in [*itertools.permutations(range(rank))][:: rank - 2]:
            yield Draw([numbers(*_SIZES[:rank])], {"perm": list(perm)})


def unique() -> Iterator[Draw]:
    """Each axis and none, sorted and not, of rows that come again."""
    x = np.array([[[3, 1], [3, 1]], [[2, 1], [2, 1]], [[3, 1], [3, 1]]], np.float32)
    for axis, in_order in itertools.product((None, *range(-3, 3)), (0, 1)):
        given = {"sorted": in_order} | ({} if axis is None else {"axis": axis})
        yield Draw([x], given, (), 4)


def arg() -> Iterator[Draw]:
    """Each axis of rows with equals, the first and the last of them, kept or not."""
    x = np.round(numbers(*_SIZES[:3]) * 2) / 2
    for axis, keep, last in itertools.product(_every(3), (0, 1), (0, 1)):
        yield Draw([x], {"axis": axis, "keepdims": keep, "select_last_index": last})


def cumsum() -> Iterator[Draw]:
    """Each axis, either way, with and without the element itself."""
    for axis, exclusive, reverse in itertools.product(_every(3), (0, 1), (0, 1)):
        for kind, index in (("float32", "int64"), ("int32", "int32")):
            inputs = [(numbers(*_SIZES[:3]) * 40 - 50).astype(kind), np.array(axis, index)]
            given = {"exclusive": exclusive, "reverse": reverse}
            yield Draw(inputs, given, (1,) if kind == "float32" else ())


def reverse_sequence() -> Iterator[Draw]:
    """Either order of the two axes, and each length."""
    for time in (0, 1):
        x = numbers(4, 5, 3) if time else numbers(5, 4, 3)
        lengths = (whole([1, 3, 5, 2]), whole([5, 5, 1, 4]))
        for given in lengths:
            yield Draw([x, given], {"time_axis": time, "batch_axis": 1 - time})
            deep = np.stack([x, -x], -1)
            yield Draw([deep, given], {"time_axis": time, "batch_axis": 1 - time}, (1,))


def compress() -> Iterator[Draw]:
    """Each axis and none, with as many conditions and with fewer."""
    x = numbers(*_SIZES[:3])
    for axis in (None, *range(-3, 3)):
        count = x.size if axis is None else x.shape[axis]
        for size in (count, count - 1):
            condition = np.arange(size) % 3 != 1
            yield Draw([x, condition], {} if axis is None else {"axis": axis})


CHOICES: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "GatherND": gather_nd,
    "GatherElements": gather_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Pad": pad,
    "Slice": slice,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    **{
        f"Reduce{name}": (lambda name=name: reduction(f"Reduce{name}"))  # type: ignore[misc]  # mypy cannot type defaults of lambdas
        for name in _REDUCTIONS
    },
    "CenterCropPad": center_crop_pad,
    "Split": split,
    "Transpose": transpose,
    "Unique": unique,
    "ArgMax": arg,
    "ArgMin": arg,
    "CumSum": cumsum,
    "ReverseSequence": reverse_sequence,
    "Compress": compress,
    **windows.WINDOWS,
    **ROWS,
    **RECURRENT,
    **ATTENTION,
    **CODES,
    **ELEMENTS,
    **NORMS,
    **SIGNALS,
    **LOOPS,
    **TEXTS,
    **IMAGES,
}
"""Operator to its draws."""
