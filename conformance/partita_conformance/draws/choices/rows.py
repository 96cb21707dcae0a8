"""Choices of products, norms, shares, and of what looks up or moves rows, each two together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.choices.meet import meetings
from partita_conformance.draws.choices.numbers import numbers, places, whole
from partita_conformance.draws.draw import Array, Draw

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


def along_axis() -> Iterator[Draw]:
    """Each axis of each rank, from either side, as new opsets and as old ones have it."""
    for rank in range(1, 5):
        for axis in range(-rank, rank):
            yield Draw([numbers(*_SHAPE[:rank]) - 1.2], {"axis": axis}, opset=(13, 11)[axis % 2])


def layer_norm() -> Iterator[Draw]:
    """Each axis, with a shift and without, and the mean and deviation beside the result."""
    for row in meetings(axis=range(-3, 3), shift=(0, 1), outputs=(1, 3), epsilon=(1e-5, 0.3)):
        x = numbers(*_SHAPE[1:]) - 1.2
        rest = [numbers(*x.shape[row["axis"] :]) for _ in range(1 + row["shift"])]
        given = {"axis": row["axis"], "epsilon": row["epsilon"]}
        yield Draw([x, *rest], given, [1, 2], row["outputs"])


def of_channels(count: int, low: int) -> Iterator[Draw]:
    """Numbers for each channel, of images of each rank."""
    for rank in range(low, 6):
        for epsilon in (1e-5, 0.3):
            shape = (2, 3, 4, 5, 2)[:rank]
            rest = [numbers(3) - (0.8 if i < 3 else 0) for i in range(count)]
            yield Draw([numbers(*shape), *rest], {"epsilon": epsilon}, range(1, count + 1))


def one_hot() -> Iterator[Draw]:
    """Each axis, indices from either end and beyond it, of any type, to values of any type."""
    for row in meetings(
        rank=(0, 1, 2), axis=(-1, 0, 1, -2), index=("int64", "int32", "float32"),
        values=([0, 1], [1, 0], [-3, 7]), kind=("float32", "int64", "bool"), known=(0, 1),
    ):  # fmt: skip
        if not -row["rank"] - 1 <= row["axis"] <= row["rank"]:
            continue
        shape = (3, 4)[: row["rank"]]
        index = (np.arange(int(np.prod(shape))) * 5 % 13 - 6).reshape(shape).astype(row["index"])
        inputs = [index, np.array(4, np.int64), np.array(row["values"]).astype(row["kind"])]
        yield Draw(inputs, {"axis": row["axis"]}, [1, 2] if row["known"] else [1])


def top_k() -> Iterator[Draw]:
    """Each axis, some and all, the largest and the smallest, of which some are equal."""
    x = np.round(numbers(*_SHAPE[1:]) * 3) / 3
    for row in meetings(axis=range(-3, 3), k=(0, 1, 2, 9), largest=(0, 1)):
        k = whole([min(row["k"], x.shape[row["axis"]])])
        yield Draw([x, k], {"axis": row["axis"], "largest": row["largest"]}, [1], 2)


def trilu() -> Iterator[Draw]:
    """Diagonals inside and outside, of matrices that are no squares, of several types."""
    for row in meetings(
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
            "...ij,...jk->...ik",
            "...ij->...ji",
            "...i,i->...",
            "b...i,ij->b...j",
            "...ij,jk->k...i",
        ),
    )
    sizes = dict(zip("abdhijkl", (2, 3, 5, 2, 4, 6, 3, 5), strict=True))
    for equation in equations:
        arrays = [
            numbers(
                *(
                    n
                    for c in term.replace("...", ".")
                    for n in ((2, 3) if c == "." else (sizes[c],))
                )
            )
            for term in equation.split("->")[0].split(",")
        ]
        yield Draw([array - 1 for array in arrays], {"equation": equation})


def quantize(op_type: str) -> Iterator[Draw]:
    """Each axis and none, either type, with a zero and without, and blocks along each axis."""
    x = numbers(4, 6, 2) - 1.2
    for row in meetings(
        axis=(None, 0, 1, 2, -1, -2),
        kind=("uint8", "int8"),
        zero=(0, 1),
        block=(0, 1),
        known=(0, 1),
    ):
        given: dict[str, Any] = {} if row["axis"] is None else {"axis": row["axis"]}
        shape: list[int] = [] if row["axis"] is None else [x.shape[row["axis"]]]
        opset = 17
        if row["block"] and row["axis"] is not None:
            shape, opset = list(x.shape), 21
            shape[row["axis"]] //= 2
            given["block_size"] = 2
        scale = np.exp2(np.round(numbers(*shape) * 2 - 7)).astype(np.float32)
        zero = (numbers(*shape) * 20).astype(row["kind"])
        if op_type == "QuantizeLinear":
            if not row["zero"] and opset > 17:
                given["output_dtype"] = {"uint8": 2, "int8": 3}[row["kind"]]
            first = x
        else:
            first = (np.arange(x.size) * 37 % 120).reshape(x.shape).astype(row["kind"])
        rest = [scale, zero][: 1 + row["zero"]]
        yield Draw([first, *rest], given, [1, 2] if row["known"] else [], opset=opset)


def attention() -> Iterator[Draw]:
    """Heads that share keys, masks of each shape and type, causes, caps, caches, either rank."""
    masks = (
        None,
        ("bool", ()),
        ("float32", ()),
        ("bool", (2, 1)),
        ("float32", (2, 4)),
        ("float32", (4,)),
    )
    for row in meetings(
        shared=(1, 2, 4), rank=(3, 4), is_causal=(0, 1), mask=masks, past=(0, 1), scale=(None, 0.4),
        softcap=(0.0, 0.7), width=(4, 6),
    ):  # fmt: skip
        heads, steps, before = 4, 3, 2 * row["past"]
        few = heads // row["shared"]
        q, k = numbers(2, heads, 3, 4) - 1.2, numbers(2, few, steps, 4) - 1.1
        v = numbers(2, few, steps, row["width"]) - 1
        given = {"is_causal": row["is_causal"], "softcap": row["softcap"]}
        given |= {} if row["scale"] is None else {"scale": row["scale"]}
        inputs: list[Array | None] = [q, k, v]
        if row["rank"] == 3:
            inputs = [
                np.ascontiguousarray(a.swapaxes(1, 2)).reshape(2, a.shape[2], -1) for a in (q, k, v)
            ]
            given |= {"q_num_heads": heads, "kv_num_heads": few}
        inputs.append(None)
        if row["mask"] is not None:
            kind, shape = row["mask"]
            mask = numbers(*shape, 3, steps + before)
            if kind == "bool":
                mask = mask > 0.7
                mask[..., 0] = True  # no row is masked out altogether
            inputs[3] = mask
        if row["past"]:
            inputs += [
                numbers(2, few, before, 4) - 0.9,
                numbers(2, few, before, row["width"]) - 0.7,
            ]
            yield Draw(inputs, given, (), 3, 23)
        else:
            yield Draw(inputs if inputs[3] is not None else inputs[:3], given, opset=23)


def rotary() -> Iterator[Draw]:
    """Halves and every other one, all of a head and a part, by position or by token."""
    for row in meetings(interleaved=(0, 1), turned=(8, 4), rank=(3, 4), by=("token", "position")):
        given = {"interleaved": row["interleaved"]}
        x = numbers(2, 3, 4, 8) if row["rank"] == 4 else numbers(2, 4, 24)
        given |= {"num_heads": 3} if row["rank"] == 3 else {}
        given |= {"rotary_embedding_dim": 4} if row["turned"] == 4 else {}
        rows = (9,) if row["by"] == "position" else (2, 4)
        tables = [numbers(*rows, row["turned"] // 2) - shift for shift in (1, 0.6)]
        index = [whole([[3, 0, 8, 5], [1, 2, 7, 7]])] if row["by"] == "position" else []
        yield Draw([x, *tables, *index], given, opset=23)


ROWS: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "Gemm": gemm,
    "MatMul": matmul,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), along_axis),
    "LayerNormalization": layer_norm,
    "BatchNormalization": lambda: of_channels(4, 2),
    "InstanceNormalization": lambda: of_channels(2, 3),
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
    "QuantizeLinear": lambda: quantize("QuantizeLinear"),
    "DequantizeLinear": lambda: quantize("DequantizeLinear"),
    "Attention": attention,
    "RotaryEmbedding": rotary,
}
"""Operator to its draws."""
