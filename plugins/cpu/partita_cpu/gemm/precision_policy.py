"""What compiled models may use: instruction sets, arithmetic and threads."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field

from partita.lowering import Array
from partita.properties.hint import ExecutionMode
from partita_cpu.gemm.blocking import Images
from partita_cpu.gemm.packing import rounds_to_infinity
from partita_cpu.gemm.tile_kernels import Arithmetic
from partita_cpu.jit.isa import VARIABLE, architecture, detected
from partita_cpu.llvm.levels import CHAINS, Level
from partita_cpu.machine_model import MachineModel, this_machine
from partita_cpu.properties import CpuProperties

_log = logging.getLogger(__name__)

SPLIT_DEPTH = 256
"""Float32 sums shorter than this are not split into bfloat16 products."""

SPLIT_MANY = 512
"""Nor are sums of just this length for fewer outputs: PicoDet's largest error would be 1.7e-5."""

SPLIT_MEDIUM = 512
"""1x1 convolutions up to this, for fewer outputs than `SPLIT_MANY`, take six where these pay.

With three products the most uncertain letter of PP-OCR's recognition was off by 2.7e-5. Products of
matrices are left alone: transformers normalize what they add up, and end 7e-6 off.
"""

SPLIT_OUTPUTS = 64
"""Nor are products with fewer outputs: splitting the input costs as much as it saves."""

SPLIT_OUTPUTS_OF_WINDOWS = 32
"""The same for convolutions whose windows overlap: what is split is used several times."""

SPLIT_CHANNELS = 3
"""Nor are windows over fewer channels: sound, whose spectrum has logarithms taken of it."""

SPLIT_PIXELS = 8
"""Nor are those of fewer rows: what takes time is reading the weights."""

EXACT_DEPTH = 32
"""Shorter sums are not split into six products, which are as exact as one in float32."""

EXACT_DEPTH_OF_WINDOWS = 48
"""The same for convolutions whose windows overlap: their rows are filled up with zeros."""

EXACT_PIXELS = 64
"""Nor are products of fewer rows: weights have half as many bytes again."""

EXACT_OUTPUTS = 128
"""Nor are those with fewer outputs."""

EXACT_OUTPUTS_OF_WINDOWS = 17
"""The same for convolutions whose windows overlap."""


FLOAT16_LIMIT = 65520.0
"""Numbers from here on are infinite in float16."""


