"""LSTM, GRU and RNN: the input product in one go, then one compiled loop over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.gate_activations import backwards, gate_activations, known_activations
from partita.lowering.geometry.boxes import Box
from partita.lowering.shapes.symbolic_size import integers
from partita.lowering.transformed_weights import Form
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns, tile_rows
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.precision_policy import native_policy
from partita_cpu.gemm.product_steps import LinearOp, LinearStep, emit_product
from partita_cpu.gemm.tile_kernels import tile_kernels
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.kernels.half import BFLOAT16, through_float32
from partita_cpu.kernels.linalg.register_tiles import PANEL, ROWS, float_panels
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.operator_table import ALL_FLOATS, DTypes, kernel
from partita_cpu.kernels.recurrent.cells import (
    LstmState,
    gru_loop,
    lstm_loop,
    lstm_pairs_loop,
    rnn_loop,
)
from partita_cpu.kernels.recurrent.products import StatePairs, input_products

LENGTHS: DTypes = frozenset({np.dtype(np.int32)})


@dataclass(frozen=True)
class Cells:
    """Sizes and attributes of one recurrent operator.

    Attributes:
        directions: 1 or 2.
        steps: Length of the longest sequence.
        batch: Sequences.
        hidden: Elements of a state.
        groups: How many gates lie together in whole panels: 4 for LSTM, 2 and 1 for GRU.
        batch_first: Whether batch elements come before steps (``layout`` is 1).
    """

    directions: int
    steps: int
    batch: int
    hidden: int
    groups: tuple[int, ...]
    batch_first: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each group in whole panels."""
        return tuple(-(-gates * self.hidden // PANEL) * PANEL for gates in self.groups)

    @property
    def width(self) -> int:
        """Columns of all groups: the length of a row of input products."""
        return sum(self.widths)

    @property
    def gates(self) -> int:
        """Rows of weights per hidden element."""
        return sum(self.groups)

    @property
    def shape(self) -> Array:
        """The ``shape`` of the loops: sizes, then strides in rows, as `gates` says."""
        d, t, n = self.directions, self.steps, self.batch
        x = (t * n, 1, t) if self.batch_first else (t * n, n, 1)
        y = (1, d, t * d) if self.batch_first else (n, d * n, 1)
        return integers([d, t, n, self.hidden, *x, *y, self.width])

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of the first output."""
        if self.batch_first:
            return (self.batch, self.steps, self.directions, self.hidden)
        return (self.steps, self.directions, self.batch, self.hidden)

    @property
    def work(self) -> int:
        """Multiplications of the loop over time."""
        return self.steps * self.batch * self.directions * self.gates * self.hidden**2


def cells(node: Node, x: Operand, directions: int, hidden: int, groups: tuple[int, ...]) -> Cells:
    """The sizes of a node with ``groups`` of gates."""
    batch_first = bool(node.attrs.get("layout", 0))
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    return Cells(directions, steps, batch, hidden, groups, batch_first)


def _store(fn: Callable[[Array], Array], x: Array, y: Array) -> None:
    y[...] = fn(x)


def packed(
    b: Builder,
    x: Operand,
    key: str,
    fn: Callable[[Array], Array],
    shape: Sequence[int],
    dtype: Any = None,
) -> Operand:
    """What a function makes of a tensor: once for weights, at every run for others.

    Args:
        b: Records it.
        x: Weights, or another tensor.
        key: What distinguishes ``fn`` from others for the same weights.
        fn: Makes an array of an array.
        shape: Of what it makes.
        dtype: Of what it makes; ``None``: x's.
    """
    if x.const is not None:
        form = Form(np.dtype(x.dtype if dtype is None else dtype), tuple(shape))
        return b.prepack(x, key, fn, form=form)
    y = b.empty(shape, x.dtype if dtype is None else dtype)
    b.call_numpy(_store, fn, x, y)
    return y


def _emit_panels(b: Builder, c: Cells, weights: Operand) -> Operand:
    """Panels of weights (directions, gates, terms): of each direction those of each group."""

    def panels(array: Array) -> Array:
        ends = np.cumsum(c.groups) * c.hidden
        parts = [np.split(matrix, ends[:-1]) for matrix in array]
        return np.concatenate([float_panels(part.T) for group in parts for part in group])

    size = c.directions * weights.shape[2] * c.width
    return packed(b, weights, f"panels {c.groups}", panels, (size,))


def joined_bias(bias: Array) -> Array:
    """Input and recurrent bias in one."""
    half = bias.shape[1] // 2
    return bias[:, :half] + bias[:, half:]


def _joined(b: Builder, c: Cells, bias: Operand | None) -> Operand | None:
    """Input and recurrent bias in one, (directions, gates); ``None`` without a bias."""
    if bias is None:
        return None
    return packed(b, bias, "joined", joined_bias, (c.directions, c.gates * c.hidden))


def _early_bias(bias: Array) -> Array:
    """The same but for the recurrent bias of a GRU's third gate."""
    third = bias.shape[1] // 6
    joined = joined_bias(bias)
    joined[:, 2 * third :] = bias[:, 2 * third : 3 * third]
    return joined


def _late_bias(bias: Array) -> Array:
    """The recurrent bias of a GRU's third gate."""
    return np.ascontiguousarray(bias[:, bias.shape[1] // 6 * 5 :])


def _emit_bias(b: Builder, c: Cells, bias: Operand | None, dtype: np.dtype[Any]) -> Operand:
    """A bias (directions, gates) in rows of whole panels."""
    if bias is None:
        return b.constant(np.zeros((c.directions, c.width), dtype))
    padded = partial(_whole_panels, c)
    return packed(b, bias, f"padded {c.groups}", padded, (c.directions, c.width))


def _whole_panels(c: Cells, array: Array) -> Array:
    """Gates along the second axis, each group of them in whole panels."""
    full = np.zeros((len(array), c.width, *array.shape[2:]), array.dtype)
    row, column = 0, 0
    for gates, width in zip(c.groups, c.widths, strict=True):
        size = gates * c.hidden
        full[:, column : column + size] = array[:, row : row + size]
        row, column = row + size, column + width
    return full


def _emit_input(
    b: Builder, c: Cells, x: Operand, weights: Operand, bias: Operand | None
) -> Operand:
    rows, terms = c.steps * c.batch, x.shape[2]
    out = b.empty((c.directions, rows, c.width), x.dtype)
    if out.size and not _emit_input_by_tiles(b, c, x, weights, bias, out):
        tensors = (x, _emit_panels(b, c, weights), _emit_bias(b, c, bias, x.dtype), out)
        args = (*(b.flat(tensor) for tensor in tensors), c.directions, rows, terms, c.width)
        b.call(input_products, *args, work=out.size * terms)
    return out


def _emit_input_by_tiles(
    b: Builder, c: Cells, x: Operand, weights: Operand, bias: Operand | None, out: Operand
) -> bool:
    """The products of the input as other matrix products are computed, where weights are known.

    Args:
        b: The builder.
        c: Sizes.
        x: The input (step, batch, element).
        weights: Those of the input.
        bias: Terms of the gates.
        out: Gets the products.

    Returns:
        Whether it is done.
    """
    policy = native_policy(b.options)
    images = Images.matrix(c.steps * c.batch, x.shape[2], c.width)
    known = all(given is None or given.const is not None for given in (weights, bias))
    if policy is None or not known or b.folding or x.dtype != np.float32:
        return False
    if not images.depth or images.pixels < ROWS:
        return False
    for direction in range(c.directions):
        part, key = partial(_part_of_direction, c, direction), f"part {c.groups} {direction}"
        form = Form(np.dtype(np.float32), (images.depth, c.width))
        matrix = b.prepack(weights, key, part, form=form)
        row = None if bias is None else b.prepack(bias, key, part)
        storage = Storage(y_pitch=c.width, y_first=direction * images.pixels * c.width)
        step = LinearStep(images, x, LinearOp(matrix, row), out, storage)
        emit_product(b, policy, step)
    return True


def _part_of_direction(c: Cells, direction: int, array: Array) -> Array:
    """Weights of one direction as a matrix (terms, gates), or its bias; in whole panels."""
    return np.ascontiguousarray(_whole_panels(c, array[direction : direction + 1])[0].T)


def emit_places(b: Builder, c: Cells) -> Operand:
    """Scratch for the places of the gates, one per row of the state."""
    return b.empty((c.directions * c.batch,), np.int64)


@loop
def clear(state: Any, tid: int, nt: int) -> None:
    """Sets a state to 0."""
    for i in range(state.size * tid // nt, state.size * (tid + 1) // nt):
        state[i] = 0


def _emit_state(b: Builder, c: Cells, initial: Operand | None, dtype: np.dtype[Any]) -> Operand:
    """Memory for a state, one row per direction and batch element, set to the initial one."""
    state = b.empty((c.directions, c.batch, c.hidden), dtype)
    if initial is None:
        b.call(clear, b.flat(state))
        return state
    d, n, h = c.directions, c.batch, c.hidden
    steps = (h, d * h, 1) if c.batch_first else (n * h, h, 1)
    copy_box(b, Box(initial, steps), Box(state, (n * h, h, 1)), (d, n, h))
    return state


def _final(b: Builder, c: Cells, state: Operand) -> Operand:
    if not c.batch_first:
        return state
    final = b.empty((c.batch, c.directions, c.hidden), state.dtype)
    d, n, h = c.directions, c.batch, c.hidden
    copy_box(b, Box(state, (h, n * h, 1)), Box(final, (d * h, h, 1)), (n, d, h))
    return final


def _multiples(count: int, step: int) -> Array:
    return np.arange(count, dtype=np.int64) * step


def _emit_lengths(b: Builder, c: Cells, lengths: Operand | None) -> Operand:
    if lengths is not None:
        return lengths
    return b.table((c.batch,), np.int32, np.full, c.batch, c.steps)


def _attributes(
    b: Builder, node: Node, kind: str, c: Cells, dtype: np.dtype[Any]
) -> tuple[Operand, Operand, Operand, Operand, Any]:
    """``shape, reverse, codes, parameters, clip`` as the loops take them."""
    codes, parameters = gate_activations(node, kind, c.directions)
    clip = dtype.type(node.attrs.get("clip") or 0.0)
    return (
        b.constant(c.shape),
        b.constant(np.array(backwards(node), np.int64)),
        b.constant(codes),
        b.constant(parameters.astype(dtype)),
        clip,
    )


_TYPES = {0: ALL_FLOATS, 1: ALL_FLOATS, 2: ALL_FLOATS, 3: ALL_FLOATS, 4: LENGTHS, 5: ALL_FLOATS}


@kernel("LSTM", dtypes={**_TYPES, 6: ALL_FLOATS, 7: ALL_FLOATS}, check=known_activations, since=7)
@through_float32
def lstm(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
    initial_c: Operand | None = None,
    peepholes: Operand | None = None,
) -> tuple[Operand, ...]:
    """Long short-term memory."""
    c = cells(node, x, w.shape[0], r.shape[2], (4,))
    products = _emit_input(b, c, x, w, _joined(b, c, bias))
    memory = lstm_memory(b, c, lengths, initial_h, initial_c, peepholes, x.dtype)
    pairs = _state_pairs(b, c, r)
    if pairs is not None:
        return emit_lstm(b, node, c, lstm_pairs_loop, (products, pairs), memory)
    return emit_lstm(b, node, c, lstm_loop, (products, _emit_panels(b, c, r)), memory)


def _state_pairs(b: Builder, c: Cells, weights: Operand) -> StatePairs | None:
    """What multiplies states in bfloat16, where products of constants are by vectors."""
    policy = native_policy(b.options)
    if policy is None or weights.const is None or b.folding or weights.dtype != np.float32:
        return None
    by_vectors = policy.arithmetic is Arithmetic.BF16 and not policy.level.tiles
    rows = c.directions * c.batch
    if not by_vectors or not c.hidden or policy.rounds_to_infinity(weights.const):
        return None
    wide = tile_columns(policy.level)
    steps = (c.hidden + 1) // 2
    size = c.directions * c.width * 2 * steps
    laid = partial(pairs_of_terms, c, wide)
    form = Form(np.dtype(np.uint16), (size,))
    packed_weights = b.prepack(weights, f"pairs {c.groups} {wide}", laid, form=form)
    return StatePairs(
        packed_weights,
        b.empty((rows * 2 * steps,), np.uint16),
        b.constant(np.zeros(wide + 2, np.float32)),
        b.constant(tile_kernels(policy.level, Arithmetic.BF16)),
        tile_rows(policy.level, Arithmetic.BF16),
        wide,
    )


def pairs_of_terms(c: Cells, wide: int, weights: Array) -> Array:
    """Weights (directions, gates, terms) in bfloat16, as `StatePairs` has them."""
    full = _whole_panels(c, weights).astype(BFLOAT16).view(np.uint16)
    directions, columns, terms = full.shape
    even = np.zeros((directions, columns, -(-terms // 2) * 2), np.uint16)
    even[..., :terms] = full
    blocks = even.reshape(directions, columns // wide, wide, -1, 2)
    return np.ascontiguousarray(blocks.swapaxes(2, 3)).reshape(-1)


def lstm_memory(
    b: Builder,
    c: Cells,
    lengths: Operand | None,
    initial_h: Operand | None,
    initial_c: Operand | None,
    peepholes: Operand | None,
    dtype: np.dtype[Any],
) -> LstmState:
    """What LSTM loops read and write beside products and weights.

    Args:
        b: Records what makes it.
        c: Sizes.
        lengths: Of each sequence; all are as long as the longest by default.
        initial_h: The state to begin with (directions, batch, hidden); 0 by default.
        initial_c: As initial_h.
        peepholes: Weights from the cell to gates (directions, 3 hidden); 0 by default.
        dtype: Of states and peepholes.
    """
    if peepholes is None:
        peepholes = b.constant(np.zeros((c.directions, 3 * c.hidden), dtype))
    h, cell = _emit_state(b, c, initial_h, dtype), _emit_state(b, c, initial_c, dtype)
    return LstmState(peepholes, _emit_lengths(b, c, lengths), h, cell, emit_places(b, c))


def emit_lstm(
    b: Builder,
    node: Node,
    c: Cells,
    function: Callable[..., None],
    factors: Sequence[Operand | StatePairs],
    memory: LstmState,
    scratch: Sequence[Operand] = (),
) -> tuple[Operand, ...]:
    """Records an LSTM loop; returns all states, and the last ones of h and c.

    Args:
        b: Records it.
        node: Has the activations.
        c: Sizes.
        function: The loop.
        factors: Products of the input, and the recurrent weights as the loop takes them.
        memory: Of `lstm_memory`.
        scratch: What the loop takes behind it.
    """
    y = b.empty(c.y_shape, memory.h.dtype)
    b.call(
        function,
        *(x if isinstance(x, StatePairs) else b.flat(x) for x in factors),
        *(b.flat(tensor) for tensor in (*memory, *scratch, y)),
        *_attributes(b, node, "LSTM", c, memory.h.dtype),
        int(node.attrs.get("input_forget", 0)),
        work=c.work,
    )
    return y, _final(b, c, memory.h), _final(b, c, memory.c)


@kernel("GRU", dtypes=_TYPES, check=known_activations, since=7)
@through_float32
def gru(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
) -> tuple[Operand, ...]:
    """Gated recurrent unit, with the reset gate before or after the recurrent product."""
    c = cells(node, x, w.shape[0], r.shape[2], (2, 1))
    reset_after = int(node.attrs.get("linear_before_reset", 0))
    late = b.constant(np.zeros((c.directions, c.hidden), x.dtype))
    early = _joined(b, c, bias)
    if bias is not None and reset_after:
        early = packed(b, bias, "early", _early_bias, (c.directions, 3 * c.hidden))
        late = packed(b, bias, "late", _late_bias, (c.directions, c.hidden))
    products = _emit_input(b, c, x, w, early)
    recurrent, places = _emit_panels(b, c, r), emit_places(b, c)
    h = _emit_state(b, c, initial_h, x.dtype)
    rows, length = c.directions * c.batch, c.widths[1]
    rooms, y = b.empty((rows * length,), x.dtype), b.empty(c.y_shape, x.dtype)
    room_places = b.table((rows,), np.int64, _multiples, rows, length)
    lasting = _emit_lengths(b, c, lengths)
    tensors = (products, recurrent, late, lasting, h, rooms, places, room_places, y)
    b.call(
        gru_loop,
        *(b.flat(tensor) for tensor in tensors),
        *_attributes(b, node, "GRU", c, x.dtype),
        c.widths[0],
        reset_after,
        work=c.work,
    )
    return y, _final(b, c, h)


@kernel("RNN", dtypes=_TYPES, check=known_activations, since=7)
@through_float32
def rnn(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None = None,
    lengths: Operand | None = None,
    initial_h: Operand | None = None,
) -> tuple[Operand, ...]:
    """The plain recurrent network."""
    c = cells(node, x, w.shape[0], r.shape[2], (1,))
    products = _emit_input(b, c, x, w, _joined(b, c, bias))
    recurrent, places = _emit_panels(b, c, r), emit_places(b, c)
    h = _emit_state(b, c, initial_h, x.dtype)
    y = b.empty(c.y_shape, x.dtype)
    tensors = (products, recurrent, _emit_lengths(b, c, lengths), h, places, y)
    b.call(
        rnn_loop,
        *(b.flat(tensor) for tensor in tensors),
        *_attributes(b, node, "RNN", c, x.dtype),
        work=c.work,
    )
    return y, _final(b, c, h)
