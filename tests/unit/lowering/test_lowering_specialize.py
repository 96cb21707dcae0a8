"""Specialization: folding, value inputs, splits, memory; checked by walking the programs."""

import gc
import mmap
import re
import sys
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

from partita.errors import CompileError
from partita.lowering import (
    Builder,
    Node,
    Operand,
    Specializer,
    Target,
    fold_constants,
    lower_proto,
    reference_fold,
    specialize,
)
from partita.lowering.program import plain
from partita.lowering.shapes import shape_class


class Emit:
    """An emitter as a back-end would register it."""

    def __init__(self, emit, folds=True):
        self.emit = emit
        self.folds = folds


def unary(fn):
    def emit(b, node, x):
        y = b.empty(x.shape, x.dtype)
        b.call_numpy(lambda x, y: np.copyto(y, fn(x)), x, y)
        return y

    return Emit(emit)


def binary(fn):
    def emit(b, node, x, z):
        y = b.empty(np.broadcast_shapes(x.shape, z.shape), x.dtype)
        b.call_numpy(lambda x, z, y: np.copyto(y, fn(x, z)), x, z, y)
        return y

    return Emit(emit)


def sum_over_the_first(b, node, x, z):
    y = b.empty(x.shape, x.dtype)
    b.call(lambda x, z, y, tid=0, nt=1: np.add(x, z, out=y), x, z, y, over=(y, x))
    return y


