"""Random numbers: drawn anew at every run; a seed makes a compiled model's runs repeatable."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import Array, Builder, Node, Operand
from partita_cpu.kernels.elementwise.cast import emit_cast, onnx_dtype
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, BOOL, kernel

FLOAT = 1
"""ONNX's number for float32."""


def _generator(node: Node) -> np.random.Generator:
    seed = node.attrs.get("seed")
    # The attribute is a float: its bits are as good a seed as its value.
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


def draw_normal(generator: np.random.Generator, mean: float, scale: float, y: Array) -> None:
    """Fills ``y`` with normally distributed numbers."""
    y[...] = generator.normal(mean, scale, y.shape)


def draw_uniform(generator: np.random.Generator, low: float, high: float, y: Array) -> None:
    """Fills ``y`` with uniformly distributed numbers."""
    y[...] = generator.uniform(low, high, y.shape)


def draw_chances(generator: np.random.Generator, chances: Array, y: Array) -> None:
    """1 with the given chances, else 0."""
    y[...] = generator.random(y.shape) < chances


def draw_classes(generator: np.random.Generator, logits: Array, y: Array) -> None:
    """For each row, indices with chances of exp(logit)."""
    # The largest of logit plus Gumbel noise is distributed as asked for.
    for row, target in zip(logits, y, strict=True):
        noise = generator.gumbel(size=(target.size, row.size))
        target[...] = np.argmax(row + noise, axis=1)


def drop(seed: int | None, x: Array, ratio: Array, y: Array, mask: Array) -> None:
    """Zeroes a share of the elements, drawn as ONNX's reference draws, and scales the others."""
    share = ratio.ravel()[0]
    mask[...] = np.random.RandomState(seed).uniform(0, 1, x.shape) >= share
    y[...] = mask * x * (1 / (1 - share))


def _emit_draw(b: Builder, node: Node, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operand:
    y = b.empty(shape, np.float64 if dtype == np.float64 else np.float32)
    attrs = node.attrs
    if node.op_type.startswith("RandomNormal"):
        mean, scale = float(attrs.get("mean", 0.0)), float(attrs.get("scale", 1.0))
        b.call_numpy(draw_normal, _generator(node), mean, scale, y)
    else:
        low, high = float(attrs.get("low", 0.0)), float(attrs.get("high", 1.0))
        if not math.isfinite(high - low):
            raise CompileError(
                f"Operation '{node.name}' ({node.model_kind}) draws from {low} to {high}; the "
                "distance must be finite."
            )
        b.call_numpy(draw_uniform, _generator(node), low, high, y)
    return emit_cast(b, y, dtype)


@kernel("RandomNormal", "RandomUniform", folds=False)
def random_tensor(b: Builder, node: Node) -> Operand:
    """Random numbers in a shape given by an attribute."""
    shape = tuple(int(length) for length in node.attrs["shape"])
    return _emit_draw(b, node, shape, onnx_dtype(node.attrs.get("dtype", FLOAT)))


@kernel("RandomNormalLike", "RandomUniformLike", dtypes={}, folds=False)
def random_like(b: Builder, node: Node, x: Operand) -> Operand:
    """Random numbers in the shape of a tensor."""
    number = node.attrs.get("dtype")
    return _emit_draw(b, node, x.shape, x.dtype if number is None else onnx_dtype(number))


@kernel("Bernoulli", dtypes=ALL_FLOATS, folds=False)
def bernoulli(b: Builder, node: Node, x: Operand) -> Operand:
    """1 with the chance that the element says, else 0."""
    number = node.attrs.get("dtype")
    y = b.empty(x.shape, np.uint8)
    b.call_numpy(draw_chances, _generator(node), emit_cast(b, x, np.float64), y)
    return emit_cast(b, y, x.dtype if number is None else onnx_dtype(number))


@kernel("Multinomial", dtypes=ALL_FLOATS, folds=False)
@through_float32
def multinomial(b: Builder, node: Node, x: Operand) -> Operand:
    """Classes drawn by the unnormalized logarithms of their chances."""
    dtype = onnx_dtype(node.attrs["dtype"]) if "dtype" in node.attrs else np.dtype(np.int32)
    y = b.empty((x.shape[0], int(node.attrs.get("sample_size", 1))), dtype)
    if y.size:
        b.call_numpy(draw_classes, _generator(node), x, y)
    return y


def _no_old_training(node: Node) -> Reason | None:
    if node.version < 7 and not node.attrs.get("is_test", 0):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "is_test is 0")
    return None


@kernel(
    "Dropout",
    dtypes={0: ALL_FLOATS, 1: ALL_FLOATS, 2: BOOL},
    check=_no_old_training,
    folds=False,
)
@through_float32
def dropout(
    b: Builder,
    node: Node,
    x: Operand,
    ratio: Operand | None = None,
    training: Operand | None = None,
) -> tuple[Operand, Operand]:
    """Drops nothing at inference."""
    share = b.constant(np.float32(0.5)) if ratio is None else ratio
    if training is None or not bool(b.value(training)) or not b.value(share).any():
        kind = x.dtype if node.version < 10 else np.dtype(np.bool_)
        return x, b.filled(x.shape, kind, np.True_)
    y, mask = b.empty(x.shape, x.dtype), b.empty(x.shape, np.bool_)
    b.call_numpy(drop, node.attrs.get("seed"), x, share, y, mask)
    return y, mask
