"""Products of bytes of 64-bit ARM: its instructions are put in by what they are defined to do."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.loader.elf_image import image_of, load
from partita_cpu.llvm.epilogue import PREFETCH
from partita_cpu.llvm.levels import NEON, NEON_DOTPROD, NEON_I8MM
from partita_cpu.llvm.tiles import dot_int8
from partita_cpu.llvm.tiles.amx_int8 import COLUMNS

NAMES = {
    "llvm.aarch64.neon.sdot.v4i32.v16i8": "sext",
    "llvm.aarch64.neon.usdot.v4i32.v16i8": "zext",
}


def instruction(name, extension):
    """Adds to each lane four products of bytes: those of the first may have no sign."""
    lines = [
        f"define internal <4 x i32> @{name}(<4 x i32> %c, <16 x i8> %a, <16 x i8> %b) {{",
        f" %x = {extension} <16 x i8> %a to <16 x i32>",
        " %y = sext <16 x i8> %b to <16 x i32>",
        " %p = mul <16 x i32> %x, %y",
    ]
    total = "%c"
    for part in range(4):
        places = ", ".join(f"i32 {4 * lane + part}" for lane in range(4))
        lines.append(
            f" %q{part} = shufflevector <16 x i32> %p, <16 x i32> poison, <4 x i32> <{places}>"
        )
        lines.append(f" %t{part} = add <4 x i32> {total}, %q{part}")
        total = f"%t{part}"
    return "\n".join([*lines, f" ret <4 x i32> {total}", "}", ""])


def kernels(level):
    """By rows, compiled for this machine."""
    rows = range(1, dot_int8.most_rows(level) + 1)
    text = "".join(dot_int8.dot_bytes(f"dots_{n}", n, level).text() for n in rows) + PREFETCH
    for name, extension in NAMES.items():
        if f"@{name}(" in text:
            mine = name.rpartition(".neon.")[2].replace(".", "_")
            text = text.replace(name, mine) + instruction(mine, extension)
    found = load(
        image_of(
            llvm_kernel.object_code(text, llvm_kernel.target_machine()), [f"dots_{n}" for n in rows]
        )
    )
    return dict(zip(rows, found.values(), strict=True))


I64, ADDRESS = ctypes.c_int64, ctypes.c_void_p
KERNEL = ctypes.CFUNCTYPE(None, ADDRESS, I64, I64, I64, ADDRESS, I64, ADDRESS, ADDRESS)


@pytest.mark.parametrize("level", [NEON, NEON_DOTPROD, NEON_I8MM], ids=str)
def test_sums_of_bytes_are_exact(level):
    rng = np.random.default_rng(0)
    for rows, address in kernels(level).items():
        for runs, quads in ((1, 1), (1, 3), (1, 16), (3, 5)):
            run = 4 * quads
            depth, pitch = runs * run, run + 8
            for largest in (False, True):
                x = rng.integers(0, 256, (rows, runs, pitch)).astype(np.uint8)
                w = rng.integers(-128, 128, (depth, COLUMNS)).astype(np.int8)
                if largest:
                    x[:], w[:] = 255, -128
                panel = np.ascontiguousarray(w.reshape(-1, 4, COLUMNS).transpose(0, 2, 1))
                tile = np.full((rows, COLUMNS), 7, np.int32)
                wanted = x[:, :, :run].reshape(rows, -1).astype(np.int64) @ w
                weights = panel.ctypes.data
                places = x.ctypes.data, runs * pitch, runs, pitch, weights, quads
                KERNEL(address)(*places, tile.ctypes.data, weights)
                np.testing.assert_array_equal(tile, wanted)
