"""A folder of models: ``NAME/VERSION/MODEL-FILE``, and ``NAME/config.toml`` beside the versions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from partita.errors import ModelError, PartitaError
from partita_serve.models.loading import ModelSource
from partita_serve.settings import ModelSettings, read_toml, validated

CONFIG = "config.toml"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_SUFFIXES = (".onnx", ".xml", ".gguf", ".tflite", ".circle")
"""Of the files that are models; what else lies beside them belongs to them."""

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Path, inode, size and time of change of each file."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One model of a folder.

    Attributes:
        sources: What its newest versions are loaded from, by version.
        fingerprints: By version, what changes when a file of it or the model's settings do.
        failure: Why it cannot be loaded; empty if nothing is known against it.
    """

    sources: Mapping[str, ModelSource]
    fingerprints: Mapping[str, Fingerprint]
    failure: str = ""


def look_into(folder: Path, defaults: ModelSettings) -> dict[str, FolderEntry]:
    """All models of a folder, by name; reads no model.

    Names that cannot stand in an address are left out, and so is what lies outside of the folder
    and is only linked to.

    Raises:
        ModelError: The folder cannot be read.
    """
    try:
        root = folder.resolve(strict=True)
        names = sorted(entry.name for entry in root.iterdir() if _NAME.fullmatch(entry.name))
    except OSError as error:
        raise ModelError(f"Model folder '{folder}' cannot be read: {error}.") from error
    found = {name: root / name for name in names}
    return {
        name: _entry(name, path, defaults)
        for name, path in found.items()
        if path.is_dir() and _lies_in(path, root)
    }


def _entry(name: str, path: Path, defaults: ModelSettings) -> FolderEntry:
    try:
        config = path / CONFIG
        own = read_toml(config) if config.exists() else {}
        settings = validated(
            ModelSettings, {**defaults.model_dump(), **own}, f"Model '{name}' ({CONFIG})"
        )
        numbers = [entry.name for entry in path.iterdir() if _VERSION.fullmatch(entry.name)]
        newest = sorted(numbers, key=int)[-settings.versions :]
        versions = {number: path / number for number in newest}
        if not versions:
            raise ModelError(
                f"Model '{name}' has no version: put its file into '{name}/1/' of the folder."
            )
        sources = {
            version: ModelSource(name, version, str(_model_file(name, place)), settings, place)
            for version, place in versions.items()
        }
        prints = {version: _fingerprint(place, config) for version, place in versions.items()}
    except OSError as error:
        return FolderEntry({}, {}, f"Model '{name}' cannot be read: {error}.")
    except PartitaError as error:
        return FolderEntry({}, {}, str(error))
    return FolderEntry(sources, prints)


def _model_file(name: str, place: Path) -> Path:
    """The one model file of a version."""
    root = place.parent.parent
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    outside = [path for path in (place, *files) if not _lies_in(path, root)]
    if outside:
        raise ModelError(
            f"'{outside[0].relative_to(root)}' is a link that leaves the model folder; put the "
            "file itself there."
        )
    models = [path for path in files if path.suffix.lower() in _SUFFIXES and path.parent == place]
    if len(models) != 1:
        found = ", ".join(f"'{path.name}'" for path in models) or "none"
        raise ModelError(
            f"Version {place.name} of model '{name}' needs one model file "
            f"({', '.join(_SUFFIXES)}); there is {found}."
        )
    return models[0]


def _lies_in(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except RuntimeError as error:  # links in circles, as Python reports them up to 3.12
        raise OSError(str(error)) from error


def _fingerprint(place: Path, config: Path) -> Fingerprint:
    files = [*sorted(place.rglob("*")), *([config] if config.exists() else [])]
    return tuple((str(path), *_changes(path.stat())) for path in files)


def _changes(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns
