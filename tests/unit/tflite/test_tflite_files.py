"""Files as a whole: control flow, state, signatures, layouts, circle, and what is refused."""

from __future__ import annotations

import builtins
import itertools

import numpy as np
import pytest
from test_tflite_operators import numbers, run
from tflite_files import File, litert

import partita
from partita.errors import ModelFormatError
from partita.frontends.reader import external_files


def on_cpu(data, runs):
    """The outputs of runs one behind the other on device CPU; LiteRT's as well."""
    model = partita.Core().read_model(data)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    expected = litert(data, runs[0], len(runs)) if all(r is runs[0] for r in runs) else None
    names = [port.name for port in model.inputs]
    found = []
    for feeds in runs:
        results = request.infer(dict(zip(names, feeds, strict=False)))
        found.append([np.array(results[index]) for index in range(len(model.outputs))])
    return found, expected


def assert_agree(data, feeds, runs=1):
    found, expected = on_cpu(data, [feeds] * runs)
    for own, answers in zip(found, expected, strict=True):
        for one, answer in zip(own, answers, strict=False):
            np.testing.assert_allclose(one, answer, rtol=1e-5, atol=1e-6 * (1 + abs(answer).max()))


def read(data, **options):
    return partita.Core().read_model(data, **options)


# ---------------------------------------------------------------------- control flow


def branches():
    file = File()
    main = file.main
    condition, x = main.input((1,), "bool"), main.input((3,))
    for name, code in (("then", "EXP"), ("else", "NEG")):
        graph = file.graph(name)
        place = graph.input((3,))
        graph.outputs(graph.op(code, [place], [graph.tensor((3,))]))
    out = main.tensor((3,))
    fields = {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2}
    main.op("IF", [condition, x], [out], "IfOptions", **fields)
    main.outputs(out)
    return file.bytes()


@pytest.mark.parametrize("condition", [True, False])
def test_one_of_two_subgraphs(condition):
    assert_agree(branches(), [np.array([condition]), numbers((3,))])


def doubling():
    """Doubles a number until it is beyond 100, and counts."""
    file = File()
    main, condition, body = file.main, file.graph("condition"), file.graph("body")
    x, count = condition.input((1,)), condition.input((1,), "int32")
    limit = condition.constant(np.float32([100]))
    condition.outputs(condition.op("LESS", [x, limit], [condition.tensor((1,), "bool")]))
    x, count = body.input((1,)), body.input((1,), "int32")
    one = body.constant(np.int32([1]))
    body.outputs(
        body.op("ADD", [x, x], [body.tensor((1,))], "AddOptions"),
        body.op("ADD", [count, one], [body.tensor((1,), "int32")], "AddOptions"),
    )
    inputs = [main.input((1,)), main.constant(np.int32([0]))]
    outputs = [main.tensor((1,)), main.tensor((1,), "int32")]
    fields = {"condSubgraphIndex": 1, "bodySubgraphIndex": 2}
    main.op("WHILE", inputs, outputs, "WhileOptions", **fields)
    main.outputs(*outputs)
    return file.bytes()


@pytest.mark.parametrize("start", [3.0, 200.0])
def test_a_loop(start):
    assert_agree(doubling(), [np.float32([start])])


