"""Networks of many domains with random weights as ONNX files, none of `more_networks.py`'s.

    python benchmarks/wide_networks.py FOLDER [PATTERN ...]

Those of `domain_networks.py`, and of timm and transformers: each is written to
FOLDER/<library>_<network>.onnx, unless that file exists; PATTERN takes those whose name holds it.
Those of transformers have fewer layers than are published.
Then `check_networks.py FOLDER/*.onnx`. Needs what `more_networks.py` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import domain_networks
import torch
from more_networks import Configured, Inputs, Network, noise, of_transformers, text, write
from torch_architectures import of_timm

TIMM = (
    "botnet26t_256 cait_xxs24_224 coatnet_nano_rw_224 convit_tiny cspresnet50 dla34 "
    "dpn48b ese_vovnet19b_dw gcresnet33ts gcvit_xxtiny gmlp_s16_224 "
    "hiera_tiny_224 lambda_resnet26t mixnet_s mobilenetv4_hybrid_medium mvitv2_tiny "
    "nest_tiny nextvit_small rdnet_tiny res2net50_26w_4s selecsls42b shvit_s1 "
    "tf_efficientnet_lite0 tnt_s_patch16_224 tresnet_m vit_tiny_r_s16_p8_224 xception41 "
    "fbnetv3_b ghostnetv2_100 repghostnet_050 tf_mixnet_s"
)
NARROW = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024,
          "num_attention_heads": 8, "vocab_size": 20001}  # fmt: skip
ENCODER_DECODER = {
    "d_model": 256, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 1024, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
    "vocab_size": 20001}  # fmt: skip


def pair(count: int, results: int) -> Callable[[], Inputs]:
    """Makes a sentence, and the beginning of another."""
    return lambda: {
        "input_ids": torch.randint(5, 1000, (1, count)),
        "decoder_input_ids": torch.randint(5, 1000, (1, results)),
    }


TRANSFORMERS = {
    "albert": Configured("albert", text(128), NARROW | {"embedding_size": 64}),
    "bart": Configured("bart", pair(96, 32), ENCODER_DECODER),
    "dac": Configured("dac", noise("input_values", 1, 1, 8000), {
        "encoder_hidden_size": 16, "decoder_hidden_size": 256}),
    "fnet": Configured("fnet", lambda: {"input_ids": torch.randint(5, 1000, (1, 128))}, NARROW),
    "mamba": Configured("mamba", lambda: {"input_ids": torch.randint(5, 1000, (1, 32))}, {
        "hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 1001}),
    "patchtsmixer": Configured("patchtsmixer", noise("past_values", 1, 512, 7), {
        "context_length": 512, "num_input_channels": 7, "patch_length": 16, "patch_stride": 16,
        "d_model": 64, "num_layers": 4}),
    "clip_text": Configured("clip_text_model", text(77), {
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 4, "vocab_size": 20001}),
    "conformer": Configured("wav2vec2-conformer", noise("input_values", 1, 16000), {
        "hidden_size": 256, "num_hidden_layers": 3, "intermediate_size": 1024,
        "num_attention_heads": 4, "conv_dim": [128] * 7}),
    "deberta": Configured("deberta-v2", text(128), NARROW | {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 64}),
    "rwkv": Configured("rwkv", lambda: {"input_ids": torch.randint(5, 1000, (1, 32))}, {
        "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 1001}),
    "xlstm": Configured("xlstm", lambda: {"input_ids": torch.randint(5, 1000, (1, 64))}, {
        "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 4, "vocab_size": 1001}),
    "squeezebert": Configured("squeezebert", text(128), NARROW | {"embedding_size": 256}),
}  # fmt: skip


class WithPast(torch.nn.Module):
    """A decoder's step: one token behind those whose keys and values it is given."""

    def __init__(self, model: Any, cross: bool):
        super().__init__()
        self.model = model
        self.cross = cross

    def forward(self, ids: torch.Tensor, *tensors: torch.Tensor) -> Any:
        from transformers import DynamicCache, EncoderDecoderCache

        hidden, *past = tensors if self.cross else (None, *tensors)
        own, more = DynamicCache(), DynamicCache()
        halves = (past[: len(past) // 2], past[len(past) // 2 :]) if self.cross else (past, [])
        for cache, parts in zip((own, more), halves, strict=True):
            for layer in range(len(parts) // 2):
                cache.update(parts[2 * layer], parts[2 * layer + 1], layer)
        if not self.cross:
            found = self.model(input_ids=ids, past_key_values=own, use_cache=True)
            cache = found.past_key_values
        else:
            found = self.model(
                input_ids=ids,
                encoder_hidden_states=hidden,
                past_key_values=EncoderDecoderCache(own, more),
                use_cache=True,
            )
            cache = found.past_key_values.self_attention_cache
        grown = [t for layer in cache.layers for t in (layer.keys, layer.values)]
        return found.last_hidden_state, *grown


def gpt2_step() -> tuple[Any, Inputs]:
    """A token of GPT-2 of 4 layers behind 64 others."""
    import transformers

    config = transformers.GPT2Config(n_embd=384, n_layer=4, n_head=6)
    past = {f"past_{i}": torch.randn(1, 6, 64, 64) for i in range(8)}
    return WithPast(transformers.GPT2Model(config), False), {"ids": torch.tensor([[7]]), **past}


def whisper_step() -> tuple[Any, Inputs]:
    """A token of Whisper's decoder behind 32 others, beside 1,500 places of sound."""
    import transformers

    config = transformers.WhisperConfig(d_model=384, decoder_layers=4, decoder_attention_heads=6)
    past = {f"past_{i}": torch.randn(1, 6, 32, 64) for i in range(8)}
    cross = {f"cross_{i}": torch.randn(1, 6, 1500, 64) for i in range(8)}
    decoder = transformers.WhisperModel(config).decoder
    hidden = {"hidden": torch.randn(1, 1500, 384)}
    return WithPast(decoder, True), {"ids": torch.tensor([[7]]), **hidden, **past, **cross}


def networks() -> Iterator[tuple[str, Network]]:
    """All, by library and name."""
    # The exporter that traces has neither Fourier transforms nor PyTorch's own attention, and
    # tells wrong shapes of what is scattered with a reduction.
    captured = ("ft_transformer", "gat", "s4d", "svtr", "temporal_fusion")
    for name, make in domain_networks.NETWORKS.items():
        yield f"domain_{name}", Network(make, traced=name not in captured)
    for name, step in (("gpt2_step", gpt2_step), ("whisper_step", whisper_step)):
        yield f"transformers_{name}", Network(step, calibrated=False, traced=True)
    for name in TIMM.split():
        yield f"timm_{name}", Network(partial(of_timm, name), traced=True)
    for name, configured in TRANSFORMERS.items():
        make = partial(of_transformers, configured)
        yield f"transformers_{name}", Network(make, calibrated=False, by_keywords=True)


if __name__ == "__main__":
    write(networks(), (__doc__ or "").splitlines()[0])
