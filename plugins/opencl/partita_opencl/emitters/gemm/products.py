"""Launches of matrix products, for MatMul, Gemm and convolutions, tiled as the device likes it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import numpy as np

from partita.lowering import NO_ACTIVATION, Activation, Array, Node, Operand
from partita.lowering.shapes.symbolic_size import evaluated, holds_sizes, settled
from partita.lowering.transformed_weights import Form as WeightForm
from partita.system.array_conversion import convert_into, converted
from partita_opencl.device.limits import Limits
from partita_opencl.launches.emitter_kit import Argument, Kit, Options, f32, i32, ints, is_half
from partita_opencl.launches.steps import Counters
from partita_opencl.launches.tensor_moves import transpose
from partita_opencl.launches.work_sizes import Form
from partita_opencl.tuning.database import is_trying, measured, named
from partita_opencl.tuning.product_tiles import Cut, Tile, ranked, tiles_for

_VECTOR_ROWS = 4
"""Products of at most so many rows stream the second matrix once."""

_LANES, _FEW_LANES = 16, 8
"""Columns of an item that works in registers; of the narrow form of the kernel."""

_LANE_ROWS = 14
"""Rows of such an item: as many sums as vector registers of AVX-512 hold beside two operands."""

_MOST_BATCHES = 65535
"""Batches of one launch in the third dimension; items step over the rest."""


@dataclass(frozen=True)
class Epilogue:
    """What is done to each sum before it is stored.

    Attributes:
        bias: Added, or ``None``.
        bias_step: Step of the bias per row and per column.
        bias_mod: Bias vectors; batch z uses vector ``z % bias_mod``.
        residual: Added element by element, or ``None``.
        activation: Applied last.
    """

    bias: Operand | None = None
    bias_step: tuple[int, int] = (0, 0)
    bias_mod: int = 1
    residual: Operand | None = None
    activation: Activation = NO_ACTIVATION

    def buffers(self, unused: Operand) -> tuple[Operand, Operand]:
        """Bias and residual, or another buffer in their place, which the kernel leaves alone."""
        return self.bias or unused, self.residual or unused

    def flags(self) -> tuple[Argument, ...]:
        """The kernels' ``has_bias, has_residual, alpha, beta``."""
        return (
            i32(self.bias is not None),
            i32(self.residual is not None),
            f32(self.activation.alpha),
            f32(self.activation.beta),
        )

    def options(self, splits: int = 1) -> dict[str, int | None]:
        """The kernels' macros; a kernel that makes partial sums has no epilogue."""
        return {"SPLIT": None} if splits > 1 else {"ACTIVATION": int(self.activation.code)}


@dataclass(frozen=True)
class Product:
    """``batches`` products of (rows, depth) by (depth, columns).

    Attributes:
        rows: Rows of the result.
        columns: Columns of the result.
        depth: Length of the sums.
        batches: How many.
        batch_map: Matrix ``z // div % mod`` belongs to batch z: div and mod of a, then of b.
    """

    rows: int
    columns: int
    depth: int
    batches: int = 1
    batch_map: tuple[int, int, int, int] = (1, 1, 1, 1)

    def sizes(self) -> tuple[Argument, ...]:
        """The kernels' ``rows, columns, depth``."""
        return i32(self.rows), i32(self.columns), i32(self.depth)


def multiply(
    k: Kit, product: Product, a: Operand, b: Operand, out: Operand, epilogue: Epilogue
) -> None:
    """Records ``out = epilogue(a @ b)`` for matrices in row-major order.

    Args:
        k: Records it.
        product: Rows, columns, depth, and how many matrices.
        a: Left matrices [rows, depth].
        b: Right matrices [depth, columns]; they may be packed.
        out: What is written [rows, columns].
        epilogue: What becomes of each sum.
    """
    if not out.size:
        return
    if product.depth == 0:
        empty_sums(k, product, out, epilogue)
    elif product.rows <= _VECTOR_ROWS and product.batches == 1 and k.tuning.local_tiles:
        _multiply_vectors(k, product, a, _unpacked(k, b, a.dtype), out, epilogue)
    elif k.tuning.local_tiles:
        tiles(k, product, a, _unpacked(k, b, a.dtype), out, epilogue)
    else:
        lanes(k, product, a, b, out, epilogue)


