"""Preprocessing and postprocessing as part of a model, as OpenVINO's ``preprocess`` has them."""

from __future__ import annotations

from partita.preprocess.formats import ColorFormat, PaddingMode, ResizeAlgorithm
from partita.preprocess.ports import (
    InputInfo,
    InputModelInfo,
    InputTensorInfo,
    OutputInfo,
    OutputModelInfo,
    OutputTensorInfo,
)
from partita.preprocess.processor import PrePostProcessor
from partita.preprocess.steps import PostProcessSteps, PreProcessSteps

__all__ = [
    "ColorFormat",
    "InputInfo",
    "InputModelInfo",
    "InputTensorInfo",
    "OutputInfo",
    "OutputModelInfo",
    "OutputTensorInfo",
    "PaddingMode",
    "PostProcessSteps",
    "PrePostProcessor",
    "PreProcessSteps",
    "ResizeAlgorithm",
]
