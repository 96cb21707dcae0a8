"""Draws boxes round what a model finds: python hello_object_detection.py MODEL PICTURE DEVICE.

Takes detectors of the zoo: zoo:picodet-layout (parts of a page) and zoo:ppocr-det (lines of text).
Without arguments it draws a page of eight lines, and zoo:ppocr-det has to find them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import partita as ov
from partita.zoo.decoding import Box, layout_boxes, text_boxes
from partita.zoo.drawing import IMAGENET_DEVIATION, IMAGENET_MEAN, draw_page, font, to_array
from partita.zoo.naming import resolve

COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")


def decode(outputs: list[np.ndarray], labels: list[str], size: tuple[int, int]) -> list[Box]:
    """Boxes in the model's picture, from a map of text or from the heads of a PicoDet."""
    if len(outputs) == 1 and outputs[0].ndim == 4:
        return text_boxes(outputs[0][0, 0])
    if len(outputs) % 2 == 0 and all(output.ndim == 3 for output in outputs):
        heads = [output[0] for output in outputs]
        half = len(heads) // 2
        return layout_boxes(heads[:half], heads[half:], labels, size)
    shapes = ", ".join(str(output.shape) for output in outputs)
    raise ov.errors.ModelError(f"This example cannot read outputs of shapes {shapes}.")


KNOWN = "zoo:ppocr-det"


def drawn_page() -> Path:
    """A page with a title and seven lines of text, written beside whoever runs this."""
    path = Path("page.png")
    draw_page(figure=False).save(path)
    return path


def main() -> int:
    """Runs the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = f"zoo:picodet-layout, {KNOWN} (default), or a file of that kind"
    parser.add_argument("model", nargs="?", default=KNOWN, help=kinds)
    parser.add_argument("picture", nargs="?", type=Path, help="by default a page that is drawn")
    parser.add_argument("device", nargs="?", default="HETERO", help="e.g. CPU or HETERO:GPU,CPU")
    parser.add_argument("-o", "--output", type=Path, default=Path("boxes.png"))
    args = parser.parse_args()

    core = ov.Core()
    model = core.read_model(resolve(args.model).source)
    picture = Image.open(args.picture or drawn_page()).convert("RGB")
    dims = model.inputs[0].shape or ()
    if len(dims) != 4:
        parser.error(f"{args.model} takes {model.inputs[0].describe()}, not a picture")
    sides = zip(dims[2:], (picture.height, picture.width), strict=True)
    height, width = (d if isinstance(d, int) else max(32, round(p / 32) * 32) for d, p in sides)
    resized = picture.resize((width, height))
    image = to_array(resized, IMAGENET_MEAN, IMAGENET_DEVIATION, bgr=True)
    compiled = core.compile_model(model.reshape(list(image.shape)), args.device)
    outputs = compiled(image).to_tuple()

    labels = model.metadata.get("character", "text").splitlines()
    draw = ImageDraw.Draw(picture)
    print(compiled.explain().summary())
    boxes = decode(list(outputs), labels, (height, width))
    for box in boxes:
        shown = box.scaled(picture.width / width, picture.height / height)
        colour = COLOURS[labels.index(box.label) % len(COLOURS)]
        draw.rectangle((shown.left, shown.top, shown.right, shown.bottom), outline=colour, width=2)
        draw.text((shown.left + 3, shown.top), box.label, colour, font(14), anchor="lb")
        corners = f"{shown.left:.0f} {shown.top:.0f} {shown.right:.0f} {shown.bottom:.0f}"
        print(f"{box.score:6.3f}  {box.label:<16} {corners}")
    picture.save(args.output)
    print(f"{len(boxes)} found, written to {args.output}")
    if args.picture is None and args.model == KNOWN:
        print("the page in page.png has 8 lines of text")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ov.PartitaError, OSError) as error:
        sys.exit(f"error: {error}")