def test_a_loop_that_replaces_rows():
    """As recurrent layers of Keras do: what lies before the first row has no elements."""
    file = File()
    main, condition, body = file.main, file.graph("condition"), file.graph("body")
    i, _, _ = condition.input((1,), "int32"), condition.input((3, 2)), condition.input((1, 2))
    limit = condition.constant(np.int32([3]))
    condition.outputs(condition.op("LESS", [i, limit], [condition.tensor((1,), "bool")]))
    i, rows, row = body.input((1,), "int32"), body.input((3, 2)), body.input((1, 2))
    one, zero, open_end, start, sizes = (
        body.constant(np.array(row_of_numbers, np.int32))
        for row_of_numbers in ([1], [0], [-1], [0, 0], [-1, -1])
    )
    after = body.op("ADD", [i, one], [body.tensor((1,), "int32")], "AddOptions")
    pairs = [body.tensor((2,), "int32") for _ in range(2)]
    for places, pair in zip(([i, open_end], [after, zero]), pairs, strict=True):
        body.op("CONCATENATION", places, [pair], "ConcatenationOptions", axis=0)
    before = body.op("SLICE", [rows, start, pairs[0]], [body.tensor((1, 2))])
    behind = body.op("SLICE", [rows, pairs[1], sizes], [body.tensor((1, 2))])
    joined = body.tensor((3, 2))
    body.op("CONCATENATION", [before, row, behind], [joined], "ConcatenationOptions", axis=0)
    body.outputs(after, joined, body.op("EXP", [row], [body.tensor((1, 2))]))
    zeros = main.constant(np.zeros((3, 2), np.float32))
    inputs = [main.constant(np.int32([0])), zeros, main.input((1, 2))]
    outputs = [main.tensor((1,), "int32"), main.tensor((3, 2)), main.tensor((1, 2))]
    fields = {"condSubgraphIndex": 1, "bodySubgraphIndex": 2}
    main.op("WHILE", inputs, outputs, "WhileOptions", **fields)
    main.outputs(outputs[1])
    row = np.float32([[0.1, -0.5]])
    compiled = partita.Core().compile_model(read(file.bytes()), "CPU")
    expected = np.concatenate([row, np.exp(row), np.exp(np.exp(row))])
    for _ in range(2):
        np.testing.assert_allclose(compiled([row])[0], expected, rtol=1e-6)


def variable(assigned=True):
    """A sum over runs, which begins with 5."""
    file = File()
    main, first = file.main, file.graph("first")
    for graph in (main, first):
        handle = graph.tensor((), "resource")
        graph.op("VAR_HANDLE", [], [handle], "VarHandleOptions", sharedName=b"sum")
        if graph is first:
            value = graph.constant(np.float32([5]))
            graph.op("ASSIGN_VARIABLE", [handle, value], [], "AssignVariableOptions")
            graph.outputs()
            continue
        graph.op("CALL_ONCE", [], [], "CallOnceOptions", initSubgraphIndex=1)
        x = graph.input((1,))
        before = graph.op("READ_VARIABLE", [handle], [graph.tensor((1,))], "ReadVariableOptions")
        after = graph.op("ADD", [before, x], [graph.tensor((1,), name="sum")], "AddOptions")
        if assigned:
            graph.op("ASSIGN_VARIABLE", [handle, after], [], "AssignVariableOptions")
        graph.outputs(after)
    return file.bytes()


def test_a_variable_lasts_from_run_to_run():
    found, _ = on_cpu(variable(), [[np.float32([n])] for n in (1, 2, 3)])
    assert [own[0].item() for own in found] == [6, 8, 11]
    assert_agree(variable(), [np.float32([2])], runs=3)


def test_a_variable_that_nobody_assigns_is_a_constant():
    assert [port.name for port in read(variable(assigned=False)).inputs] == ["t1"]
    assert_agree(variable(assigned=False), [np.float32([2])], runs=2)


@pytest.mark.parametrize("time_major", [False, True])
def test_a_recurrent_layer_keeps_its_state(time_major):
    file, x = File(), numbers((2, 2, 3))
    main = file.main
    places = [main.input(x.shape)]
    places += [main.constant(numbers((4, 3), low=-1, high=1)) for _ in range(4)]
    places += [main.constant(numbers((4, 4), low=-1, high=1)) for _ in range(4)]
    places += [-1, -1, -1, *(main.constant(numbers((4,))) for _ in range(4)), -1, -1]
    places += [main.tensor((2, 4), isVariable=True, name=f"state{i}") for i in range(2)]
    out = main.tensor((2, 2, 4))
    fields = {"fusedActivationFunction": 4, "timeMajor": time_major}
    options = "UnidirectionalSequenceLSTMOptions"
    main.op("UNIDIRECTIONAL_SEQUENCE_LSTM", [*places, *[-1] * 4], [out], options, **fields)
    main.outputs(out)
    assert_agree(file.bytes(), [x], runs=3)


