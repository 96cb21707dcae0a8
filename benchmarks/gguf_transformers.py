"""Logits of small random decoders of transformers, beside those of Partita for the same weights.

    python benchmarks/gguf_transformers.py [CASE ...]

Each model is made by transformers with random weights in float64, written as a GGUF file by the
package ``gguf``, whose table also gives its tensors their names, and read by Partita on device CPU.
Both compute the logits of a prompt, in parts and token by token; printed is how far they lie apart
at most, in shares of the largest. Needs ``torch``, ``transformers`` and ``gguf``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

import partita

CONTEXT = 96
TOKENS = np.random.default_rng(7).integers(0, 96, 40).tolist()
PARTS = [20, 12, 1, 1, 1, 5]

_SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
_MIXTURE = {
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 96,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
_LATENT = {
    **_MIXTURE,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_group": 4,
    "topk_group": 2,
    "n_routed_experts": 8,
    "num_key_value_heads": 4,
}
_OF_GROUPS = {"expert_group_count": 4, "expert_group_used_count": 2}
_SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5}


@dataclass(frozen=True)
class Case:
    """A model of transformers, and what its file says.

    Attributes:
        model: Name of its class, without ``ForCausalLM``.
        name: Of the architecture in the file.
        config: Of the model, besides sizes.
        entries: Of the file, besides sizes.
        pairs: Rotary embedding turns neighbours in the file, and halves in the model.
    """

    model: str
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Any] = field(default_factory=dict)
    pairs: bool = False


def _yarn(**others: Any) -> dict[str, Any]:
    entries = {"type": "yarn", "factor": 8.0, "original_context_length": 16, **others}
    return {f"rope.scaling.{key}": value for key, value in entries.items()}


CASES = {
    "gpt-oss": Case(
        "GptOss",
        "gpt-oss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 6,
            "rope_parameters": {**_YARN, "truncate": False, "rope_theta": 150000.0},
        },
        {
            **_yarn(),
            "rope.freq_base": 150000.0,
            "attention.sliding_window": 6,
            "expert_count": 5,
            "expert_used_count": 2,
        },
    ),
    "mistral3": Case(
        "Ministral3",
        "mistral3",
        {
            "rope_parameters": {
                **_YARN,
                "rope_theta": 1e6,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            }
        },
        {
            **_yarn(yarn_log_multiplier=1.0, yarn_beta_fast=16.0, yarn_beta_slow=2.0),
            "rope.freq_base": 1e6,
            "attention.temperature_scale": 0.3,
        },
        pairs=True,
    ),
    "deepseek-v2": Case(
        "DeepseekV2",
        "deepseek2",
        {**_LATENT, "topk_method": "group_limited_greedy"},
        {"expert_weights_scale": 1.5, **_OF_GROUPS},
    ),
    "deepseek-v3": Case(
        "DeepseekV3",
        "deepseek2",
        {
            **_LATENT,
            "head_dim": 16,
            "rope_parameters": {
                **_YARN,
                "rope_theta": 10000.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        {**_SIGMOID, **_OF_GROUPS, **_yarn(yarn_log_multiplier=0.1)},
    ),
    "glm4moe": Case(
        "Glm4Moe",
        "glm4moe",
        {**_MIXTURE, "n_routed_experts": 8, "use_qk_norm": True, "attention_bias": True}
        | {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
        | {"n_group": 1, "topk_group": 1},
        {**_SIGMOID, "rope.dimension_count": 16},
    ),
    "dots1": Case(
        "Dots1",
        "dots1",
        {**_MIXTURE, "n_routed_experts": 8, "n_group": 1, "topk_group": 1},
        _SIGMOID,
    ),
    "minimax-m2": Case(
        "MiniMaxM2",
        "minimax-m2",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        {"expert_gating_func": 2, "rope.dimension_count": 16, "leading_dense_block_count": 0},
    ),
    "olmoe": Case(
        "Olmoe",
        "olmoe",
        {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False, "head_dim": 16},
        {"leading_dense_block_count": 0, "attention.key_length": 16, "attention.value_length": 16},
    ),
    "ernie4_5-moe": Case(
        "Ernie4_5_Moe",
        "ernie4_5-moe",
        {
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 96,
            "moe_layer_start_index": 1,
            "moe_layer_interval": 1,
        },
        {"attention.key_length": 32},
    ),
    "exaone4": Case(
        "Exaone4",
        "exaone4",
        {"sliding_window": 6, "sliding_window_pattern": 4, "head_dim": 16},
        {"attention.sliding_window": 6, "attention.key_length": 16, "attention.value_length": 16},
    ),
    "seed_oss": Case("SeedOss", "seed_oss", {"attention_bias": True}),
}


def made(case: Case) -> Any:
    """The model, with weights that make logits of about 1."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{case.model}Config")(**{**_SIZES, **case.config})
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, f"{case.model}ForCausalLM")(config).double().eval()
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name:
                continue
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            elif weight.ndim == 1 or "bias" in name or "sinks" in name:
                weight.normal_(0, 0.3)
            else:
                fan = weight.shape[-2] if case.model == "GptOss" and weight.ndim == 3 else None
                weight.normal_(0, (fan or weight.shape[-1]) ** -0.5)
    return model


