"""Addresses of the kernels that a product needs, as one int64 array for the compiled loops."""

from __future__ import annotations

import functools

import numpy as np

from partita.lowering import ActivationCode, Array
from partita_cpu.gemm.arithmetic import MAX_ROWS, Arithmetic, on_tiles
from partita_cpu.gemm.tile_fields import STEP
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.dispatch import unit_address
from partita_cpu.llvm import activations
from partita_cpu.llvm.copies import quantized_groups
from partita_cpu.llvm.images.depthwise_quads import PIXELS as QUAD_PIXELS
from partita_cpu.llvm.images.sliding_window import WINDOW_PIXELS
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.module import blocks_part, groups_part, product_parts
from partita_cpu.llvm.tiles import dot_unpacked, gate_tiles, unpack_words
from partita_cpu.llvm.tiles.amx import tile_config
from partita_cpu.llvm.tiles.amx_int8 import COLUMNS
from partita_cpu.llvm.tiles.dot_blocks import Variant, Zeros, row_counts
from partita_cpu.llvm.tiles.dot_int8 import PART, most_rows
from partita_cpu.llvm.tiles.dot_unpacked import Factors
from partita_cpu.scalar.activations import activate_floats

(
    EPILOGUE,  # finishes sums that are stored in a tile
    NARROW,  # copies a run of the input, converted to the arithmetic
    CONFIGURE,  # AMX: gives tile registers their sizes
    RELEASE,  # AMX: gives tile registers back
    CONFIG,  # AMX: address of what `CONFIGURE` reads
    EPILOGUE_F32,  # as `EPILOGUE`, with a result in float32
    SCALE,  # as `NARROW`, scaled by channel
    INTERLEAVE,  # copies a row of a picture whose channels are planes
    ROUND,  # rounds a panel to float16, in place
    ACTIVATE,  # applies an activation to rows of the output
    ACTIVATE_NARROW,  # applies an activation to a tile, and rounds to 16 bits
    NARROW_ROWS,  # as `NARROW`, several rows
    ACTIVATE_FLOATS,  # applies an activation to a run of float32
) = range(MAX_ROWS + 1, MAX_ROWS + 14)
"""Places of kernels in the array, 0 where none is needed.

Places 1 to `MAX_ROWS` hold the tile kernel for so many rows.
"""

FIRST = MAX_ROWS + 14
"""Behind this place: tile kernels for tiles of which only the first half of the columns exists."""

WIDE = FIRST + MAX_ROWS + 1
"""Behind this place: both kinds again, for weights that `WIDEN` has converted."""

WIDEN = 2 * WIDE
"""Place of the kernel that converts 16-bit weights to float32 for many tiles, or 0."""

SLOTS = WIDEN + 1
"""Places of the array."""


@functools.cache
def _config(step: int) -> Array:
    return np.frombuffer(tile_config(step), np.uint8).copy()


def configure_tiles(table: Array, level: Level, step: int) -> None:
    """Fills the places of what tiles of AMX are given their sizes by, for such a step along k."""
    known = llvm_kernel.addresses(level)
    table[CONFIGURE], table[RELEASE] = known["configure"], known["release"]
    table[CONFIG] = _config(step).ctypes.data


