"""LLVM modules: all kernels of an instruction set level, in parts compiled separately."""

from __future__ import annotations

import itertools

from partita_cpu.llvm import (
    activations,
    eight_rows,
    elementwise_rows,
    epilogue,
    epilogue_int8,
    half_vectors,
    masked,
    multiply_loops,
    normalization,
)
from partita_cpu.llvm.add_int8 import add_by_factors, add_bytes
from partita_cpu.llvm.attention import attend, attend_amx, attend_few, weigh
from partita_cpu.llvm.copies import bf16_split, byte_table, quantized_groups, strided_copy
from partita_cpu.llvm.copies.flushed_rows import copy_flushed
from partita_cpu.llvm.copies.transpose_block import NARROW_SIDE, SIDE, transpose
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.images import depthwise_rows, group_normalization, winograd
from partita_cpu.llvm.images.depthwise_pixels import (
    ACROSS,
    PIXELS,
    STRIDES,
    Products,
    depthwise,
    depthwise_part,
)
from partita_cpu.llvm.images.depthwise_pixels_int8 import declarations as byte_declarations
from partita_cpu.llvm.images.depthwise_pixels_int8 import depthwise_bytes
from partita_cpu.llvm.images.depthwise_quads import PIXELS as QUAD_PIXELS
from partita_cpu.llvm.images.depthwise_quads import depthwise_quads, takes_quads
from partita_cpu.llvm.images.max_int8 import declarations as maximum_declarations
from partita_cpu.llvm.images.max_int8 import largest_bytes
from partita_cpu.llvm.images.planar_to_interleaved import interleave
from partita_cpu.llvm.images.sliding_window import WINDOW_PIXELS, window
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles import (
    amx,
    amx_int8,
    dot_blocks,
    dot_int8,
    dot_levels,
    dot_unpacked,
    fma,
    fp16_weights,
    gate_tiles,
    unpack_blocks,
    unpack_words,
)
from partita_cpu.llvm.tiles.fma_groups import GROUPS, group_tile


def blocks_part(variant: dot_blocks.Variant) -> str:
    """The part with the kernels for one kind of weights quantized in blocks."""
    return f"_{variant.name}"


_ENDS = ("floats", "levels")
"""What sums of bytes become."""

_OF_BLOCKS = {
    blocks_part(variant): variant for variant in (*dot_blocks.VARIANTS, *dot_blocks.LEVEL_VARIANTS)
}
"""Parts for one kind of weights quantized in blocks, of which most models have one."""

WINDOW_KINDS = ("convolve", "max", "sum")

OVERALL_KINDS = WINDOW_KINDS[1:]
"""What is computed of all pixels of a channel, in float32."""

SHORT_ROWS = 12
"""Rows of tiles that small first-level caches leave (see `machine_model.MachineModel.tile_rows`).
Larger tiles are parts of their own: they take a quarter of the time that all take to compile."""

RATES = "_rates"
"""The part with the loops that measure how fast instructions are."""

PARTS = (
    "",
    "_floats",
    "_floats_tall",
    "_activations",
    "_comparisons",
    "_windows",
    "_bytes",
    "_byte_levels",
    *(depthwise_part(across, products) for products in Products for across in ACROSS),
    "_pairs",
    "_pairs_tall",
    "_activated_halves",
    "_normalized",
    "_normalized_pixels",
    *(f"_normalized_tiles_{planes}" for planes in unpack_blocks.PLANES),
    *("_f16", "_f16_narrow", "_bf16_weights"),
    "_blocks",
    *_OF_BLOCKS,
    "_quads",
    "_winograd",
    "_winograd_halves",
    "_attention",
    "_softmax",
    RATES,
    *attend_few.PARTS,
    *(f"_groups{end}_{channels}" for end in ("", "_halves") for channels in GROUPS),
)
"""Kernels that are compiled and kept together, since what needs one of them needs most of them.

Products of float32, activations that bounds and a gate do not express, windows that slide over
images, depthwise convolutions, Winograd's transforms, products of bfloat16
by vectors, activations that end in bfloat16, and products of bytes take long to compile, and each
is asked for by some networks; those for float16, for weights quantized in blocks and for rows of
bytes beside these are seldom asked for, and so are attention over a cache, of many queries or of
few by the type of its elements, and products in groups of few channels.
"""