def reshape(b, node, x, shape):
    dims = b.value(shape).tolist()
    known = int(np.prod([d for d in dims if d != -1]))
    return b.view(x, [x.size // known if d == -1 else d for d in dims])


def equal(b, node, x, z):
    y = b.empty(x.shape, np.bool_)
    b.call_numpy(np.equal, x, z, y)
    return y


def reduce_max(b, node, x):
    y = b.empty((), x.dtype)
    b.call_numpy(lambda x, y: np.max(x, out=y), x, y)
    return y


def expand(b, node, x, shape):
    y = b.empty(b.value(shape).tolist(), x.dtype)
    b.call_numpy(lambda x, y: np.copyto(y, x), x, y)
    return y


def cast_to_int(b, node, x):
    y = b.empty((1,), np.int64)
    b.call_numpy(lambda x, y: np.copyto(y, x.reshape(1), casting="unsafe"), x, y)
    return y


EMITTERS = {
    "Relu": unary(lambda x: np.maximum(x, 0)),
    "Neg": unary(np.negative),
    "Add": binary(np.add),
    "Mul": binary(np.multiply),
    "Sum": Emit(sum_over_the_first),
    "Equal": Emit(equal),
    "Shape": Emit(lambda b, node, x: b.constant(np.array(x.shape, np.int64))),
    "Reshape": Emit(reshape),
    "ReduceMax": Emit(reduce_max),
    "Expand": Emit(expand),
    "Cast": Emit(cast_to_int),
    "NonZero": Emit(
        lambda b, node, x: b.dynamic(lambda x: [np.array(np.nonzero(x))], [x], [np.int64])
    ),
    "RandomNormal": Emit(lambda b, node: b.empty((2,), np.float32), folds=False),
}


def find(node, operands):
    if node.op_type not in EMITTERS:
        raise CompileError(f"no {node.op_type}")
    return EMITTERS[node.op_type]


def specializer(text, **options):
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    return Specializer(lower_proto(model), Target(find, **options))


def run(maker, *arrays):
    """Walks a program on numpy arrays in one arena, as an engine does."""
    program = maker.program_for(arrays)
    arena = np.full(program.arena_bytes, 0xAA, np.uint8)
    memory = {operand: plain(a) for operand, a in zip(program.inputs, arrays, strict=True)}

    def array(operand):
        if operand.const is not None:
            return operand.const
        root = operand.root
        if root not in memory:
            if root in program.offsets:
                start = program.offsets[root]
                raw = arena[start : start + root.nbytes]
                memory[root] = raw.view(root.dtype).reshape(root.shape)
            else:
                memory[root] = np.empty(root.shape, root.dtype)
        return memory[root].reshape(operand.shape if root is not operand else memory[root].shape)

    for step in program.steps:
        made = step.fn(*(array(a) if isinstance(a, Operand) else a for a in step.args))
        if step.results:
            memory.update(zip(step.results, made, strict=True))
    outputs = [None if o is None else array(o) for o in program.outputs]
    if program.rest is not None:
        rest = run(program.rest.specializer, *(array(o) for o in program.rest.inputs))
        for index, result in zip(program.rest.outputs, rest, strict=True):
            outputs[index] = result
    return outputs


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def names(program):
    return [step.op.op_type for step in program.steps]


def test_shapes_fold_so_that_a_reshape_by_a_computed_shape_is_a_view():
    maker = specializer(
        """g (float[N, 4] x, float[K] z) => (float[K] y) {
            s = Shape(z)
            t = Neg(s)
            u = Neg(t)
            a = Relu(x)
            y = Reshape(a, u)
        }"""
    )
    x = floats(2, 4)
    np.testing.assert_array_equal(run(maker, x, floats(8))[0], np.maximum(x, 0).reshape(8))
    program = maker.program_for([x, floats(8)])
    assert names(program) == ["Relu"]
    assert [op.exec_type for op in program.ops] == ["constant"] * 3 + ["numpy", "view"]
    with pytest.raises(CompileError, match=r"'.*' \(Reshape\) cannot view .*\[2, 4\] as \[7\]"):
        maker.program_for([x, floats(7)])


def test_programs_are_made_once_per_shape_and_the_oldest_is_forgotten():
    maker = specializer("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    first = maker.program_for([floats(1)])
    maker = specializer(
        "g (float[N] x) => (float[N] y) { y = Relu(x) }", most_kept_bytes=2 * first.kept_bytes
    )
    first = maker.program_for([floats(1)])
    assert maker.program_for([floats(1)]) is first
    second = maker.program_for([floats(2)])
    assert maker.program_for([floats(1)]) is first
    maker.program_for([floats(3)])
    assert maker.program_for([floats(1)]) is first
    assert maker.program_for([floats(2)]) is not second


def test_a_hundred_shapes_are_kept_and_a_program_larger_than_the_bound_too():
    maker = specializer("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    programs = [maker.program_for([floats(count)]) for count in range(1, 101)]
    assert [maker.program_for([floats(count)]) for count in range(1, 101)] == programs
    maker = specializer("g (float[N] x) => (float[N] y) { y = Relu(x) }", most_kept_bytes=0)
    assert maker.program_for([floats(1)]) is maker.program_for([floats(1)])


def test_what_a_program_keeps_is_its_own_constants_and_not_weights():
    maker = specializer(
        """g (float[N] x, int64[2] s) => (float[A, B] y)
        <float[1] one = {1.0}> {
            big = Expand(one, s)
            y = Add(x, big)
        }"""
    )
    small, large = (
        maker.program_for([floats(1), np.array([1, count])]).kept_bytes for count in (1, 5000)
    )
    assert large - small == 4 * 4999


def test_a_small_integer_input_that_gives_a_shape_becomes_a_value_input():
    maker = specializer(
        """g (float[N] x, int64[2] s) => (float[A, B] y) {
            t = Neg(s)
            u = Neg(t)
            y = Reshape(x, u)
        }"""
    )
    x = floats(6)
    for shape in ([2, 3], [3, 2], [6, -1]):
        (y,) = run(maker, x, np.array(shape))
        np.testing.assert_array_equal(y, x.reshape(shape))
    assert maker.value_inputs == (1,)
    assert maker.program_for([x, np.array([2, 3])]).rest is None


def test_a_condition_from_an_input_picks_the_branch_at_compile_time():
    maker = specializer(
        """g (float[N] x, int64 rate) => (float[N] y) <int64 wide = {16000}> {
            c = Equal(rate, wide)
            a = Relu(x)
            b = If (c) <
                then_branch = t () => (float[N] u) { v = Neg(a)  u = Neg(v) },
                else_branch = e () => (float[N] w) { w = Mul(a, x) }
            >
            y = Add(b, a)
        }"""
    )
    x = floats(5)
    a = np.maximum(x, 0)
    np.testing.assert_array_equal(run(maker, x, np.array(16000))[0], a + a)
    np.testing.assert_array_equal(run(maker, x, np.array(8000))[0], a * x + a)
    assert names(maker.program_for([x, np.array(8000)])) == ["Relu", "Mul", "Add"]


def test_a_value_from_a_float_input_splits_the_program_where_it_is_needed():
    maker = specializer(
        """g (float[N] x, float[M] z) => (float y, float[N] early, float[K] late) {
            m = ReduceMax(z)
            n = Cast <to = 7> (m)
            e = Relu(x)
            late = Expand(e, n)
            y = ReduceMax(late)
            early = Neg(e)
        }"""
    )
    x = floats(1)
    for count in (3.0, 5.0, 3.0):
        y, early, late = run(maker, x, np.array([1, count], np.float32))
        np.testing.assert_array_equal(late, np.broadcast_to(np.maximum(x, 0), int(count)))
        np.testing.assert_array_equal(early, -np.maximum(x, 0))
        assert y == max(x[0], 0)
    program = maker.program_for([x, floats(2)])
    assert names(program) == ["ReduceMax", "Cast", "Relu", "Neg"]
    assert program.outputs[0] is None
    assert program.outputs[2] is None


def test_what_hangs_on_a_shape_only_the_run_tells_waits_in_the_rest():
    maker = specializer(
        """g (float[N] x) => (int64[R, K] where, int64[R, K] neg, float[N] pos, int64[2] s) {
            where = NonZero(x)
            neg = Neg(where)
            s = Shape(where)
            pos = Relu(x)
        }"""
    )
    for x in (np.array([0, 1, 0, 2.0], np.float32), np.zeros(4, np.float32)):
        where, neg, pos, shape = run(maker, x)
        np.testing.assert_array_equal(where, np.array(np.nonzero(x)))
        np.testing.assert_array_equal(neg, -where)
        np.testing.assert_array_equal(pos, x)
        assert shape.tolist() == list(where.shape)


def test_a_backend_without_splits_says_which_operation_needs_which_value():
    text = "g (float[N] x, float[M] z) => (float[K] y) { n = Cast <to = 7> (z)  y = Expand(x, n) }"
    maker = specializer(text, allow_split=False)
    with pytest.raises(CompileError, match=r"'Expand.*' \(Expand\) needs the value of 'n'"):
        maker.program_for([floats(1), floats(9)])
    for count in (3, 5):  # a few floats may be sizes
        (y,) = run(maker, floats(1), np.array([count], np.float32))
        np.testing.assert_array_equal(y, np.broadcast_to(floats(1), count))


def test_values_that_flood_the_cache_make_it_split_instead(monkeypatch):
    monkeypatch.setattr("partita.lowering.specialize.FLOOD", 4)
    maker = specializer("g (float[N] x, int64[1] s) => (float[M] y) { y = Expand(x, s) }")
    for count in range(1, 9):
        (y,) = run(maker, np.ones(1, np.float32), np.array([count]))
        assert y.shape == (count,)
    assert maker.value_inputs == ()


def test_values_that_come_with_shapes_of_their_own_are_no_flood(monkeypatch):
    monkeypatch.setattr("partita.lowering.specialize.FLOOD", 4)
    maker = specializer("g (float[N, 1] x, int64[2] s) => (float[N, M] y) { y = Expand(x, s) }")
    for count in range(1, 9):
        (y,) = run(maker, np.ones((count, 1), np.float32), np.array([count, count]))
        assert y.shape == (count, count)
    assert maker.value_inputs == (1,)


def test_outputs_may_be_inputs_constants_views_and_repeated():
    maker = specializer(
        """g (float[2, 3] x) => (float[2, 3] x, float[2, 3] a, float[6] v, float[6] w, int64[2] s,
                                  float[2, 3] b)
        <int64[1] six = {6}> {
            a = Relu(x)
            v = Reshape(a, six)
            w = Reshape(x, six)
            s = Shape(x)
            b = Identity(a)
        }"""
    )
    x = floats(2, 3)
    same, a, v, w, s, b = run(maker, x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(a, np.maximum(x, 0))
    np.testing.assert_array_equal(v, a.reshape(6))
    np.testing.assert_array_equal(w, x.reshape(6))
    np.testing.assert_array_equal(b, a)
    assert s.tolist() == [2, 3]
    program = maker.program_for([x])
    assert [owner is not None for owner in program.owned] == [False, True] + [False] * 4


def test_an_intermediate_that_is_still_read_is_not_overwritten():
    text = "g (float[64] x) => (float[64] y) { a = Relu(x) " + "".join(
        f"t{i} = Neg({'a' if i == 0 else f't{i - 1}'}) " for i in range(9)
    )
    maker = specializer(text + " y = Add(t8, a) }")
    x = floats(64)
    np.testing.assert_array_equal(run(maker, x)[0], np.zeros(64))
    assert maker.program_for([x]).arena_bytes == 3 * 256


@pytest.mark.parametrize(
    ("nodes", "buffers"),
    [
        ("a = Relu(x)  b = Neg(a)  c = Sum(a, b)  d = Neg(c)  e = Sum(c, d)  y = Neg(e)", 2),
        ("a = Relu(x)  b = Neg(a)  c = Sum(a, b)  y = Mul(c, a)", 3),  # a is needed later
        ("a = Relu(x)  c = Sum(a, a)  y = Neg(c)", 2),  # the same elements are both terms
        ("c = Sum(x, x)  y = Neg(c)", 1),  # an input
        ("a = Relu(x)  b = Neg(a)  y = Sum(a, b)", 2),  # an output
        ("a = Relu(x)  b = Neg(a)  c = Sum(b, a)  d = Sum(a, c)  y = Neg(d)", 2),
    ],
)
def test_results_are_made_in_the_memory_of_what_dies(nodes, buffers):
    maker = specializer(f"g (float[64] x) => (float[64] y) {{ {nodes} }}")
    x = floats(64)
    names = {"x": x}
    ops = {"Relu": lambda v: np.maximum(v, 0), "Neg": np.negative}
    ops |= {"Sum": np.add, "Mul": np.multiply}
    for name, op, inputs in re.findall(r"(\w) = (\w+)\(([^)]*)\)", nodes):
        names[name] = ops[op](*(names[n] for n in inputs.split(", ")))
    np.testing.assert_array_equal(run(maker, x)[0], names["y"])
    assert maker.program_for([x]).arena_bytes == buffers * 256


def test_inputs_take_no_room_among_intermediates():
    maker = specializer(
        "g (float[64] x) => (float[64] y) { a = Relu(x)  b = Neg(a)  c = Neg(b)  y = Add(c, x) }"
    )
    x = floats(64)
    np.testing.assert_array_equal(run(maker, x)[0], np.maximum(x, 0) + x)
    program = maker.program_for([x])
    assert not set(program.inputs) & set(program.offsets)
    assert program.arena_bytes == 2 * 256


def test_random_numbers_never_fold_and_are_never_value_inputs():
    maker = specializer(
        "g (float[2] x) => (float[2] y) { r = RandomNormal <shape = [2]> ()  y = Add(x, r) }"
    )
    program = maker.program_for([floats(2)])
    assert names(program) == ["Add"]
    assert program.steps[0].args[1].const is None


def test_weights_are_transformed_once_for_all_shapes():
    calls = []

    def emit(b, node, x, w):
        packed = b.prepack(w, "double", lambda a: calls.append(1) or a * 2)
        y = b.empty(x.shape, x.dtype)
        b.call_numpy(np.add, x, packed, y)
        return y

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> '
        "g (float[N] x) => (float[N] y) <float[1] w = {4}> { y = Sub(x, w) }"
    )
    maker = Specializer(lower_proto(model), Target(lambda node, operands: Emit(emit)))
    for count in (2, 3):
        (y,) = run(maker, floats(count))
        np.testing.assert_array_equal(y, floats(count) + 8)
    assert calls == [1]


def test_folding_before_shapes_are_known_leaves_what_hangs_on_inputs():
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[N] x) => (float[N] y, float[2] k) <float[2] w = {-1, 2}, bool c = {1}> {
            a = Relu(w)
            k = Neg(a)
            q = If (c) <
                then_branch = t () => (float[2] u) { u = Neg(k) },
                else_branch = e () => (float[2] v) { v = Relu(x) }
            >
            z = Unheard(w)
            y = Add(x, q)
        }"""
    )
    graph = lower_proto(model)
    fold_constants(graph, Target(find))
    assert [node.op_type for node in graph.nodes] == ["Add"]
    assert graph.outputs[1].const.tolist() == [0, -2]
    assert graph.nodes[0].inputs[1].const.tolist() == [0, 2]


def test_constants_that_do_not_fit_each_other_are_not_folded():
    """A kernel that trusts their shapes would write beyond its output."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g () => (float[N] y) <float[1, 1, 1, 2] x = {1, 2}, float[2, 1, 1, 2] at = {0, 0, 0, 0}>
        { y = GridSample(x, at) }"""
    )
    graph = lower_proto(model)
    fold_constants(graph, Target(lambda node, operands: Emit(never)))
    assert [node.op_type for node in graph.nodes] == ["GridSample"]


def never(b, node, *operands):
    raise AssertionError(f"{node.kind} was computed")


def test_a_constant_that_the_reference_cannot_compute_names_its_operation():
    text = """<ir_version: 10, opset_import: ["" : 18]>
        g () => (float[1] y) <float[3] x = {1, 2, 3}> { y = ReduceMax <own = 1> (x) }"""
    (node,) = lower_proto(parser.parse_model(text)).nodes
    with pytest.raises(CompileError, match=r"\(ReduceMax\) cannot be computed from its constants"):
        reference_fold(node, [floats(3)])


def gather_elements(axis):
    text = """<ir_version: 10, opset_import: ["" : 18]>
        g (float[N, M] x, int64[N, K] i) => (float[N, K] y)
        { y = GatherElements <axis = AXIS> (x, i) }
    """
    return lower_proto(parser.parse_model(text.replace("AXIS", str(axis)))).nodes[0]


@pytest.mark.parametrize("axis", [0, -1])
def test_elements_are_gathered_by_fewer_indices_than_there_are_data(axis):
    """ONNX's reference wants as many, and goes through all of them one way after another."""
    x, indices = floats(4, 5), np.array([[0, -1, 2], [3, 1, -4]])
    near = x[:, :3] if axis == 0 else x[:2]
    wanted = np.take_along_axis(near, indices % x.shape[axis], axis)
    np.testing.assert_array_equal(reference_fold(gather_elements(axis), [x, indices])[0], wanted)


def test_indices_far_away_are_no_elements():
    """ONNX's reference took the size off again and again: a day for 2**62."""
    with pytest.raises(CompileError, match=f"indices are 0 to {2**62}"):
        reference_fold(gather_elements(1), [floats(1, 2), np.array([[0, 2**62]])])


def test_an_operation_of_endless_steps_is_refused():
    def emit(b, node, x):
        y = b.empty(x.shape, x.dtype)
        while True:
            b.call_numpy(np.negative, x, y)

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    )
    maker = Specializer(lower_proto(model), Target(lambda node, operands: Emit(emit)))
    with pytest.raises(CompileError, match=r"\(Relu\) would take more than 32768 steps"):
        maker.program_for([floats(2)])


def test_an_output_that_the_emitter_does_not_give_is_an_error():
    text = "g (float[N] x) => (float[N] y, float[N] z) { y, z = Relu(x) }"
    with pytest.raises(
        CompileError, match=r"Output 1 \('z'\) of operation 'Relu.*' \(Relu\) is used"
    ):
        specializer(text).program_for([floats(2)])


def test_a_backend_refines_the_branch_that_was_taken():
    seen = []

    def refine(graph, shapes):
        seen.append([node.op_type for node in graph.nodes])
        graph.nodes = [
            Node("Relu", node.inputs, node.outputs) if node.op_type == "Neg" else node
            for node in graph.nodes
        ]

    maker = specializer(
        """g (float[N] x, int64 rate) => (float[N] y) <int64 wide = {16000}> {
            c = Equal(rate, wide)
            b = If (c) <
                then_branch = t () => (float[N] u) { u = Neg(x) },
                else_branch = e () => (float[N] w) { w = Mul(x, x) }
            >
            y = Add(b, x)
        }"""
    )
    maker.target.refine = refine
    x = floats(5)
    np.testing.assert_array_equal(run(maker, x, np.array(16000))[0], np.maximum(x, 0) + x)
    np.testing.assert_array_equal(run(maker, x, np.array(8000))[0], x * x + x)
    assert seen == [["Neg", "Identity", "Add"], ["Mul", "Identity", "Add"]]
    assert [node.op_type for node in maker.graph.nodes] == ["Equal", "If", "Add"]
    assert all(v.producer is node for node in maker.graph.nodes for v in node.outputs)


def refining(text):
    """A specializer that puts Relu in the place of Neg, and the shapes that it is told."""
    told = []

    def refine(graph, shapes):
        told.append({value.name: shape for value, shape in shapes.items()})
        graph.nodes = [
            Node("Relu", node.inputs, node.outputs) if node.op_type == "Neg" else node
            for node in graph.nodes
        ]

    maker = specializer(text)
    maker.target.refine = refine
    return maker, told


def test_shapes_that_the_graph_tells_are_not_found_out():
    maker, told = refining(
        "g (float[5] x) => (float[5] z) <float[5] y> { y = Neg(x) z = Add(y, x) }"
    )
    x = floats(5)
    np.testing.assert_array_equal(run(maker, x)[0], np.maximum(x, 0) + x)
    assert told == [{"x": (5,), "y": (5,), "z": (5,)}]
    assert all(v.producer is node for node in maker.graph.nodes for v in node.outputs)


@pytest.mark.parametrize("stale", [(4,), (5, 1), ()])
def test_shapes_that_the_graph_tells_wrongly_are_found_out(stale):
    maker, told = refining(
        "g (float[5] x) => (float[5] z) <float[5] y> { y = Neg(x) z = Add(y, x) }"
    )
    maker.graph.nodes[0].outputs[0].shape = stale
    x = floats(5)
    np.testing.assert_array_equal(run(maker, x)[0], np.maximum(x, 0) + x)
    assert [shapes["y"] for shapes in told] == [stale, (5,)]
    assert all(v.producer is node for node in maker.graph.nodes for v in node.outputs)


def test_shapes_told_of_what_hangs_on_values_of_the_run_are_not_relied_on():
    maker, told = refining(
        """g (float x) => (float[3] z) <int64[1] n, float[3] y> {
            n = Cast <to = 7> (x) y = Expand (x, n) z = Neg (y)
        }"""
    )
    np.testing.assert_array_equal(run(maker, np.array(3, np.float32))[0], [3, 3, 3])
    assert [sorted(shapes) for shapes in told[:2]] == [["n", "x", "y", "z"], ["n", "x"]]


def fused_when_equal(graph, shapes):
    """Joins Relu and the Add of an equally large tensor; that of a broadcast one would be wrong."""
    relu, add = graph.nodes
    if shapes[relu.outputs[0]] == shapes[add.inputs[1]]:
        joined = Node("ReluAdd", [relu.inputs[0], add.inputs[1]], add.outputs, name=add.name)
        graph.nodes = [joined]


def relu_add(b, node, x, z):
    if x.shape != z.shape:
        raise AssertionError("was joined for other shapes than it may be")
    y = b.empty(x.shape, x.dtype)
    b.call_numpy(lambda x, z, y: np.copyto(y, np.maximum(x, 0) + z), x, z, y)
    return y


def test_a_class_of_shapes_is_rewritten_once_and_each_size_decides_anew(monkeypatch):
    monkeypatch.setitem(EMITTERS, "ReluAdd", Emit(relu_add))
    calls = []

    def refine(graph, shapes):
        calls.append(None)
        fused_when_equal(graph, shapes)

    maker = specializer(
        "g (float[N, 4] x, float[M, 4] z) => (float[K, 4] y) { a = Relu(x)  y = Add(a, z) }",
        refine=refine,
    )
    sizes = [(5, 5), (6, 6), (7, 7), (8, 1), (9, 9), (10, 1), (1, 1), (11, 11), (1, 3), (12, 12)]
    for rows, others in sizes:
        x, z = floats(rows, 4), floats(others, 4)
        np.testing.assert_array_equal(run(maker, x, z)[0], np.maximum(x, 0) + z)
        joined = names(maker.program_for([x, z])) == ["ReluAdd"]
        assert joined == (rows == others)
    # Twice for what is learned, and once for each case that is met for the first time.
    assert len(calls) < len(sizes)
    before = len(calls)
    for rows in range(20, 40):
        run(maker, floats(rows, 4), floats(rows, 4))
    assert len(calls) == before


def test_sizes_that_a_model_says_vary_are_of_one_class_before_all_have_varied(monkeypatch):
    learned = []

    def learn(owner, graph, refine, specs, varying, values, varied):
        learned.append(set(varying))
        return shape_class.learn(owner, graph, refine, specs, varying, values, varied)

    monkeypatch.setattr(specialize, "learn", learn)
    maker = specializer("g (float[N, M, 4] x) => (float[N, M, 4] y) { y = Relu(x) }")
    for shape in [(2, 3, 4), (2, 5, 4), (3, 5, 4), (7, 9, 4), (1, 1, 4)]:
        x = floats(*shape)
        np.testing.assert_array_equal(run(maker, x)[0], np.maximum(x, 0))
    assert learned == [{(0, 0), (0, 1)}]


def test_sizes_that_a_model_says_vary_do_not_if_that_leaves_no_class(monkeypatch):
    """An operation whose result is not told for all batches is told for one."""
    learned = []

    def learn(owner, graph, refine, specs, varying, values, varied):
        learned.append(set(varying))
        if (0, 0) in varying:
            return None
        return shape_class.learn(owner, graph, refine, specs, varying, values, varied)

    monkeypatch.setattr(specialize, "learn", learn)
    maker = specializer("g (float[N, M, 4] x) => (float[N, M, 4] y) { y = Relu(x) }")
    for rows in (3, 5, 6, 7):
        x = floats(2, rows, 4)
        np.testing.assert_array_equal(run(maker, x)[0], np.maximum(x, 0))
    assert learned == [{(0, 0), (0, 1)}, {(0, 1)}]


def test_what_keeps_a_size_as_a_number_is_no_class():
    def refine(graph, shapes):
        (relu,) = graph.nodes
        rows = shapes[relu.inputs[0]][0]
        graph.nodes = [Node("Rows", relu.inputs, relu.outputs, {"rows": rows}, name="rows")]

    def find_rows(node, operands):
        def emit(b, node, x):
            assert node.attrs["rows"] == x.shape[0]
            return x

        return Emit(emit)

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    )
    maker = Specializer(lower_proto(model), Target(find_rows, refine=refine))
    for rows in range(1, 9):
        maker.program_for([floats(rows)])


@pytest.mark.parametrize(
    "kind", ["bool", "int8", "float16", "float64", "complex64", "bfloat16", "float8_e5m2", "int4"]
)
def test_read_only_arrays_of_any_type_are_marked_writable_where_they_lie(kind):
    own = getattr(ml_dtypes, kind, None)
    array = np.arange(6).reshape(2, 3).astype(kind if own is None else own)
    check_marked(array)
    check_marked(array.view(array.dtype.newbyteorder("=")))  # equal, and another object


def check_marked(array):
    array.flags.writeable = False
    marked = plain(array)
    assert marked.flags.writeable
    assert (marked.dtype, marked.shape) == (array.dtype, array.shape)
    assert np.shares_memory(marked, array)
    assert marked.tobytes() == array.tobytes()


def test_rows_of_zeros_are_one_array_for_all():
    made = [Builder(None, None, None).zeros(300, np.float32) for _ in range(2)]
    assert made[0].const.ctypes.data == made[1].const.ctypes.data
    assert not made[0].const.any() and made[0].shape == (300,)
    assert Builder(None, None, None).zeros(300, np.int32).const.dtype == np.int32


def test_a_small_array_that_is_given_again_is_one_constant():
    b = Builder(None, None, None)
    table, equal, large = np.arange(33), np.arange(33), np.arange(10_000)
    assert b.constant(table) is b.constant(table)
    assert b.constant(table) is not b.constant(equal)
    assert b.constant(table) is not Builder(None, None, None).constant(table)
    kept = weakref.ref(large)
    assert b.constant(large) is not b.constant(large)
    del large
    assert kept() is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_rows_of_zeros_take_no_memory():
    def resident_pages():
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])

    row = Builder(None, None, None).zeros(64 << 20, np.uint8)
    before = resident_pages()
    assert not row.const.any()
    assert (resident_pages() - before) * mmap.PAGESIZE < 8 << 20


