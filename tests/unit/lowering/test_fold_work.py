"""How many operations folding takes, by counts in closed form, and what becomes of too many."""

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser
from test_lowering_specialize import Emit, find, run

from partita.errors import CompileError
from partita.lowering import Operand, Specializer, Target, fold_constants, lower_proto
from partita.lowering.shapes.fold_allowance import (
    FLOOR_OPERATIONS,
    OPERATIONS_PER_WEIGHT_BYTE,
    FoldAllowance,
    foldable,
)
from partita.lowering.shapes.fold_work import INTERPRETED_OPERATIONS, operations
from partita.lowering.shapes.result_shapes import predicted

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
X = "g (float[N] x) => (float[N] y) "


def node_of(op_type, count, attrs):
    names = [f"i{n}" for n in range(count)]
    made = helper.make_node(op_type, names, ["t"], **attrs)
    inputs = [helper.make_tensor_value_info(name, 1, None) for name in names]
    outputs = [helper.make_tensor_value_info("t", 1, None)]
    graph = helper.make_graph([made], "g", inputs, outputs)
    imports = [helper.make_opsetid("", 20)]
    return lower_proto(helper.make_model(graph, opset_imports=imports, ir_version=10)).nodes[0]


def counted(op_type, shapes, attrs=None, interpreted=False, elements=0):
    node = node_of(op_type, len(shapes), attrs or {})
    operands = [Operand(shape, np.dtype(np.float32)) for shape in shapes]
    found = predicted(node, operands)
    results = elements if found is None else sum(one.size for one in found)
    moved = results + sum(operand.size for operand in operands)
    return operations(node, operands, results, interpreted) - moved


@pytest.mark.parametrize(
    ("op_type", "shapes", "attrs", "due"),
    [
        ("Add", [(3, 1), (1, 4)], {}, 0),
        ("MatMul", [(5, 1, 3, 7), (2, 7, 4)], {}, 5 * 2 * 3 * 4 * 7),
        ("MatMul", [(7,), (7,)], {}, 7),
        ("Gemm", [(7, 3), (4, 7)], {"transA": 1, "transB": 1}, 3 * 4 * 7),
        ("Conv", [(2, 6, 9, 8), (4, 3, 3, 2)], {"group": 2}, 2 * 4 * 7 * 7 * 18),
        ("ConvTranspose", [(2, 6, 9, 8), (6, 3, 3, 2)], {}, 2 * 6 * 72 * 18),
        ("MaxPool", [(1, 2, 9, 9)], {"kernel_shape": [3, 3]}, 162 * 9),
        ("LRN", [(1, 5, 2, 2)], {"size": 99}, 20 * 5),
        ("Einsum", [(3, 4), (4, 5)], {"equation": "ij,jk->ik"}, 2 * 3 * 4 * 5),
        ("Einsum", [(2, 3, 4), (4, 5)], {"equation": "...ij,jk"}, 2 * 2 * 3 * 4 * 5),
        ("NonMaxSuppression", [(2, 9, 4), (2, 3, 9)], {}, 2 * 3 * 9 * 9),
        ("Det", [(2, 5, 5)], {}, 2 * 125),
        ("RoiAlign", [(1, 2, 9, 9), (5, 4), (5,)], {"sampling_ratio": 3}, 4 * 9 * 5 * 2),
    ],
)
def test_operations_beside_reading_and_writing(op_type, shapes, attrs, due):
    assert counted(op_type, shapes, attrs) == due


def test_a_recurrence_takes_its_weights_at_each_step():
    found = counted("LSTM", [(7, 2, 3), (1, 20, 3), (1, 20, 5)], {"hidden_size": 5})
    assert found == 7 * 2 * (60 + 100) + 7 * INTERPRETED_OPERATIONS


def test_more_operations_than_any_number_are_infinitely_many():
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    attrs = {"equation": ",".join(letters) + "->"}
    assert counted("Einsum", [(10**7,)] * len(letters), attrs) == np.inf


def test_regions_that_say_no_number_of_samples_take_as_many_as_pixels_may_lie_in_them():
    node = node_of("RoiAlign", 3, {"spatial_scale": 0.5})
    regions = np.array([[0, 0, -1000, 10]], np.float32)
    operands = [
        Operand((1, 2, 9, 9), np.dtype(np.float32)),
        Operand((1, 4), np.dtype(np.float32), regions),
        Operand((1,), np.dtype(np.int64)),
    ]
    assert operations(node, operands, 0) >= 4 * 2 * 1000**2
    operands[1] = Operand((1, 4), np.dtype(np.float32), np.full((1, 4), np.nan, np.float32))
    assert operations(node, operands, 0) > 1e300


