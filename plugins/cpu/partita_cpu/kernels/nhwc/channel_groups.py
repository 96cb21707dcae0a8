"""Convolutions in groups of so few channels that several groups fill one vector."""

from __future__ import annotations

from dataclasses import replace

from partita.lowering import Builder, Operand
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.precision_policy import Choice
from partita_cpu.gemm.product_records import InputScaling
from partita_cpu.gemm.product_steps import LinearOp, emit_product
from partita_cpu.gemm.tile_kernels import Arithmetic
from partita_cpu.llvm.tiles.fma_groups import GROUPS

ROUNDED = 8
"""Groups of more channels are computed in bfloat16 where that is asked for: it has wider sums."""


def fills_vectors(choice: Choice, groups: int, weights: tuple[int, ...]) -> bool:
    """Whether there are tiles for so many groups of such weights (outputs, channels, 3, 3)."""
    outputs, within, *taps = weights if len(weights) == 4 else (0, 0, 1, 1)
    able = within in GROUPS and within <= choice.level.lanes and outputs == groups * within
    return able and groups > 1 and taps != [1, 1] and choice.arithmetic is not Arithmetic.F16


def emit_by_groups(
    b: Builder,
    choice: Choice,
    images: Images,
    x: Operand,
    op: LinearOp,
    y: Operand,
    storage: Storage,
    scaling: InputScaling | None,
) -> bool:
    """Records what `emit_product` would, by tiles that take several groups at once, if it can be.

    All channels of an image are laid out together then, and none of a vector's lanes is idle.
    """
    within = images.channels // images.groups
    if not fills_vectors(choice, images.groups, (images.outputs, within, *images.kernel)):
        return False
    if storage.planar or (
        within > ROUNDED and choice.preferred_arithmetic(images) is not Arithmetic.F32
    ):
        return False
    joined = replace(images, groups=1, within=within)
    cut = plan(joined, choice.machine, Arithmetic.F32, choice.threads, storage)
    if cut.source is not Source.HALO:
        return False
    emit_product(b, choice, joined, x, op, y, storage, scaling)
    return True
