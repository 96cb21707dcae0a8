"""Decoders on device OPENCL: launches for what stands round products, and answers of float64."""

import numpy as np
import pytest
from gguf_files import decoder_metadata, decoder_tensors, write_gguf
from llm_reference import ReferenceDecoder
from onnx import helper, numpy_helper

import partita

from ..comparison import build, check, compiled, core, floats, integers

PROMPT, NEXT = [1, 5, 7, 3, 9], [2, 4, 6]


class Decoder:
    """A decoder with random weights, its request, and its judge."""

    def __init__(self, folder, kind, architecture="llama", **properties):
        metadata = decoder_metadata(architecture)
        tensors = decoder_tensors(metadata, kind)
        path = folder / "decoder.gguf"
        write_gguf(path, metadata, tensors)
        self.model = core().read_model(path)
        shapes = {
            port.name: [1 if n == "batch" else n for n in port.shape] for port in self.model.inputs
        }
        self.model.reshape(shapes)
        self.request = core().compile_model(self.model, "OPENCL", properties).create_infer_request()
        numbers = {name: tensor.numbers() for name, tensor in tensors.items()}
        self.judge = ReferenceDecoder(metadata, numbers)
        self.caches = {
            port.name: np.zeros(port.shape, np.float32)
            for port in self.model.inputs
            if port.name.startswith("past")
        }
        self.length = 0

    def logits(self, tokens):
        """Of the last of some tokens that follow those before."""
        self.length += len(tokens)
        numbers = {"seqlens_k": [self.length - 1], "total_sequence_length": self.length}
        feeds = {name: np.array(value, np.int32) for name, value in numbers.items()}
        feeds |= {"input_ids": np.array([tokens], np.int64), **self.caches}
        result = self.request.infer(feeds)
        self.caches = {
            name: np.array(result[name.replace("past_key_values", "present")])
            for name in self.caches
        }
        return np.array(result["logits"]).reshape(-1)

    def check(self, tolerance):
        """A prompt at once and tokens one by one have the logits of float64."""
        due = self.judge.run([*PROMPT, *NEXT])
        for tokens in (PROMPT, *([token] for token in NEXT)):
            found, wanted = self.logits(tokens), due[self.length - 1]
            assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()

    def kernels(self):
        """What computed the last token, without copies of the cache."""
        steps = self.request.explain_execution().steps
        return [step.how for step in steps if step.how != "copy_box"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tiling", ["LOCAL", "REGISTERS"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_logits(tmp_path, kind, tiling):
    Decoder(tmp_path, kind, TILING=tiling).check(1e-5)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "gemma2"])
def test_architectures(tmp_path, architecture):
    Decoder(tmp_path, "Q4_1", architecture).check(1e-5)


def test_halves(tmp_path):
    Decoder(tmp_path, "Q4_0", INFERENCE_PRECISION_HINT="f16").check(4e-3)


def test_launches_of_a_token(tmp_path):
    decoder = Decoder(tmp_path, "Q4_0", TILING="LOCAL")
    decoder.check(1e-5)
    layer = ["block_product", "cache_attention", "block_product", "block_product", "block_product"]
    kernels = decoder.kernels()
    assert [kernel for kernel in kernels if kernel in layer] == layer * 2 + ["block_product"]
    assert len(kernels) <= len(layer) * 2 + 4  # and the embedding, the last norm, position, logits


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("tiling", ["LOCAL", "REGISTERS"])
def test_caches_that_stay_on_the_device(tmp_path, tiling, precision):
    decoder = Decoder(tmp_path, "Q4_0", TILING=tiling, INFERENCE_PRECISION_HINT=precision)
    decoder.caches = {}  # the request's own
    decoder.request.reset_state()
    decoder.check(1e-5 if precision == "f32" else 4e-3)
    steps = [step.how for step in decoder.request.explain_execution().steps]
    assert "copy_box" not in steps
    conversions = sum(step.startswith("chain") for step in steps)
    assert conversions <= 1  # of the logits, not of caches


