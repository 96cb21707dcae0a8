"""The epilogue of tiles that kernels store unfinished: activations, gaps between image rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita_cpu.gemm.product_records import Column, Epilogue, Panel, PanelContext, ProductAddresses
from partita_cpu.gemm.tile_activation import TileSums, activate_sums
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
    call_activate_narrow,
    call_epilogue,
)
from partita_cpu.jit.loop_kernel import loop


@loop(inline=True)
def result_addresses(
    at: ProductAddresses, panel: Panel, column: Column, epilogue: Epilogue, line: int, pixel: int
) -> Any:
    """Addresses of the result's and the residual's elements; 0 where there is no residual.

    Args:
        at: Addresses of what the product reads and writes.
        panel: Which pixels it has.
        column: Which outputs.
        epilogue: Says whether there is a residual.
        line: A line of the panel.
        pixel: A pixel of the line.
    """
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
    """Finishes a tile of sums; its rows that lie between image rows are dropped.

    Args:
        rows: Of the tile.
        line: The image row of the first one.
        pixel: Its place in that row.
        tile: Address of the sums.
        at: Where the product's arrays start.
        panel: What its tiles have in common.
        column: The column of tiles that it is in.
        context: Kernels and sizes.
        epilogue: What happens to sums.
    """
    kernel, activate = context.kernels[EPILOGUE], context.kernels[ACTIVATE]
    narrow, activate_floats = context.kernels[ACTIVATE_NARROW], context.kernels[ACTIVATE_FLOATS]
    finish_floats = context.kernels[EPILOGUE_F32]
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
                sums = (piece, count, columns, column.exist, column.bias, other, outputs)
                activate_sums(TileSums(*sums), finish_floats, activate_floats, epilogue)
                rest = (panel.zeros, 0, to, outputs, column.exist, lowest, highest, 0)
                call_epilogue(kernel, (count, piece, *rest))
        done += run
        pixel += run
        if pixel == panel.pitch:
            pixel = 0
            line += 1
