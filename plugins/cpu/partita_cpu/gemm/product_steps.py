"""Records matrix products and convolutions with constant weights as steps on native kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import ml_dtypes
import numpy as np

from partita.lowering import Activation, ActivationCode, Array, Builder, Operand
from partita.lowering.fusion.stored_weights import graphs_of
from partita.lowering.graph import Graph
from partita.lowering.shapes.symbolic_size import holds_sizes
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.padded_rows import note_padded, padded_pitch, padded_rows
from partita_cpu.gemm.blocking.plan import Plan, plan
from partita_cpu.gemm.blocking.problem import PLAIN, Images, Storage
from partita_cpu.gemm.fused_activation import epilogue_of
from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles
from partita_cpu.gemm.packed_lhs.packed_lhs_table import (
    MatrixSizes,
    packed_lhs_size,
    packed_lhs_table,
    thread_bytes,
)
from partita_cpu.gemm.packed_lhs.product import multiply_packed
from partita_cpu.gemm.packed_lhs.tiled_operands import note_tiles, packed_lhs
from partita_cpu.gemm.packing.weights import pack, pack_bias, packed_size
from partita_cpu.gemm.precision_policy import STORED_ELEMENTS, PrecisionPolicy, native_policy
from partita_cpu.gemm.product_records import (
    Epilogue,
    InputScaling,
    ProductArrays,
    TileContext,
)
from partita_cpu.gemm.tile_fields import PANEL_UNITS
from partita_cpu.gemm.tile_kernels import packed_lhs_kernels, tile_kernels
from partita_cpu.threads.claims import LINE
from partita_cpu.threads.thread_memory import thread_memory

BY_STORED = {
    np.dtype(np.float16): Arithmetic.F32_BY_F16,
    np.dtype(ml_dtypes.bfloat16): Arithmetic.F32_BY_BF16,
}
"""What products by matrices of these types, which stay so in memory, are computed in."""

_READERS = frozenset({"Cast", "Gemm", "MatMul", "Transpose"})
"""What reads matrices of products, before anything is folded; an embedding is read by rows."""

FEW_ELEMENTS = 1 << 16
"""Of the smallest matrix that stays in 16 bits if caches do not hold all of the model's."""

LAID_PIXELS = 256
"""Larger images are not laid out by a step of their own.

No cache decides that: with 8 tiles of 32 rows or fewer, threads share columns and not rows, and
each would lay out the whole image for itself.
"""

LAID_DEPTH = 128
"""Nor are images of fewer channels: a step of its own takes longer than it saves.

MobileNetV2, whose images of 14 x 14 have 64 and 96 where they are expanded, takes 5 % less so.
"""


ENOUGH_ROWS = 64
"""Rows of a panel for which weights come soon enough, if they come from beyond the second-level
cache. Of 3,072 terms 42 rows fit half of 1 MiB, and a part of 2 rows is left of 128.
"""

WIDENED_ROWS = 128
"""The same where weights of 16 bits are widened for each panel."""

UNEVEN_SHARES = 1.25
"""Times as long as by even shares: a line whose threads take longer is cut between its pixels."""

FEWEST_TERMS = 128
"""Of a part: sums that are put down and taken up again more often cost more than they save."""


class TermPart(NamedTuple):
    """One of several equal parts of the terms of all sums.

    Attributes:
        number: Which one.
        parts: How many there are.
    """

    number: int
    parts: int

    def of(self, w: Array) -> Array:
        """Its weights: of a matrix (terms, columns), or (outputs, channels, down, across)."""
        axis = 0 if w.ndim == 2 else 1
        count = w.shape[axis] // self.parts
        within = slice(self.number * count, (self.number + 1) * count)
        return w[within] if axis == 0 else w[:, within]


class LinearOp(NamedTuple):
    """A linear operator with constant weights: ``y = activation(x * w + bias + residual)``.

    Attributes:
        w: Constant weights: a matrix (depth, columns), or those of a convolution.
        bias: One constant per output, or ``None``.
        residual: As many elements as y, or ``None``.
        activation: What comes last.
        part: Which of the terms are added up; ``None``: all.
    """

    w: Operand
    bias: Operand | None = None
    residual: Operand | None = None
    activation: Activation | None = None
    part: TermPart | None = None


class LinearStep(NamedTuple):
    """A matrix product or convolution as a program's step; pixels with channels last.

    Attributes:
        images: The sizes.
        x: Input pixels.
        op: What is computed of them.
        y: Output pixels.
        storage: How x and y lie in memory.
        scaling: What happens to x first, if `storage` says that it is scaled.
    """

    images: Images
    x: Operand
    op: LinearOp
    y: Operand
    storage: Storage = PLAIN
    scaling: InputScaling | None = None


