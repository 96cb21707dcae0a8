"""Over seventy networks with random weights as ONNX files: more that no kernel was fitted to.

    python benchmarks/more_networks.py FOLDER [PATTERN ...]

Of torchvision, timm, transformers and diffusers, and of `hand_networks.py`: each is written to
FOLDER/<library>_<network>.onnx, unless that file exists; PATTERN takes those whose name holds it.
Those of transformers and diffusers are in part smaller than they are published. Half go through
PyTorch's exporter that traces, the others through the one that captures a graph.
Then `cpu_peers.py --threads 1 --processor --rounds 1 FOLDER/*.onnx`.
Needs `pip install torch torchvision timm transformers diffusers onnxscript`, torchvision and
PyTorch of one index.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import hand_networks
import torch
from torch_architectures import calibrate, of_timm, of_torchvision

Inputs = dict[str, torch.Tensor]

TORCHVISION = (
    "efficientnet_b3 googlenet inception_v3 mc3_18 mobilenet_v2 mobilenet_v3_large r2plus1d_18 "
    "regnet_x_800mf shufflenet_v2_x0_5 squeezenet1_0"
)
TIMM_TRACED = (
    "crossvit_tiny_240 dla34 edgenext_xx_small efficientvit_m0 focalnet_tiny_srf "
    "inception_next_tiny lcnet_050 levit_128s mobilevitv2_050 pvt_v2_b0 repvit_m0_9 resmlp_12_224 "
    "sequencer2d_s tf_efficientnet_lite0 tiny_vit_5m_224 twins_svt_small vit_tiny_patch16_224 "
    "xception41"
)
TIMM_CAPTURED = (
    "caformer_s18 davit_tiny efficientformer_l1 fasternet_t0 gernet_s hgnetv2_b0 mambaout_femto "
    "mobilenetv4_conv_small resnest14d rexnet_100 skresnet18 starnet_s1 swiftformer_xs "
    "visformer_tiny"
)


@dataclass(frozen=True)
class Configured:
    """A model of transformers: what its configuration differs in, its inputs, its class."""

    kind: str
    inputs: Callable[[], Inputs]
    sizes: dict[str, Any] = field(default_factory=dict)
    loader: str = "AutoModel"
    part: str = ""


def plainly(model: Any, *inputs: torch.Tensor) -> Any:
    """What a model makes of its inputs alone."""
    return model(*inputs)


@dataclass(frozen=True)
class Diffusing:
    """A model of diffusers: its class, sizes, inputs, and how it is called if not by them alone."""

    kind: str
    inputs: Callable[[], Inputs]
    sizes: dict[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] = plainly


def text(count: int) -> Callable[[], Inputs]:
    """Makes a sentence of as many tokens, and its mask."""
    return lambda: {
        "input_ids": torch.randint(5, 20000, (1, count)),
        "attention_mask": torch.ones(1, count, dtype=torch.long),
    }


def noise(name: str, *shape: int) -> Callable[[], Inputs]:
    """Makes an input of noise."""
    return lambda: {name: torch.randn(shape)}


def picture(side: int) -> Callable[[], Inputs]:
    """Makes a square picture of noise."""
    return noise("pixel_values", 1, 3, side, side)


SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
TINY = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}

TRANSFORMERS = {
    "deberta": Configured("deberta-v2", text(64), SMALL | {
        "num_attention_heads": 6, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 64, "max_relative_positions": -1}),
    "minilm": Configured("bert", text(64), SMALL | {"num_attention_heads": 12}),
    "modernbert": Configured("modernbert", text(128), {
        "num_hidden_layers": 6, "hidden_size": 512, "intermediate_size": 768,
        "num_attention_heads": 8}),
    "qwen3": Configured("qwen3", text(64), {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}),
    "xlnet": Configured(
        "xlnet", lambda: {"input_ids": torch.randint(5, 20000, (1, 64))},
        {"d_model": 384, "n_layer": 4, "n_head": 6, "d_inner": 1536}),
    "dinov2": Configured("dinov2", picture(224), {
        "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}),
    "yolos": Configured("yolos", picture(256), TINY | {
        "num_hidden_layers": 8, "image_size": [256, 256]}),
    "swin2sr": Configured(
        "swin2sr", picture(64),
        {"embed_dim": 60, "depths": [4, 4], "num_heads": [6, 6], "window_size": 8},
        "AutoModelForImageToImage"),
    "sam": Configured(
        "sam", picture(512),
        {"vision_config": {
            "hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3,
            "image_size": 512, "global_attn_indexes": [2, 5], "mlp_dim": 768}},
        part="vision_encoder"),
    "dpt": Configured(
        "dpt", picture(224),
        TINY | {
            "image_size": 224, "num_hidden_layers": 8, "backbone_out_indices": [1, 3, 5, 7],
            "neck_hidden_sizes": [48, 96, 192, 192], "fusion_hidden_size": 64},
        "AutoModelForDepthEstimation"),
    "glpn": Configured("glpn", picture(256), loader="AutoModelForDepthEstimation"),
    "hubert": Configured("hubert", noise("input_values", 1, 16000), {"num_hidden_layers": 4}),
    "ast": Configured(
        "audio-spectrogram-transformer", noise("input_values", 1, 256, 128),
        TINY | {"num_hidden_layers": 6, "max_length": 256}),
    "patchtst": Configured("patchtst", noise("past_values", 1, 512, 7), {
        "context_length": 512, "num_input_channels": 7, "patch_length": 16, "patch_stride": 8,
        "d_model": 128, "num_hidden_layers": 3}),
    "regnet": Configured("regnet", picture(224)),
}  # fmt: skip

DIFFUSERS = {
    "unet2dmodel": Diffusing(
        "UNet2DModel",
        lambda: {"x": torch.randn(1, 3, 32, 32), "step": torch.tensor([10])},
        {"sample_size": 32, "in_channels": 3, "out_channels": 3, "layers_per_block": 2,
         "block_out_channels": (64, 128, 128),
         "down_block_types": ("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
         "up_block_types": ("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")}),
    "unetcond": Diffusing(
        "UNet2DConditionModel",
        lambda: {"x": torch.randn(1, 4, 32, 32), "step": torch.tensor([10]),
                 "text": torch.randn(1, 77, 256)},
        {"sample_size": 32, "block_out_channels": (96, 192, 192), "layers_per_block": 1,
         "cross_attention_dim": 256, "attention_head_dim": 32,
         "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
         "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D")}),
    "vaedec": Diffusing(
        "AutoencoderKL", noise("x", 1, 4, 32, 32),
        {"block_out_channels": (32, 64, 128), "latent_channels": 4, "layers_per_block": 1,
         "down_block_types": ("DownEncoderBlock2D",) * 3,
         "up_block_types": ("UpDecoderBlock2D",) * 3},
        lambda model, x: model.decode(x)),
    "taesd": Diffusing(
        "AutoencoderTiny", noise("x", 1, 4, 24, 24), call=lambda model, x: model.decode(x)),
    "dit": Diffusing(
        "DiTTransformer2DModel",
        lambda: {"x": torch.randn(1, 4, 32, 32), "step": torch.tensor([10]),
                 "label": torch.tensor([3])},
        {"num_attention_heads": 6, "attention_head_dim": 64, "num_layers": 6, "sample_size": 32,
         "in_channels": 4, "out_channels": 4},
        lambda model, x, step, label: model(x, timestep=step, class_labels=label)),
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """How a network and its inputs are made, and how they are exported."""

    make: Callable[[], tuple[Any, Inputs]]
    calibrated: bool = True
    traced: bool = False
    by_keywords: bool = False


def main() -> None:
    """Writes the files, and says what each took or why there is none."""
    write(networks(), (__doc__ or "").splitlines()[0])


def write(networks: Iterable[tuple[str, Network]], description: str) -> None:
    """Writes the networks that the command line names, unless their files exist."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*", help="only names that hold one of these")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, network in networks:
        path = options.folder / f"{name}.onnx"
        if path.exists() or not chosen(name, options.patterns):
            continue
        start = time.perf_counter()
        try:
            export(network, path)
        except Exception as error:  # noqa: BLE001  (whatever it is, the others are exported)
            path.unlink(missing_ok=True)
            print(f"{path}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
        else:
            print(f"{path}: {time.perf_counter() - start:.0f} s", flush=True)


def chosen(name: str, patterns: list[str]) -> bool:
    """Whether a pattern takes it, or there are none."""
    return not patterns or any(re.search(pattern, name) for pattern in patterns)


def networks() -> Iterator[tuple[str, Network]]:
    """All, by library and name."""
    for name, make in hand_networks.NETWORKS.items():
        yield f"hand_{name}", Network(make, traced=name != "dcn")  # which tracing has no rule for
    for name in TORCHVISION.split():
        yield f"torchvision_{name}", Network(partial(of_pictures, name), traced=True)
    for traced, names in ((True, TIMM_TRACED), (False, TIMM_CAPTURED)):
        for name in names.split():
            yield f"timm_{name}", Network(partial(of_timm, name), traced=traced)
    for name, configured in TRANSFORMERS.items():
        make = partial(of_transformers, configured)
        yield f"transformers_{name}", Network(make, calibrated=False, by_keywords=True)
    for name, diffusing in DIFFUSERS.items():
        yield f"diffusers_{name}", Network(partial(of_diffusers, diffusing), calibrated=False)


def export(network: Network, path: Path) -> None:
    """Writes the file, weights inside."""
    module, inputs = prepared(network)
    arguments = tuple(inputs.values())
    with torch.no_grad():
        if network.traced:
            named = network.by_keywords
            torch.onnx.export(
                module, () if named else arguments, path, kwargs=inputs if named else None,
                input_names=list(inputs), dynamo=False, opset_version=17,
            )  # fmt: skip
        elif network.by_keywords:
            torch.onnx.export(module, (), path, kwargs=inputs, external_data=False, verbose=False)
        else:
            torch.onnx.export(module, arguments, path, external_data=False, verbose=False)


def prepared(network: Network) -> tuple[Any, Inputs]:
    """The module and its inputs, the same whenever it is called."""
    torch.manual_seed(0)
    module, inputs = network.make()
    if network.calibrated:
        calibrate(module, inputs)
    return module.eval(), inputs


def of_pictures(kind: str) -> tuple[Any, Inputs]:
    """A network of torchvision, for a picture or a few of a video."""
    if kind != "r2plus1d_18":
        return of_torchvision(kind)
    from torchvision.models import get_model

    return get_model(kind, weights=None), {"x": torch.randn(1, 3, 8, 64, 64)}


def of_transformers(model: Configured) -> tuple[Any, Inputs]:
    """A model of transformers, or a part of it."""
    import transformers

    config = transformers.AutoConfig.for_model(model.kind, **model.sizes)
    config.use_cache = False
    module = getattr(transformers, model.loader).from_config(config)
    return (getattr(module, model.part) if model.part else module), model.inputs()


def of_diffusers(model: Diffusing) -> tuple[Any, Inputs]:
    """A model of diffusers."""
    import diffusers

    return Sampled(getattr(diffusers, model.kind)(**model.sizes), model.call), model.inputs()


class Sampled(torch.nn.Module):
    """The tensor out of what a model of diffusers returns."""

    def __init__(self, model: torch.nn.Module, call: Callable[..., Any]):
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.call(self.model, *inputs).sample
        return result


if __name__ == "__main__":
    main()
