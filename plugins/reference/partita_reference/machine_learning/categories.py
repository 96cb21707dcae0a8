"""Categories by a dictionary: OneHotEncoder, and CategoryMapper, which the original has not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]


class OneHotEncoder(OpRun):
    """The original has two dimensions at most, and goes through all elements by their indices."""

    op_domain = "ai.onnx.ml"

    def _run(
        self,
        x: Array,
        cats_int64s: Sequence[int] | None = None,
        cats_strings: Sequence[str] | None = None,
        zeros: int | None = 1,
    ) -> tuple[Array]:
        categories: Sequence[Any] = cats_int64s or cats_strings or ()
        places = {category: place for place, category in enumerate(categories)}
        found = _each(x, lambda element: places.get(element, -1), np.int64)
        if zeros == 0 and (found < 0).any():
            unknown = x[found < 0].tolist()[0]
            raise ValueError(f"{unknown!r} is none of {len(categories)} categories")
        return ((found[..., None] == np.arange(len(categories))).astype(np.float32),)


class CategoryMapper(OpRun):
    """Texts to numbers, or numbers to texts."""

    op_domain = "ai.onnx.ml"

    def _run(
        self,
        x: Array,
        cats_int64s: Sequence[int] = (),
        cats_strings: Sequence[str] = (),
        default_int64: int | None = None,
        default_string: str | None = None,
    ) -> tuple[Array]:
        if x.dtype.kind in "iu":
            texts = dict(zip(cats_int64s, cats_strings, strict=True))
            other = "_Unused" if default_string is None else default_string
            return (_each(x, lambda number: texts.get(number, other), object),)
        numbers = dict(zip(cats_strings, cats_int64s, strict=True))
        rest = -1 if default_int64 is None else default_int64
        return (_each(x, lambda text: numbers.get(text, rest), np.int64),)


def _each(x: Array, find: Callable[[Any], Any], dtype: Any) -> Array:
    """What a function finds of each element."""
    found: Array = np.fromiter(map(find, x.ravel().tolist()), dtype, x.size)
    return found.reshape(x.shape)


CATEGORIES: tuple[type[OpRun], ...] = (CategoryMapper, OneHotEncoder)
