"""Records convolutions of 3 x 3 taps as steps of Winograd's minimal filtering, where that pays."""

from __future__ import annotations

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_records import InputScaling
from partita_cpu.gemm.product_steps import LinearStep, product_of
from partita_cpu.winograd.point_weights import recovery, transform, transformed_size
from partita_cpu.winograd.tile_kind import TileKind
from partita_cpu.winograd.tile_loop import WinogradContext, filter_tiles
from partita_cpu.winograd.tile_plan import (
    point_kernels,
    transform_kernels,
    winograd_plan,
)
from partita_cpu.winograd.time_model import kind_for


def emit_filtered(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> bool:
    """Records what `emit_product` would, if minimal filtering is allowed and takes less time."""
    images, x, op, y, storage, scaling = step
    if not policy.filter_side or storage.planar:
        return False
    halves = storage.half_in or storage.half_out
    direct = policy.preferred_for_stored(images, halves=halves)
    kind = kind_for(images, policy.machine, policy.threads, direct, policy.filter_side)
    if kind is TileKind.DIRECT or b.folding:
        return False
    weights = _weights(b, policy, op.w, kind)
    if not weights.size:
        return False
    cut = winograd_plan(images, policy.machine, policy.threads, storage, kind)
    op = op._replace(w=weights)
    product = product_of(b, policy, cut.cut, op, y, cut.thread_bytes)
    offset = product.arrays.bias
    b.call(
        filter_tiles,
        b.flat(x),
        product.arrays,
        scaling or InputScaling(offset, offset),
        product.context,
        WinogradContext(
            b.constant(transform_kernels(policy.level, kind, storage.half_in)),
            b.constant(point_kernels(policy.level, kind, policy.machine.tile_rows)),
            b.constant(cut.table),
            b.constant(recovery(kind.side).reshape(-1)),
            b.constant(np.zeros(1, np.int64)),
        ),
        product.epilogue,
        work=product.work // kind.side,  # about as many times fewer multiplications
        exec_type=f"{policy.level.vectors}_{kind.arithmetic.name.lower()}_winograd",
        cleared=product.context.claims,
    )
    return True


def _weights(b: Builder, policy: PrecisionPolicy, w: Operand, kind: TileKind) -> Operand:
    """Transformed weights; empty if some are not finite."""
    columns, in_pairs = tile_columns(policy.level), kind.arithmetic is Arithmetic.BF16
    outputs, channels = w.shape[:2]
    size = transformed_size(outputs, channels, kind.side, columns, in_pairs)
    form = Form(np.uint16, (size,), or_shape=(0,))
    key = ("winograd", int(kind), columns)

    def transformed(array: Array) -> Array:
        return transform(array, kind.side, columns, policy.threads, in_pairs=in_pairs)

    return b.prepack(w, key, transformed, form=form)
