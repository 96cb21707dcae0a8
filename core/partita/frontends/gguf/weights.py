"""Tensors of a GGUF file as initializers, made from the mapped file each time they are asked for.

Nothing that is made is kept here: a device asks once, packs it its way, and lets it go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.gguf.block_formats import Array, QuantisedFormat
from partita.frontends.gguf.container import GgufTensor
from partita.system.memory_map import give_back

if TYPE_CHECKING:
    import onnx_ir as ir

CHUNK_BYTES = 1 << 18
"""Bytes of a file that are unpacked at once: what is made on the way stays in a cache."""


class QuantisedWeight:
    """A tensor of quants as the initializers that ONNX's operators take.

    Args:
        tensor: The tensor, of two dimensions.
        form: How its elements are stored.

    Attributes:
        bits: Bits of a quant.
        scale_block: Elements that share a scale.
    """

    def __init__(self, tensor: GgufTensor, form: QuantisedFormat) -> None:
        rows, columns = tensor.shape
        self.bits = form.bits
        self.scale_block = form.scale_block
        self._tensor = tensor
        self._form = form
        self._scale_shape = (rows, columns // form.scale_block)

    def quants(self) -> ir.LazyTensor:
        """Quants as ``MatMulNBits`` wants them: [rows, scale blocks, bytes], low bits first."""
        shape = (*self._scale_shape, self.scale_block * self.bits // 8)
        return _by_rows(self._tensor, self._form.quants, shape, np.uint8)

    def scales(self) -> ir.LazyTensor:
        """Scales [rows, scale blocks] in float32."""
        return _by_rows(self._tensor, self._form.scales, self._scale_shape, np.float32)

    def zero_points(self) -> ir.LazyTensor | None:
        """Zero points of this shape in float32; ``None`` if all are the middle of the range."""
        if self._form.zero_points is None:
            return None
        return _by_rows(self._tensor, self._form.zero_points, self._scale_shape, np.float32)

    def offsets(self) -> ir.LazyTensor | None:
        """What to add to elements that were unpacked with the middle as zero point, if anything."""
        scales, zero_points = self._form.scales, self._form.zero_points
        if zero_points is None:
            return None
        middle = np.float32(1 << (self.bits - 1))

        def parts(blocks: Array) -> Array:
            return scales(blocks) * (middle - zero_points(blocks))

        return _by_rows(self._tensor, parts, self._scale_shape, np.float32)


def quantised(tensor: GgufTensor) -> QuantisedWeight | None:
    """The weight of a tensor of two dimensions; ``None`` if it holds plain numbers."""
    form = tensor.format
    return QuantisedWeight(tensor, form) if isinstance(form, QuantisedFormat) else None


def plain(tensor: GgufTensor, transposed: bool = False) -> ir.TensorProtocol:
    """A tensor of F32, F16 or BF16, a view of the file.

    Args:
        tensor: The tensor.
        transposed: Swap its two dimensions, as ``MatMul`` wants weights.
    """
    import ml_dtypes
    import onnx_ir as ir

    array = tensor.blocks()
    if tensor.format.name == "BF16":
        array = array.view(ml_dtypes.bfloat16)
    return ir.Tensor(array.T if transposed else array)


def vector(tensor: GgufTensor) -> Array:
    """A short tensor of plain numbers in float32, copied: its page of the file is not kept."""
    return np.array(plain(tensor).numpy(), np.float32)


def _by_rows(
    tensor: GgufTensor,
    part: Callable[[Array], Array],
    shape: tuple[int, ...],
    dtype: Any,
) -> ir.LazyTensor:
    """A tensor that is made when it is asked for, some rows at a time."""
    import onnx_ir as ir

    kind = ir.DataType.from_numpy(np.dtype(dtype))
    make = partial(_made_by_rows, tensor, part, shape, dtype)
    return ir.LazyTensor(make, kind, ir.Shape(shape), name=tensor.name)


def _made_by_rows(
    tensor: GgufTensor, part: Callable[[Array], Array], shape: tuple[int, ...], dtype: Any
) -> ir.TensorProtocol:
    """The elements of such a tensor."""
    import onnx_ir as ir

    blocks = tensor.blocks()
    step = max(CHUNK_BYTES // max(len(tensor.data) // len(blocks), 1), 1)
    found = np.empty(shape, dtype)
    with np.errstate(all="ignore"):  # damaged scales make damaged weights, no warning
        for start in range(0, len(blocks), step):
            rows = blocks[start : start + step]
            found[start : start + step] = part(rows).reshape(len(rows), *shape[1:])
    give_back(np.frombuffer(tensor.data, np.uint8))
    return ir.Tensor(found)