def functions(level: Level, part: str = "") -> list[Function]:
    """The kernels of a level; their names are its symbols."""
    lanes = level.lanes
    if part in ("_floats", "_floats_tall"):
        return _float_functions(level, _rows_of(level, part))
    if part == "_activations":
        kernels = activations.KERNELS.items()
        return [activations.activate_rows(name, code, lanes) for code, name in kernels]
    if part == "_comparisons":
        return elementwise_rows.comparisons(lanes)
    if part == "_f16":
        return fp16_weights.functions(lanes, level.rows, level.tiles)
    if part == "_f16_narrow":
        return fp16_weights.narrow_functions(lanes, level.rows)
    if part == "_bf16_weights":
        return fp16_weights.bfloat16_functions(lanes, level.rows)
    if part == "_blocks":
        made = dot_unpacked.pair_functions(level) + quantized_groups.int16_functions(level)
        return made + gate_tiles.functions() if level.tiles else made
    if part in _OF_BLOCKS:
        variant = _OF_BLOCKS[part]
        made = dot_blocks.functions(level, variant)
        is_unpacked = level.tiles and not variant.levels
        if is_unpacked:
            made += unpack_blocks.functions(variant)
        if dot_unpacked.row_counts(level, dot_unpacked.Factors.PAIRS) and not variant.levels:
            made.append(unpack_words.pair_function(variant))
        return made
    if part == "_quads":
        made = dot_unpacked.quad_functions(level)
        if made:
            made += unpack_words.quad_functions(level) + quantized_groups.functions(level)
        return made
    if part == "_winograd":
        return winograd.functions(lanes)
    if part == "_winograd_halves":
        return winograd.half_functions() if level.keeps_bfloat16 else []
    if part == "_attention":
        return attend.functions(level) + (attend_amx.functions() if level.tiles else [])
    if part == "_softmax":
        return weigh.functions(level)
    if part in attend_few.PARTS:
        return attend_few.functions(level, attend_few.PARTS[part])
    if part.startswith("_groups"):
        return _group_functions(level, int(part.rpartition("_")[2]), "halves" in part)
    if part == "_bytes":
        return _byte_functions(level)
    if part == "_byte_levels":
        return dot_levels.functions(level)
    if part in ("_pairs", "_pairs_tall"):
        can = level.dots_bfloat16 and not level.tiles
        return _pair_functions(level, _rows_of(level, part)) if can else []
    if part == "_windows":
        return _window_functions(level)
    if part == RATES:
        return multiply_loops.functions(level)
    if part == "_activated_halves":
        kinds = activations.KERNELS if level.keeps_bfloat16 else {}
        made = [activations.narrow_rows(f"{n}_narrow", code) for code, n in kinds.items()]
        made += [activations.activate_halves(f"{n}_halves", code) for code, n in kinds.items()]
        return [*made, normalization.normalize_rows("normalize_rows")] if made else []
    if part == "_normalized":
        return _normalizations() if level.lanes == eight_rows.LANES else []
    if part == "_normalized_pixels":
        return group_normalization.functions(level)
    if part.startswith("_normalized_tiles"):
        return _normalizations(int(part.rpartition("_")[2])) if level.tiles else []
    if part:
        kind, _, across = part[1:].rpartition("_")
        return _depthwise_functions(level, int(across), Products(kind))
    return _common_functions(level)


def _common_functions(level: Level) -> list[Function]:
    """Kernels that many networks ask for, and that are quick to compile."""
    lanes = level.lanes
    made = [epilogue.epilogue("epilogue", lanes), bf16_split.copy("copy", lanes)]
    made.append(bf16_split.scale("scale", lanes, half_in=False, planes=0))
    made += [interleave("interleave", lanes)]
    made += elementwise_rows.functions(lanes)
    made += fp16_weights.conversions(lanes)
    made += [transpose(f"transpose_{bits}", bits, lanes) for bits in (8, 32)]
    made.append(transpose("transpose_32_by_8", 32, lanes, side=NARROW_SIDE))
    made.append(copy_flushed("copy_flushed", lanes, SIDE))
    made.append(copy_flushed("copy_flushed_by_8", min(lanes, NARROW_SIDE), NARROW_SIDE))
    made += [window(f"all_{kind}", kind, 1, lanes) for kind in OVERALL_KINDS]
    if level.masks_halves:
        made += [strided_copy.copy_runs("copy_runs"), byte_table.look_up_bytes("look_up_bytes")]
        for kind in ("int8", "uint8"):
            signed = kind == "int8"
            made += [add_bytes(f"add_{kind}", signed), largest_bytes(f"max_{kind}", signed)]
            made.append(add_by_factors(f"add_{kind}_by_factors", signed))
    if level.dots_bfloat16:
        made += _bfloat16_functions(level)
    return made


