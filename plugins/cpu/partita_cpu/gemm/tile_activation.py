"""The epilogue of tiles whose activation is in no kernel: bias, residual, activation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita_cpu.gemm.product_records import Epilogue
from partita_cpu.jit.intrinsics.address_call import call_activate_floats, call_epilogue
from partita_cpu.jit.loop_kernel import loop


class TileSums(NamedTuple):
    """Sums of a tile in float32, and what is added to them.

    Attributes:
        at: Address of the first one.
        rows: How many rows.
        columns: Sums from one row to the next.
        exist: Columns of the result among them.
        bias: Address of one number per column.
        residual: Address of what is added to the first row.
        residual_pitch: Bytes from there to what is added to the next row.
    """

    at: int
    rows: int
    columns: int
    exist: int
    bias: int
    residual: int
    residual_pitch: int


@loop
def activate_sums(sums: TileSums, finish: int, activate: int, epilogue: Epilogue) -> None:
    """Adds bias and residual to sums, and applies the activation, where they lie.

    Args:
        sums: The sums; those of columns that do not exist become anything.
        finish: Address of the epilogue of rows in float32.
        activate: Address of `activate_floats`.
        epilogue: Its bounds and gate are not applied.
    """
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    # Residuals lie as y does, so they are added row by row.
    together = 1 if epilogue.has_residual else sums.rows
    for r in range(0, sums.rows, together):
        at = sums.at + 4 * r * sums.columns
        residual = sums.residual + r * sums.residual_pitch if epilogue.has_residual else 0
        rest = (sums.bias, residual, at, 4 * sums.columns, sums.exist, lowest, highest, 0)
        call_epilogue(finish, (together, at, *rest))
    activate_in_place(sums.at, sums.rows * sums.columns, activate, epilogue)


@loop(inline=True)
def activate_in_place(at: int, count: int, activate: int, epilogue: Epilogue) -> None:
    """Applies the activation to so many floats, by `activate_floats` at the address `activate`."""
    alpha, beta = np.float32(epilogue.alpha), np.float32(epilogue.beta)
    call_activate_floats(activate, (at, count, epilogue.code, alpha, beta))
