"""Systematic draws of Fourier transforms and of n-gram counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.choices.meet import meetings_of_three
from partita_conformance.draws.choices.numbers import numbers
from partita_conformance.draws.draw import Array, Draw, scalar


def dft() -> Iterator[Draw]:
    """Each axis, cut off and filled up, either way, of real and of complex numbers."""
    for parts, axis in itertools.product((1, 2), (0, 1, -2)):
        for length, inverse in itertools.product((None, 3, 7), (0, 1)):
            inputs = [numbers(2, 4, 5, parts), None, np.array(axis, np.int64)]
            inputs[1] = None if length is None else np.array(length, np.int64)
            ways = [{"inverse": inverse}]
            ways += [{"onesided": 1}] if parts == 1 and not inverse else []
            for given in ways:
                yield Draw(inputs, given, (1, 2), opset=20)
    for row in meetings_of_three(
        parts=(1, 2), axis=(None, 0, 1, 2), length=(None, 3, 8), inverse=(0, 1), known=((1,), ()),
        onesided=(0, 1),
    ):  # fmt: skip
        given = {name: row[name] for name in ("inverse", "onesided")}
        if given["onesided"] and (given["inverse"] or row["parts"] == 2):
            continue
        given |= {} if row["axis"] is None else {"axis": row["axis"]}
        inputs = [numbers(2, 4, 5, row["parts"])]
        inputs += [] if row["length"] is None else [scalar(row["length"])]
        yield Draw(inputs, given, row["known"], opset=17)


def stft() -> Iterator[Draw]:
    """Windows and lengths of frames, given or not, steps, half of the frequencies and all."""
    for row in meetings_of_three(
        onesided=(0, 1), parts=(1, 2), window=(0, 1), length=(None, 6, 9), step=(2, 5),
        batch=(1, 2), known=((1, 2, 3), (1, 3)),
    ):  # fmt: skip
        if row["parts"] == 2 and row["onesided"]:
            continue
        size = row["length"] or 8
        inputs: list[Array | None] = [
            numbers(row["batch"], 25, row["parts"]) - 1.2,
            scalar(row["step"]),
        ]
        inputs.append(numbers(size) / 2 if row["window"] or row["length"] is None else None)
        inputs += [] if row["length"] is None else [scalar(row["length"])]
        given = {"onesided": row["onesided"]}  # of what holds without it, engines do not agree
        yield Draw(inputs, given, [n for n in row["known"] if n < len(inputs)])


def window() -> Iterator[Draw]:
    """Odd and even sizes, periodic and not."""
    for size, periodic in ((2, 1), (5, None), (5, 0), (8, 1), (8, 0), (17, None), (33, 0)):
        given = {} if periodic is None else {"periodic": periodic}
        yield Draw([scalar(size)], given, [0])


def tf_idf() -> Iterator[Draw]:
    """Ways to count, lengths of series, gaps, weights and none, rows and one row."""
    for row in meetings_of_three(
        mode=("TF", "IDF", "TFIDF"), least=(1, 2), most=(1, 2, 3), gaps=(0, 1, 2, 5),
        weights=(0, 1), rows=(None, 1, 3), kind=("int64", "int32"),
    ):  # fmt: skip
        if row["least"] > row["most"]:
            continue
        count = 12
        shape = (count,) if row["rows"] is None else (row["rows"], count)
        x = (np.arange(int(np.prod(shape))) * 7 % 11 % 4 + 1).reshape(shape).astype(row["kind"])
        given: dict[str, Any] = {
            "mode": row["mode"],
            "min_gram_length": row["least"],
            "max_gram_length": row["most"],
            "max_skip_count": row["gaps"],
            "ngram_counts": [0, 3, 9][: max(2, row["most"])],
            "ngram_indexes": [2, 0, 1, 5, 3, 4, 7, 6][: 6 if row["most"] < 3 else 8],
            "pool_int64s": [1, 2, 4, 1, 4, 4, 1, 2, 2, 1, 4, 1, 3, 2, 4][
                : 9 if row["most"] < 3 else 15
            ],
        }
        if row["weights"]:
            given["weights"] = [0.5, 2.0, 1.5, 3.0, 0.25, 1.25, 4.0, 0.75][
                : len(given["ngram_indexes"])
            ]
        yield Draw([x], given)


def tensor_scatter() -> Iterator[Draw]:
    """Each axis, at the end of a cache or around it, from each place or from the first one."""
    for row in meetings_of_three(
        rank=(4, 3),
        axis=(-2, 1, 2, -1),
        mode=("linear", "circular"),
        count=(1, 2, 3),
        starts=(0, 1),
        batch=(2, 1),
    ):
        shape = [row["batch"], 3, 5, 4][: row["rank"]]
        axis = row["axis"]
        if not axis % row["rank"]:
            continue
        size = shape[axis]
        written = list(shape)
        written[axis] = min(row["count"], size)
        room = size if row["mode"] == "circular" else size - written[axis] + 1
        inputs = [numbers(*shape), -numbers(*written)]
        if row["starts"]:
            inputs.append(np.arange(1, 2 * row["batch"], 2) * 3 % room)
        yield Draw(inputs, {"axis": axis, "mode": row["mode"]}, opset=24)


SIGNALS: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "DFT": dft,
    "STFT": stft,
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), window),
    "TfIdfVectorizer": tf_idf,
    "TensorScatter": tensor_scatter,
}
"""Operator to its draws."""
