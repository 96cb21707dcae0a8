"""Systematic draws of products, norms, softmax, look-ups and moves of rows, in pairs of choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from partita_conformance.draws.choices.meet import meetings, meetings_of_three
from partita_conformance.draws.choices.numbers import numbers, places, whole
from partita_conformance.draws.draw import Draw

_SHAPE = (2, 3, 4, 5)


def gemm() -> Iterator[Draw]:
    """Either matrix turned, factors, each shape of what is added, matrices of one row or column."""
    for row in meetings(
        transA=(0, 1), transB=(0, 1), alpha=(1.0, 0.5, -2.0), beta=(1.0, 0.5, 0.0),
        added=("none", "all", "row", "column", "one", "scalar", "flat"), m=(1, 5), k=(1, 4),
        n=(1, 3), known=((), (1, 2), (2,), (0,)),
    ):  # fmt: skip
        m, k, n = (row.pop(size) for size in "mkn")
        added, known = row.pop("added"), row.pop("known")
        a = numbers(k, m) if row["transA"] else numbers(m, k)
        b = numbers(n, k) if row["transB"] else numbers(k, n)
        shapes = {"all": [m, n], "row": [1, n], "column": [m, 1], "one": [1, 1], "flat": [n]}
        c = [] if added == "none" else [numbers(*shapes.get(added, []))]
        yield Draw([a - 1, b - 1, *c], row, known)


def matmul() -> Iterator[Draw]:
    """Vectors, matrices and batches of them, which broadcast either way."""
    sides = [
        *(((5,), (5, 4)), ((3, 5), (5,)), ((5,), (5,)), ((2, 3, 5), (5, 4)), ((3, 5), (2, 5, 4))),
        *(((2, 1, 3, 5), (4, 5, 2)), ((1, 3, 5), (6, 5, 4)), ((2, 3, 5), (5,)), ((5,), (2, 5, 4))),
        *(((2, 4, 1, 5), (2, 1, 5, 3)), ((1, 1), (1, 4)), ((4, 1), (1, 3)), ((2, 3, 1), (1, 2))),
    ]
    for row in meetings(side=sides, known=((), (0,), (1,))):
        a, b = row["side"]
        yield Draw([numbers(*a) - 1, numbers(*b) - 1], {}, row["known"])


def along_axis(op_type: str) -> Iterator[Draw]:
    """Each axis of each rank, from either side, as new opsets and as old ones have it."""
    for rank in range(1, 5):
        for axis in range(-rank, rank):
            x = numbers(*_SHAPE[:rank]) - 1.2
            if op_type == "Hardmax":  # of which the first of equals is taken
                x = np.round(x * 2) / 2
            yield Draw([x], {"axis": axis}, opset=(13, 11)[axis % 2])
    for opset in (11, 13):  # without an axis: the last one, or all behind the first
        yield Draw([numbers(*_SHAPE[:3]) - 1.2], opset=opset)


def one_hot() -> Iterator[Draw]:
    """Each axis, indices from either end and beyond it, of any type, to values of any type."""
    for row in meetings_of_three(
        rank=(1, 2), axis=(-1, 0, 1, -2), index=("int64", "int32", "float32"),
        values=([0, 1], [1, 0], [-3, 7]), kind=("float32", "int64", "bool", "int32"), known=(0, 1),
        depth=("int64", "int32", "float32"),
    ):  # fmt: skip
        if not -row["rank"] - 1 <= row["axis"] <= row["rank"]:
            continue
        shape = (3, 4)[: row["rank"]]
        index = (np.arange(int(np.prod(shape))) * 5 % 13 - 6).reshape(shape).astype(row["index"])
        inputs = [index, np.array(4, row["depth"]), np.array(row["values"]).astype(row["kind"])]
        yield Draw(inputs, {"axis": row["axis"]}, [1, 2] if row["known"] else [1])


def top_k() -> Iterator[Draw]:
    """Each axis, some and all, the largest and the smallest, of which some are equal."""
    for row in meetings(
        axis=range(-3, 3), k=(0, 1, 2, 9), largest=(0, 1), known=(1, 0),
        kind=("float32", "int32", "int64", "uint8", "float64"), shape=((3, 4, 5), (2, 33, 17)),
    ):  # fmt: skip
        x = np.round(numbers(*row["shape"]) * 3 - (0 if row["kind"] == "uint8" else 3))
        k = whole([min(row["k"], x.shape[row["axis"]])])
        given = {"axis": row["axis"], "largest": row["largest"]}
        yield Draw([x.astype(row["kind"]), k], given, [1] * row["known"], 2)


def trilu() -> Iterator[Draw]:
    """Diagonals inside and outside, of matrices that are no squares, of several types."""
    for row in meetings_of_three(
        upper=(0, 1), k=(None, 0, 1, -1, 2, -2, 9, -9), shape=((3, 5), (5, 3), (2, 3, 4), (1, 4)),
        kind=("float32", "int64", "bool"),
    ):  # fmt: skip
        x = (numbers(*row["shape"]) * 4 - 2).astype(row["kind"])
        k = [] if row["k"] is None else [np.array(row["k"], np.int64)]
        yield Draw([x, *k], {"upper": row["upper"]}, [1])


def concat() -> Iterator[Draw]:
    """Each axis of each rank, of one input and several, of which some hold nothing."""
    for row in meetings(rank=(1, 2, 3, 4), axis=range(-4, 4), parts=((2,), (1, 3), (2, 0, 1))):
        rank, axis = row["rank"], row["axis"]
        if -rank <= axis < rank:
            shapes = [list(_SHAPE[:rank]) for _ in row["parts"]]
            for shape, size in zip(shapes, row["parts"], strict=True):
                shape[axis] = size
            arrays = [numbers(*shape) + i for i, shape in enumerate(shapes)]
            yield Draw(arrays, {"axis": axis})


def gather() -> Iterator[Draw]:
    """Each axis, indices of each rank, of either type, known or not."""
    shapes = ((), (1,), (3,), (2, 3), (2, 1, 2))
    for row in meetings(axis=range(-3, 3), shape=shapes, kind=("int64", "int32"), known=(0, 1)):
        x = numbers(*_SHAPE[1:])
        index = places(x.shape[row["axis"]], *row["shape"]).astype(row["kind"])
        yield Draw([x, index], {"axis": row["axis"]}, [1] * row["known"])


def expand() -> Iterator[Draw]:
    """Sizes that are more, fewer and the same, of more axes and of fewer."""
    for shape in ((1,), (3, 1), (2, 1, 4), (1, 3, 1)):
        for target in ([4], [1], [3, 4], [2, 3, 4], [2, 1, 1], [5, 1, 3, 1], [2, 3, 1, 4]):
            try:
                np.broadcast_shapes(shape, tuple(target))
            except ValueError:
                continue
            yield Draw([numbers(*shape), whole(target)], {}, [1])


def tile() -> Iterator[Draw]:
    """Each axis more often than the others, or not at all."""
    x = numbers(*_SHAPE[:3])
    for times in ([1, 1, 3], [1, 3, 1], [3, 1, 1], [2, 3, 1], [2, 1, 4], [1, 1, 1], [2, 0, 1]):
        yield Draw([x, whole(times)], {}, [1])


def flatten() -> Iterator[Draw]:
    """Each axis of each rank."""
    for rank in range(1, 5):
        for axis in range(-rank, rank + 1):
            yield Draw([numbers(*_SHAPE[:rank])], {"axis": axis})


def reshape() -> Iterator[Draw]:
    """Sizes that are kept, left to be found, and none."""
    x = numbers(2, 3, 4)
    for target in (
        [0, -1],
        [0, 0, -1],
        [-1, 0, 2],
        [4, 3, 2],
        [24],
        [-1, 1],
        [2, 0, 2, 2],
        [0, 12],
    ):
        yield Draw([x, whole(target)], {}, [1])
        if 0 not in target:
            yield Draw([x, whole(target)], {"allowzero": 1}, [1])
    yield Draw([numbers(0, 3), whole([3, 0])], {"allowzero": 1}, [1])


def einsum() -> Iterator[Draw]:
    """Sums, products, diagonals, broadcast axes, and results in each order."""
    equations = (
        *("ij,jk->ik", "ij,jk->ki", "ij,kj->ik", "ji,jk->ki", "bij,bjk->bik", "bij,bjk->kbi"),
        *("bij,bjk", "bij,bjk->ik", "bij,jk->bki", "ij->ji", "ij->", "bij->ib", "ij->j", "ba"),
        *("i,j->ij", "i,j->ji", "ij,ij->i", "ij,ji->ij", "bi,bj->bij", "bhid,bhjd->bhij"),
        *(
            "bhij,bhjd->bihd",
            "bihd,bjhd->bhij",
            "i,i->",
            "ij,j->i",
            "ij,jk,kl->li",
            "bij,bik,bkj->b",
        ),
        *(
            "i...j->j...i",
            "...ij,...jk",
            "iij->j",
            "ij,ik,il->jkl",
            "Ab,bA",
            ",ij->ji",
            "ij , jk -> ki",
        ),
        *(
            "...ij,...jk->...ik",
            "...ij->...ji",
            "...i,i->...",
            "b...i,ij->b...j",
            "...ij,jk->k...i",
        ),
    )
    sizes = dict(zip("Aabdhijkl", (4, 2, 3, 5, 2, 4, 6, 3, 5), strict=True))
    for equation in equations:
        arrays = [
            numbers(
                *(
                    n
                    for c in term.replace("...", ".").strip()
                    for n in ((2, 3) if c == "." else (sizes[c],))
                )
            )
            for term in equation.split("->")[0].split(",")
        ]
        yield Draw([array - 1 for array in arrays], {"equation": equation})


def determinant() -> Iterator[Draw]:
    """Sizes beyond a vector, batches, rows that change places, matrices without inverse."""
    for size in (1, 2, 3, 4, 5, 9):
        for batch in ((), (3,), (2, 2)):
            x = numbers(*batch, size, size) - 1.2
            yield Draw([x])
            yield Draw(
                [np.ascontiguousarray(np.flip(np.tril(x), -2))]
            )  # no pivot where it is sought
    yield Draw([np.ones((2, 3, 3), np.float32)])
    yield Draw([np.eye(4, dtype=np.float32)[[1, 2, 3, 0]]])


ROWS: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "Gemm": gemm,
    "MatMul": matmul,
    **{op: partial(along_axis, op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    "OneHot": one_hot,
    "TopK": top_k,
    "Trilu": trilu,
    "Concat": concat,
    "Gather": gather,
    "Expand": expand,
    "Tile": tile,
    "Flatten": flatten,
    "Reshape": reshape,
    "Einsum": einsum,
    "Det": determinant,
}
"""Operator to its draws."""
