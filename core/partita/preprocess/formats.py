"""What images are made of, and how they are resized and padded, by OpenVINO's names."""

from __future__ import annotations

import enum


class ColorFormat(enum.Enum):
    """What the channels of an image stand for.

    NV12 and I420 hold brightness for each pixel and colour for each block of four; their planes lie
    below one another in one tensor, or in tensors of their own. The X of RGBX and BGRX is dropped.
    """

    UNDEFINED = "undefined"
    NV12_SINGLE_PLANE = "NV12, one tensor"
    NV12_TWO_PLANES = "NV12, two tensors"
    I420_SINGLE_PLANE = "I420, one tensor"
    I420_THREE_PLANES = "I420, three tensors"
    RGB = "RGB"
    BGR = "BGR"
    GRAY = "GRAY"
    RGBX = "RGBX"
    BGRX = "BGRX"

    @property
    def planes(self) -> tuple[str, ...]:
        """Names of the tensors that an image of several takes; none where it is one."""
        return _PLANES.get(self, ())

    @property
    def channels(self) -> int | None:
        """How many channels an image of it has, where they lie side by side."""
        return _CHANNELS.get(self.name)

    @property
    def is_yuv(self) -> bool:
        """Whether it holds brightness and colour apart, rather than three colours."""
        return self.name.startswith(("NV12", "I420"))


_PLANES = {
    ColorFormat.NV12_TWO_PLANES: ("y", "uv"),
    ColorFormat.I420_THREE_PLANES: ("y", "u", "v"),
}


_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1, "RGBX": 4, "BGRX": 4}


class ResizeAlgorithm(enum.Enum):
    """How pixels of another size are made.

    Those of Pillow average over the pixels that one takes the place of where images shrink.
    """

    RESIZE_LINEAR = "linear"
    RESIZE_CUBIC = "cubic"
    RESIZE_NEAREST = "nearest"
    RESIZE_BILINEAR_PILLOW = "bilinear_pillow"
    RESIZE_BICUBIC_PILLOW = "bicubic_pillow"


class PaddingMode(enum.Enum):
    """What padded elements are.

    A value; or a mirror image of the tensor, without the element at its border (``REFLECT``) or
    with it (``SYMMETRIC``).
    """

    CONSTANT = "constant"
    REFLECT = "reflect"
    SYMMETRIC = "symmetric"