@functools.cache
def tile_kernels(
    level: Level,
    arithmetic: Arithmetic,
    half_in: bool = False,
    half_out: bool = False,
    step: int = STEP,
    activation: ActivationCode = ActivationCode.NONE,
    group_channels: int = 0,
    most_rows: int = MAX_ROWS,
) -> Array:
    """The kernels that a matrix product needs; 0 in unused places.

    Only tiles of AMX have something in the place of `CONFIGURE`.

    Args:
        level: Whose kernels.
        arithmetic: What products are computed in.
        half_in: Whether the input is bfloat16, which arithmetic in float32 widens where it is laid
            out. For that in float16, whether it is float16.
        half_out: Whether output and residual are; in float32, `EPILOGUE` alone writes them so.
        step: Elements along k that are taken at a time; see `Plan.step`.
        activation: What the kernel in the place of `ACTIVATE` applies to results in float32, or
            that of `ACTIVATE_NARROW` to sums that end in bfloat16; there is none for most. What
            they do not apply `activate_floats` does, in the place of `ACTIVATE_FLOATS`.
        group_channels: See `Images.merged_group_channels`; of products in float32.
        most_rows: Of its tiles whose sums are in vectors, if they have fewer than the level's.
    """
    known = llvm_kernel.addresses(level)
    table = np.zeros(SLOTS, np.int64)
    table[EPILOGUE], table[NARROW] = known["epilogue"], known["copy"]
    table[EPILOGUE_F32], table[SCALE] = known["epilogue"], known["scale"]
    table[INTERLEAVE] = known["interleave"]
    if activation in activations.KERNELS and not half_out:
        activating = llvm_kernel.addresses(level, "_activations")
        table[ACTIVATE] = activating[activations.KERNELS[activation]]
    elif activation is not ActivationCode.NONE:
        table[ACTIVATE_FLOATS] = unit_address(activate_floats)
    if arithmetic is Arithmetic.F16:
        _put_float16(table, level, half_in, half_out)
        return _with_halves(table)
    if arithmetic in STORED_PARTS:
        _put_stored(table, level, arithmetic)
        return _with_halves(table)
    name = arithmetic.name.lower()
    tiles = on_tiles(level, arithmetic)
    kind = "fma" if arithmetic is Arithmetic.F32 else f"{name}_narrow" if half_out else name
    most_rows = MAX_ROWS if tiles else min(most_rows, level.rows)
    part = "_floats" if arithmetic is Arithmetic.F32 else "_pairs"
    products = known if tiles else _products(level, part, most_rows)
    for rows in range(1, most_rows + 1):
        table[rows] = products[f"{kind}_{-(-rows // 16) if tiles else rows}"]
    if half_out:
        table[EPILOGUE] = known["epilogue_narrow"]
        if activation in activations.KERNELS:
            narrow = llvm_kernel.addresses(level, "_activated_halves")
            table[ACTIVATE_NARROW] = narrow[f"{activations.KERNELS[activation]}_narrow"]
    if arithmetic is not Arithmetic.F32:
        table[NARROW] = known["copy_halves" if half_in else f"narrow_{name}"]
        table[NARROW_ROWS] = 0 if half_in else known[f"narrow_{name}_rows"]
        table[INTERLEAVE] = known[f"interleave_{name}"]
        table[SCALE] = known["scale_halves" if half_in else f"scale_{name}"]
    elif half_in:
        widening = llvm_kernel.addresses(level, "_winograd_halves")
        table[NARROW], table[SCALE] = widening["widen_bf16"], widening["scale_bf16_widen"]
    if tiles:
        configure_tiles(table, level, step)
    _with_halves(table)
    for rows in range(1, most_rows + 1) if not tiles else ():
        table[FIRST + rows] = products[f"{kind}_first_{rows}"]
    if group_channels:
        _put_groups(table, level, group_channels, half_out)
    return table


def _products(level: Level, part: str, most_rows: int) -> dict[str, int]:
    """Kernels for tiles of up to so many rows, by name."""
    found: dict[str, int] = {}
    for one in product_parts(part, most_rows):
        found |= llvm_kernel.addresses(level, one)
    return found


def _put_groups(table: Array, level: Level, group_channels: int, half_out: bool) -> None:
    known = llvm_kernel.addresses(level, groups_part(group_channels, half_out))
    for rows in range(1, level.rows + 1):
        table[rows], table[FIRST + rows] = known[f"groups_{rows}"], known[f"groups_first_{rows}"]


def _with_halves(table: Array) -> Array:
    """The same kernels for tiles of which a half exists."""
    table[FIRST + 1 : FIRST + MAX_ROWS + 1] = table[1 : MAX_ROWS + 1]
    return table


