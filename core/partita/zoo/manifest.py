"""The manifest: which models the zoo has, where they come from and how their files are known."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from partita.errors import ZooError
from partita.suggestions import guess

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a wheel.

    Attributes:
        path: Where it is in the wheel, with forward slashes.
        size: Its size in bytes.
        sha256: Its digest in hexadecimal.
    """

    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        pure = PurePosixPath(self.path)
        if pure.is_absolute() or ".." in pure.parts or "\\" in self.path or not pure.suffix:
            raise ZooError(
                f"The manifest names '{self.path}'; a member is a relative path inside the wheel "
                "without '..', and with a suffix."
            )
        if not _SHA256.fullmatch(self.sha256) or self.size <= 0:
            raise ZooError(f"The manifest gives no proper size and sha256 for '{self.path}'.")


@dataclass(frozen=True, slots=True)
class Entry:
    """One model.

    Attributes:
        name: What it is called in ``zoo:NAME``.
        title: What it is.
        task: What it does, as a verb phrase.
        package: The PyPI project whose wheel holds it.
        version: The version of the project.
        model: The model: an ONNX or GGUF file.
        files: Other files that its answers need (labels), by role.
        download: Size of the wheel in bytes.
        licence: SPDX identifier.
        source: Where it was made.
        input: What the natural input is.
        answer: What the model should answer to it.
    """

    name: str
    title: str
    task: str
    package: str
    version: str
    model: Member
    download: int
    licence: str
    source: str
    input: str
    answer: str
    files: Mapping[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ZooError(f"The manifest calls a model '{self.name}'; use small letters and '-'.")

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


def parse(text: str) -> dict[str, Entry]:
    """Reads a manifest.

    Raises:
        ZooError: It is not TOML, or an entry lacks something or is unsafe.
    """
    try:
        tables = tomllib.loads(text)["models"]
        return {name: _entry(name, dict(table)) for name, table in tables.items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ZooError(f"The zoo's manifest is damaged: {error}") from error


@functools.cache
def entries() -> Mapping[str, Entry]:
    """The models of this version of Partita, by name, in the manifest's order."""
    return parse(resources.files("partita.zoo").joinpath("manifest.toml").read_text("utf-8"))


def entry(name: str, known: Mapping[str, Entry] | None = None) -> Entry:
    """One model.

    Args:
        name: Without ``zoo:``.
        known: The manifest; by default the one that ships with Partita.

    Raises:
        ZooError: There is none of that name; lists those there are.
    """
    known = entries() if known is None else known
    if name in known:
        return known[name]
    raise ZooError(f"The zoo has no model '{name}'.{guess(name, known)} It has {', '.join(known)}.")


def _entry(name: str, table: dict[str, Any]) -> Entry:
    model = Member(table.pop("member"), table.pop("size"), table.pop("sha256"))
    files = {
        role: Member(file["member"], file["size"], file["sha256"])
        for role, file in table.pop("files", {}).items()
    }
    return Entry(name=name, model=model, files=files, **table)
