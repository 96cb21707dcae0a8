"""LSTM, GRU and RNN on device OPENCL, against onnxruntime."""

from dataclasses import replace

import numpy as np
import pytest
from recurrent_cells import ACTIVATIONS, DIRECTIONS, GATES

from partita_opencl.device.device import find_device
from partita_opencl.drivers.program_cache import ProgramCache

from .. import half_networks
from ..comparison import TILINGS, check, compiled, floats, single

HIDDEN = 11


def arrays_of(
    op_type,
    direction="forward",
    *,
    bias=True,
    lengths=None,
    initial=False,
    peep=False,
    hidden=HIDDEN,
):
    """All inputs of an operator, ``None`` for absent ones."""
    directions, gates = DIRECTIONS[direction], GATES[op_type]
    given = [
        floats(7, 3, 5),
        floats(directions, gates * hidden, 5, seed=1) * np.float32(0.4),
        floats(directions, gates * hidden, hidden, seed=2) * np.float32(1.3 * hidden**-0.5),
        floats(directions, 2 * gates * hidden, seed=3) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        floats(directions, 3, hidden, seed=4) if initial else None,
    ]
    if op_type == "LSTM":
        given.append(floats(directions, 3, hidden, seed=5) if initial else None)
        given.append(floats(directions, 3 * hidden, seed=6) if peep else None)
    while given[-1] is None:
        given.pop()
    return given


def model_of(op_type, arrays, direction="forward", *, constant=(), dynamic=False, **attrs):
    attrs = {"direction": direction, "hidden_size": HIDDEN, **attrs}
    outputs = 3 if op_type == "LSTM" else 2
    how = {"outputs": outputs, "opset": 14, "constant": constant, "dynamic": dynamic}
    return single(op_type, arrays, attrs, **how)


