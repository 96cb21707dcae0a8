"""REFERENCE's operators of language models, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from decoders import grouped_decoder
from judge import onnxruntime_results
from mixtures import Mixture
from onnx import helper, numpy_helper

import partita
from partita.errors import InputError, UnsupportedOpError

MICROSOFT = "com.microsoft"


def both(op_type, inputs, outputs, domain=MICROSOFT, constants=(), **attributes):
    """What REFERENCE computes through a compiled model, and what onnxruntime does."""
    model, feeds = model_of(op_type, inputs, outputs, domain, constants, attributes)
    found = partita.Core().compile_model(model.SerializeToString(), "REFERENCE")(feeds)
    return [found[f"y{n}"] for n in range(len(outputs))], onnxruntime_results(model, feeds)


def reference(op_type, inputs, attributes):
    """The first result of REFERENCE."""
    model, feeds = model_of(op_type, inputs, [np.float32], MICROSOFT, (), attributes)
    return partita.Core().compile_model(model.SerializeToString(), "REFERENCE")(feeds)["y0"]


def model_of(op_type, inputs, outputs, domain, constants, attributes):
    """A model of one operation, and its inputs."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(inputs)]
    results = [f"y{n}" for n in range(len(outputs))]
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    given = {f"x{n}": x for n, x in enumerate(inputs) if x is not None}
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in given.items()
        if name not in constants
    ]
    made = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None)
        for name, kind in zip(results, outputs, strict=True)
    ]
    weights = [numpy_helper.from_array(given[name], name) for name in constants]
    graph = helper.make_graph([node], "single", ports, made, weights)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, {name: x for name, x in given.items() if name not in constants}


