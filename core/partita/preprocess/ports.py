"""What is told of both ends of a way: the tensor that an application has, and the model's port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from partita.errors import ModelError
from partita.preprocess.formats import ColorFormat
from partita.preprocess.steps import PostProcessSteps, PreProcessSteps
from partita.tensors.element_type import Type


class _TensorInfo:
    """What an application's tensor is like."""

    def __init__(self) -> None:
        self.dtype: np.dtype[Any] | None = None
        self.layout: Any = None

    def set_element_type(self, type: Any) -> Self:
        """Says what elements it has; converted to the model's where no step does it."""
        self.dtype = Type(type).dtype
        return self

    def set_layout(self, layout: Any) -> Self:
        """Says in which order its axes stand, as ``"NHWC"``."""
        self.layout = layout
        return self


class OutputTensorInfo(_TensorInfo):
    """The tensor that an application gets; each method returns the object itself."""


class InputTensorInfo(_TensorInfo):
    """The tensor that an application gives; each method returns the object itself."""

    def __init__(self) -> None:
        super().__init__()
        self.color = ColorFormat.UNDEFINED
        self.plane_names: Sequence[str] = ()
        self.shape: list[Any] | None = None
        self.image_size: tuple[int | None, int | None] | None = None

    def set_color_format(self, format: ColorFormat, sub_names: Sequence[str] = ()) -> Self:
        """Says what its channels stand for.

        Args:
            format: The format; an image of several planes becomes as many inputs.
            sub_names: What these are called, behind the input's name and a slash; by default ``y``
                and ``uv``, or ``y``, ``u`` and ``v``.

        Raises:
            ModelError: There are not as many names as planes.
        """
        if sub_names and len(sub_names) != len(format.planes):
            raise ModelError(
                f"{format.name} has {len(format.planes)} planes; {len(sub_names)} names were given."
            )
        self.color, self.plane_names = format, sub_names or format.planes
        return self

    def set_shape(self, shape: Sequence[Any]) -> Self:
        """Says its dimensions; -1 or ``None`` for those that vary."""
        self.shape = [None if dim == -1 else dim for dim in shape]
        return self

    def set_spatial_dynamic_shape(self) -> Self:
        """Says that height and width vary."""
        self.image_size = (None, None)
        return self

    def set_spatial_static_shape(self, height: int, width: int) -> Self:
        """Says its height and width."""
        self.image_size = (height, width)
        return self

    def set_from(self, runtime_tensor: Any) -> Self:
        """Takes element type and shape of a tensor or array."""
        self.set_shape([int(dim) for dim in runtime_tensor.shape])
        kind = getattr(runtime_tensor, "element_type", None)
        return self.set_element_type(runtime_tensor.dtype if kind is None else kind)

    def set_memory_type(self, memory_type: str) -> Self:
        """Accepted for OpenVINO's sake: tensors come from whatever memory they lie in."""
        return self


class InputModelInfo:
    """The model's input; the method returns the object itself."""

    def __init__(self) -> None:
        self.layout: Any = None

    def set_layout(self, layout: Any) -> Self:
        """Says in which order its axes stand, as ``"NCHW"``."""
        self.layout = layout
        return self


class OutputModelInfo(InputModelInfo):
    """The model's output; the method returns the object itself."""


class InputInfo:
    """The way to one input of the model."""

    def __init__(self) -> None:
        self._tensor = InputTensorInfo()
        self._steps = PreProcessSteps()
        self._model = InputModelInfo()

    def tensor(self) -> InputTensorInfo:
        """What the application gives."""
        return self._tensor

    def preprocess(self) -> PreProcessSteps:
        """What is done to it."""
        return self._steps

    def model(self) -> InputModelInfo:
        """What the model takes."""
        return self._model


class OutputInfo:
    """The way from one output of the model."""

    def __init__(self) -> None:
        self._tensor = OutputTensorInfo()
        self._steps = PostProcessSteps()
        self._model = OutputModelInfo()

    def tensor(self) -> OutputTensorInfo:
        """What the application gets."""
        return self._tensor

    def postprocess(self) -> PostProcessSteps:
        """What is done to it."""
        return self._steps

    def model(self) -> OutputModelInfo:
        """What the model gives."""
        return self._model