def test_what_made_a_program_is_freed_without_a_search_for_cycles():
    """Searches are rare while models are compiled, and a walk holds more than its program."""
    builders = []

    def twice(b, node, x):
        builders.append(weakref.ref(b))
        y = b.empty(x.shape, x.dtype)
        b.call_numpy(np.add, x, x, y)
        return y

    graph = lower_proto(parser.parse_model(TWICE))
    specializer = Specializer(graph, Target(lambda node, operands: Emit(twice)))
    gc.disable()
    try:
        program = specializer.program_for([np.ones(3, np.float32)])
        assert len(program.steps) == 1
        assert [made() for made in builders] == [None] * len(builders)
    finally:
        gc.enable()


TWICE = """
    <ir_version: 8, opset_import: ["" : 18]>
    twice (float[n] x) => (float[n] y) { y = Neg(x) }
"""


def test_steps_that_ask_for_as_much_scratch_memory_have_the_same():
    def emit(b, node, x):
        y, count = b.empty(x.shape, x.dtype), node.attrs["axis"]
        scratch = [b.scratch(count), b.scratch(count, second=True), b.scratch(count, np.float32)]
        b.call_numpy(lambda x, *rest: np.copyto(rest[-1], x), x, *scratch, y)
        return y

    text = "g (float[64] x) => (float[64] y) { a = Softmax <axis = 32> (x) b = Softmax <axis = 99> "
    text += "(a) c = Softmax <axis = 32> (b) y = Softmax <axis = 99> (c) }"
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    maker = Specializer(lower_proto(model), Target(lambda node, operands: Emit(emit)))
    x = floats(64)
    np.testing.assert_array_equal(run(maker, x)[0], x)
    program = maker.program_for([x])
    asked = [[program.offsets[arg] for arg in step.args[-4:-1]] for step in program.steps]
    assert asked[0] == asked[2] != asked[1] == asked[3]
    assert len({*asked[0], *asked[1]}) == 6
    # It outlives the step that has it first: what others write never lies there.
    kept = [(start, start + size) for start, size in zip(asked[0], (32, 32, 128), strict=True)]
    for root, start in program.offsets.items():
        if root.shape == (64,):
            assert all(start + root.nbytes <= low or high <= start for low, high in kept)
