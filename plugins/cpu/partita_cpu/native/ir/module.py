"""All kernels of a level as one module of LLVM IR text."""

from __future__ import annotations

from partita_cpu.native.ir import (
    amx,
    amx_bytes,
    depthwise,
    dot_bytes,
    finish,
    finish_bytes,
    float16,
    fma,
    masked,
    narrow,
    runs,
)
from partita_cpu.native.ir.picture import deal
from partita_cpu.native.ir.text import Function
from partita_cpu.native.ir.turn import turn
from partita_cpu.native.ir.weigh import ACROSS, PIXELS, STRIDES, weigh
from partita_cpu.native.ir.weigh_bytes import declarations as byte_declarations
from partita_cpu.native.ir.weigh_bytes import weigh_bytes
from partita_cpu.native.ir.window import window
from partita_cpu.native.levels import Level

WINDOW_PIXELS = (1, 2, 4, 8)
"""Numbers of output pixels that window kernels compute together."""

_ENDS = ("floats", "levels")
"""What sums of bytes become."""

WINDOW_KINDS = ("weigh", "max", "sum")


PARTS = ("", "_weigh", "_weigh_halves", "_f16")
"""Kernels that are compiled and kept together, since what needs one of them needs most of them.

Those for depthwise convolutions of images, of float32 and of bfloat16, take longer to compile than
all the others; those for float16 are seldom asked for.
"""


def functions(level: Level, part: str = "") -> list[Function]:
    """The kernels of a level; their names are its symbols."""
    lanes = level.lanes
    if part == "_f16":
        return float16.functions(lanes, level.rows, level.tiles)
    if part:
        half = part == "_weigh_halves"
        if half and not level.dots_bfloat16:
            return []
        return _weighing(lanes, part.removeprefix("_"), half, split=level.tiles and not half)
    made = [fma.fma_tile(f"fma_{rows}", rows, lanes) for rows in range(1, level.rows + 1)]
    made += [finish.epilogue("epilogue", lanes), narrow.copy("copy", lanes)]
    made.append(narrow.scale("scale", lanes, half_in=False, planes=0))
    made.append(deal("deal", lanes))
    made += [turn(f"turn_{bits}", bits) for bits in (8, 32)]
    for kind in WINDOW_KINDS:
        made += [window(f"{kind}_{n}", kind, n, lanes) for n in WINDOW_PIXELS]
    made += _rows(lanes, "", False)
    for rows in range(1, dot_bytes.most_rows(level) + 1):
        made.append(dot_bytes.dot_bytes(f"dot_bytes_{rows}", rows, level))
    made += [finish_bytes.finish_bytes(f"bytes_{n}", lanes, n == "levels") for n in _ENDS]
    if level.masks_halves:
        made.append(runs.copy_runs("copy_runs"))
    for kind in ("int8", "uint8"):
        signed = kind == "int8"
        made += [weigh_bytes(f"weigh_{kind}_{n}", n, lanes, signed) for n in WINDOW_PIXELS]
    if level.dots_bfloat16:
        made += _bfloat16_functions(level)
    return made


def _weighing(lanes: int, kind: str, half: bool, split: bool) -> list[Function]:
    """Depthwise convolutions of images as they lie."""
    return [
        weigh(f"{kind}_{across}_{stride}_{n}", n, across, stride, lanes, half, split)
        for across in ACROSS
        for stride in STRIDES
        for n in PIXELS
    ]


def _rows(lanes: int, kind: str, half: bool) -> list[Function]:
    """Depthwise convolutions."""
    made = [depthwise.lay_row(f"lay_row{kind}", lanes, half)]
    for n in range(1, depthwise.MOST_PIXELS + 1):
        made.append(depthwise.depthwise(f"depthwise{kind}_{n}", n, lanes, half))
    return made


def _bfloat16_functions(level: Level) -> list[Function]:
    """What deals with bfloat16: products, in tiles or in vectors, and images kept in it."""
    made = _tile_functions() if level.tiles else _pair_functions(level)
    for name, planes in (("bf16", 1), ("bf16x3", 2), ("bf16x6", 3))[: 3 if level.tiles else 1]:
        made.append(narrow.narrow(f"narrow_{name}", planes))
        made.append(deal(f"deal_{name}", 16, planes))
        made.append(narrow.lay_tile(f"lay_{name}", planes))
        made.append(narrow.scale(f"scale_{name}", 16, half_in=False, planes=planes))
    made.append(finish.epilogue("epilogue_narrow", 16, finish.BFLOAT))
    made.append(narrow.copy_halves("copy_halves"))
    made.append(narrow.scale("scale_halves", 16, half_in=True, planes=1))
    made += _rows(16, "_halves", True)
    for kind in WINDOW_KINDS:
        made += [window(f"{kind}_halves_{n}", kind, n, 16, True, True) for n in WINDOW_PIXELS]
        made.append(window(f"{kind}_widen", kind, 1, 16, half_in=True))
    return made


def _pair_functions(level: Level) -> list[Function]:
    """Products in bfloat16 by vectors."""
    made = []
    for rows in range(1, level.rows + 1):
        made.append(fma.fma_tile(f"bf16_{rows}", rows, level.lanes, fma.Factors.PAIRS))
        name, half = f"bf16_narrow_{rows}", finish.BFLOAT
        made.append(fma.fma_tile(name, rows, level.lanes, fma.Factors.PAIRS, half))
    return made


def _tile_functions() -> list[Function]:
    """Products by AMX."""
    made = [amx.configure("configure"), amx.release("release")]
    for name, planes in (("bf16", 1), ("bf16x3", 2), ("bf16x6", 3)):
        made += [amx.amx_tile(f"{name}_{halves}", halves, planes) for halves in (1, 2)]
        made += [amx.amx_tile(f"{name}_laid_{n}", n, planes, laid=True) for n in (1, 2)]
    made += [amx.amx_tile(f"bf16_narrow_{n}", n, 1, narrow=True) for n in (1, 2)]
    made += [amx_bytes.byte_tile(f"bytes_{halves}", halves) for halves in (1, 2)]
    return made


def text(level: Level, part: str = "") -> str:
    """The module; functions say which processor their instructions are scheduled for."""
    lanes, processor = level.lanes, f'"tune-cpu"="{level.processor}"'
    parts = [function.text(processor) for function in functions(level, part)]
    parts += [fma.declarations(lanes), masked.declarations(lanes), finish.PREFETCH]
    if part == "_f16":
        return "\n".join([*parts, finish.declarations(lanes), narrow.declarations(lanes)])
    parts += [narrow.declarations(lanes), finish_bytes.declarations(lanes)]
    parts += [byte_declarations(lanes), dot_bytes.declarations(level)]
    if level.masks_halves:
        parts.append(runs.declarations())
    if level.dots_bfloat16:
        parts += [finish.declarations(lanes), narrow.half_declarations()]
        parts.append(fma.pair_declarations(lanes))
    if level.tiles:
        parts += [amx.declarations(), amx_bytes.DECLARATIONS]
    return "\n".join(parts)
