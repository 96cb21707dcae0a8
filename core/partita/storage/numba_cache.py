"""What numba compiles, kept in the private cache folder instead of where numba would put it.

numba keeps its results as pickles, and to load a pickle is to execute what is in it. By itself it
looks for them beside the source files or in whatever folder its environment variables name, and
reads them whoever wrote them. Here they lie in a folder, and are read from files, that no other
user can write; a file that is damaged counts as missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from partita.storage.cache_folder import cache_folder, keep_sealed, read_sealed


def keep_compiled(dispatcher: Any) -> None:
    """Lets a function that ``numba.njit`` made keep what it compiles.

    Where there is no private folder or no source file, it is compiled by each process.

    Args:
        dispatcher: Made without ``cache=True``.
    """
    folder = cache_folder("numba")
    source = Path(inspect.getfile(dispatcher.py_func))
    if folder is not None and source.is_file():
        dispatcher._cache = _classes()(dispatcher.py_func, source, folder)


@functools.cache
def _classes() -> Callable[[Any, Path, Path], Any]:
    """Numba's cache with other files; a function, since numba is imported when it is needed."""
    caching: Any = importlib.import_module("numba.core.caching")

    class Files(caching.IndexDataCacheFile):  # type: ignore[misc]  # its types are unknown
        """One index and its entries, each behind its digest in a private file."""

        def _load_index(self) -> dict[Any, str]:
            index = _load(Path(self._index_path))
            fresh = isinstance(index, tuple) and index[:2] == (self._version, self._source_stamp)
            return index[2] if fresh else {}

        def _save_index(self, overloads: dict[Any, str]) -> None:
            index = self._version, self._source_stamp, overloads
            with self._open_for_write(self._index_path) as file:
                file.write(self._dump(index))

        def _load_data(self, name: str) -> Any:
            return _load(Path(self._data_path(name)))

        @contextlib.contextmanager
        def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
            file = io.BytesIO()
            yield file
            keep_sealed(Path(filepath), file.getvalue())

    class Results(caching.CompileResultCacheImpl):  # type: ignore[misc]
        """How results become pickles; numba's own would look for a folder."""

        def __init__(self, function: Any, source: Path) -> None:
            self._lineno = function.__code__.co_firstlineno
            self._locator = _Source(str(source))

    class Kept(caching.FunctionCache):  # type: ignore[misc]
        """The cache of one function."""

        def __init__(self, function: Any, source: Path, folder: Path) -> None:
            self._name = repr(function)
            self._py_func = function
            self._impl = Results(function, source)
            self._cache_path = str(folder)
            name = f"{function.__module__}.{function.__qualname__}"
            where = f"{source}:{self._impl._lineno} {sys.version}"
            place = hashlib.sha256(where.encode()).hexdigest()[:24]
            readable = "".join(c if c.isalnum() else "_" for c in name)[:60]
            stamp = hashlib.sha256(source.read_bytes()).hexdigest()
            self._cache_file = Files(self._cache_path, f"{readable}-{place}", stamp)
            self.enable()

    return Kept


class _Source:
    """What numba asks of the place of a cache."""

    def __init__(self, file: str) -> None:
        self._py_file = file  # numba names it in a warning

    def ensure_cache_path(self) -> None:
        """The folder is there."""


def _load(path: Path) -> Any:
    """What was kept in a file; ``None`` if there is none that is whole and ours."""
    data = read_sealed(path)
    return pickle.loads(data) if data else None  # noqa: S301  # nobody but this user wrote it
