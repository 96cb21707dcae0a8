"""If, Loop and Scan on device CPU, against onnxruntime."""

import threading

import numpy as np
import pytest
from judge import onnxruntime_results
from onnx import TensorProto, helper, parser

import partita
from partita.errors import InferCancelledError, InferError, PartitaError
from partita.tensors.sequence_values import boxed, unboxed

RNG = np.random.default_rng(3)


def model_of(text):
    return parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)


def check(model, *runs):
    """Compiles once and compares every run, in one request."""
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for feeds in runs:
        found = list(request.infer(feeds).values())
        for mine, wanted in zip(found, onnxruntime_results(model, feeds), strict=True):
            assert mine.shape == wanted.shape
            assert mine.dtype == wanted.dtype
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


CONDITIONAL = """g (float[N, 3] x, bool c) => (float[N, 3] y) <float[3] w = {{1, -2, 3}}> {{
    a = Relu(x)
    {condition}
    b = If (d) <
        then_branch = t () => (float[N, 3] u) {{ v = Add(a, w)  u = Neg(v) }},
        else_branch = e () => (float[N, 3] z) {{ z = Identity(a) }}
    >
    y = Add(b, x)
}}"""


ENDLESS = """g (float[2] x) => (float[2] y)
    <int64 trips = {{9223372036854775807}}, bool go = {{1}}> {{
    y = Loop <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e) {{
        d = Identity(c)
        {body}
    }}> (trips, go, x)
}}"""
NESTED = """e = Loop <body = b2 (int64 j, bool f, float[2] k) => (bool h, float[2] l) {
    h = Identity(f)
    l = Neg(k)
}> (trips, go, a)"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
@pytest.mark.parametrize("body", ["e = Neg(a)", NESTED], ids=["one", "nested"])
def test_an_endless_loop_ends_when_it_is_cancelled(device, body):
    model = model_of(ENDLESS.format(body=body))
    request = partita.Core().compile_model(model, device).create_infer_request()
    for _ in range(2):  # what was cancelled can be run again
        request.start_async([floats(2)])
        assert not request.wait_for(200)
        request.cancel()
        with pytest.raises(InferCancelledError, match="was cancelled"):
            request.wait()


def test_a_loop_that_was_asked_to_end_before_it_began():
    """The run forgets what came before it, so who waits has to ask again."""
    model = model_of(ENDLESS.format(body="e = Neg(a)"))
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    begin = request.runner.run
    begun, asked = threading.Event(), threading.Event()

    def run(*args):
        begun.set()
        asked.wait(60)
        return begin(*args)

    request.runner.run = run
    request.start_async([floats(2)])
    begun.wait(60)
    request.cancel()
    asked.set()
    with pytest.raises(InferCancelledError):
        request.wait()


@pytest.mark.parametrize("count", [0, 3])
def test_a_scan_of_more_or_fewer_inputs_than_there_are(count):
    model = model_of(
        """g (float[2] s, float[N, 2] x) => (float[2] t, float[N, 2] y) {
            t, y = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] v)
                => (float[2] c, float[2] w) { c = Add(a, v)  w = Neg(c) }> (s, x)
        }"""
    )
    check(model, {"s": floats(2), "x": floats(3, 2)})
    (inputs,) = (a for a in model.graph.node[0].attribute if a.name == "num_scan_inputs")
    inputs.i = count
    with pytest.raises(InferError, match=rf"\(Scan\) is to scan {count} inputs"):
        partita.Core().compile_model(model, "CPU").infer_new_request([floats(2), floats(3, 2)])


def test_if_on_a_flag_that_is_an_input():
    model = model_of(CONDITIONAL.format(condition="d = Identity(c)"))
    x = floats(4, 3)
    check(model, *({"x": x, "c": np.array(flag)} for flag in (True, False, True)))


def test_if_on_a_condition_computed_from_floats():
    condition = """q = Slice(x, zero, one, first)
        s = Slice(q, zero, one, second)
        r = Reshape(s, one)
        d = Less(r, nought)"""
    constants = """<float[3] w = {1, -2, 3}, int64[1] zero = {0}, int64[1] one = {1},
        int64[1] first = {0}, int64[1] second = {1}, float nought = {0}>"""
    text = CONDITIONAL.format(condition=condition).replace("<float[3] w = {1, -2, 3}>", constants)
    x = floats(4, 3)
    flag = np.array(True)
    check(model_of(text), {"x": x, "c": flag}, {"x": -x, "c": flag}, {"x": x[:2], "c": flag})


def test_if_on_a_condition_computed_of_gathered_rows():
    condition = """sums = ReduceSum<keepdims: int = 1>(x, one)
        row = ArgMax<axis: int = 0>(sums)
        index = Expand(row, wide)
        q = GatherElements<axis: int = 0>(x, index)
        s = ReduceSum<keepdims: int = 0>(q)
        d = Less(s, nought)"""
    constants = """<float[3] w = {1, -2, 3}, int64[1] one = {1}, int64[2] wide = {1, 3},
        float nought = {0}>"""
    text = CONDITIONAL.format(condition=condition).replace("<float[3] w = {1, -2, 3}>", constants)
    x = floats(4, 3)
    flag = np.array(True)
    check(model_of(text), {"x": x, "c": flag}, {"x": -x, "c": flag}, {"x": x[:2], "c": flag})


LOOP = """g (int64 n, bool go, float[K] x, float[K] w) => ({outputs}) {{
    {outs} = Loop ({trips}, {start}, x) <body = b (int64 i, bool c, float[K] s) =>
        (bool c2, float[K] s2, float[K] seen) {{
            t = Mul(s, w)
            s2 = Add(t, x)
            {condition}
            seen = Neg(s)
        }}>
    y = Relu(last)
}}"""


def loop(trips, start, condition="c2 = Identity(c)"):
    return model_of(
        LOOP.format(
            outputs="float[K] y, float[T, K] all",
            outs="last, all",
            trips=trips,
            start=start,
            condition=condition,
        )
    )


@pytest.mark.parametrize("start", ["go", ""])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_loop_carries_state_and_collects(start, count):
    feeds = {"n": np.array(count), "go": np.array(True), "x": floats(6), "w": floats(6)}
    check(loop("n", start), feeds, feeds | {"x": floats(3), "w": floats(3)})


@pytest.mark.parametrize(("count", "values"), [(0, ""), (2, "1, 0")])
def test_if_on_a_constant_that_is_no_flag_is_refused(count, values):
    """It was looked at again and again."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <bool[{count}] c = {{{values}}}> {{
          y = If (c) <then_branch = t () => (float[2] a) {{ a = Identity (x) }},
                      else_branch = e () => (float[2] b) {{ b = Neg (x) }}>
        }}"""
    )
    with pytest.raises(PartitaError, match=f"has {count} elements; it takes one"):
        partita.Core().compile_model(model, "CPU")


def test_loop_that_must_not_start():
    feeds = {"n": np.array(4), "go": np.array(False), "x": floats(6), "w": floats(6)}
    check(loop("n", "go"), feeds)


def test_loop_without_trip_count_ends_by_its_condition():
    condition = "three = Constant <value_int = 3> () c2 = Less(i, three)"
    feeds = {"n": np.array(4), "go": np.array(True), "x": floats(6), "w": floats(6)}
    check(loop("", "go", condition), feeds)


def test_loop_whose_state_grows():
    model = model_of(
        """g (int64 n, float[K] x) => (float[M] y, float[M] z) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[P] s) => (bool c2, float[Q] s2) {
                s2 = Concat <axis = 0> (s, x)
                c2 = Identity(c)
            }>
            z = Relu(y)
        }"""
    )
    check(model, *({"n": np.array(n), "x": floats(k)} for n, k in ((3, 2), (0, 2), (5, 1))))


def test_loop_that_exchanges_its_state():
    model = model_of(
        """g (int64 n, float[2] p, float[2] q) => (float[2] y, float[2] z) {
            y, z = Loop (n, , p, q) <body = b (int64 i, bool c, float[2] s, float[2] t) =>
                (bool c2, float[2] t2, float[2] s2) {
                t2 = Identity(t)
                s2 = Identity(s)
                c2 = Identity(c)
            }>
        }"""
    )
    check(model, *({"n": np.array(n), "p": floats(2), "q": floats(2)} for n in range(4)))


EXCHANGED = """g (int64 n, float[K] x, float[K] w) => (float[K] y, float[K] z, float[T, K] all) {
    y, z, all = Loop (n, , x, w) <body = b (int64 i, bool c, float[K] s, float[K] t) =>
        (bool c2, float[K] s2, float[K] t2, float[K] seen) {
            number = Cast<to: int = 1>(i)
            s2 = Sub(t, number)
            t2 = Identity(s)
            seen = Neg(t)
            c2 = Identity(c)
        }>
}"""


@pytest.mark.parametrize("size", [5, 20000])
def test_a_loop_of_many_rounds_whose_states_are_not_copied(size):
    """Two calls take turns from some rounds on; the last results may be those of either."""
    model = model_of(EXCHANGED)
    runs = [
        {"n": np.array(count), "x": floats(k), "w": floats(k)}
        for count in (60, 61, 2, 0, 44)
        for k in (size, size + 1)
    ]
    check(model, *runs)


def test_a_loop_of_many_rounds_that_ends_by_its_condition():
    condition = "last = Constant <value_int = 90> () c2 = Less(i, last)"
    feeds = {"n": np.array(4), "go": np.array(True), "x": floats(900), "w": floats(900) / 9}
    check(loop("", "go", condition), feeds, feeds | {"x": floats(900)})


def test_a_scan_of_many_slices():
    model = model_of("""g (float[K] s, float[T, K] x) => (float[K] y, float[T, K] all) {
        y, all = Scan <num_scan_inputs: int = 1, body = b (float[K] a, float[K] row) =>
            (float[K] c, float[K] seen) { c = Sub(row, a) seen = Neg(a) }>(s, x)
    }""")
    check(model, *({"s": floats(k), "x": floats(t, k)} for t in (80, 81) for k in (3, 9000)))


def test_loop_inside_a_loop_that_reads_values_of_both_graphs_around_it():
    model = model_of(
        """g (int64 n, float[3] x) => (float[3] y) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) {
                h = Neg(s)
                s2 = Loop (n, , s) <body = d (int64 j, bool e, float[3] t) =>
                    (bool e2, float[3] t2) {
                        u = Add(t, h)
                        t2 = Mul(u, x)
                        e2 = Identity(e)
                    }>
                c2 = Identity(c)
            }>
        }"""
    )
    check(model, {"n": np.array(3), "x": floats(3)}, {"n": np.array(2), "x": floats(3)})


def test_if_inside_a_loop_that_depends_on_the_iteration():
    model = model_of(
        """g (int64 n, float[3] x) => (float[3] y) {
            y = Loop (n, , x) <body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) {
                one = Constant <value_int = 1> ()
                odd = BitwiseAnd(i, one)
                flag = Cast <to = 9> (odd)
                s2 = If (flag) <
                    then_branch = t () => (float[3] p) { p = Neg(s) },
                    else_branch = e () => (float[3] q) { q = Add(s, x) }
                >
                c2 = Identity(c)
            }>
        }"""
    )
    check(model, {"n": np.array(7), "x": floats(3)})


def scan_model(inputs, attributes, shape_out):
    """Running sums, and each slice doubled."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["s2"]),
            helper.make_node("Add", ["x", "w"], ["y"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("s", "x")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("s2", "y")],
    )
    node = helper.make_node(
        "Scan", ["s0", "x0"], ["last", "all"], body=body, num_scan_inputs=1, **attributes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("s0", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("x0", TensorProto.FLOAT, inputs),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("last", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("all", TensorProto.FLOAT, shape_out),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({}, (5, 4)),
        ({"scan_input_directions": [1]}, (5, 4)),
        ({"scan_output_directions": [1]}, (5, 4)),
        ({"scan_input_axes": [1], "scan_output_axes": [1]}, (4, 5)),
        ({"scan_input_axes": [-1], "scan_output_axes": [-1], "scan_input_directions": [1]}, (4, 5)),
        ({}, (1, 4)),
    ],
)
def test_scan_over_axes_and_directions(attributes, shape):
    model = scan_model(["A", "B"], attributes, ["C", "D"])
    check(model, {"s0": floats(4), "x0": floats(*shape), "w": floats(4)})


@pytest.mark.parametrize("size", [0, 2])
def test_a_condition_of_an_if_is_one_element(size):
    model = model_of(
        """g (bool[n] c, float[2] x) => (float[2] y) {
            y = If (c) < then_branch = t () => (float[2] p) { p = Abs(x) },
                         else_branch = e () => (float[2] q) { q = Neg(x) } >
        }"""
    )
    compiled = partita.Core().compile_model(model, "CPU")
    with pytest.raises(InferError, match=f"'.*' has {size} elements; it takes one"):
        compiled({"c": np.zeros(size, bool), "x": np.ones(2, np.float32)})


def test_a_body_says_by_one_element_whether_its_loop_goes_on():
    model = model_of(
        """g (bool[M] c, float[2] x) => (float[2] y) {
            y = Loop ("", "", x) <body = b (int64 i, bool p, float[2] s) => (bool[M] q, float[2] t)
                { q = Identity(c)  t = Neg(s) }>
        }"""
    )
    compiled = partita.Core().compile_model(model, "CPU")
    with pytest.raises(InferError, match=r"The next condition of a Loop is of shape \[0\]"):
        compiled({"c": np.zeros(0, bool), "x": np.ones(2, np.float32)})


@pytest.mark.parametrize("missing", ["number of trips", "condition"])
def test_a_loop_of_no_trip_count_or_condition(missing):
    trips = np.zeros(0 if missing == "number of trips" else 1, np.int64)
    condition = np.ones(0 if missing == "condition" else 1, bool)
    model = model_of(
        """g (int64[N] n, bool[M] c, float[2] x) => (float[2] y) {
            y = Loop (n, c, x) <body = b (int64 i, bool p, float[2] s) => (bool q, float[2] t) {
                q = Identity(p)  t = Neg(s) }>
        }"""
    )
    compiled = partita.Core().compile_model(model, "CPU")
    with pytest.raises(InferError, match=rf"The {missing} of a Loop is of shape \[0\]"):
        compiled({"n": trips, "c": condition, "x": np.ones(2, np.float32)})


SCANNED = """g (float[N] x, {kind} z) => (float[N] y) {{
    y = Scan <body = b (float e, float f) => (float s) {{ s = Add(e, f) }},
              num_scan_inputs = 2 {attributes}> (x, z)
}}"""


@pytest.mark.parametrize(
    ("z", "kind", "attributes", "said"),
    [
        (np.float32(1), "float", "", "has axis 0, but its tensor has 0 dimensions"),
        (
            floats(3),
            "float[M]",
            "",
            r"scans inputs of \[2, 3\] slices; all must have the same number",
        ),
        (floats(2), "float[M]", ", scan_input_axes = [0, 4]", "has axis 4"),
        (floats(2), "float[M]", ", scan_input_directions = [1]", "expected 2 of each"),
    ],
)
def test_inputs_that_cannot_be_scanned_are_named(z, kind, attributes, said):
    model = model_of(SCANNED.format(kind=kind, attributes=attributes))
    with pytest.raises(PartitaError, match=rf"\(Scan\) .*{said}"):
        partita.Core().compile_model(model, "CPU")([floats(2), z])


def test_a_body_reads_what_a_state_starts_from():
    text = """g (float[3] x, int64 k, bool c) => (float[3] y) {
        a = Identity(x)
        y = Loop (k, c, a) <body = r (int64 i, bool d, float[3] s) => (bool e, float[3] t) {
            e = Identity(d)  t = Sub(s, a)
        }>
    }"""
    feeds = {"x": floats(3), "c": np.array(True)}
    check(model_of(text), *({**feeds, "k": np.array(count)} for count in (0, 3)))


@pytest.mark.parametrize("nested", [False, True])
def test_weights_that_a_loop_carries(nested):
    """As recurrent networks come from TensorFlow and Paddle: all that a body reads is a state."""
    inner = """h2, k2 = Loop (m, , h, k) <body =
            q (int64 j, bool e, float[N, 5] p, float[5, 5] l) =>
            (bool e2, float[N, 5] p2, float[5, 5] l2) {
                e2 = Identity(e)  o = MatMul(p, l)  p2 = Tanh(o)  l2 = Identity(l)
            }>"""
    plain = "o = MatMul(h, k)  h2 = Tanh(o)  k2 = Identity(k)"
    model = model_of(
        f"""g (int64 n, int64 m, float[N, 5] x, float[5] v) =>
            (float[N, 5] y, float[5, 5] z, float[5] u, float[T, N, 5] all)
            <float[5, 5] w = {{{", ".join(map(str, floats(25)))}}}> {{
            y, z, u, all = Loop (n, , x, w, v) <body =
                b (int64 i, bool c, float[N, 5] h, float[5, 5] k, float[5] b0) =>
                (bool d, float[N, 5] h3, float[5, 5] k2, float[5] b2, float[N, 5] seen) {{
                d = Identity(c)
                {inner if nested else plain}
                h3 = Add(h2, b0)
                b2 = Identity(b0)
                seen = Neg(h3)
            }}>
        }}"""
    )
    steps = ((3, 2, 1), (0, 1, 1), (4, 0, 2))
    check(
        model,
        *(
            {"n": np.array(n), "m": np.array(m), "x": floats(rows, 5), "v": floats(5)}
            for n, m, rows in steps
        ),
    )


def test_keys_that_are_the_same_in_each_iteration():
    """As a decoder with attention has them: a product of what it attends to, in its body."""
    model = model_of(
        f"""g (int64 n, float[M, 4] seen, float[4] x) => (float[4] y)
            <float[4, 4] w = {{{", ".join(map(str, floats(16)))}}}> {{
            y = Loop (n, , x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {{
                d = Identity(c)
                keys = MatMul(seen, w)  bent = Tanh(keys)
                scores = MatMul(bent, s)  shares = Softmax <axis = 0> (scores)
                t = MatMul(shares, seen)
            }}>
        }}"""
    )
    steps = ((3, 5), (0, 5), (2, 1))
    check(model, *({"n": np.array(n), "seen": floats(m, 4), "x": floats(4)} for n, m in steps))


def test_a_sequence_that_is_handed_on_holds_tensors_of_its_own():
    model = model_of("g (seq(float[2]) s) => (seq(float[2]) t) { t = Identity(s) }")
    runner = partita.Core().compile_model(model, "CPU").device_model.create_runner()
    given = [np.ones(2, np.float32), np.zeros(2, np.float32)]
    (box,) = (tensor.numpy() for tensor in runner.run([partita.HostTensor(boxed(given))]))
    given[0][...] = given[1][...] = 9
    np.testing.assert_array_equal(unboxed(box), [[1, 1], [0, 0]])
