"""Operators of ai.onnx.ml that make a row's features: scaled, filled in, looked up, picked."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.kernel_table import refused_choice
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.movement.index_steps import checked_index, gathered
from partita_cpu.kernels.operator_table import ANY, F32, FLOATS, INDICES, INT64, kernel
from partita_cpu.scalar.instructions import like

DOMAIN = "ai.onnx.ml"
LARGEST, ABSOLUTE, SQUARES = 0, 1, 2
NORMS = {"MAX": LARGEST, "L1": ABSOLUTE, "L2": SQUARES}


@loop
def scale_columns(x: Any, offset: Any, scale: Any, y: Any, width: int, tid: int, nt: int) -> None:
    """``y = (x - offset) * scale`` by columns.

    Args:
        x: Rows of `width` numbers, flat.
        offset: One number, or one for each column.
        scale: One number, or one for each column.
        y: Output, flat.
        width: Numbers of a row.
        tid: This thread.
        nt: All threads; they share elements.
    """
    for place in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        column = place % width
        taken = offset[column if offset.size > 1 else 0]
        y[place] = (x[place] - taken) * scale[column if scale.size > 1 else 0]


def _refused_scaler(node: Node) -> Reason | None:
    if all(len(node.attrs.get(name) or ()) > 0 for name in ("offset", "scale")):
        return None
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "offset or scale is left out")


@kernel("Scaler", domain=DOMAIN, dtypes=F32, check=_refused_scaler)
def scaler(b: Builder, node: Node, x: Operand) -> Operand:
    """Numbers less an offset, by a scale."""
    numbers = [np.array(node.attrs[name], np.float32) for name in ("offset", "scale")]
    width = x.shape[-1] if x.ndim else 1
    _check_columns(node, x, *numbers)
    y = b.empty(x.shape, np.float32)
    if y.size:
        b.call(scale_columns, b.flat(x), *map(b.constant, numbers), b.flat(y), width)
    return y


def _check_columns(node: Node, x: Operand, *columns: Array) -> None:
    if not x.ndim or any(column.size not in (1, x.shape[-1]) for column in columns):
        sizes = " and ".join(str(column.size) for column in columns)
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has numbers for {sizes} columns; its "
            f"input has shape {list(x.shape)}."
        )


@loop
def normalize_rows(x: Any, y: Any, width: int, norm: int, tid: int, nt: int) -> None:
    """Rows by their largest absolute number, or the sum of these or of squares, or by 1e-30.

    Args:
        x: Rows of `width` numbers, flat.
        y: Output, flat.
        width: Numbers of a row.
        norm: `LARGEST`, `ABSOLUTE` or `SQUARES`, whose root is taken.
        tid: This thread.
        nt: All threads; they share rows.
    """
    rows = y.size // width
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        own = x[row * width : (row + 1) * width]
        total = like(x[0], 0)
        for i in range(width):
            if norm == LARGEST:
                total = max(total, abs(own[i]))
            else:
                total += abs(own[i]) if norm == ABSOLUTE else own[i] * own[i]
        if norm == SQUARES:
            total = np.sqrt(total)
        total = max(total, like(total, 1e-30))
        for i in range(width):
            y[row * width + i] = own[i] / total


def _refused_normalizer(node: Node) -> Reason | None:
    return refused_choice(node, "norm", *NORMS)


@kernel("Normalizer", domain=DOMAIN, dtypes=F32, check=_refused_normalizer)
def normalizer(b: Builder, node: Node, x: Operand) -> Operand:
    """Rows of norm 1."""
    y = b.empty(x.shape, np.float32)
    if y.size:
        width = x.shape[-1] if x.ndim else 1
        b.call(normalize_rows, b.flat(x), b.flat(y), width, NORMS[node.attrs.get("norm", "MAX")])
    return y


@loop
def fill_columns(
    x: Any, values: Any, y: Any, width: int, replaced: Any, unknown: int, tid: int, nt: int
) -> None:
    """Numbers, and in the place of one of them that of its column.

    Args:
        x: Rows of `width` numbers, flat.
        values: One number, or one for each column.
        y: Output, flat.
        width: Numbers of a row.
        replaced: What is replaced, unless `unknown`.
        unknown: Whether NaN is replaced.
        tid: This thread.
        nt: All threads; they share elements.
    """
    due = like(x[0], replaced)
    for place in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        value = x[place]
        gone = value != value if unknown else value == due
        y[place] = values[place % width if values.size > 1 else 0] if gone else value


def _refused_imputer(node: Node) -> Reason | None:
    x = node.inputs[0]
    whole = x is not None and x.dtype == np.int64
    if node.attrs.get("imputed_value_int64s" if whole else "imputed_value_floats"):
        return None
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "there are no values of the input's type")


@kernel("Imputer", domain=DOMAIN, dtypes=FLOATS | INT64, check=_refused_imputer)
def imputer(b: Builder, node: Node, x: Operand) -> Operand:
    """What is missing is filled in by columns."""
    whole = x.dtype.kind == "i"
    name = "int64" if whole else "float"
    values = np.array(node.attrs[f"imputed_value_{name}s"], x.dtype)
    _check_columns(node, x, values)
    replaced = node.attrs.get(f"replaced_value_{name}", 0)
    unknown = int(not whole and np.isnan(replaced))
    y = b.empty(x.shape, x.dtype)
    if y.size:
        flat = b.flat(x), b.constant(values), b.flat(y)
        b.call(fill_columns, *flat, x.shape[-1], 0 if unknown else replaced, unknown)
    return y


@loop
def compare_all(x: Any, y: Any, threshold: float, tid: int, nt: int) -> None:
    """1 where numbers are above a threshold, else 0.

    Args:
        x: Numbers, flat.
        y: Output, flat.
        threshold: Rounded to the type of numbers.
        tid: This thread.
        nt: All threads; they share elements.
    """
    limit = like(x[0], threshold)
    for i in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        y[i] = like(x[0], 1) if x[i] > limit else like(x[0], 0)


@kernel("Binarizer", domain=DOMAIN, dtypes=FLOATS)
def binarizer(b: Builder, node: Node, x: Operand) -> Operand:
    """Whether numbers are above a threshold."""
    y = b.empty(x.shape, x.dtype)
    if y.size:
        b.call(compare_all, b.flat(x), b.flat(y), float(node.attrs.get("threshold", 0)))
    return y


@kernel("ArrayFeatureExtractor", domain=DOMAIN, dtypes={0: ANY, 1: INT64})
def array_feature_extractor(b: Builder, node: Node, x: Operand, columns: Operand) -> Operand:
    """Columns by their numbers; of a row alone it makes one of a matrix."""
    if not x.ndim:
        raise OperandError(f"Operation '{node.name}' ({node.model_kind}) has no columns.")
    index = checked_index(b, b.flat(columns), x.shape[-1])
    found = gathered(b, x, index, x.ndim - 1)
    return b.view(found, (1, *found.shape)) if x.ndim == 1 else found


@loop
def look_up(x: Any, keys: Any, values: Any, y: Any, default: Any, tid: int, nt: int) -> None:
    """The value of each key, or a default.

    Args:
        x: What is looked up, flat.
        keys: In order, none of them twice; NaN may be the last.
        values: As many.
        y: Output, flat.
        default: An array of one element, for all others.
        tid: This thread.
        nt: All threads; they share elements.
    """
    last = keys.size - 1
    for i in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        sought = x[i]
        low, high = 0, last
        while low < high:  # the first key that is not below, or the last one
            middle = (low + high) >> 1
            if keys[middle] < sought or sought != sought:
                low = middle + 1
            else:
                high = middle
        same = keys[low] == sought or (sought != sought and keys[low] != keys[low])
        y[i] = values[low] if same else default[0]


_KINDS = {"floats": np.float32, "int64s": np.int64, "tensor": None}
_DEFAULTS = {"floats": -0.0, "int64s": -1, "tensor": None}


def _pairs(node: Node) -> tuple[Array, Array, Array]:
    """Keys in order, their values, and the default, from whichever attributes hold them.

    Raises:
        LookupError: There are none of numbers.
        ValueError: There are more keys than values, or none.
    """
    attrs = node.attrs
    kinds = [
        next(kind for kind in _KINDS if attrs.get(f"{name}_{kind}") is not None)
        for name in ("keys", "values")
    ]
    keys, values = (
        np.array(attrs[f"{name}_{kind}"], _KINDS[kind]).ravel()
        for name, kind in zip(("keys", "values"), kinds, strict=True)
    )
    default = attrs.get(f"default_{kinds[1].removesuffix('s')}", _DEFAULTS[kinds[1]])
    if default is None or keys.size != values.size or not keys.size:
        raise ValueError(f"{keys.size} keys, {values.size} values, default {default}")
    rest = np.array(default, values.dtype).reshape(1)
    if node.version < 4 and keys.dtype.kind == "f":  # a NaN is no key of these
        values[np.isnan(keys)] = rest
    # Of equal keys the last counts.
    found, places = np.unique(keys[::-1], return_index=True)
    return found, values[::-1][places], rest


def _refused_encoder(node: Node) -> Reason | None:
    texts = [name for name in ("keys_strings", "values_strings") if node.attrs.get(name)]
    if texts:
        return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"{' and '.join(texts)} are texts")
    keys, values, _ = _pairs(node)
    x = node.inputs[0]
    if x is not None and x.dtype not in (None, keys.dtype):
        return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"keys are {keys.dtype}, the input {x.dtype}")
    if values.dtype.kind not in "if" or keys.dtype.kind not in "if":
        return Reason(ReasonCode.UNSUPPORTED_DTYPE, f"{keys.dtype} to {values.dtype}")
    return None


@kernel("LabelEncoder", domain=DOMAIN, dtypes=FLOATS | INDICES, check=_refused_encoder, since=2)
def label_encoder(b: Builder, node: Node, x: Operand) -> Operand:
    """Numbers by their labels."""
    keys, values, default = _pairs(node)
    y = b.empty(x.shape, values.dtype)
    if y.size:
        constants = b.constant(keys), b.constant(values)
        b.call(look_up, b.flat(x), *constants, b.flat(y), b.constant(default))
    return y
