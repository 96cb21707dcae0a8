"""Levels that this machine lacks: their LLVM IR, with instructions replaced by what they compute.

A kernel's text is the same, but for a few intrinsics whose documented arithmetic is written out
here; LLVM cuts its vectors to the size of this machine's. So everything but LLVM's choice of
instructions is tested: loops, addresses, packing, drivers and what is chosen.

Set `VARIABLE` to names of levels, by commas, to have tests here take them for the machine's.
"""

from __future__ import annotations

import functools
import os
import re

from partita_cpu.jit import disk_cache, isa, llvm_kernel
from partita_cpu.jit.loader.elf_image import Image, image_of, load
from partita_cpu.llvm import module
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


def _dot_bytes(lanes: int) -> str:
    parts = []
    for part in range(4):
        places = ", ".join(f"i32 {4 * lane + part}" for lane in range(lanes))
        kind = f"<{4 * lanes} x i32>"
        mask = f"<{lanes} x i32> <{places}>"
        parts.append(f"  %q{part} = shufflevector {kind} %p, {kind} poison, {mask}")
    text = _DOT_BYTES.replace("{parts}", "\n".join(parts))
    return text.replace("{n}", str(lanes)).replace("{b}", str(4 * lanes))


def text(level, part=""):
    """The module of a level without instructions that not every processor with AVX2 has."""
    made = module.text(level, part)
    made = re.sub(r"^declare .*@llvm\.x86\.avx512.*\n", "", made, flags=re.MULTILINE)
    made = re.sub(
        r"fptrunc <(\d+) x float> (%\w+) to <\d+ x bfloat>",
        r"call <\1 x bfloat> @emulated.round.\1(<\1 x float> \2)",
        made,
    )
    made = made.replace("@llvm.x86.avx512bf16.dpbf16ps.512", "@emulated.pairs")
    made = made.replace("@llvm.x86.avx512.vpdpbusd.512", "@emulated.bytes.16")
    made = made.replace("@llvm.x86.avx512.vpdpbusd.256", "@emulated.bytes.8")
    for name in _TWICE:
        made = made.replace(f"@llvm.x86.avx512.{name}", f"@emulated.{name}")
    left = re.findall(r"@llvm\.x86\.avx512[\w.]*", made)
    assert not left, f"not emulated: {sorted(set(left))}"
    made = re.sub(r'"tune-cpu"="\w+"', "", made)
    added = [*map(_twice, _TWICE)] if level.lanes == 16 else []
    added += [_ROUND.replace("{n}", str(n)) for n in (8, 16)]
    added += [_DOT_PAIRS] if level.lanes == 16 else []
    return "\n".join([made, *added, *map(_dot_bytes, (8, 16))])


@functools.cache
def addresses(level, part=""):
    """What `objects.addresses` would return."""
    names = [function.name for function in module.functions(level, part)]
    made, name = text(level, part), f"emulated_{level}{part}"
    found = disk_cache.read(name, made)
    if found is None:
        machine = llvm_kernel.level_machine(isa.available()[1])
        image = image_of(llvm_kernel.object_code(made, machine), names)
        disk_cache.write(name, made, image.pack())
    else:
        image = Image.unpack(found)
    return load(image)


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
