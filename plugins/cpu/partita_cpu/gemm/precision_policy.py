"""The precision policy of a compiled model: the instruction set and arithmetic of its products."""

from __future__ import annotations

import functools
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partita.lowering import Array
from partita.properties.hint import ExecutionMode
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.gemm.deferred_packing import DeferredWeights
from partita_cpu.gemm.error_model import excess
from partita_cpu.gemm.packing.weights import rounds_to_infinity
from partita_cpu.jit.isa import VARIABLE, architecture, detected
from partita_cpu.llvm.images.winograd import POINTS
from partita_cpu.llvm.levels import CHAINS, Level
from partita_cpu.llvm.tiles.dot_unpacked import BLOCK_BITS, longest_unit
from partita_cpu.machine_model import MachineModel, this_machine
from partita_cpu.pair_rate import multiplies_pairs, pair_rate

if TYPE_CHECKING:
    from partita_cpu.properties import CpuProperties

_log = logging.getLogger(__name__)

TOLERANCE = 15.0
"""How many times float32's own error a product may be off that is split into three of bfloat16.

Sums of 256 terms are off a little more: split into three, PicoDet's largest error would be 1.7e-5.
"""

TOLERANCE_OF_MANY = 16.0
"""The same for as many outputs as `MANY_OUTPUTS`: six products would take the longest there."""

TOLERANCE_OF_PIXELS = 11.8
"""The same for 1x1 convolutions of fewer outputs, where six products pay.

With three the most uncertain letter of PP-OCR's recognition was off by 2.7e-5. Products of
matrices are left alone: transformers normalize what they add up, and end 7e-6 off.
"""

STRICT_OUTPUTS = 128
"""With fewer, three products are taken where `TOLERANCE` allows them."""

MANY_OUTPUTS = 512
"""From here on an error is weighed against more time."""

LONG_SUM = 256
"""Products in float16 with shorter sums are left to vectors: AMX would not be faster."""

SPLIT_OUTPUTS = 64
"""Products with fewer outputs stay float32: splitting the input costs as much as it saves."""

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

EXACT_PIXELS_OF_IMAGES = 32
"""The same for convolutions, where only speed goes by it, and not what three products may lose."""

EXACT_PIXELS_OF_THREAD = 32
"""Nor convolutions of fewer for each thread: those share columns, and each splits the same rows.

With eight threads and more, ResNet-50's images of 14 x 14 take less time in float32. Matrices are
laid out once for all threads, and were not measured.
"""

SPLIT_OUTPUTS_OF_THREAD = 32
"""Where each thread has so few rows, three products take fewer outputs of a thread no less time.

Outputs count once for each tap of a window. Sixteen threads with AMX, images of 14 x 14: 1x1
convolutions of 1024 channels and 256 outputs take 130 us split and 123 in float32, with 512
outputs 188 and 265.
"""

EXACT_OUTPUTS = 64
"""Nor are those with fewer outputs."""

EXACT_OUTPUTS_OF_WINDOWS = 17
"""The same for convolutions whose windows overlap."""


SAVED_BY_ROUNDING = 26
"""Products that take as much longer in float32, by vectors of 16, as to round a number does.

Zen 5: 1x1 convolutions of images in float32 take as long in both with 48 channels and 56 outputs,
96 and 40, 256 and 28. Where vectors are computed in halves (Zen 4), multiplying takes twice as long
and rounding does not: 16 channels and 8 outputs take less time in bfloat16, and so do all with
more. See docs/performance-log.md, and `benchmarks/cpu_rounding.py`, which measures both."""

ROUNDED_PIXELS = 1024
"""Products of fewer rows are rounded all the same: little is to be saved, and bfloat16 was asked
for."""

_ROUND_PIXEL = 54
"""A pixel takes as much longer as if it had so many channels more."""

_LANES = 16

FLOAT16_LIMIT = 65520.0
"""Numbers from here on are infinite in float16."""


