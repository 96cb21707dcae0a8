"""LSTM, GRU and RNN: the input product in one go, then one compiled loop over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.query import Reason, ReasonCode
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.quantization import emit_dequantize, emit_dynamic_quantize
from partita_cpu.kernels.quantization_product import BYTES
from partita_cpu.kernels.recurrent_cells import gru_loop, lstm_loop, rnn_loop
from partita_cpu.kernels.recurrent_gates import ACTIVATIONS
from partita_cpu.kernels.table import ALL_FLOATS, F32, DTypes, kernel

LENGTHS: DTypes = frozenset({np.dtype(np.int32)})
_NEEDS_ALPHA = {"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"}
_NEEDS_BETA = {"Affine", "ScaledTanh", "HardSigmoid"}
_NAMES = {name.lower(): name for name in ACTIVATIONS}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@dataclass(frozen=True)
class Cells:
    """Sizes and attributes of one recurrent operator.

    Attributes:
        directions: 1 or 2.
        steps: Length of the longest sequence.
        batch: Sequences.
        hidden: Elements of a state.
        gates: Rows of weights per hidden element.
        batch_first: Whether batch elements come before steps (``layout`` is 1).
    """

    directions: int
    steps: int
    batch: int
    hidden: int
    gates: int
    batch_first: bool

    @property
    def shape(self) -> Array:
        """The ``shape`` of the loops: sizes, then strides in rows, see `recurrent_gates.SHAPE`."""
        d, t, n = self.directions, self.steps, self.batch
        x = (t * n, 1, t) if self.batch_first else (t * n, n, 1)
        y = (1, d, t * d) if self.batch_first else (n, d * n, 1)
        return np.array([d, t, n, self.hidden, *x, *y], np.int64)

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


def _cells(node: Node, x: Operand, directions: int, hidden: int, gates: int) -> Cells:
    batch_first = bool(node.attrs.get("layout", 0))
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    return Cells(directions, steps, batch, hidden, gates, batch_first)


def _store(fn: Callable[[Array], Array], x: Array, y: Array) -> None:
    y[...] = fn(x)


def _packed(
    b: Builder, x: Operand, key: str, fn: Callable[[Array], Array], shape: Sequence[int]
) -> Operand:
    """``fn(x)``, of ``shape``: made once for weights, at every run for other tensors."""
    if x.const is not None:
        return b.prepack(x, key, fn)
    y = b.empty(shape, x.dtype)
    b.call_numpy(_store, fn, x, y)
    return y


def _swapped(weights: Array) -> Array:
    """Weights of each direction with rows for hidden elements, columns for gates."""
    return np.ascontiguousarray(weights.transpose(0, 2, 1))


def _swapped_gru(weights: Array) -> Array:
    """The same with the columns of the third gate behind all others."""
    n = weights.shape[2]
    early = weights[:, : 2 * n].transpose(0, 2, 1).reshape(len(weights), -1)
    late = weights[:, 2 * n :].transpose(0, 2, 1).reshape(len(weights), -1)
    return np.concatenate([early, late], 1)


def _joined_bias(bias: Array) -> Array:
    """Input and recurrent bias in one."""
    half = bias.shape[1] // 2
    return bias[:, :half] + bias[:, half:]


def _early_bias(bias: Array) -> Array:
    """The same but for the recurrent bias of a GRU's third gate."""
    third = bias.shape[1] // 6
    joined = _joined_bias(bias)
    joined[:, 2 * third :] = bias[:, 2 * third : 3 * third]
    return joined


