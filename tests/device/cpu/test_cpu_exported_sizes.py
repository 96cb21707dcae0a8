"""What exporters write where sizes vary is recorded once for all sizes, and right for each of them.

Each graph is a piece of a network as PyTorch exports it; onnxruntime judges every run.
"""

import functools
import logging

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.lowering import GraphBody
from partita_cpu.jit.isa import isa

UNUSUAL = "not as usual", "emitted for each size", "no classes of shapes"


class Piece:
    """A graph of a few nodes with constants among their inputs."""

    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.nodes, self.weights = [], []

    def add(self, op_type, *inputs, count=1, **attrs):
        """The first output of a new node; arrays among its inputs become weights."""
        names = []
        for given in inputs:
            if not isinstance(given, str):
                self.weights.append(numpy_helper.from_array(given, f"w{len(self.weights)}"))
                given = self.weights[-1].name
            names.append(given)
        outputs = [f"t{len(self.nodes)}.{n}" for n in range(count)]
        self.nodes.append(helper.make_node(op_type, names, outputs, **attrs))
        return outputs[0]

    def branch(self, op_type, *inputs):
        """A graph of one node, which reads what is around it."""
        made = helper.make_tensor_value_info(op_type, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op_type, inputs, [op_type])], "b", [], [made])

    def noise(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32) * np.float32(0.3)

    def size(self, x, axis):
        return self.add("Gather", self.add("Shape", x), ints(axis), axis=0)

    def model(self, dims, y):
        graph = helper.make_graph(
            self.nodes,
            "piece",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def ints(*elements):
    return np.array(elements, np.int64)


def floats(*elements):
    return np.array(elements, np.float32)


def patches(p):
    """An image's patches as rows, and the rows as an image again (vision transformers)."""
    image = p.add("Conv", "x", p.noise(16, 3, 4, 4), p.noise(16), strides=[4, 4])
    n, h, w = (p.size(image, axis) for axis in (0, 2, 3))
    flat = p.add("Reshape", image, p.add("Concat", n, ints(16), ints(-1), axis=0))
    rows = p.add("MatMul", p.add("Transpose", flat, perm=[0, 2, 1]), p.noise(16, 16))
    back = p.add("Concat", n, ints(16), h, w, axis=0)
    image = p.add("Reshape", p.add("Transpose", rows, perm=[0, 2, 1]), back)
    return p.add("Conv", image, p.noise(8, 16, 3, 3), pads=[1] * 4)


def sequence(p):
    """Convolutions along one axis."""
    x = p.add("Relu", p.add("Conv", "x", p.noise(16, 3, 5), p.noise(16), strides=[2]))
    x = p.add("Conv", x, p.noise(16, 1, 3), group=16, pads=[1, 1])
    x = p.add("ConvTranspose", x, p.noise(16, 16, 8), p.noise(16), strides=[4], pads=[2, 2])
    return p.add("Conv", x, p.noise(4, 16, 1), p.noise(4))


def heads(p):
    """Rows split into heads where a size of zero would be none that is copied."""
    shape = p.add("Concat", p.size("x", 0), ints(-1), ints(2), ints(8), axis=0)
    product = p.add("MatMul", "x", p.noise(16, 16))
    split = p.add("Reshape", product, shape, allowzero=1)
    return p.add("Softmax", p.add("Transpose", split, perm=[0, 2, 1, 3]), axis=-1)


def recurrent(p):
    """Two directions, one after another."""
    weights = p.noise(2, 4 * 8, 16), p.noise(2, 4 * 8, 8)
    y = p.add("LSTM", "x", *weights, hidden_size=8, direction="bidirectional")
    shape = p.add("Concat", p.size("x", 0), p.size("x", 1), ints(16), axis=0)
    return p.add("Reshape", p.add("Transpose", y, perm=[0, 2, 1, 3]), shape)


def relative(p):
    """Scores of relative positions, picked by indices that are computed of the size."""
    scores = p.add("MatMul", "x", p.noise(16, 600))
    length = p.add("Squeeze", p.size("x", 1), ints(0))
    places = p.add("Range", np.array(0), length, np.array(1))
    one, other = (p.add("Unsqueeze", places, ints(axis)) for axis in (0, 1))
    index = p.add("Add", p.add("Sub", one, other), np.array(300))
    shape = p.add("Concat", p.size("x", 0), *[p.size("x", 1)] * 2, axis=0)
    return p.add("GatherElements", scores, p.add("Expand", index, shape), axis=2)


def bottleneck(p):
    """Channels widened, filtered one by one, and narrowed."""
    wide = p.add("Relu", p.add("Conv", "x", p.noise(96, 3, 1, 1), p.noise(96)))
    wide = p.add("Conv", wide, p.noise(96, 1, 3, 3), p.noise(96), group=96, pads=[1] * 4)
    narrow = p.add("Conv", p.add("Relu", wide), p.noise(16, 96, 1, 1), p.noise(16))
    wide = p.add("Relu", p.add("Conv", narrow, p.noise(96, 16, 1, 1), p.noise(96)))
    wide = p.add("Conv", wide, p.noise(96, 1, 3, 3), p.noise(96), group=96, pads=[1] * 4)
    return p.add("Conv", p.add("Relu", wide), p.noise(16, 96, 1, 1), p.noise(16))


def padded(p):
    """Ends of axes are padded up to multiples; PyTorch tells axes from the last to the first."""
    four, missing = ints(4), []
    for axis in (2, 3):
        over = p.add("Mod", p.size("x", axis), four)
        missing.append(p.add("Mod", p.add("Sub", four, over), four))
    zero = ints(0)
    pads = p.add("Concat", zero, missing[1], zero, missing[0], zero, zero, zero, zero, axis=0)
    pairs = p.add("Reshape", pads, ints(-1, 2))
    turned = p.add("Slice", pairs, ints(-1), ints(-(2**63) + 1), ints(0), ints(-1))
    pads = p.add("Reshape", p.add("Transpose", turned, perm=[1, 0]), ints(-1))
    wide = p.add("Pad", "x", p.add("Cast", pads, to=TensorProto.INT64))
    return p.add("Conv", wide, p.noise(8, 3, 4, 4), strides=[4, 4])


def positions(p):
    """Places in all rows of a batch, counted on; one of both sizes may be the same each time."""
    batch, length = (p.add("Squeeze", p.size("x", axis), ints(0)) for axis in (0, 1))
    rows, along = (p.add("Range", np.array(0), n, np.array(1)) for n in (batch, length))
    starts = p.add("Mul", p.add("Unsqueeze", rows, ints(1)), length)
    places = p.add("Add", p.add("Unsqueeze", along, ints(0)), starts)
    return p.add("Add", "x", p.add("Gather", p.noise(900, 16), places))


def scaled(p):
    """An image whose sides are scaled in floats, and padded (torchvision's detectors)."""
    number = functools.partial(p.add, "Cast", to=TensorProto.FLOAT)
    sides = p.add("Slice", p.add("Shape", "x"), ints(-2), ints(2**63 - 1), ints(0), ints(1))
    shortest, longest = (
        p.add("Reciprocal", number(p.add(kind, sides, keepdims=0)))
        for kind in ("ReduceMin", "ReduceMax")
    )
    factors = [p.add("Mul", one, floats(n)) for one, n in ((shortest, 21.3), (longest, 33.7))]
    factor = p.add("Min", *factors)
    given = [number(p.size("x", axis)) for axis in (2, 3)]
    wanted = [
        p.add("Cast", p.add("Floor", p.add("Mul", n, factor)), to=TensorProto.INT64) for n in given
    ]
    kept = p.add("Slice", p.add("Shape", "x"), ints(0), ints(2), ints(0))
    sizes = p.add("Concat", kept, *wanted, axis=0)
    resized = p.add("Resize", "x", "", "", sizes, mode="linear")
    missing, ratios = [], []
    for axis, before in zip((2, 3), given, strict=True):
        size = p.size(resized, axis)
        blocks = p.add("Ceil", p.add("Div", number(size), floats(8)))
        whole = p.add("Cast", p.add("Mul", blocks, floats(8)), to=TensorProto.INT64)
        missing.append(p.add("Sub", whole, size))
        ratios.append(p.add("Div", before, number(size)))
    pads = p.add("Concat", ints(0, 0, 0, 0, 0, 0), *missing, axis=0)
    image = p.add("Conv", p.add("Pad", resized, pads), p.noise(8, 3, 4, 4), strides=[4, 4])
    ratio = p.add("Sqrt", p.add("Mul", *ratios))
    return p.add("Mul", image, p.add("Reshape", ratio, ints(1, 1, 1, 1)))


def found(p):
    """What a run finds in an image, scaled and cut by the image's sizes behind that."""
    number = functools.partial(p.add, "Cast", to=TensorProto.FLOAT)
    image = p.add("Conv", "x", p.noise(4, 3, 3, 3), p.noise(4), strides=[2, 2], pads=[1] * 4)
    wide, high = p.size("x", 3), p.size("x", 2)
    empty = p.add("Equal", p.add("ReduceProd", p.add("Shape", image), keepdims=0), np.array(0))
    places = p.add("Transpose", p.add("NonZero", p.add("Greater", image, floats(0.2))), perm=[1, 0])
    picked = p.add("GatherND", image, places)
    column = p.add("Gather", places, np.array(3), axis=1)
    scaled_by = p.add("Div", number(wide), number(high))
    across = p.add("Mul", number(column), p.add("Squeeze", scaled_by, ints(0)))
    below = p.add("Less", column, p.add("Div", wide, ints(4)))
    kept = p.add("Where", below, across, picked)
    small, large = (p.branch(kind, kept) for kind in ("Neg", "Abs"))
    chosen = p.add("If", empty, then_branch=small, else_branch=large)
    best = p.add("TopK", chosen, p.add("Reshape", p.add("Min", high, ints(9)), ints(1)), count=2)
    rest = p.add("Slice", chosen, p.add("Sub", high, ints(2)), ints(2**62), ints(0))
    return p.add("Concat", best, rest, axis=0)


def pasted(p):
    """Rows that are moved as a run finds out, one after another (torchvision's masks)."""
    wide = p.size("x", 3)
    rows = p.add("Reshape", "x", p.add("Concat", ints(-1), wide, axis=0))
    largest = p.add("ReduceMax", p.add("Abs", rows), axes=[1], keepdims=0)
    moves = p.add("Cast", p.add("Mul", largest, floats(4)), to=TensorProto.INT64)
    none = p.add("ConstantOfShape", p.add("Concat", ints(0), wide, axis=0))
    p.weights += [numpy_helper.from_array(ints(0), "zero")]
    node = helper.make_node
    body = [
        node("Unsqueeze", ["i", "zero"], ["place"]),
        node("Gather", [moves, "place"], ["move"]),
        node("ConstantOfShape", ["move"], ["before"]),
        node("Gather", [rows, "i"], ["row"]),
        node("Concat", ["before", "row"], ["long"], axis=0),
        node("Slice", ["long", "zero", wide, "zero"], ["cut"]),
        node("Unsqueeze", ["cut", "zero"], ["one"]),
        node("Concat", ["so_far", "one"], ["more"], axis=0),
        node("Identity", ["go"], ["on"]),
    ]
    ports = {
        "i": (TensorProto.INT64, []),
        "go": (TensorProto.BOOL, []),
        "so_far": (TensorProto.FLOAT, [None, None]),
        "on": (TensorProto.BOOL, []),
        "more": (TensorProto.FLOAT, [None, None]),
    }
    made = [helper.make_tensor_value_info(name, *port) for name, port in ports.items()]
    graph = helper.make_graph(body, "body", made[:3], made[3:])
    return p.add("Loop", np.array(15), np.array(True), none, body=graph)


ROWS = ["batch", "length", 16]
IMAGE = ["batch", 3, "height", "width"]
LENGTHS = (7, 40, 12, 129, 1, 33, 64, 130, 5)
SIDES = (8, 40, 17, 64, 33, 9, 24, 65, 12)


@pytest.mark.parametrize(
    ("piece", "dims", "shapes"),
    [
        (patches, IMAGE, [(1 + n // 20, 3, n, n + 3) for n in SIDES]),
        (sequence, ["batch", 3, "length"], [(2, 3, n + 4) for n in LENGTHS]),
        (heads, ROWS, [(1 + n % 4, n, 16) for n in LENGTHS]),
        (recurrent, ROWS, [(n, 1 + n % 4, 16) for n in LENGTHS]),
        (relative, ROWS, [(1 + n % 4, n, 16) for n in LENGTHS]),
        (bottleneck, IMAGE, [(1 + n // 40, 3, n, n + 3) for n in SIDES]),
        (padded, IMAGE, [(2, 3, n, n + 4) for n in range(8, 40, 3)]),
        (positions, ROWS, [(2, n, 16) for n in LENGTHS]),
        (scaled, IMAGE, [(1, 3, n + 5, 50 - n) for n in range(2, 45, 3)]),
        (found, IMAGE, [(1, 3, n, n + 4) for n in SIDES]),
        (pasted, IMAGE, [(1, 3, n, n + 4) for n in SIDES]),
    ],
)
def test_pieces_of_exported_networks_are_recorded_for_all_sizes(piece, dims, shapes, caplog):
    made = Piece()
    model = made.model(dims, piece(made))
    compiled = partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})
    request = compiled.create_infer_request()
    with caplog.at_level(logging.DEBUG, logger="partita.lowering"):
        for shape in [*shapes, *shapes[::-1]]:
            x = made.noise(*shape)
            (wanted,) = onnxruntime_results(model, {"x": x})
            np.testing.assert_allclose(request.infer({"x": x})[0], wanted, rtol=1e-4, atol=1e-5)
    programs = list(compiled.device_model.specializer.programs.values())
    recordings = [program.made for program in programs if program.made is not None]
    assert bool(recordings) == isa().native
    assert len({id(one) for one in recordings}) < max(len(recordings), 1)  # shared by sizes
    assert not [r for r in caplog.records if any(words in r.message for words in UNUSUAL)]


def test_a_table_at_an_odd_address_of_the_file_is_copied_once_for_all_sizes(tmp_path):
    """Weights in files lie anywhere, and kernels want them where processors read them at once."""
    made, offsets = Piece(), set()
    table = made.noise(5000, 32)
    made.weights.append(numpy_helper.from_array(table, "table"))
    y = made.add("Gather", "table", made.add("Cast", "x", to=TensorProto.INT64))
    model = made.model(["batch", "length"], made.add("Softmax", y, axis=1))
    for count in range(1, 5):  # one of four names at least moves the table to an odd address
        model.graph.name = "n" * count
        path = tmp_path / f"{count}.onnx"
        path.write_bytes(model.SerializeToString())
        offsets.add(path.read_bytes().index(table.tobytes()) % 4)
        compiled = partita.Core().compile_model(path, "CPU")
        request = compiled.create_infer_request()
        for shape in ((1, 3), (2, 5), (1, 7), (3, 9), (3, 1), (70, 80), (2, 5)):
            x = made.rng.integers(0, 5000, shape).astype(np.float32)
            rows = table[x.astype(int)].astype(float)
            e = np.exp(rows - rows.max(1, keepdims=True))
            wanted = e / e.sum(1, keepdims=True)
            np.testing.assert_allclose(request.infer({"x": x})[0], wanted, rtol=1e-5, atol=1e-6)
        programs = compiled.device_model.specializer.programs.values()
        steps = [step for program in programs for step in program.steps]
        constants = [getattr(arg, "const", None) for step in steps for arg in step.args]
        tables = {a.ctypes.data for a in constants if a is not None and a.nbytes == table.nbytes}
        assert len(tables) == 1
    assert len(offsets) == 4


def test_attention_of_no_heads_is_empty():
    made = Piece()
    turned = made.add("Transpose", "x", perm=[0, 1, 3, 2])
    scores = made.add("Mul", made.add("MatMul", "x", turned), np.array(0.5, np.float32))
    y = made.add("MatMul", made.add("Softmax", scores, axis=-1), "x")
    model = made.model(["batch", "heads", "length", 8], y)
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for shape in ((1, 2, 5, 8), (2, 0, 5, 8), (2, 3, 7, 8), (0, 3, 7, 8), (2, 0, 0, 8)):
        x = made.noise(*shape)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_allclose(request.infer({"x": x})[0], wanted, rtol=1e-4, atol=1e-5)


def test_a_body_of_a_loop_that_meets_many_sizes_is_recorded_for_them():
    """It adds a row in each iteration, and was compiled in each."""
    made = Piece()
    model = made.model([1, 3, 8, "width"], pasted(made))
    compiled = partita.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    for width in (9, 11):
        x = made.noise(1, 3, 8, width)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_array_equal(request.infer({"x": x})[0], wanted)
    (program, *_) = compiled.device_model.specializer.programs.values()
    args = [arg for step in program.steps for arg in step.args]
    (body,) = [arg for arg in args if isinstance(arg, GraphBody)]
    programs = body.specializer.programs.values()
    recordings = [one.made for one in programs if one.made is not None]
    assert bool(recordings) == isa().native
    assert len({id(one) for one in recordings}) < max(len(recordings), 1)  # shared by sizes


def test_which_classes_of_a_detector_have_no_boxes_tells_no_recordings_apart():
    """Each combination of empty ones had a recording of its own."""
    made = Piece()
    best = []
    for number in range(8):
        row = made.add("Gather", "x", np.array(number))
        places = made.add("NonZero", made.add("Greater", row, floats(0.7)))
        picked = made.add("GatherND", row, made.add("Transpose", places, perm=[1, 0]))
        few = made.add("Min", made.add("Shape", picked), ints(3))
        best.append(made.add("TopK", picked, few, count=2))
    model = made.model([8, "width"], made.add("Concat", *best, axis=0))
    compiled = partita.Core().compile_model(model, "CPU")
    request = compiled.create_infer_request()
    empty = set()
    for width in range(60, 100, 2):
        x = made.noise(8, width)
        (wanted,) = onnxruntime_results(model, {"x": x})
        np.testing.assert_array_equal(request.infer({"x": x})[0], wanted)
        empty.add(tuple((x > 0.7).any(axis=1)))
    assert len(empty) > 15
    programs = list(compiled.device_model.specializer.programs.values())
    (rest,) = {one.rest.specializer for one in programs if one.made is not None} or {None}
    assert (rest is not None) == isa().native
    if rest is not None:
        recordings = {id(one.made) for one in rest.programs.values()}
        assert len(recordings) <= 3