STORED_ELEMENTS = 1 << 20
"""Of the smallest matrix of 16-bit floats that stays so in memory, if caches hold the model's."""


_EXACT_SIDE = {Arithmetic.F32: 2, Arithmetic.BF16: 0}
"""Results down and across the largest tile of minimal filtering that is as exact as direct sums."""


@dataclass(frozen=True)
class PrecisionPolicy:
    """How native kernels compute; emitters find it as ``builder.options``.

    Attributes:
        machine: What kernels are cut for, with the instruction sets that they may use.
        arithmetic: What float32 products are computed in.
        threads: Threads that scratch memory is laid out for.
        shortfall: Why it is not the arithmetic that properties ask for; empty if it is.
        group: Terms of rows that share a scale where products with weights quantized in blocks
            round rows to int8; 0 where none do.
        group_note: What that comes to; empty if it is not asked for.
        filter_side: Results down and across the largest tile by which convolutions of 3 x 3 taps
            may be filtered minimally; 0: none are. See `partita_cpu.winograd`.
        is_exact: Whether products with weights quantized in blocks lose no more than in float32.
        stored_elements: Of a matrix of 16-bit floats that stays so in memory, at least.
        rounds_matrices: Whether large matrices of weights are rounded to bfloat16 and read so by
            products in float32, which bfloat16 comes to where the processor multiplies it slowly.
        waiting: Weights that wait to be packed until a program is complete.
    """

    machine: MachineModel
    arithmetic: Arithmetic
    threads: int
    shortfall: str = field(default="", compare=False)
    group: int = 0
    group_note: str = field(default="", compare=False)
    filter_side: int = 0
    is_exact: bool = False
    stored_elements: int = STORED_ELEMENTS
    rounds_matrices: bool = False
    _seen: dict[tuple[int, int], tuple[Array, bool]] = field(
        default_factory=dict, compare=False, repr=False
    )
    waiting: DeferredWeights = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "waiting", DeferredWeights(self.threads))

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
        """What INFERENCE_PRECISION_HINT comes to, but for matrices that are rounded."""
        names = {Arithmetic.BF16: "bf16", Arithmetic.F16: "f16"}
        return names.get(self.arithmetic, "f32")

    def product_arithmetic(self, images: Images, weights: Array) -> Arithmetic:
        """What one product is computed in."""
        return self._allowed(self.preferred_arithmetic(images), weights)

    def matrix_arithmetic(self, images: Images, weights: Array) -> Arithmetic:
        """The same for the product of a matrix."""
        return self._allowed(self.preferred_for_matrix(images, weights), weights)

    def preferred_arithmetic(self, images: Images, computed: bool = False) -> Arithmetic:
        """The same where weights can be split, which shows when they are packed.

        `computed` if the input is computed on the way, as that of a product joined with a depthwise
        convolution is.

        Splitting float32 pays where sums are long and outputs many. How exactly it is done goes by
        what float32 itself would lose: see `error_model`. The first layers, whose sums are short,
        gain little and lose the most beside it.
        """
        if images.merged_group_channels:
            return Arithmetic.F32
        if not self.arithmetic.in_bfloat16:
            return Arithmetic.F32 if computed else self.arithmetic
        exact = Arithmetic.F32
        # What is computed on the way need not be converted for splitting.
        if images.depth >= EXACT_DEPTH if computed else self._splits_exactly(images):
            exact = Arithmetic.BF16X6
        if self.arithmetic is Arithmetic.BF16X6:
            return exact
        if self.arithmetic is not Arithmetic.BF16X3:
            return self.arithmetic
        pays = images.depth >= EXACT_DEPTH if computed else _splits(images)
        pays &= not self._has_few_rows(images) or self._has_outputs(images)
        off = excess(Arithmetic.BF16X3, images.depth)
        return Arithmetic.BF16X3 if pays and off <= _tolerance(images, computed) else exact

    def preferred_for_stored(self, images: Images, *, halves: bool) -> Arithmetic:
        """The same for pixels that are kept in 16 bits, or in float32 and rounded on the way.

        Vectors multiply numbers of bfloat16 twice as fast as those of float32, but to round them
        takes longer than that saves where few outputs are computed of each, on most machines.
        """
        found = self.preferred_arithmetic(images)
        if found is not Arithmetic.BF16 or self.level.tiles or halves:
            return found
        if self.machine.halves_vectors or _repays(images):
            return found
        return Arithmetic.F32 if images.pixels >= ROUNDED_PIXELS else found

    def _splits_exactly(self, images: Images) -> bool:
        """Whether six products in bfloat16 take less time than one in float32."""
        fewest = EXACT_PIXELS_OF_IMAGES if images.out_height > 1 else EXACT_PIXELS
        return not self._has_few_rows(images) and _splits_exactly(images, fewest)

    def _has_few_rows(self, images: Images) -> bool:
        """Whether threads share columns of a convolution, so that each splits the same rows."""
        return images.out_height > 1 and images.pixels < EXACT_PIXELS_OF_THREAD * self.threads

    def _has_outputs(self, images: Images) -> bool:
        """Whether each thread uses what it splits often enough."""
        used = images.outputs // images.groups * math.prod(images.kernel)
        return used >= SPLIT_OUTPUTS_OF_THREAD * self.threads

    def preferred_for_matrix(self, images: Images, weights: Array) -> Arithmetic:
        """The same for the product of a matrix: in float16, AMX takes it where sums are long."""
        found = self.preferred_arithmetic(images)
        if found is not Arithmetic.F16 or not self.level.tiles:
            return found
        long = images.depth >= LONG_SUM and images.outputs >= SPLIT_OUTPUTS
        if not long or images.pixels < SPLIT_PIXELS:
            return found
        fits = weights.max() < FLOAT16_LIMIT and weights.min() > -FLOAT16_LIMIT
        return Arithmetic.F16_SPLIT if fits else found

    def _allowed(self, preferred: Arithmetic, weights: Array) -> Arithmetic:
        narrow = preferred.in_bfloat16 and self.rounds_to_infinity(weights)
        return Arithmetic.F32 if narrow else preferred

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