def product_parts(part: str, rows: int) -> tuple[str, ...]:
    """Where the products of one kind are, in tiles of up to so many rows."""
    return (part, f"{part}_tall") if rows > SHORT_ROWS else (part,)


def _rows_of(level: Level, part: str) -> range:
    """Rows of the tiles of a part."""
    if part.endswith("_tall"):
        return range(SHORT_ROWS + 1, level.rows + 1)
    return range(1, min(SHORT_ROWS, level.rows) + 1)


def _float_functions(level: Level, tiles: range) -> list[Function]:
    """Products in float32, of tiles of so many rows."""
    made = []
    for rows in tiles:
        made.append(fma.fma_tile(f"fma_{rows}", rows, level.lanes))
        made.append(fma.fma_tile(f"fma_first_{rows}", rows, level.lanes, vectors=1))
    return made


def _normalizations(planes: int = 0) -> list[Function]:
    """Of eight short rows of float32 at a time; results are laid out in so many parts, or stay."""
    kinds = itertools.product((True, False), (False, True))
    return [normalization.normalize_eights(*kind, planes) for kind in kinds]


def groups_part(group_channels: int, half: bool) -> str:
    """The part with the tiles of groups of so many channels; results in bfloat16 or float32."""
    return f"_groups{'_halves' if half else ''}_{group_channels}"


def _group_functions(level: Level, within: int, half: bool) -> list[Function]:
    """Products of float32 whose results are made of few channels each."""
    if within > level.lanes or (half and not level.keeps_bfloat16):
        return []
    end, made = half_vectors.BFLOAT if half else "", []
    for rows in range(1, level.rows + 1):
        made.append(group_tile(f"groups_{rows}", rows, level.lanes, within, end))
        made.append(group_tile(f"groups_first_{rows}", rows, level.lanes, within, end, vectors=1))
    return made


def _byte_functions(level: Level) -> list[Function]:
    """Products and depthwise convolutions of bytes."""
    made = [
        dot_int8.dot_bytes(f"dot_bytes_{rows}", rows, level)
        for rows in range(1, dot_int8.most_rows(level) + 1)
    ]
    for part in range(dot_int8.PART, amx_int8.COLUMNS, dot_int8.PART):
        made += [
            dot_int8.dot_bytes(f"dot_bytes_{part}_{rows}", rows, level, part)
            for rows in range(1, dot_int8.most_rows(level, part) + 1)
        ]
    made += [epilogue_int8.finish_bytes(f"bytes_{n}", level.lanes, n == "levels") for n in _ENDS]
    for kind in ("int8", "uint8"):
        signed = kind == "int8"
        made += [
            depthwise_bytes(f"depthwise_{kind}_{n}", n, level.lanes, signed) for n in WINDOW_PIXELS
        ]
    if takes_quads(level):
        made += [depthwise_quads(f"depthwise_quads_{n}", n) for n in QUAD_PIXELS]
    return made


def _depthwise_functions(level: Level, across: int, products: Products) -> list[Function]:
    """Depthwise convolutions of images as they lie."""
    half, kind = products is not Products.FLOATS, products.value
    if half and not level.keeps_bfloat16:
        return []
    rest = level.lanes, products, level.tiles
    return [
        depthwise(f"{kind}_{across}_{stride}_{n}", n, across, stride, *rest)
        for stride in STRIDES
        for n in PIXELS
    ]


def _window_functions(level: Level) -> list[Function]:
    """Windows that slide over images, and depthwise convolutions of rows laid out first."""
    made = [
        window(f"{kind}_{n}", kind, n, level.lanes) for kind in WINDOW_KINDS for n in WINDOW_PIXELS
    ]
    made += _rows(level.lanes, "", False)
    if level.keeps_bfloat16:
        made += _rows(16, "_halves", True)
        for kind in WINDOW_KINDS:
            made += [window(f"{kind}_halves_{n}", kind, n, 16, True, True) for n in WINDOW_PIXELS]
    return made


def _rows(lanes: int, kind: str, half: bool) -> list[Function]:
    """Depthwise convolutions."""
    made = [depthwise_rows.pack_pixels(f"pack_pixels{kind}", lanes, half)]
    for n in range(1, depthwise_rows.MOST_PIXELS + 1):
        made.append(depthwise_rows.depthwise(f"depthwise{kind}_{n}", n, lanes, half))
    return made