def test_a_plain_recurrent_layer_keeps_its_state():
    file, x = File(), numbers((2, 3, 5))
    main = file.main
    shapes = ((4, 5), (4, 4), (4,))
    places = [main.input(x.shape), *(main.constant(numbers(s, low=-1, high=1)) for s in shapes)]
    places.append(main.tensor((2, 4), isVariable=True))
    out = main.tensor((2, 3, 4))
    options = "SequenceRNNOptions"
    main.op("UNIDIRECTIONAL_SEQUENCE_RNN", places, [out], options, fusedActivationFunction=4)
    main.outputs(out)
    assert_agree(file.bytes(), [x], runs=2)


def test_filters_over_time_keep_their_state():
    file, x = File(), numbers((2, 3))
    main = file.main
    shapes = ((8, 3), (8, 5), (4,))
    places = [main.input(x.shape), *(main.constant(numbers(shape)) for shape in shapes)]
    places.append(main.tensor((2, 40), isVariable=True))
    out = main.tensor((2, 4))
    main.op("SVDF", places, [out], "SVDFOptions", rank=2, fusedActivationFunction=1)
    main.outputs(out)
    assert_agree(file.bytes(), [x], runs=3)


# ------------------------------------------------------------------------ signatures


def two_signatures():
    file = File()
    for name, graph in (("exp", file.main), ("neg", file.graph("other"))):
        x = graph.input((3,), name="x:0")
        y = graph.op(name.upper(), [x], [graph.tensor((3,), name="y:0")])
        graph.outputs(y)
        file.signature(name, {"number": x}, {"result": y}, subgraph=("exp", "neg").index(name))
    return file.bytes()


def test_a_signature_names_inputs_and_outputs():
    model = read(two_signatures(), signature="neg")
    assert [port.name for port in (*model.inputs, *model.outputs)] == ["number", "result"]
    x = numbers((3,))
    compiled = partita.Core().compile_model(model, "CPU")
    np.testing.assert_allclose(compiled({"number": x})["result"], -x)
    np.testing.assert_allclose(compiled({"x:0": x})["y:0"], -x)  # by the names of tensors too
    plain = read(two_signatures())
    assert [port.names for port in plain.inputs] == [{"x:0", "number"}]
    assert [port.name for port in (*plain.inputs, *plain.outputs)] == ["x:0", "y:0"]


def test_a_signature_that_is_not_there_is_refused():
    with pytest.raises(ModelFormatError, match=r"no signature 'ex'; it has 'exp', 'neg'\. Leave"):
        read(two_signatures(), signature="ex")


def test_only_such_files_have_signatures(tmp_path):
    with pytest.raises(
        ModelFormatError, match="does not accept 'signature': it is not a TFLite file"
    ):
        read(b"\x08\x07", signature="serve")
    with pytest.raises(
        ModelFormatError, match="does not accept 'weights': a TFLite file contains its own"
    ):
        read(two_signatures(), weights=b"")
    path = tmp_path / "model.tflite"
    path.write_bytes(two_signatures())
    assert external_files(two_signatures(), path) == []
    assert [port.name for port in read(path).inputs] == ["x:0"]


# -------------------------------------------------------------------------- layouts


def convolution(file, x, channels, out, act=0):
    main = file.main
    w, b = (main.constant(numbers(s)) for s in ((out, 3, 3, channels), (out,)))
    shape = (*file.main.table.tensors[x].shape[:3], out)
    fields = {"padding": 0, "strideW": 1, "strideH": 1, "fusedActivationFunction": act}
    return main.op("CONV_2D", [x, w, b], [main.tensor(shape)], "Conv2DOptions", **fields)


