"""Systematic draws of quantization, and of quantized products and convolutions.

Scales are powers of two, so that quotients are exact and no device rounds one way by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from partita_conformance.draws.choices.meet import meetings, meetings_of_three
from partita_conformance.draws.choices.numbers import numbers
from partita_conformance.draws.choices.windows import windows_of
from partita_conformance.draws.draw import Array, Draw

_KINDS: Mapping[str, tuple[Any, int]] = {
    "uint8": (np.uint8, 17),
    "int8": (np.int8, 17),
    "uint16": (np.uint16, 21),
    "int16": (np.int16, 21),
    "uint4": (ml_dtypes.uint4, 21),
    "int4": (ml_dtypes.int4, 21),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, 21),
    "float8_e5m2": (ml_dtypes.float8_e5m2, 21),
}
"""Types of codes, and the first opset that has all that is drawn of them."""
_BYTES = ("uint8", "int8")


def _codes(kind: Any, *shape: int) -> Array:
    """Codes from one end of a type of bytes to the other, in no order."""
    count = int(np.prod(shape))
    low = np.iinfo(kind).min
    return (np.arange(count) * 89 % 251 + low + 2).astype(kind).reshape(shape)


def _weights(kind: Any, *shape: int) -> Array:
    """Codes of seven bits: of pairs of products with others, 16 bits hold the sum.

    Processors without instructions for bytes saturate it, and engines let them.
    """
    return (_codes(np.int8, *shape) // 2 + (64 if np.dtype(kind).kind == "u" else 0)).astype(kind)


def _zeros(kind: Any, *shape: int) -> Array:
    """Zero points near the middle of a type, no two beside one another alike."""
    count = int(np.prod(shape))
    middle = 113 if np.dtype(kind).kind == "u" else -6
    return (middle + np.arange(count) * 5 % 23).astype(kind).reshape(shape)


def _scales(*shape: int) -> Array:
    """Powers of two, no two beside one another alike."""
    count = int(np.prod(shape))
    return np.exp2(np.arange(count) * 2 % 5 - 5).astype(np.float32).reshape(shape)


def quantize(op_type: str) -> Iterator[Draw]:
    """Ranks, axes, one scale and many, blocks, types either side, zero points and none."""
    there = op_type == "QuantizeLinear"
    for row in meetings(
        shape=((6,), (4, 6), (4, 6, 2), (2, 6, 4, 3)), axis=(None, 0, 1, 2, -1, -2),
        kind=tuple(_KINDS), zero=(0, 1), by=("axis", "axis", "one", "blocks", "uneven"),
        wide=("float32", "float16"), known=(0, 1),
    ):  # fmt: skip
        shape, axis, by = row["shape"], row["axis"], row["by"]
        place = 1 if axis is None else axis
        if by != "one" and not -len(shape) <= place < len(shape):
            continue
        kind, opset = _KINDS[row["kind"]]
        given: dict[str, Any] = {} if axis is None or by == "one" else {"axis": axis}
        sizes: list[int] = [shape[place]] if by == "axis" else [] if by == "one" else list(shape)
        if by in ("blocks", "uneven"):
            given["block_size"] = 2 if by == "blocks" else shape[place] - 1  # the last of one row
            sizes[place] = -(-shape[place] // given["block_size"])
        opset = 21 if by in ("blocks", "uneven") or row["wide"] == "float16" else opset
        scale = _scales(*sizes).astype(row["wide"])
        whole = row["kind"] in ("uint4", "int4", "uint16", "int16", *_BYTES)
        zero = (np.arange(scale.size) % 5 if whole else np.zeros(scale.size)).reshape(sizes)
        rest = [scale, zero.astype(kind)][: 1 + row["zero"]]
        if there:
            first = (numbers(*shape) * 8 - 10).astype(row["wide"])
            if not row["zero"] and row["kind"] != "uint8":
                given["output_dtype"], opset = (
                    int(helper.np_dtype_to_tensor_dtype(np.dtype(kind))),
                    21,
                )
        else:
            first = (np.arange(int(np.prod(shape))) * 5 % 8).reshape(shape).astype(kind)
        yield Draw([first, *rest], given, [1, 2] if row["known"] else [], opset=opset)
    if not there:  # sums of products, which have no zero point
        sums = _codes(np.int32, 4, 6) + np.int32(2**20)
        for scale, given in ((_scales(), {}), (_scales(6), {"axis": 1}), (_scales(4), {"axis": 0})):
            yield Draw([sums, scale], given, [1])


def dynamic() -> Iterator[Draw]:
    """Ranges on either side of zero, around it, and of one number."""
    x = numbers(3, 5)
    for part in (x - 1.2, x + 1, -x - 1, x * 0, x[:1, :1], -x[:1, :1], x * 1e-3, x * 1e4 - 3e3):
        yield Draw([part.astype(np.float32)], {}, (), 3)


def matmul_integer() -> Iterator[Draw]:
    """Matrices, vectors and batches, of either type, with zero points of each shape."""
    sides = (((3, 7), (7, 5)), ((2, 3, 7), (7, 5)), ((2, 1, 3, 7), (4, 7, 5)), ((1, 7), (7, 1)),
             ((7,), (7, 5)), ((3, 7), (7,)), ((3, 33), (33, 17)))  # fmt: skip
    for row in meetings(
        side=sides, a=_BYTES, b=_BYTES, zeros=("none", "first", "second", "both", "rows"),
        known=((), (1, 2, 3), (2, 3)),
    ):  # fmt: skip
        first, second = row["side"]
        kinds = np.dtype(row["a"]), np.dtype(row["b"])
        inputs: list[Array | None] = [_codes(kinds[0], *first), _weights(kinds[1], *second)]
        many = row["zeros"] == "rows" and len(first) == len(second) == 2
        zeros: list[Array | None] = [_zeros(kinds[0]), _zeros(kinds[1])]
        if many:  # of each row, of each column
            zeros = [_zeros(kinds[0], first[0]), _zeros(kinds[1], second[1])]
        if row["zeros"] == "second":
            zeros[0] = None
        count = {"none": 0, "first": 1}.get(row["zeros"], 2)
        yield Draw([*inputs, *zeros[:count]], {}, [n for n in row["known"] if n < 2 + count])


def qlinear_matmul() -> Iterator[Draw]:
    """Matrices and batches, types, and a scale for each row, for each column or for all."""
    sides = (((3, 7), (7, 5)), ((2, 3, 7), (2, 7, 5)), ((2, 3, 7), (7, 5)), ((4, 33), (33, 17)))
    for row in meetings_of_three(
        side=sides, a=_BYTES, b=_BYTES, by=("one", "column"), known=(0, 1)
    ):
        first, second = row["side"]
        kinds = np.dtype(row["a"]), np.dtype(row["b"])
        columns = [second[-1]] if row["by"] == "column" and len(second) == 2 else []
        inputs = [
            *(_codes(kinds[0], *first), np.array(2.0**-7, np.float32), _zeros(kinds[0])),
            *(_weights(kinds[1], *second), _scales(*columns), _zeros(kinds[1], *columns)),
            *(np.array(2.0**-2, np.float32), _zeros(kinds[0])),
        ]
        yield Draw(inputs, {}, (1, 2, 4, 5, 6, 7) + ((3,) if row["known"] else ()))


def _image_of_codes(op_type: str) -> Iterator[Draw]:
    """Windows of images of codes, in each type, padded with what stands for zero."""
    for row in meetings(
        rank=(2, 1), group=(1, 2, 4), each=(1, 3), kernel=(0, 1, 2), strides=(0, 1),
        dilations=(0, 1), pads=("none", "uneven", "SAME_UPPER", "SAME_LOWER", "VALID"), x=_BYTES,
        w=_BYTES, batch=(1, 2), by=("one", "channel", "none"), bias=(0, 1), known=(0, 1),
    ):  # fmt: skip
        given, group = windows_of(row), row["group"]
        kinds = np.dtype(row["x"]), np.dtype(row["w"])
        count = group * row["each"]
        x = _codes(kinds[0], row["batch"], 4, *(7, 6)[: row["rank"]])
        w = _weights(kinds[1], count, 4 // group, *given["kernel_shape"])
        given["group"] = group
        channels = [count] if row["by"] == "channel" else []
        if op_type == "ConvInteger":
            zeros = [] if row["by"] == "none" else [_zeros(kinds[0]), _zeros(kinds[1], *channels)]
            yield Draw([x, w, *zeros], given, (1, 2, 3) if row["known"] else (2, 3))
            continue
        inputs = [
            *(x, np.array(2.0**-7, np.float32), _zeros(kinds[0])),
            *(w, _scales(*channels), _zeros(kinds[1], *channels)),
            *(np.array(2.0**-2, np.float32), _zeros(kinds[0])),
        ]
        if row["bias"]:
            inputs.append(np.asarray(np.arange(count) * 977 % 1999 - 900, np.int32))
        yield Draw(inputs, given, range(1, len(inputs)))


CODES: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "QuantizeLinear": lambda: quantize("QuantizeLinear"),
    "DequantizeLinear": lambda: quantize("DequantizeLinear"),
    "DynamicQuantizeLinear": dynamic,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "ConvInteger": lambda: _image_of_codes("ConvInteger"),
    "QLinearConv": lambda: _image_of_codes("QLinearConv"),
}
"""Operator to its draws."""
