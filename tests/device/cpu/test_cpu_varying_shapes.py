"""Random graphs whose sizes are computed from the inputs' sizes, at many sizes, by one request.

Each is a random walk over rows (batch, length, width) and images (batch, channels, height, width)
of which all but width and channels are dynamic; onnxruntime judges every run.
"""

import logging

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper, parser

import partita
from partita.errors import InputError
from partita_cpu.jit.isa import isa

WIDTH, CHANNELS = 6, 4


def recorded(compiled):
    """Programs that sizes are filled into; programs of portable kernels are emitted for each."""
    programs = compiled.device_model.specializer.programs.values()
    return [program for program in programs if program.made is not None]


class Builder:
    """Grows a graph by random operations."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights = [], []
        self.rows, self.images = ["r"], ["x"]
        self.count = 0

    def weight(self, array):
        self.count += 1
        name = f"w{self.count}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def floats(self, *shape):
        return self.weight(self.rng.standard_normal(shape).astype(np.float32) * 0.3)

    def add(self, op_type, *inputs, **attrs):
        self.count += 1
        output = f"t{self.count}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attrs))
        return output

    def size(self, x, axis):
        """One size of a tensor, as an array of one element."""
        shape = self.add("Shape", x)
        match self.rng.integers(3):
            case 0:
                place = self.weight(np.array([axis]))
                return self.add("Gather", shape, place, axis=0)
            case 1:
                size = self.add("Gather", shape, self.weight(np.array(axis)), axis=0)
                return self.add("Unsqueeze", size, self.weight(np.array([0])))
            case _:
                bounds = (self.weight(np.array([place])) for place in (axis, axis + 1))
                return self.add("Slice", shape, *bounds)

    def computed(self, size):
        """The same size by way of arithmetic."""
        two = self.weight(np.array([2]))
        match self.rng.integers(4):
            case 0:
                return self.add("Div", self.add("Mul", size, two), two)
            case 1:
                return self.add("Sub", self.add("Add", size, two), two)
            case 2:
                wrong = self.add("ConstantOfShape", self.weight(np.array([1])))
                wrong = self.add("Cast", wrong, to=TensorProto.INT64)
                return self.add("Where", self.add("Equal", size, size), size, wrong)
            case _:
                return self.add("Squeeze", self.add("Unsqueeze", size, self.one()), self.one())

    def one(self):
        return self.weight(np.array([1]))

    def grow_rows(self):
        x = self.rows[-1]
        match self.rng.integers(12):
            case 9:
                halves = [f"{x}:{side}{self.count}" for side in "lr"]
                self.nodes.append(helper.make_node("Split", [x], halves, axis=2))
                y = self.add("Concat", *halves[::-1], axis=2)
            case 10:
                pads = [self.weight(np.array([0])), self.size(x, 1), self.weight(np.array([0] * 4))]
                wide = self.add("Pad", x, self.add("Concat", *pads, axis=0))
                y = self.add("Slice", wide, self.size(x, 1), self.size(wide, 1), self.one())
            case 11:
                largest = self.add("ReduceMax", x, axes=[2], keepdims=1)
                y = self.add("Where", self.add("Less", x, largest), x, self.add("Neg", x))
            case 0:
                product = self.add("MatMul", x, self.floats(WIDTH, WIDTH))
                y = self.add("Add", product, self.floats(WIDTH))
            case 1:
                y = self.add("LayerNormalization", x, self.floats(WIDTH), self.floats(WIDTH))
            case 2:
                batch, length = self.size(x, 0), self.computed(self.size(x, 1))
                heads = self.weight(np.array([2])), self.weight(np.array([WIDTH // 2]))
                shape = self.add("Concat", batch, length, *heads, axis=0)
                split = self.add("Transpose", self.add("Reshape", x, shape), perm=[0, 2, 1, 3])
                flipped = self.add("Transpose", split, perm=[0, 1, 3, 2])
                scores = self.add("Softmax", self.add("MatMul", split, flipped), axis=-1)
                joined = self.add("Transpose", self.add("MatMul", scores, split), perm=[0, 2, 1, 3])
                shape = self.add("Concat", batch, length, self.weight(np.array([WIDTH])), axis=0)
                y = self.add("Reshape", joined, shape)
            case 3:
                table = self.floats(400, WIDTH)
                zero = self.weight(np.array([0]))
                part = self.add("Slice", table, zero, self.size(x, 1), zero)
                y = self.add("Add", x, part)
            case 4:
                total = self.add("ReduceMean", x, axes=[1], keepdims=1)
                y = self.add("Sub", x, self.add("Expand", total, self.add("Shape", x)))
            case 5:
                y = self.add("Concat", x, self.add("Relu", x), axis=1)
            case 6:
                y = self.add("Add", self.add("Relu", x), x)
            case 7:
                y = self.add("Tanh", x)
            case _:
                places = self.add("Div", self.size(x, 1), self.weight(np.array([2])))
                start = self.weight(np.array([0]))
                ahead = self.add("Slice", x, places, self.size(x, 1), self.one())
                y = self.add(
                    "Concat", ahead, self.add("Slice", x, start, places, self.one()), axis=1
                )
        self.rows.append(y)

    def grow_images(self):
        x = self.images[-1]
        match self.rng.integers(10):
            case 6:
                mode, across = [("nearest", 3), ("linear", 1.5)][int(self.rng.integers(2))]
                scales = self.weight(np.array([1, 1, 2, across], np.float32))
                larger = self.add("Resize", x, "", scales, mode=mode)
                sizes = self.add("Shape", x)
                y = self.add("Resize", larger, "", "", sizes, mode="linear")
            case 7:
                larger = self.add(
                    "ConvTranspose", x, self.floats(CHANNELS, CHANNELS, 2, 2), strides=[2, 2]
                )
                y = self.add("MaxPool", larger, kernel_shape=[2, 2], strides=[2, 2])
            case 8:
                y = self.add("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)
            case 9:
                w = self.floats(CHANNELS, CHANNELS, 3, 3)
                wide = self.add("Pad", x, self.weight(np.array([0, 0, 1, 1, 0, 0, 1, 1])))
                y = self.add("Concat", self.add("Conv", wide, w), x, axis=1)
                y = self.add("Conv", y, self.floats(CHANNELS, 2 * CHANNELS, 1, 1))
            case 0:
                group = int(self.rng.choice([1, CHANNELS]))
                w = self.floats(CHANNELS, CHANNELS // group, 3, 3)
                y = self.add("Conv", x, w, self.floats(CHANNELS), pads=[1] * 4, group=group)
            case 1:
                y = self.add("Conv", x, self.floats(CHANNELS, CHANNELS, 3, 3), pads=[1] * 4)
                y = self.add("Relu", self.add("Add", y, x))
            case 2:
                strides = [int(self.rng.integers(1, 3)), 1]
                y = self.add("Conv", x, self.floats(CHANNELS, CHANNELS, 1, 1), strides=strides)
            case 3:
                y = self.add("Mul", x, self.add("Sigmoid", self.add("GlobalAveragePool", x)))
            case 4:
                y = self.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
            case _:
                sizes = [self.computed(self.size(x, axis)) for axis in (0, 1, 2, 3)]
                flat = self.weight(np.array([0, CHANNELS, -1]))
                shape = self.add("Concat", *sizes, axis=0)
                y = self.add("Reshape", self.add("Reshape", x, flat), shape)
        self.images.append(y)

    def model(self):
        for _ in range(self.rng.integers(3, 9)):
            self.grow_rows()
            self.grow_images()
        pooled = self.add("ReduceMean", self.images[-1], axes=[2, 3], keepdims=0)
        outputs = [self.rows[-1], self.images[-1], pooled]
        dims = {"r": ["B", "L", WIDTH], "x": ["N", CHANNELS, "H", "W"]}
        graph = helper.make_graph(
            self.nodes,
            "varying",
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in dims.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self, least=1, most=9):
        sizes = (int(n) for n in self.rng.integers(least, most, 5))
        batch, length, images, height, width = sizes
        shapes = {"r": (batch, length, WIDTH), "x": (images, CHANNELS, height, width)}
        return {k: self.rng.standard_normal(v).astype(np.float32) for k, v in shapes.items()}


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_at_many_sizes(seed, caplog):
    builder = Builder(seed)
    model = builder.model()
    sizes = [builder.feeds(2) for _ in range(6)]
    sizes += [builder.feeds(20, 41), builder.feeds(1, 2), builder.feeds(9, 41), builder.feeds()]
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    with caplog.at_level(logging.DEBUG, logger="partita.lowering"):
        for feeds in [*sizes, *sizes[::-1]]:
            wanted = onnxruntime_results(model, feeds)
            got = request.infer(feeds).to_tuple()
            for one, other in zip(got, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert bool(recorded(compiled)) == isa().native
    unusual = "not as usual", "emitted for each size"
    assert not [r for r in caplog.records if any(words in r.message for words in unusual)]


@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER", "output_padding": [1, 0]},
        {"output_shape": [16, 20]},
        {"auto_pad": "SAME_UPPER", "output_shape": [17, 19]},
    ],
)
def test_padding_of_transposed_convolutions_that_follows_from_sizes(attributes):
    rng = np.random.default_rng(3)
    w = rng.standard_normal((CHANNELS, 8, 3, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("ConvTranspose", ["a", "w"], ["y"], strides=[2, 3], **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "transposed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", CHANNELS, "H", "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for shape in [(1, 8, 7), (2, 9, 8), (1, 10, 9), (3, 9, 7), (1, 8, 9)]:
        x = rng.standard_normal((shape[0], CHANNELS, *shape[1:])).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)


def test_sizes_of_none_one_and_many_alternate():
    """Programs of one class must not take each other's decisions about empty tensors."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Concat", ["a", "x"], ["b"], axis=0),
        helper.make_node("ReduceMean", ["b"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["b", "m"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"], axis=1),
    ]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "alternating",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", 8])],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    for rows in (3, 5, 7, 0, 1, 3000, 2, 0, 64, 1, 65, 3000, 7):
        x = rng.standard_normal((rows, 8)).astype(np.float32)
        b = np.concatenate([x.astype(float) @ w, x])
        c = b - b.mean(1, keepdims=True)
        e = np.exp(c - c.max(1, keepdims=True))
        y = request.infer({"x": x})["y"]
        np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    assert len(recorded(compiled)) >= (5 if isa().native else 0)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceProd"])
def test_reductions_of_nothing_at_many_sizes(op_type):
    """What they yield is known, but how much of it depends on sizes."""
    grown = Builder(3)
    total = grown.add(op_type, "r", grown.weight(np.array([0])), keepdims=0)
    y = grown.add("Mul", total, grown.weight(np.float32(3)))
    given = helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", "length", WIDTH])
    made = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
    graph = helper.make_graph(grown.nodes, "empty", [given], [made], grown.weights)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    wanted = {"ReduceSum": np.sum, "ReduceProd": np.prod}[op_type]
    for count, length in ((0, 4), (0, 5), (2, 5), (0, 7), (3, 6), (0, 0), (0, 9)):
        x = grown.rng.standard_normal((count, length, WIDTH)).astype(np.float32)
        y = request.infer({"r": x})[0]
        np.testing.assert_allclose(y, 3 * wanted(x, axis=0), rtol=1e-5, atol=1e-6)
    assert bool(recorded(compiled)) == isa().native


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_of_nothing_but_padding(rank):
    """One axis of a sequence, an image or a volume has no elements, now and then."""
    grown = Builder(3)
    w, bias = grown.floats(5, CHANNELS, *[3] * rank), grown.floats(5)
    y = grown.add("Relu", grown.add("Conv", "x", w, bias, pads=[2] * 2 * rank))
    dims = ["n", CHANNELS, "length", *["size"] * (rank - 1)]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    made = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
    graph = helper.make_graph(grown.nodes, "padding", [given], [made], grown.weights)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for length in (4, 0, 1, 0):
        shape = (2, CHANNELS, *([length, 3, 3][:rank]))
        x = grown.rng.standard_normal(shape).astype(np.float32)
        padded = np.pad(x.astype(float), [(0, 0), (0, 0), *[(2, 2)] * rank])
        axes = tuple(range(2, 2 + rank))
        weights, offset = (numpy_helper.to_array(one).astype(float) for one in grown.weights)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3,) * rank, axes)
        sums = np.tensordot(windows, weights, ([1, *range(-rank, 0)], range(1, 2 + rank)))
        wanted = np.maximum(np.moveaxis(sums + offset, -1, 1), 0)
        np.testing.assert_allclose(request.infer({"x": x})[0], wanted, rtol=1e-4, atol=1e-5)


