"""Contents of constants and inputs of drawn models."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import TensorProto, helper

from partita_conformance.inputs.models import Array


class Unfit(Exception):  # noqa: N818  # no fault of anybody
    """No model can be made of a makeup: two of its choices exclude each other."""


def dtype_of(element: str) -> np.dtype[np.generic]:
    """Numpy's type for one of ONNX's; texts are objects."""
    if element == "string":
        return np.dtype(object)
    return np.dtype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, element.upper())))


def numbers(element: str, shape: tuple[int, ...], seed: int) -> Array:
    """Small numbers, none of them zero if they are floats, with few bits each; or texts."""
    rng = np.random.default_rng(seed)
    dtype = dtype_of(element)
    if element == "string":
        words = np.array(["", "a", "b c", "\u00e4\u2713", "x" * 40], object)
        return np.asarray(words[rng.integers(0, len(words), shape)], object).reshape(shape)
    if element == "bool":
        return np.asarray(rng.integers(0, 2, shape) > 0)
    if dtype.kind in "iu":
        return np.asarray(rng.integers(0 if dtype.kind == "u" else -5, 6, shape)).astype(dtype)
    signs = 1 - 2 * rng.integers(0, 2, shape)
    return np.asarray(rng.integers(2, 25, shape) * signs / 8).astype(dtype)


def held(hold: str, element: str, shape: tuple[int, ...], seed: int) -> Array:
    """What a constant holds.

    Args:
        hold: A choice of the trait ``constants hold``.
        element: Its type.
        shape: Its shape.
        seed: Which numbers.

    Raises:
        Unfit: No constant of that type and shape holds that.
    """
    usual = numbers(element, shape, seed)
    return np.asarray(_CONTENTS[hold](usual, element, seed), usual.dtype).reshape(shape)


def _one(value: float) -> Callable[[Array, str, int], Array]:
    def fill(usual: Array, element: str, seed: int) -> Array:
        if element == "string":
            return np.full(usual.shape, str(value), object)
        return np.full(usual.shape, value).astype(usual.dtype)

    return fill


def _among(*values: float) -> Callable[[Array, str, int], Array]:
    def put(usual: Array, element: str, seed: int) -> Array:
        if "float" not in element and element != "double":
            raise Unfit("of floats alone")
        flat = usual.copy().reshape(-1)
        flat[seed % 2 :: 3] = np.resize(np.array(values), flat[seed % 2 :: 3].shape)
        return flat.astype(usual.dtype)

    return put


def _other(place: int) -> Callable[[Array, str, int], Array]:
    def put(usual: Array, element: str, seed: int) -> Array:
        flat = usual.copy().reshape(-1)
        if not flat.size:
            raise Unfit("it has no element")
        if element in ("bool", "string"):
            flat[place] = not flat[place] if element == "bool" else f"{flat[place]} other"
        else:
            flat[place] = flat[place] + np.asarray(1, usual.dtype)
        return flat

    return put


def _diagonal(usual: Array, element: str, seed: int) -> Array:
    if usual.ndim != 2 or element == "string":
        raise Unfit("of matrices of numbers")
    return np.eye(*usual.shape).astype(usual.dtype)


def _large(usual: Array, element: str, seed: int) -> Array:
    if element in ("bool", "string"):
        raise Unfit("of numbers alone")
    if usual.dtype.kind in "iu":
        return np.asarray(usual * np.asarray(np.iinfo(usual.dtype).max // 16, usual.dtype))
    return np.asarray(usual * np.asarray(300 if element == "float16" else 2.0**40, usual.dtype))


_CONTENTS: Mapping[str, Callable[[Array, str, int], Array]] = {
    "numbers": lambda usual, element, seed: usual,
    "other numbers": lambda usual, element, seed: numbers(element, usual.shape, seed + 50),
    "one number": _one(3),
    "zeros": _one(0),
    "ones": _one(1),
    "NaN among them": _among(np.nan),
    "infinities among them": _among(np.inf, -np.inf),
    "zeros of either sign": _among(0.0, -0.0),
    "another last one": _other(-1),
    "another first one": _other(0),
    "a diagonal": _diagonal,
    "large numbers": _large,
}