def test_layouts_cancel_between_convolutions():
    """Sums, joins, pads, slices, means, weights by channel: no transposition is left but one."""
    file = File()
    main = file.main
    x = main.input((1, 8, 6, 3))
    a = convolution(file, x, 3, 4, act=1)
    b = convolution(file, a, 4, 4)
    total = main.op("ADD", [a, b], [main.tensor((1, 8, 6, 4))], "AddOptions")
    scale = main.constant(numbers((4,)))
    total = main.op("MUL", [total, scale], [main.tensor((1, 8, 6, 4))], "MulOptions")
    axes, paddings = (
        np.array([1, 2], np.int32),
        np.array([[0, 0], [1, 0], [0, 2], [0, 0]], np.int32),
    )
    gate = main.op(
        "MEAN",
        [a, main.constant(axes)],
        [main.tensor((1, 1, 1, 4))],
        "ReducerOptions",
        keepDims=True,
    )
    gate = main.op("LOGISTIC", [gate], [main.tensor((1, 1, 1, 4))])
    total = main.op("MUL", [total, gate], [main.tensor((1, 8, 6, 4))], "MulOptions")
    total = main.op(
        "PRELU", [total, main.constant(numbers((1, 1, 4)))], [main.tensor((1, 8, 6, 4))]
    )
    joined = main.tensor((1, 8, 6, 8))
    main.op("CONCATENATION", [total, b], [joined], "ConcatenationOptions", axis=3)
    padded = main.op("PAD", [joined, main.constant(paddings)], [main.tensor((1, 9, 8, 8))])
    begin, size = (main.constant(np.array(r, np.int32)) for r in ([0, 1, 0, 2], [1, 5, 8, 5]))
    cut = main.op("SLICE", [padded, begin, size], [main.tensor((1, 5, 8, 5))])
    last = convolution(file, cut, 5, 6)
    mean = main.op("MEAN", [last, main.constant(axes)], [main.tensor((1, 6))], "ReducerOptions")
    main.outputs(mean)
    model = read(file.bytes())
    assert [op.op_type for op in model.ops].count("Transpose") == 1
    assert_agree(file.bytes(), [numbers((1, 8, 6, 3))])


def test_an_image_is_padded_behind_its_transposition():
    """So that a convolution can take the padding as its own; another reader keeps the image."""
    file = File()
    main = file.main
    x = main.input((1, 8, 6, 3))
    around = main.constant(np.array([[0, 0], [1, 2], [3, 0], [0, 0]], np.int32))
    padded = main.op("PAD", [x, around], [main.tensor((1, 11, 9, 3))])
    beside = main.op("NEG", [x], [main.tensor((1, 8, 6, 3))])
    main.outputs(convolution(file, padded, 3, 4), beside)
    model = read(file.bytes())
    kinds = [op.op_type for op in model.ops]
    assert kinds.count("Transpose") == 2
    assert kinds.index("Transpose") < kinds.index("Pad") < kinds.index("Conv")
    (pad,) = (op for op in model.ops if op.op_type == "Pad")
    assert pad.node.inputs[1].const_value.numpy().tolist() == [0, 0, 1, 3, 0, 0, 2, 0]
    assert_agree(file.bytes(), [numbers((1, 8, 6, 3))])


def test_layouts_cancel_across_sequences():
    """A convolution over a sequence is one over rows; axes of size one come and go around it."""
    file = File()
    main = file.main
    rows, shape = (1, 1, 9, 4), (1, 9, 4)
    axis, perm = (main.constant(np.array(r, np.int32)) for r in (1, [0, 2, 1]))
    sizes = main.constant(np.array([-1, 9, 4], np.int32))
    x = main.input(shape)
    image = main.op("EXPAND_DIMS", [x, axis], [main.tensor(rows)])
    first = convolution(file, image, 4, 4)
    flat = main.op("SQUEEZE", [first], [main.tensor(shape)], "SqueezeOptions", squeezeDims=[1])
    image = main.op("EXPAND_DIMS", [flat, axis], [main.tensor(rows)])
    second = convolution(file, image, 4, 4)
    flat = main.op("RESHAPE", [second, sizes], [main.tensor(shape)])
    main.outputs(main.op("TRANSPOSE", [flat, perm], [main.tensor((1, 4, 9))]))
    assert [op.op_type for op in read(file.bytes()).ops].count("Transpose") == 1
    assert_agree(file.bytes(), [numbers(shape)])


