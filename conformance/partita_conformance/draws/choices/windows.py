"""Choices of convolutions, pools and what else looks at windows of images, each two together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from partita_conformance.draws.choices.meet import meetings
from partita_conformance.draws.choices.numbers import numbers, whole
from partita_conformance.draws.draw import Array, Draw

_SPATIAL = (7, 9, 6)
_PADS = ("none", "even", "uneven", "SAME_UPPER", "SAME_LOWER", "VALID")


def _windows(row: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of windows of a row of choices; those of one axis differ from those of others."""
    rank = row["rank"]
    kernel = [1 + (row["kernel"] + axis) % 3 for axis in range(rank)]
    steps = [1 + (row["strides"] + axis) % 2 if row["strides"] else 1 for axis in range(rank)]
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": steps}
    if row["pads"] in ("even", "uneven"):
        ends = [k // 2 for k in kernel]
        given["pads"] = ends * 2 if row["pads"] == "even" else [*ends, *[0] * rank]
    elif row["pads"] != "none":
        given["auto_pad"] = row["pads"]
    if row["dilations"]:
        given["dilations"] = [1 + (row["dilations"] + axis) % 2 for axis in range(rank)]
    return given


def conv() -> Iterator[Draw]:
    """Ranks, groups, kernels, strides, dilations and pads, with a bias and without."""
    for row in meetings(
        rank=(1, 2, 3), group=(1, 2, 4), each=(1, 3), kernel=(0, 1, 2), strides=(0, 1, 2),
        dilations=(0, 1, 2), pads=_PADS, bias=(0, 1), batch=(1, 2), known=(0, 1),
    ):  # fmt: skip
        given, group = _windows(row), row["group"]
        x = numbers(row["batch"], 4, *_SPATIAL[: row["rank"]]) - 1.2
        weights = numbers(group * row["each"], 4 // group, *given["kernel_shape"]) - 1.1
        bias = [numbers(len(weights))] * row["bias"]
        known = [1, 2] if row["known"] else []
        yield Draw([x, weights, *bias], {**given, "group": group}, known)


def conv_transpose() -> Iterator[Draw]:
    """The same of convolutions that are turned round, and of sizes that are asked for."""
    for row in meetings(
        rank=(1, 2), group=(1, 2, 4), each=(1, 3), kernel=(0, 1, 2), strides=(0, 1, 2),
        dilations=(0, 1), pads=("none", "even", "uneven"), more=(0, 1), bias=(0, 1), batch=(1, 2),
    ):  # fmt: skip
        given, group = _windows(row), row["group"]
        x = numbers(row["batch"], 4, *_SPATIAL[: row["rank"]]) - 1.2
        weights = numbers(4, row["each"], *given["kernel_shape"]) - 1.1
        if row["more"]:
            given["output_padding"] = [step - 1 for step in given["strides"]]
        bias = [numbers(group * row["each"])] * row["bias"]
        yield Draw([x, weights, *bias], {**given, "group": group}, [1, 2])


def pool(op_type: str) -> Iterator[Draw]:
    """Ranks, kernels, strides, dilations, pads, and windows that begin behind the end or do not."""
    own: dict[str, Sequence[int]] = {}
    if op_type == "AveragePool":
        own["count_include_pad"] = (0, 1)
    if op_type == "LpPool":
        own["p"] = (1, 2, 3)
    for row in meetings(
        rank=(1, 2, 3), kernel=(0, 1, 2), strides=(0, 1, 2), dilations=(0, 1), pads=_PADS,
        ceil_mode=(0, 1), batch=(1, 2), **own,
    ):  # fmt: skip
        given = {**_windows(row), **{name: row[name] for name in own}}
        if row["ceil_mode"] and "auto_pad" not in given:
            given["ceil_mode"] = 1
        opset = {"AveragePool": 19, "LpPool": 18}.get(op_type, 17)
        yield Draw([numbers(row["batch"], 3, *_SPATIAL[: row["rank"]]) - 1.2], given, opset=opset)


def blocks(op_type: str) -> Iterator[Draw]:
    """Blocks of two sizes, of images that are no squares, in each order."""
    for block, mode, batch in ((b, m, n) for b in (2, 3) for m in ("DCR", "CRD") for n in (1, 2)):
        if op_type == "DepthToSpace":
            given = {"blocksize": block, "mode": mode}
            yield Draw([numbers(batch, 2 * block**2, 2, 3)], given)
        elif mode == "DCR":
            yield Draw([numbers(batch, 3, 2 * block, 3 * block)], {"blocksize": block})


_PLACES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")


def _resized(x: Array, row: Mapping[str, Any], given: dict[str, Any], opset: int = 17) -> Draw:
    """An image resized by the factors of a row, which are scales or sizes."""
    scales = np.array([1, 1, *row["factors"]], np.float32)
    sizes = whole([*x.shape[:2], *(scales[2:] * x.shape[2:])])
    inputs, known = ([x, None, None, sizes], [3]) if row["sized"] else ([x, None, scales], [2])
    return Draw(inputs, given, known, opset=opset)


def resize() -> Iterator[Draw]:
    """Ways to look for places and to weigh, up and down, by scales and sizes."""
    for row in meetings(
        mode=("linear", "cubic"), where=_PLACES, slope=(-0.75, -0.5), outside=(0, 1),
        factors=((0.5, 0.5), (0.5, 2), (0.25, 0.5), (2, 0.25)), sized=(0, 1),
    ):  # fmt: skip
        given = {"mode": row["mode"], "antialias": 1, "exclude_outside": row["outside"]}
        given |= {"coordinate_transformation_mode": row["where"], "cubic_coeff_a": row["slope"]}
        yield _resized(numbers(1, 2, 8, 12), row, given, 18)
    for row in meetings(
        mode=("nearest", "linear", "cubic"),
        where=_PLACES,
        rounded=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
        factors=((2, 3), (0.5, 2), (1.5, 0.5), (1, 2)), outside=(0, 1), sized=(0, 1),
        slope=(-0.75, -0.5),
    ):  # fmt: skip
        given = {"mode": row["mode"], "coordinate_transformation_mode": row["where"]}
        if row["mode"] == "nearest":
            given["nearest_mode"] = row["rounded"]
        if row["mode"] == "cubic":
            given |= {"exclude_outside": row["outside"], "cubic_coeff_a": row["slope"]}
        yield _resized(numbers(2, 1, 4, 6), row, given)


def grid_sample() -> Iterator[Draw]:
    """Modes, what lies beyond the edge, and corners."""
    for row in meetings(
        mode=("linear", "nearest", "cubic"), padding_mode=("zeros", "border", "reflection"),
        align_corners=(0, 1), batch=(1, 2),
    ):  # fmt: skip
        grid = (numbers(row.pop("batch"), 3, 4, 2) * 1.31 - 1.6).astype(np.float32)
        yield Draw([numbers(len(grid), 2, 4, 5), grid], row, opset=20)


def lrn() -> Iterator[Draw]:
    """Odd and even sizes, those beyond the channels too, and images of each rank."""
    for row in meetings(size=(1, 2, 3, 4, 9), rank=(1, 2, 3), alpha=(0.3, 1.0), beta=(0.75, 0.3)):
        rank = row.pop("rank")
        yield Draw([numbers(2, 5, *_SPATIAL[:rank]) - 1.2], {**row, "bias": 1.5})


WINDOWS: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    **{
        op: (lambda op=op: pool(op))  # type: ignore[misc]  # mypy cannot type defaults of lambdas
        for op in ("MaxPool", "AveragePool", "LpPool")
    },
    "DepthToSpace": lambda: blocks("DepthToSpace"),
    "SpaceToDepth": lambda: blocks("SpaceToDepth"),
    "GridSample": grid_sample,
    "LRN": lrn,
}
"""Operator to its draws."""
