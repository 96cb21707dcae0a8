"""Systematic draws of attention, masks and caches, and of rotary embedding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from partita_conformance.draws.choices.meet import meetings
from partita_conformance.draws.choices.numbers import numbers, whole
from partita_conformance.draws.draw import Array, Draw


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
    yield from _seen_inside()
    yield from _padded()


def _seen_inside() -> Iterator[Draw]:
    """What comes of queries and keys, at each place where it can be looked at."""
    masks = (None, ("bool", ()), ("float32", (2, 4)), ("float32", ()))
    for row in meetings(
        shown=[*itertools.product((0, 1, 2, 3), (0, 1))], mask=masks, softcap=(0.0, 0.7),
        few=(4, 2, 1), scale=(None, 0.4), steps=(3, 1, 5),
    ):  # fmt: skip
        mode, causal = row["shown"]
        given = {"qk_matmul_output_mode": mode, "is_causal": causal, "softcap": row["softcap"]}
        given |= {} if row["scale"] is None else {"scale": row["scale"]}
        few, steps = row["few"], row["steps"]
        inputs: list[Array | None] = [numbers(2, 4, steps, 4) - 1.2]
        inputs += [numbers(2, few, steps, 4) - shift for shift in (1.1, 1)]
        mask = None
        if row["mask"] is not None:
            kind, shape = row["mask"]
            mask = numbers(*shape, steps, steps + 2)
            mask = mask > 0.7 if kind == "bool" else mask
            if kind == "bool":
                mask[..., 0] = True  # no row is masked out altogether
        inputs += [mask, *(numbers(2, few, 2, 4) - shift for shift in (0.9, 0.7))]
        yield Draw(inputs, given, (), 4, 23)


def _padded() -> Iterator[Draw]:
    """Keys of which some are padding, in each row of a batch others, and rows that see none."""
    for row in meetings(
        lengths=((2, 6), (6, 3), (5, 5), (1, 4)), is_causal=(0, 1), rank=(4, 3), few=(4, 2),
        mask=(None, "bool", "float32"), softcap=(0.0, 0.7), steps=(3, 1),
    ):  # fmt: skip
        given = {name: row[name] for name in ("is_causal", "softcap")}
        few, steps = row["few"], row["steps"]
        arrays = [
            numbers(2, 4, steps, 4) - 1.2,
            numbers(2, few, 6, 4) - 1.1,
            numbers(2, few, 6, 4) - 1,
        ]
        if row["rank"] == 3:
            arrays = [
                np.ascontiguousarray(a.swapaxes(1, 2)).reshape(2, a.shape[2], -1) for a in arrays
            ]
            given |= {"q_num_heads": 4, "kv_num_heads": few}
        mask = None if row["mask"] is None else numbers(steps, 6)
        mask = mask > 0.5 if mask is not None and row["mask"] == "bool" else mask
        yield Draw([*arrays, mask, None, None, whole(row["lengths"])], given, opset=24)


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


ATTENTION: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "Attention": attention,
    "RotaryEmbedding": rotary,
}
"""Operator to its draws."""