def check_cells(op_type, arrays, direction="forward", **how):
    check(*model_of(op_type, arrays, direction, **how), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_as_drivers_optimize_it(monkeypatch, op_type):
    """PoCL's optimizer lost sums that some items alone changed behind a barrier."""
    monkeypatch.delenv("POCL_EXTRA_BUILD_FLAGS")
    model, feeds = model_of(op_type, arrays_of(op_type), constant=(1, 2, 3))
    check(model, feeds, rtol=1e-5, atol=3e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("constant", [(), (1, 2, 3)])
def test_directions(op_type, direction, constant):
    check_cells(op_type, arrays_of(op_type, direction), direction, constant=constant)


@pytest.mark.parametrize("op_type", GATES)
def test_without_bias(op_type):
    check_cells(op_type, arrays_of(op_type, bias=False))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lengths_and_initial_states(op_type, direction):
    arrays = arrays_of(op_type, direction, lengths=[7, 2, 5], initial=True)
    check_cells(op_type, arrays, direction, constant=(1, 2, 3))


@pytest.mark.parametrize("length", [8, 2**31 - 1, -1, -(2**31)])
def test_lengths_that_sequences_do_not_have_are_cut(length):
    due = {True: 7, False: 0}[length > 0]
    arrays = arrays_of("GRU", lengths=[7, due, 5])
    model, feeds = model_of("GRU", arrays)
    wanted = compiled(model)(feeds).values()
    found = compiled(model)({**feeds, "x4": np.array([7, length, 5], np.int32)}).values()
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert due or not next(iter(found))[:, :, 1].any()


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_with_peepholes(direction):
    arrays = arrays_of("LSTM", direction, initial=True, peep=True)
    check_cells("LSTM", arrays, direction)


def test_lstm_with_coupled_gates():
    check_cells("LSTM", arrays_of("LSTM", initial=True), input_forget=1)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("bias", [False, True])
def test_gru_with_reset_after_the_product(direction, bias):
    arrays = arrays_of("GRU", direction, initial=True, bias=bias)
    check_cells("GRU", arrays, direction, linear_before_reset=1)


@pytest.mark.parametrize("op_type", ["LSTM", "RNN"])
def test_clip(op_type):
    check_cells(op_type, arrays_of(op_type), clip=0.4)


@pytest.mark.parametrize(("activations", "parameters"), ACTIVATIONS)
def test_other_activations(activations, parameters):
    check_cells("LSTM", arrays_of("LSTM"), activations=activations, **parameters)


def test_activations_of_both_directions():
    attrs = {"activations": ["Tanh", "LeakyRelu"], "activation_alpha": [0.2]}
    check_cells("RNN", arrays_of("RNN", "bidirectional"), "bidirectional", **attrs)


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first(op_type):
    arrays = arrays_of(op_type, "bidirectional", lengths=[7, 2, 5], initial=True)
    model, feeds = model_of(op_type, arrays, "bidirectional")
    y, *states = compiled(model)(feeds).values()
    turned = [x.swapaxes(0, 1).copy() if n in (0, 5, 6) else x for n, x in enumerate(arrays)]
    model, feeds = model_of(op_type, turned, "bidirectional", layout=1)
    for tiling in TILINGS:
        found, *ends = compiled(model, TILING=tiling)(feeds).values()
        np.testing.assert_allclose(found, y.transpose(2, 0, 1, 3), rtol=1e-6, atol=1e-6)
        for mine, theirs in zip(ends, states, strict=True):
            np.testing.assert_allclose(mine, theirs.swapaxes(0, 1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op_type", GATES)
def test_states_larger_than_local_memory(monkeypatch, op_type):
    device = find_device("")
    monkeypatch.setattr(device, "limits", replace(device.limits, local_bytes=12 * HIDDEN - 1))
    check_cells(op_type, arrays_of(op_type, "bidirectional", initial=True), "bidirectional")


def test_more_elements_than_a_group_has_items():
    arrays = [floats(2, 1, 3), floats(1, 1200, 3, seed=1), floats(1, 1200, 300, seed=2) / 9]
    check(*single("LSTM", arrays, {"hidden_size": 300}, outputs=3, opset=14), atol=1e-5)


@pytest.mark.parametrize("op_type", GATES)
def test_steps_and_sequences_that_vary(op_type):
    arrays = arrays_of(op_type)
    model, feeds = model_of(op_type, arrays, constant=(1, 2, 3))
    for place, name in enumerate(("steps", "batch")):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    others = [{"x0": floats(*shape, 5)} for shape in ((1, 1), (20, 2), (9, 4))]
    check(model, feeds, *others, feeds, rtol=1e-5, atol=3e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_in_half(op_type, precision):
    arrays = arrays_of(op_type, "bidirectional", initial=True)
    model, feeds = model_of(op_type, arrays, "bidirectional", constant=(1, 2, 3))
    rough = {"f16": 1e-2, "bf16": 6e-2}[precision]
    check(model, feeds, rtol=rough, atol=rough, INFERENCE_PRECISION_HINT=precision)


@pytest.mark.parametrize("op_type", GATES)
def test_models_in_float16(op_type):
    arrays = [
        x.astype(np.float16) if x is not None and x.dtype == np.float32 else x
        for x in arrays_of(op_type, initial=True)
    ]
    model, feeds = model_of(op_type, arrays, constant=(1, 2, 3))
    wide = [None if x is None else x.astype(np.float32) for x in arrays]
    single_model, single_feeds = model_of(op_type, wide, constant=(1, 2, 3))
    wanted = compiled(single_model)(single_feeds).values()
    for mine, theirs in zip(compiled(model)(feeds).values(), wanted, strict=True):
        assert mine.dtype == np.float16
        np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("op_type", GATES)
def test_constants_alone(op_type):
    """ONNX's reference, by which the host folds constants, does not know half of it."""
    arrays = arrays_of(op_type, "reverse", lengths=[7, 2, 5], initial=True)
    everything = [n for n, x in enumerate(arrays) if x is not None]
    check_cells(op_type, arrays, "reverse", constant=everything, clip=0.4)


UNITS = [
    ("LSTM", "bidirectional", {"lengths": [7, 2, 5], "initial": True, "peep": True}, {"clip": 0.9}),
    ("LSTM", "reverse", {"bias": False}, {"input_forget": 1}),
    ("LSTM", "forward", {}, {"activations": ["HardSigmoid", "Softsign", "Tanh"]}),
    ("GRU", "bidirectional", {"initial": True, "lengths": [1, 7, 3]}, {"linear_before_reset": 1}),
    ("GRU", "forward", {}, {"linear_before_reset": 1, "clip": 0.5}),
    ("RNN", "bidirectional", {"initial": True}, {}),
]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("hidden", [8, 40, 128])
@pytest.mark.parametrize(("op_type", "direction", "given", "attrs"), UNITS)
def test_matrix_units_keep_weights(op_type, direction, given, attrs, hidden):
    arrays = arrays_of(op_type, direction, hidden=hidden, **given)
    attrs = {"hidden_size": hidden, **attrs}
    constant = (1, 2, 3) if given.get("bias", True) else (1, 2)
    model, feeds = model_of(op_type, arrays, direction, constant=constant, **attrs)
    assert "recurrent_units" in half_networks.check(model, feeds)


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize(("op_type", "direction", "given", "attrs"), UNITS[1:3])
def test_matrix_units_as_drivers_optimize_it(monkeypatch, op_type, direction, given, attrs):
    """PoCL's optimizer let all items share an array that was filled as a whole."""
    monkeypatch.delenv("POCL_EXTRA_BUILD_FLAGS")
    device = find_device("")
    header = device.driver.header
    fresh = ProgramCache(device.context, device.handle, "", on_disk=False, header=header)
    monkeypatch.setattr(type(device), "programs", fresh)  # none that was built otherwise
    test_matrix_units_keep_weights(op_type, direction, given, attrs, 8)


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("op_type", ["LSTM", "RNN"])
def test_matrix_units_and_batch_first(op_type):
    arrays = arrays_of(op_type, "bidirectional", lengths=[7, 2, 5], hidden=16, initial=True)
    arrays = [x.swapaxes(0, 1).copy() if n in (0, 5, 6) else x for n, x in enumerate(arrays)]
    attrs = {"layout": 1, "hidden_size": 16}
    model, feeds = model_of(op_type, arrays, "bidirectional", constant=(1, 2, 3), **attrs)
    found = compiled(model, INFERENCE_PRECISION_HINT="f16", TILING="LOCAL")(feeds).values()
    wanted = compiled(model, TILING="LOCAL")(feeds).values()
    for mine, theirs in zip(found, wanted, strict=True):
        assert np.linalg.norm(mine - theirs) <= 2e-3 * np.linalg.norm(theirs)


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("hidden", [192, 256, 512])
def test_groups_share_states_of_many_elements(hidden):
    arrays = arrays_of("LSTM", "bidirectional", hidden=hidden, lengths=[7, 3, 5], initial=True)
    model, feeds = model_of("LSTM", arrays, "bidirectional", constant=(1, 2, 3), hidden_size=hidden)
    half_networks.check(model, feeds)
    request = compiled(model, INFERENCE_PRECISION_HINT="f16", TILING="LOCAL").create_infer_request()
    first = [np.array(x) for x in request.infer(feeds).to_tuple()]
    for _ in range(20):
        for mine, theirs in zip(first, request.infer(feeds).to_tuple(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
