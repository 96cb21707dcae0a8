"""Rows of a tile that its kernel cannot finish: activations, gaps between image lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_cpu.gemm.product_records import Column, Epilogue, Panel, PanelContext, ProductAddresses
from partita_cpu.gemm.tile_fields import TILE_COLUMNS
from partita_cpu.gemm.tile_kernels import (
    ACTIVATE,
    ACTIVATE_FLOATS,
    ACTIVATE_NARROW,
    EPILOGUE,
    EPILOGUE_F32,
)
from partita_cpu.jit.intrinsics.address_call import (
    call_activate,
    call_activate_floats,
    call_activate_narrow,
    call_epilogue,
)
from partita_cpu.jit.loop_kernel import loop


@loop(inline=True)
def result_addresses(
    at: ProductAddresses, panel: Panel, column: Column, epilogue: Epilogue, line: int, pixel: int
) -> Any:
    """Addresses of the result's and the residual's elements; 0 where there is no residual."""
    place = (panel.first_pixel + line * panel.width + pixel) * panel.pixel_bytes + column.at
    return at.y + place, at.residual + place if epilogue.has_residual else 0


@loop
def finish_rows(
    rows: int,
    line: int,
    pixel: int,
    tile: int,
    at: ProductAddresses,
    panel: Panel,
    column: Column,
    context: PanelContext,
    epilogue: Epilogue,
) -> None:
    """Finishes a tile of sums; its rows that lie between image rows are dropped."""
    kernel, activate = context.kernels[EPILOGUE], context.kernels[ACTIVATE]
    narrow = context.kernels[ACTIVATE_NARROW]
    bottom, top = np.float32(epilogue.low), np.float32(epilogue.high)
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    columns, outputs = context.p[TILE_COLUMNS], panel.pixel_bytes
    done = 0
    while done < rows:
        run = min(rows - done, panel.pitch - pixel)
        count = min(run, panel.width - pixel)
        if count > 0:
            to, other = result_addresses(at, panel, column, epilogue, line, pixel)
            piece = tile + 4 * done * columns
            if epilogue.code == 0 or activate:
                rest = (column.bias, other, to, outputs, column.exist, bottom, top, epilogue.gate)
                call_epilogue(kernel, (count, piece, *rest))
                if activate:
                    call_activate(activate, (count, to, outputs, column.exist))
            elif narrow and not other:
                call_activate_narrow(narrow, (count, piece, column.bias, to, outputs, column.exist))
            else:
                _activate_piece(piece, count, other, panel, column, context, epilogue)
                rest = (panel.zeros, 0, to, outputs, column.exist, lowest, highest, 0)
                call_epilogue(kernel, (count, piece, *rest))
        done += run
        pixel += run
        if pixel == panel.pitch:
            pixel = 0
            line += 1


@loop
def _activate_piece(
    piece: int,
    count: int,
    residual: int,
    panel: Panel,
    column: Column,
    context: PanelContext,
    epilogue: Epilogue,
) -> None:
    """Adds bias and residual to rows of a tile, and applies the activation where they lie."""
    kernel, columns = context.kernels[EPILOGUE_F32], context.p[TILE_COLUMNS]
    lowest, highest = np.float32(-np.inf), np.float32(np.inf)
    # Residuals lie as y does, so they are added row by row.
    together = 1 if epilogue.has_residual else count
    for r in range(0, count, together):
        at = piece + 4 * r * columns
        beside = residual + r * panel.pixel_bytes if epilogue.has_residual else 0
        rest = (column.bias, beside, at, 4 * columns, column.exist, lowest, highest, 0)
        call_epilogue(kernel, (together, at, *rest))
    alpha, beta = np.float32(epilogue.alpha), np.float32(epilogue.beta)
    work = piece, count * columns, epilogue.code, alpha, beta
    call_activate_floats(context.kernels[ACTIVATE_FLOATS], work)
