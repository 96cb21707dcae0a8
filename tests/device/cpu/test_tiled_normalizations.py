"""Rows that are laid out as tiles when they are normalized, where products alone read them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

import partita
from partita_cpu.jit.isa import isa

RNG = np.random.default_rng(7)
TERMS, COLUMNS = 96, 40
PRODUCTS = " ".join(
    f"{y} = com.microsoft.MatMulNBits <K = {TERMS}, N = {COLUMNS}, bits = 4, block_size = 32> "
    f"(n, {y}_bits, {y}_scales)"
    for y in ("q", "k")
)
SUMS = {
    "SkipSimplifiedLayerNormalization": "x, skip, scale",
    "SkipLayerNormalization": "x, skip, scale, shift",
}


def normalized(op_type, special=0.0, count=70, other="", precision="bf16"):
    """Sums that are normalized and multiplied, against float64; returns the names of the steps."""
    outputs = "q, k, total" + (", other" if other else "")
    text = f"""<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
        g (float[1, N, {TERMS}] x, float[1, N, {TERMS}] skip) => ({outputs}) {{
            n, mean, inverse, total = com.microsoft.{op_type} <epsilon = 0.00001> ({SUMS[op_type]})
            {PRODUCTS} {other} }}"""
    model = parser.parse_model(text)
    scale, shift = RNG.uniform(0.5, 2, (2, TERMS)).astype(np.float32)
    constants, matrices = {"scale": scale, "shift": shift}, {}
    for name in ("q", "k"):
        bits = RNG.integers(0, 256, (COLUMNS, 3, 16)).astype(np.uint8)
        scales = RNG.uniform(0.02, 0.1, (COLUMNS, 3)).astype(np.float32)
        constants |= {f"{name}_bits": bits, f"{name}_scales": scales.reshape(-1)}
        levels = np.stack([bits & 15, bits >> 4], -1).reshape(COLUMNS, 3, 32) - 8.0
        matrices[name] = (levels * scales[..., None]).reshape(COLUMNS, TERMS).T
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    x, skip = RNG.standard_normal((2, 1, count, TERMS)).astype(np.float32) + np.float32(0.5)
    x[0, 67 % count, 5] += special
    total = (x + skip)[0].astype(np.float64)
    centered = op_type == "SkipLayerNormalization"
    with np.errstate(invalid="ignore"):
        off = total - total.mean(-1, keepdims=True) * centered
        rows = off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-5) * scale + shift * centered
        expected = {name: rows @ matrix for name, matrix in matrices.items()}
    properties = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": precision}
    compiled = partita.Core().compile_model(model, "CPU", properties)
    request = compiled.create_infer_request()
    finite = np.isfinite(total).all(-1)
    exact = compiled.get_property("INFERENCE_PRECISION_HINT") == "f32"
    for _ in range(2):
        results = request.infer({"x": x, "skip": skip})
        np.testing.assert_array_equal(results["total"], x + skip)
        for name, want in expected.items():
            y = results[name][0]
            error = np.abs(y - want)[finite].max() / np.abs(want[finite]).max()
            assert error < (1e-4 if exact else 2e-2)
            assert not np.isfinite(y[~finite]).any()
    program = compiled.device_model.specializer.program_for([x, skip])
    return [getattr(step.fn, "__name__", str(step.fn)) for step in program.steps]


@pytest.mark.parametrize("op_type", SUMS)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("special", [0.0, float("nan")])
def test_rows_that_products_alone_read_are_laid_out_at_once(op_type, precision, special):
    """Of 70 rows six are no eight, and one of these may be none of numbers."""
    names = normalized(op_type, special, precision=precision)
    assert ("normalize_to_tiles" in names) is isa().tiles
    assert "pack_lhs" not in names


@pytest.mark.parametrize(("count", "other"), [(9, ""), (70, "other = Neg(n)")])
def test_rows_that_others_read_lie_as_rows(count, other):
    names = normalized("SkipSimplifiedLayerNormalization", count=count, other=other)
    assert "normalize_to_tiles" not in names
