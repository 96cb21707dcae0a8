"""Convolutions with large dilation, row by row, leaving out rows of taps that lie on padding.

A window of 3 x 3 taps dilated by 12 on 14 rows has one row of taps on the image under most rows of
the result, two at the edges. Rows of the result under which the same rows of taps lie on the image
are a step of their own: it adds up lines of the image as tiles add up the slices of a volume, and
neither copies nor multiplies padding above and below.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from partita.lowering import Builder
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.product_steps import LinearStep, emit_product

GAIN = 1.3
"""How many times fewer multiplications are worth the further steps."""

MOST_STEPS = 32
"""No more steps than these: each reads its part of the weights again."""


def adds_in_float32(policy: PrecisionPolicy, step: LinearStep) -> bool:
    """Whether steps may share the sums of a convolution: float32 alone, as it lies in memory.

    Tiles can add up lines that lie apart then, and sums between steps are not rounded to less.
    """
    images, storage = step.images, step.storage
    able = policy.arithmetic is Arithmetic.F32 and images.groups == 1 and not images.symbolic
    changed = storage.planar or storage.scaled or storage.half_in or storage.half_out
    return able and not changed


def emit_by_rows(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> bool:
    """Records what `emit_product` would, by rows of the result, if that is worth it."""
    images, storage = step.images, step.storage
    if not adds_in_float32(policy, step):
        return False
    groups = row_groups(images)
    if not 0 < images.batch * len(groups) <= MOST_STEPS:  # the images may be any number
        return False
    parts = [
        (part, kept)
        for image in range(images.batch)
        for first, rows, taps in groups
        for part, kept in [_part(images, storage, image, first, rows, taps)]
    ]
    cuts = (plan(part, policy.machine, Arithmetic.F32, policy.threads, k) for part, k in parts)
    if any(cut.source is not Source.HALO for cut in cuts):
        return False
    for part, kept in parts:
        emit_product(b, policy, step._replace(images=part, storage=kept))
    return True


def row_groups(images: Images) -> list[tuple[int, int, tuple[int, int]]]:
    """First row, number of rows, and the rows of taps that lie on the image under them.

    Empty if that is not worth it: if windows are not dilated, or lie on the image nearly
    everywhere.
    """
    down, rows = images.kernel[0], images.out_height
    if down == 1 or images.dilation[0] == 1 or not rows:
        return []
    starts = _changes(images)
    groups = [
        (first, behind - first, _taps(images, first))
        for first, behind in itertools.pairwise([*starts, rows])
    ]
    multiplied = sum(count * (high - low) for _, count, (low, high) in groups)
    if min(high - low for *_, (low, high) in groups) < 1 or multiplied * GAIN > down * rows:
        return []
    return groups


def _changes(images: Images) -> list[int]:
    """The rows of the result under which other rows of taps lie on the image than under the last.

    They are found by the taps, not by walking along the rows, whose number a file may claim.
    """
    top, gap, step = images.begin[0], images.dilation[0], images.stride[0]
    bottom = images.height - 1 + top
    enter = (-((tap * gap - top) // step) for tap in range(images.kernel[0]))
    leave = ((bottom - tap * gap) // step + 1 for tap in range(images.kernel[0]))
    return sorted({0, *(row for row in (*enter, *leave) if 0 < row < images.out_height)})


def _taps(images: Images, row: int) -> tuple[int, int]:
    """The first row of taps that is on the image under a row of the result, and behind the last."""
    top, gap = row * images.stride[0] - images.begin[0], images.dilation[0]
    low = max(0, -(top // gap))
    return low, min(images.kernel[0], (images.height - 1 - top) // gap + 1)


def _part(
    images: Images, storage: Storage, image: int, first: int, rows: int, taps: tuple[int, int]
) -> tuple[Images, Storage]:
    """Some rows of one image's result: rows of taps are slices, lines of the image lie in them.

    Args:
        images: Sizes of all.
        storage: How images and results lie.
        image: The image's number.
        first: The first row of its result.
        rows: How many.
        taps: The first tap down that lies in the image for all of them, and the one behind the
            last.
    """
    x_pitch, y_pitch = storage.x_pitch or images.channels, storage.y_pitch or images.outputs
    line, (down, across), gap = images.width * x_pitch, images.kernel, images.dilation[0]
    start = image * images.height + first * images.stride[0] - images.begin[0] + taps[0] * gap
    part = replace(
        images,
        batch=1,
        height=(rows - 1) * images.stride[0] + 1,
        kernel=(1, across),
        dilation=(1, images.dilation[1]),
        begin=(0, images.begin[1]),
        end=(0, images.end[1]),
        out_height=rows,
        slices=down,
        covered=taps,
        slice_step=gap * line,
    )
    result = (image * images.out_height + first) * images.out_width * y_pitch
    kept = replace(
        storage,
        x_pitch=x_pitch,
        x_first=storage.x_first + start * line,
        y_pitch=y_pitch,
        y_first=storage.y_first + result,
    )
    return part, kept
