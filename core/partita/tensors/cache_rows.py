"""Caches of keys and values in int8: each row, of one head and token, has a scale of its own.

A row is the codes of its elements, padding to a multiple of four bytes, and the scale, a float32 in
the machine's order of bytes; an element is its code times the scale. So a cache of int8 is one
tensor, which is written, saved and counted as any other. The scale of a row is its largest element
over 127: keys differ much from token to token and head to head, and elements of one row are read
together (Sheng et al., FlexGen, 2023, quantize caches in groups; llama.cpp's q8_0 has a scale for
32 elements).

``GroupQueryAttention`` of onnxruntime has attributes for quantized caches, whose scales are inputs
that never change. `PER_TOKEN` is a value of Partita's own for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PER_TOKEN = "PER_TOKEN"  # noqa: S105  # no password
"""The kind of quantization, as attributes name it."""

ATTRIBUTES: Mapping[str, Any] = {
    "kv_cache_bit_width": 8,
    "k_quant_type": PER_TOKEN,
    "v_quant_type": PER_TOKEN,
}
"""What an operation with such caches has."""

OF_NUMBERS: Mapping[str, Any] = {
    "kv_cache_bit_width": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
}
"""The same of caches whose elements are numbers by themselves."""

LARGEST = 127
"""The largest code, and with the other sign the least."""

SCALE_BYTES = 4

LEAST_SCALE = 1e-37
"""Rows of smaller elements are 0: their scales would have no inverse."""

Array = np.ndarray[Any, Any]


def codes_bytes(size: Any) -> Any:
    """Bytes of the codes of a row of so many elements, with padding; where its scale begins."""
    return (size + 3) // 4 * 4


def row_bytes(size: Any) -> Any:
    """Bytes of a row of so many elements."""
    return codes_bytes(size) + SCALE_BYTES


def is_quantized(attributes: Mapping[str, Any]) -> bool:
    """Whether an operation's attributes say that its caches are such rows."""
    return bool(attributes.get("k_quant_type") == PER_TOKEN)


def decoded(rows: Array, size: int) -> Array:
    """The elements of rows as float32.

    Args:
        rows: int8, the last axis `row_bytes` long.
        size: Elements of a row.
    """
    scales = np.ascontiguousarray(rows[..., codes_bytes(size) :]).view(np.float32)
    return rows[..., :size] * scales


def encoded(elements: Array) -> Array:
    """Elements as rows of codes with their scales; a row that is not finite becomes NaN."""
    size = elements.shape[-1]
    largest = np.abs(elements).max(axis=-1, keepdims=True, initial=0)
    scales = np.where(np.isfinite(largest), largest / LARGEST, np.nan).astype(np.float32)
    rows = np.zeros((*elements.shape[:-1], row_bytes(size)), np.int8)
    usable = scales >= LEAST_SCALE
    parts = np.divide(elements, scales, out=np.zeros(elements.shape), where=usable)
    rows[..., :size] = np.clip(np.rint(parts), -LARGEST, LARGEST)
    rows[..., codes_bytes(size) :] = scales.view(np.int8)
    return rows