def reads_stored(policy: PrecisionPolicy, weights: Array) -> bool:
    """Whether products in float32 read a matrix of 16-bit floats as it is, instead of a copy.

    Nothing is rounded so, and half as many bytes take half as long where few rows are multiplied.
    Those of many rows that AMX computes have the matrix in their parts of bfloat16.

    Args:
        policy: How the program computes.
        weights: The matrix (terms, columns).
    """
    able = policy.native and policy.precision == "f32" and weights.dtype in BY_STORED
    return able and weights.ndim == 2 and weights.size >= policy.stored_elements


def stored_elements(policy: PrecisionPolicy, graph: Graph) -> int:
    """Of a graph's matrices of 16-bit floats that stay so in memory, elements of the smallest.

    Only memory repays half as many bytes: smaller matrices become float32 where the caches of all
    cores hold all of them, so that a run finds them there. Matrices of float32 count where they are
    rounded.
    """
    types = {*BY_STORED, np.dtype(np.float32)} if policy.rounds_matrices else {*BY_STORED}
    matrices = {
        id(value.const): value.const.size
        for one in graphs_of(graph)
        for node in one.nodes
        if node.kind in _READERS
        for value in node.inputs
        if value is not None and value.const is not None and value.const.ndim == 2
        if value.const.dtype in types
    }
    caches = policy.machine.caches
    held = policy.machine.cores * max(caches.l2, caches.l3)
    return FEW_ELEMENTS if 4 * sum(matrices.values()) > held else STORED_ELEMENTS


def stays_stored(b: Builder, w: Operand) -> bool:
    """The same of an operand."""
    policy = native_policy(b.options)
    return policy is not None and w.const is not None and reads_stored(policy, w.const)