def _unpacked(k: Kit, b: Operand, dtype: np.dtype[Any]) -> Operand:
    """Matrices in the type of the sums' other factor; constants may be stored in another."""
    if b.dtype == dtype:
        return b
    form = WeightForm(dtype, b.shape)
    return k.builder.prepack(b, f"as {dtype}", lambda array: converted(array, dtype), form=form)


def tiles(
    k: Kit,
    product: Product,
    a: Operand,
    b: Operand,
    out: Operand,
    epilogue: Epilogue,
    extra: Sequence[Argument] = (),
    a_step: int = 0,
    unit: int = 0,
    **options: None,
) -> None:
    """Records a product by tiles in local memory; long sums of few tiles are split.

    Args:
        k: Records the launches.
        product: Sizes.
        a: Matrices (rows, depth), or (depth, a_step) if that is set: packed weights.
        b: Matrices (depth, columns), or what an option makes of an image.
        out: Receives matrices (rows, columns).
        epilogue: What becomes of the sums.
        extra: Further arguments of the kernel.
        a_step: Elements from one term of packed weights to the next; 0 for none.
        unit: Of how many terms a step of the sums takes a part that divides them; 0 for any.
        options: Macros of the kernel.
    """
    limits = k.tuning.limits
    rows, columns, depth, batches = product.rows, product.columns, product.depth, product.batches
    matrix = k.tuning.matrix_units and is_half(out.dtype)
    # Processors that have matrix units copy past the registers, too.
    later = limits.matrix_units or limits.is_cpu
    staged = later and not is_half(out.dtype) and not (a_step or options)
    fitting = tiles_for(limits, matrix=matrix, staged=staged)
    if k.tuning.form is Form.NARROW:
        fitting = [min(fitting, key=lambda tile: tile.high * tile.wide)]
    half = "half " if is_half(out.dtype) else ""
    how = chosen_cut(k, f"{half}tile {unit}", fitting, (rows, columns, depth, batches), unit)
    flags: dict[str, bool] = {"A_PACKED": a_step > 0, "NVIDIA": limits.is_nvidia}
    target = out
    parts: tuple[Argument, ...] = ()
    summed_later = False
    if how.splits > 1 and limits.hands_over:
        parts = handed_over(k, how)
        flags["HAND_OVER"] = True
    elif how.splits > 1:
        target = k.empty((how.splits, out.size), np.float32)
        summed_later = True
    k.launch(
        "product_matrix.cl" if matrix else "product_tile.cl",
        "product_matrix" if matrix else "product_tile",
        k.tuning.groups(how.tiles * how.splits, evaluated(getattr, how.tile, "items")),
        a,
        b,
        *epilogue.buffers(a),
        target,
        *product.sizes(),
        i32(batches),
        ints(*product.batch_map),
        i32(epilogue.bias_mod),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        i32(how.per_split),
        i32(a_step),
        *parts,
        *extra,
        chosen=evaluated(tile_macros, how.tile, matrix, a_step or depth, columns, depth),
        **epilogue.options(how.splits if summed_later else 1),
        **{name: None for name, on in flags.items() if on},
        **options,
    )
    if summed_later:
        add_splits(k, product, target, how.splits, out, epilogue)


def chosen_cut(
    k: Kit, kind: str, tiles: Sequence[Tile], sizes: tuple[int, int, int, int], unit: int = 0
) -> Cut:
    """How a product is cut; for sizes that stand for others, with a tile and numbers that do.

    Args:
        k: The kit.
        kind: What the database calls such products.
        tiles: The tiles to choose from.
        sizes: Rows, columns, depth and batches.
        unit: See :func:`partita_opencl.tuning.product_tiles.ranked`.
    """
    limits = k.tuning.limits
    if is_trying() or not holds_sizes(sizes):
        rows, columns, depth, batches = map(settled, sizes)
        found = ranked(limits, tiles, rows, columns, depth, batches, unit=unit)
        return k.choose(f"{kind} {(rows, columns, depth, batches)}", found)
    found = evaluated(_cut_of_sizes, k.tuning.device, kind, limits, tuple(tiles), unit, *sizes)
    names = ("tile", "tiles", "splits", "per_split")
    return Cut(*(evaluated(getattr, found, name) for name in names))


