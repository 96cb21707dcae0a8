"""Networks with random weights as ONNX files, others than more_ and wide_networks.py write.

    python benchmarks/newer_networks.py FOLDER [PATTERN ...]

Of torchvision, timm and transformers: image encoders of the last years, detection and segmentation
by transformers, encoders of speech, a vocoder, text and video. Each is written to
FOLDER/<library>_<network>.onnx, unless that file exists; PATTERN takes those whose name holds it.
Those of transformers have fewer layers than are published.
Then `check_networks.py FOLDER/*.onnx`. Needs what `more_networks.py` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from more_networks import (
    Configured,
    Inputs,
    Network,
    noise,
    of_pictures,
    of_transformers,
    picture,
    text,
    write,
)
from torch_architectures import of_timm
from wide_networks import NARROW, pair

TIMM = (
    "bat_resnext26ts cs3darknet_s cspnext_tiny csatv2 eca_botnext26ts_256 efficientformerv2_s0 "
    "efficientvim_m1 gmixer_12_224 hardcorenas_a iformer_t "
    "lowformer_b0 mnasnet_small mobilenetv1_100 mobilenetv3_large_100 mobilenetv4_conv_medium "
    "poolformerv2_s12 regnetz_005 resnet10t resnetblur18 sebotnet33ts_256 "
    "semnasnet_050 test_vit tf_efficientnetv2_b0 tinynet_c xcit_nano_12_p8_224 "
    "convnextv2_atto convnext_zepto_rms fastvit_sa12 ghostnetv3_050 hgnetv2_b2 mobileone_s1 "
    "repvit_m1_1 starnet_s2 swinv2_cr_tiny_ns_224 vovnet39a edgenext_small hieradet_small "
    "lcnetv2_base res2next50 resnetv2_18 vitamin_small_224"
)
TORCHVISION = "convnext_tiny regnet_y_400mf shufflenet_v2_x1_0"
DETECTORS = (
    "fasterrcnn_mobilenet_v3_large_320_fpn fcos_resnet50_fpn maskrcnn_resnet50_fpn "
    "retinanet_resnet50_fpn ssdlite320_mobilenet_v3_large"
)
HEADS = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 1024}
VISION = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3,
          "intermediate_size": 768, "image_size": 224, "patch_size": 16}  # fmt: skip
DETECTOR = {
    "d_model": 256, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 1024, "num_queries": 100}  # fmt: skip


def ids(count: int, most: int = 1000) -> Callable[[], Inputs]:
    """Makes a sentence of as many tokens."""
    return lambda: {"input_ids": torch.randint(5, most, (1, count))}


def frames(count: int, side: int) -> Callable[[], Inputs]:
    """Makes a video of noise."""
    return noise("pixel_values", 1, count, 3, side, side)


TRANSFORMERS = {
    # Detection and segmentation
    "deformable_detr": Configured("deformable_detr", picture(256), DETECTOR | {
        "use_timm_backbone": False, "use_pretrained_backbone": False}),
    "mask2former": Configured("mask2former", picture(256), {
        "decoder_layers": 4, "encoder_layers": 2, "num_queries": 50}),
    "maskformer": Configured("maskformer", picture(256), {"num_queries": 50}),
    "segformer": Configured(
        "segformer", picture(256), loader="AutoModelForSemanticSegmentation"),
    "depth_anything": Configured(
        "depth_anything", picture(224), {}, "AutoModelForDepthEstimation"),
    "textnet": Configured("textnet", picture(256)),
    "trocr_encoder": Configured("deit", picture(384), VISION | {"image_size": 384}),
    # Vision encoders
    "dinov3_convnext": Configured("dinov3_convnext", picture(224)),
    "hiera": Configured("hiera", picture(224), {"depths": [1, 2, 3, 2]}),
    "siglip_vision": Configured("siglip_vision_model", picture(224), VISION),
    "aimv2_vision": Configured("aimv2_vision_model", picture(224), VISION),
    "cvt": Configured("cvt", picture(224), {"depth": [1, 2, 4]}),
    "sam2_vision": Configured("sam2_vision_model", picture(512)),
    "vitdet": Configured("vitdet", picture(256), VISION | {
        "image_size": 256, "window_size": 8, "window_block_indices": [0, 1, 3, 4],
        "residual_block_indices": []}),
    "swinv2": Configured("swinv2", picture(224), {"depths": [2, 2, 2, 2]}),
    "levit": Configured("levit", picture(224)),
    # Video
    "videomae": Configured("videomae", frames(8, 112), VISION | {
        "num_frames": 8, "image_size": 112}),
    "timesformer": Configured("timesformer", frames(4, 112), VISION | {
        "num_frames": 4, "image_size": 112}),
    "vivit": Configured("vivit", frames(8, 112), VISION | {
        "num_frames": 8, "image_size": 112}),
    # Sound
    "wav2vec2": Configured("wav2vec2", noise("input_values", 1, 16000), HEADS | {
        "num_hidden_layers": 4}),
    "wavlm": Configured("wavlm", noise("input_values", 1, 16000), HEADS | {
        "num_hidden_layers": 4}),
    "data2vec_audio": Configured("data2vec-audio", noise("input_values", 1, 16000), HEADS | {
        "num_hidden_layers": 4}),
    "sew": Configured("sew", noise("input_values", 1, 16000), HEADS | {"num_hidden_layers": 4}),
    "parakeet": Configured("parakeet_encoder", noise("input_features", 1, 300, 80), {
        "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024,
        "num_attention_heads": 4}),
    "vits_decoder": Configured(
        "vits", noise("spectrogram", 1, 192, 40), {"upsample_initial_channel": 128},
        part="decoder"),
    # Text
    "roformer": Configured("roformer", text(128), NARROW | {"embedding_size": 256}),
    "mpnet": Configured("mpnet", text(128), NARROW),
    "deberta_v1": Configured("deberta", text(96), NARROW | {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "convbert": Configured("convbert", text(128), NARROW),
    "mobilebert": Configured("mobilebert", text(128), {"num_hidden_layers": 6}),
    "nomic_bert": Configured("nomic_bert", text(128), NARROW),
    "esm": Configured("esm", text(128), NARROW | {
        "position_embedding_type": "rotary", "mask_token_id": 4, "pad_token_id": 1}),
    "t5": Configured("t5", pair(96, 32), {
        "d_model": 256, "d_ff": 1024, "num_layers": 3, "num_heads": 8, "d_kv": 32,
        "vocab_size": 20001}),
    "bloom": Configured("bloom", ids(64), {
        "hidden_size": 256, "n_layer": 4, "n_head": 8, "vocab_size": 2001}),
}  # fmt: skip


class Detecting(torch.nn.Module):
    """A detector of one picture, whose results are tensors without names."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return tuple(self.model([x[0]])[0].values())


def of_detectors(kind: str) -> tuple[Any, Inputs]:
    """A detector of torchvision, from a picture to boxes without those that others cover."""
    from torchvision.models import detection

    sizes = {} if "320" in kind else {"min_size": 320, "max_size": 320}
    model = getattr(detection, kind)(weights=None, weights_backbone=None, **sizes)
    return Detecting(model), {"x": torch.rand(1, 3, 320, 320)}


def networks() -> Iterator[tuple[str, Network]]:
    """All, by library and name."""
    for name in DETECTORS.split():
        make_detector = partial(of_detectors, name)
        yield f"torchvision_{name}", Network(make_detector, calibrated=False, traced=True)
    for name in TORCHVISION.split():
        yield f"torchvision_{name}", Network(partial(of_pictures, name), traced=True)
    for name in TIMM.split():
        yield f"timm_{name}", Network(partial(of_timm, name), traced=True)
    for name, configured in TRANSFORMERS.items():
        make: Callable[[], tuple[Any, Inputs]] = partial(of_transformers, configured)
        network = Network(make, calibrated=False, traced=True, by_keywords=True)
        yield f"transformers_{name}", network


if __name__ == "__main__":
    write(networks(), (__doc__ or "").splitlines()[0])
