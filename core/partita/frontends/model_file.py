"""Model files as memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from partita.errors import ModelFormatError, ModelNotFoundError
from partita.model.model import Model
from partita.system.memory_map import map_file, shortened_files


def map_model(path: Path) -> memoryview:
    """The bytes of a model file, which the system reads as they are touched.

    Raises:
        ModelNotFoundError: It does not exist.
        ModelFormatError: It cannot be read, or is a pipe, a device or a folder.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for who writes to it
        raise ModelFormatError(
            f"Model file '{path}' cannot be read: it is a folder, pipe or device. Give a file, and "
            "save to one what another program writes."
        )
    try:
        return map_file(path)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"Model file '{path}' does not exist ({_looked_in(path)})."
        ) from error
    except (OSError, ValueError) as error:  # no file can have a name with a zero in it
        raise ModelFormatError(f"Model file '{path}' cannot be read: {error}") from error


def _looked_in(path: Path) -> str:
    try:
        return f"looked in '{path.absolute().parent}'"
    except FileNotFoundError:
        return "the working directory has been removed"


def require_whole_files(model: Model) -> None:
    """Sees to it that files in which a model's weights lie were not cut short since it was read.

    Raises:
        ModelFormatError: One was; to read the weights would end the process.
    """
    shortened = shortened_files()
    if not shortened:
        return
    import onnx_ir as ir

    for graph in model.ir.graphs():
        for name, value in graph.initializers.items():
            weight = value.const_value
            array = weight.raw if isinstance(weight, ir.Tensor) else None  # others are read lazily
            if isinstance(array, np.ndarray) and any(array.ctypes.data in f for f in shortened):
                raise ModelFormatError(
                    f"The file of model '{model.name}' was truncated after it was read, and weight "
                    f"'{name}' is in it. Read the model again, and replace files that models "
                    "were read from instead of writing to them."
                )
