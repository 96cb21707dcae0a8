"""``partita::GatedMatMulNBits``: both products of a decoder's feed-forward part, and its gate."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.lowering import ActivationCode, Array, Builder, Node, Operand
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.packed_lhs.packed_lhs_table import COLUMNS, HALF, MatrixSizes, packed_lhs_size
from partita_cpu.gemm.packed_lhs.tiled_operands import has_only_tiles, note_only_tiles, packed_lhs
from partita_cpu.gemm.precision_policy import PrecisionPolicy, native_policy
from partita_cpu.gemm.tile_kernels import gate_kernel, packed_lhs_kernels, unpack_kernel
from partita_cpu.kernels.elementwise.activation import gated_activation
from partita_cpu.kernels.operator_table import F32, kernel, with_inputs
from partita_cpu.kernels.quantized_weights.gated_products import (
    PRODUCTS,
    GatedContext,
    gated_bytes,
    interleaved_bias,
    multiply_gated,
)
from partita_cpu.kernels.quantized_weights.matmul_nbits import (
    matmul_nbits,
    row_sizes,
    tile_arithmetic,
)
from partita_cpu.kernels.quantized_weights.panels import BlockSizes, Panels, packed, widened
from partita_cpu.kernels.quantized_weights.row_products import BlockArrays, scratch_floats
from partita_cpu.kernels.quantized_weights.tile_products import unpacked_size, unpacked_table

_CODES = {
    ("Silu", "none"): ActivationCode.SILU,
    ("Gelu", "none"): ActivationCode.GELU,
    ("Gelu", "tanh"): ActivationCode.GELU_TANH,
}


class GatedInputs(NamedTuple):
    """Inputs of both products: the rows, then weights, scales, zero points and bias of each."""

    x: Operand
    w: Operand
    scales: Operand
    zeros: Operand | None
    bias: Operand | None
    other_w: Operand
    other_scales: Operand
    other_zeros: Operand | None = None
    other_bias: Operand | None = None


class _Side(NamedTuple):
    """One of the products.

    Attributes:
        node: The operation that it was.
        w: Its weights.
        scales: Their scales.
        zeros: Zero points.
        bias: A constant, or ``None``.
    """

    node: Node
    w: Operand
    scales: Operand
    zeros: Operand | None
    bias: Operand | None

    @property
    def sizes(self) -> BlockSizes:
        attrs = self.node.attrs
        return BlockSizes(attrs["K"], attrs["N"], attrs["block_size"], attrs.get("bits", 4))

    def product(self, b: Builder, x: Operand) -> Operand:
        """The product by itself."""
        found: Operand = matmul_nbits(
            b, self.node, x, self.w, self.scales, self.zeros, None, self.bias
        )
        return found


@kernel("GatedMatMulNBits", domain="partita", dtypes={0: F32})
@with_inputs(GatedInputs)
def gated_matmul(b: Builder, node: Node, inputs: GatedInputs) -> Operand:
    """``activation(x @ gate + bias) * (x @ other + bias)``; see `passes.tiles.gated_products`.

    By AMX it is one step, whose result the product that comes next alone can read. Otherwise there
    are three.
    """
    x, attrs = inputs.x, node.attrs
    gate, other = (
        _Side(Node("MatMulNBits", (), (), attrs[name], name=node.name), *weights)
        for name, weights in (("gate", inputs[1:5]), ("other", inputs[5:]))
    )
    policy, rows = native_policy(b.options), math.prod(x.shape[:-1])
    kinds = [
        None if policy is None or not side.w.size else tile_arithmetic(policy, side.sizes, rows)
        for side in (gate, other)
    ]
    arithmetic = kinds[0]
    if policy is None or arithmetic is None or None in kinds:
        form = {"activation": attrs["activation"], "approximate": attrs["approximate"]}
        activated = Node("Gated", (), (), {**form, "in_place": True}, domain="partita")
        y: Operand = gated_activation(b, activated, gate.product(b, x), other.product(b, x))
        return y
    y = b.empty((*x.shape[:-1], gate.sizes.columns), np.float32)
    out = b.empty((packed_lhs_size(rows, gate.sizes.columns, arithmetic.planes),), np.uint16)
    note_only_tiles(b, y, arithmetic, out)
    code = _CODES[attrs["activation"], attrs["approximate"]]
    _emit_tiles(b, policy, arithmetic, code, x, (gate, other), out)
    return y


def _emit_tiles(
    b: Builder,
    policy: PrecisionPolicy,
    arithmetic: Arithmetic,
    code: ActivationCode,
    x: Operand,
    sides: tuple[_Side, _Side],
    out: Operand,
) -> None:
    """Records both products and the gate by tiles of AMX.

    Args:
        b: The builder.
        policy: Level, machine and threads.
        arithmetic: Of the tiles.
        code: The activation of the gate.
        x: Rows.
        sides: Weights of the gate, and those that it gates.
        out: Gets the result as tiles.
    """
    rows, threads, planes = math.prod(x.shape[:-1]), policy.threads, arithmetic.planes
    terms, columns = sides[0].sizes.terms, sides[0].sizes.columns
    kernels = b.constant(packed_lhs_kernels(policy.level, arithmetic))
    tiles = packed_lhs(b, x, rows, terms, arithmetic, kernels)
    product = MatrixSizes(rows, terms, columns, planes)
    table = unpacked_table(product, policy.machine, threads, PRODUCTS)
    panels = [_panels(b, side, threads) for side in sides]
    unpack, unpack_other = (
        b.constant(unpack_kernel(policy.level, each.variant, planes)) for each in panels
    )
    floats = max(scratch_floats(side.sizes.size) for side in sides)
    only_tiles = has_only_tiles(b, x, arithmetic)
    context = GatedContext(
        b.empty((threads * gated_bytes(table),), np.uint8),
        b.empty((threads * unpacked_size(table, PRODUCTS),), np.uint16),
        b.empty((threads * floats,), np.float32),
        kernels,
        unpack,
        unpack_other,
        b.constant(gate_kernel(policy.level, code, planes)),
        b.empty((threads * HALF * terms if only_tiles else 0,), np.float32),
        b.constant(table),
    )
    bias = _bias(b, *sides)
    b.call(
        multiply_gated,
        b.empty((0,), np.float32) if only_tiles else b.flat(x),
        tiles,
        out,
        *(BlockArrays(each.w, each.scales, each.zeros, bias, bias) for each in panels),
        context,
        *(row_sizes(each, side.sizes, rows) for each, side in zip(panels, sides, strict=True)),
        work=PRODUCTS * rows * terms * columns // 16,
        exec_type=arithmetic.exec_type(policy.level),
    )


def _panels(b: Builder, side: _Side, threads: int) -> Panels:
    weights = side.w, side.scales, side.zeros
    return widened(b, packed(b, *weights, side.sizes, threads, levels=True), side.sizes)


def _bias(b: Builder, gate: _Side, other: _Side) -> Operand:
    """Biases in the order of tiles of sums."""
    columns = gate.sizes.columns
    if gate.bias is None and other.bias is None:
        return b.zeros(2 * COLUMNS * -(-columns // COLUMNS), np.float32)
    given = [None if side.bias is None else b.value(side.bias) for side in (gate, other)]
    both: list[Array] = [np.zeros(columns) if array is None else array for array in given]
    return b.constant(interleaved_bias(*both))