def _put_float16(table: Array, level: Level, half_in: bool, half_out: bool) -> None:
    narrow = llvm_kernel.addresses(level, "_f16_narrow") if half_in or half_out else {}
    known = llvm_kernel.addresses(level, "_f16") if not (half_in and half_out) else {}
    floats = {} if half_out else _products(level, "_floats", level.rows)
    for rows in range(1, level.rows + 1):
        table[rows] = narrow[f"f16_narrow_{rows}"] if half_out else known[f"f16_{rows}"]
        wide = narrow[f"wide_narrow_{rows}"] if half_out else floats[f"fma_{rows}"]
        first = wide if half_out else floats[f"fma_first_{rows}"]
        table[WIDE + rows], table[WIDE + FIRST + rows] = wide, first
    table[WIDEN] = llvm_kernel.addresses(level)["from_f16"]
    if half_out:
        table[EPILOGUE] = narrow["epilogue_f16"]
    if half_in:
        table[NARROW] = narrow["widen_f16"]
    else:
        table[ROUND] = known["round_f16"]


STORED_PARTS = {Arithmetic.F32_BY_F16: "_f16", Arithmetic.F32_BY_BF16: "_bf16_weights"}
"""Where the kernels are for weights that are stored in 16 bits; those for tiles begin so, too."""

_WIDENING = {Arithmetic.F32_BY_F16: "from_f16", Arithmetic.F32_BY_BF16: "from_bf16"}
"""What widens weights ahead of many tiles."""


def _put_stored(table: Array, level: Level, arithmetic: Arithmetic) -> None:
    part = STORED_PARTS[arithmetic]
    known, floats = llvm_kernel.addresses(level, part), _products(level, "_floats", level.rows)
    for rows in range(1, level.rows + 1):
        table[rows] = known[f"{part[1:]}_{rows}"]
        table[WIDE + rows] = floats[f"fma_{rows}"]
        table[WIDE + FIRST + rows] = floats[f"fma_first_{rows}"]
    table[WIDEN] = {**llvm_kernel.addresses(level), **known}[_WIDENING[arithmetic]]


@functools.cache
def packed_lhs_kernels(
    level: Level, arithmetic: Arithmetic, activation: ActivationCode = ActivationCode.NONE
) -> Array:
    """The kernels for products whose left side is laid out as tiles; see `packed_lhs`.

    In place 1 and 2 those for 16 and 32 rows, in that of `NARROW` the one that lays rows out, in
    that of `ACTIVATE_FLOATS` what applies an activation, if there is one.

    Args:
        level: One with tile registers.
        arithmetic: One of those in bfloat16, or by float16 in two parts.
        activation: Applied to sums where bounds and the gate do not express it.

    Returns:
        Addresses (`SLOTS`,), int64; the caller must not write to it.
    """
    known = llvm_kernel.addresses(level)
    float16 = arithmetic is Arithmetic.F16_SPLIT
    name = (Arithmetic.BF16X3 if float16 else arithmetic).name.lower()
    table = np.zeros(SLOTS, np.int64)
    table[1], table[2] = known[f"{name}_packed_1"], known[f"{name}_packed_2"]
    table[EPILOGUE], table[NARROW] = known["epilogue"], known[f"pack_{name}"]
    if activation is not ActivationCode.NONE:
        table[ACTIVATE_FLOATS] = unit_address(activate_floats)
    if float16:
        table[NARROW] = llvm_kernel.addresses(level, "_f16")["pack_f16"]
    configure_tiles(table, level, STEP)
    return table


FLOATS, LEVELS = 3, 4
"""Places of the kernels that finish products of bytes."""

DOTS, MOST_DOTS = 8, 7
"""In the places behind the first one: kernels for so many rows without tiles; how many rows."""

