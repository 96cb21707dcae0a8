"""A depthwise convolution and the 1x1 convolution that alone reads it, with channels last."""

from __future__ import annotations

import math

from partita.lowering import Activation, Builder, Node, Operand
from partita.lowering.windows import resolve
from partita_cpu.kernels.channels_last import conv
from partita_cpu.kernels.channels_last_depthwise import weighing
from partita_cpu.kernels.channels_last_place import DOMAIN, HALF, STORED, Place, choice_of
from partita_cpu.kernels.movement import expanded
from partita_cpu.kernels.table import kernel
from partita_cpu.native.fields import BY_COLUMNS
from partita_cpu.native.plan import Images, Storage, plan
from partita_cpu.native.product import bounds_of, product_of, split_gate
from partita_cpu.native.separable import weigh_and_multiply
from partita_cpu.native.table import Arithmetic
from partita_cpu.native.weighing import takes


@kernel("SeparableConv", domain=DOMAIN, dtypes=STORED)
def separable_conv(
    b: Builder,
    node: Node,
    x: Operand,
    taps: Operand,
    offset: Operand | None,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    target: Operand | None = None,
) -> Operand:
    """The nodes in attributes ``first`` and ``second``, as one step where that is better."""
    first, second = node.attrs["first"], node.attrs["second"]
    window = resolve(first, x.shape[1:3], taps.shape[2:])
    source = Place.of(first, x, None)
    place = Place(x, 0, source.channels, target, second.attrs.get("into", 0))
    shape = (x.shape[0], *window.out_shape, w.shape[0])
    choice = choice_of(b)
    down, across = window.out[1:]
    sizes = x.shape[0], down, across, source.channels, w.shape[0]
    images = Images(*sizes, out_height=down, out_width=across)
    arithmetic = choice.product_arithmetic(images, b.value(w, anywhere=True), computed=True)
    half_out = bool(second.attrs.get("half"))
    y_pitch = w.shape[0] if target is None else target.shape[3]
    storage = Storage(False, half_out, y_pitch=y_pitch, y_first=place.into, computed=True)
    cut = plan(images, choice.level, arithmetic, choice.threads, storage)
    narrow = arithmetic is Arithmetic.BF16
    apart = (
        not math.prod(shape)
        or not takes(window)
        or choice.arithmetic is Arithmetic.F16
        or cut.table[BY_COLUMNS]
        or (x.dtype == HALF) != narrow
        or bool(first.attrs.get("half")) != narrow
    )
    if apart:
        between = conv(b, first, x, taps, offset)
        return conv(b, second, between, w, bias, residual, target=target)
    y = place.output(b, shape, half_out)
    if residual is not None:
        residual = expanded(b, residual, y.shape)
    image = weighing(b, window, source, taps, offset, cut.padded)
    product = product_of(b, choice, cut, w, bias, residual, y, second.attrs.get("activation"))
    b.call(
        weigh_and_multiply,
        *image,
        *_bounds(first.attrs.get("activation")),
        *product.weights,
        *product.memory,
        *product.end,
        work=product.work + images.pixels * images.channels * window.taps,
        exec_type=product.exec_type,
    )
    return y


def _bounds(activation: Activation | None) -> tuple[float, float, int]:
    low, high, act = bounds_of(activation)
    return low, high, split_gate(act)[0]
