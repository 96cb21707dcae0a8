"""LSTM, GRU and RNN against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from judge import onnxruntime_results, weight_range
from recurrent_cells import ACTIVATIONS, DIRECTIONS, GATES
from single_op import assert_same, check, model_of, normal, run_ours

STEPS, BATCH, WIDTH, HIDDEN = 7, 3, 5, 11


def inputs_of(op_type, direction="forward", *, bias=True, lengths=None, initial=False, peep=False):
    """All inputs of a recurrent operator, absent ones as None."""
    d, gates = DIRECTIONS[direction], GATES[op_type]
    x = normal(1, STEPS, BATCH, WIDTH)
    w = normal(2, d, gates * HIDDEN, WIDTH) * np.float32(0.4)
    r = normal(3, d, gates * HIDDEN, HIDDEN) * np.float32(0.4)
    given = [x, w, r, normal(4, d, 2 * gates * HIDDEN) if bias else None]
    given.append(None if lengths is None else np.array(lengths, np.int32))
    given.append(normal(5, d, BATCH, HIDDEN) if initial else None)
    if op_type == "LSTM":
        given.append(normal(6, d, BATCH, HIDDEN) if initial else None)
        given.append(normal(7, d, 3 * HIDDEN) if peep else None)
    while given[-1] is None:
        given.pop()
    return given


def check_cells(op_type, inputs, direction="forward", **attributes):
    check(
        op_type,
        inputs,
        outputs=3 if op_type == "LSTM" else 2,
        opset=14,
        direction=direction,
        hidden_size=HIDDEN,
        rtol=1e-5,
        atol=2e-6,
        **attributes,
    )


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("constants", [(), (1, 2, 3)])
def test_directions(op_type, direction, constants):
    check_cells(op_type, inputs_of(op_type, direction), direction, constants=constants)


@pytest.mark.parametrize("op_type", GATES)
def test_without_bias(op_type):
    check_cells(op_type, inputs_of(op_type, bias=False))


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lengths_and_initial_states(op_type, direction):
    inputs = inputs_of(op_type, direction, lengths=[7, 2, 5], initial=True)
    check_cells(op_type, inputs, direction)


def test_a_length_beyond_the_end_is_cut():
    inputs = inputs_of("RNN", lengths=[7, 7, 7])
    whole = run_ours("RNN", inputs, hidden_size=HIDDEN, outputs=2, opset=14)
    inputs[4][:] = 1000
    cut = run_ours("RNN", inputs, hidden_size=HIDDEN, outputs=2, opset=14)
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_with_peepholes(direction):
    inputs = inputs_of("LSTM", direction, initial=True, peep=True)
    check_cells("LSTM", inputs, direction)


def test_lstm_with_coupled_gates():
    check_cells("LSTM", inputs_of("LSTM", initial=True), input_forget=1)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_gru_with_reset_after_the_product(direction):
    inputs = inputs_of("GRU", direction, initial=True)
    check_cells("GRU", inputs, direction, linear_before_reset=1)


@pytest.mark.parametrize("op_type", ["LSTM", "RNN"])
def test_clip(op_type):
    check_cells(op_type, inputs_of(op_type), clip=0.4)


@pytest.mark.parametrize(("activations", "parameters"), ACTIVATIONS)
def test_other_activations(activations, parameters):
    check_cells("LSTM", inputs_of("LSTM"), activations=activations, **parameters)


def test_activations_of_both_directions():
    check_cells(
        "RNN",
        inputs_of("RNN", "bidirectional"),
        "bidirectional",
        activations=["Tanh", "LeakyRelu"],
        activation_alpha=[0.2],
    )


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first(op_type):
    d = 2
    steps_first = inputs_of(op_type, "bidirectional", lengths=[7, 2, 5], initial=True)
    arguments = {"hidden_size": HIDDEN, "direction": "bidirectional", "opset": 14}
    outputs = 3 if op_type == "LSTM" else 2
    y, *states = run_ours(op_type, steps_first, outputs=outputs, **arguments)
    batch_first = list(steps_first)
    for position in (0, 5, 6):
        if position < len(batch_first):
            batch_first[position] = np.ascontiguousarray(batch_first[position].swapaxes(0, 1))
    got_y, *got = run_ours(op_type, batch_first, outputs=outputs, layout=1, **arguments)
    assert got_y.shape == (BATCH, STEPS, d, HIDDEN)
    np.testing.assert_allclose(got_y, y.transpose(2, 0, 1, 3), rtol=1e-6, atol=1e-7)
    for one, other in zip(got, states, strict=True):
        np.testing.assert_allclose(one, other.swapaxes(0, 1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("batch", range(1, 8))
def test_sequences_give_the_same_beside_others(op_type, batch):
    inputs = inputs_of(op_type, "bidirectional")
    inputs[0] = normal(1, STEPS, batch, WIDTH)
    arguments = {"hidden_size": HIDDEN, "direction": "bidirectional", "opset": 14}
    outputs = 3 if op_type == "LSTM" else 2
    check_cells(op_type, inputs, "bidirectional", constants=(1, 2, 3))
    together = run_ours(op_type, inputs, outputs=outputs, **arguments)
    for number in range(batch):
        own = [inputs[0][:, number : number + 1], *inputs[1:]]
        alone = run_ours(op_type, own, outputs=outputs, **arguments)
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[..., 0, :], other[..., number, :])


def test_float64():
    inputs = [x.astype(np.float64) for x in inputs_of("GRU")[:4]]
    single = run_ours("GRU", inputs_of("GRU")[:4], outputs=2, opset=14, hidden_size=HIDDEN)
    double = run_ours("GRU", inputs, outputs=2, opset=14, hidden_size=HIDDEN)
    for one, other in zip(double, single, strict=True):
        assert_same(one.astype(np.float32), other, 1e-5, 1e-6)


def test_no_steps():
    inputs = inputs_of("LSTM", initial=True)
    inputs[0] = inputs[0][:0]
    y, h, c = run_ours("LSTM", inputs, outputs=3, opset=14, hidden_size=HIDDEN)
    assert y.shape == (0, 1, BATCH, HIDDEN)
    np.testing.assert_array_equal(h, inputs[5])
    np.testing.assert_array_equal(c, inputs[6])


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_lstm_on_bytes(direction, per_column, dtype):
    # With several batch elements onnxruntime's result depends on its number of threads.
    d = DIRECTIONS[direction]
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    columns = (d, 4 * HIDDEN) if per_column else (d,)

    def weights(*shape):
        low, high = weight_range() if dtype is np.int8 else (limits.min, limits.max)
        return rng.integers(low, high + 1, shape).astype(dtype)

    zero = np.full(columns, 0 if dtype is np.int8 else 128, dtype)
    quantized = [
        rng.uniform(0.002, 0.008, columns).astype(np.float32) if part % 2 == 0 else zero
        for part in range(4)
    ]
    inputs = [
        normal(1, STEPS, 1, WIDTH),
        weights(d, WIDTH, 4 * HIDDEN),
        weights(d, HIDDEN, 4 * HIDDEN),
        normal(2, d, 8 * HIDDEN),
        None,
        None,
        None,
        None,
        *quantized,
    ]
    arguments = {
        "domain": "com.microsoft",
        "outputs": 3,
        "direction": direction,
        "hidden_size": HIDDEN,
        "constants": [1, 2, 8, 9, 10, 11],
    }
    model = model_of("DynamicQuantizeLSTM", inputs, **arguments)
    expected = onnxruntime_results(model, {"x0": inputs[0], "x3": inputs[3]})
    got = run_ours("DynamicQuantizeLSTM", inputs, **arguments)
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other, 1e-4, 1e-5)
