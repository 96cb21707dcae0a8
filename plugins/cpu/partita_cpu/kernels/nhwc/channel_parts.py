"""Convolutions of many channels, split along the channels so that panels have more lines.

Lines of an image are copied panel by panel to the second-level cache, and each panel is multiplied
with all weights. Where a panel is one line of 28 pixels, weights of 2,048 channels are read 28
times from the third-level cache or from memory, which takes longer than multiplying. Parts of the
channels are steps of their own here: each adds to what those before it left in the result.
"""

from __future__ import annotations

from dataclasses import replace

from partita.lowering import Builder
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.packing.weights import packed_size
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import LinearStep, emit_in_parts, equal_parts
from partita_cpu.gemm.tile_fields import PANEL_UNITS
from partita_cpu.kernels.nhwc.row_groups import adds_in_float32

ENOUGH_PIXELS = 96
"""Pixels of the result in a panel for which its weights come soon enough.

With 84 parts gain nothing where the third-level cache has room for the weights, with 56 a tenth,
with 28 a third to a half.
"""


def emit_by_channels(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> bool:
    """Records what `emit_product` would, by parts of the channels, if that is worth it."""
    if not adds_in_float32(policy, step):
        return False
    parts = channel_parts(policy, step.images, step.storage)
    if parts == 1:
        return False
    emit_in_parts(b, policy, step, parts)
    return True


def channel_parts(policy: PrecisionPolicy, images: Images, storage: Storage) -> int:
    """How many parts of the channels let enough pixels of the result share a panel, or 1."""
    if images.kernel == (1, 1) or images.stride != (1, 1):  # strided ones gain nothing
        return 1
    machine = policy.machine
    for parts in equal_parts(images.channels):
        part = replace(images, channels=images.channels // parts)
        # For one thread: what is computed is the same for any number of them.
        cut = plan(part, machine, Arithmetic.F32, 1, storage)
        if cut.source is not Source.HALO or (
            parts == 1 and 2 * packed_size(cut) <= machine.l2_bytes(1)
        ):
            return 1
        lines = cut.table[PANEL_UNITS]
        if lines >= images.out_height or lines * images.out_width >= ENOUGH_PIXELS:
            return parts
    return 1