def test_loops_in_python_take_longer_than_kernels():
    shapes, attrs = [(2, 6, 9, 8), (4, 6, 3, 2)], {}
    turns = 2 * 4 * 7 * 7 * 6
    difference = counted("Conv", shapes, attrs, True) - counted("Conv", shapes, attrs)
    assert difference == turns * INTERPRETED_OPERATIONS
    assert counted("MatMul", [(3, 4), (4, 5)], {}, True) == 60


def test_what_does_not_fit_is_for_its_emitter_to_refuse():
    assert counted("MatMul", [(3, 4), (5,)]) >= 0
    assert counted("Conv", [(3, 4), (5,)]) == 0


def graph_of(text):
    return lower_proto(parser.parse_model(HEAD + text))


@pytest.mark.parametrize(
    ("allowed", "left"),
    [(47, ["Relu", "Neg"]), (48, ["Neg"]), (95, ["Neg"]), (96, [])],
)
def test_operations_of_all_nodes_are_added_up(allowed, left):
    """Each node reads 24 numbers and writes as many."""

    def found(node, operands):
        return Emit(plain_relu) if node.op_type == "Relu" else find(node, operands)

    weights = ", ".join(["1"] * 24)
    graph = graph_of(f"{X} <float[24] w = {{{weights}}}> {{ r = Relu(w) n = Neg(r) y = Add(x, n)}}")
    target = Target(found, fold_operations=allowed)
    fold_constants(graph, target)
    assert [node.op_type for node in graph.nodes] == [*left, "Add"]
    (y,) = run(Specializer(graph, target), np.zeros(24, np.float32))
    np.testing.assert_array_equal(y, np.full(24, -1.0))


def plain_relu(b, node, x):
    y = b.empty(x.shape, x.dtype)
    b.call_numpy(lambda x, y: np.maximum(x, 0, out=y), x, y)
    return y


def test_weights_allow_for_more_operations():
    graph = graph_of(f"{X} <float[2] w = {{1, 2}}> {{ y = Add(x, w) }}")
    allowed = FLOOR_OPERATIONS + 8 * OPERATIONS_PER_WEIGHT_BYTE
    assert foldable(graph)[1] == allowed
    assert Target(find).allowance(graph).operations == allowed
    assert Target(find).allowance(graph, widely=True).operations > allowed


def test_operations_that_are_refused_do_not_count():
    node = node_of("MatMul", 2, {})
    operands = [Operand((10, 10), np.dtype(np.float32))] * 2
    allowance = FoldAllowance(operations=1299)
    assert not allowance.begin(node, operands)
    assert allowance.operations == 1299
    allowance = FoldAllowance(operations=1301)
    assert allowance.begin(node, operands)
    assert allowance.operations == 1


@pytest.mark.parametrize(("allowed", "is_taken"), [(1, False), (2, True)])
def test_what_must_be_folded_has_a_limit_too_and_says_who_needs_it(allowed, is_taken):
    def strict(b, node, x, z):
        if z.const is None:
            raise CompileError(f"Operation '{node.name}' takes a constant.")
        return find(node, [x, z]).emit(b, node, x, z)

    def found(node, operands):
        return Emit(strict) if node.op_type == "Add" else find(node, operands)

    graph = graph_of(f"{X} <float[1] w = {{1}}> {{ n = Relu(w) y = Add(x, n) }}")
    target = Target(found, fold_operations=1, must_fold_operations=allowed)
    fold_constants(graph, target)
    x = np.ones(3, np.float32)
    if is_taken:
        np.testing.assert_array_equal(run(Specializer(graph, target), x)[0], np.full(3, 2.0))
        return
    told = r"Operation 'Add_1' takes a constant\. What .* more than 1 operations or .* GiB"
    with pytest.raises(CompileError, match=told):
        Specializer(graph, target).program_for([x])


def test_a_nested_branch_is_folded_once():
    """Every second level is decided by a constant; to look twice at its branch doubles the work."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Neg", ["w"], ["y0"])]
    for level in range(6):
        branch = helper.make_graph(nodes, f"b{level}", [], [value(f"y{level}", 1, [1])])
        other = helper.make_graph(
            [helper.make_node("Relu", ["x"], [f"z{level}"])],
            f"e{level}",
            [],
            [value(f"z{level}", 1, [1])],
        )
        decided, made = "constant" if level % 2 else "known_to_the_run", f"y{level + 1}"
        nodes = [helper.make_node("If", [decided], [made], then_branch=branch, else_branch=other)]
    inputs = [value("x", 1, [1]), value("known_to_the_run", 9, [])]
    weights = [
        numpy_helper.from_array(np.array(True), "constant"),
        numpy_helper.from_array(np.ones(1, np.float32), "w"),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [value("y6", 1, [1])], weights)
    asked = []
    fold_constants(
        lower_proto(helper.make_model(graph, ir_version=10)),
        Target(find),
        lambda node: asked.append(node.op_type) is None,
    )
    assert asked.count("Neg") == 1
