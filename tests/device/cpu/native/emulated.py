"""Levels that this machine lacks: their LLVM IR, with instructions replaced by what they compute.

A kernel's text is the same, but for a few intrinsics whose documented arithmetic is written out
here; LLVM cuts its vectors to the size of this machine's. So everything but LLVM's choice of
instructions is tested: loops, addresses, packing, drivers and what is chosen.

Set `VARIABLE` to names of levels, by commas, to have tests here take them for the machine's.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from pathlib import Path

from partita_cpu.jit import disk_cache, isa, llvm_kernel
from partita_cpu.jit.code_hash import generators_digest
from partita_cpu.jit.loader.elf_image import FORMAT, Image, image_of, load
from partita_cpu.llvm import module
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import EVERY

VARIABLE = "PARTITA_TEST_EMULATED_LEVELS"

_ROUND = """
define internal <{n} x bfloat> @emulated.round.{n}(<{n} x float> %x) alwaysinline {
  %bits = bitcast <{n} x float> %x to <{n} x i32>
  %up = lshr <{n} x i32> %bits, splat (i32 16)
  %odd = and <{n} x i32> %up, splat (i32 1)
  %most = add <{n} x i32> %odd, splat (i32 32767)
  %sum = add <{n} x i32> %bits, %most
  %nan = fcmp uno <{n} x float> %x, %x
  %quiet = or <{n} x i32> %bits, splat (i32 4194304)
  %chosen = select <{n} x i1> %nan, <{n} x i32> %quiet, <{n} x i32> %sum
  %high = lshr <{n} x i32> %chosen, splat (i32 16)
  %short = trunc <{n} x i32> %high to <{n} x i16>
  %y = bitcast <{n} x i16> %short to <{n} x bfloat>
  ret <{n} x bfloat> %y
}
"""

_DOT_PAIRS = """
define internal <16 x float> @emulated.pairs(<16 x float> %c, <32 x bfloat> %a, <32 x bfloat> %b)
    alwaysinline {
  %a32 = bitcast <32 x bfloat> %a to <16 x i32>
  %b32 = bitcast <32 x bfloat> %b to <16 x i32>
  %aodd = and <16 x i32> %a32, splat (i32 -65536)
  %bodd = and <16 x i32> %b32, splat (i32 -65536)
  %aeven = shl <16 x i32> %a32, splat (i32 16)
  %beven = shl <16 x i32> %b32, splat (i32 16)
  %ao = bitcast <16 x i32> %aodd to <16 x float>
  %bo = bitcast <16 x i32> %bodd to <16 x float>
  %ae = bitcast <16 x i32> %aeven to <16 x float>
  %be = bitcast <16 x i32> %beven to <16 x float>
  %odd = call <16 x float> @llvm.fma.v16f32(<16 x float> %ao, <16 x float> %bo, <16 x float> %c)
  %y = call <16 x float> @llvm.fma.v16f32(<16 x float> %ae, <16 x float> %be, <16 x float> %odd)
  ret <16 x float> %y
}
"""

_DOT_BYTES = """
define internal <{n} x i32> @emulated.bytes.{n}(<{n} x i32> %c, <{b} x i8> %a, <{b} x i8> %b)
    alwaysinline {
  %x = zext <{b} x i8> %a to <{b} x i32>
  %w = sext <{b} x i8> %b to <{b} x i32>
  %p = mul <{b} x i32> %x, %w
{parts}
  %s01 = add <{n} x i32> %q0, %q1
  %s23 = add <{n} x i32> %q2, %q3
  %s = add <{n} x i32> %s01, %s23
  %y = add <{n} x i32> %c, %s
  ret <{n} x i32> %y
}
"""

_INVERSE = """
define internal <16 x float> @emulated.inverse(<16 x float> %x, <16 x float> %kept, i16 %mask)
    alwaysinline {
  %whole = fdiv <16 x float> splat (float 1.0), %x
  %bits = bitcast <16 x float> %whole to <16 x i32>
  %first = and <16 x i32> %bits, splat (i32 -512)
  %y = bitcast <16 x i32> %first to <16 x float>
  ret <16 x float> %y
}
"""
"""Of the mantissa 14 bits, as the instruction guarantees."""


_SCALED = """
define internal <16 x float> @emulated.scaled(<16 x float> %x, <16 x float> %power,
    <16 x float> %kept, i16 %mask, i32 %mode) alwaysinline {
  %whole = fptosi <16 x float> %power to <16 x i32>
  %biased = add <16 x i32> %whole, splat (i32 127)
  %bits = shl <16 x i32> %biased, splat (i32 23)
  %factor = bitcast <16 x i32> %bits to <16 x float>
  %y = fmul <16 x float> %x, %factor
  ret <16 x float> %y
}
"""
"""By whole powers that are normal numbers, without a mask."""


def _chosen_words():
    """Each lane by its index from the 64 words of two vectors."""
    words, lanes = "<32 x i16>", range(32)
    lines = [
        f"define internal {words} @emulated.chosen.words({words} %a, {words} %at, {words} %b) {{",
        "  %both = alloca [64 x i16], align 64",
        f"  store {words} %a, ptr %both, align 64",
        "  %second = getelementptr i16, ptr %both, i64 32",
        f"  store {words} %b, ptr %second, align 64",
        f"  %places = and {words} %at, splat (i16 63)",
    ]
    before = "poison"
    for lane in lanes:
        lines += [
            f"  %place{lane} = extractelement {words} %places, i32 {lane}",
            f"  %wide{lane} = zext i16 %place{lane} to i64",
            f"  %from{lane} = getelementptr i16, ptr %both, i64 %wide{lane}",
            f"  %word{lane} = load i16, ptr %from{lane}",
            f"  %made{lane} = insertelement {words} {before}, i16 %word{lane}, i32 {lane}",
        ]
        before = f"%made{lane}"
    return "\n".join([*lines, f"  ret {words} {before}", "}"])


_HALVES = """
declare <{m} x {to}> @llvm.x86.{of_avx2}({small})
define internal <{n} x {to}> @emulated.{name}({large}) alwaysinline {
{split}
  %lo = call <{m} x {to}> @llvm.x86.{of_avx2}({low})
  %hi = call <{m} x {to}> @llvm.x86.{of_avx2}({high})
  %y = shufflevector <{m} x {to}> %lo, <{m} x {to}> %hi, <{n} x i32> <{all}>
  ret <{n} x {to}> %y
}
"""

_TWICE = {
    "mask.cvtps2dq.512": ("avx.cvt.ps2dq.256", "float", 16, "i32", 16, 1),
    "pmaddw.d.512": ("avx2.pmadd.wd", "i16", 32, "i32", 16, 2),
    "pmaddubs.w.512": ("avx2.pmadd.ub.sw", "i8", 64, "i16", 32, 2),
    "packssdw.512": ("avx2.packssdw", "i32", 16, "i16", 32, 2),
    "packuswb.512": ("avx2.packuswb", "i16", 32, "i8", 64, 2),
}
"""Of AVX-512 what one of AVX2 does to each half: type and lanes of arguments and result, arity."""


def _twice(name):
    of_avx2, kind, lanes, to, n, arity = _TWICE[name]
    names = "ab"[:arity]
    half, whole = f"<{lanes // 2} x {kind}>", f"<{lanes} x {kind}>"
    split = []
    for side, first in (("lo", 0), ("hi", lanes // 2)):
        places = ", ".join(f"i32 {first + lane}" for lane in range(lanes // 2))
        for x in names:
            mask = f"<{lanes // 2} x i32> <{places}>"
            split.append(f"  %{x}{side} = shufflevector {whole} %{x}, {whole} poison, {mask}")
    more = [] if arity == 2 else [f"{whole} %unused", "i16 %mask", "i32 %mode"]
    values = {
        "m": str(n // 2),
        "n": str(n),
        "to": to,
        "of_avx2": of_avx2,
        "name": name,
        "small": ", ".join([half] * arity),
        "large": ", ".join([*(f"{whole} %{x}" for x in names), *more]),
        "split": "\n".join(split),
        "low": ", ".join(f"{half} %{x}lo" for x in names),
        "high": ", ".join(f"{half} %{x}hi" for x in names),
        "all": ", ".join(f"i32 {lane}" for lane in range(n)),
    }
    made = _HALVES
    for key, value in values.items():
        made = made.replace("{" + key + "}", value)
    return made


def _dot_shorts(lanes: int) -> str:
    """Sums of products of pairs of int16."""
    text = _DOT_BYTES.replace("emulated.bytes", "emulated.shorts").replace("zext", "sext")
    parts = []
    for part in range(2):
        places = ", ".join(f"i32 {2 * lane + part}" for lane in range(lanes))
        kind = f"<{2 * lanes} x i32>"
        mask = f"<{lanes} x i32> <{places}>"
        parts.append(f"  %q{part} = shufflevector {kind} %p, {kind} poison, {mask}")
    of = f"<{lanes} x i32>"
    parts += [f"  %q{part} = add {of} zeroinitializer, zeroinitializer" for part in (2, 3)]
    text = text.replace("{parts}", "\n".join(parts)).replace("i8>", "i16>")
    return text.replace("{n}", str(lanes)).replace("{b}", str(2 * lanes))


def _dot_bytes(lanes: int) -> str:
    parts = []
    for part in range(4):
        places = ", ".join(f"i32 {4 * lane + part}" for lane in range(lanes))
        kind = f"<{4 * lanes} x i32>"
        mask = f"<{lanes} x i32> <{places}>"
        parts.append(f"  %q{part} = shufflevector {kind} %p, {kind} poison, {mask}")
    text = _DOT_BYTES.replace("{parts}", "\n".join(parts))
    return text.replace("{n}", str(lanes)).replace("{b}", str(4 * lanes))


_ROUND_TWO = """
define internal <32 x bfloat> @emulated.round.two(<16 x float> %high, <16 x float> %low)
    alwaysinline {
  %x = call <16 x bfloat> @emulated.round.16(<16 x float> %low)
  %y = call <16 x bfloat> @emulated.round.16(<16 x float> %high)
  %z = shufflevector <16 x bfloat> %x, <16 x bfloat> %y, <32 x i32> <{all}>
  ret <32 x bfloat> %z
}
""".replace("{all}", ", ".join(f"i32 {lane}" for lane in range(32)))

_TILES = 8
_TILE_ROWS = 16
_ROW_BYTES = 64
_SLOTS = 1 << 16
_CONFIGS = (ctypes.c_uint8 * (64 * _SLOTS))()
"""What each thread last configured its tiles as, where its number says when it is mixed."""
_THREAD = ctypes.cast(ctypes.CDLL(None).pthread_self, ctypes.c_void_p)
"""Address of what tells a thread its number."""
_OUTER = {"tiles:config": ctypes.addressof(_CONFIGS), "tiles:thread": ctypes.addressof(_THREAD)}
"""What images call them by, and their addresses."""

_OWN_CONFIG = f"""
  %amx.number = load ptr, ptr @"tiles:thread"
  %amx.thread = call i64 %amx.number()
  %amx.mixed = mul i64 %amx.thread, -7046029254386353131
  %amx.slot = lshr i64 %amx.mixed, {64 - _SLOTS.bit_length() + 1}
  %amx.config = getelementptr [64 x i8], ptr @"tiles:config", i64 %amx.slot"""


def _size(f, tile, of_rows):
    """Rows of a tile, or bytes of one, as configured."""
    if of_rows:
        place = f.at("%config", f.let(f"add i64 48, {tile}"))
        return f.let(f"zext i8 {f.load('i8', place, 1)} to i64")
    place = f.at("%config", f.let(f"add i64 16, {f.let(f'shl i64 {tile}, 1')}"))
    return f.let(f"zext i16 {f.load('i16', place, 1)} to i64")


def _tile_at(f, tile, row="0", place="0"):
    """Address of a byte of a tile."""
    at = f.at("%amx.tiles", f.let(f"mul i64 {tile}, {_TILE_ROWS * _ROW_BYTES}"))
    return f.at(f.at(at, f.let(f"mul i64 {row}, {_ROW_BYTES}")), place)


def _each_byte(f, visit):
    """Calls `visit` with the row, place and address of each byte of a tile that is configured."""
    rows, width = _size(f, "%tile", True), _size(f, "%tile", False)

    def row(i, _):
        start = f.at("%p", f.let(f"mul i64 {i}, %stride"))

        def byte(k, _):
            visit(_tile_at(f, "%tile", i, k), f.at(start, k))
            return []

        f.loop(width, [], byte)
        return []

    f.loop(rows, [], row)
    f.do("ret void")
    return f


def _load_tile():
    f = Function("emulated.load", "ptr %config, ptr %amx.tiles, i64 %tile, ptr %p, i64 %stride")

    def copy(of_tile, memory):
        f.do(f"store i8 {f.load('i8', memory, 1)}, ptr {of_tile}")

    return _each_byte(f, copy)


def _store_tile():
    f = Function("emulated.store", "ptr %config, ptr %amx.tiles, i64 %tile, ptr %p, i64 %stride")

    def copy(of_tile, memory):
        f.do(f"store i8 {f.load('i8', of_tile, 1)}, ptr {memory}")

    return _each_byte(f, copy)


def _clear_tile():
    f = Function("emulated.clear", "ptr %config, ptr %amx.tiles, i64 %tile")

    def word(k, _):
        at = f.let(f"shl i64 {k}, 3")
        f.do(f"store i64 0, ptr {_tile_at(f, '%tile', '0', at)}")
        return []

    f.loop(str(_TILE_ROWS * _ROW_BYTES // 8), [], word)
    f.do("ret void")
    return f


def _multiply_tiles(name, kind, add, product):
    """Adds the products of two tiles to a third one; even ones and odd ones by themselves first.

    Args:
        name: Of the function.
        kind: Of an element of the third tile.
        add: LLVM's addition of it.
        product: Adds what 32 bits of both tiles come to, to an even and an odd sum.
    """
    f = Function(name, "ptr %config, ptr %amx.tiles, i64 %c, i64 %a, i64 %b")
    rows, width = _size(f, "%c", True), f.let(f"lshr i64 {_size(f, '%c', False)}, 2")
    terms = f.let(f"lshr i64 {_size(f, '%a', False)}, 2")

    def row(i, _):
        def column(j, _):
            at = f.let(f"shl i64 {j}, 2")
            to = _tile_at(f, "%c", i, at)

            def term(k, sums):
                x = f.load("i32", _tile_at(f, "%a", i, f.let(f"shl i64 {k}, 2")))
                return product(f, sums, x, f.load("i32", _tile_at(f, "%b", k, at)))

            even, odd = f.loop(terms, [(kind, "zeroinitializer")] * 2, term)
            both = f.let(f"{add} {kind} {even}, {odd}")
            f.do(f"store {kind} {f.let(f'{add} {kind} {f.load(kind, to)}, {both}')}, ptr {to}")
            return []

        f.loop(width, [], column)
        return []

    f.loop(rows, [], row)
    f.do("ret void")
    return f


def _pair_of_bfloat16(f, sums, x, y):
    made = []
    for odd, total in enumerate(sums):
        numbers = []
        for word in (x, y):
            bits = f.let(f"and i32 {word}, -65536" if odd else f"shl i32 {word}, 16")
            numbers.append("float " + f.let(f"bitcast i32 {bits} to float"))
        made.append(f.let(f"call float @llvm.fma.f32({', '.join(numbers)}, float {total})"))
    return made


def _four_bytes(f, sums, x, y):
    """uint8 times int8."""
    made = list(sums)
    for part in range(4):
        u = f.let(f"and i32 {f.let(f'lshr i32 {x}, {8 * part}')}, 255")
        s = f.let(f"ashr i32 {f.let(f'shl i32 {y}, {24 - 8 * part}')}, 24")
        made[part % 2] = f.let(f"add i32 {made[part % 2]}, {f.let(f'mul i32 {u}, {s}')}")
    return made


def _without_tiles(made):
    """A module of AMX whose functions have their tiles in memory of their own."""
    made = re.sub(r"^declare .*@llvm\.x86\.(?:tile|ldtile|tdp).*\n", "", made, flags=re.MULTILINE)
    room = f"[{_TILES * _TILE_ROWS * _ROW_BYTES} x i8]"
    shared = "ptr %amx.config, ptr %amx.tiles"
    copy = "call void @llvm.memcpy.p0.p0.i64(ptr %amx.config, ptr %config, i64 64, i1 false)"
    made = made.replace("call void @llvm.x86.ldtilecfg(ptr %config)", copy)
    made = made.replace("call void @llvm.x86.tilerelease()", "")
    loads = r"tileloadd(?:t1)?64"
    for of_amx, name in ((loads, "load"), ("tilestored64", "store"), ("tilezero", "clear")):
        made = re.sub(
            rf"@llvm\.x86\.{of_amx}\(i8 (\d+)", rf"@emulated.{name}({shared}, i64 \1", made
        )
    for of_amx in ("tdpbf16ps", "tdpbusd"):
        made = re.sub(
            rf"@llvm\.x86\.{of_amx}\(i8 (\d+), i8 (\d+), i8 (\d+)\)",
            rf"@emulated.{of_amx}({shared}, i64 \1, i64 \2, i64 \3)",
            made,
        )
    functions = made.split("\ndefine ")
    for number, function in enumerate(functions):
        if "%amx.config" in function:
            start = f"\nentry:\n  %amx.tiles = alloca {room}, align 64{_OWN_CONFIG}"
            functions[number] = function.replace("\nentry:", start, 1)
    kernels = (
        *(_load_tile(), _store_tile(), _clear_tile()),
        _multiply_tiles("emulated.tdpbf16ps", "float", "fadd", _pair_of_bfloat16),
        _multiply_tiles("emulated.tdpbusd", "i32", "add", _four_bytes),
    )
    declared = f'@"tiles:config" = external global [{ctypes.sizeof(_CONFIGS)} x i8]\n'
    declared += '@"tiles:thread" = external global ptr\n'
    declared += "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1 immarg)\n"
    declared += "declare float @llvm.fma.f32(float, float, float)\n"
    own = [f.text().replace("define void", "define internal void") for f in kernels]
    return "\n".join(["\ndefine ".join(functions), declared, *own])


def text(level, part=""):
    """The module of a level without instructions that not every processor with AVX2 has."""
    made = module.text(level, part)
    made = _without_tiles(made) if level.tiles else made
    made = re.sub(r"^declare .*@llvm\.x86\.avx512.*\n", "", made, flags=re.MULTILINE)
    made = re.sub(
        r"fptrunc <(\d+) x float> (%\w+) to <\d+ x bfloat>",
        r"call <\1 x bfloat> @emulated.round.\1(<\1 x float> \2)",
        made,
    )
    made = made.replace("@llvm.x86.avx512bf16.dpbf16ps.512", "@emulated.pairs")
    made = made.replace("@llvm.x86.avx512bf16.cvtne2ps2bf16.512", "@emulated.round.two")
    for lanes in (8, 16):
        name = f"@llvm.x86.avx512.vpdpwssd.{32 * lanes}"
        made = made.replace(name, f"@emulated.shorts.{lanes}")
    made = made.replace("@llvm.x86.avx512.vpdpbusd.512", "@emulated.bytes.16")
    made = made.replace("@llvm.x86.avx512.vpdpbusd.256", "@emulated.bytes.8")
    made = made.replace("@llvm.x86.avx512.rcp14.ps.512", "@emulated.inverse")
    made = made.replace("@llvm.x86.avx512.mask.scalef.ps.512", "@emulated.scaled")
    made = made.replace("@llvm.x86.avx512.vpermi2var.hi.512", "@emulated.chosen.words")
    for name in _TWICE:
        made = made.replace(f"@llvm.x86.avx512.{name}", f"@emulated.{name}")
    left = re.findall(r"@llvm\.x86\.avx512[\w.]*", made)
    assert not left, f"not emulated: {sorted(set(left))}"
    made = re.sub(r'"tune-cpu"="\w+"', "", made)
    added = [*map(_twice, _TWICE)] if level.lanes == 16 else []
    added += [_ROUND.replace("{n}", str(n)) for n in (8, 16)]
    added += (
        [_DOT_PAIRS, _ROUND_TWO, _INVERSE, _SCALED, _chosen_words()] if level.lanes == 16 else []
    )
    added += [_dot_shorts(lanes) for lanes in (8, 16)]
    return "\n".join([made, *added, *map(_dot_bytes, (8, 16))])


@functools.cache
def addresses(level, part=""):
    """What `objects.addresses` would return."""
    name, machine = f"emulated_{level}{part}", isa.available()[1]
    here = Path(__file__).read_text(encoding="utf-8")
    key = f"{FORMAT} {generators_digest()} {here} {level} {machine}"
    found = disk_cache.read(name, key)
    if found is None:
        names = [function.name for function in module.functions(level, part)]
        made = llvm_kernel.object_code(text(level, part), llvm_kernel.level_machine(machine))
        image = image_of(made, names)
        disk_cache.write(name, key, image.pack())
    else:
        image = Image.unpack(found)
    return load(image, _OUTER.__getitem__)


def install(patch, *levels):
    """Has levels found on this machine; those that it has stay as they are.

    Args:
        patch: Sets attributes, as pytest's monkeypatch does.
        levels: Which.
    """
    there = isa.available()
    lacking = [level for level in levels if level not in there]
    chain = isa.CHAINS[isa.architecture()]
    found = tuple(level for level in chain if level in there or level in lacking)
    real = llvm_kernel.code_addresses

    def chosen(level, part):
        return addresses(level, part) if level in lacking else real(level, part)

    patch.setattr(isa, "available", lambda: found)
    patch.setattr(llvm_kernel, "code_addresses", chosen)


def install_named(patch):
    """The same for what `VARIABLE` names."""
    names = os.environ.get(VARIABLE, "").replace(",", " ").split()
    if names:
        install(patch, *(EVERY[name] for name in names))
