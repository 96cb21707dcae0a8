"""Categories and labels by a dictionary: LabelEncoder, OneHotEncoder, CategoryMapper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]

DOMAIN = "ai.onnx.ml"
NAN_IS_A_KEY = 4
"""The opset from which on."""
_KINDS: dict[str, Any] = {
    "floats": np.float32,
    "int64s": np.int64,
    "strings": object,
    "tensor": None,
}
"""How attributes of labels end, and their types."""


class OneHotEncoder(OpRun):
    """The original has two dimensions at most, and goes through all elements by their indices."""

    op_domain = DOMAIN

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

    op_domain = DOMAIN

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


class LabelEncoder(OpRun):
    """The original finds no NaN, which is a key since opset 4, and has none of opset 1."""

    op_domain = DOMAIN

    def _run(self, x: Array, classes_strings: Sequence[str] = (), **given: Any) -> tuple[Array]:
        if classes_strings:  # of opset 1
            return self._of_classes(x, classes_strings, given)
        keys = _first(given, "keys")[1]
        kind, values = _first(given, "values")
        default = given.get(f"default_{kind.removesuffix('s')}")
        pairs = dict(zip(keys, values, strict=True))
        if self.run_params["opsets"].get(DOMAIN, 1) >= NAN_IS_A_KEY:
            pairs |= {_named(key): value for key, value in pairs.items()}
        other = default.item() if isinstance(default, np.ndarray) else default
        dtype = default.dtype if isinstance(default, np.ndarray) else _KINDS[kind]

        def find(key: Any) -> Any:
            return pairs.get(_named(key), other)

        return (_each(x, find, dtype),)

    def _of_classes(self, x: Array, classes: Sequence[str], given: dict[str, Any]) -> tuple[Array]:
        if x.dtype.kind in "iu":
            names = dict(enumerate(classes))
            return (_each(x, lambda n: names.get(n, given["default_string"]), object),)
        numbers = {name: n for n, name in enumerate(classes)}
        return (_each(x, lambda name: numbers.get(name, given["default_int64"]), np.int64),)


def _named(key: Any) -> Any:
    """The key itself; of NaN, which is not equal to itself, ``None``."""
    return key if key == key else None


def _first(given: dict[str, Any], name: str) -> tuple[str, list[Any]]:
    """The kind of the attribute that holds keys or values, and these."""
    kind = next(kind for kind in _KINDS if given.get(f"{name}_{kind}") is not None)
    return kind, np.asarray(given[f"{name}_{kind}"], _KINDS[kind]).ravel().tolist()


def _each(x: Array, find: Callable[[Any], Any], dtype: Any) -> Array:
    """What a function finds of each element."""
    found: Array = np.fromiter(map(find, x.ravel().tolist()), dtype, x.size)
    return found.reshape(x.shape)


CATEGORIES: tuple[type[OpRun], ...] = (CategoryMapper, LabelEncoder, OneHotEncoder)
