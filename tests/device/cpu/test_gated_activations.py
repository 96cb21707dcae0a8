"""Activations and the products that gate them are one step, whoever else reads what."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import partita
from partita_cpu.jit.isa import isa

RNG = np.random.default_rng(5)
SILU = "s = Sigmoid(gate) a = Mul(gate, s)"
GELU = 'a = Gelu <approximate = "none"> (gate)'
TANH = 'a = Gelu <approximate = "tanh"> (gate)'
_FORM = "<K = 32, N = 40, bits = 4, block_size = 16>"
PRODUCTS = " ".join(
    f"{name} = com.microsoft.MatMulNBits {_FORM} (x, {name}_bits, {name}_scales)"
    for name in ("gate", "up")
)
SIGNATURE = "g (float[1, N, 32] x)"


def compared(text, *arrays, gated=True):
    """Compares with onnxruntime; says whether a step was gated, and returns the program."""
    header = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
    model = parser.parse_model(f"{header}\n{text}")
    for name in ("gate", "up"):
        bits = RNG.integers(0, 256, (40, 2, 8)).astype(np.uint8)
        scales = RNG.uniform(0.02, 0.1, 80).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(bits, f"{name}_bits"))
        model.graph.initializer.append(numpy_helper.from_array(scales, f"{name}_scales"))
    feeds = dict(zip([i.name for i in model.graph.input], arrays, strict=True))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    compiled = partita.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 2})
    request = compiled.create_infer_request()
    for _ in range(2):  # what a step writes in place is made anew by each run
        results = request.infer(feeds)
        for port, want in zip(model.graph.output, expected, strict=True):
            np.testing.assert_allclose(results[port.name], want, rtol=1e-3, atol=1e-3)
    program = compiled.device_model.specializer.program_for(list(feeds.values()))
    names = [getattr(step.fn, "__name__", str(step.fn)) for step in program.steps]
    assert any("map_gated" in name for name in names) is gated, names
    return program


def rows(count=7):
    return RNG.standard_normal((1, count, 32)).astype(np.float32)


@pytest.mark.parametrize("activation", [SILU, GELU, TANH])
@pytest.mark.parametrize("product", ["h = Mul(a, up)", "h = Mul(up, a)"])
def test_a_gate_takes_the_place_of_what_it_gates(activation, product):
    text = f"{SIGNATURE} => (y) {{ {PRODUCTS} {activation} {product} y = Neg(h) }}"
    program = compared(text, rows(4096))
    assert program.arena_bytes < 3 * 4 * 40 * 4096


@pytest.mark.parametrize(
    "rest",
    [
        "h = Mul(a, up) y = Add(h, gate)",  # the gate is read again
        "h = Mul(a, up) r = Neg(h) y = Sub(r, gate)",
        "h = Mul(a, gate) y = Add(h, up)",
        "y = Mul(a, up)",  # the result is the application's
    ],
)
def test_who_else_reads_the_gate_finds_it(rest):
    compared(f"{SIGNATURE} => (y) {{ {PRODUCTS} {SILU} {rest} }}", rows())


def test_a_gate_that_is_an_output_stays():
    text = f"{SIGNATURE} => (y, gate) {{ {PRODUCTS} {SILU} h = Mul(a, up) y = Neg(h) }}"
    compared(text, rows())


def test_a_gate_that_is_an_input_stays():
    signature = "g (float[N, 40] gate, float[N, 40] up) => (y)"
    gate, up = (RNG.standard_normal((9, 40)).astype(np.float32) for _ in range(2))
    before = gate.copy()
    compared(f"{signature} {{ {SILU} h = Mul(a, up) y = Neg(h) }}", gate, up)
    np.testing.assert_array_equal(gate, before)


@pytest.mark.parametrize(
    ("rest", "shape"),
    [
        ("h = Mul(a, up) y = Neg(h)", [1, 40]),  # repeated for each row
        ("h = Mul(a, up) z = Neg(a) y = Add(h, z)", [9, 40]),  # what it returns is read twice
        ("h = Mul(a, a) y = Add(h, up)", [9, 40]),
    ],
)
def test_others_stay_two_steps(rest, shape):
    signature = f"g (float[9, 40] gate, float[{shape[0]}, 40] up) => (y)"
    gate = RNG.standard_normal((9, 40)).astype(np.float32)
    up = RNG.standard_normal(shape).astype(np.float32)
    compared(f"{signature} {{ {SILU} {rest} }}", gate, up, gated=False)


def test_two_gates_of_one_product():
    text = f"{SIGNATURE} => (y) {{ {PRODUCTS} {SILU} t = Sigmoid(up) b = Mul(up, t) h = Mul(a, b) "
    compared(text + "y = Neg(h) }", rows())


def fed_forward(rest, whole=True, precision="f32", special=0.0, count=70):
    """Products, a gate and who reads it, against float64; returns the names of the steps."""
    terms, size = (64, 32) if whole else (40, 16)
    form = f"<K = 32, N = {terms}, bits = 4, block_size = 32>"
    sides = " ".join(
        f"{name} = com.microsoft.MatMulNBits {form} (x, {name}_bits, {name}_scales)"
        for name in ("gate", "up")
    )
    down = f"<K = {terms}, N = 24, bits = 4, block_size = {size}>"
    text = f"{SIGNATURE} => (y) {{ {sides} {SILU} h = Mul(a, up) {rest.format(down=down)} }}"
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n{text}'
    )
    matrices = {}
    for name, columns, blocks, each in (
        ("gate", terms, 1, 32),
        ("up", terms, 1, 32),
        ("down", 24, -(-terms // size), size),
    ):
        bits = RNG.integers(0, 256, (columns, blocks, each // 2)).astype(np.uint8)
        scales = RNG.uniform(0.02, 0.1, (columns, blocks)).astype(np.float32)
        for kind, array in (("bits", bits), ("scales", scales.reshape(-1))):
            model.graph.initializer.append(numpy_helper.from_array(array, f"{name}_{kind}"))
        levels = np.stack([bits & 15, bits >> 4], -1).reshape(columns, blocks, each) - 8.0
        matrices[name] = (levels * scales[..., None]).reshape(columns, -1)
    x = rows(count)
    x[0, 3, 5] += special
    with np.errstate(invalid="ignore", over="ignore"):
        gate, up = (x[0].astype(np.float64) @ matrices[name].T for name in ("gate", "up"))
        hidden = gate / (1 + np.exp(-gate)) * up
        expected = hidden @ matrices["down"][:, :terms].T
    if "Add" in rest:  # who else reads what is gated
        expected += hidden.max()
    properties = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": precision}
    compiled = partita.Core().compile_model(model, "CPU", properties)
    request = compiled.create_infer_request()
    for _ in range(2):
        y = request.infer({"x": x})["y"][0]
        finite = np.arange(count) != 3 if special else np.ones(count, bool)
        error = np.abs(y - expected)[finite].max() / np.abs(expected[finite]).max()
        assert error < (
            1e-4 if compiled.get_property("INFERENCE_PRECISION_HINT") == "f32" else 3e-2
        )
        assert not np.isfinite(y[~finite]).any()
    program = compiled.device_model.specializer.program_for([x])
    return [getattr(step.fn, "__name__", str(step.fn)) for step in program.steps]


NEXT = "y = com.microsoft.MatMulNBits {down} (h, down_bits, down_scales)"
TILES = isa().tiles


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("special", [0.0, float("inf"), float("nan")])
def test_products_and_their_gate_are_one_step_on_tiles(precision, special):
    names = fed_forward(NEXT, precision=precision, special=special)
    assert ("multiply_gated" in names) is TILES
    assert any("map_gated" in name for name in names) is not TILES


@pytest.mark.parametrize(
    ("rest", "whole", "count"),
    [
        (NEXT, True, 7),  # rows too few for tiles
        (NEXT, False, 70),  # terms that are no whole steps
        (NEXT.replace("y =", "d =") + " m = ReduceMax <keepdims = 1> (h) y = Add(d, m)", True, 70),
    ],
)
def test_products_stay_apart_from_their_gate(rest, whole, count):
    assert "multiply_gated" not in fed_forward(rest, whole, count=count)
