"""Says what is in a picture: python hello_classification.py MODEL PICTURE HETERO:GPU,CPU.

Without arguments it draws a page, turns it clockwise by 90 degrees, and asks
zoo:pplcnet-orientation (fetched when first used) how it is turned; the answer has to be 90.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import partita as ov
from partita.zoo.drawing import draw_page
from partita.zoo.naming import resolve

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


def preprocess(path: Path, height: int, width: int) -> np.ndarray:
    """The middle of a picture as float32 of shape (1, 3, height, width), ImageNet's way."""
    picture = Image.open(path).convert("RGB")
    scale = max(width / picture.width, height / picture.height) * 256 / 224
    size = (max(width, round(picture.width * scale)), max(height, round(picture.height * scale)))
    picture = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    pixels = np.asarray(picture.crop((left, top, left + width, top + height)), np.float32) / 255
    return np.ascontiguousarray(((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)[None])


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Scores as probabilities: softmax, unless they are some already."""
    flat = scores.reshape(-1).astype(np.float64)
    if flat.min() >= 0 and abs(flat.sum() - 1) < 1e-2:
        return flat
    weights: np.ndarray = np.exp(flat - flat.max())
    weights /= weights.sum()
    return weights


KNOWN = "zoo:pplcnet-orientation"


def drawn_page() -> Path:
    """A page turned clockwise by 90 degrees, written beside whoever runs this."""
    path = Path("turned_page.png")
    draw_page().rotate(-90, expand=True).save(path)
    return path


def main() -> int:
    """Runs the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=KNOWN, help=f"a classifier (default: {KNOWN})")
    parser.add_argument("picture", nargs="?", type=Path, help="by default a page, drawn and turned")
    parser.add_argument("device", nargs="?", default="HETERO", help="e.g. CPU or HETERO:GPU,CPU")
    parser.add_argument("--labels", type=Path, help="a text file with a label on each line")
    parser.add_argument("--top", type=int, default=5, help="how many to show (default: 5)")
    args = parser.parse_args()

    core = ov.Core()
    model = core.read_model(resolve(args.model).source)
    dims = [dim if isinstance(dim, int) else None for dim in model.inputs[0].shape or ()]
    if len(dims) != 4 or dims[1] not in (3, None):
        parser.error(f"{args.model} takes {model.inputs[0].describe()}, not pictures of 3 channels")
    picture = args.picture or drawn_page()
    image = preprocess(picture, dims[2] or 224, dims[3] or 224)
    model.reshape(list(image.shape))
    compiled = core.compile_model(model, args.device)
    scores = probabilities(compiled(image)[0])

    labels = args.labels.read_text("utf-8").splitlines() if args.labels else []
    labels = labels or model.metadata.get("character", "").splitlines()
    print(compiled.explain().summary())
    for index in np.argsort(-scores)[: args.top]:
        label = labels[index] if index < len(labels) else f"class {index}"
        print(f"{scores[index]:8.4f}  {label}")
    if args.picture is None and args.model == KNOWN:
        print(f"the page in {picture} is turned by 90 degrees")
    if args.model.startswith("light:"):
        print(f"{args.model} has made-up weights: its classes mean nothing", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ov.PartitaError, OSError) as error:
        sys.exit(f"error: {error}")