def _late_bias(bias: Array) -> Array:
    """The recurrent bias of a GRU's third gate."""
    return np.ascontiguousarray(bias[:, bias.shape[1] // 6 * 5 :])


def input_products(x: Array, weights: Array, bias: Array, out: Array, flip: bool) -> None:
    """``x @ weights + bias`` for every direction; ``flip`` transposes the weights."""
    rows = x.reshape(-1, x.shape[-1])
    for direction in range(len(weights)):
        matrix = weights[direction].T if flip else weights[direction]
        np.matmul(rows, matrix, out=out[direction])
        out[direction] += bias[direction]


def _emit_input(
    b: Builder, c: Cells, x: Operand, weights: Operand, bias: Operand | None, flip: bool = True
) -> Operand:
    columns = c.gates * c.hidden
    out = b.empty((c.directions, c.steps * c.batch, columns), x.dtype)
    if bias is None:
        bias = b.constant(np.zeros((c.directions, columns), x.dtype))
    work = out.size * x.shape[-1]
    b.call_numpy(input_products, x, weights, bias, out, flip, work=work, exec_type="blas")
    return out


def clear(state: Array) -> None:
    """Sets a state to 0."""
    state.fill(0)


def take_state(initial: Array, state: Array, batch_first: bool) -> None:
    """Copies an initial state; it may have the batch before the directions."""
    np.copyto(state, initial.swapaxes(0, 1) if batch_first else initial)


def _emit_state(b: Builder, c: Cells, initial: Operand | None, dtype: np.dtype[Any]) -> Operand:
    state = b.empty((c.directions, c.batch, c.hidden), dtype)
    if initial is None:
        b.call_numpy(clear, state)
    else:
        b.call_numpy(take_state, initial, state, c.batch_first)
    return state


def give_state(state: Array, final: Array) -> None:
    """Copies a final state to where the batch comes first."""
    np.copyto(final, state.swapaxes(0, 1))


def _final(b: Builder, c: Cells, state: Operand) -> Operand:
    if not c.batch_first:
        return state
    final = b.empty((c.batch, c.directions, c.hidden), state.dtype)
    b.call_numpy(give_state, state, final)
    return final


def _emit_lengths(b: Builder, c: Cells, lengths: Operand | None) -> Operand:
    return b.constant(np.full(c.batch, c.steps, np.int32)) if lengths is None else lengths


def _activations(
    node: Node, kind: str, directions: int, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Numbers of all activations and their parameters (alpha, beta of each)."""
    names = node.attrs.get("activations") or _DEFAULTS[kind] * directions
    alphas = list(node.attrs.get("activation_alpha") or ())
    betas = list(node.attrs.get("activation_beta") or ())
    codes, parameters = [], []
    for given in names:
        name = _NAMES[given.lower()]
        code, alpha, beta = ACTIVATIONS[name]
        if name in _NEEDS_ALPHA and alphas:
            alpha = alphas.pop(0)
        if name in _NEEDS_BETA and betas:
            beta = betas.pop(0)
        codes.append(code)
        parameters += [alpha, beta]
    return np.array(codes, np.int64), np.array(parameters, dtype)


def _attributes(
    b: Builder, node: Node, kind: str, c: Cells, dtype: np.dtype[Any]
) -> tuple[Operand, Operand, Operand, Operand, Any]:
    """``shape, reverse, codes, parameters, clip`` as the loops take them."""
    codes, parameters = _activations(node, kind, c.directions, dtype)
    reverse = {"forward": [0], "reverse": [1]}.get(node.attrs.get("direction", "forward"), [0, 1])
    clip = dtype.type(node.attrs.get("clip") or 0.0)
    return (
        b.constant(c.shape),
        b.constant(np.array(reverse, np.int64)),
        b.constant(codes),
        b.constant(parameters),
        clip,
    )


def _known_activations(node: Node) -> Reason | None:
    for name in node.attrs.get("activations") or ():
        if name.lower() not in _NAMES:
            return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"activation is '{name}'")
    return None


_TYPES = {0: ALL_FLOATS, 1: ALL_FLOATS, 2: ALL_FLOATS, 3: ALL_FLOATS, 4: LENGTHS, 5: ALL_FLOATS}


@kernel("LSTM", dtypes={**_TYPES, 6: ALL_FLOATS, 7: ALL_FLOATS}, check=_known_activations, since=7)
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
    c = _cells(node, x, w.shape[0], r.shape[2], 4)
    joined = None
    if bias is not None:
        joined = _packed(b, bias, "joined", _joined_bias, (c.directions, 4 * c.hidden))
    products = _emit_input(b, c, x, w, joined)
    recurrent = _packed(b, r, "swapped", _swapped, (c.directions, c.hidden, 4 * c.hidden))
    return _emit_lstm(b, node, c, products, recurrent, lengths, initial_h, initial_c, peepholes)


def _emit_lstm(
    b: Builder,
    node: Node,
    c: Cells,
    products: Operand,
    recurrent: Operand,
    lengths: Operand | None,
    initial_h: Operand | None,
    initial_c: Operand | None,
    peepholes: Operand | None,
    quantized: bool = False,
) -> tuple[Operand, ...]:
    kind = products.dtype
    h, cell = _emit_state(b, c, initial_h, kind), _emit_state(b, c, initial_c, kind)
    if peepholes is None:
        peepholes = b.constant(np.zeros((c.directions, 3 * c.hidden), kind))
    rounded = b.empty((h.size if quantized else 1,), kind)
    y = b.empty(c.y_shape, kind)
    tensors = (products, recurrent, peepholes, _emit_lengths(b, c, lengths), h, cell, rounded, y)
    b.call(
        lstm_loop,
        *(b.flat(tensor) for tensor in tensors),
        *_attributes(b, node, "LSTM", c, kind),
        int(node.attrs.get("input_forget", 0)),
        int(quantized),
        work=c.work,
    )
    return y, _final(b, c, h), _final(b, c, cell)


@kernel("GRU", dtypes=_TYPES, check=_known_activations, since=7)
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
    c = _cells(node, x, w.shape[0], r.shape[2], 3)
    reset_after = int(node.attrs.get("linear_before_reset", 0))
    late = b.constant(np.zeros((c.directions, c.hidden), x.dtype))
    early = None
    if bias is not None:
        fn, key = (_early_bias, "early") if reset_after else (_joined_bias, "joined")
        early = _packed(b, bias, key, fn, (c.directions, 3 * c.hidden))
        if reset_after:
            late = _packed(b, bias, "late", _late_bias, (c.directions, c.hidden))
    products = _emit_input(b, c, x, w, early)
    recurrent = _packed(b, r, "swapped gru", _swapped_gru, (c.directions, 3 * c.hidden**2))
    h = _emit_state(b, c, initial_h, x.dtype)
    rooms, y = b.empty((h.size,), x.dtype), b.empty(c.y_shape, x.dtype)
    tensors = (products, recurrent, late, _emit_lengths(b, c, lengths), h, rooms, y)
    b.call(
        gru_loop,
        *(b.flat(tensor) for tensor in tensors),
        *_attributes(b, node, "GRU", c, x.dtype),
        reset_after,
        work=c.work,
    )
    return y, _final(b, c, h)


@kernel("RNN", dtypes=_TYPES, check=_known_activations, since=7)
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
    c = _cells(node, x, w.shape[0], r.shape[2], 1)
    joined = None
    if bias is not None:
        joined = _packed(b, bias, "joined", _joined_bias, (c.directions, c.hidden))
    products = _emit_input(b, c, x, w, joined)
    recurrent = _packed(b, r, "swapped", _swapped, (c.directions, c.hidden, c.hidden))
    h = _emit_state(b, c, initial_h, x.dtype)
    y = b.empty(c.y_shape, x.dtype)
    tensors = (products, recurrent, _emit_lengths(b, c, lengths), h, y)
    b.call(
        rnn_loop,
        *(b.flat(tensor) for tensor in tensors),
        *_attributes(b, node, "RNN", c, x.dtype),
        work=c.work,
    )
    return y, _final(b, c, h)


def dequantize_weights(weights: Array, scale: Array, zero: Array, out: Array) -> None:
    """8-bit weights of each direction as float32; one scale per direction or per column."""
    levels = weights.astype(np.float32) - zero.astype(np.float32).reshape(len(weights), 1, -1)
    np.multiply(levels, scale.reshape(len(weights), 1, -1), out=out)


def _emit_weights(b: Builder, weights: Operand, scale: Operand, zero: Operand) -> Operand:
    if weights.const is not None and scale.const is not None and zero.const is not None:
        grid = b.value(scale), b.value(zero)

        def dequantized(array: Array) -> Array:
            out = np.empty(array.shape, np.float32)
            dequantize_weights(array, *grid, out)
            return out

        key = "float32 " + b"".join(part.tobytes() for part in grid).hex()
        return b.prepack(weights, key, dequantized)
    out = b.empty(weights.shape, np.float32)
    b.call_numpy(dequantize_weights, weights, scale, zero, out)
    return out


@kernel(
    "DynamicQuantizeLSTM",
    domain="com.microsoft",
    dtypes={
        0: F32,
        1: BYTES,
        2: BYTES,
        3: F32,
        4: LENGTHS,
        5: F32,
        6: F32,
        7: F32,
        8: F32,
        10: F32,
    },
    check=_known_activations,
)
def dynamic_quantize_lstm(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    r: Operand,
    bias: Operand | None,
    lengths: Operand | None,
    initial_h: Operand | None,
    initial_c: Operand | None,
    peepholes: Operand | None,
    w_scale: Operand,
    w_zero: Operand,
    r_scale: Operand,
    r_zero: Operand,
) -> tuple[Operand, ...]:
    """Onnxruntime's LSTM on 8-bit weights, its input and states quantised by their range.

    Quantised factors are exact in float32, so that the products are computed there.
    """
    c = _cells(node, x, w.shape[0], r.shape[1], 4)
    if x.size:
        quantized, scale, zero = emit_dynamic_quantize(b, x)
        x = emit_dequantize(b, quantized, scale, zero)
    joined = None
    if bias is not None:
        joined = _packed(b, bias, "joined", _joined_bias, (c.directions, 4 * c.hidden))
    products = _emit_input(b, c, x, _emit_weights(b, w, w_scale, w_zero), joined, flip=False)
    recurrent = _emit_weights(b, r, r_scale, r_zero)
    return _emit_lstm(
        b, node, c, products, recurrent, lengths, initial_h, initial_c, peepholes, quantized=True
    )
