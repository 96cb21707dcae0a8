"""Bodies of loops whose slices begin where the run tells, against onnxruntime."""

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import parser

import partita
from partita.errors import InferError
from partita_cpu.runtime.bound_program import BoundProgram

RNG = np.random.default_rng(5)


@pytest.fixture
def bindings(monkeypatch):
    """How many programs were bound to memory: each was made for this."""
    counted = []
    initialize = BoundProgram.__init__

    def count(self, *args, **kwargs):
        counted.append(self)
        initialize(self, *args, **kwargs)

    monkeypatch.setattr(BoundProgram, "__init__", count)
    return counted


def model_of(body, state="float[6, 4]", kept="float[A, B]", constants=""):
    """A loop that numbers its iterations itself, from `k` on; and collects what a body picks."""
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (int64 n, int64[1] k, {state} x, int64[1] one, int64[1] two) =>
          ({state} y, int64[1] last, {kept} z)
          <int64[1] zero = {{0}}, int64[1] first = {{0}}, int64[1] second = {{1}}{constants}> {{
            y, last, z = Loop (n, , x, k) <body = b (int64 i, bool c, {state} s, int64[1] at) =>
                (bool d, {state} t, int64[1] next, {kept} seen) {{
                d = Identity(c)
                next = Add(at, one)
                {body}
            }}>
        }}"""
    )


def check(model, *runs):
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for feeds in runs:
        found = list(request.infer(feeds).values())
        for mine, wanted in zip(found, onnxruntime_results(model, feeds), strict=True):
            assert (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def feeds(n, k=0, shape=(6, 4), dtype=np.float32):
    x = (RNG.standard_normal(shape) * 9).astype(dtype)
    numbers = {"n": np.array(n), "k": np.array([k]), "one": np.array([1]), "two": np.array([2])}
    return numbers | {"x": x}


ROW = """seen = Slice(s, at, next, first, one)
    h = Neg(seen)
    rows = Shape(seen)
    from = Squeeze(at)  to = Squeeze(next)  by = Squeeze(one)
    places = Range(from, to, by)
    column = Reshape(places, minus)
    across = Slice(rows, second, twos)
    ones = Constant <value_ints = [1]> ()
    times = Concat <axis = 0> (ones, across)
    all = Tile(column, times)
    t = ScatterElements <axis = 0> (s, all, h)"""
ROW_CONSTANTS = ", int64[2] minus = {-1, 1}, int64[1] twos = {2}"


def test_a_row_for_each_iteration_takes_one_program(bindings):
    """As Paddle's converter writes `x[i] = f(x[i])`; each iteration had programs of its own."""
    model = model_of(ROW, kept="float[1, 4]", constants=ROW_CONSTANTS)
    check(model, feeds(6), feeds(4, 2), feeds(0))
    assert len(bindings) < 12
    count = len(bindings)
    check(model, feeds(6), feeds(4, 2), feeds(0))
    assert len(bindings) == 2 * count


@pytest.mark.parametrize("dtype", ["float16", "double", "int8", "int32", "int64", "bool", "uint16"])
def test_rows_of_each_type(dtype):
    kind = {"double": np.float64, "float16": np.float16}.get(dtype) or np.dtype(dtype)
    body = "seen = Slice(s, at, next, first)  t = Identity(s)"
    model = model_of(body, state=f"{dtype}[6, 4]", kept=f"{dtype}[1, 4]")
    check(model, feeds(6, dtype=kind), feeds(3, 2, dtype=kind))


