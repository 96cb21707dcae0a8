"""Models computed in float16 on device OPENCL, and models of float16, against float32 results."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita.storage.cache_folder import CACHE_VARIABLE
from partita_opencl.device.device import find_device
from partita_opencl.drivers import trial_process
from partita_opencl.trials import kernel_trial, matrix_unit_checks, standing_processes
from partita_opencl.trials.matrix_unit_checks import Units

from ..comparison import TILINGS, build, compiled, expected, floats, int64s, single
from ..runtime.test_opencl_engine import residual_network


def check_half(model, feeds, bound=2e-3, precision="f16"):
    """The relative error of every output, by the Frobenius norm, per tiling."""
    wanted = expected(model, feeds)
    for tiling in TILINGS:
        built = compiled(model, INFERENCE_PRECISION_HINT=precision, TILING=tiling)
        request = built.create_infer_request()
        for mine, theirs in zip(request.infer(feeds).to_tuple(), wanted, strict=True):
            found = np.array(mine)
            assert found.dtype == theirs.dtype
            assert found.shape == theirs.shape
            assert np.linalg.norm(found - theirs) <= bound * np.linalg.norm(theirs)


SINGLES = [
    ("MatMul", [floats(9, 80), floats(80, 40, seed=1)], {}),
    ("MatMul", [floats(2, 9, 33), floats(33, 7, seed=1)], {}),
    ("MatMul", [floats(1, 200), floats(200, 33, seed=1)], {}),
    ("MatMul", [floats(3, 700), floats(700, 40, seed=1)], {}),
    ("MatMul", [floats(9, 5000), floats(5000, 20, seed=1)], {}),
    ("Gemm", [floats(9, 8), floats(7, 8, seed=1), floats(7, seed=2)], {"transB": 1}),
    ("Conv", [floats(2, 3, 9, 11), floats(5, 3, 3, 3, seed=1)], {"pads": [1, 1, 1, 1]}),
    ("Conv", [floats(1, 32, 9, 12), floats(6, 32, 3, 3, seed=1), floats(6)], {}),
    ("Conv", [floats(1, 16, 6, 10), floats(8, 16, 1, 1, seed=1)], {}),
    ("Conv", [floats(1, 6, 8, 9), floats(6, 1, 3, 3, seed=1)], {"group": 6}),
    ("ConvTranspose", [floats(1, 4, 5, 6), floats(4, 3, 2, 2, seed=1)], {"strides": [2, 2]}),
    ("MaxPool", [floats(1, 3, 9, 11)], {"kernel_shape": [3, 3]}),
    ("AveragePool", [floats(1, 3, 9, 11)], {"kernel_shape": [2, 2]}),
    ("GlobalAveragePool", [floats(1, 5, 150, 150) + 20], {}),
    ("ReduceMean", [floats(3, 4, 5)], {}),
    ("ReduceL2", [floats(3, 40)], {"axes": [1]}),
    ("Softmax", [floats(3, 70)], {}),
    ("Softmax", [floats(3, 7, 5)], {"axis": 1}),
    ("LRN", [floats(1, 6, 5, 5)], {"size": 3}),
    ("Add", [floats(4, 5), floats(5, seed=1)], {}),
    ("Mul", [floats(4, 5, 3, 2), floats(5, 1, 1, seed=1)], {}),
    ("Tanh", [floats(30)], {}),
    ("Transpose", [floats(3, 4, 5)], {"perm": [2, 0, 1]}),
    ("Concat", [floats(3, 4), floats(3, 2, seed=1)], {"axis": 1}),
    ("InstanceNormalization", [floats(2, 3, 5, 5), floats(3, seed=1), floats(3, seed=2)], {}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attrs"), SINGLES)
def test_operators_in_half(op_type, inputs, attrs):
    opset = 13 if op_type == "ReduceL2" else 18
    model, feeds = single(op_type, inputs, attrs, opset=opset)
    check_half(model, feeds)
    constant = tuple(range(1, len(inputs)))
    model, feeds = single(op_type, inputs, attrs, opset=opset, constant=constant)
    check_half(model, feeds)


def test_a_network_in_half():
    model, feeds = residual_network()
    check_half(model, feeds)


def test_the_position_of_the_largest_element():
    x = np.random.default_rng(0).permutation(60).reshape(3, 20).astype(np.float32)
    for axis in (0, 1):
        model, feeds = single("ArgMax", [x], {"axis": axis})
        check_half(model, feeds)


def test_resizing_in_half():
    inputs = [floats(1, 2, 5, 6), None, np.array([1, 1, 2, 2], np.float32)]
    for mode in ("nearest", "linear"):
        model, feeds = single("Resize", inputs, {"mode": mode}, constant=(2,))
        check_half(model, feeds)


def test_layer_normalization_in_half():
    inputs = [floats(4, 64), floats(64, seed=1), floats(64, seed=2)]
    model, feeds = single("LayerNormalization", inputs, constant=(1, 2))
    check_half(model, feeds)


def test_constants_that_a_half_cannot_hold():
    nodes = [
        helper.make_node("Sub", ["x", "x"], ["zero"]),
        helper.make_node("Add", ["zero", "epsilon"], ["small"]),
        helper.make_node("Sqrt", ["small"], ["root"]),
        helper.make_node("Mul", ["root", "million"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array(1e-12, np.float32), "epsilon"),
        numpy_helper.from_array(np.array(1e6, np.float32), "million"),
    ]
    feeds = {"x": floats(5)}
    check_half(build(nodes, feeds, ["y"], weights), feeds)


def test_an_epsilon_that_a_half_cannot_hold_divides_what_is_stored():
    """Broadcast, so that the sum is stored before it divides: 0 / 0 then."""
    nodes = [
        helper.make_node("Relu", ["x"], ["part"]),
        helper.make_node("ReduceSum", ["part", "axis"], ["total"]),
        helper.make_node("Add", ["total", "epsilon"], ["divisor"]),
        helper.make_node("Div", ["part", "divisor"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.array([1e-15], np.float32), "epsilon"),
        numpy_helper.from_array(int64s(1), "axis"),
    ]
    x = floats(4, 9)
    x[1] = -1
    model = build(nodes, {"x": x}, ["y"], weights, opset=18)
    check_half(model, {"x": x})


@pytest.mark.parametrize("by_split", [False, True])
@pytest.mark.parametrize("units", [False, True])
def test_linear_attention_whose_sums_a_half_cannot_hold(request, by_split, units):
    """As EfficientViT has it: ones beside the values, whose sums divide those of the values."""
    if units:
        request.getfixturevalue("matrix_units")
    parts = [
        helper.make_node("Slice", ["sums", "zero", "last", "axis"], ["upper"]),
        helper.make_node("Slice", ["sums", "last", "end", "axis"], ["lower"]),
    ]
    if by_split:
        parts = [helper.make_node("Split", ["sums", "sizes"], ["upper", "lower"], axis=-1)]
    nodes = [
        helper.make_node("Relu", ["q"], ["queries"]),
        helper.make_node("Relu", ["k"], ["keys"]),
        helper.make_node("Pad", ["v", "pads", "one"], ["values"]),
        helper.make_node("Transpose", ["keys"], ["across"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["across", "values"], ["inner"]),
        helper.make_node("MatMul", ["queries", "inner"], ["sums"]),
        *parts,
        helper.make_node("Add", ["lower", "epsilon"], ["divisor"]),
        helper.make_node("Div", ["upper", "divisor"], ["quotient"]),
        helper.make_node("Transpose", ["quotient"], ["y"], perm=[0, 1, 3, 2]),
    ]
    weights = [
        numpy_helper.from_array(int64s(0, 0, 0, 0, 0, 0, 0, 1), "pads"),
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array(1e-5, np.float32), "epsilon"),
        numpy_helper.from_array(int64s(8, 1), "sizes"),
        *(
            numpy_helper.from_array(int64s(number), name)
            for name, number in {"zero": 0, "last": -1, "end": 2**31, "axis": -1}.items()
        ),
    ]
    feeds = {name: 20 * floats(1, 3, 196, 8, seed=seed) for seed, name in enumerate("qkv")}
    names = {name for node in nodes for name in node.input}
    weights = [weight for weight in weights if weight.name in names]
    check_half(build(nodes, feeds, ["y"], weights, opset=18), feeds)


@pytest.mark.parametrize("kept", [(2, 3), (0, 3), (0, 0)])
def test_rows_of_which_everything_is_masked_have_a_softmax(kept):
    """By the least float32, as exporters write masks: of attention, given or constant."""
    least = np.finfo(np.float32).min
    nodes = [
        helper.make_node("Sub", ["one", "mask"], ["left_out"]),
        helper.make_node("Mul", ["left_out", "least"], ["low"]),
        helper.make_node("Add", ["x", "low"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"]),
        helper.make_node("Add", ["x", "lows"], ["again"]),
        helper.make_node("Softmax", ["again"], ["z"]),
    ]
    mask = np.zeros((2, 1, 3), np.float32)
    for row, count in enumerate(kept):
        mask[row, :, :count] = 1
    weights = [
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array(least, np.float32), "least"),
        numpy_helper.from_array((1 - mask) * least, "lows"),
    ]
    feeds = {"x": floats(2, 5, 3), "mask": mask}
    model = build(nodes, feeds, ["y", "z"], weights)
    check_half(model, feeds, bound=3e-3)
    check_half(model, feeds, bound=2e-2, precision="bf16")


def test_integers_and_outputs_that_are_inputs_keep_their_types():
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Add", ["n", "n"], ["sum"]),
        helper.make_node("Cast", ["n"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "x"], ["y"]),
        helper.make_node("Relu", ["x"], ["relu"]),
    ]
    feeds = {"x": floats(3), "n": int64s(1, 2, 3)}
    check_half(build(nodes, feeds, ["same", "dims", "sum", "real", "y", "relu"]), feeds)


def test_doubles_that_are_moved_stay_doubles():
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"]),
        helper.make_node("Identity", ["x"], ["same"]),
    ]
    feeds = {"x": np.array([[1, 1 + 2.0**-40], [1e-300, -2]])}
    model = build(nodes, feeds, ["turned", "same"])
    found = compiled(model, INFERENCE_PRECISION_HINT="f16").create_infer_request().infer(feeds)
    for mine, due in zip(found.to_tuple(), (feeds["x"].T, feeds["x"]), strict=True):
        np.testing.assert_array_equal(mine, due, strict=True)


def test_sums_are_taken_in_single_precision():
    x = np.full((1, 5000), 20, np.float32)
    model, feeds = single("ReduceMean", [x])
    check_half(model, feeds)
    model, feeds = single("MatMul", [x, np.full((5000, 3), 0.5, np.float32)], constant=(1,))
    check_half(model, feeds)


def test_models_of_halves():
    x = floats(2, 5, 8).astype(np.float16)
    w = floats(8, 6, seed=1).astype(np.float16)
    for inputs, op_type in (([x, w], "MatMul"), ([x], "Softmax"), ([x, x], "Add")):
        model, feeds = single(op_type, inputs)
        wide, wide_feeds = single(op_type, [array.astype(np.float32) for array in inputs])
        wanted = expected(wide, wide_feeds)[0]
        found = np.array(compiled(model).create_infer_request().infer(feeds)[0])
        assert found.dtype == np.float16
        assert np.linalg.norm(found - wanted) <= 2e-3 * np.linalg.norm(wanted)


def test_the_precision_can_be_read_back():
    model, _ = single("Neg", [floats(3)])
    built = compiled(model, INFERENCE_PRECISION_HINT="f16")
    assert built.get_property("INFERENCE_PRECISION_HINT") == "f16"


CONVOLUTIONS = [
    ((1, 3, 9, 11), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 32, 9, 12), (40, 32, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 64, 8, 8), (24, 64, 1, 1), {}),
    ((1, 512, 3, 3), (16, 512, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 64, 5, 7), (8, 32, 3, 3), {"group": 2}),
]


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize(("x", "w", "attrs"), CONVOLUTIONS)
def test_convolutions_on_matrix_units(x, w, attrs):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], **attrs),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weights = [numpy_helper.from_array(floats(*w, seed=1), "w")]
    weights.append(numpy_helper.from_array(floats(w[0], seed=2), "b"))
    feeds = {"x": floats(*x)}
    check_half(build(nodes, feeds, ["y"], weights), feeds)


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((9, 5000), (5000, 24)),
        ((70, 96), (96, 130)),
        ((33, 45), (45, 37)),
        ((2, 3, 17, 40), (2, 3, 40, 16)),
    ],
)
def test_products_on_matrix_units(a, b):
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "bias"], ["d"]),
        helper.make_node("Add", ["d", "r"], ["y"]),
    ]
    weights = [numpy_helper.from_array(floats(b[-1], seed=2), "bias")]
    feeds = {"a": floats(*a), "b": floats(*b, seed=1), "r": floats(*a[:-1], b[-1], seed=3)}
    check_half(build(nodes, feeds, ["y"], weights), feeds)


@pytest.mark.usefixtures("matrix_units")
def test_a_network_on_matrix_units():
    model, feeds = residual_network()
    check_half(model, feeds)


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("channels", [6, 24])
def test_one_channel_gates_all_others_on_matrix_units(channels):
    """Channels are filled up to eight in memory: of one, seven more would mean nothing."""
    shape = (1, channels, 6, 7)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Conv", ["a", "gates"], ["g"]),
        helper.make_node("Sigmoid", ["g"], ["gate"]),
        helper.make_node("Mul", ["a", "gate"], ["gated"]),
        helper.make_node("Add", ["gate", "shift"], ["shifted"]),
        helper.make_node("Max", ["gated", "shifted", "g"], ["y"]),
        helper.make_node("Add", ["g", "gate"], ["z"]),
    ]
    weights = [
        numpy_helper.from_array(floats(channels, 16, 1, 1, seed=1), "w"),
        numpy_helper.from_array(floats(1, channels, 1, 1, seed=2), "gates"),
        numpy_helper.from_array(floats(channels, 1, 1, seed=3), "shift"),
    ]
    feeds = {"x": floats(1, 16, *shape[2:])}
    check_half(build(nodes, feeds, ["y", "z"], weights), feeds)


@pytest.fixture
def untried(monkeypatch, tmp_path):
    """No verdict on matrix units is known, and a folder to keep one in."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    kernel_trial.forget()
    standing_processes.end_all()
    yield
    kernel_trial.forget()


