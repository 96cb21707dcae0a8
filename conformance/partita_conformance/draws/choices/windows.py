"""Systematic draws of convolutions, pools and other windows over images, in pairs of choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partita_conformance.draws.choices.meet import meetings, meetings_of_three
from partita_conformance.draws.choices.numbers import numbers
from partita_conformance.draws.draw import Draw

_SPATIAL = (7, 9, 6)
_LONG = (4, 5, 2)
"""A kernel that is longer than the usual ones, along one axis or another even."""
_PADS = ("none", "even", "uneven", "SAME_UPPER", "SAME_LOWER", "VALID")


def windows_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of windows of a row of choices; those of one axis differ from those of others."""
    rank = row["rank"]
    kernel = [1 + (row["kernel"] + axis) % 3 for axis in range(rank)]
    if row["kernel"] == 3:
        kernel = [*_LONG[:rank]]
    steps = [1 + (row["strides"] + axis) % 2 if row["strides"] else 1 for axis in range(rank)]
    given: dict[str, Any] = {"kernel_shape": kernel, "strides": steps}
    ends = [k // 2 for k in kernel]
    if row["pads"] in ("even", "uneven"):
        given["pads"] = ends * 2 if row["pads"] == "even" else [*ends, *[0] * rank]
    elif row["pads"] == "wide":  # some windows see nothing else
        given["pads"] = [*kernel, *(k + 1 for k in kernel)]
    elif row["pads"] != "none":
        given["auto_pad"] = row["pads"]
    if row["dilations"]:
        given["dilations"] = [1 + (row["dilations"] + axis) % 2 for axis in range(rank)]
    return given


def conv() -> Iterator[Draw]:
    """Ranks, groups, kernels, strides, dilations and pads, with a bias and without."""
    for row in meetings(
        rank=(1, 2, 3), group=(1, 2, 4), each=(1, 3), kernel=(0, 1, 2, 3), strides=(0, 1, 2),
        dilations=(0, 1, 2), pads=(*_PADS, "wide"), bias=(0, 1), batch=(1, 2), known=(0, 1),
    ):  # fmt: skip
        given, group = windows_of(row), row["group"]
        x = numbers(row["batch"], 4, *_SPATIAL[: row["rank"]]) - 1.2
        weights = numbers(group * row["each"], 4 // group, *given["kernel_shape"]) - 1.1
        bias = [numbers(len(weights))] * row["bias"]
        known = [1, 2] if row["known"] else []
        yield Draw([x, weights, *bias], {**given, "group": group}, known)


def conv_transpose() -> Iterator[Draw]:
    """The same of convolutions that are turned round, and of sizes that are asked for."""
    for row in meetings(
        rank=(1, 2, 3), group=(1, 2, 4), each=(1, 3), kernel=(0, 1, 2, 3), strides=(0, 1, 2),
        dilations=(0, 1), pads=_PADS, more=(0, 1), bias=(0, 1), batch=(1, 2), known=(1, 0),
        asked=(0, 1, 2),
    ):  # fmt: skip
        given, group = windows_of(row), row["group"]
        sizes = (4, 5, 3)[: row["rank"]]
        x = numbers(row["batch"], 4, *sizes) - 1.2
        if row["pads"].startswith("SAME"):  # as long as a step at least: nothing is taken away
            given["kernel_shape"] = [
                max(pair) for pair in zip(given["kernel_shape"], given["strides"], strict=True)
            ]
        elif row["more"]:
            given["output_padding"] = [step - 1 for step in given["strides"]]
        weights = numbers(4, row["each"], *given["kernel_shape"]) - 1.1
        if row["asked"] and row["pads"] in ("none", "SAME_UPPER", "SAME_LOWER"):
            given["output_shape"] = [  # as long as the input at least, which inference asks for
                max(size, n - row["asked"] - axis % 2)
                for axis, (size, n) in enumerate(zip(sizes, _full(sizes, given), strict=True))
            ]
        bias = [numbers(group * row["each"])] * row["bias"]
        known = [1, 2] if row["known"] else []
        yield Draw([x, weights, *bias], {**given, "group": group}, known)


def _full(sizes: Sequence[int], given: Mapping[str, Any]) -> list[int]:
    """The sizes of what a convolution turned round gives without pads."""
    rank = len(sizes)
    gaps, more = given.get("dilations", [1] * rank), given.get("output_padding", [0] * rank)
    return [
        (size - 1) * step + (taps - 1) * gap + 1 + added
        for size, step, taps, gap, added in zip(
            sizes, given["strides"], given["kernel_shape"], gaps, more, strict=True
        )
    ]


def pool(op_type: str) -> Iterator[Draw]:
    """Ranks, kernels, strides, dilations, pads, and windows that begin behind the end or do not."""
    own: dict[str, Sequence[int]] = {}
    if op_type == "AveragePool":
        own["count_include_pad"] = (0, 1)
    if op_type == "LpPool":
        own["p"] = (1, 2, 3)
    if op_type == "MaxPool":
        own["storage_order"] = (0, 1)
    for row in meetings(
        rank=(1, 2, 3), kernel=(0, 1, 2, 3), strides=(0, 1, 2), dilations=(0, 1), pads=_PADS,
        ceil_mode=(0, 1), batch=(1, 2), outputs=(1, 2) if op_type == "MaxPool" else (1,), **own,
    ):  # fmt: skip
        given = {**windows_of(row), **{name: row[name] for name in own}}
        if row["ceil_mode"] and "auto_pad" not in given:
            given["ceil_mode"] = 1
        opset = {"AveragePool": 19, "LpPool": 18}.get(op_type, 17)
        x = numbers(row["batch"], 3, *_SPATIAL[: row["rank"]]) - 1.2
        yield Draw([x], given, (), row["outputs"], opset)


def blocks(op_type: str) -> Iterator[Draw]:
    """Blocks of two sizes, of images that are no squares, in each order."""
    for block, mode, batch in ((b, m, n) for b in (2, 3) for m in ("DCR", "CRD") for n in (1, 2)):
        if op_type == "DepthToSpace":
            given = {"blocksize": block, "mode": mode}
            yield Draw([numbers(batch, 2 * block**2, 2, 3)], given)
        elif mode == "DCR":
            yield Draw([numbers(batch, 3, 2 * block, 3 * block)], {"blocksize": block})


def lrn() -> Iterator[Draw]:
    """Odd and even sizes, those beyond the channels too, and images of each rank."""
    for row in meetings_of_three(
        size=(1, 2, 3, 4, 9), rank=(1, 2, 3), alpha=(0.3, 1.0), beta=(0.75, 0.3)
    ):
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
    "LRN": lrn,
}
"""Operator to its draws."""
