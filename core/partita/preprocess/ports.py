"""What an application says of its tensors, and of the model's inputs and outputs."""

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
        """Says what elements it has; they are converted where no step does it.

        Args:
            type: What :class:`partita.Type` takes; by default tensors have the model's type.
        """
        self.dtype = Type(type).dtype
        return self

    def set_layout(self, layout: Any) -> Self:
        """Says in which order its axes stand; they are transposed where no step does it.

        Args:
            layout: Such as ``"NHWC"``; by default tensors have the model's layout.
        """
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
        """Says its dimensions.

        Args:
            shape: In the order of the tensor's layout; -1 or ``None`` for those that vary. By
                default they follow from the model's.
        """
        self.shape = [None if dim == -1 else dim for dim in shape]
        return self

    def set_spatial_dynamic_shape(self) -> Self:
        """Says that height and width vary; its layout must have axes ``H`` and ``W``."""
        self.image_size = (None, None)
        return self

    def set_spatial_static_shape(self, height: int, width: int) -> Self:
        """Says its height and width, in pixels; its layout must have axes ``H`` and ``W``."""
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
    """The tensor for one input of the model, the steps it goes through, and the input itself."""

    def __init__(self) -> None:
        self._tensor = InputTensorInfo()
        self._steps = PreProcessSteps()
        self._model = InputModelInfo()

    def tensor(self) -> InputTensorInfo:
        """The tensor that the application gives, to be described."""
        return self._tensor

    def preprocess(self) -> PreProcessSteps:
        """The steps from that tensor to the input, to be added to."""
        return self._steps

    def model(self) -> InputModelInfo:
        """The model's input, to be described."""
        return self._model


class OutputInfo:
    """One output of the model, the steps it goes through, and the tensor that comes of it."""

    def __init__(self) -> None:
        self._tensor = OutputTensorInfo()
        self._steps = PostProcessSteps()
        self._model = OutputModelInfo()

    def tensor(self) -> OutputTensorInfo:
        """The tensor that the application gets, to be described."""
        return self._tensor

    def postprocess(self) -> PostProcessSteps:
        """The steps from the output to that tensor, to be added to."""
        return self._steps

    def model(self) -> OutputModelInfo:
        """The model's output, to be described."""
        return self._model
