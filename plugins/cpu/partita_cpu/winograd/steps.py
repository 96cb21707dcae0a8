"""Records convolutions of 3 x 3 taps as steps of Winograd's minimal filtering, where that pays."""

from __future__ import annotations

import numpy as np

from partita.lowering import Builder, Operand
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.arithmetic import tile_columns
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_records import InputScaling
from partita_cpu.gemm.product_steps import LinearStep, product_of
from partita_cpu.winograd.point_weights import recovery, transform, transformed_size
from partita_cpu.winograd.tile_loop import WinogradContext, filter_tiles
from partita_cpu.winograd.tile_plan import (
    transform_kernels,
    winograd_plan,
)
from partita_cpu.winograd.time_model import side_for


def emit_filtered(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> bool:
    """Records what `emit_product` would, if minimal filtering is allowed and takes less time."""
    images, x, op, y, storage, scaling = step
    if not policy.filter_side or storage.planar:
        return False
    halves = storage.half_in or storage.half_out
    direct = policy.preferred_for_stored(images, halves=halves)
    side = side_for(images, policy.machine, policy.threads, direct, policy.filter_side)
    if not side or b.folding:
        return False
    weights = _weights(b, policy, op.w, side)
    if not weights.size:
        return False
    cut = winograd_plan(images, policy.machine, policy.threads, storage, side)
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
            b.constant(transform_kernels(policy.level, side, storage.half_in)),
            b.constant(cut.table),
            b.constant(recovery(side).reshape(-1)),
            b.constant(np.zeros(1, np.int64)),
        ),
        product.epilogue,
        work=product.work // side,  # about as many times fewer multiplications
        exec_type=f"{policy.level.vectors}_f32_winograd",
        cleared=product.context.claims,
    )
    return True


def _weights(b: Builder, policy: PrecisionPolicy, w: Operand, side: int) -> Operand:
    """Transformed weights; empty if some are not finite."""
    columns = tile_columns(policy.level)
    outputs, channels = w.shape[:2]
    form = Form(np.uint16, (transformed_size(outputs, channels, side, columns),), or_shape=(0,))
    key = ("winograd", side, columns)
    return b.prepack(w, key, lambda a: transform(a, side, columns, policy.threads), form=form)