def test_what_follows_a_size_that_the_run_tells_is_shared_by_sizes():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Transpose", ["places"], ["turned"], perm=[1, 0]),
        helper.make_node("GatherND", ["r", "turned"], ["picked"]),
        helper.make_node("Neg", ["picked"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "told",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [
            helper.make_tensor_value_info("r", TensorProto.FLOAT, ["N", 8]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["K"]),
        ],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    for rows in (3, 5, 7, 12, 9, 3, 30, 12):
        x = rng.standard_normal((rows, 8)).astype(np.float32)
        r, y = request.infer({"x": x}).to_tuple()
        product = np.maximum(x.astype(float) @ w, 0)
        np.testing.assert_allclose(r, product, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(y, -product[product > 0], rtol=1e-5, atol=1e-5)
    programs = recorded(compiled)
    if isa().native:
        assert len(programs) >= 4
        assert len({id(program.rest.specializer) for program in programs}) < len(programs)


def test_sizes_that_the_run_tells_do_not_make_what_depends_on_them_again():
    """What follows a NonZero has a program per size, kept as those of input sizes are."""
    nodes = [
        helper.make_node("NonZero", ["m"], ["places"]),
        helper.make_node("Squeeze", ["places", "zero"], ["rows"]),
        helper.make_node("Gather", ["x", "rows"], ["picked"], axis=0),
        helper.make_node("MatMul", ["picked", "w"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 8)).astype(np.float32), "zero": np.array([0])}
    inputs = {"m": (TensorProto.BOOL, [50]), "x": (TensorProto.FLOAT, [50, 8])}
    graph = helper.make_graph(
        nodes,
        "picked",
        [helper.make_tensor_value_info(name, *port) for name, port in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["K", 8])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    x = rng.standard_normal((50, 8)).astype(np.float32)
    for _ in range(2):
        for count in range(51):
            mask = np.arange(50) < count
            y = request.infer({"m": mask, "x": x})["y"]
            np.testing.assert_allclose(y, x[:count] @ weights["w"], rtol=1e-4, atol=1e-5)
    mask = np.ones(50, bool)
    program = compiled.device_model.specializer.program_for([mask, x])
    assert len(program.rest.specializer.programs) == 51


def test_sums_are_made_where_their_residuals_lie_whatever_the_sizes():
    grown = Builder(3)

    def linear(x):
        return grown.add("Relu", grown.add("MatMul", x, grown.floats(WIDTH, WIDTH)))

    x = linear("r")
    for _ in range(3):
        x = grown.add("Add", grown.add("MatMul", linear(x), grown.floats(WIDTH, WIDTH)), x)
    y = linear(x)
    given = helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", "length", WIDTH])
    made = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
    graph = helper.make_graph(grown.nodes, "sums", [given], [made], grown.weights)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    core = partita.Core()
    compiled = core.compile_model(core.read_model(model), "CPU")
    request = compiled.create_infer_request()
    for length in (5, 300, 1, 64, 5):
        feeds = {"r": grown.rng.standard_normal((2, length, WIDTH)).astype(np.float32)}
        wanted = onnxruntime_results(model, feeds)[0]
        np.testing.assert_allclose(request.infer(feeds)[0], wanted, rtol=1e-4, atol=1e-4)
    found = recorded(compiled)
    assert bool(found) == isa().native
    for program in found:
        # What is multiplied next, and what is added: sums need no third place.
        rows = {place for x, place in program.offsets.items() if x.shape[-1:] == (WIDTH,)}
        assert isa().tiles or len(rows) == 2


def test_sizes_are_decided_by_only_where_something_follows_from_it():
    """A product, a transposition and a convolution ask for sizes last: one recording does."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((128, 256)).astype(np.float32) * 0.1,
        "k": rng.standard_normal((256, 256, 1, 1)).astype(np.float32) * 0.1,
        "axis": np.array([3]),
    }
    nodes = [
        helper.make_node("MatMul", ["r", "w"], ["product"]),
        helper.make_node("Transpose", ["product"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Unsqueeze", ["turned", "axis"], ["image"]),
        helper.make_node("Conv", ["image", "k"], ["y"]),
    ]
    given = helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", "length", 128])
    graph = helper.make_graph(
        nodes,
        "asked_last",
        [given],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("turned", "y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    core = partita.Core()
    compiled = core.compile_model(core.read_model(model), "CPU")
    request = compiled.create_infer_request()
    for length in (64, 100, 120, 200, 400, 1600, 90):
        feeds = {"r": rng.standard_normal((2, length, 128)).astype(np.float32)}
        for found, wanted in zip(
            request.infer(feeds).to_tuple(), onnxruntime_results(model, feeds), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len(programs) > 4
        assert len({id(program.made) for program in programs}) == 1


def test_batches_of_one_and_windows_longer_than_sequences_have_the_programs_of_others():
    """Residuals and factors are not asked whether they are 1, nor all lengths for their taps."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((16, 16, 64)).astype(np.float32) * 0.1,
        "k": rng.standard_normal((16, 16, 1)).astype(np.float32) * 0.3,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["far"], pads=[32, 31]),
        helper.make_node("Conv", ["far", "k"], ["near"]),
        helper.make_node("Add", ["near", "x"], ["sum"]),
        helper.make_node("ReduceMean", ["sum"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["sum", "mean"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, "length"])
    graph = helper.make_graph(
        nodes,
        "long_windows",
        [given],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    for batch, length in [(2, 40), (2, 45), (1, 50), (3, 38), (1, 61), (2, 34), (1, 47), (5, 59)]:
        x = rng.standard_normal((batch, 16, length)).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len({id(program.made) for program in programs}) <= 2


def test_sizes_that_are_inputs_vary_as_those_of_tensors_do():
    """What is computed of an input's elements, which may be less than 0, is recorded as well."""
    rng = np.random.default_rng(0)
    weights = {
        "k": rng.standard_normal((16, 4, 3, 3)).astype(np.float32),
        "axes": np.array([2]),
        "ends": np.array([2**62]),
        "channels": np.array([0, 16]),
        "second": np.array([1]),
        "rest": np.array([-1]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["wide"], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["wide"], ["own"], start=0, end=2),
        helper.make_node("Concat", ["own", "size"], ["target"], axis=0),
        helper.make_node("Resize", ["wide", "", "", "target"], ["large"], mode="linear"),
        helper.make_node("Slice", ["large", "start", "ends", "axes"], ["y"]),
        helper.make_node("Gather", ["size", "second"], ["width"]),
        helper.make_node("Concat", ["channels", "width", "rest"], ["rows"], axis=0),
        helper.make_node("Reshape", ["large", "rows"], ["turned"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, "height", "width"]),
        helper.make_tensor_value_info("size", TensorProto.INT64, [2]),
        helper.make_tensor_value_info("start", TensorProto.INT64, [1]),
    ]
    graph = helper.make_graph(
        nodes,
        "sizes_given",
        inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "turned")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    for turn in range(24):
        height, width, to_height, to_width = (int(n) for n in rng.integers(3, 20, 4))
        feeds = {
            "x": rng.standard_normal((turn % 3 + 1, 4, height, width)).astype(np.float32),
            "size": np.array([to_height, to_width]),
            "start": np.array([-1 - turn % 4 if turn % 2 else turn % 3]),
        }
        for found, wanted in zip(
            request.infer(feeds).to_tuple(), onnxruntime_results(model, feeds), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    if isa().native:
        assert len(recorded(compiled)) > 12


@pytest.mark.parametrize("channels", [8, -1])
def test_channels_that_only_an_input_tells_are_those_of_the_weights_for_all_sizes(channels):
    """As in a part of a network whose shapes are computed in another part."""
    rng = np.random.default_rng(0)
    weights = {
        "narrow": rng.standard_normal((4, 8, 1, 1)).astype(np.float32) * 0.3,
        "apart": rng.standard_normal((4, 1, 3, 3)).astype(np.float32) * 0.3,
        "wide": rng.standard_normal((8, 4, 1, 1)).astype(np.float32) * 0.3,
        "larger": rng.standard_normal((8, 5, 2, 2)).astype(np.float32) * 0.3,
    }
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["image"]),
        helper.make_node("Conv", ["image", "narrow"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "apart"], ["c"], group=4, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "wide"], ["d"]),
        helper.make_node("Add", ["d", "image"], ["y"]),
        helper.make_node("ConvTranspose", ["image", "larger"], ["z"], strides=[2, 2]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", None, None, None, None]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [4]),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yz"]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "channels_given", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    for batch, height, width in ((1, 9, 12), (1, 12, 9), (1, 16, 20), (2, 15, 11), (2, 9, 30)):
        feeds = {
            "x": rng.standard_normal((batch, 2, 4, height, width)).astype(np.float32),
            "shape": np.array([batch, channels, height, width]),
        }
        got = request.infer(feeds)
        for output, wanted in enumerate(onnxruntime_results(model, feeds)):
            np.testing.assert_allclose(got[output], wanted, rtol=1e-4, atol=1e-5)
    if isa().native:
        assert len(recorded(compiled)) == 4  # all but the first, which is emitted


def test_groups_of_channels_that_only_an_input_tells_are_numbers_for_all_sizes():
    """As in ShuffleNet, whose Reshape's target is computed in another part; emitters want them."""
    rng = np.random.default_rng(0)
    weights = {
        "wide": rng.standard_normal((12, 3, 3, 3)).astype(np.float32) * 0.3,
        "left": rng.standard_normal((6, 6, 1, 1)).astype(np.float32) * 0.3,
        "parts": np.array([6, 6]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "wide"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["a", "groups"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["c", "image"], ["d"]),
        helper.make_node("Split", ["d", "parts"], ["e", "f"], axis=1),
        helper.make_node("Conv", ["e", "left"], ["g"]),
        helper.make_node("Concat", ["g", "f"], ["y"], axis=1),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"]),
        helper.make_tensor_value_info("groups", TensorProto.INT64, [5]),
        helper.make_tensor_value_info("image", TensorProto.INT64, [4]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "groups_given", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    sizes = [(2, 19, 22), (2, 22, 19), (3, 26, 20), (2, 25, 41), (3, 29, 30), (2, 31, 23)]
    for n, h, w in [*sizes, *sizes[::2]]:
        for groups in (2, 3):
            feeds = {
                "x": rng.standard_normal((n, 3, h, w)).astype(np.float32),
                "groups": np.array([n, groups, 12 // groups, h, w]),
                "image": np.array([n, 12, h, w]),
            }
            if groups == 2 or (n, h, w) == sizes[4]:
                (wanted,) = onnxruntime_results(model, feeds)
                np.testing.assert_allclose(request.infer(feeds)[0], wanted, rtol=1e-4, atol=1e-5)
    if isa().native:
        assert len(recorded(compiled)) >= 4


def test_images_that_turn_their_channels_and_end_in_a_row_ask_for_no_batch_of_one():
    """A transposition asks for the sizes that pass one another, a product of rows for no column."""
    rng = np.random.default_rng(0)
    weights = {
        "k": rng.standard_normal((16, 16, 2, 2)).astype(np.float32) * 0.3,
        "scale": rng.standard_normal(16).astype(np.float32),
        "w": rng.standard_normal((16, 32)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["image"], strides=[2, 2]),
        helper.make_node("Transpose", ["image"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["last", "scale"], ["norm"]),
        helper.make_node("Transpose", ["norm"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("GlobalAveragePool", ["first"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["row"]),
        helper.make_node("Gemm", ["row", "w"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, "height", "width"])
    graph = helper.make_graph(
        nodes,
        "turned",
        [given],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("first", "y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    for batch, height, width in [(2, 40, 44), (3, 50, 48), (1, 36, 52), (1, 60, 40), (4, 44, 40)]:
        feeds = {"x": rng.standard_normal((batch, 16, height, width)).astype(np.float32)}
        for found, wanted in zip(
            request.infer(feeds).to_tuple(), onnxruntime_results(model, feeds), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len({id(program.made) for program in programs}) == 1


def test_bottlenecks_of_any_batch_and_resizes_of_any_sides_have_one_recording():
    """Images are cut into bands of rows, however many there are, and small ones too."""
    rng = np.random.default_rng(0)
    weights = {
        "widen": rng.standard_normal((48, 16, 1, 1)).astype(np.float32) * 0.2,
        "slide": rng.standard_normal((48, 1, 3, 3)).astype(np.float32) * 0.2,
        "narrow": rng.standard_normal((16, 48, 1, 1)).astype(np.float32) * 0.2,
        "four": np.array([1, 1, 4, 4], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "widen"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["positive"]),
        helper.make_node("Conv", ["positive", "slide"], ["slid"], group=48, pads=[1] * 4),
        helper.make_node("Relu", ["slid"], ["kept"]),
        helper.make_node("Conv", ["kept", "narrow"], ["few"]),
        helper.make_node("Shape", ["few"], ["shape"]),
        helper.make_node("GlobalAveragePool", ["few"], ["mean"]),
        helper.make_node("Resize", ["mean", "", "", "shape"], ["spread"], mode="linear"),
        helper.make_node("Add", ["few", "spread"], ["sum"]),
        helper.make_node("Resize", ["sum", "", "four"], ["y"], mode="linear"),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, "h", "w"])
    wanted = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "bottleneck", [given], [wanted], tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    for sizes in [(2, 20, 14), (1, 9, 30), (3, 31, 17), (1, 6, 40), (2, 13, 13), (4, 8, 6)]:
        x = rng.standard_normal((sizes[0], 16, *sizes[1:])).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len(programs) > 3
        assert len({id(program.made) for program in programs}) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("groups", [1, 32])
def test_taps_that_few_sizes_reach_are_ways_of_one_recording(threads, groups):
    """Each convolution is left out by its taps in either direction, by both or by none."""
    rng = np.random.default_rng(0)
    tensors, nodes = [], []
    for number, gap in enumerate([4, 8, 12]):
        w = rng.standard_normal((32, 32 // groups, 3, 3)).astype(np.float32) * 0.2
        tensors.append(numpy_helper.from_array(w, f"w{number}"))
        where = {"pads": [gap] * 4, "dilations": [gap] * 2, "group": groups}
        nodes.append(helper.make_node("Conv", ["x", f"w{number}"], [f"c{number}"], **where))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
    nodes.append(helper.make_node("Sum", ["r0", "r1", "r2"], ["sum"]))
    nodes.append(helper.make_node("Conv", ["sum", "last"], ["y"]))
    last = rng.standard_normal((8, 32, 1, 1)).astype(np.float32) * 0.2
    tensors.append(numpy_helper.from_array(last, "last"))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32, "h", "w"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "dilated", [given], [made], tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": threads}
    config["PERF_COUNT"] = True
    compiled = partita.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    sides = [15, 20, 11, 16, 8, 7]
    sizes = [(2, h, w) for h, w in zip(sides, sides[::-1], strict=True)]
    sizes += [(1, h, w) for h in sides[:4] for w in sides[:4]]
    for shape in [*sizes, *sizes[::3]]:
        x = rng.standard_normal((shape[0], 32, *shape[1:])).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len(programs) > 15
        assert len({id(program.made) for program in programs}) <= 4
        ways = [sum(bool(step.when) for step in program.steps) for program in programs]
        assert max(ways) < max(len(program.steps) for program in programs)


def test_small_images_of_any_sizes_have_few_recordings():
    """Copies, lines of tiles and turned planes ask once; what is recorded next serves all."""
    rng = np.random.default_rng(0)
    weights = {
        "first": rng.standard_normal((32, 16, 3, 3)).astype(np.float32) * 0.2,
        "second": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) * 0.2,
        "middle": np.array([16]),
        "end": np.array([32]),
        "none": np.array([0]),
        "channels": np.array([1]),
        "rows": np.array([0, -1, 16]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Slice", ["b", "none", "middle", "channels"], ["left"]),
        helper.make_node("Slice", ["b", "middle", "end", "channels"], ["right"]),
        helper.make_node("Conv", ["right", "second"], ["c"], pads=[1] * 4),
        helper.make_node("Concat", ["left", "c"], ["d"], axis=1),
        helper.make_node("Transpose", ["d"], ["e"], perm=[0, 3, 2, 1]),
        helper.make_node("Reshape", ["e", "rows"], ["y"]),
        helper.make_node("Transpose", ["y"], ["z"], perm=[0, 2, 1]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, "h", "w"])
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "small_images", [given], made, tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    sizes = [(n, h, w) for n in (2, 3) for h in (3, 6, 17, 40) for w in (4, 5, 20, 34, 70)]
    sizes = [sizes[number] for number in rng.permutation(len(sizes))]
    for n, h, w in [*sizes, *sizes[::5]]:
        x = rng.standard_normal((n, 16, h, w)).astype(np.float32)
        results = request.infer({"x": x}).to_tuple()
        for got, wanted in zip(results, onnxruntime_results(model, {"x": x}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len(programs) > 30
        assert len({id(program.made) for program in programs}) <= 3


def test_a_constant_that_is_repeated_once_for_each_image_has_recordings_for_one_image():
    """As the token of a class in a vision transformer, beside positions that are resized."""
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in {"token": (1, 1, 8), "positions": (1, 8, 6, 6)}.items()
    ]
    tensors += [
        numpy_helper.from_array(np.array(numbers), name)
        for name, numbers in {"token_sizes": [1, 8], "rows": [0, 8, -1]}.items()
    ]
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Shape", ["x"], ["sides"], start=2, end=4),
        helper.make_node("Shape", ["positions"], ["kept"], start=0, end=2),
        helper.make_node("Concat", ["kept", "sides"], ["size"], axis=0),
        helper.make_node("Resize", ["positions", "", "", "size"], ["resized"], mode="cubic"),
        helper.make_node("Add", ["x", "resized"], ["sum"]),
        helper.make_node("Reshape", ["sum", "rows"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["patches"], perm=[0, 2, 1]),
        helper.make_node("Concat", ["n", "token_sizes"], ["all"], axis=0),
        helper.make_node("Expand", ["token", "all"], ["tokens"]),
        helper.make_node("Concat", ["tokens", "patches"], ["y"], axis=1),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, "h", "w"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "token", [given], [made], tensors)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    sizes = [(2, 9, 7), (1, 10, 8), (1, 7, 12), (1, 13, 9), (3, 8, 15), (1, 20, 11), (1, 6, 9)]
    sizes += [(1, 4, 5), (1, 5, 4), (1, 3, 9), (1, 9, 3)]
    for n, h, w in [*sizes, *sizes[::-2]]:
        x = rng.standard_normal((n, 8, h, w)).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
    if isa().native:
        programs = recorded(compiled)
        assert len(programs) == len(sizes) - 1
        assert len({id(program.made) for program in programs}) <= 3


PARTS = """g (float[N,7,12] x) => (float[a,b,c] y) <int64[1] first = {10}, int64[1] end = {12},
    int64[1] axis = {2}, float[2] w = {1, 2}> {
    part = Slice(x, first, end, axis) y = Add(part, w) }"""
ROWS = """g (float[N,7,12] x, int64[M] i) => (float[a,b,c] y) <int64[2] last = {1, 2},
    int64[2] other = {7, 12}> {
    long = Unsqueeze(i, last) length = Shape(i) shape = Concat <axis = 0> (length, other)
    wide = Expand(long, shape) y = GatherElements <axis = 0> (x, wide) }"""

ONE = """g (float[N,7,12] x) => (float[b,c] y) <int64 last = {-1}> {
    y = Gather <axis = 0> (x, last) }"""


@pytest.mark.parametrize(
    "text", [PARTS, ROWS, ONE], ids=["parts of tensors", "indices of rows", "one row"]
)
@pytest.mark.parametrize("sizes", [(3, 1, 4), (1, 2, 5, 2)], ids=str)
def test_what_is_rewritten_for_some_sizes_serves_others(text, sizes):
    proto = parser.parse_model('<ir_version: 10, opset_import: ["": 18]> ' + text)
    request = partita.Core().compile_model(proto, "CPU").create_infer_request()
    rng = np.random.default_rng(0)
    for size in sizes:
        feeds = {"x": rng.standard_normal((size, 7, 12)).astype(np.float32)}
        if text is ROWS:
            feeds["i"] = rng.integers(-size, size, size + 1)
        (due,) = onnxruntime_results(proto, feeds)
        np.testing.assert_array_equal(request.infer(feeds)["y"], due)


def test_a_row_that_is_not_there_is_refused_where_arithmetic_reads_rows_of_tensors():
    text = """g (float[N,M,4] x) => (float[a] y) <int64 third = {2}, int64 last = {-1},
        float w = {3}> {
        rows = Gather <axis = 1> (x, third) row = Gather <axis = 0> (rows, last)
        y = Mul(row, w) }"""
    proto = parser.parse_model('<ir_version: 10, opset_import: ["": 18]> ' + text)
    request = partita.Core().compile_model(proto, "CPU").create_infer_request()
    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    w = np.float32(3)
    np.testing.assert_array_equal(request.infer({"x": x})["y"], w * x[-1, 2])
    for size in (2, 1):
        with pytest.raises(InputError, match="index 2 is out of range"):
            request.infer({"x": x[:, :size]})
    np.testing.assert_array_equal(request.infer({"x": x[:2, :4]})["y"], w * x[1, 2])


def test_windows_that_are_padded_turned_and_cut_have_few_recordings():
    """As in a Swin of any sides: borders may be none, and what is cut off may be nothing."""
    rng = np.random.default_rng(0)
    weights = {
        "embed": rng.standard_normal((8, 3, 5, 5)).astype(np.float32) * 0.2,
        "scale": rng.standard_normal(8).astype(np.float32),
        "bias": rng.standard_normal(8).astype(np.float32),
    }
    numbers = {
        "window": [5],
        "none": [0],
        "some": [-2],
        "nothing": [0, 0, 0, 0],
        "axis_1": [1],
        "axis_2": [2],
        "far": [2**62],
        "leave": [0, -1, 8],
    }

    def cut(x, first, last, axis, name):
        return helper.make_node("Slice", [x, first, last, axis], [name])

    nodes = [
        helper.make_node("Conv", ["x", "embed"], ["a"], pads=[2] * 4, strides=[2, 2]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["b", "scale", "bias"], ["c"]),
        helper.make_node("Shape", ["c"], ["h"], start=1, end=2),
        helper.make_node("Shape", ["c"], ["w"], start=2, end=3),
        helper.make_node("Mod", ["h", "window"], ["h_over"]),
        helper.make_node("Mod", ["w", "window"], ["w_over"]),
        helper.make_node("Sub", ["window", "h_over"], ["h_lacks"]),
        helper.make_node("Sub", ["window", "w_over"], ["w_lacks"]),
        helper.make_node("Mod", ["h_lacks", "window"], ["below"]),
        helper.make_node("Mod", ["w_lacks", "window"], ["right"]),
        helper.make_node("Concat", ["nothing", "none", "below", "right", "none"], ["pads"], axis=0),
        helper.make_node("Pad", ["c", "pads"], ["padded"]),
        helper.make_node("Shape", ["padded"], ["rows"], start=1, end=2),
        helper.make_node("Mod", ["some", "rows"], ["place"]),
        cut("padded", "place", "far", "axis_1", "last"),
        cut("padded", "none", "place", "axis_1", "first"),
        helper.make_node("Concat", ["last", "first"], ["rolled"], axis=1),
        cut("rolled", "none", "h", "axis_1", "short"),
        cut("short", "none", "w", "axis_2", "kept"),
        helper.make_node("Add", ["kept", "c"], ["sum"]),
        helper.make_node("Reshape", ["sum", "leave"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    tensors += [numpy_helper.from_array(np.array(n), name) for name, n in numbers.items()]
    graph = helper.make_graph(nodes, "windows", [given], [made], tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    sizes = [(n, h, w) for n in (2, 3) for h in (3, 9, 20, 31) for w in (4, 10, 22, 40)]
    sizes = [sizes[number] for number in rng.permutation(len(sizes))]
    for n, h, w in [*sizes, *sizes[::5]]:
        x = rng.standard_normal((n, 3, h, w)).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-3, atol=1e-4)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len(programs) > 20
        assert len({id(program.made) for program in programs}) <= 3


def test_attention_of_one_image_and_of_several_are_of_one_class():
    """Heads lie in rows whatever the batch is; nor are few rows asked for what AMX alone does."""
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.standard_normal((32, 32)).astype(np.float32) * 0.3, name)
        for name in ("wq", "wk", "wv")
    ]
    tensors += [
        numpy_helper.from_array(np.array([0, 0, 4, 8]), "heads"),
        numpy_helper.from_array(np.array([0, 0, 32]), "rows"),
        numpy_helper.from_array(np.array(8**-0.5, np.float32), "scale"),
    ]
    nodes = [
        node
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        for node in (
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}_rows"]),
            helper.make_node("Reshape", [f"{name}_rows", "heads"], [f"{name}_apart"]),
            helper.make_node("Transpose", [f"{name}_apart"], [name], perm=perm),
        )
    ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["beside"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["beside", "rows"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "s", 32])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "attention", [given], [made], tensors)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    sizes = [(1, 20), (1, 30), (3, 20), (1, 9), (2, 41), (5, 12), (1, 3), (2, 33), (2, 2)]
    for n, s in [*sizes, *sizes[::-2]]:
        x = rng.standard_normal((n, s, 32)).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        programs = recorded(compiled)
        assert len(programs) == len(sizes) - 1
        assert len({id(program.made) for program in programs}) == 1


WINDOWS = """g (float[n,8,h,w] x) => (float[a,b,c,d] y)
    <int64[1] window = {5}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
     int64[1] three = {3}, int64[2] corner = {0, 0}, int64[6] grid = {0, -1, 5, -1, 5, 8},
     int64[3] tokens = {-1, 25, 8}, int64[5] heads = {-1, 25, 3, 2, 4}, float scale = {0.5},
     int64[1] far = {1000000}, int64 q_at = {0}, int64 k_at = {1}, int64 v_at = {2}> {
    rows = Transpose <perm = [0, 2, 3, 1]> (x)
    n_ = Shape <start = 0, end = 1> (rows)
    h_ = Shape <start = 1, end = 2> (rows) w_ = Shape <start = 2, end = 3> (rows)
    h_over = Mod(h_, window) h_lacks = Sub(window, h_over) below = Mod(h_lacks, window)
    w_over = Mod(w_, window) w_lacks = Sub(window, w_over) right = Mod(w_lacks, window)
    pads = Concat <axis = 0> (corner, corner, zero, below, right, zero)
    padded = Pad(rows, pads)
    high = Add(h_, below) wide = Add(w_, right)
    down = Div(high, window) across = Div(wide, window) eight = Shape <start = 3, end = 4> (rows)
    parted = Concat <axis = 0> (n_, down, window, across, window, eight)
    cut = Reshape(padded, parted)
    apart = Transpose <perm = [0, 1, 3, 2, 4, 5]> (cut)
    windows = Reshape(apart, tokens)
    product = MatMul(windows, weights) qkv = Add(product, bias)
    parts = Reshape(qkv, heads)
    turned = Transpose <perm = [2, 0, 3, 1, 4]> (parts)
    q = Gather <axis = 0> (turned, q_at) k = Gather <axis = 0> (turned, k_at)
    v = Gather <axis = 0> (turned, v_at)
    scaled = Mul(q, scale) columns = Transpose <perm = [0, 1, 3, 2]> (k)
    scores = MatMul(scaled, columns) shares = Softmax <axis = -1> (scores)
    mixed = MatMul(shares, v) beside = Transpose <perm = [0, 2, 1, 3]> (mixed)
    grouped = Concat <axis = 0> (n_, down, across, window, window, eight)
    again = Reshape(beside, grouped)
    back = Transpose <perm = [0, 1, 3, 2, 4, 5]> (again)
    whole = Concat <axis = 0> (n_, high, wide, eight)
    image = Reshape(back, whole)
    last = Neg(window) first = Slice(image, zero, last, one)
    edge = Slice(image, last, far, one)
    kept = Relu(first) moved = Add(kept, scale)
    joined = Concat <axis = 1> (moved, edge)
    high_part = Slice(joined, zero, h_, one) y = Slice(high_part, zero, w_, two) }"""


@pytest.mark.parametrize("begin", [(1, 4, 5), (2, 13, 24)], ids=["one window", "many windows"])
def test_one_window_and_many_have_few_recordings(begin):
    """As in DaViT and Swin: borders may be none, and above the last row of windows is nothing."""
    rng = np.random.default_rng(0)
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + WINDOWS)
    for name, shape in {"weights": (8, 24), "bias": (24,)}.items():
        array = rng.standard_normal(shape).astype(np.float32) * 0.3
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(proto, "CPU", config)
    request = compiled.create_infer_request()
    sizes = [(n, h, w) for n in (1, 3) for h in (4, 10, 13, 21) for w in (5, 8, 24)]
    sizes = [begin, *(sizes[number] for number in rng.permutation(len(sizes)))]
    for n, h, w in [*sizes, *sizes[::5]]:
        x = rng.standard_normal((n, 8, h, w)).astype(np.float32)
        (wanted,) = onnxruntime_results(proto, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
    programs = recorded(compiled)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        assert len(programs) > 15
        assert len({id(program.made) for program in programs}) <= 3


BATCHES = """g (float[n,20,32] x) => (float[a,b,c] y)
    <int64[4] heads = {0, 20, 4, 8}, int64[3] rows = {0, 20, 32}, float scale = {0.35},
     int64[1] one = {1}> {
    q_rows = MatMul(x, wq) k_rows = MatMul(x, wk) v_rows = MatMul(x, wv)
    q_apart = Reshape(q_rows, heads) k_apart = Reshape(k_rows, heads)
    v_apart = Reshape(v_rows, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (q_apart) k = Transpose <perm = [0, 2, 3, 1]> (k_apart)
    v = Transpose <perm = [0, 2, 1, 3]> (v_apart)
    products = MatMul(q, k) scaled = Mul(products, scale) scores = Add(scaled, places)
    shares = Softmax <axis = -1> (scores)
    mixed = MatMul(shares, v) beside = Transpose <perm = [0, 2, 1, 3]> (mixed)
    joined = Reshape(beside, rows)
    means = ReduceMean <axes = [1], keepdims = 1> (joined)
    y = Sub(joined, means) }"""


def test_places_are_added_to_one_image_and_to_several_in_one_class():
    """As in LeViT and CoAtNet: what is added to scores has no batch, nor have means."""
    rng = np.random.default_rng(0)
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + BATCHES)
    shapes = {**dict.fromkeys(("wq", "wk", "wv"), (32, 32)), "places": (1, 4, 20, 20)}
    for name, shape in shapes.items():
        array = rng.standard_normal(shape).astype(np.float32) * 0.3
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(proto, "CPU", config)
    request = compiled.create_infer_request()
    sizes = [3, 1, 2, 8, 5, 7]
    for n in [*sizes, *sizes[::-2]]:
        x = rng.standard_normal((n, 20, 32)).astype(np.float32)
        (wanted,) = onnxruntime_results(proto, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        programs = recorded(compiled)
        assert len(programs) == len(sizes) - 1
        assert len({id(program.made) for program in programs}) == 1


PLACES_BY_EINSUM = """g (float[n,h,w,8] x) => (float[a,b,c,d] y) {
    down = Einsum <equation = "bhwc,hkc->bhwk"> (x, rows)
    by_columns = Einsum <equation = "bhwc,bhvc->bhwv"> (x, x)
    summed = ReduceSum <keepdims = 1> (by_columns, last)
    both = Add(down, summed) y = Asinh(both) }"""
DYNAMIC_LEVELS = """g (float[n,s,16] x) => (float[a,b,c] y) {
    levels, scale, zero = DynamicQuantizeLinear(x)
    sums = MatMulInteger(levels, weights, zero, weights_zero)
    floats = Cast <to = 1> (sums) y = Mul(floats, scale) }"""
STATIC_LEVELS = """g (float[n,8,h,w] x) => (float[a,b,c,d] y) {
    levels = QuantizeLinear(x, step, middle) image = DequantizeLinear(levels, step, middle)
    filters = DequantizeLinear(kernel, small, kernel_zero)
    wide = Conv <pads = [1, 1, 1, 1]> (image, filters)
    wide_levels = QuantizeLinear(wide, step, middle)
    again = DequantizeLinear(wide_levels, step, middle)
    y = Relu(again) }"""


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (PLACES_BY_EINSUM, [(n, 6, w, 8) for n in (1, 2) for w in (3, 5, 9)]),
        (DYNAMIC_LEVELS, [(n, s, 16) for n in (1, 3) for s in (4, 7, 30)]),
        (STATIC_LEVELS, [(n, 8, h, w) for n in (1, 2) for h in (9, 12) for w in (8, 15)]),
    ],
    ids=["Einsum", "levels of rows", "levels of images"],
)
def test_sums_of_labels_and_products_of_levels_have_classes(text, sizes):
    rng = np.random.default_rng(0)
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text)
    weights = {
        "rows": rng.standard_normal((6, 4, 8)).astype(np.float32)[:, :1],
        "last": np.array([-1]),
        "weights": rng.integers(-90, 90, (16, 12), np.int8),
        "weights_zero": np.array(0, np.int8),
        "step": np.array(0.03, np.float32),
        "small": np.array(0.00371, np.float32),  # no sum is half a step
        "middle": np.array(120, np.uint8),
        "kernel": rng.integers(-9, 9, (8, 8, 3, 3), np.int8),
        "kernel_zero": np.array(0, np.int8),
    }
    read = {name for node in proto.graph.node for name in node.input}
    for name in weights.keys() & read:
        proto.graph.initializer.append(numpy_helper.from_array(weights[name], name))
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(proto, "CPU", config)
    request = compiled.create_infer_request()
    for shape in [*sizes, *sizes[::-2]]:
        x = rng.standard_normal(shape).astype(np.float32)
        (wanted,) = onnxruntime_results(proto, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        programs = recorded(compiled)
        assert len(programs) == len(sizes) - 1
        assert len({id(program.made) for program in programs}) <= 2


SIZES_BELOW_ZERO = """g (float[n] x, float[9,9] table)
    => (float[c] y, float[r,k] window, float[m] places) {
    one = Constant <value_ints = [1]> () less = Constant <value_ints = [-1]> ()
    two = Constant <value_ints = [2]> () five = Constant <value_ints = [5]> ()
    zero = Constant <value_ints = [0]> ()
    count = Size(x) counts = Unsqueeze(count, zero) below = Neg(counts)
    missing = Mod(below, five) borders = Concat <axis = 0> (zero, missing)
    padded = Pad(x, borders)
    rows = Reshape(padded, groups) sums = ReduceSum <keepdims = 0> (rows, one) y = Relu(sums)
    negative = Mul(counts, less) half = Div(negative, two)
    first = Add(half, five) last = Sub(five, half)
    window = Slice(table, first, last, zero)
    limit = Cast <to = 1> (count) centers = Range(begin, limit, step)
    places = Mul(centers, x) }"""


def test_sizes_below_zero_of_all_elements_and_of_ranges_of_floats_have_classes():
    proto = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + SIZES_BELOW_ZERO)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1, 5]), "groups"))
    for name, number in (("begin", 0.5), ("step", 1)):
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(number), name))
    table = np.arange(81, dtype=np.float32).reshape(9, 9)
    compiled = partita.Core().compile_model(proto, "CPU", {"INFERENCE_NUM_THREADS": 1})
    request = compiled.create_infer_request()
    sizes = [3, 5, 7, 8, 4, 6, 9, 1, 2]
    for size in [*sizes, *sizes[::-2]]:
        feeds = {"x": np.linspace(-1, 2, size, dtype=np.float32), "table": table}
        for result, wanted in zip(
            request.infer(feeds).to_tuple(), onnxruntime_results(proto, feeds), strict=True
        ):
            np.testing.assert_allclose(result, wanted, rtol=1e-6)
    if isa().native:
        programs = recorded(compiled)
        assert len(programs) == len(sizes) - 1
        assert len({id(program.made) for program in programs}) <= 3


def test_convolutions_with_moved_taps_have_one_class():
    text = """<ir_version: 10, opset_import: ["": 19]> g (float[n,4,h,w] x) => (float[a,b,c,d] y) {
        offsets = Conv <pads = [1, 1, 1, 1]> (x, moves)
        y = DeformConv <pads = [1, 1, 1, 1]> (x, weights, offsets) }"""
    rng = np.random.default_rng(0)
    proto = parser.parse_model(text)
    for name, shape in (("moves", (18, 4, 3, 3)), ("weights", (6, 4, 3, 3))):
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    config = {"EXECUTION_MODE_HINT": "ACCURACY", "INFERENCE_NUM_THREADS": 1}
    compiled = partita.Core().compile_model(proto, "CPU", config)
    request = compiled.create_infer_request()
    sizes = [(n, 4, h, w) for n in (1, 2) for h in (9, 12) for w in (8, 15)]
    for shape in [*sizes, *sizes[::-2]]:
        x = rng.standard_normal(shape).astype(np.float32)
        (wanted,) = onnxruntime_results(proto, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})["y"], wanted, rtol=1e-3, atol=1e-4)
    if isa().native and not isa().tiles:  # those choose arithmetic by sizes
        programs = recorded(compiled)
        assert len(programs) == len(sizes) - 1
        assert len({id(program.made) for program in programs}) <= 2


def test_conditions_that_inputs_tell_have_classes():
    """What decides an If is the same in a class; each of its two values has one of its own."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 4] x, bool c, int64[1] n) => (float[M, K] y) {
            rows = If (c) <
                then_branch = a () => (float[N, 4] t) { t = Relu(x) },
                else_branch = b () => (float[P, 2] e) { pair = Concat<axis = 0>(n, two)
                    e = Reshape(x, pair) }>
            y = Neg(rows)
        }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    compiled = partita.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    rng = np.random.default_rng(7)
    for rows in (5, 3, 8, 1, 9, 0, 4, 5):
        for truth in (True, False, True):
            x = rng.standard_normal((rows, 4), dtype=np.float32)
            feeds = {"x": x, "c": np.array(truth), "n": np.array([2 * rows])}
            found = request.infer(feeds)["y"]
            np.testing.assert_array_equal(found, -(np.maximum(x, 0) if truth else x.reshape(-1, 2)))
    programs = compiled.device_model.specializer.programs.values()
    assert len(programs) - len(recorded(compiled)) <= 2