def emit_matrix_product(b: Builder, x: Operand, op: LinearOp) -> Operand | None:
    """The product by a constant matrix, finished; ``None`` if native kernels cannot compute it."""
    policy, w, bias = native_policy(b.options), op.w, op.bias
    if policy is None or b.folding or w.const is None or w.ndim != 2 or x.ndim < 2:
        return None
    depth, columns = w.shape
    known = w.dtype == np.float32 or w.dtype in BY_STORED
    fits = known and x.dtype == np.float32 and x.shape[-1] == depth and x.size and columns
    if not fits or (bias is not None and (bias.const is None or bias.size != columns)):
        return None
    shape = (*x.shape[:-1], columns)
    if op.residual is not None and op.residual.shape != shape:
        return None
    y = b.empty(shape, x.dtype)
    images = Images.matrix(x.size // depth, depth, columns)
    wanted = policy.preferred_for_matrix(images, w.const)
    if on_tiles(policy.level, wanted):
        cut, weights = fitting(b, policy, plan(images, policy.machine, wanted, policy.threads), w)
        if cut.arithmetic.in_bfloat16:
            _emit_packed(b, policy, cut, x, op._replace(w=weights), y)
            return y
    step = _with_gaps(b, policy, LinearStep(images, x, op, y))
    parts = depth_parts(policy, images, step.storage, BY_STORED.get(w.dtype, Arithmetic.F32))
    if parts > 1:
        emit_in_parts(b, policy, step, parts)
    else:
        emit_product(b, policy, step)
    return y


def _with_gaps(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> LinearStep:
    """A product of matrices that reads or writes one with gaps, where that is noted or marked."""
    x, y, storage = padded_rows(b, step.x), step.y, step.storage
    if x is not None:
        storage = replace(storage, x_pitch=x.shape[1])
    if b.node.attrs.get("gaps"):
        pitch = padded_pitch(policy.machine, step.images.outputs)
        y = b.empty((step.images.pixels, pitch), y.dtype)
        note_padded(b, step.y, y)
        storage = replace(storage, y_pitch=pitch)
    return step._replace(x=step.x if x is None else x, y=y, storage=storage)


def depth_parts(
    policy: PrecisionPolicy,
    images: Images,
    storage: Storage = PLAIN,
    arithmetic: Arithmetic = Arithmetic.F32,
) -> int:
    """How many parts of its terms let enough rows of a matrix share a panel, or 1.

    Weights that no cache holds come once for each panel, and those of 16 bits are widened so often.

    Args:
        policy: How the program computes.
        images: Sizes of the product.
        storage: How its input lies.
        arithmetic: What it is computed in, where it is computed in float32.
    """
    if policy.arithmetic is not Arithmetic.F32 or images.symbolic:
        return 1
    machine, depth = policy.machine, images.channels
    enough = ENOUGH_ROWS if arithmetic is Arithmetic.F32 else WIDENED_ROWS
    for parts in equal_parts(depth):
        # For one thread: what is computed is the same for any number of them.
        part = replace(images, channels=depth // parts)
        cut = plan(part, machine, arithmetic, 1, Storage(x_pitch=storage.x_pitch or depth))
        if parts == 1 and 2 * packed_size(cut) <= machine.l2_bytes(1):
            return 1
        if cut.table[PANEL_UNITS] >= min(enough, images.pixels):
            return parts
    return 1


def equal_parts(terms: int) -> Iterator[int]:
    """Into how many parts of whole cache lines terms can be cut."""
    for parts in range(1, terms // FEWEST_TERMS + 1):
        if terms % (16 * parts) == 0 or parts == 1:
            yield parts


def emit_in_parts(b: Builder, policy: PrecisionPolicy, step: LinearStep, parts: int) -> None:
    """Records what `emit_product` would, by parts of the terms.

    Each adds to what those before it left in the result. Matrices of 16 bits are packed whole, as
    they are for few rows.
    """
    images, op, storage = step.images, step.op, step.storage
    stored = op.w.dtype in BY_STORED
    count = images.channels // parts
    kept = replace(storage, x_pitch=storage.x_pitch or images.channels)
    for n in range(parts):
        first, last = n == 0, n == parts - 1
        part = LinearOp(
            op.w,
            op.bias if first else None,
            op.residual if first else step.y,
            op.activation if last else None,
            None if stored else TermPart(n, parts),
        )
        where = replace(kept, x_first=kept.x_first + n * count)
        if stored:
            where = replace(where, w_part=n, w_parts=parts)
        some = replace(images, channels=count)
        emit_product(b, policy, step._replace(images=some, op=part, storage=where))


def _is_matrix(images: Images, arithmetic: Arithmetic, storage: Storage) -> bool:
    """Whether a convolution is a product of float32 matrices as they lie that are split."""
    plain = not (storage.half_in or storage.half_out or storage.scaled or storage.computed)
    split = arithmetic.planes > 1 and images.groups == 1
    return split and plain and images.is_pointwise and storage.holds_only(images)


def _emit_packed(
    b: Builder, policy: PrecisionPolicy, cut: Plan, x: Operand, op: LinearOp, y: Operand
) -> None:
    """The product of a matrix that is laid out as tiles first, unless it is so already.

    The operator's weights are packed.

    Args:
        b: The builder.
        policy: Level, machine and threads.
        cut: How the product is cut.
        x: The left side.
        op: Packed weights, bias, residual and activation.
        y: The result.
    """
    images, arithmetic = cut.images, cut.arithmetic
    rows, depth, planes = images.pixels, images.depth, arithmetic.planes
    epilogue = epilogue_of(op.activation, op.residual is not None)
    activation = ActivationCode(epilogue.code)
    kernels = b.constant(packed_lhs_kernels(policy.level, arithmetic, activation))
    tiles = packed_lhs(b, x, rows, depth, arithmetic, kernels)
    stays = bool(b.node.attrs.get("tiles"))
    out = tiles
    if stays:
        out = b.empty((packed_lhs_size(rows, images.outputs, planes),), np.uint16)
        note_tiles(b, y, arithmetic, out)
    product = MatrixSizes(rows, depth, images.outputs, planes)
    table = packed_lhs_table(product, policy.machine, policy.threads, stays)
    offset = _bias(b, cut, op.bias)
    written = offset if stays else y
    added = written if op.residual is None else op.residual
    claims = thread_memory(b, policy.threads, LINE, np.int64)
    b.call(
        multiply_packed,
        tiles,
        ProductArrays(op.w, offset, b.flat(added), b.flat(written)),
        out,
        thread_memory(b, policy.threads, thread_bytes(table)),
        kernels,
        b.constant(table),
        claims,
        epilogue,
        work=images.work // 4,
        exec_type=arithmetic.exec_type(policy.level),
        cleared=claims,
    )


def emit_product(b: Builder, policy: PrecisionPolicy, step: LinearStep) -> None:
    """Records a matrix product or convolution.

    Args:
        b: Records it.
        policy: What may be used.
        step: What is computed.
    """
    images, x, op, y, storage, scaling = step
    halves = storage.half_in or storage.half_out
    arithmetic = policy.preferred_for_stored(images, halves=halves)
    if arithmetic is Arithmetic.F32:
        arithmetic = BY_STORED.get(op.w.dtype, arithmetic)
    wanted = plan(images, policy.machine, arithmetic, policy.threads, storage)
    if _shared_by_columns(wanted, policy.threads):
        wanted = plan(images.as_column, policy.machine, arithmetic, policy.threads, storage)
    cut, weights = fitting(b, policy, wanted, op.w, op.part)
    op = op._replace(w=weights)
    laid = images.depth >= LAID_DEPTH and _is_matrix(images, cut.arithmetic, storage)
    if laid and images.pixels <= LAID_PIXELS:  # last: sizes of which it is asked decide alike
        _emit_packed(b, policy, cut, x, op, y)
        return
    product = product_of(b, policy, cut, op, y)
    offset = product.arrays.bias
    # Tiles of matrix units may begin before the one ahead of them ends, and compute rows again.
    again = on_tiles(cut.level, cut.arithmetic)
    b.call(
        multiply_tiles,
        b.flat(x),
        product.arrays,
        scaling or InputScaling(offset, offset),
        product.context,
        product.epilogue,
        work=product.work,
        exec_type=product.exec_type,
        cleared=product.context.claims,
        over=None if again or op.residual is None else (y, op.residual),
    )


def _shared_by_columns(cut: Plan, threads: int) -> bool:
    """Whether threads would share a line of pixels badly: by columns of its tiles alone."""
    images = cut.images
    if cut.source is not Source.HALO or not images.is_line or holds_sizes((images.batch,)):
        return False
    if not cut.in_place:
        return threads > 1  # each lays out what the tiles of all columns read
    shares = images.batch * images.groups * cut.blocks
    return -(-shares // threads) * threads > UNEVEN_SHARES * shares


class Product(NamedTuple):
    """What a driver of tiles takes but for its input.

    Attributes:
        arrays: Packed weights and bias, residual, result.
        context: Scratch memory, offsets, kernels, the plan's table.
        epilogue: What happens to sums.
        work: Of the step.
        exec_type: Of the step.
    """

    arrays: ProductArrays
    context: TileContext
    epilogue: Epilogue
    work: int
    exec_type: str


def product_of(
    b: Builder,
    policy: PrecisionPolicy,
    cut: Plan,
    op: LinearOp,
    y: Operand,
    thread_bytes: int | None = None,
) -> Product:
    """What a driver takes for a product that `fitting` cut and whose weights it packed.

    Args:
        b: The builder.
        policy: What may be used.
        cut: The product.
        op: What is computed; its weights are packed.
        y: The result.
        thread_bytes: Scratch memory that each thread needs; ``None``: what the plan says.
    """
    own = cut.thread_bytes if thread_bytes is None else thread_bytes
    scratch = thread_memory(b, policy.threads, own)
    claims = thread_memory(b, policy.threads, LINE, np.int64)
    added = y if op.residual is None else op.residual
    epilogue = epilogue_of(op.activation, op.residual is not None)
    kernels = _kernels(policy, cut, ActivationCode(epilogue.code))
    tables = b.constant(cut.offsets), b.constant(kernels), b.constant(cut.table)
    return Product(
        ProductArrays(op.w, _bias(b, cut, op.bias), b.flat(added), b.flat(y)),
        TileContext(scratch, *tables, claims),
        epilogue,
        cut.images.work // _gain(cut),
        cut.arithmetic.exec_type(policy.level),
    )


def _gain(cut: Plan) -> int:
    """How many times faster a product is than in float32, about."""
    if not cut.arithmetic.in_bfloat16:
        return 1
    return 4 if on_tiles(cut.level, cut.arithmetic) else 2


def fitting(
    b: Builder, policy: PrecisionPolicy, wanted: Plan, w: Operand, part: TermPart | None = None
) -> tuple[Plan, Operand]:
    """A cut product and its packed weights; in float32 if some are too large for what is wanted."""
    weights = _packed(b, policy, wanted, w, part)
    if weights.size or not w.size:
        return wanted, weights
    float32 = BY_STORED.get(w.dtype, Arithmetic.F32)
    cut = plan(wanted.images, policy.machine, float32, policy.threads, wanted.storage)
    return cut, _packed(b, policy, cut, w, part)


def _packed(
    b: Builder, policy: PrecisionPolicy, cut: Plan, w: Operand, part: TermPart | None
) -> Operand:
    def packed(array: Array) -> Array:
        terms = array if part is None else part.of(array)
        found = pack(cut, terms, policy.threads, policy.waiting.add)
        if cut.arithmetic.in_bfloat16:
            policy.note(array, not found.size)
        return found

    or_shape = (0,) if cut.arithmetic.in_bfloat16 else None
    form = Form(np.uint16, (packed_size(cut),), or_shape)
    key = ("tiles", cut.packing, *(part or ()))
    weights = b.prepack(w, key, packed, anywhere=True, form=form)
    if b.folding:  # what computes with them is called at once
        policy.waiting.finish()
    return weights


def _kernels(policy: PrecisionPolicy, cut: Plan, activation: ActivationCode) -> Array:
    halves = cut.storage.half_in, cut.storage.half_out
    merged = cut.images.merged_group_channels
    rest = cut.step, activation, merged, policy.machine.tile_rows
    return tile_kernels(policy.level, cut.arithmetic, *halves, *rest)


def _bias(b: Builder, cut: Plan, bias: Operand | None) -> Operand:
    if bias is None:
        return b.constant(pack_bias(cut, None))
    key = ("bias", cut.images.groups, cut.columns)
    return b.prepack(bias, key, lambda array: pack_bias(cut, array))
