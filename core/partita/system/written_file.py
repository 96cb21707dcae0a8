"""Writing of files, with errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names a file in the errors of a block that writes it; half of it is no file.

    Only opening a file names it; that a disk is full is told while it is written, or closed. What
    was written until then is deleted.

    Raises:
        OSError: The block's own, with the file's name.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        if path.is_file():
            path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
