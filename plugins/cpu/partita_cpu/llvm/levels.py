"""Levels of instruction sets that kernels are generated for: one record each, in one table.

What depends on the processor reads the record of the level; nothing compares levels by name.
"""

from __future__ import annotations

from dataclasses import dataclass

X86_64 = "x86_64"
AARCH64 = "aarch64"
ANY = ""
"""Of the level that needs nothing: numba's kernels."""


@dataclass(frozen=True)
class Level:
    """What the kernels of a level may use, and how large their tiles are.

    Attributes:
        name: In properties, profiles and the environment.
        architecture: `X86_64`, `AARCH64` or `ANY`.
        features: What kernels are compiled for, by LLVM's names; nothing else of the processor's
            is used.
        processor: Which one LLVM schedules instructions for.
        vectors: What products in vectors are called in profiles.
        lanes: Floats of a vector; tiles have two vectors of columns.
        rows: Most rows of a float32 tile: so many that all sums lie in registers.
        masks_halves: Whether vectors of 16-bit numbers are loaded and stored in part, so that
            images can stay in 16 bits between steps.
        dots_bfloat16: Whether an instruction multiplies pairs of bfloat16 and adds up in float32.
        dots_bytes: Whether one multiplies quads of uint8 and int8 and adds up in int32.
        tiles: Whether there are tile registers, as AMX has them, for both.
    """

    name: str
    architecture: str
    features: frozenset[str]
    processor: str
    vectors: str
    lanes: int
    rows: int
    masks_halves: bool = False
    dots_bfloat16: bool = False
    dots_bytes: bool = False
    tiles: bool = False

    @property
    def native(self) -> bool:
        """Whether kernels are written for it; numba's serve otherwise."""
        return self.architecture != ANY

    @property
    def keeps_bfloat16(self) -> bool:
        """Whether images can stay in bfloat16 between steps; else products alone are in it."""
        return self.dots_bfloat16 and self.masks_halves

    def __str__(self) -> str:
        return self.name


_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
_AVX512_VNNI = _AVX512 | {"avx512vnni"}
_AVX512_BF16 = _AVX512_VNNI | {"avx512bf16"}
_AMX = _AVX512_BF16 | {"amx-tile", "amx-bf16", "amx-int8"}
_NEON = frozenset({"neon"})

# With the scheduling models of older processors LLVM spills a third of the sums of the largest
# tile of AVX-512.
_WIDE = "sapphirerapids"

PORTABLE = Level("portable", ANY, frozenset(), "", "", 0, 0)

AVX2 = Level("avx2", X86_64, _AVX2, "haswell", "avx2", 8, 6)
AVX2_VNNI = Level(
    "avx2_vnni", X86_64, _AVX2 | {"avxvnni"}, "haswell", "avx2", 8, 6, dots_bytes=True
)
AVX512 = Level("avx512", X86_64, _AVX512, _WIDE, "avx512", 16, 14, masks_halves=True)
AVX512_VNNI = Level(
    "avx512_vnni", X86_64, _AVX512_VNNI, _WIDE, "avx512", 16, 14, True, dots_bytes=True
)
AVX512_BF16 = Level("avx512_bf16", X86_64, _AVX512_BF16, _WIDE, "avx512", 16, 14, True, True, True)
AMX = Level("amx", X86_64, _AMX, _WIDE, "avx512", 16, 14, True, True, True, tiles=True)

NEON = Level("neon", AARCH64, _NEON, "neoverse-n1", "neon", 4, 8)
NEON_DOTPROD = Level(
    "neon_dotprod",
    AARCH64,
    _NEON | {"dotprod"},
    "neoverse-n1",
    "neon",
    4,
    8,
    dots_bytes=True,
)
NEON_I8MM = Level(
    "neon_i8mm",
    AARCH64,
    _NEON | {"dotprod", "i8mm"},
    "neoverse-v1",
    "neon",
    4,
    8,
    dots_bytes=True,
)
NEON_BF16 = Level(
    "neon_bf16",
    AARCH64,
    _NEON | {"dotprod", "i8mm", "bf16"},
    "neoverse-v1",
    "neon",
    4,
    8,
    dots_bfloat16=True,
    dots_bytes=True,
)

CHAINS: dict[str, tuple[Level, ...]] = {
    X86_64: (PORTABLE, AVX2, AVX2_VNNI, AVX512, AVX512_VNNI, AVX512_BF16, AMX),
    AARCH64: (PORTABLE, NEON, NEON_DOTPROD, NEON_I8MM, NEON_BF16),
}
"""By architecture its levels, the more able ones later.

A later one need not have all that those before it have: processors with AVX-512 of the first years
lack the byte products of `AVX2_VNNI`, which are for those without AVX-512.
"""

EVERY: dict[str, Level] = {level.name: level for chain in CHAINS.values() for level in chain}
"""All levels by name."""