PART_DOTS, PART_PLACES = FIRST, 9
"""From the first place on, and again every so many places: how many rows the kernels for the first
16, 32 and 48 columns of a panel take, and behind it these kernels."""


PREPARE = 5
"""Place of the kernel that prepares how sums of bytes end in registers; 0 where they do not."""

IN_REGISTERS = WIDE
"""So far behind the places of the kernels for so many rows are those that end sums so."""


def byte_exec_type(level: Level) -> str:
    """What profiles call products of bytes; nothing special where numba's kernels compute."""
    if not level.native:
        return ""
    return "amx_int8" if level.tiles else f"{level.vectors}_int8"


@functools.cache
def byte_kernels(level: Level, step: int = 2 * STEP, in_registers: bool = False) -> Array:
    """The kernels that a product of bytes needs: in place 1 and 2 those of AMX for 16 and 32 rows.

    Those behind `DOTS` and `PART_DOTS` are for few rows. Where a level has none there are zeros.

    Args:
        level: Whose kernels.
        step: Terms that AMX takes at a time.
        in_registers: Whether those are wanted whose sums become levels in registers.
    """
    table = np.zeros(SLOTS, np.int64)
    if not level.native:
        return table
    known = llvm_kernel.addresses(level, "_bytes")
    ending = llvm_kernel.addresses(level, "_byte_levels") if in_registers else {}
    table[PREPARE] = ending.get("prepare_end", 0)
    parts = [(PART_DOTS + PART_PLACES * (c // PART - 1), c) for c in range(PART, COLUMNS, PART)]
    for place, columns in [(DOTS, COLUMNS), *parts]:
        end, most = "" if columns == COLUMNS else f"{columns}_", most_rows(level, columns)
        table[MOST_DOTS if columns == COLUMNS else place] = most
        for rows in range(1, most + 1):
            table[place + rows] = known[f"dot_bytes_{end}{rows}"]
            table[IN_REGISTERS + place + rows] = ending.get(f"dot_levels_{end}{rows}", 0)
    table[FLOATS], table[LEVELS] = known["bytes_floats"], known["bytes_levels"]
    if level.tiles:
        known = llvm_kernel.addresses(level)
        table[1], table[2] = known["bytes_1"], known["bytes_2"]
        configure_tiles(table, level, step // 2)
    return table


def block_exec_type(level: Level, bits: int) -> str:
    """What profiles call products with weights quantized in blocks, of so many bits."""
    return f"{level.vectors}_int{bits}" if level.native else "numba"


@functools.cache
def block_kernels(level: Level, variant: Variant) -> Array:
    """The kernels for such products by number of rows; 0 where there is none."""
    table = np.zeros(MAX_ROWS + 1, np.int64)
    if not level.native:
        return table
    known = llvm_kernel.addresses(level, blocks_part(variant))
    for rows in row_counts(level):
        table[rows] = known[f"{variant.name}_{rows}"]
    return table


@functools.cache
def unpacked_kernels(
    level: Level, factors: Factors, has_terms: bool, signed: bool = False
) -> Array:
    """The kernels for such weights that were unpacked, by number of rows; 0 where there is none."""
    table = np.zeros(MAX_ROWS + 1, np.int64)
    for rows in dot_unpacked.row_counts(level, factors):
        known = llvm_kernel.addresses(level, _UNPACKED_PARTS[factors])
        table[rows] = known[dot_unpacked.kernel_name(rows, factors, has_terms, signed)]
    return table


@functools.cache
def int8_rows_kernel(level: Level, variant: Variant) -> Array:
    """The kernel that quantizes rows to int8, for such weights, in an array."""
    name = quantized_groups.kernel_name(
        variant.bits, dot_unpacked.begins_with_zeros(level, variant)
    )
    if dot_unpacked.subtracts_zeros(level, variant):
        name = quantized_groups.UNSIGNED
    return np.array([llvm_kernel.addresses(level, "_quads")[name]])


@functools.cache
def int16_rows_kernel(level: Level, variant: Variant) -> Array:
    """The kernel that quantizes rows to int16, for such weights, in an array."""
    equal = variant.zeros is Zeros.EQUAL
    name = quantized_groups.INT16_EQUAL if equal else quantized_groups.INT16
    return np.array([llvm_kernel.addresses(level, "_blocks")[name]])


@functools.cache
def quad_kernels(level: Level, variant: Variant) -> Array:
    """The kernels for rows of bytes: as `unpacked_kernels`, in place 0 what unpacks weights."""
    signed = dot_unpacked.subtracts_zeros(level, variant)
    has_terms = not signed and not dot_unpacked.begins_with_zeros(level, variant)
    table = unpacked_kernels(level, Factors.QUADS, has_terms, signed).copy()
    name = unpack_words.kernel_name(variant, Factors.QUADS)
    table[0] = llvm_kernel.addresses(level, "_quads")[name]
    return table


@functools.cache
def pair_kernels(level: Level, variant: Variant) -> Array:
    """The kernels for rows of int16: as `unpacked_kernels`, in place 0 what unpacks weights."""
    has_terms = variant.zeros in (Zeros.HALVES, Zeros.FLOATS)
    table = unpacked_kernels(level, Factors.PAIRS, has_terms).copy()
    name = unpack_words.kernel_name(variant, Factors.PAIRS)
    table[0] = llvm_kernel.addresses(level, blocks_part(variant))[name]
    return table


_UNPACKED_PARTS = {Factors.PAIRS: "_blocks", Factors.QUADS: "_quads"}


@functools.cache
def unpack_kernel(level: Level, variant: Variant, planes: int) -> Array:
    """The kernel that makes such weights bfloat16 in so many parts, for levels with tiles."""
    known = llvm_kernel.addresses(level, blocks_part(variant))
    return np.array([known[f"unpack_{variant.name}_{planes}"]])


@functools.cache
def gate_kernel(level: Level, code: ActivationCode, planes: int) -> Array:
    """The kernel that multiplies by activated sums, in so many parts, for levels with tiles."""
    return np.array([llvm_kernel.addresses(level, "_blocks")[gate_tiles.kernel_name(code, planes)]])


@functools.cache
def byte_window_kernels(level: Level, kind: str) -> Array:
    """The depthwise kernels for ``"int8"`` or ``"uint8"`` by number of pixels; else 0."""
    known = llvm_kernel.addresses(level, "_bytes")
    table = np.zeros(WINDOW_PIXELS[-1] + 1, np.int64)
    for pixels in WINDOW_PIXELS:
        table[pixels] = known[f"depthwise_{kind}_{pixels}"]
    return table


@functools.cache
def quad_window_kernels(level: Level) -> Array:
    """The depthwise kernels of bytes by fours of taps, by number of pixels.

    Args:
        level: One that has them.
    """
    known = llvm_kernel.addresses(level, "_bytes")
    table = np.zeros(QUAD_PIXELS[-1] + 1, np.int64)
    for pixels in QUAD_PIXELS:
        table[pixels] = known[f"depthwise_quads_{pixels}"]
    return table


@functools.cache
def window_kernels(level: Level, kind: str, half: bool = False) -> Array:
    """The window kernels by number of pixels; 0 in unused places.

    Args:
        level: Whose kernels.
        kind: What is computed.
        half: Whether input and output are bfloat16.
    """
    known = llvm_kernel.addresses(level, "_windows")
    table = np.zeros(WINDOW_PIXELS[-1] + 1, np.int64)
    for pixels in WINDOW_PIXELS:
        table[pixels] = known[f"{kind}_halves_{pixels}" if half else f"{kind}_{pixels}"]
    return table


@functools.cache
def single_kernel(level: Level, name: str) -> Array:
    """One kernel in an array."""
    return np.array([llvm_kernel.addresses(level)[name]])
