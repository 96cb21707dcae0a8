"""What trials found, kept on disk: why something is not used, or that it is.

A verdict is found by the digest of everything that it depends on, and sealed with it. A file that
is damaged, that others may have written, or that is of something else, as one that was copied over
another, is no verdict.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partita.storage.cache_folder import (
    cache_folder,
    keep_sealed,
    mark_used,
    prune,
    read_sealed,
    users_caches,
)

_log = logging.getLogger(__name__)

KIND = "opencl/verdicts"
"""Where verdicts are kept in Partita's cache folder."""

FILES = 8192
"""Verdicts kept on disk, of half a kilobyte each; when there are more, the half that was used
longest ago is deleted, and what they are on is tried again."""

_FORMAT = 2
_WORDS = 2000

_ROOM_BYTES = 1 << 23
"""What the build of a kernel may leave in files, generously."""


@dataclass(frozen=True)
class Verdict:
    """The result of a trial.

    Attributes:
        reason: Why what was tried is not used; empty if it is.
        facts: What else the trial found: strings and lists of strings by name.
        file: Where it is kept, if it is: deleting the file lets the trial be made again.
    """

    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def good(self) -> bool:
        """Whether what was tried is used."""
        return not self.reason


def read(subject: str, marks: Sequence[str]) -> Verdict | None:
    """The verdict that is kept on a subject, or ``None``.

    Args:
        subject: What was tried, for people.
        marks: Everything that the verdict depends on.
    """
    path = _path(subject, marks)
    if path is None or (content := read_sealed(path)) is None:
        return None
    if not content:
        _log.warning("The verdict in '%s' is damaged; %s is tried again.", path, subject)
        return None
    mark_used(path)
    found = json.loads(content)
    return Verdict(found["reason"], found["facts"], path)


def write(subject: str, marks: Sequence[str], verdict: Verdict) -> Verdict:
    """Keeps a verdict; returns it with its place, or as it is if it cannot be kept.

    A fault that was found where there is no room for files may be of that, and is not kept.

    Args:
        subject: As for :func:`read`.
        marks: As for :func:`read`.
        verdict: What was found.
    """
    path = _path(subject, marks)
    if path is None or not (verdict.good or _has_room()):
        return verdict
    content = {
        "subject": subject,  # for people
        "reason": verdict.reason[:_WORDS],
        "facts": dict(verdict.facts),
    }
    if not keep_sealed(path, json.dumps(content, indent=1).encode()):
        return verdict
    try:
        prune(path.parent, FILES)
    except OSError as error:
        _log.info("Verdicts cannot be deleted: %s", error)
    return Verdict(verdict.reason, verdict.facts, path)


def _has_room() -> bool:
    """Whether drivers and their compilers can write what they build, in both places they take."""
    caches = users_caches()
    try:
        for folder in (None, next(p for p in (caches, *caches.parents) if p.is_dir())):
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_ROOM_BYTES))
    except OSError as error:
        _log.info("A fault is not kept, since files cannot be written: %s", error)
        return False
    return True


def _path(subject: str, marks: Sequence[str]) -> Path | None:
    folder = cache_folder(KIND)
    if folder is None:
        return None
    digest = hashlib.sha256("\0".join((str(_FORMAT), subject, *marks)).encode()).hexdigest()
    return folder / f"{digest}.verdict"
