"""Pictures drawn with Pillow, and pictures turned into arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.errors import ZooError
from partita.zoo.sample import Array

if TYPE_CHECKING:
    from PIL import Image, ImageFont

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

PAGE_SIZE = (640, 832)
"""Width and height of :func:`draw_page`."""

PAGE_LINES = (
    "A partita is a suite in parts. Each part is played",
    "by the voice that plays it best, and the parts are",
    "joined so that nobody hears where one ends.",
    "The second part is for strings alone. It begins in the",
    "same key and ends in another; the violins rest while",
    "the basses carry the theme. A short coda follows, and",
    "the whole suite takes about twenty minutes to play.",
)
"""The body text of :func:`draw_page`: three lines above the figure, four below it."""


def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own scalable font.

    Raises:
        ZooError: This Pillow was built without FreeType.
    """
    from PIL import ImageFont

    found = ImageFont.load_default(size=size)
    if not isinstance(found, ImageFont.FreeTypeFont):
        raise ZooError(
            "Drawing text needs a Pillow with FreeType; install one with 'pip install --upgrade "
            "--force-reinstall pillow'."
        )
    return found


def draw_line(text: str, width: int, height: int) -> Image.Image:
    """A line of black text on white, as large as the picture allows."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (width, height), "white")
    size = int(height * 0.75)
    while size > 8 and font(size).getlength(text) > width - 16:
        size -= 1
    ImageDraw.Draw(picture).text((8, height // 2), text, "black", font(size), anchor="lm")
    return picture


def draw_page(figure: bool = True) -> Image.Image:
    """A page with a title and two paragraphs; with a bar chart and its caption between them."""
    from PIL import Image, ImageDraw

    width, height = PAGE_SIZE
    page = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(page)
    draw.text((width // 2, 60), "Partita: a suite in parts", "black", font(34), anchor="mm")
    for row, line in enumerate(PAGE_LINES[:3]):
        draw.text((60, 120 + 30 * row), line, "black", font(20))
    if figure:
        draw.rectangle((140, 250, 500, 470), fill=(200, 215, 235), outline="black")
        for bar in range(8):
            left, top = 170 + 40 * bar, 420 - 20 * (5 * bar % 8)
            draw.rectangle((left, top, left + 25, 440), fill=(40, 90, 160))
        draw.text((width // 2, 490), "Figure 1: time per part", "black", font(16), anchor="mm")
    for row, line in enumerate(PAGE_LINES[3:]):
        draw.text((60, 530 + 30 * row), line, "black", font(20))
    return page


def to_array(
    picture: Image.Image,
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5),
    bgr: bool = False,
) -> Array:
    """A picture as float32 of shape (1, 3, height, width): ``(v / 255 - mean) / deviation``.

    Args:
        picture: Any mode; converted to RGB.
        mean: Per channel, in the order of the result.
        deviation: Likewise.
        bgr: Blue first, as models trained with OpenCV want it.
    """
    pixels = np.asarray(picture.convert("RGB"), np.float32) / 255
    if bgr:
        pixels = pixels[..., ::-1]
    scaled = (pixels - np.asarray(mean, np.float32)) / np.asarray(deviation, np.float32)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])