def assert_close(found, judged, tolerance=1e-5):
    for got, want in zip(found, judged, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("bits", "zeros"),  # onnxruntime has no float zero points with 8 bits
    [(4, "none"), (4, "packed"), (4, "float"), (8, "none"), (8, "packed")],
)
def test_mat_mul_n_bits(bits, zeros):
    columns, rows, block = 6, 72, 32
    blocks = 3
    inputs = [normal(1, 2, 5, rows), small(2, columns, blocks, block * bits // 8)]
    inputs += [normal(3, columns * blocks), None, None, normal(5, columns)]
    if zeros == "packed":
        inputs[3] = small(4, columns * -(-blocks * bits // 8))
    elif zeros == "float":
        inputs[3] = 8 + normal(4, columns * blocks)
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": block}
    constants = ("x1", "x2", "x3")[: 2 if zeros == "none" else 3]
    found, judged = both("MatMulNBits", inputs, [np.float32], constants=constants, **attributes)
    assert_close(found, judged, 2e-4)


@pytest.mark.parametrize("zeros", [False, True])
def test_terms_that_name_their_scales(zeros):
    inputs = [normal(1, 2, 5, 64), small(2, 6, 2, 16), normal(3, 12), None, None]
    inputs[3] = 8 + normal(4, 12) if zeros else None
    inputs[4] = np.random.default_rng(5).permutation(np.arange(64) // 32).astype(np.int32)
    attributes = {"K": 64, "N": 6, "bits": 4, "block_size": 32}
    constants = ("x1", "x2", "x4", "x3")[: 4 if zeros else 3]
    found, judged = both("MatMulNBits", inputs, [np.float32], constants=constants, **attributes)
    assert_close(found, judged, 2e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_gather_block_quantized(bits, with_zeros):
    rows, width, block = 9, 64, 16
    inputs = [small(1, rows, width * bits // 8), np.array([[3, 0, 8], [-1, 2, 2]])]
    inputs += [normal(2, rows, width // block)]
    inputs += [small(3, rows, width // block * bits // 8)] if with_zeros else []
    attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
    found, judged = both("GatherBlockQuantized", inputs, [np.float32], **attributes)
    assert_close(found, judged)


def test_simplified_normalization():
    x, scale = normal(1, 2, 3, 8), normal(2, 8)
    operator = "SimplifiedLayerNormalization"
    found, judged = both(operator, [x, scale], [np.float32] * 2, "", epsilon=1e-3)
    assert_close(found, judged)


@pytest.mark.parametrize("terms", [1, 2])
def test_skip_normalization(terms):
    x, scale = normal(1, 2, 3, 8), normal(2, 8)
    others = [normal(3, 2, 3, 8), scale, normal(4, 8)][: terms + 1]
    operator = "SkipSimplifiedLayerNormalization"
    found, judged = both(operator, [x, *others], [np.float32] * 4, epsilon=1e-3)
    assert_close([found[n] for n in (0, 2, 3)], [judged[n] for n in (0, 2, 3)])


@pytest.mark.parametrize("positions", [[2], [[4, 0, 1], [1, 2, 3]]])
def test_rotary_embedding(positions):
    inputs = [normal(1, 2, 3, 32), np.array(positions), normal(2, 9, 8), normal(3, 9, 8)]
    found, judged = both("RotaryEmbedding", inputs, [np.float32])
    assert_close(found, judged)


def test_attention_over_a_cache():
    inputs = [normal(1, 2, 1, 64), normal(2, 2, 1, 32), normal(3, 2, 1, 32)]
    inputs += [normal(4, 2, 2, 12, 16), normal(5, 2, 2, 12, 16)]
    inputs += [np.array([8, 10], np.int32), np.array(11, np.int32), normal(6, 12, 8)]
    inputs += [normal(7, 12, 8)]
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    found, judged = both("GroupQueryAttention", inputs, [np.float32] * 3, **attributes)
    assert_close(found[:1], judged[:1])
    for row, length in enumerate((9, 11)):
        pairs = [(found[n][row, :, :length], judged[n][row, :, :length]) for n in (1, 2)]
        for got, want in pairs:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


CACHES = "past.key", "past.value"


def four_tokens(total, length=64):
    """Inputs of four tokens with which a text has one token more than a length."""
    return {
        "x": normal(1, 1, 4, 32),
        "seqlens_k": np.array([length], np.int32),
        "total_sequence_length": np.array(total, np.int32),
    }


@pytest.mark.parametrize("device", ["REFERENCE", "CPU"])
@pytest.mark.parametrize("total", [65, 2**31 - 1])
@pytest.mark.parametrize("fixed", [True, False])
def test_a_text_that_is_longer_than_a_cache_of_a_declared_length(device, total, fixed):
    model, feeds = grouped_decoder(64), four_tokens(total)
    if not fixed:
        feeds |= with_lengths(model, "places", "places")
    compiled = partita.Core().compile_model(model, device)
    with pytest.raises(InputError, match=f"total_sequence_length is {total}; .* 4 to 64"):
        compiled(feeds)


@pytest.mark.parametrize("device", ["REFERENCE", "CPU", "OPENCL"])
@pytest.mark.parametrize("computed", [True, False])
def test_a_cache_whose_length_the_model_leaves_open_grows(device, computed):
    model, feeds = grouped_decoder(64), four_tokens(68, 67)
    feeds |= with_lengths(model, "before", "after")
    if computed:
        attention = next(node for node in model.graph.node if node.name == "attention")
        attention.input[6] = "total"
        total = helper.make_node("Abs", ["total_sequence_length"], ["total"])
        model.graph.node.insert(0, total)
    compiled = partita.Core().compile_model(model, device)
    found = compiled(feeds).to_tuple()
    assert found[1].shape == (1, 1, 68, 16)
    assert_close(found, onnxruntime_results(model, feeds))
    for wrong in (69, 2**31 - 1):  # onnxruntime refuses both
        said = f"total_sequence_length is {wrong}; .* 4 to 68"
        with pytest.raises(InputError, match=said):
            compiled(four_tokens(wrong, 67) | {name: feeds[name] for name in CACHES})


def with_lengths(model, past, present):
    """Makes caches inputs and outputs of lengths by such names; 64 rows for each."""
    del model.metadata_props[:]
    for values, name in ((model.graph.input, past), (model.graph.output, present)):
        for value in values:
            if value.name.startswith(("past", "present")):
                value.type.tensor_type.shape.dim[2].dim_param = name
    return {name: normal(seed, 1, 1, 64, 16) for seed, name in enumerate(CACHES)}


def test_what_is_not_implemented_is_refused():
    inputs = [normal(1, 2, 3, 32), np.array([2]), normal(2, 9, 8), normal(3, 9, 8)]
    with pytest.raises(UnsupportedOpError, match="is_packed_batching"):
        both("RotaryEmbedding", inputs, [np.float32], is_packed_batching=1)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("normalized", [0, 1])
def test_mixtures_of_experts(activation, normalized):
    numbers = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
    numbers = numbers | {"swiglu_fusion": 1} if activation == "swiglu" else {}
    attributes = {"activation_type": activation, "k": 2, "normalize_routing_weights": normalized}
    mixture = Mixture(1, (33, 29, 4), **attributes, **numbers)
    inputs = mixture.inputs(*mixture.tokens(2, 5))
    found, judged = both("MoE", inputs, [np.float32], **mixture.node_attributes())
    assert_close(found, judged, 1e-5)


@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_mixtures_of_quantized_experts(block, zeros, weighed):
    attributes = {"k": 2, "normalize_routing_weights": 1}
    mixture = Mixture(2, (64, 64, 4), 4, block, zeros, activation_type="silu", **attributes)
    x, logits = mixture.tokens(1, 6)
    weights = np.abs(logits[:, ::-1]).copy() if weighed else None
    inputs = mixture.inputs(x, logits, weights)
    constants = [f"x{n}" for n, one in enumerate(inputs) if one is not None and 1 < n < 14]
    attributes = mixture.node_attributes()
    found, judged = both("QMoE", inputs, [np.float32], constants=constants, **attributes)
    assert_close(found, judged, 1e-4)
    assert_close(found, [mixture.evaluate(x, logits, weights).astype(np.float32)], 1e-5)


@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("fusion", [0, 2])
def test_gates_that_onnxruntime_has_on_other_devices_alone(bits, fusion):
    attributes = {"activation_type": "swiglu", "swiglu_fusion": fusion, "k": 2}
    mixture = Mixture(3, (64, 32, 4), bits, 16 if bits else 0, third=not fusion, **attributes)
    x, logits = mixture.tokens(5)
    found = reference(mixture.op_type, mixture.inputs(x, logits), mixture.node_attributes())
    np.testing.assert_allclose(found, mixture.evaluate(x, logits), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"use_sparse_mixer": 1}, "use_sparse_mixer is not implemented"),
        ({"activation_type": "relu2"}, "activation_type 'relu2' is not implemented"),
        ({"activation_type": "swiglu"}, "swiglu_fusion is 0, and fc3 not given"),
        ({"quant_type": "fp4"}, "quant_type 'fp4' is not implemented"),
    ],
)
def test_mixtures_that_are_not_computed(changes, part):
    mixture = Mixture(4, (64, 64, 4), 4)
    inputs = mixture.inputs(*mixture.tokens(2))
    with pytest.raises(partita.PartitaError, match=part):
        reference("QMoE", inputs, mixture.node_attributes() | changes)
