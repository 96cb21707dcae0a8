"""Mixtures of experts on device OPENCL, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from mixtures import REFUSED, Mixture

from partita import Core
from partita.errors import CompileError, UnsupportedOpError

from ..comparison import TILINGS, compiled, refusal, single
from ..comparison import check as compare

MICROSOFT = {"domain": "com.microsoft"}
SINGLE = 2e-6
"""Of the largest result: how far off sums of float32 are at most."""


def model_and_feeds(mixture, x, logits, weights=None, dynamic=False):
    inputs = mixture.inputs(x, logits, weights)
    at_run = {0, 1, 14}
    constants = [n for n, one in enumerate(inputs) if one is not None and n not in at_run]
    attributes = mixture.node_attributes() | MICROSOFT
    return single(
        mixture.op_type, inputs, attributes, constant=constants, opset=21, dynamic=dynamic
    )


def check(mixture, *tokens, tolerance=SINGLE, tilings=TILINGS, **properties):
    """Some numbers of tokens, of which few are computed otherwise than many."""
    for count in tokens:
        x, logits = mixture.tokens(count)
        model, feeds = model_and_feeds(mixture, x, logits)
        due = mixture.evaluate(x, logits)
        for tiling in tilings:
            found = compiled(model, TILING=tiling, **properties).infer_new_request(feeds)[0]
            assert found.dtype == x.dtype
            most = tolerance * np.abs(due).max(initial=0)
            np.testing.assert_allclose(found, due, rtol=0, atol=most, err_msg=tiling)


@pytest.mark.parametrize(("activation", "third"), [("relu", False), ("gelu", True)])
def test_floats(activation, third):
    attributes = {"activation_type": activation, "k": 2, "normalize_routing_weights": int(third)}
    mixture = Mixture(1, (36 - 3 * third, 29, 4), third=third, **attributes)
    check(mixture, 3, 9)


@pytest.mark.parametrize("activation", ["silu", "identity"])
def test_as_onnxruntime_has_them(activation):
    mixture = Mixture(2, (36, 29, 4), activation_type=activation, k=2)
    model, feeds = model_and_feeds(mixture, *mixture.tokens(9))
    compare(model, feeds)


@pytest.mark.parametrize(("bits", "fusion"), [(8, 1), (0, 2), (0, 0)])
def test_swiglu(bits, fusion):
    numbers = {"activation_alpha": 1.702, "activation_beta": 1.0}
    numbers |= {"swiglu_limit": 0.7} if fusion else {}
    attributes = {"activation_type": "swiglu", "swiglu_fusion": fusion, "k": 2, **numbers}
    mixture = Mixture(3, (64, 33, 5), bits, 16 if bits else 0, third=not fusion, **attributes)
    check(mixture, 2, 9)


@pytest.mark.parametrize(
    ("bits", "block", "hidden", "zeros"),
    [
        (4, 0, 96, False),
        (4, 0, 160, True),
        (8, 0, 96, True),
        (4, 16, 40, True),
        (8, 16, 40, False),
        (8, 32, 96, True),
        (4, 128, 96, False),
    ],
)
def test_blocks(bits, block, hidden, zeros):
    mixture = Mixture(4, (hidden, 80, 4), bits, block, zeros, activation_type="silu", k=2)
    check(mixture, 1, 6)


def test_many_rows_of_few_experts():
    mixture = Mixture(6, (96, 80, 3), 4, 32, k=1)
    x, logits = mixture.tokens(310)
    logits[:250, 1] = 50
    logits[:, 2] = -50  # nobody chooses it
    model, feeds = model_and_feeds(mixture, x, logits)
    due = mixture.evaluate(x, logits)
    for tiling in TILINGS:
        found = compiled(model, TILING=tiling).infer_new_request(feeds)[0]
        np.testing.assert_allclose(found, due, rtol=0, atol=SINGLE * np.abs(due).max())


@pytest.mark.parametrize("bits", [0, 4])
def test_halves(bits, matrix_units):
    third = bits > 0
    sizes, block = (64 + 8 * third, 48, 4), 32 if bits else 0
    mixture = Mixture(7, sizes, bits, block, third=third, kind=np.float16, k=3)
    check(mixture, 2, 70, tolerance=3e-3)


@pytest.mark.parametrize(("bits", "precision", "tolerance"), [(4, "f16", 4e-3), (8, "bf16", 3e-2)])
def test_narrowed(bits, precision, tolerance):
    mixture = Mixture(8, (64, 48, 4), bits, 16 if bits else 0, bool(bits), k=4)
    tilings = TILINGS if precision == "f16" else TILINGS[1:]
    how = {"tolerance": tolerance, "tilings": tilings}
    check(mixture, 2, 40, **how, INFERENCE_PRECISION_HINT=precision)


@pytest.mark.parametrize("sizes", [(16, 0, 3), (0, 8, 3)])
def test_rows_without_elements(sizes):
    check(Mixture(14, sizes, k=1), 2, 9)


@pytest.mark.parametrize("place", [1, 2, 3, 4, 5, 11])
def test_shapes_that_do_not_fit(place):
    mixture = Mixture(15, (64, 48, 4), 4, 16, True, k=2)
    x, logits = mixture.tokens(2)
    inputs = mixture.inputs(x, logits)
    inputs[place] = logits[:1] if place == 1 else inputs[place][..., :-1].copy()
    constants = [n for n, one in enumerate(inputs) if n > 1 and one is not None]
    attributes = mixture.node_attributes() | MICROSOFT
    model, feeds = single("QMoE", inputs, attributes, constant=constants, opset=21)
    with pytest.raises(CompileError, match="is to be of shape"):
        compiled(model).infer_new_request(feeds)


def test_shares_that_are_given():
    mixture = Mixture(9, (64, 64, 4), 4, 32, k=2, normalize_routing_weights=1)
    x, logits = mixture.tokens(1, 6)
    weights = np.abs(logits[:, ::-1]).copy()
    model, feeds = model_and_feeds(mixture, x, logits, weights)
    due = mixture.evaluate(x, logits, weights)
    for tiling in TILINGS:
        found = compiled(model, TILING=tiling).infer_new_request(feeds)[0]
        np.testing.assert_allclose(found, due, rtol=0, atol=SINGLE * np.abs(due).max())


def test_numbers_of_tokens_that_vary():
    mixture = Mixture(10, (64, 48, 6), 4, 32, True, third=True, activation_type="silu", k=2)
    model, _ = model_and_feeds(mixture, *mixture.tokens(1), dynamic=True)
    for tiling in TILINGS:
        request = compiled(model, TILING=tiling).create_infer_request()
        for count in (1, 4, 5, 1, 170, 0, 33, 2):
            x, logits = mixture.tokens(count)
            due = mixture.evaluate(x, logits)
            found = request.infer({"x0": x, "x1": logits})[0]
            most = SINGLE * np.abs(due).max(initial=0)
            np.testing.assert_allclose(found, due, rtol=0, atol=most)


@pytest.mark.parametrize(("changes", "part"), REFUSED)
def test_what_is_refused(changes, part):
    mixture = Mixture(11, (96, 96, 4), 4, 32)
    inputs = mixture.inputs(*mixture.tokens(2))
    constants = [n for n, one in enumerate(inputs) if n > 1 and one is not None]
    attributes = mixture.node_attributes() | MICROSOFT | changes
    assert part in refusal("QMoE", inputs, attributes, constant=constants).detail


def test_more_experts_than_are_counted():
    mixture = Mixture(12, (8, 8, 1025))
    inputs = mixture.inputs(*mixture.tokens(2))
    reason = refusal("MoE", inputs, MICROSOFT, constant=[2, 3, 4, 5])
    assert "1025 experts; takes 1024" in reason.detail


def test_weights_that_the_run_tells_are_refused():
    mixture = Mixture(13, k=2)
    model, _ = single("MoE", mixture.inputs(*mixture.tokens(2)), {"k": 2, **MICROSOFT})
    with pytest.raises(UnsupportedOpError, match="input 2 is not a constant"):
        Core().compile_model(model, "OPENCL")
