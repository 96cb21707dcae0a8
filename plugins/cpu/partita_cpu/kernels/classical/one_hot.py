"""OneHotEncoder of ai.onnx.ml on integers: a column for each category."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import InputError
from partita.lowering import Builder, Node, Operand
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.kernels.operator_table import INDICES, kernel


@jit
def mark_categories(
    x: Any, keys: Any, places: Any, y: Any, wrong: Any, refuses: int, tid: int, nt: int
) -> None:
    """1 at the place of a number's category, and 0 at all others.

    Args:
        x: What is looked up, flat.
        keys: Categories in order, none of them twice.
        places: Of each its place.
        y: Output: as many numbers for each one of x, flat.
        wrong: int64 [1]; a number of no category.
        refuses: Whether there may be none.
        tid: This thread.
        nt: All threads; they share numbers.

    Raises:
        ValueError: A number is of no category.
    """
    classes = y.size // x.size
    for i in range(x.size * tid // nt, x.size * (tid + 1) // nt):
        for place in range(i * classes, (i + 1) * classes):
            y[place] = np.float32(0)
        sought, low, high = np.int64(x[i]), 0, keys.size - 1
        while low < high:  # the first that is not below, or the last one
            middle = (low + high) >> 1
            if keys[middle] < sought:
                low = middle + 1
            else:
                high = middle
        if keys[low] == sought:
            y[i * classes + places[low]] = np.float32(1)
        elif refuses:
            wrong[0] = sought
            raise ValueError("a number is of no category")


def _refuse(name: str, categories: int, *arguments: Any) -> NoReturn:
    """Raises the error for a number that a kernel wrote to `wrong`."""
    *_, wrong, _refuses = arguments
    raise InputError(
        f"Operation '{name}': {int(wrong[0])} is none of its {categories} categories; with "
        "zeros=1 it would be a row of zeros."
    )


def _refused(node: Node) -> Reason | None:
    if node.attrs.get("cats_int64s"):
        return None
    return Reason(ReasonCode.UNSUPPORTED_DTYPE, "categories are texts, or there are none")


@kernel("OneHotEncoder", domain="ai.onnx.ml", dtypes=INDICES, check=_refused)
def one_hot_encoder(b: Builder, node: Node, x: Operand) -> Operand:
    """A column for each category; zeros for what is of none, or an error."""
    categories = np.array(node.attrs["cats_int64s"], np.int64)
    # Of equal categories the last counts.
    keys, places = np.unique(categories[::-1], return_index=True)
    y = b.empty((*x.shape, categories.size), np.float32)
    if y.size:
        b.call(
            Checked(mark_categories, functools.partial(_refuse, b.node.name, keys.size)),
            b.flat(x),
            *map(b.constant, (keys, categories.size - 1 - places)),
            b.flat(y),
            b.empty((1,), np.int64),
            int(not node.attrs.get("zeros", 1)),
        )
    return y
