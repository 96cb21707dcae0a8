"""MatMulNBits of onnxruntime: weights of 2, 4 or 8 bits, with a scale for each block of terms."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.shapes.symbolic_size import evaluated
from partita.system.processors import usable_processors
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.fused_activation import epilogue_of
from partita_cpu.gemm.packed_lhs.packed_lhs_table import COLUMNS as TILE_COLUMNS
from partita_cpu.gemm.packed_lhs.packed_lhs_table import MatrixSizes, thread_bytes
from partita_cpu.gemm.packed_lhs.tiled_operands import has_only_tiles, packed_lhs
from partita_cpu.gemm.precision_policy import PrecisionPolicy, native_policy
from partita_cpu.gemm.shares import shares_across
from partita_cpu.gemm.tile_fields import STEP
from partita_cpu.gemm.tile_kernels import (
    block_exec_type,
    block_kernels,
    int8_rows_kernel,
    int16_rows_kernel,
    packed_lhs_kernels,
    pair_kernels,
    quad_kernels,
    unpack_kernel,
)
from partita_cpu.kernels.half import float32_of, narrow
from partita_cpu.kernels.operator_table import F32, HALVES, kernel, with_inputs
from partita_cpu.kernels.quantized_weights.panels import BlockSizes, Panels, packed, widened
from partita_cpu.kernels.quantized_weights.row_products import (
    MOST_ROWS,
    BlockArrays,
    RowSizes,
    multiply_blocks,
    scratch_floats,
)
from partita_cpu.kernels.quantized_weights.rows_int8 import GroupSizes, quantize_groups
from partita_cpu.kernels.quantized_weights.rows_int16 import (
    RowLayout,
    quantize_rows,
    row_bytes,
)
from partita_cpu.kernels.quantized_weights.split_rows import add_halves, with_rounding_errors
from partita_cpu.kernels.quantized_weights.term_order import in_order
from partita_cpu.kernels.quantized_weights.tile_products import (
    UnpackContext,
    multiply_unpacked,
    unpacked_size,
    unpacked_table,
)
from partita_cpu.kernels.quantized_weights.unpacked_products import (
    Unpacked,
    chunk_rows,
    fewest_rows,
    in_depth,
    multiply_unpacked_rows,
    pays_for_pairs,
    thread_floats,
)
from partita_cpu.kernels.quantized_weights.unpacked_products import row_bytes as unpacked_row_bytes
from partita_cpu.llvm.levels import PORTABLE, Level
from partita_cpu.llvm.tiles.dot_blocks import scales_by_exponents
from partita_cpu.llvm.tiles.dot_unpacked import (
    BLOCK_BITS,
    Factors,
    begins_with_zeros,
    longest_unit,
    row_counts,
    subtracts_zeros,
    width,
)
from partita_cpu.machine_model import MachineModel

_TAKEN = F32 | HALVES
_BYTES = frozenset({np.dtype(np.uint8)})
_INT32 = frozenset({np.dtype(np.int32)})

BLOCKS = (16, 32, 64, 128, 256)

MANY_ROWS = 64
"""From here on AMX is faster, which needs weights in bfloat16."""

ROWS_SHARE = 1 / 2
"""Of the second-level cache, for rows that meet one panel after another."""


class MatMulInputs(NamedTuple):
    """Inputs of MatMulNBits."""

    x: Operand
    w: Operand
    scales: Operand
    zeros: Operand | None = None
    order: Operand | None = None
    bias: Operand | None = None


def _check(node: Node) -> Reason | None:
    attrs = node.attrs
    bits, size = attrs.get("bits", 4), attrs["block_size"]
    wrong = ReasonCode.UNSUPPORTED_ATTRIBUTE
    if bits not in BLOCK_BITS:
        return Reason(wrong, f"bits is {bits}; takes {_listed(BLOCK_BITS)}, and 2 of constants")
    if size not in BLOCKS:
        return Reason(wrong, f"block_size is {size}; takes {_listed(BLOCKS)}")
    if attrs.get("weight_prepacked", 0):
        return Reason(wrong, "weights are packed for another device (weight_prepacked)")
    if node.input(4) is not None:
        for place in (1, 2, 3, 4):
            value = node.input(place)
            if value is not None and value.const is None:
                return Reason(wrong, f"g_idx is given, and input {place} is not a constant")
    return None


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


@kernel(
    "MatMulNBits",
    domain="com.microsoft",
    dtypes={0: _TAKEN, 1: _BYTES, 2: _TAKEN, 3: _TAKEN | _BYTES, 4: _INT32, 5: _TAKEN},
    check=_check,
)
@with_inputs(MatMulInputs)
def matmul_nbits(b: Builder, node: Node, inputs: MatMulInputs) -> Operand:
    """``x @ ((w - zeros) * scales) + bias``; weights are packed once, and never made whole.

    Where terms name their scales (g_idx), all are brought into the order of these first.
    """
    attrs = node.attrs
    sizes = BlockSizes(attrs["K"], attrs["N"], attrs["block_size"], attrs.get("bits", 4))
    _check_zeros(node, inputs.zeros, sizes)
    kind, x = inputs.x.dtype, float32_of(b, inputs.x)
    if inputs.order is not None and inputs.w.size:
        weights = inputs.w, inputs.scales, inputs.zeros
        x, w, scales, zeros, sizes = in_order(b, node, x, weights, inputs.order, sizes)
        inputs = inputs._replace(w=w, scales=scales, zeros=zeros)
    y = b.empty((*x.shape[:-1], sizes.columns), np.float32)
    bias = None if inputs.bias is None else float32_of(b, inputs.bias)
    if bias is None:
        bias = b.zeros(sizes.columns, np.float32)
    if y.size and not inputs.w.size:  # weights that a file leaves out are zeros
        b.call_numpy(_fill_rows, bias, y)
    elif y.size and (level := exact_level(b)) is not None:
        _emit_exactly(b, with_rounding_errors(b, level, x, sizes.size), inputs, sizes, bias, y)
    elif y.size:
        _emit(b, x, inputs, sizes, bias, y)
    return y if kind == np.float32 else narrow(b, y, kind)


def _fill_rows(row: Array, y: Array) -> None:
    y[...] = row


def _check_zeros(node: Node, zeros: Operand | None, sizes: BlockSizes) -> None:
    """Refuses zero points of which there are too many or too few for their type.

    Raises:
        OperandError: There are.
    """
    if zeros is None:
        return
    each = -(-sizes.blocks * sizes.bits // 8) if zeros.dtype == np.uint8 else sizes.blocks
    if zeros.size != sizes.columns * each:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has {zeros.size} zero points of type "
            f"{zeros.dtype}; {sizes.columns} columns of {sizes.blocks} blocks need "
            f"{sizes.columns * each}."
        )


def exact_level(b: Builder) -> Level | None:
    """The level of kernels, if products shall lose no more than those of float32 do."""
    policy = native_policy(b.options)
    return policy.level if policy is not None and policy.is_exact and not policy.group else None


def _emit_exactly(
    b: Builder, both: Operand, inputs: MatMulInputs, sizes: BlockSizes, bias: Operand, y: Operand
) -> None:
    """Multiplies rows and their errors in int16 (`with_rounding_errors`), each as a row.

    Args:
        b: The builder.
        both: Rows, and what is lost of them.
        inputs: The operator's.
        sizes: Of rows, columns and blocks.
        bias: A term for each column.
        y: The result.
    """
    parts = b.empty((both.shape[0], sizes.columns), np.float32)
    _emit(b, both, inputs, sizes, b.zeros(sizes.columns, np.float32), parts)
    b.call(add_halves, b.flat(parts), b.flat(bias), b.flat(y), sizes.columns)


def _emit(
    b: Builder, x: Operand, inputs: MatMulInputs, sizes: BlockSizes, bias: Operand, y: Operand
) -> None:
    """Records the product in the way that the machine and the number of rows ask for.

    Args:
        b: The builder.
        x: Rows.
        inputs: The operator's.
        sizes: Of rows, columns and blocks.
        bias: A term for each column.
        y: The result.
    """
    rows = math.prod(x.shape[:-1])
    known = b.options if isinstance(b.options, PrecisionPolicy) else None
    threads = usable_processors() if known is None else known.threads
    native = native_policy(b.options)
    weights = inputs.w, inputs.scales, inputs.zeros
    panels = packed(b, *weights, sizes, threads, native is not None)
    sizes = sizes._replace(bits=panels.variant.bits)
    arithmetic = None if native is None else tile_arithmetic(native, sizes, rows)
    if native is not None and arithmetic is not None:
        _emit_tiles(b, native, arithmetic, x, widened(b, panels, sizes), sizes, bias, y)
        return
    machine = MachineModel(PORTABLE) if known is None else known.machine
    unpacked = None if native is None else unpacked_sides(native, sizes)
    many = unpacked is not None and rows >= fewest_rows(machine.level, unpacked)
    if native is not None and unpacked is not None and many:
        _emit_unpacked(b, native, unpacked, x, widened(b, panels, sizes), sizes, bias, y)
        return
    quantized = b.flat(x)
    if native is not None:
        quantized = quantized_rows(b, native.level, x, panels, sizes)
    of_row = row_bytes(sizes.terms, sizes.size)
    most = max(1, machine.l2_bytes(ROWS_SHARE) // of_row // MOST_ROWS) * MOST_ROWS
    across = evaluated(_shares, rows, sizes.panels, threads, panels.w.size / of_row)
    b.call(
        multiply_blocks,
        b.flat(x),
        quantized,
        BlockArrays(panels.w, panels.scales, panels.zeros, b.flat(bias), b.flat(y)),
        b.constant(block_kernels(machine.level, panels.variant)),
        row_sizes(panels, sizes, rows, most, across),
        _floats_of_threads(b, threads, sizes),
        work=rows * sizes.terms * sizes.columns // 4,
        exec_type=block_exec_type(machine.level, sizes.bits),
    )


def unpacked_sides(policy: PrecisionPolicy, sizes: BlockSizes) -> Unpacked | None:
    """What both sides of products of many rows become; ``None`` if weights stay packed."""
    level = policy.level
    longest = min(longest_unit(level, sizes.bits), policy.group)
    if longest:
        unit = min(math.gcd(sizes.size, policy.group), longest)
        unpacked = Unpacked(Factors.QUADS.size, unit, width(level))
    elif row_counts(level, Factors.PAIRS) and pays_for_pairs(policy.machine):
        unpacked = Unpacked(Factors.PAIRS.size, sizes.size, width(level))
    else:
        return None
    return in_depth(policy.machine, unpacked, sizes.terms, sizes.size)


def _emit_unpacked(
    b: Builder,
    policy: PrecisionPolicy,
    unpacked: Unpacked,
    x: Operand,
    panels: Panels,
    sizes: BlockSizes,
    bias: Operand,
    y: Operand,
) -> None:
    """Records a product of many rows, for which weights are unpacked block by block.

    Args:
        b: The builder.
        policy: Level, machine and threads.
        unpacked: What weights become.
        x: Rows.
        panels: Packed weights.
        sizes: Of rows, columns and blocks.
        bias: A term for each column.
        y: The result.
    """
    rows, threads, variant = math.prod(x.shape[:-1]), policy.threads, panels.variant
    level, kind = policy.level, block_exec_type(policy.level, sizes.bits)
    if unpacked.factor == Factors.QUADS.size:
        quantized = grouped_rows(b, x, unpacked, panels, sizes, policy)
        kernels = quad_kernels(level, variant)
        kind = f"{kind}_int8"
    else:
        quantized = quantized_rows(b, level, x, panels, sizes)
        kernels = pair_kernels(level, variant)
    columns = -(-sizes.columns // unpacked.width)
    across = evaluated(_shares, rows, columns, threads, float(sizes.columns))
    b.call(
        multiply_unpacked_rows,
        b.flat(x),
        quantized,
        BlockArrays(panels.w, panels.scales, panels.zeros, b.flat(bias), b.flat(y)),
        b.constant(kernels),
        row_sizes(panels, sizes, rows, chunk_rows(policy.machine, unpacked), across),
        unpacked,
        b.empty((threads * thread_floats(sizes.size, unpacked),), np.float32),
        work=rows * sizes.terms * sizes.columns // 8,
        exec_type=kind,
    )


def row_sizes(
    panels: Panels, sizes: BlockSizes, rows: int, chunk: int = 1, shares: int = 1
) -> RowSizes:
    """Sizes of a product by panels."""
    variant, own = panels.variant, sizes._replace(bits=panels.variant.bits)
    of_panels = variant.scale_bytes, int(variant.zeros), panels.zero
    return RowSizes(rows, *own, *of_panels, chunk, shares)


def _floats_of_threads(b: Builder, threads: int, sizes: BlockSizes) -> Operand:
    return b.empty((threads * scratch_floats(sizes.size),), np.float32)


def tile_arithmetic(policy: PrecisionPolicy, sizes: BlockSizes, rows: int) -> Arithmetic | None:
    """What tiles of AMX compute such a product in; ``None`` if they do not, or are slower."""
    whole = sizes.blocks * sizes.size % STEP == 0
    return row_arithmetic(policy, rows) if whole else None


def row_arithmetic(policy: PrecisionPolicy, rows: int) -> Arithmetic | None:
    """The same where terms are whole steps."""
    if not policy.level.tiles or rows < MANY_ROWS or policy.is_exact:
        return None
    return Arithmetic.BF16 if policy.arithmetic is Arithmetic.BF16 else Arithmetic.BF16X3


def _emit_tiles(
    b: Builder,
    policy: PrecisionPolicy,
    arithmetic: Arithmetic,
    x: Operand,
    panels: Panels,
    sizes: BlockSizes,
    bias: Operand,
    y: Operand,
) -> None:
    """Records a product by tiles of AMX, for which weights become bfloat16.

    Args:
        b: The builder.
        policy: Level, machine and threads.
        arithmetic: Of the tiles.
        x: Rows.
        panels: Packed weights.
        sizes: Of rows, columns and blocks.
        bias: A term for each column.
        y: The result.
    """
    rows, threads = math.prod(x.shape[:-1]), policy.threads
    kernels = b.constant(packed_lhs_kernels(policy.level, arithmetic))
    tiles = packed_lhs(b, x, rows, sizes.terms, arithmetic, kernels)
    only_tiles = has_only_tiles(b, x, arithmetic)
    product = MatrixSizes(rows, sizes.terms, sizes.columns, arithmetic.planes)
    table = unpacked_table(product, policy.machine, threads)
    context = UnpackContext(
        b.empty((threads * thread_bytes(table),), np.uint8),
        b.empty((threads * unpacked_size(table),), np.uint16),
        _floats_of_threads(b, threads, sizes),
        kernels,
        b.constant(unpack_kernel(policy.level, panels.variant, arithmetic.planes)),
        b.empty((threads * sizes.terms if only_tiles else 0,), np.float32),
        b.constant(table),
    )
    b.call(
        multiply_unpacked,
        b.empty((0,), np.float32) if only_tiles else b.flat(x),
        tiles,
        BlockArrays(panels.w, panels.scales, panels.zeros, _filled_up(b, bias), b.flat(y)),
        context,
        epilogue_of(None, False),
        row_sizes(panels, sizes, rows),
        work=rows * sizes.terms * sizes.columns // 16,
        exec_type=arithmetic.exec_type(policy.level),
    )


def _filled_up(b: Builder, bias: Operand) -> Operand:
    """A bias with zeros for the columns that tiles have too many."""
    width = -(-bias.size // TILE_COLUMNS) * TILE_COLUMNS
    if bias.const is not None and not bias.const.any():
        return b.zeros(width, np.float32)  # one row for all products
    if bias.const is not None:
        return b.prepack(bias, ("filled up", width), lambda array: _with_zeros(array, width))
    filled = b.empty((width,), np.float32)
    b.call_numpy(_fill_up, b.flat(bias), filled)
    return filled


def _with_zeros(bias: Array, width: int) -> Array:
    filled = np.empty(width, np.float32)
    _fill_up(bias.reshape(-1), filled)
    return filled


def _fill_up(bias: Array, filled: Array) -> None:
    filled[: bias.size], filled[bias.size :] = bias, 0


def _shares(rows: int, panels: int, threads: int, weight: float) -> int:
    groups = -(-rows // MOST_ROWS)
    return shares_across(groups, panels, threads, weight / rows)


def quantized_rows(
    b: Builder, level: Level, x: Operand, panels: Panels, sizes: BlockSizes
) -> Operand:
    """Rows in 16 bits; operators that multiply the same ones share them."""
    rows, zeros = math.prod(x.shape[:-1]), int(panels.variant.zeros)

    def quantize() -> Operand:
        out = b.empty((rows * row_bytes(sizes.terms, sizes.size),), np.uint8)
        exponents = int(scales_by_exponents(level))
        layout = RowLayout(rows, sizes.terms, sizes.size, zeros, panels.zero, exponents)
        kernel = b.constant(int16_rows_kernel(level, panels.variant))
        b.call(quantize_rows, b.flat(x), out, kernel, layout, exec_type="reorder")
        return out

    return b.once(x, ("blocks", sizes.size, not zeros, panels.zero), quantize)


def grouped_rows(
    b: Builder,
    x: Operand,
    unpacked: Unpacked,
    panels: Panels,
    sizes: BlockSizes,
    policy: PrecisionPolicy,
) -> Operand:
    """Rows in 8 bits; operators that multiply the same ones share them.

    Args:
        b: Records it, unless the program has these rows already.
        x: The rows, float32 (..., terms).
        unpacked: How products read rows and weights.
        panels: The weights, whose zero points decide what goes with a row.
        sizes: Of the product.
        policy: How many terms share a scale, and for which instructions.

    Returns:
        Bytes: `unpacked_row_bytes` of each row.
    """
    equal = begins_with_zeros(policy.level, panels.variant)
    padded = sizes.blocks * sizes.size
    group = min(policy.group, padded)

    def quantize() -> Operand:
        of_row = unpacked_row_bytes(sizes.terms, sizes.size, unpacked)
        out = b.empty((math.prod(x.shape[:-1]) * of_row,), np.uint8)
        kernel = b.constant(int8_rows_kernel(policy.level, panels.variant))
        floats = b.empty((policy.threads * group,), np.float32)
        layout = GroupSizes(sizes.terms, padded, group, unpacked.unit, panels.zero)
        b.call(quantize_groups, b.flat(x), out, kernel, floats, layout, exec_type="reorder")
        return out

    zero = panels.zero if equal else -1
    if subtracts_zeros(policy.level, panels.variant):
        zero = -2  # rows are uint8
    return b.once(x, ("groups", sizes.size, unpacked.unit, sizes.bits, zero), quantize)