def _cut_of_sizes(
    device: str, kind: str, limits: Limits, tiles: tuple[Tile, ...], unit: int, *sizes: int
) -> Cut:
    return _best_cut(measured(device, f"{kind} {sizes}"), limits, tiles, unit, sizes)


@functools.lru_cache(maxsize=4096)  # most products of a network have the sizes of another one
def _best_cut(
    name: str | None,
    limits: Limits,
    tiles: tuple[Tile, ...],
    unit: int,
    sizes: tuple[int, int, int, int],
) -> Cut:
    """The cut that was measured, or else the one that should take the least time."""
    return named(name, ranked(limits, tiles, *sizes, unit=unit))


def handed_over(k: Kit, how: Cut) -> tuple[Argument, ...]:
    """The kernels' memory for parts of sums, the counters of those that are done, the parts."""
    elements = how.tiles * how.splits * evaluated(_results_of, how.tile)
    return k.empty((elements,), np.float32), Counters(how.tiles), i32(how.splits)


def _results_of(tile: Tile) -> int:
    return tile.high * tile.wide


def tile_macros(tile: Tile, matrix: bool, a_step: int, columns: int, depth: int) -> Options:
    """Compile-time constants of the tile kernels: the tile, and what divides the sizes."""
    vector = 8 if matrix else 4
    flags = {
        "WHOLE": depth % tile.deep == 0,
        "A_VECTORS": a_step % vector == 0,
        "B_VECTORS": columns % vector == 0,
        "PAIRS": matrix and columns % 2 == 0,
    }
    return (*tile.options().items(), *((name, None) for name, on in flags.items() if on))


