"""Grouped convolutions with so few channels per group that several groups fill one vector."""

from __future__ import annotations

from dataclasses import replace

from partita.lowering import Builder
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import LinearStep, emit_product
from partita_cpu.llvm.tiles.fma_groups import GROUPS

ROUNDED = 8
"""Groups of more channels are computed in bfloat16 where that is asked for: it has wider sums."""


def fills_vectors(policy: PrecisionPolicy, groups: int, weights: tuple[int, ...]) -> bool:
    """Whether there are tiles for so many groups of such weights (outputs, channels, 3, 3)."""
    outputs, group_channels, *taps = weights if len(weights) == 4 else (0, 0, 1, 1)
    able = (
        group_channels in GROUPS
        and group_channels <= policy.level.lanes
        and outputs == groups * group_channels
    )
    return able and groups > 1 and taps != [1, 1] and policy.arithmetic is not Arithmetic.F16


def emit_by_groups(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> bool:
    """Records what `emit_product` would, by tiles that take several groups at once, if it can be.

    All channels of an image are laid out together then, and none of a vector's lanes is idle.
    """
    images, storage = step.images, step.storage
    group_channels = images.channels // images.groups
    if not fills_vectors(policy, images.groups, (images.outputs, group_channels, *images.kernel)):
        return False
    if storage.planar or (
        group_channels > ROUNDED and policy.preferred_arithmetic(images) is not Arithmetic.F32
    ):
        return False
    joined = replace(images, groups=1, merged_group_channels=group_channels)
    cut = plan(joined, policy.machine, Arithmetic.F32, policy.threads, storage)
    if cut.source is not Source.HALO:
        return False
    emit_product(b, policy, step._replace(images=joined))
    return True