def test_a_gate_of_one_number_for_each_channel_does_not_turn_the_image():
    file = File()
    main = file.main
    x, gate = main.input((1, 4, 5, 3)), main.input((1, 1, 1, 4), shapeSignature=[-1, 1, 1, 4])
    a = convolution(file, x, 3, 4)
    gated = main.op("MUL", [a, gate], [main.tensor((1, 4, 5, 4))], "MulOptions")
    b = convolution(file, gated, 4, 4)
    axes = main.constant(np.array([1, 2], np.int32))
    main.outputs(main.op("MEAN", [b, axes], [main.tensor((1, 4))], "ReducerOptions"))
    assert [op.op_type for op in read(file.bytes()).ops].count("Transpose") == 1
    assert_agree(file.bytes(), [numbers((1, 4, 5, 3)), numbers((1, 1, 1, 4))])


def test_a_value_that_both_layouts_read_is_transposed_once():
    file = File()
    main = file.main
    x = main.input((1, 4, 5, 3))
    a = convolution(file, x, 3, 4)
    b = convolution(file, a, 4, 4)
    shape = main.constant(np.array([20, 4], np.int32))
    flat = main.op("RESHAPE", [a, shape], [main.tensor((20, 4))])
    main.outputs(flat, a, b)
    model = read(file.bytes())
    assert [op.op_type for op in model.ops].count("Transpose") == 3
    assert_agree(file.bytes(), [numbers((1, 4, 5, 3))])


def test_any_tensor_may_be_returned():
    """An input, a constant, one tensor twice, and one that others read as well."""
    file = File()
    main = file.main
    x, constant = main.input((3,), name="x"), main.constant(np.float32([1, 2, 3]))
    y = main.op("EXP", [x], [main.tensor((3,), name="y")])
    z = main.op("NEG", [y], [main.tensor((3,), name="y")])
    main.outputs(y, x, constant, y, z)
    names = [port.name for port in read(file.bytes()).outputs]
    assert names == ["y", "x/output", "t1", "y/output", "y/1"]
    assert_agree(file.bytes(), [numbers((3,))])


def test_operations_are_called_after_tensors():
    file = File()
    main = file.main
    x = main.input((1, 4, 5, 3), name="picture")
    w = main.constant(numbers((2, 1, 1, 3)))
    out = main.tensor((1, 4, 5, 2), name="block/conv")
    fields = {"padding": 1, "strideW": 1, "strideH": 1, "fusedActivationFunction": 3}
    main.op("CONV_2D", [x, w], [out], "Conv2DOptions", **fields)
    main.outputs(out)
    model = read(file.bytes())
    assert [op.name for op in model.ops if op.op_type == "Conv"] == ["block/conv"]
    assert [port.name for port in model.outputs] == ["block/conv"]


def test_weights_are_views_of_the_file():
    file = File()
    main = file.main
    main.outputs(convolution(file, main.input((1, 4, 5, 3)), 3, 4))
    data = file.bytes()
    model = read(data)
    whole = np.frombuffer(data, np.uint8)
    weights = [v.const_value.numpy() for v in model.ir.graph.initializers.values()]
    assert any(np.shares_memory(array, whole) for array in weights if array.shape == (4, 3, 3, 3))