def _tolerance(images: Images, computed: bool) -> float:
    """How many times float32's own error three products in bfloat16 may be off."""
    outputs = images.outputs // images.groups
    many = outputs >= MANY_OUTPUTS
    strict = images.kernel == (1, 1) and outputs >= STRICT_OUTPUTS and images.out_height > 1
    if not many and strict and _splits_exactly(images):
        return TOLERANCE_OF_PIXELS
    return TOLERANCE_OF_MANY if many and not computed else TOLERANCE


def _repays(images: Images) -> bool:
    """Whether a product in bfloat16 saves more time than it takes to round its input."""
    rounded = -(-images.outputs // images.groups // _LANES) * _LANES
    channels = images.channels // images.groups
    return rounded * images.depth > SAVED_BY_ROUNDING * (_ROUND_PIXEL + channels)


def _splits(images: Images) -> bool:
    """Whether three products in bfloat16 take less time than one in float32, and are spared none.

    Those over one or two channels are: spectra have logarithms taken of them.
    """
    fewest = SPLIT_OUTPUTS if images.kernel == (1, 1) else SPLIT_OUTPUTS_OF_WINDOWS
    enough = images.outputs // images.groups >= fewest and images.pixels >= SPLIT_PIXELS
    return enough and images.channels // images.groups >= SPLIT_CHANNELS


def _splits_exactly(images: Images, pixels: int = EXACT_PIXELS) -> bool:
    """Whether six products of so many rows at least take less time for few threads.

    On this depends what may be off, which is the same for any number of threads.
    """
    shortest, fewest = EXACT_DEPTH, EXACT_OUTPUTS
    if images.kernel != (1, 1):
        shortest, fewest = EXACT_DEPTH_OF_WINDOWS, EXACT_OUTPUTS_OF_WINDOWS
    long = images.depth >= shortest and images.pixels >= pixels
    return long and images.outputs // images.groups >= fewest


def choose(properties: CpuProperties, threads: int) -> PrecisionPolicy:
    """What properties and environment allow on this machine; says once if that is not all.

    Raises:
        PropertyError: PARTITA_CPU_ISA names no level, or PARTITA_CPU_CACHES no sizes.
    """
    machine = this_machine()
    level = machine.level
    hint = properties.INFERENCE_PRECISION_HINT
    note = lacking_bfloat16(hint, level, detected())
    if note:
        warn_once(note)
    arithmetic, is_slow = Arithmetic.F32, False
    if level.native and hint == "f16":
        arithmetic = Arithmetic.F16
    elif level.dots_bfloat16 and hint == "bf16":
        is_slow = not multiplies_pairs(level)
        arithmetic = Arithmetic.F32 if is_slow else Arithmetic.BF16
        note = slow_bfloat16(level) if is_slow else ""
    elif level.tiles and properties.EXECUTION_MODE_HINT is ExecutionMode.PERFORMANCE:
        arithmetic = Arithmetic.BF16X3
    elif level.tiles:
        arithmetic = Arithmetic.BF16X6
    group = properties.DYNAMIC_QUANTIZATION_GROUP_SIZE
    group_note = groups_note(group, level)
    if not takes_groups(level):
        if group_note:
            warn_once(group_note)
        group = 0
    fast = properties.EXECUTION_MODE_HINT is ExecutionMode.PERFORMANCE
    plain = arithmetic in (Arithmetic.F32, Arithmetic.BF16) and not on_tiles(level, arithmetic)
    filter_side = 0
    if level.native and plain:
        filter_side = max(POINTS) if fast else _EXACT_SIDE[arithmetic]
    exact = not fast and not is_slow and arithmetic not in (Arithmetic.BF16, Arithmetic.F16)
    return PrecisionPolicy(
        machine,
        arithmetic,
        threads,
        note,
        group,
        group_note,
        filter_side,
        exact,
        rounds_matrices=is_slow,
    )


def takes_groups(level: Level) -> bool:
    """Whether a level multiplies rows of int8 by weights quantized in blocks."""
    return longest_unit(level, min(BLOCK_BITS)) > 0


def groups_note(group: int, level: Level) -> str:
    """What groups of so many terms come to on a level; empty if none are asked for."""
    if not group:
        return ""
    setting = f"DYNAMIC_QUANTIZATION_GROUP_SIZE={group}"
    if not takes_groups(level):
        exact = "products of bfloat16 by AMX" if level.tiles else "its exact ones"
        return f"{setting} is 0 here: level '{level.name}' has no such kernels beside {exact}."
    bits = " and ".join(str(bits) for bits in BLOCK_BITS if longest_unit(level, bits))
    return (
        f"{setting}: products of many rows with weights of {bits} bits in blocks round rows to "
        f"int8 on level '{level.name}'."
    )


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


def slow_bfloat16(level: Level) -> str:
    """What bfloat16 comes to on a processor that multiplies it more slowly than float32."""
    return (
        "INFERENCE_PRECISION_HINT=bf16 multiplies in float32 here, which is faster: in the time of "
        f"a product this processor makes {pair_rate(level):.2f} in bfloat16 (kernels of level "
        f"'{level.name}')."
    )


_NAMES = {"f16": "float16", "bf16": "bfloat16"}


@functools.cache
def warn_once(note: str) -> None:
    """Writes to the log, each note once."""
    _log.warning("%s", note)


def native_policy(options: object) -> PrecisionPolicy | None:
    """A builder's options, if they allow native kernels."""
    return options if isinstance(options, PrecisionPolicy) and options.native else None
