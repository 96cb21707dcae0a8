"""Decoders of GGUF files on REFERENCE, whose request hands the caches on, against float64."""

import ml_dtypes
import numpy as np
import pytest
from gguf_files import decoder_tensors, gguf_bytes, latent_metadata, narrow_decoder_metadata
from llm_reference import ReferenceDecoder

from partita import DecoderOptions


def request_of(core, metadata, tensors, **options):
    data = gguf_bytes(metadata, tensors)
    model = core.read_model(data, decoder=DecoderOptions(all_logits=True, **options))
    model.reshape({port.name: [1, *port.shape[1:]] for port in model.inputs if port.shape})
    return core.compile_model(model, "REFERENCE").create_infer_request()


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("llama", "Q4_1"),
        ("llama", "Q8_0"),
        ("qwen2", "Q4_0"),
        ("qwen3", "Q5_1"),
        ("gemma2", "Q5_0"),
        ("gemma3", "BF16"),
        ("phi3", "Q4_0"),
        ("granite", "Q8_0"),
        ("olmo2", "F32"),
        ("command-r", "Q4_0"),
        ("falcon", "F16"),
        ("qwen2moe", "Q8_0"),
        ("qwen3moe", "F16"),
        ("gpt-oss", "MXFP4"),
        ("deepseek2", "Q4_0"),
    ],
)
def test_a_prompt_in_parts_and_tokens_behind_it(core, architecture, kind):
    changes = {"attention__sliding_window": 3} if architecture.startswith("gemma") else {}
    if architecture in ("granite", "command-r"):
        changes = {"logit_scale": 0.5}
    if architecture.endswith("moe") or architecture == "gpt-oss":
        changes = {"expert_count": 4, "expert_used_count": 2}
    metadata = narrow_decoder_metadata(architecture, **changes)
    if architecture == "deepseek2":
        metadata = latent_metadata(expert_group_count=4, expert_group_used_count=2)
    tensors = decoder_tensors(metadata, kind, tied=architecture != "qwen2")
    judge = ReferenceDecoder(metadata, {name: one.numbers() for name, one in tensors.items()})
    check(request_of(core, metadata, tensors), judge)


@pytest.mark.parametrize("rounded", [np.float16, ml_dtypes.bfloat16, np.int8])
def test_caches_of_half_the_size(core, rounded):
    metadata = narrow_decoder_metadata()
    tensors = decoder_tensors(metadata, "F32")
    weights = {name: one.numbers() for name, one in tensors.items()}
    request = request_of(core, metadata, tensors, cache_type=np.dtype(rounded).name)
    check(request, ReferenceDecoder(metadata, weights, rounded))
    assert {state.state.numpy().dtype for state in request.query_state()} == {np.dtype(rounded)}


def check(request, judge):
    """Logits of a prompt in two parts, and of two more tokens."""
    length = 0
    for tokens in ([7, 3, 90], [3, 41], [5], [5]):
        length += len(tokens)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "seqlens_k": np.array([length - 1], np.int32),
            "total_sequence_length": np.array(length, np.int32),
        }
        logits = np.asarray(request.infer(feeds)["logits"])
        np.testing.assert_allclose(logits[0], judge.run(tokens), rtol=0, atol=1e-4)
