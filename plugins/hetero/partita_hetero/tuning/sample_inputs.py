"""What a model is measured and judged on: inputs that the user gives, or made-up ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from partita.bisection.repro import read_data
from partita.errors import InputError
from partita.model.model import Model
from partita.model.synthetic_inputs import synthetic_inputs
from partita.runtime.binding.input_conversion import to_tensor
from partita.storage.model_cache import files_content
from partita.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]


class Samples:
    """The inputs of one model, the same ones every time.

    Args:
        model: Whose inputs have fixed shapes.
        path: The property ``HETERO_SAMPLE_INPUTS``.

    Raises:
        InputError: The file cannot be read, or lacks an input.
    """

    def __init__(self, model: Model, path: str) -> None:
        self.feeds = read_samples(model, path) if path else synthetic_inputs(model, _generator())
        self.synthetic = not path
        self._model = model
        self._path = path

    def tensors(self) -> list[Tensor]:
        """One for each input.

        Raises:
            InputError: One has a wrong dtype or shape.
        """
        return [to_tensor(port, self.feeds[port.name], False) for port in self._model.inputs]

    @property
    def key(self) -> list[str]:
        """What tells them from others; nothing for made-up ones."""
        return files_content(self._path)


def _generator() -> np.random.Generator:
    return np.random.default_rng(0)


def read_samples(model: Model, path: str) -> dict[str, Array]:
    """The arrays that ``HETERO_SAMPLE_INPUTS`` names, by input.

    Raises:
        InputError: The file cannot be read, or lacks an input.
    """
    if Path(path).is_dir():
        return read_data(Path(path), model)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {port.name: archive[port.name] for port in model.inputs}
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InputError(
            f"HETERO_SAMPLE_INPUTS: '{path}' cannot be used; it must be an .npz file with an "
            f"array for each input, or a folder with input_0.pb, ...: {error}"
        ) from error
