"""CACHE_DIR: compiled models on disk, found by everything that they depend on."""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.contract.identity import code_stamp
from partita.errors import BlobError
from partita.storage.cache_folder import make_private, open_private, write_private
from partita.storage.content_hash import array_fingerprint, fingerprint
from partita.version import __version__

if TYPE_CHECKING:
    from partita.model.model import Model

_log = logging.getLogger("partita")


class ModelCache:
    """A folder of exported models, for several processes at once.

    Files are written beside their place and renamed, readable by their owner alone; they are never
    changed. Any of them may be removed at any time, and nothing but the user removes one that is
    intact, so the folder grows by a file for each model, device, property and version.

    Args:
        folder: Made when something is stored.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()

    def load(self, key: str) -> memoryview | None:
        """The blob of a key, read into memory; ``None`` if there is none.

        Not mapped: a file that is cut short while a model computes from it would end the process.

        Raises:
            BlobError: There is a file that cannot be used; says why.
        """
        path = self._path(key)
        try:
            with open_private(path) as stream:
                size = os.fstat(stream.fileno()).st_size
                data = memoryview(mmap.mmap(-1, size))  # starts at a page, so arrays are aligned
                if stream.readinto(data) != size:
                    raise OSError("it is being cut short")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # there is no memory of no bytes
            raise BlobError(f"'{path}' cannot be read: {error}") from error
        if data[: len(key)] != key.encode():
            raise BlobError(f"'{path}' holds another model or is damaged.")
        return data[len(key) :].toreadonly()

    def store(self, key: str, blob: bytes) -> None:
        """Keeps a blob; where that is not possible, says so in the log and goes on."""
        path = self._path(key)
        try:
            make_private(path.parent)
            write_private(path, key.encode(), blob)  # 64 bytes first, which keeps arrays aligned
        except (OSError, ValueError) as error:  # a name with a 0 in it is none
            _log.warning(
                "The compiled model is not cached in '%s': %s. Fix that, or set CACHE_DIR to "
                "another folder.",
                self._folder,
                error,
            )

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.partita"


def key_of(identity: str, source: Any) -> str:
    """The key of a model on a device.

    Args:
        identity: What :meth:`partita.contract.device_plugin.DevicePlugin.identity` says.
        source: A ``Model``, or whatever ``Core.read_model`` takes.
    """
    digest = hashlib.sha256(f"{__version__}\n{code_stamp('partita')}\n".encode())
    digest.update(identity.encode())
    digest.update(content_of(source))
    return digest.hexdigest()


def content_of(source: Any) -> bytes:
    """What a model says: its file and the files of its weights, or its graph, byte by byte."""
    from partita.frontends.reader import external_files, read_model
    from partita.model.model import Model

    if isinstance(source, (str, os.PathLike)) and Path(source).is_file():
        data = Path(source).read_bytes()
        parts = [b"file", Path(source).stem.encode(), fingerprint(data)]
        parts += [fingerprint(path.read_bytes()) for path in external_files(data, Path(source))]
        return b"\n".join(parts)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return b"bytes" + fingerprint(bytes(source))
    return _graph(source if isinstance(source, Model) else read_model(source))


def files_content(*paths: str) -> list[str]:
    """What files hold, and all files in folders; nothing for what is not there."""
    contents = []
    for path in filter(None, paths):
        where = Path(path)
        files = sorted(where.rglob("*")) if where.is_dir() else [where]
        contents += [
            f"{file.name} {fingerprint(file.read_bytes()).hex()}"
            for file in files
            if file.is_file()
        ]
    return contents


def _graph(model: Model) -> bytes:
    """The graph as a protobuf without its large weights, and these by their content."""
    from partita.model.inference.shape_inference import without_large_weights

    graph = without_large_weights(model.ir)
    parts = [b"graph", fingerprint(graph.SerializeToString(deterministic=True))]
    for name, value in model.ir.graph.initializers.items():
        if value.const_value is not None:
            array = value.const_value.numpy()
            content = str(array.tolist()) if array.dtype.hasobject else array_fingerprint(array)
            parts.append(f"{name} {content}".encode())
    return b"\n".join(parts)
