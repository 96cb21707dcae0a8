"""Conv and ConvTranspose, plain and fused: shape logic, then a choice of kernel, then its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import (
    NO_ACTIVATION,
    Activation,
    ActivationCode,
    Array,
    Builder,
    Node,
    Operand,
)
from partita.lowering.geometry.reached_taps import without_padding
from partita.lowering.geometry.windows import Window, resolve, resolve_transposed
from partita_cpu.kernels.conv.depthwise import (
    MAX_THREADS,
    DepthwiseTaps,
    depthwise,
    scratch_elements,
)
from partita_cpu.kernels.conv.depthwise_transposed import (
    TransposedTaps,
    depthwise_transposed,
    line_elements,
)
from partita_cpu.kernels.conv.im2col import col2im, im2col
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.epilogue import BIAS_PER_ROW, finish
from partita_cpu.kernels.movement.rearrange import expanded, ints
from partita_cpu.kernels.operator_table import ALL_FLOATS, INT64, kernel
from partita_cpu.scalar.activations import ActivationFields
from partita_cpu.threads import openblas

COLUMN_BYTES = 4 << 20
"""Size at which columns are made in pieces, so that they stay in the cache until they are used."""

_MICROSOFT_ACTIVATIONS = {
    "Relu": ActivationCode.RELU,
    "Tanh": ActivationCode.TANH,
    "Sigmoid": ActivationCode.SIGMOID,
    "LeakyRelu": ActivationCode.LEAKY_RELU,
    "Clip": ActivationCode.CLIP,
    "HardSigmoid": ActivationCode.HARD_SIGMOID,
    "HardSwish": ActivationCode.HARD_SWISH,
}


@dataclass(frozen=True)
class Convolution:
    """The sizes of one convolution.

    Attributes:
        batch: Images.
        channels: Of the input.
        outputs: Channels of the output.
        groups: Each connects ``channels / groups`` with ``outputs / groups``.
        window: How it slides.
    """

    batch: int
    channels: int
    outputs: int
    groups: int
    window: Window

    @property
    def work(self) -> int:
        """Multiplications."""
        per_output = self.channels // self.groups * self.window.taps
        return self.batch * self.outputs * self.window.pixels * per_output

    @property
    def is_depthwise(self) -> bool:
        """Whether every output channel reads one input channel of several."""
        return 1 < self.groups == self.channels

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        return (self.batch, self.outputs, *self.window.out_shape)


def _check(node: Node) -> Reason | None:
    activation = node.attrs.get("activation")
    if isinstance(activation, str) and activation and activation not in _MICROSOFT_ACTIVATIONS:
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"activation is '{activation}'")
    for position, name in ((0, "input"), (1, "weights")):
        value = node.input(position)
        if value is not None and value.shape is not None and not 3 <= len(value.shape) <= 5:
            return Reason(
                ReasonCode.UNSUPPORTED_SHAPE,
                f"{name} of {len(value.shape)} dimensions; takes 3 to 5",
            )
    return None


@kernel("Conv", dtypes=ALL_FLOATS, check=_check)
@kernel("Conv", domain="partita", dtypes=ALL_FLOATS, check=_check)
@kernel("FusedConv", domain="com.microsoft", dtypes=ALL_FLOATS, check=_check)
@through_float32
def conv(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Convolution of 1 to 3 spatial dimensions, then bias, residual and activation."""
    window, w = without_padding(b, resolve(node, x.shape[2:], w.shape[2:]), w)
    groups = node.attrs.get("group", 1)
    c = Convolution(x.shape[0], x.shape[1], w.shape[0], groups, window)
    y = b.empty(c.out_shape, x.dtype)
    if not y.size:
        return y
    if residual is not None:
        residual = expanded(b, residual, y.shape)
    activation = activation_of(node)
    if c.is_depthwise and window.is_flat:
        # This kernel finishes its own result, unless a residual comes before the activation.
        _emit_depthwise(b, c, x, w, y, bias, activation if residual is None else None)
        if residual is not None:
            finish(b, y, window.pixels, None, 0, residual, activation)
        return y
    if window.is_pointwise:
        _emit_pointwise(b, c, x, w, y)
    else:
        _emit_columns(b, c, x, w, y)
    finish(b, y, window.pixels, bias, BIAS_PER_ROW, residual, activation)
    return y