def _bfloat16_functions(level: Level) -> list[Function]:
    """Products in bfloat16, by tiles or by vectors; conversions take 16 numbers at a time."""
    made = _tile_functions() if level.tiles else []
    for name, planes in (("bf16", 1), ("bf16x3", 2), ("bf16x6", 3))[: 3 if level.tiles else 1]:
        made.append(bf16_split.narrow(f"narrow_{name}", planes))
        made.append(bf16_split.narrow_rows(f"narrow_{name}_rows", planes))
        made.append(interleave(f"interleave_{name}", 16, planes))
        made.append(bf16_split.pack_tile(f"pack_{name}", planes))
        made.append(bf16_split.scale(f"scale_{name}", 16, half_in=False, planes=planes))
    return made + _bfloat16_images() if level.keeps_bfloat16 else made


def _bfloat16_images() -> list[Function]:
    """What deals with images that stay in bfloat16 between steps."""
    made = [epilogue.epilogue("epilogue_narrow", 16, half_vectors.BFLOAT)]
    made += [bf16_split.copy_halves("copy_halves")]
    made += elementwise_rows.half_functions()
    made.append(bf16_split.scale("scale_halves", 16, half_in=True, planes=1))
    made += [window(f"all_{kind}_widen", kind, 1, 16, half_in=True) for kind in OVERALL_KINDS]
    return made


def _pair_functions(level: Level, tiles: range) -> list[Function]:
    """Products in bfloat16 by vectors, of tiles of so many rows."""
    ends = {"bf16": "", **({"bf16_narrow": half_vectors.BFLOAT} if level.keeps_bfloat16 else {})}
    kind, lanes, made = fma.Factors.PAIRS, level.lanes, []
    for (name, half), rows in itertools.product(ends.items(), tiles):
        made.append(fma.fma_tile(f"{name}_{rows}", rows, lanes, kind, half))
        made.append(fma.fma_tile(f"{name}_first_{rows}", rows, lanes, kind, half, vectors=1))
    return made


def _tile_functions() -> list[Function]:
    """Products by AMX."""
    made = [amx.configure("configure"), amx.release("release")]
    for name, planes in (("bf16", 1), ("bf16x3", 2), ("bf16x6", 3)):
        made += [amx.amx_tile(f"{name}_{halves}", halves, planes) for halves in (1, 2)]
        made += [amx.amx_tile(f"{name}_packed_{n}", n, planes, packed=True) for n in (1, 2)]
    made += [amx.amx_tile(f"bf16_narrow_{n}", n, 1, narrow=True) for n in (1, 2)]
    made += [amx_int8.byte_tile(f"bytes_{halves}", halves) for halves in (1, 2)]
    return made


def text(level: Level, part: str = "") -> str:
    """The module; functions say which processor their instructions are scheduled for."""
    lanes, processor = level.lanes, f'"tune-cpu"="{level.processor}"'
    parts = [function.text(processor) for function in functions(level, part)]
    parts += [fma.declarations(lanes), masked.declarations(lanes), epilogue.PREFETCH]
    if level.dots_bfloat16 and lanes == 16:
        parts.append(half_vectors.ROUND_TWO)
    if part in attend_few.PARTS:
        return "\n".join([*parts, attend_few.declarations(lanes)])
    if part in ("_f16", "_f16_narrow", "_bf16_weights"):
        return "\n".join([*parts, half_vectors.declarations(lanes), bf16_split.declarations(lanes)])
    if part == "_blocks" or part in _OF_BLOCKS:
        parts += [dot_blocks.declarations(level), quantized_groups.declarations()]
        if level.tiles:
            parts += [half_vectors.declarations(lanes), bf16_split.declarations(lanes)]
            parts.append(activations.declarations(lanes))
        return "\n".join(parts)
    if part == "_quads":
        return "\n".join(
            [*parts, dot_unpacked.quad_declarations(level), quantized_groups.declarations()]
        )
    parts += [bf16_split.declarations(lanes), epilogue_int8.declarations(lanes)]
    parts += [activations.declarations(lanes), attend.declarations(lanes)]
    parts += [byte_declarations(lanes), dot_int8.declarations(level)]
    if lanes > NARROW_SIDE:
        parts.append(masked.declarations(NARROW_SIDE))
    if level.masks_halves:
        parts += [strided_copy.declarations(), maximum_declarations(), byte_table.declarations()]
    if level.dots_bfloat16:
        parts += [half_vectors.declarations(16), fma.pair_declarations(lanes)]
        if lanes != 16:
            parts += [masked.declarations(16), bf16_split.declarations(16)]
            parts.append(fma.declarations(16))
    if level.lanes == eight_rows.LANES:
        parts.append(normalization.DECLARATIONS)
    if level.keeps_bfloat16:
        parts.append(bf16_split.half_declarations())
    if level.tiles:
        parts += [amx.declarations(), amx_int8.DECLARATIONS]
    return "\n".join(parts)