@pytest.mark.usefixtures("untried")
def test_the_trial_passes_in_a_process_of_its_own_and_is_remembered(monkeypatch):
    device = find_device("")
    assert kernel_trial.objections(device, {Units.MATRIX: [0]}) == {Units.MATRIX: ""}
    kernel_trial.forget()
    monkeypatch.setattr(standing_processes, "lend", None)  # a second trial would fail
    assert kernel_trial.objections(device, {Units.MATRIX: [0]}) == {Units.MATRIX: ""}


@pytest.fixture
def failing_trial(monkeypatch):
    """A device that seems to have matrix units, whose trials run other code meanwhile."""
    device = find_device("")
    monkeypatch.setattr(device, "limits", replace(device.limits, matrix_units=True))

    @contextmanager
    def failing(code):
        start = f"print('{{{{\"ready\": true}}}}')\n{code}"
        with monkeypatch.context() as patch:
            patch.setattr(trial_process, "START", start)
            yield

    return failing


@pytest.mark.usefixtures("untried")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.stderr.write('boom'); raise SystemExit(1)", "exit code 1 (boom)"),
        ("raise ValueError('boom')", "exit code 1 (ValueError: boom)"),
        ("import os; os.abort()", "SIGABRT"),
    ],
)
def test_how_a_trial_fails_is_told(failing_trial, code, reason):
    with failing_trial(code):
        assert reason in kernel_trial.objections(find_device(""), {Units.MATRIX: [0]})[Units.MATRIX]


@pytest.mark.usefixtures("untried")
def test_a_trial_that_fails_costs_the_matrix_units_only(failing_trial):
    with failing_trial("import os; os.abort()"):
        kernel_trial.objections(find_device(""), {Units.MATRIX: [0]})
    model, feeds = residual_network()
    built = compiled(model, INFERENCE_PRECISION_HINT="f16", TILING="LOCAL")
    assert not built.device_model.tuning.matrix_units
    check_half(model, feeds)


def test_a_product_that_is_wrong_fails_the_trial(monkeypatch):
    monkeypatch.setattr(matrix_unit_checks, "error_of", lambda *_, **__: float("nan"))
    tiles = matrix_unit_checks.product_tiles.STREAM_TILES
    assert matrix_unit_checks.fault("0", Units.MATRIX, 0).endswith("is off by nan")
    assert matrix_unit_checks.product_tiles.STREAM_TILES is tiles
