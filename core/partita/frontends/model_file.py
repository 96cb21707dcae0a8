"""Model files as memory."""

from __future__ import annotations

from pathlib import Path

from partita.errors import ModelFormatError, ModelNotFoundError
from partita.system.memory_map import map_file


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
            f"Model file '{path}' does not exist (looked in '{path.absolute().parent}')."
        ) from error
    except (OSError, ValueError) as error:  # no file can have a name with a zero in it
        raise ModelFormatError(f"Model file '{path}' cannot be read: {error}") from error
