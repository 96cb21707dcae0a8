"""Where drivers find a linker: the system's, or a folder that holds ours as the program ``ld``."""

from __future__ import annotations

import hashlib
import logging
import shlex
import shutil
import sys
from pathlib import Path

from partita.storage.cache_folder import cache_folder, keep_private, read_private

_log = logging.getLogger(__name__)

SEARCHED = "COMPILER_PATH"
"""The variable of the environment that names folders in which Clang, and so PoCL, looks for what it
starts before it looks elsewhere."""

_OF_GCC = "lib*/gcc/*/*"
"""Folders below ``/usr`` with a version of gcc's library, which such a linker is asked for."""

_CODE = "import sys; sys.path.insert(0, {folder!r}); import ld; sys.exit(ld.main(sys.argv[1:]))"


def system_linkers() -> list[str]:
    """What the system links with: ``ld``, if there is one, and the folders of gcc's libraries.

    Whoever installs or removes gcc changes what drivers can do that look for a linker.
    """
    return [shutil.which("ld") or "", *sorted(map(str, Path("/usr").glob(_OF_GCC)))]


def linker_folder() -> str:
    """The folder, which is made if it is not there; empty if there is no room to keep one."""
    place = Path(__file__).resolve().parent  # where `ld.py` is, too
    # Neither the user's settings nor installed packages, which would take longer to find.
    python = [sys.executable, "-I", "-S", "-c", _CODE.format(folder=str(place))]
    command = f'#!/bin/sh\nexec {shlex.join(python)} "$@"\n'.encode("utf-8", "surrogateescape")
    folder = cache_folder(f"opencl/linker/{hashlib.sha256(command).hexdigest()[:16]}")
    if folder is None:
        return ""
    program = folder / "ld"
    try:
        if read_private(program) != command and not keep_private(program, command):
            return ""
        program.chmod(0o700)
    except OSError as error:
        _log.info("There is no linker in '%s': %s", folder, error)
        return ""
    return str(folder)