def lanes(
    k: Kit,
    product: Product,
    a: Operand,
    b: Operand,
    out: Operand,
    epilogue: Epilogue,
    extra: Sequence[Argument] = (),
    *,
    columns_first: bool = False,
    **options: None,
) -> None:
    """Records a product whose items keep rows of sixteen sums in registers.

    Args:
        k: Records the launches.
        product: Sizes.
        a: Matrices (rows, depth), or what an option makes of an image.
        b: Matrices (depth, columns).
        out: Receives matrices (rows, columns).
        epilogue: What becomes of the sums.
        extra: Further arguments of the kernel.
        columns_first: Whether matrices of b are (columns, depth).
        options: Macros of the kernel.
    """
    lanes = _FEW_LANES if k.tuning.form is Form.NARROW else _LANES
    if b.const is not None:
        key = f"panels:{lanes}:{product.depth}:{product.columns}:{columns_first}"
        pack = _panels(product, lanes, columns_first, a.dtype)
        count = b.size // max(1, product.depth * product.columns)
        panels = count, -(-product.columns // lanes), product.depth, lanes
        form = WeightForm(a.dtype, panels)
        b = k.builder.prepack(b, key, pack, anywhere=True, form=form)
        options = {**options, "PANELS": None}
    elif columns_first:
        matrices = k.view(
            b, (b.size // (product.depth * product.columns), product.columns, product.depth)
        )
        b = transpose(k, matrices, (0, 2, 1))
    rows = 1 if product.rows == 1 else _LANE_ROWS
    global_size = (
        -(-product.rows // rows),
        -(-product.columns // lanes),
        min(product.batches, _MOST_BATCHES),
    )
    k.launch(
        "product_lanes.cl",
        "product_lanes",
        (global_size, (1, 1, 1)),
        a,
        b,
        *epilogue.buffers(a),
        out,
        *product.sizes(),
        i32(product.batches),
        ints(*product.batch_map),
        i32(epilogue.bias_mod),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        *extra,
        ROWS=rows,
        **epilogue.options(),
        **options,
    )


def _panels(
    product: Product, lanes: int, columns_first: bool, dtype: np.dtype[Any]
) -> Callable[[Array], Array]:
    """What turns constant matrices into panels of as many columns as an item has."""

    def pack(array: Array) -> Array:
        if columns_first:
            matrices = array.reshape(-1, product.columns, product.depth)
        else:
            matrices = array.reshape(-1, product.depth, product.columns).transpose(0, 2, 1)
        count, (whole, rest) = len(matrices), divmod(product.columns, lanes)
        panels = np.zeros((count, whole + (rest > 0), product.depth, lanes), dtype)
        blocks = matrices[:, : whole * lanes].reshape(count, whole, lanes, product.depth)
        convert_into(panels[:, :whole], blocks.transpose(0, 1, 3, 2))
        if rest:
            panels[:, whole, :, :rest] = matrices[:, whole * lanes :].transpose(0, 2, 1)
        return panels

    return pack


def _multiply_vectors(
    k: Kit, product: Product, a: Operand, b: Operand, out: Operand, epilogue: Epilogue
) -> None:
    """Records a product of few rows, whose columns are spread over items.

    Args:
        k: Records it.
        product: Its sizes.
        a: The left side, (rows, depth).
        b: The right side, (depth, columns).
        out: Receives (rows, columns).
        epilogue: Bias, residual and activation.
    """
    wide, high = 32, 4 if k.tuning.limits.is_cpu else 8
    width = 4 if product.columns % 4 == 0 else 1
    groups = -(-product.columns // (wide * width))
    splits, per_split = split_depth(k, groups, product.depth, high)
    rows = 1 if product.rows == 1 else _VECTOR_ROWS
    target = out if splits == 1 else k.empty((splits, out.size), np.float32)
    k.launch(
        "product_vector.cl",
        "product_vector",
        ((groups * wide, splits * high, -(-product.rows // rows)), (wide, high, 1)),
        a,
        b,
        *epilogue.buffers(a),
        target,
        *product.sizes(),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        i32(per_split),
        LX=wide,
        LY=high,
        WIDTH=width,
        ROWS=rows,
        **epilogue.options(splits),
    )
    if splits > 1:
        add_splits(k, product, target, splits, out, epilogue)


def split_depth(k: Kit, groups: int, depth: int, step: int) -> tuple[int, int]:
    """In how many parts to cut sums so that all compute units have work, and the parts' length."""
    found = evaluated(_split_depth, k.tuning.limits.compute_units, groups, depth, step)
    return settled(evaluated(getitem, found, 0)), evaluated(getitem, found, 1)


def _split_depth(units: int, groups: int, depth: int, step: int) -> tuple[int, int]:
    wanted = 4 * units // max(1, groups)
    splits = max(1, min(wanted, depth // (8 * step), 32))
    per_split = math.ceil(math.ceil(depth / splits) / step) * step
    return math.ceil(depth / per_split), per_split


def add_splits(
    k: Kit, product: Product, partial: Operand, splits: int, out: Operand, epilogue: Epilogue
) -> None:
    """Records the sum of the parts and the epilogue.

    Args:
        k: Records it.
        product: Sizes.
        partial: The parts (splits, ...) in float32.
        splits: How many.
        out: What is written.
        epilogue: What becomes of the sums.
    """
    k.launch(
        "product_sum.cl",
        "product_sum",
        k.tuning.flat(out.size),
        partial,
        *epilogue.buffers(partial),
        out,
        i32(product.rows),
        i32(product.columns),
        i32(product.batches),
        i32(splits),
        i32(epilogue.bias_mod),
        ints(*epilogue.bias_step),
        *epilogue.flags(),
        **epilogue.options(),
    )


def empty_sums(k: Kit, product: Product, out: Operand, epilogue: Epilogue) -> None:
    """Records what remains of a product whose sums have no terms: the epilogue."""
    add_splits(k, product, out, 0, out, epilogue)


def activation_of(node: Node) -> Activation:
    """What fusion hung on the node."""
    found = node.attrs.get("activation")
    return found if isinstance(found, Activation) else NO_ACTIVATION
