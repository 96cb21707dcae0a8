"""Records matrix products and convolutions with constant weights as steps on native kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from partita.lowering import NO_ACTIVATION, Activation, ActivationCode, Array, Builder, Operand
from partita_cpu.kernels.loop_jit import loop
from partita_cpu.native.choice import Choice, native_choice
from partita_cpu.native.driver import multiply_tiles
from partita_cpu.native.invoke import address, call_narrow
from partita_cpu.native.pack import pack, pack_bias, pack_matrix
from partita_cpu.native.plan import PLAIN, Images, Plan, Source, Storage, plan
from partita_cpu.native.table import NARROW, Arithmetic, tile_kernels

_HALVES = Storage(half_in=True)


@dataclass(frozen=True)
class Scaling:
    """What happens to an input before it is multiplied: ``min(max(x * factor + shift, ..), ..)``.

    Attributes:
        factor: Constant, one number per channel.
        shift: Likewise.
        low: Lower bound.
        high: Upper bound.
    """

    factor: Operand
    shift: Operand
    low: float = -math.inf
    high: float = math.inf


def split_gate(activation: Activation) -> tuple[int, Activation]:
    """1 if the activation is the gate that tile kernels know, and what remains then."""
    if activation.code is ActivationCode.HARD_SWISH:
        return 1, NO_ACTIVATION
    return 0, activation


def bounds_of(activation: Activation | None) -> tuple[float, float, Activation]:
    """Lower bound, upper bound, and the activation that remains to be applied."""
    act = activation or NO_ACTIVATION
    if act.code is ActivationCode.RELU:
        return 0.0, math.inf, NO_ACTIVATION
    if act.code is ActivationCode.CLIP:
        return act.alpha, act.beta, NO_ACTIVATION
    return -math.inf, math.inf, act


def emit_matrix_product(
    b: Builder,
    x: Operand,
    w: Operand,
    bias: Operand | None,
    residual: Operand | None,
    activation: Activation | None,
) -> Operand | None:
    """The product by a constant matrix, finished; ``None`` if native kernels cannot compute it."""
    choice = native_choice(b.options)
    if choice is None or b.folding or w.const is None or w.ndim != 2 or x.ndim < 2:
        return None
    depth, columns = w.shape
    fits = x.dtype == w.dtype == np.float32 and x.shape[-1] == depth and x.size and columns
    if not fits or (bias is not None and (bias.const is None or bias.size != columns)):
        return None
    shape = (*x.shape[:-1], columns)
    if residual is not None and residual.shape != shape:
        return None
    y = b.empty(shape, x.dtype)
    images = Images.matrix(x.size // depth, depth, columns)
    storage = PLAIN
    if choice.product_arithmetic(images, w.const) is Arithmetic.BF16:
        cut = plan(images, choice.level, Arithmetic.BF16, choice.threads, _HALVES)
        if cut.source is Source.DIRECT:
            # Every thread would convert all rows, and so would every product of the same input.
            storage, source = _HALVES, x
            x = b.once(source, "bfloat16", lambda: _narrowed(b, choice, source))
    emit_product(b, choice, images, x, w, bias, residual, y, activation, storage)
    return y


def _narrowed(b: Builder, choice: Choice, x: Operand) -> Operand:
    """The bits of x in bfloat16."""
    y = b.empty(x.shape, np.uint16)
    kernel = int(tile_kernels(choice.level, Arithmetic.BF16)[NARROW])
    b.call(narrow_all, b.flat(x), b.flat(y), kernel, exec_type="reorder")
    return y


@loop
def narrow_all(x: Array, y: Array, kernel: int, tid: int, nt: int) -> None:
    """``y = x`` in bfloat16, by the kernel at an address."""
    first = x.size * tid // nt
    count = x.size * (tid + 1) // nt - first
    if count:
        call_narrow(kernel, (address(x) + 4 * first, count, address(y) + 2 * first, 0, count))


def emit_product(
    b: Builder,
    choice: Choice,
    images: Images,
    x: Operand,
    w: Operand,
    bias: Operand | None,
    residual: Operand | None,
    y: Operand,
    activation: Activation | None,
    storage: Storage = PLAIN,
    scaling: Scaling | None = None,
) -> None:
    """Records ``y = activation(conv(x, w) + bias + residual)``; pixels with channels last.

    Args:
        b: The builder.
        choice: What may be used.
        images: The sizes.
        x: Input pixels.
        w: Constant weights: a matrix (depth, columns), or those of a convolution.
        bias: One constant per output, or ``None``.
        residual: As many elements as y, or ``None``.
        y: Output pixels.
        activation: What comes last.
        storage: How x and y lie in memory.
        scaling: What happens to x first, if `storage` says that it is scaled.
    """
    weights = b.value(w)
    arithmetic = choice.product_arithmetic(images, weights)
    cut = plan(images, choice.level, arithmetic, choice.threads, storage)
    low, high, act = bounds_of(activation)
    gate, act = split_gate(act)

    def packed(array: Array) -> Array:
        lay = pack_matrix if array.ndim == 2 else pack
        return lay(cut, array, choice.threads)

    offset = _bias(b, cut, bias)
    b.call(
        multiply_tiles,
        b.flat(x),
        b.prepack(w, ("tiles", cut.packing), packed),
        offset,
        b.flat(y if residual is None else residual),
        b.flat(y),
        offset if scaling is None else scaling.factor,
        offset if scaling is None else scaling.shift,
        b.empty((choice.threads * cut.thread_bytes,), "uint8"),
        b.constant(cut.offsets),
        b.constant(_kernels(choice, cut)),
        b.constant(cut.table),
        -math.inf if scaling is None else scaling.low,
        math.inf if scaling is None else scaling.high,
        int(residual is not None),
        low,
        high,
        gate,
        int(act.code),
        float(act.alpha),
        float(act.beta),
        work=images.work // (1 if cut.arithmetic is Arithmetic.F32 else 4),
        exec_type=cut.arithmetic.exec_type(choice.level),
    )


def _kernels(choice: Choice, cut: Plan) -> Array:
    kept = cut.storage
    return tile_kernels(choice.level, cut.arithmetic, kept.half_in, kept.half_out, cut.step)


def _bias(b: Builder, cut: Plan, bias: Operand | None) -> Operand:
    if bias is None:
        return b.constant(pack_bias(cut, None))
    return b.prepack(bias, ("bias", cut.columns), lambda array: pack_bias(cut, array))