def arrays(case: Case, model: Any) -> dict[str, np.ndarray]:
    """Tensors by their names in the file."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == case.name)
    table = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    found: dict[str, np.ndarray] = {}
    for name, weight in model.state_dict().items():
        if "inv_freq" in name:
            continue
        array = weight.float().numpy()
        for other, part in _parts(case, model.config, name, array).items():
            key = table.get_name(other, (".weight", ".bias"))
            if key is None:
                raise ValueError(f"no name for '{other}'")
            found[key] = np.ascontiguousarray(part)
    return found


def _parts(case: Case, config: Any, name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """What the converter of llama.cpp makes of a tensor, under names that its table has."""
    heads = config.num_attention_heads
    experts = name.split(".mlp.experts.")[0] + ".mlp.experts"
    if name.endswith(("experts.gate_up_proj", "experts.gate_up_proj_bias")):
        ending = ".bias" if name.endswith("bias") else ".weight"
        if case.model == "GptOss":
            array = array if array.ndim == 2 else array.swapaxes(1, 2)
            gate, up = array[:, ::2], array[:, 1::2]
        else:
            gate, up = np.split(array, 2, axis=1)
        return {f"{experts}.gate_proj{ending}": gate, f"{experts}.up_proj{ending}": up}
    if name.endswith(("experts.down_proj", "experts.down_proj_bias")):
        if name.endswith("bias"):
            return {f"{experts}.down_proj.bias": array}
        return {
            f"{experts}.down_proj.weight": array.swapaxes(1, 2) if case.model == "GptOss" else array
        }
    if name.endswith("kv_b_proj.weight"):
        plain, rank = config.qk_nope_head_dim, config.kv_lora_rank
        keys, values = np.split(array.reshape(heads, -1, rank), [plain], axis=1)
        return {
            name.replace("kv_b_proj", "k_b_proj"): keys.swapaxes(1, 2),
            name.replace("kv_b_proj", "v_b_proj"): values,
        }
    if "e_score_correction" in name:
        before = name.split(".mlp.")[0] if ".mlp." in name else name.rsplit(".", 2)[0]
        if case.model == "Ernie4_5_Moe":
            array = array.reshape(-1)
            return {f"{before}.mlp.moe_statics.e_score_correction.bias": array}
        if case.model == "MiniMaxM2":
            return {f"{before}.block_sparse_moe.e_score_correction.bias": array}
        return {f"{before}.mlp.gate.e_score_correction.bias": array}
    if name.endswith("sinks"):
        return {f"{name}.weight": array}
    if case.pairs and name.endswith(("q_proj.weight", "k_proj.weight")):
        count = heads if "q_proj" in name else config.num_key_value_heads
        halves = array.reshape(count, 2, -1, array.shape[1])
        return {name: halves.swapaxes(1, 2).reshape(array.shape)}
    return {name: array}


def write(path: Path, case: Case, model: Any) -> None:
    """The model as a file."""
    config, found = model.config, arrays(case, model)
    entries: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    if case.name == "deepseek2":
        entries |= {
            "attention.head_count_kv": 1,
            "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
            "attention.value_length": config.kv_lora_rank,
            "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
            "attention.value_length_mla": config.v_head_dim,
            "attention.kv_lora_rank": config.kv_lora_rank,
            "attention.q_lora_rank": config.q_lora_rank,
            "rope.dimension_count": config.qk_rope_head_dim,
        }
    experts = [one.shape[0] for name, one in found.items() if "ffn_up_exps.weight" in name]
    if experts:
        entries |= {"expert_count": experts[0], "leading_dense_block_count": 1}
        entries["expert_used_count"] = case.config.get(
            "num_experts_per_tok", case.config.get("moe_k")
        )
        if case.name == "gpt-oss":
            del entries["leading_dense_block_count"]
    entries |= case.entries
    writer = gguf.GGUFWriter(path, case.name)
    for key, value in entries.items():
        add: Callable[[str, Any], None] = (
            writer.add_bool
            if isinstance(value, bool)
            else writer.add_uint32
            if isinstance(value, int)
            else writer.add_float32
            if isinstance(value, float)
            else writer.add_string
        )
        add(f"{case.name}.{key}", value)
    for name, array in found.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ours(path: Path) -> np.ndarray:
    """Logits of all tokens, read in parts."""
    options = partita.DecoderOptions(context=CONTEXT, all_logits=True)
    core = partita.Core()
    model = core.read_model(path, decoder=options)
    model.reshape({port.name: [1, *port.shape[1:]] for port in model.inputs if port.shape})
    request = core.compile_model(model, "CPU").create_infer_request()
    found, length = [], 0
    for count in PARTS:
        tokens = TOKENS[length : length + count]
        length += count
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "seqlens_k": np.array([length - 1], np.int32),
            "total_sequence_length": np.array(length, np.int32),
        }
        found.append(np.array(request.infer(feeds)["logits"])[0])
    return np.concatenate(found)


def compare(case: Case) -> float:
    """How far both lie apart."""
    model = made(case)
    with torch.no_grad():
        due = model(torch.tensor([TOKENS])).logits[0].numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(path, case, model)
        return float(np.abs(ours(path) - due).max() / np.abs(due).max())


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    for name in parser.parse_args().cases or CASES:
        print(f"{name:14} {compare(CASES[name]):.1e}", flush=True)


if __name__ == "__main__":
    main()