def _emit_depthwise(
    b: Builder,
    c: Convolution,
    x: Operand,
    w: Operand,
    y: Operand,
    bias: Operand | None,
    activation: Activation | None,
) -> None:
    """Records a depthwise convolution without columns.

    Args:
        b: The builder.
        c: Sizes.
        x: The image.
        w: Weights.
        y: The result.
        bias: A term for each channel.
        activation: What is done with sums.
    """
    act = activation or NO_ACTIVATION
    b.call(
        depthwise,
        b.flat(x),
        DepthwiseTaps(
            b.flat(w),
            b.flat(w if bias is None else bias),
            b.constant(c.window.table),
            int(bias is not None),
            c.channels,
            c.outputs // c.channels,
        ),
        b.flat(y),
        b.empty((MAX_THREADS * scratch_elements(c.window),), y.dtype),
        ActivationFields(int(act.code), float(act.alpha), float(act.beta)),
        work=c.work,
    )


def _emit_pointwise(b: Builder, c: Convolution, x: Operand, w: Operand, y: Operand) -> None:
    """A 1x1 convolution is one matrix product per image and group, on the tensors as they are."""
    g, pixels = c.groups, c.window.pixels
    b.call_numpy(
        multiply,
        b.view(w, (g, c.outputs // g, c.channels // g)),
        b.view(x, (c.batch, g, c.channels // g, pixels)),
        b.view(y, (c.batch, g, c.outputs // g, pixels)),
        work=c.work,
        exec_type="blas",
    )


def _emit_columns(b: Builder, c: Convolution, x: Operand, w: Operand, y: Operand) -> None:
    """Windows become columns, piece by piece, and each piece one matrix product."""
    g, width = c.groups, c.window.out[2]
    depth = c.channels // g * c.window.taps
    weights = b.view(w, (g, c.outputs // g, depth))
    out = b.view(y, (c.batch, g, c.outputs // g, c.window.pixels))
    table = b.constant(c.window.table)
    for first, images, row, rows in pieces(c, x.dtype.itemsize):
        columns = b.empty((images, g, depth, rows * width), x.dtype)
        b.call(im2col, b.flat(x), b.flat(columns), table, c.channels, first, images, row, rows)
        b.call_numpy(
            multiply_piece,
            weights,
            columns,
            out,
            first,
            row * width,
            work=c.work // c.batch * images,
            exec_type="blas",
        )


def pieces(c: Convolution, itemsize: int) -> Iterator[tuple[int, int, int, int]]:
    """(first image, images, first row, rows) of the pieces in which columns are made."""
    rows = c.window.out[0] * c.window.out[1]
    row_bytes = c.channels * c.window.taps * c.window.out[2] * itemsize
    images = COLUMN_BYTES // max(1, rows * row_bytes)
    if images >= c.batch:
        yield 0, c.batch, 0, rows
        return
    if images >= 1:
        for first in range(0, c.batch, images):
            yield first, min(images, c.batch - first), 0, rows
        return
    count = math.ceil(rows / max(1, COLUMN_BYTES // row_bytes))
    each = math.ceil(rows / count)
    for image in range(c.batch):
        for row in range(0, rows, each):
            yield image, 1, row, min(each, rows - row)


def multiply(a: Array, b: Array, out: Array) -> None:
    """Matrix product into `out`."""
    openblas.matmul(a, b, out=out)


def multiply_piece(w: Array, columns: Array, y: Array, image: int, pixel: int) -> None:
    """Matrix product into the pixels of `y` that the columns are for."""
    images, _, _, pixels = columns.shape
    openblas.matmul(w, columns, out=y[image : image + images, :, :, pixel : pixel + pixels])


@kernel("ConvTranspose", dtypes=ALL_FLOATS, check=_check)
@kernel("ConvTranspose", domain="partita", dtypes=ALL_FLOATS, check=_check)
@through_float32
def conv_transpose(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Each input pixel adds its multiple of the weights to the output."""
    groups = node.attrs.get("group", 1)
    window = resolve_transposed(node, x.shape[2:], w.shape[2:])
    c = Convolution(x.shape[0], x.shape[1], w.shape[1] * groups, groups, window)
    y = b.empty((c.batch, c.outputs, *window.size[3 - window.rank :]), x.dtype)
    if not y.size:
        return y
    if c.is_depthwise:
        _emit_depthwise_transposed(b, c, x, w, y)
    else:
        _emit_spread(b, c, x, w, y)
    if residual is not None:
        residual = expanded(b, residual, y.shape)
    finish(b, y, window.in_pixels, bias, BIAS_PER_ROW, residual, activation_of(node))
    return y


def _emit_depthwise_transposed(
    b: Builder, c: Convolution, x: Operand, w: Operand, y: Operand
) -> None:
    taps = TransposedTaps(b.flat(w), b.constant(c.window.table), c.outputs // c.channels)
    memory = b.empty((MAX_THREADS * line_elements(c.window),), y.dtype)
    b.call(depthwise_transposed, b.flat(x), taps, b.flat(y), memory, work=c.work)


def _emit_spread(b: Builder, c: Convolution, x: Operand, w: Operand, y: Operand) -> None:
    """One matrix product makes the columns, `col2im` adds them up."""
    g, pixels, taps = c.groups, c.window.pixels, c.window.taps
    inputs, outputs = c.channels // g, c.outputs // g
    weights = b.view(w, (g, inputs, outputs * taps))
    source = b.view(x, (c.batch, g, inputs, pixels))
    table = b.constant(c.window.table)
    plane_bytes = taps * pixels * y.dtype.itemsize
    whole = c.batch * c.outputs * plane_bytes <= COLUMN_BYTES
    each = outputs if whole else min(outputs, max(1, COLUMN_BYTES // max(1, plane_bytes)))
    for n in [-1] if whole else range(c.batch):
        for group in [-1] if whole else range(g):
            for first in range(0, outputs, each):
                count = min(each, outputs - first)
                planes = c.batch * c.outputs if whole else count
                columns = b.empty((planes * taps, pixels), y.dtype)
                b.call_numpy(
                    _multiply_transposed,
                    weights,
                    source,
                    columns,
                    n,
                    group,
                    first * taps,
                    count * taps,
                    work=inputs * planes * taps * pixels,
                    exec_type="blas",
                )
                plane = 0 if whole else (n * g + group) * outputs + first
                b.call(col2im, b.flat(columns), b.flat(y), table, plane, planes)


def _multiply_transposed(
    w: Array, x: Array, columns: Array, n: int, group: int, first: int, count: int
) -> None:
    """Columns of one image and group, or of all if `n` is -1.

    Args:
        w: Weights (group, channel, output x tap).
        x: The image (N, group, channel, pixel).
        columns: Gets the products.
        n: The image's number.
        group: The group of channels.
        first: The first column of the weights.
        count: How many columns.
    """
    if n < 0:
        shape = (*x.shape[:2], count, x.shape[3])
        openblas.matmul(w.transpose(0, 2, 1), x, out=columns.reshape(shape))
    else:
        openblas.matmul(w[group, :, first : first + count].T, x[n, group], out=columns)


@kernel("Col2Im", dtypes={0: ALL_FLOATS, 1: INT64, 2: INT64}, since=18)
@through_float32
def col2im_(b: Builder, node: Node, x: Operand, image: Operand, block: Operand) -> Operand:
    """Columns of windows added up to images of up to three dimensions."""
    window = resolve(node, ints(b, image), ints(b, block))
    if min(window.kernel) < 1 or x.shape[1] % window.taps or x.shape[2] != window.pixels:
        raise OperandError(
            f"Operation '{node.name}' (Col2Im): columns of shape {list(x.shape)} are not those of "
            f"an image of {ints(b, image)} in blocks of {ints(b, block)}."
        )
    channels = x.shape[1] // window.taps
    y = b.empty((x.shape[0], channels, *window.size[3 - window.rank :]), x.dtype)
    if y.size:
        table = b.constant(window.table)
        b.call(col2im, b.flat(x), b.flat(y), table, 0, x.shape[0] * channels)
    return y


def activation_of(node: Node) -> Activation | None:
    """The activation that a fused node ends with, ours or onnxruntime's spelling."""
    given = node.attrs.get("activation")
    if not isinstance(given, str):
        return given
    code = _MICROSOFT_ACTIVATIONS.get(given)
    if code is None:
        return None
    params = [*node.attrs.get("activation_params", ()), 0.0, 0.0]
    return Activation(code, params[0], params[1])