def test_sizes_may_stay_open():
    file = File()
    x = file.main.input((1, 3), shapeSignature=[-1, 3], name="x")
    file.main.outputs(file.main.op("EXP", [x], [file.main.tensor((1, 3), shapeSignature=[-1, 3])]))
    model = read(file.bytes())
    assert model.inputs[0].shape[1] == 3
    assert not model.inputs[0].is_static
    many = numbers((5, 3))
    found = partita.Core().compile_model(model, "CPU")({"x": many})[0]
    np.testing.assert_allclose(found, np.exp(many), rtol=1e-6)


# --------------------------------------------------------------------------- circle


def test_a_circle_file_is_read():
    file, x = File(), numbers((2, 3))
    file.table.version = 0
    file.main.outputs(file.main.op("EXP", [file.main.input((2, 3))], [file.main.tensor((2, 3))]))
    np.testing.assert_allclose(run(file.bytes(b"CIR0"), [x])[0], np.exp(x), rtol=1e-6)


def circle(code, options, epsilon, inputs):
    """A circle file of one of circle's own operators, whose options TFLite's schema has not."""
    file = File()
    file.table.version = 0
    main = file.main
    places = [main.input(inputs[0].shape), *(main.constant(array) for array in inputs[1:])]
    out = main.tensor(inputs[0].shape)
    main.op("LEAKY_RELU", places, [out], "LeakyReluOptions", alpha=epsilon)  # a float comes first
    file.table.operatorCodes[0].builtinCode = code
    file.table.operatorCodes[0].deprecatedBuiltinCode = code
    main.table.operators[0].builtinOptionsType = options
    main.outputs(out)
    table = main.table.operators[0]
    table.builtinOptions = _Options(table.builtinOptions)
    return file.bytes(b"CIR0")


class _Options:
    """Options that are packed whatever their number says."""

    def __init__(self, table):
        self.Pack = table.Pack


def test_instance_normalization():
    x, scale, shift = numbers((2, 4, 5, 3)), numbers((3,)), numbers((3,))
    found = run(circle(-2, 254, 0.01, [x, scale, shift]), [x])[0]
    mean, variance = (getattr(x, name)((1, 2), keepdims=True) for name in ("mean", "var"))
    expected = (x - mean) / np.sqrt(variance + 0.01) * scale + shift
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_root_mean_square_normalization():
    x, scale = numbers((2, 4, 6)), numbers((6,))
    model = read(circle(-6, 250, 0.01, [x, scale]))
    found = partita.Core().compile_model(model, "CPU")({model.inputs[0].name: x})[0]
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.01) * scale
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("code", "name"), [(-5, "GRU"), (-4, "BCQ_GATHER")])
def test_what_of_circle_cannot_be_checked_is_refused_by_name(code, name):
    data = circle(code, 254, 0.1, [numbers((2, 3))])
    with pytest.raises(ModelFormatError, match=f"operators that are not known: operator 0 {name}"):
        read(data)


# ------------------------------------------------------------------------- refusals


def single(code="EXP", shape=(3,), change=None, **fields):
    """A file of one operator, changed before it is written."""
    file = File()
    x = file.main.input(shape, name="x")
    file.main.outputs(file.main.op(code, [x], [file.main.tensor(shape, name="y")], **fields))
    if change is not None:
        change(file.main.table, file.table)
    return file.bytes()


def test_operators_that_are_not_known_are_all_named():
    with pytest.raises(ModelFormatError, match=r"not known: custom operator operator 0 MyOwn 'y'"):
        read(single("MyOwn"))
    with pytest.raises(ModelFormatError, match="not known: operator 0 RFFT2D 'y'"):
        read(single("RFFT2D"))


