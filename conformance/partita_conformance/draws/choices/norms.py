"""Systematic draws of normalizations and losses: axes, groups, weights, omitted inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.choices.meet import meetings, meetings_of_three
from partita_conformance.draws.choices.numbers import numbers
from partita_conformance.draws.draw import Draw

_SHAPE = (2, 3, 4, 5)


def layer_norm() -> Iterator[Draw]:
    """Each axis of each rank, with a shift and without, mean and deviation beside the result."""
    for row in meetings_of_three(
        rank=(3, 2, 4), axis=(None, *range(-4, 4)), shift=(0, 1), outputs=(1, 3),
        epsilon=(1e-5, 0.3), known=(1, 0),
    ):  # fmt: skip
        rank, axis = row["rank"], row["axis"]
        if axis is not None and not -rank <= axis < rank:
            continue
        x = numbers(*_SHAPE[4 - rank :]) - 1.2
        shape = x.shape[-1 if axis is None else axis :]
        rest = [numbers(*shape) - 0.3 * turn for turn in range(1 + row["shift"])]
        given = {"epsilon": row["epsilon"]} | ({} if axis is None else {"axis": axis})
        yield Draw([x, *rest], given, [1, 2] if row["known"] else [], row["outputs"])


def rms_norm() -> Iterator[Draw]:
    """Each axis of each rank."""
    for row in meetings_of_three(
        rank=(3, 2, 4), axis=(None, *range(-4, 4)), epsilon=(1e-5, 0.3), known=(1, 0)
    ):
        rank, axis = row["rank"], row["axis"]
        if axis is not None and not -rank <= axis < rank:
            continue
        x = numbers(*_SHAPE[4 - rank :]) - 1.2
        scale = numbers(*x.shape[-1 if axis is None else axis :])
        given = {"epsilon": row["epsilon"]} | ({} if axis is None else {"axis": axis})
        yield Draw([x, scale], given, [1] if row["known"] else [], opset=23)


def of_channels(count: int, low: int) -> Iterator[Draw]:
    """Numbers for each channel, of images of each rank."""
    for rank in range(low, 6):
        for epsilon in (1e-5, 0.3):
            shape = (2, 3, 4, 5, 2)[:rank]
            rest = [numbers(3) - (0.8 if i < 3 else 0) for i in range(count)]
            known = range(1, count + 1) if rank % 2 else ()
            yield Draw([numbers(*shape), *rest], {"epsilon": epsilon}, known)


def batch_norm() -> Iterator[Draw]:
    """Those of channels, and some that compute the statistics, and new running ones."""
    yield from of_channels(4, 2)
    for momentum, rank in ((0.9, 4), (0.25, 3), (0.0, 2)):
        x = numbers(3, 4, *(3, 2)[: rank - 2]) - 1.2
        rows = [numbers(4) - shift for shift in (0.2, 1.1, 0.5)]
        given = {"training_mode": 1, "momentum": momentum}
        yield Draw([x, *rows, numbers(4) + 0.5], given, (), 3, 15)


def group_norm() -> Iterator[Draw]:
    """Groups of one channel, of some and of all, of images of each rank."""
    for row in meetings_of_three(
        num_groups=(1, 2, 3, 6), epsilon=(1e-5, 0.3), rank=(4, 3, 5, 2), known=(1, 0), batch=(2, 1)
    ):
        rank, known, batch = (row.pop(name) for name in ("rank", "known", "batch"))
        if rank == 2 and row["num_groups"] == 6:
            continue  # of one number each
        x = numbers(batch, 6, *(3, 4, 2)[: rank - 2]) - 1.2
        scales = [numbers(6) - shift for shift in (0.2, 1.1)]
        yield Draw([x, *scales], row, [1, 2] if known else [], opset=21)


def lp_norm() -> Iterator[Draw]:
    """Each axis of each rank, of either power."""
    for row in meetings_of_three(rank=(1, 2, 3, 4), axis=range(-4, 4), p=(1, 2)):
        rank = row.pop("rank")
        if -rank <= row["axis"] < rank:
            yield Draw([numbers(*_SHAPE[:rank]) - 1.2], row)


def mean_variance() -> Iterator[Draw]:
    """Axes in each order, from either side, beside one another or not, and those of images."""
    x = numbers(*_SHAPE) - 1.2
    yield Draw([x])
    for axes in ([0, 2, 3], [1], [3, 1], [-1, -3], [2, 0], [0, 1, 2, 3], [-1]):
        yield Draw([x], {"axes": axes})


def global_lp_pool() -> Iterator[Draw]:
    """Powers of images of each rank."""
    for row in meetings_of_three(rank=(3, 4, 5), p=(None, 1, 2, 3)):
        x = numbers(*(2, 3, 4, 5, 2)[: row["rank"]]) - 1.2
        yield Draw([x], {} if row["p"] is None else {"p": row["p"]})


def loss(op_type: str) -> Iterator[Draw]:
    """Ranks, ways to add up, weights and what is ignored, which may be no class at all."""
    entropy = op_type == "SoftmaxCrossEntropyLoss"
    for row in meetings(
        rank=(2, 3, 4, 5), reduction=("none", "sum", "mean"), weights=(0, 1),
        ignored=(None, 1, -1, 7), outputs=(1, 2) if entropy else (1,), kind=("int64", "int32"),
    ):  # fmt: skip
        shape = (3, 4, 2, 3, 2)[: row["rank"]]
        x = numbers(*shape) - 1.2
        target = np.arange(int(np.prod(shape)) // 4) * 3 % 4
        if row["ignored"] is not None:
            target[::3] = row["ignored"]
        given: dict[str, Any] = {"reduction": row["reduction"]}
        given |= {} if row["ignored"] is None else {"ignore_index": row["ignored"]}
        inputs = [x, target.reshape(shape[:1] + shape[2:]).astype(row["kind"])]
        inputs += [numbers(4)] * row["weights"]
        yield Draw(inputs, given, (), row["outputs"])


NORMS: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": lambda: of_channels(2, 3),
    "GroupNormalization": group_norm,
    "LpNormalization": lp_norm,
    "MeanVarianceNormalization": mean_variance,
    "GlobalLpPool": global_lp_pool,
    "NegativeLogLikelihoodLoss": lambda: loss("NegativeLogLikelihoodLoss"),
    "SoftmaxCrossEntropyLoss": lambda: loss("SoftmaxCrossEntropyLoss"),
}
"""Operator to its draws."""
