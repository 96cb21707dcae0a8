"""Mixtures of experts against float64, and against onnxruntime where it computes them."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from judge import onnxruntime_results
from mixtures import REFUSED, Mixture
from single_op import model_of, run_shared

import partita
from partita.errors import UnsupportedOpError
from partita.lowering import Specializer, Target, lower_proto
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.jit import isa
from partita_cpu.kernels.operator_table import emitter_for
from partita_cpu.machine_model import MachineModel
from partita_cpu.runtime import bound_program
from partita_cpu.runtime.device_model import run_graph
from partita_cpu.runtime.graph_runner import GraphRunner
from partita_cpu.threads.step_team import Team

MICROSOFT = "com.microsoft"
BLOCKS = 1e-4
"""Of the largest result: how far off 16 bits of the largest term of a block may be."""


def model_and_feeds(mixture, x, logits, weights=None):
    inputs = mixture.inputs(x, logits, weights)
    at_run = {0, 1, 14}
    constants = [n for n, one in enumerate(inputs) if one is not None and n not in at_run]
    attributes = mixture.node_attributes()
    model = model_of(mixture.op_type, inputs, domain=MICROSOFT, constants=constants, **attributes)
    given = {n: inputs[n] for n in at_run if n < len(inputs) and inputs[n] is not None}
    return model, {f"x{n}": one for n, one in given.items()}


def at_levels(model, feeds):
    """What the kernels of each level compute that the machine has, by three threads."""
    for level in isa.available():
        policy = PrecisionPolicy(MachineModel(level), Arithmetic.F32, 3)
        specializer = Specializer(lower_proto(model), Target(emitter_for, options=policy))
        runner = GraphRunner(specializer, Team(3))
        with mock.patch.object(bound_program, "PARALLEL_WORK", 0):
            yield runner.run([*feeds.values()])[0].copy()


def check(mixture, x, logits, weights=None, judged=False, tolerance=1e-5):
    model, feeds = model_and_feeds(mixture, x, logits, weights)
    expected = mixture.evaluate(x, logits, weights)
    most = tolerance * np.abs(expected).max(initial=1e-30)
    graph = lower_proto(model)
    results = [run_graph(graph, feeds)[0], *at_levels(model, feeds)]
    results += [onnxruntime_results(model, feeds)[0]] if judged else []
    for got in results:
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize("normalized", [0, 1])
def test_floats(activation, normalized):
    mixture = Mixture(
        1, (33, 29, 4), activation_type=activation, k=2, normalize_routing_weights=normalized
    )
    check(mixture, *mixture.tokens(2, 5), judged=True)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
def test_a_factor_of_its_own(activation):
    mixture = Mixture(2, (33, 29, 3), third=True, bias=False, activation_type=activation, k=2)
    check(mixture, *mixture.tokens(7))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("fusion", [1, 2, 0])
def test_swiglu(bits, fusion):
    numbers = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
    attributes = {"activation_type": "swiglu", "swiglu_fusion": fusion, "k": 2, **numbers}
    mixture = Mixture(3, (64, 33, 5), bits, 16 if bits else 0, third=not fusion, **attributes)
    check(mixture, *mixture.tokens(1, 9), judged=fusion == 1 and not bits, tolerance=BLOCKS)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16, 32, 128])
@pytest.mark.parametrize("zeros", [False, True])
def test_blocks(bits, block, zeros):
    sizes = (96, 80, 4)
    mixture = Mixture(
        4, sizes, bits, block, zeros, activation_type="silu", k=2, normalize_routing_weights=1
    )
    check(mixture, *mixture.tokens(2, 5), tolerance=BLOCKS)


def test_blocks_as_onnxruntime_has_them():
    sizes, attributes = (64, 64, 4), {"k": 2, "normalize_routing_weights": 1}
    mixture = Mixture(5, sizes, 4, 32, True, activation_type="silu", **attributes)
    check(mixture, *mixture.tokens(2, 5), judged=True, tolerance=BLOCKS)


@pytest.mark.parametrize("bits", [0, 4])
def test_many_rows_of_few_experts(bits):
    mixture = Mixture(6, (96, 80, 3), bits, 32 if bits else 0, k=1)
    x, logits = mixture.tokens(310)
    logits[:250, 1] = 50
    logits[:, 2] = -50  # nobody chooses it
    x[7, 3] = np.inf
    model, feeds = model_and_feeds(mixture, x, logits)
    with np.errstate(invalid="ignore"):
        expected = mixture.evaluate(x, logits)
    others = np.arange(310) != 7
    most = BLOCKS * np.abs(expected[others]).max()
    for got in (run_shared(lower_proto(model), list(feeds.values()))[0], *at_levels(model, feeds)):
        assert not np.isfinite(got[7]).all()
        np.testing.assert_allclose(got[others], expected[others], rtol=0, atol=most)


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_halves(bits):
    mixture = Mixture(7, bits=bits, block=32 if bits else 0, kind=np.float16, k=4)
    check(mixture, *mixture.tokens(2, 3), tolerance=2e-3)


@pytest.mark.parametrize("normalized", [0, 1])
def test_shares_that_are_given(normalized):
    mixture = Mixture(8, (64, 64, 4), 4, 32, k=2, normalize_routing_weights=normalized)
    x, logits = mixture.tokens(1, 6)
    weights = np.abs(logits[:, ::-1]).copy()
    check(mixture, x, logits, weights, judged=True, tolerance=BLOCKS)


def test_products_that_lose_no_more_than_float32():
    mixture = Mixture(9, (64, 48, 4), 4, 32, True, k=2, activation_type="silu", third=True)
    x, logits = mixture.tokens(1, 40)
    model, feeds = model_and_feeds(mixture, x, logits)
    config = {"EXECUTION_MODE_HINT": "ACCURACY"}
    compiled = partita.Core().compile_model(model.SerializeToString(), "CPU", config)
    (got,) = compiled(feeds).values()
    expected = mixture.evaluate(x, logits)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_many_rows_in_int8_where_it_is_asked_for(bits):
    mixture = Mixture(10, (96, 80, 3), bits, 32, True, k=1)
    x, logits = mixture.tokens(200)
    logits[:, 1] += 4.5  # some experts have many rows, others few
    model, feeds = model_and_feeds(mixture, x, logits)
    expected, off = mixture.evaluate(x, logits), []
    for group in (0, 32):
        config = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": group}
        compiled = partita.Core().compile_model(model.SerializeToString(), "CPU", config)
        (got,) = compiled(feeds).values()
        off.append(np.abs(got - expected).max() / np.abs(expected).max())
    assert off[0] < BLOCKS and off[1] < 2e-2
    counts = np.bincount(logits.argmax(1), minlength=3)
    assert 0 < counts.min() < 12 and counts.max() > 48
    if bits == 4 and compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE"):
        assert off[1] > off[0]  # the level has kernels for it


@pytest.mark.parametrize(("changes", "part"), REFUSED)
def test_what_is_refused(changes, part):
    mixture = Mixture(11, (96, 96, 4), 4, 32)
    mixture.attributes |= changes
    inputs = mixture.inputs(*mixture.tokens(2))
    constants = [n for n, one in enumerate(inputs) if n > 1 and one is not None]
    attributes = mixture.node_attributes() | changes
    model = model_of("QMoE", inputs, domain=MICROSOFT, constants=constants, **attributes)
    with pytest.raises(UnsupportedOpError, match=part):
        partita.Core().compile_model(model.SerializeToString(), "CPU")


def test_weights_that_the_run_tells_are_refused():
    mixture = Mixture(12, k=2)
    model = model_of("MoE", mixture.inputs(*mixture.tokens(2)), domain=MICROSOFT, k=2)
    with pytest.raises(UnsupportedOpError, match="input 2 is not a constant"):
        partita.Core().compile_model(model.SerializeToString(), "CPU")


@pytest.mark.parametrize(
    ("place", "part"),
    [
        (1, "router_probs is to be of shape"),
        (2, "fc1_experts_weights is to be of shape"),
        (3, "fc1_scales is to be of shape"),
        (4, "fc1_experts_bias is to be of shape"),
        (11, "fc1_zero_points is to be of shape"),
        (5, "fc2_experts_weights is to be of shape"),
    ],
)
def test_shapes_that_do_not_fit(place, part):
    mixture = Mixture(13, (64, 48, 4), 4, 16, True, k=2)
    x, logits = mixture.tokens(2)
    inputs = mixture.inputs(x, logits)
    inputs[place] = inputs[place][..., :-1].copy()
    if place == 1:
        inputs[place] = logits[:1]
    constants = [n for n, one in enumerate(inputs) if n > 1 and one is not None]
    attributes = mixture.node_attributes()
    model = model_of("QMoE", inputs, domain=MICROSOFT, constants=constants, **attributes)
    with pytest.raises(partita.PartitaError, match=part):
        partita.Core().compile_model(model.SerializeToString(), "CPU")({"x0": x, "x1": inputs[1]})


@pytest.mark.parametrize("block", [16, 32, 128, 0])
@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("spread", [32, 33])
def test_eight_bits_that_fit_into_six(block, tokens, spread):
    attributes = {"activation_type": "silu", "k": 2, "spread": spread}
    mixture = Mixture(block + tokens, (256, 144, 4), 8, block, **attributes)
    rng = np.random.default_rng(tokens)
    x = rng.normal(0, 1, (tokens, 256)).astype(np.float32)
    check(mixture, x, rng.normal(0, 1, (tokens, 4)).astype(np.float32), tolerance=BLOCKS)


def test_zero_points_of_eight_bits_that_fit_into_six():
    mixture = Mixture(3, (64, 48, 3), 8, 32, zeros=True, activation_type="silu", k=2)
    for number, (w, levels, scales, bias, points) in enumerate(mixture.layers):
        low = levels % 64
        own = (low - np.repeat(points, 32, axis=-1)[..., : w.shape[-1]].astype(np.float64)) * (
            np.repeat(scales, 32, axis=-1)[..., : w.shape[-1]].astype(np.float64)
        )
        mixture.layers[number] = own, low, scales, bias, points
    rng = np.random.default_rng(4)
    x = rng.normal(0, 1, (5, 64)).astype(np.float32)
    check(mixture, x, rng.normal(0, 1, (5, 3)).astype(np.float32), tolerance=BLOCKS)


@pytest.mark.parametrize(("spread", "bits"), [(32, 6), (33, 8)])
def test_a_profile_says_in_how_many_bits_experts_are(spread, bits):
    mixture = Mixture(1, (64, 48, 3), 8, 32, activation_type="silu", k=2, spread=spread)
    x, logits = np.ones((1, 64), np.float32), np.zeros((1, 3), np.float32)
    model, feeds = model_and_feeds(mixture, x, logits)
    properties = {"PERF_COUNT": True, "INFERENCE_PRECISION_HINT": "f32"}
    request = partita.Core().compile_model(model, "CPU", properties).create_infer_request()
    request.infer(feeds)
    kinds = {one.exec_type for one in request.profiling_info}
    assert any(kind.endswith((f"_int{bits}", "numba")) for kind in kinds), kinds