REFUSALS = {
    "tensor 9, and there are 2": lambda g, f: setattr(g.operators[0], "inputs", [9]),
    "names tensor 7, and has 2": lambda g, f: setattr(g, "outputs", [7]),
    "operator code 5, which is not there": lambda g, f: setattr(g.operators[0], "opcodeIndex", 5),
    "names buffer 99, which is not there": lambda g, f: setattr(g.tensors[0], "buffer", 99),
    r"has shape \[-7\]": lambda g, f: setattr(g.tensors[0], "shape", [-7]),
    "schema has version 9": lambda g, f: setattr(f, "version", 9),
    "it has no subgraph": lambda g, f: setattr(f, "subgraphs", []),
    "'main' returns nothing": lambda g, f: setattr(g, "outputs", []),
    "which nothing has computed": lambda g, f: setattr(g, "inputs", []),
    "element type STRING, which is not read": lambda g, f: setattr(g.tensors[0], "type", 5),
    "element type number 77": lambda g, f: setattr(g.tensors[0], "type", 77),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_a_file_that_does_not_hang_together_is_refused(message):
    with pytest.raises(ModelFormatError, match=message):
        read(single(change=REFUSALS[message]))


def test_constants_of_another_size_than_their_shape_are_refused():
    file = File()
    x, c = file.main.input((3,)), file.main.constant(np.zeros(3, np.float32))
    file.main.outputs(file.main.op("ADD", [x, c], [file.main.tensor((3,))], "AddOptions"))
    file.main.table.tensors[c].shape = [1000, 1000, 1000]
    with pytest.raises(ModelFormatError, match=r"has 12 bytes, not 4000000000"):
        read(file.bytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": [1.0, 2.0]}, "has 2 scales and 1 zero points|of shape .* has 2 scales"),
        ({"scale": [float("nan")]}, "scales that are not positive numbers"),
        ({"zeroPoint": [4000]}, "zero points that int8 cannot hold"),
    ],
)
def test_scales_that_do_not_fit_are_refused(change, message):
    file = File()
    x = file.main.input((3,), "int8", (0.1, 0))
    file.main.outputs(file.main.op("DEQUANTIZE", [x], [file.main.tensor((3,))]))
    for key, value in change.items():
        setattr(file.main.table.tensors[x].quantization, key, value)
    with pytest.raises(ModelFormatError, match=message):
        read(file.bytes())


def test_options_of_another_operator_are_refused():
    data = single("LEAKY_RELU", options="AddOptions")
    with pytest.raises(ModelFormatError, match="it has AddOptions, which lack 'Alpha'"):
        read(data)
    with pytest.raises(ModelFormatError, match="it has no options, which lack 'Alpha'"):
        read(single("LEAKY_RELU"))


def test_strides_of_zero_are_refused():
    fields = {"padding": 0, "filterWidth": 2, "filterHeight": 2}
    data = single("MAX_POOL_2D", (1, 4, 4, 1), options="Pool2DOptions", **fields)
    with pytest.raises(ModelFormatError, match="'StrideH' is 0; numbers above zero are allowed"):
        read(data)


def test_a_subgraph_that_calls_itself_is_refused():
    data = single("CALL", options="CallOptions", subgraph=0)
    with pytest.raises(ModelFormatError, match="subgraphs call one another deeper than 32"):
        read(data)


def test_a_file_that_is_cut_short_is_refused():
    data = doubling()
    for size in range(8, len(data), 97):
        with pytest.raises(ModelFormatError):
            read(data[:size])


def test_places_that_lead_out_of_a_file_are_refused():
    data, refused = single("MUL", options="MulOptions"), 0
    for at, far in itertools.product(range(8, len(data) - 3, 4), (0x7FFFFFF0, 0xFFFFFFF0)):
        changed = bytearray(data)
        changed[at : at + 4] = far.to_bytes(4, "little")
        try:
            read(bytes(changed))
        except ModelFormatError:
            refused += 1
    assert refused > len(data) // 16


def test_a_missing_package_is_named(monkeypatch):
    found = builtins.__import__

    def without(name, *rest, **more):
        if name == "tflite":
            raise ImportError("No module named 'tflite'")
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModelFormatError, match=r'pip install "partita\[tflite\]"'):
        read(single())
