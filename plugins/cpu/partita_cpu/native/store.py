"""Machine code on disk: files found by what they were made from, safe among processes."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
from pathlib import Path

CACHE_VARIABLE = "PARTITA_CACHE_DIR"

_DIGEST_BYTES = 32
_CPUINFO = Path("/proc/cpuinfo")
_ABOUT_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags")


def cache_folder() -> Path:
    """Where machine code is kept: below PARTITA_CACHE_DIR, or in the user's cache folder."""
    root = os.environ.get(CACHE_VARIABLE)
    if root:
        return Path(root).expanduser() / "cpu"
    from platformdirs import user_cache_path

    return user_cache_path("partita", appauthor=False) / "cpu"


def read(name: str, key: str) -> bytes | None:
    """What was kept under a name and a key, if it is there and whole."""
    try:
        content = _path(name, key).read_bytes()
    except OSError:
        return None
    digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return data if data and hashlib.sha256(data).digest() == digest else None


def write(name: str, key: str, data: bytes) -> None:
    """Keeps something, if the folder can be written: else it is good for this process.

    A file is its content behind the content's SHA-256. It is written beside its place and moved
    there, so that processes that come at the same time never see half of one.
    """
    path = _path(name, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        Path(beside).replace(path)
    except OSError:
        Path(beside).unlink(missing_ok=True)


def keeps() -> bool:
    """Whether files can be kept at all."""
    folder = cache_folder() / machine()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def there(file: str) -> bool:
    """Whether a file of this name was kept."""
    return (cache_folder() / machine() / file).exists()


def file_name(name: str, key: str) -> str:
    """The name of the file that something is kept in."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    readable = re.sub(r"\W+", "_", name)[:60]
    return f"{readable}-{digest}"


def _path(name: str, key: str) -> Path:
    return cache_folder() / machine() / file_name(name, key)


@functools.cache
def machine() -> str:
    """A name for all that machine code hangs on besides its source: compilers and processor."""
    parts = [sys.version, _processor()]
    for package in ("numba", "llvmlite"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            version = Path(spec.origin).with_name("_version.py")
            parts.append(version.read_text() if version.exists() else spec.origin)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def knows_processor() -> bool:
    """Whether files are told apart by what the processor has."""
    return bool(_processor())


@functools.cache
def _processor() -> str:
    """What the system tells of the first processor."""
    lines = []
    try:
        with _CPUINFO.open() as file:
            for line in file:
                if not line.strip():
                    break
                if line.partition("\t")[0].rstrip() in _ABOUT_PROCESSOR:
                    lines.append(line)
    except OSError:
        return ""
    return "".join(lines)