def block_weights(name, columns, depth, bits=4):
    """Initializers and attributes of a product."""
    blocks = depth // 32
    data = integers(columns, blocks, 4 * bits, low=0, high=256, dtype=np.uint8)
    arrays = {f"{name}.data": data, f"{name}.scales": floats(columns, blocks, seed=1) / 16}
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": 32, "domain": "com.microsoft"}
    return [numpy_helper.from_array(x, n) for n, x in arrays.items()], attrs


def product(name, source, columns, depth, bits=4):
    """A node and its weights."""
    weights, attrs = block_weights(name, columns, depth, bits)
    inputs = [source, f"{name}.data", f"{name}.scales"]
    return helper.make_node("MatMulNBits", inputs, [name], name, **attrs), weights


def norm(op_type, inputs, outputs, name):
    domain = "com.microsoft" if op_type.startswith("Skip") else ""
    return helper.make_node(op_type, inputs, outputs, name, domain=domain, epsilon=1e-5)


def kernels_of(model, feeds):
    request = compiled(model, TILING="LOCAL").create_infer_request()
    request.infer(feeds)
    return [step.how for step in request.explain_execution().steps]


SCALE = numpy_helper.from_array(floats(64, seed=9), "scale")


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_normalized_sums(rows):
    feeds = {"x": floats(1, rows, 64), "rest": floats(1, rows, 64, seed=2)}
    first, weights = product("p", "x", 64, 64)
    second, more = product("q", "n", 40, 64)
    skip = norm("SkipSimplifiedLayerNormalization", ["rest", "p", "scale"], ["n", "", "", "s"], "k")
    weights += [*more, SCALE]
    model = build([first, skip, second], feeds, ["q", "s"], weights)
    check(model, feeds, atol=1e-4)
    if rows < 5:
        assert kernels_of(model, feeds) == ["block_product"] * 2
    # what is normalized is read by others as well
    check(build([first, skip, second], feeds, ["q", "s", "n"], weights), feeds, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gates(rows, activation):
    feeds = {"x": floats(1, rows, 64)}
    first, weights = product("gate", "x", 40, 64)
    second, more = product("up", "x", 40, 64)
    if activation == "silu":
        active = [
            helper.make_node("Sigmoid", ["gate"], ["open"], "open"),
            helper.make_node("Mul", ["gate", "open"], ["active"], "active"),
        ]
    else:
        active = [helper.make_node("Gelu", ["gate"], ["active"], "active", approximate="tanh")]
    gated = helper.make_node("Mul", ["active", "up"], ["y"], "y")
    model = build([first, second, *active, gated], feeds, ["y"], [*weights, *more], opset=21)
    check(model, feeds, atol=1e-4)
    if rows == 1:
        assert kernels_of(model, feeds) == ["block_product"]
    # what the gate reads is read by others as well
    model = build(
        [first, second, *active, gated], feeds, ["y", "gate"], [*weights, *more], opset=21
    )
    check(model, feeds, atol=1e-4)


def test_products_that_differ_stay_apart():
    feeds = {"x": floats(1, 1, 64)}
    first, weights = product("gate", "x", 40, 64)
    second, more = product("up", "x", 40, 64, bits=8)
    active = helper.make_node("Gelu", ["gate"], ["active"], "active")
    gated = helper.make_node("Mul", ["active", "up"], ["y"], "y")
    model = build([first, second, active, gated], feeds, ["y"], [*weights, *more], opset=21)
    check(model, feeds, atol=1e-4)
    assert len(kernels_of(model, feeds)) > 1


def test_sizes_are_checked_in_what_was_fused():
    feeds = {"x": floats(1, 1, 48)}
    first, weights = product("p", "n", 64, 64)
    before = norm("SimplifiedLayerNormalization", ["x", "scale"], ["n"], "n")
    model = build([before, first], feeds, ["p"], [*weights, SCALE])
    with pytest.raises(partita.PartitaError):
        compiled(model).infer_new_request(feeds)