@pytest.mark.parametrize(
    ("slices", "start", "trips"),
    [
        ("seen = Slice(s, zero, next, first)", 0, 7),
        ("seen = Slice(s, at, six, first)", 0, 7),
        ("end = Add(at, two)  seen = Slice(s, at, end, first)", 0, 8),
        ("seen = Slice(s, at, next, first)", -6, 7),
        ("end = Sub(at, two)  back = Neg(one)  seen = Slice(s, at, end, first, back)", 5, 6),
        ("end = Sub(at, six)  back = Neg(two)  seen = Slice(s, at, end, second, back)", 3, 4),
        ("end = Add(at, two)  seen = Slice(s, at, end, minus, one)", 0, 4),
        ("end = Add(at, two)  seen = Slice(s, at, end)", 0, 6),
    ],
    ids=["grows", "shrinks", "clamped", "from the end", "back", "by two", "last axis", "no axes"],
)
def test_slices_of_any_size(slices, start, trips):
    """Sizes that stay, that change now and then, and that are others in each iteration."""
    body = f"""{slices}
        total = ReduceSum <keepdims = 1> (seen)
        t = Add(s, total)
        picked = ReduceMax <keepdims = 1> (t)"""
    constants = ", int64[1] six = {6}, int64[1] minus = {-1}"
    model = model_of(body, kept="float[1, 1]", constants=constants)
    model.graph.node[0].attribute[0].g.output[3].name = "picked"
    check(model, feeds(trips, start), feeds(1, start), feeds(trips - 1, start))


@pytest.mark.parametrize("kind", ["int64", "int32", "float", "double", "int16"])
def test_ranges_that_begin_where_the_run_tells(kind):
    code = {"int64": 7, "int32": 6, "float": 1, "double": 11, "int16": 5}[kind]
    body = f"""flat = Squeeze(at)  from = Cast <to = {code}> (flat)
        step = Constant <value_float = 2.0> ()  by = Cast <to = {code}> (step)
        count = Constant <value_float = 5.0> ()  more = Cast <to = {code}> (count)
        end = Add(flat, wide)  to = Cast <to = {code}> (end)
        seen = Range(from, to, by)
        t = Identity(s)"""
    model = model_of(body, kept=f"{kind}[3]", constants=", int64 wide = {5}")
    check(model, feeds(6), feeds(4, -3))


def test_a_slice_behind_a_choice(bindings):
    """What a choice depends on is a program of its own, in which sizes are expected as well."""
    body = """flat = Squeeze(at)  odd = BitwiseAnd(flat, wide)  flag = Cast <to = 9> (odd)
        t = If (flag) <then_branch = p () => (float[6, 4] e) { e = Neg(s) },
                       else_branch = q () => (float[6, 4] f) { f = Add(s, s) }>
        seen = Slice(t, at, next, first)"""
    model = model_of(body, kept="float[1, 4]", constants=", int64 wide = {1}")
    check(model, feeds(6), feeds(5, 1))
    assert len(bindings) < 20


def test_a_slice_in_a_loop_in_a_loop():
    body = """t, end = Loop (two2, , s, at) <body =
            r (int64 j, bool e, float[6, 4] u, int64[1] p) => (bool f, float[6, 4] v, int64[1] q) {
            f = Identity(e)  q = Add(p, one)
            row = Slice(u, p, q, first)  v = Add(u, row)
        }>
        seen = Slice(t, at, next, first)"""
    model = model_of(body, kept="float[1, 4]", constants=", int64 two2 = {2}")
    check(model, feeds(5), feeds(3, 1))


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ("seen = Slice(s, zero, one, at)", "along axis 2 of a tensor of 2 dimensions"),
        ("by = Sub(one, at)  seen = Slice(s, zero, one, first, by)", "in steps of 0 along axis 0"),
    ],
)
def test_a_slice_along_no_axis_or_in_no_steps(slices, said):
    """In an iteration that is not the first."""
    compiled = partita.Core().compile_model(model_of(f"{slices}  t = Identity(s)"), "CPU")
    with pytest.raises(InferError, match=said):
        compiled(feeds(4))


def test_a_slice_along_another_axis_each_time():
    body = "six = Add(five, one)  seen = Slice(s, zero, six, at)  t = Identity(s)"
    model = model_of(body, kept="float[6, 4]", constants=", int64[1] five = {5}")
    check(model, feeds(2))