@dataclass(frozen=True)
class Choice:
    """How native kernels compute; emitters find it as ``builder.options``.

    Attributes:
        machine: What kernels are cut for, with the instruction sets that they may use.
        arithmetic: What float32 products are computed in.
        threads: Threads that scratch memory is laid out for.
        shortfall: Why it is not the arithmetic that properties ask for; empty if it is.
    """

    machine: MachineModel
    arithmetic: Arithmetic
    threads: int
    shortfall: str = field(default="", compare=False)
    _seen: dict[tuple[int, int], tuple[Array, bool]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def level(self) -> Level:
        """The level of instruction sets that kernels may use."""
        return self.machine.level

    @property
    def native(self) -> bool:
        """Whether there are native kernels at all."""
        return self.level.native

    @property
    def precision(self) -> str:
        """What INFERENCE_PRECISION_HINT comes to."""
        names = {Arithmetic.BF16: "bf16", Arithmetic.F16: "f16"}
        return names.get(self.arithmetic, "f32")

    def product_arithmetic(
        self, images: Images, weights: Array, computed: bool = False
    ) -> Arithmetic:
        """What one product is computed in; `computed` if its input is so on the way."""
        return self._allowed(self.wanted(images, computed), weights)

    def matrix_arithmetic(self, images: Images, weights: Array) -> Arithmetic:
        """The same for the product of a matrix."""
        return self._allowed(self.wanted_of_matrix(images, weights), weights)

    def wanted(self, images: Images, computed: bool = False) -> Arithmetic:
        """The same where weights can be split, which packing them tells.

        Splitting float32 pays where sums are long and outputs many. Layers with short sums gain
        little, and in trained models most of the error comes from them: they are the first ones.
        """
        if not self.arithmetic.in_bfloat16:
            return Arithmetic.F32 if computed else self.arithmetic
        if computed and self.arithmetic in (Arithmetic.BF16X3, Arithmetic.BF16X6):
            # Nothing must be converted for them, but the error is the same.
            if images.depth < EXACT_DEPTH:
                return Arithmetic.F32
            exactly = images.depth <= SPLIT_DEPTH or _is_medium(images)
            return Arithmetic.BF16X6 if exactly else self.arithmetic
        fewest = SPLIT_OUTPUTS if images.kernel == (1, 1) else SPLIT_OUTPUTS_OF_WINDOWS
        if images.depth == SPLIT_DEPTH:
            fewest = SPLIT_MANY
        outputs = images.outputs // images.groups
        short = images.depth < SPLIT_DEPTH or images.pixels < SPLIT_PIXELS or outputs < fewest
        short |= images.channels // images.groups < SPLIT_CHANNELS or _is_medium(images)
        if self.arithmetic is Arithmetic.BF16X6 or (short and self.arithmetic is Arithmetic.BF16X3):
            return Arithmetic.BF16X6 if _splits_exactly(images) else Arithmetic.F32
        return self.arithmetic

    def wanted_of_matrix(self, images: Images, weights: Array) -> Arithmetic:
        """The same for the product of a matrix: in float16, AMX takes it where sums are long."""
        found = self.wanted(images)
        large = images.depth >= SPLIT_DEPTH and images.outputs >= SPLIT_OUTPUTS
        large &= images.pixels >= SPLIT_PIXELS
        if found is not Arithmetic.F16 or not self.level.tiles or not large:
            return found
        fits = weights.max() < FLOAT16_LIMIT and weights.min() > -FLOAT16_LIMIT
        return Arithmetic.F16_SPLIT if fits else found

    def _allowed(self, wanted: Arithmetic, weights: Array) -> Arithmetic:
        narrow = wanted.in_bfloat16 and self.rounds_to_infinity(weights)
        return Arithmetic.F32 if narrow else wanted

    def rounds_to_infinity(self, weights: Array) -> bool:
        """Whether some weights are not finite in bfloat16; unless it is known, looks at them."""
        if _place(weights) not in self._seen:
            self.note(weights, rounds_to_infinity(weights, self.threads))
        return self._seen[_place(weights)][1]

    def note(self, weights: Array, infinite: bool) -> None:
        """Keeps what packing found out about weights; these too, as their address is their name."""
        self._seen[_place(weights)] = weights, infinite


def _place(weights: Array) -> tuple[int, int]:
    return weights.ctypes.data, weights.size


def _is_medium(images: Images) -> bool:
    """Whether a convolution is neither so long nor of so many outputs that six cost too much."""
    few = images.depth <= SPLIT_MEDIUM and images.outputs // images.groups < SPLIT_MANY
    pointwise = images.kernel == (1, 1) and images.out_height > 1
    return few and pointwise and _splits_exactly(images)


def _splits_exactly(images: Images) -> bool:
    """Whether six products in bfloat16 take less time than one in float32."""
    shortest, fewest = EXACT_DEPTH, EXACT_OUTPUTS
    if images.kernel != (1, 1):
        shortest, fewest = EXACT_DEPTH_OF_WINDOWS, EXACT_OUTPUTS_OF_WINDOWS
    long = images.depth >= shortest and images.pixels >= EXACT_PIXELS
    return long and images.outputs // images.groups >= fewest


def choose(properties: CpuProperties, threads: int) -> Choice:
    """What properties and environment allow on this machine; says once if that is not all.

    Raises:
        PropertyError: PARTITA_CPU_ISA names no level, or PARTITA_CPU_CACHES no sizes.
    """
    machine = this_machine()
    level = machine.level
    note = lacking_bfloat16(properties.INFERENCE_PRECISION_HINT, level, detected())
    if note:
        tell_once(note)
    arithmetic = Arithmetic.F32
    if level.native and properties.INFERENCE_PRECISION_HINT == "f16":
        arithmetic = Arithmetic.F16
    elif level.dots_bfloat16 and properties.INFERENCE_PRECISION_HINT == "bf16":
        arithmetic = Arithmetic.BF16
    elif level.tiles and properties.EXECUTION_MODE_HINT is ExecutionMode.PERFORMANCE:
        arithmetic = Arithmetic.BF16X3
    elif level.tiles:
        arithmetic = Arithmetic.BF16X6
    return Choice(machine, arithmetic, threads, note)


def lacking_bfloat16(wanted: str, level: Level, machine: Level) -> str:
    """Why a level computes f32 where something else is asked for; empty if it does not."""
    able = {"f16": lambda a: a.native, "bf16": lambda a: a.dots_bfloat16}.get(wanted)
    if able is None or able(level):
        return ""
    has = f"kernels of level '{level.name}' have no products in {_NAMES[wanted]}"
    if able(machine):
        cure = f"set {VARIABLE} to '{machine.name}', which this machine has, or leave it out"
    else:
        chain = CHAINS.get(architecture(), ())
        others = [one.name for one in chain if one.native and able(one)]
        cure = f"levels that have them: {', '.join(others) or 'none on this architecture'}"
    return f"INFERENCE_PRECISION_HINT={wanted} computes f32 here: {has}; {cure}."


_NAMES = {"f16": "float16", "bf16": "bfloat16"}


@functools.cache
def tell_once(note: str) -> None:
    """Writes to the log, each note once."""
    _log.warning("%s", note)


def native_choice(options: object) -> Choice | None:
    """A builder's options, if they allow native kernels."""
    return options if isinstance(options, Choice) and options.native else None
