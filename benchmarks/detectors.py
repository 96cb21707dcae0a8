"""torchvision's detectors with random weights as ONNX files for pictures of any height and width.

    python benchmarks/detectors.py FOLDER [--shortest 192] [--longest 384] [NETWORK ...]

Each is written to FOLDER/<network>.onnx by PyTorch's traced exporter (the newer one refuses what
these networks ask of the number of boxes), with an input ``x`` of (3, height, width) that the
network itself scales: its shorter side to `--shortest` points, or its longer one to `--longest` if
that is less; those of SSD have a size of their own. Normalizations keep the statistics of noise,
and heads are scaled until some of their scores pass, some hundred or thousand as in trained ones,
so that boxes are left to be suppressed. Then

    python benchmarks/varying_shapes.py --threads 1 --pin FOLDER/ssd300_vgg16.onnx@SIDES

where SIDES is ``height=160-400/16,width=160-400/16``. Needs torch and torchvision. Boxes of nearly
the same score may come in another order from another engine, which `varying_shapes.py` prints as a
large error.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torchvision.models import detection

NETWORKS = (
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fasterrcnn_resnet50_fpn",
    "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)
PICTURE = (3, 210, 250)
SPREAD = {
    "rpn.head.cls_logits": 2.0,
    "cls_score": 2.0,
    "mask_fcn_logits": 2.0,
    "kps_score_lowres": 2.0,
    "bbox_pred": 0.5,
    "bbox_ctrness": 1.0,
    "classification_head.cls_logits": 2.0,
}
"""Standard deviations of what heads make of noise, by how their names end."""

CLASSES = 91
"""Of COCO; heads of SSD have so many scores for each box, one module for each level."""

BACKGROUND = 11.0
"""Logit of SSD's first class, by which most boxes show nothing."""

NOTHING = -8.0
"""Bias of the logits of heads that know no background."""


class OfOnePicture(torch.nn.Module):
    """A detector of one picture, whose results are tensors without names."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return tuple(self.model([x])[0].values())


def made(network: str, shortest: int, longest: int) -> Any:
    """The detector, whose weights are the same whenever it is made."""
    torch.manual_seed(0)
    sizes = {} if network.startswith("ssd") else {"min_size": shortest, "max_size": longest}
    model = getattr(detection, network)(weights=None, weights_backbone=None, **sizes).eval()
    x = torch.randn(PICTURE)
    norms = [one for one in model.modules() if "BatchNorm" in type(one).__name__]
    hooks = [norm.register_forward_hook(_keep_statistics) for norm in norms]
    with torch.no_grad():
        model([x])
        for hook in hooks:
            hook.remove()
        for name, module in model.named_modules():
            wanted = next((n for end, n in SPREAD.items() if name.endswith(end)), None)
            is_list_of_scores = "classification_head.module_list" in name
            if is_list_of_scores and getattr(module, "out_channels", 1) % CLASSES == 0:
                _spread(model, module, x, 2.0)
                module.bias.reshape(-1, CLASSES)[:, 0] += BACKGROUND
            elif wanted is not None:
                _spread(model, module, x, wanted)
            if name.endswith("classification_head.cls_logits"):
                module.bias.fill_(NOTHING)
    return model


def _keep_statistics(norm: Any, inputs: Any, output: Any) -> Any:
    """Gives a normalization the statistics of its input, and returns what it makes with them."""
    (x,) = inputs
    norm.running_mean.copy_(x.mean((0, 2, 3)))
    norm.running_var.copy_(x.var((0, 2, 3)) + 1e-3)
    mean, variance, weight, bias = (
        part[None, :, None, None]
        for part in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / torch.sqrt(variance + norm.eps) * weight + bias


def _spread(model: Any, head: Any, x: torch.Tensor, wanted: float) -> None:
    """Scales a head's weights by what it makes of a picture."""
    found: list[float] = []
    hook = head.register_forward_hook(lambda _, __, y: found.append(y.std().item()))
    model([x])
    hook.remove()
    if found and found[0] > 0:
        head.weight.mul_(wanted / found[0])


def main() -> None:
    """Writes those that are named on the command line, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--shortest", type=int, default=192)
    parser.add_argument("--longest", type=int, default=384)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for network in given.networks or NETWORKS:
        model = made(network, given.shortest, given.longest)
        x = torch.randn(PICTURE)
        with torch.no_grad():
            names = list(model([x])[0])
        torch.onnx.export(
            OfOnePicture(model), (x,), given.folder / f"{network}.onnx",
            input_names=["x"], output_names=names, dynamic_axes={"x": {1: "height", 2: "width"}},
            dynamo=False, opset_version=17,
        )  # fmt: skip


if __name__ == "__main__":
    main()
